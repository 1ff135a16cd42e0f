"""Quarantine: records that a table can't take, as rows of its quarantine table, overwritten and counted by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.batch import Batch, merge_batches
from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE
from sluice.contract.columns import JSON_FORMATS, Input
from sluice.contract.contract import Contract
from sluice.contract.fields import row_paths
from sluice.contract.types import IcebergType, ListOf, MapOf, Struct
from sluice.contract.values import KAFKA_COLUMNS, join_names
from sluice.errors import RejectedDifferError
from sluice.evolve.rejected_change import RejectedChange
from sluice.formats import change_events
from sluice.formats.internal_columns import (
    CORRUPT,
    DETAIL,
    ERROR,
    FIELD,
    KEY,
    STAGED_COLUMNS,
    TIMESTAMP_MS,
    VALUE,
    RecordPart,
)
from sluice.formats.json.connect import PAYLOAD
from sluice.formats.json.parsing import NOT_PARSED
from sluice.formats.json.records import DEFERRED_TYPES
from sluice.formats.logical_types import spark_type
from sluice.formats.wire_format import PREFIX_BYTES
from sluice.iceberg import range_scan, table_names, tables
from sluice.iceberg.filters import And, at_most, equal, one_of
from sluice.ingest import check, merge
from sluice.ingest.check import SEQ
from sluice.ingest.context import Context
from sluice.ingest.staged_batches import StagedBatches, with_records
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger

RAW = ("key", "value", "headers")
MAX_UNREADABLE = 20
"""Fields that the error of one record lists."""
_UNREADABLE = "_sluice_unreadable"


def overwrite_quarantine(staged: StagedBatches, rejected: int, refused: Sequence[RejectedChange] = ()) -> None:
    """Replace the batches' rows in the quarantine by what is rejected now: run twice, it leaves one copy.

    After a rollback a batch is published again, and a backfill slice may have quarantined records of it meanwhile.
    These records are decided anew, so the slice's rows are deleted.

    Args:
        rejected: how many records were rejected while they were merged.
        refused: contract changes that were rejected; the errors of their fields say so.

    Raises:
        RejectedDifferError: the quarantine received another number of records than `rejected`.
    """
    batches = with_records(staged.batches)
    if not batches:  # what was quarantined of a batch that is skipped now may be all that is left of it
        return
    context, contract, whole = staged.context, staged.contract, merge_batches(batches)
    identifier = table_names.quarantine(contract)
    name = table_names.spark_name(context.catalog_name, identifier)
    table = tables.load_quarantine(context.catalog, contract)
    mine = And(one_of("batch_seq", [b.seq for b in batches]), equal("_kafka_topic", whole.topic))
    if rejected or (table and tables.plan_files(table, mine)):
        written = tables.ensure_quarantine(context.catalog, contract)
        rows = rejected_rows(staged.decode(explain=True), contract, refused)
        rows.writeTo(name).overwrite(check.in_batches(batches) & (F.col("_kafka_topic") == whole.topic))
        found = written.refresh().scan(row_filter=mine, selected_fields=("batch_seq",)).count()
        # The records were decoded a second time; one that passes now would be in neither table.
        if found != rejected:
            raise RejectedDifferError(
                f"{rejected:,} records had to be quarantined, but {found:,} were.",
                table=contract.table,
                topic=whole.topic,
                batches=[b.seq for b in batches],
            )
    if table and (numbers := _slices_within(context, table, whole)):
        merge.delete_quarantined(staged.decode().select(*KAFKA_COLUMNS[:3]), name, whole, numbers)


def _slices_within(context: Context, quarantine: Table, whole: Batch) -> list[int]:
    """The numbers of backfill slices of the same topic with rows among the batch's offsets."""
    of_slices = at_most("batch_seq", -1)
    files = range_scan.plan_slice_files(quarantine, whole, of_slices)
    if not files:
        return []
    rows = range_scan.read_slice_records(quarantine, whole, ("batch_seq",), extra_filter=of_slices, files=files)
    planned = slices.planned_slices(slices.read_slice_rows(Ledger(context.catalog), whole.topic))
    numbers = rows["batch_seq"].unique().to_pylist()
    return [n for n in numbers if n in planned and planned[n].topic_id == whole.topic_id]


def rejected_rows(decoded: DataFrame, contract: Contract, refused: Sequence[RejectedChange] = ()) -> DataFrame:
    """The rejected records as rows of the quarantine.

    Args:
        refused: contract changes that were rejected; the errors of their fields say so.
    """
    raw = [F.col(STAGED_COLUMNS[name]).alias(name) for name in RAW]
    if contract.drops_raw_records:
        raw = [F.lit(None).cast(decoded.schema[STAGED_COLUMNS[name]].dataType).alias(name) for name in RAW]
        # Empty, not null: when replayed, a record whose value was dropped must not look like a delete.
        raw[1] = F.when(F.col(STAGED_COLUMNS["value"]).isNotNull(), F.lit(b"")).alias("value")
    field = F.col(FIELD)
    why = [F.when(field.rlike(each.fields), F.lit(each.text)) for each in refused]
    error = F.nullif(F.concat_ws("; ", F.col(DETAIL), *why), F.lit("")) if why else F.col(DETAIL)
    rejected = name_unreadable_fields(check.filter_decoded(decoded, F.col(ERROR).isNotNull()), contract)
    return rejected.select(
        F.col(SEQ).alias("batch_seq"),
        *KAFKA_COLUMNS,
        *raw,
        F.col(ERROR).alias("error_class"),
        error.alias("error"),
        field.alias("field"),
        F.current_timestamp().alias("quarantined_at"),
        F.col(STAGED_COLUMNS[TIMESTAMP_MS]).alias(TIMESTAMP_MS),
    )


def has_raw() -> Column:
    """Whether a row of the quarantine still has its raw record: see `rejected_rows`."""
    return F.expr("key IS NOT NULL OR headers IS NOT NULL OR length(value) > 0")


def name_unreadable_fields(rejected: DataFrame, contract: Contract) -> DataFrame:
    """Put the JSON fields that are there and could not be read into the errors of malformed records.

    FIELD is the first of them. DETAIL lists them if it only says that the object could not be parsed.
    """
    unreadable = [each for part in (VALUE, KEY) for each in _unreadable_fields(contract, part)]
    if not unreadable:
        return rejected
    field, detail, names, malformed = F.col(FIELD), F.col(DETAIL), F.col(_UNREADABLE), F.col(ERROR) == "malformed"
    first = F.coalesce(F.when(field != change_events.BEFORE, field), F.get(names, F.lit(0))["field"], field)
    # Text that is no JSON object lacks fields for another reason.
    is_object = [
        F.when(
            detail.startswith(f"the {part.raw} {NOT_PARSED}"),
            F.json_object_keys(_json_text(contract, part)).isNotNull(),
        )
        for part in (VALUE, KEY)
        if _json_format(contract, part)
    ]
    unexplained = field.isNull() & F.coalesce(*is_object, F.lit(False)) & (F.size(names) > 0)
    return (
        rejected.withColumn(_UNREADABLE, F.when(malformed, F.array_compact(F.array(*unreadable))))
        .withColumns(
            {
                FIELD: F.when(malformed, first).otherwise(field),
                DETAIL: F.when(unexplained, _mismatch_text(names)).otherwise(detail),
            }
        )
        .drop(_UNREADABLE)
    )


def _mismatch_text(names: Column) -> Column:
    listed = F.transform(
        F.slice(names, 1, MAX_UNREADABLE), lambda each: F.format_string("%s (%s)", each["field"], each["type"])
    )
    more = F.when(F.size(names) > MAX_UNREADABLE, ", …").otherwise("")
    return F.concat(F.lit("type mismatch in "), F.array_join(listed, ", "), more)


def _json_format(contract: Contract, part: RecordPart) -> str:
    """The format of a record's key or value if it is one of JSON, else an empty text."""
    form = contract.key.format if part is KEY else contract.value.format
    return form if form in JSON_FORMATS else ""


def _json_text(contract: Contract, part: RecordPart) -> Column:
    start = PREFIX_BYTES + 1 if _json_format(contract, part) == "json_schema" else 1
    return F.expr(f"substring({STAGED_COLUMNS[part.raw]}, {start})").cast("string")


def _unreadable_fields(contract: Contract, part: RecordPart) -> Iterator[Column]:
    """Name and type of each JSON field that is present but could not be read, else null."""
    form = _json_format(contract, part)
    if not form:
        return
    text = _json_text(contract, part)
    payload = (PAYLOAD,) if form == "json_connect" else ()
    others = []  # of what surrounds a field or is within it: they follow the fields themselves
    objects = set[tuple[str, ...]]()
    for each in (*contract.columns, *contract.inputs):
        path = each.key_path if part is KEY else each.path
        rows = ((),) if part is KEY else row_paths(contract)
        names, sign = (part.root, *path) if part is KEY else path, ""
        if part is VALUE and each.from_envelope and each.source not in (DELETED_SOURCE, OP_SOURCE):
            names, sign, path, rows = each.envelope_path, "$", each.envelope_path, ((),)
        elif not path or path == (part.root,) or each.from_envelope:
            continue
        for outer in rows:
            whole = (*payload, *outer, *path)
            read = F.col(each.name) if each in contract.columns else _parsed_input(text, whole, each)
            for inner, kind in _inner_types(each.type):
                found, name = _json_at(text, (*whole, *inner)), sign + join_names((*names, *inner))
                yield _lost(found.isNotNull() & _at(read, inner).isNull(), name, _type_name(kind))
                if isinstance(kind, ListOf | MapOf):
                    others.append(_lost(_has_unreadable_part(found, spark_type(kind)), name, str(kind)))
            for length in range(1, len(path)):
                around = (*payload, *outer, *path[:length])
                if around not in objects:
                    objects.add(around)
                    name = sign + join_names(names[: length - len(path)])
                    others.append(_lost(~_json_at(text, around).startswith("{"), name, "object"))
    yield from others


def _lost(applies: Column, name: str, kind: str) -> Column:
    return F.when(applies, F.struct(F.lit(name).alias("field"), F.lit(kind).alias("type")))


def _json_at(text: Column, path: Sequence[str]) -> Column:
    """The text or JSON at a path of a JSON text; null if there is none."""
    return F.get_json_object(text, "$" + "".join(f"['{name.replace(chr(39), '')}']" for name in path))


def _has_unreadable_part(text: Column, kind: T.DataType) -> Column:
    """Whether the JSON of a list or a map has a part that is not of its type."""
    alone = T.StructType(
        [T.StructField(PAYLOAD, DEFERRED_TYPES.parse_schema(kind)), T.StructField(CORRUPT, T.StringType())]
    )
    framed = F.concat(F.lit(f'{{"{PAYLOAD}":'), text, F.lit("}"))
    return F.from_json(framed, alone, {"columnNameOfCorruptRecord": CORRUPT})[CORRUPT].isNotNull()


def _inner_types(kind: IcebergType) -> Iterator[tuple[tuple[str, ...], IcebergType]]:
    """The paths in a value of a type to itself and to the fields of its structs, with their types."""
    yield (), kind
    if isinstance(kind, Struct):
        yield from (((name, *inner), found) for name, each in kind.fields for inner, found in _inner_types(each))


def _type_name(kind: IcebergType) -> str:
    match kind:
        case Struct() | MapOf():
            return "object"
        case ListOf():
            return "list"
    return str(kind)


def _parsed_input(text: Column, path: Sequence[str], each: Input) -> Column:
    """An input, which decoded records no longer have."""
    *outer, last = path
    whole = T.StructType([T.StructField(last, DEFERRED_TYPES.parse_schema(spark_type(each.type)))])
    for name in reversed(outer):
        whole = T.StructType([T.StructField(name, whole)])
    return _at(F.from_json(text, whole), path)


def _at(value: Column, path: Sequence[str]) -> Column:
    return reduce(lambda at, name: at[name], path, value)


def count_rejected_for(decoded: DataFrame, contract: Contract, fields: str) -> dict[int, int]:
    """How many records were rejected for these fields (a regular expression), by batch number."""
    rejected = name_unreadable_fields(check.filter_decoded(decoded, F.col(ERROR).isNotNull()), contract)
    rows = rejected.where(F.col(FIELD).rlike(fields)).groupBy(SEQ).count()
    return {row[SEQ]: row["count"] for row in rows.collect()}
