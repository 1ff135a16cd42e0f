"""Decodes staged records of a topic: in, raw keys and values; out, the contract's columns, an operation, or an error.

Used by the check step, and wherever staged records are read as a table's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE
from sluice.contract.columns import JSON_FORMATS, Input
from sluice.contract.contract import Contract
from sluice.contract.fields import fields_read
from sluice.contract.types import IcebergType, Primitive
from sluice.contract.values import KAFKA_COLUMNS
from sluice.errors import SchemaIdReusedError
from sluice.formats import change_events, expressions, headers, masks
from sluice.formats.expired_rows import without_expired
from sluice.formats.formats import FORMATS
from sluice.formats.internal_columns import (
    DELETE,
    DETAIL,
    ERROR,
    FIELD,
    FIELDS,
    FLAT_NAME,
    HEADERS,
    IGNORE,
    KEY,
    OP,
    OTHER_TYPE,
    PROBLEM_TYPE,
    STAGED_COLUMNS,
    TIMESTAMP_MS,
    UNIT_TYPES,
    UPSERT,
    VALUE,
    RecordPart,
    exact,
    problem,
)
from sluice.formats.logical_types import read_text, spark_type
from sluice.formats.value_checks import canonical_form, partition_path_checks, truncate_transform_checks, type_checks
from sluice.formats.wire_format import PREFIX_BYTES
from sluice.kafka.schema_fingerprint import with_topic
from sluice.timestamps import NO_TIMESTAMP

TOMBSTONE = "_sluice_tombstone"

ERROR_DETAILS = change_events.EVENT_ERRORS | {
    "null_value": "the record has no value, and a table with mode append cannot delete rows",
    "tombstone_key": "the record has no value, and its key does not identify a row to delete",
    "expression": "the expression failed on this record",
}
"""Error class to the detail of its records; others have details of their own."""


def wanted_fields(contract: Contract, part: RecordPart = VALUE, *, flat_names: bool = False) -> T.StructType:
    """The fields of the value, or of the key, that columns and inputs read, with their types.

    Args:
        contract: The contract.
        part: The key or the value.
        flat_names: Whether to read fields whose name is a source with its dots, see `FLAT_NAME`.
    """
    row = _row_fields(contract, part, flat_names=flat_names)
    if not contract.cdc or part is KEY:
        return row
    envelope: dict[str, Any] = {}
    for each in (*contract.columns, *contract.inputs):
        if each.from_envelope and each.source not in (DELETED_SOURCE, OP_SOURCE):
            _add(envelope, each.envelope_path, _read_type(contract, each))
    return change_events.envelope_fields(contract, row, _struct(envelope))


def _row_fields(contract: Contract, part: RecordPart, *, flat_names: bool) -> T.StructType:
    """The fields of the key or of the row, which may be the whole value."""
    row: dict[str, Any] = {}
    inputs = [each for each in (*contract.columns, *contract.inputs) if not each.from_envelope]
    paths = [(each.key_path if part is KEY else each.path, each) for each in inputs]
    for path, each in paths:
        if path:
            _add(row, path, _read_type(contract, each))
    for path, _ in paths if flat_names else ():
        _add_flat_names(row, path)
    return _struct(row)


def _read_type(contract: Contract, each: Input) -> T.DataType:
    """The type to read a column or input as; exact if an identifier column reads the same source."""
    in_keys = {source for name in contract.identifier for source in fields_read(contract, contract.column(name))}
    kind = UNIT_TYPES.get((str(each.type), each.unit)) or spark_type(each.type)
    return exact(kind) if each.source in in_keys else kind


def _add(tree: dict[str, Any], path: Sequence[str], kind: T.DataType) -> None:
    *outer, name = path
    node = reduce(lambda at, part: at.setdefault(part, {}), outer, tree)
    node[name] = kind


def _add_flat_names(tree: dict[str, Any], path: Sequence[str]) -> None:
    """Add each field whose name would be names of the path with the dots between them."""
    for at, name in enumerate(path[:-1]):
        known = {each.lower() for each in tree}
        for end in range(at + 2, len(path) + 1):
            if (flat := ".".join(path[at:end])).lower() not in known:
                tree[flat] = T.StructField(flat, T.StringType(), metadata={FLAT_NAME: list(path[at:])})
        tree = tree[name]


def _struct(tree: dict[str, Any]) -> T.StructType:
    fields = []
    for name, node in tree.items():
        kind = _struct(node) if isinstance(node, dict) else node
        fields.append(kind if isinstance(kind, T.StructField) else T.StructField(name, kind))
    return T.StructType(fields)


@dataclass(frozen=True)
class _Record:
    """What is known of a record after it was read, as columns.

    Attributes:
        tombstone: Whether it has no value.
        is_other_type: Whether its type is not among the contract's `value.types`.
        problem: Why its bytes could not be read; null if they could.
        is_key_unreadable: Whether its key could not be read, though some of the key's fields may have been.
        event_error: The error class of its change event, or null.
        is_delete: Whether it is the event of a delete.
    """

    tombstone: Column
    is_other_type: Column
    problem: Column
    is_key_unreadable: Column
    event_error: Column
    is_delete: Column


def decode(staged: DataFrame, contract: Contract, topic: str, *, explain: bool = False) -> DataFrame:
    """Decode the staged records of one topic.

    Args:
        staged: The records.
        contract: How to read them.
        topic: The topic's name.
        explain: Whether errors name the part of an expression that failed, which takes longer.

    Returns:
        The contract's columns and the four Kafka coordinates; the record under the names of `STAGED_COLUMNS`;
        and `_sluice_op` (u, d, i), `_sluice_error` (class or null), `_sluice_detail`, `_sluice_field`.

    Raises:
        ContractError: An expression of the contract is not accepted.
        ConfigError: The contract masks a column, and the masking key is not set.
        SchemaIdReusedError: The registry returns another schema for an id than it did before.
    """
    try:
        frame = _read(staged, contract, topic)
    except SchemaIdReusedError as error:
        raise with_topic(error, topic) from error
    record = _record(frame, contract)
    op, tombstone_error = _operation(contract, record)
    op = F.when(record.is_other_type, IGNORE).otherwise(op)
    frame, op, failed_expression = _compute(frame, contract, record, op)
    computed = {c.name: _canonical(F.col(c.name), c.type) for c in contract.columns if c.expression}
    frame = without_expired(frame.withColumns({OP: op, **computed}), contract)
    frame = _add_errors(frame, contract, record, tombstone_error, failed_expression)
    if explain and contract.has_expressions:
        frame = expressions.explain_failures(frame, contract)
    columns = [*(c.name for c in contract.columns), *KAFKA_COLUMNS, *STAGED_COLUMNS.values()]
    return masks.mask_columns(frame, contract).select(*columns, OP, ERROR, FIELD, DETAIL)


def _record(frame: DataFrame, contract: Contract) -> _Record:
    tombstone, no_text, false = F.col(TOMBSTONE), F.lit(None).cast("string"), F.lit(False)
    return _Record(
        tombstone=tombstone,
        is_other_type=F.col(OTHER_TYPE) if contract.value.types else false,
        problem=F.coalesce(*(F.col(p.problem) for p in (VALUE, KEY, HEADERS) if p.problem in frame.columns)),
        is_key_unreadable=F.col(KEY.problem).isNotNull() if KEY.problem in frame.columns else false,
        event_error=change_events.event_error(contract, tombstone) if contract.cdc else no_text,
        is_delete=F.col(change_events.EVENT_KIND) == change_events.DELETED if contract.cdc else false,
    )


def _compute(frame: DataFrame, contract: Contract, record: _Record, op: Column) -> tuple[DataFrame, Column, Column]:
    """Add computed columns, ignore records that `where` excludes, and name the expression that failed, if any."""
    if not contract.has_expressions:
        return frame, op, F.lit(None).cast("string")
    is_readable = ~record.tombstone & record.problem.isNull() & record.event_error.isNull() & (op != IGNORE)
    is_upsert = is_readable & (op == UPSERT)
    # A delete may lack the fields that `where` needs, so it is applied wherever its key may be.
    is_filtered = is_upsert & ~record.is_delete if contract.keyed else is_upsert
    frame, failed, taken = expressions.add_computed_columns(frame, contract, is_upsert, is_readable, is_filtered)
    return frame, F.when(taken, op).otherwise(IGNORE), failed


def _add_errors(
    frame: DataFrame, contract: Contract, record: _Record, tombstone_error: Column, failed_expression: Column
) -> DataFrame:
    """Add ERROR, FIELD and DETAIL."""
    none = F.lit(None).cast("string")
    violation = _first_violation(contract)
    unavailable = F.when(F.col(OP) == UPSERT, change_events.find_unavailable_column(contract)) if contract.cdc else none
    timestamp_problem = _timestamp_problem(contract, record)
    error = (
        F.when(timestamp_problem.isNotNull() & (F.col(OP) != IGNORE), F.lit("timestamp"))
        .when(record.tombstone, tombstone_error)
        .when(record.is_other_type, none)
        .when(record.problem.isNotNull(), F.lit("malformed"))
        .when(record.event_error.isNotNull(), record.event_error)
        .when(failed_expression.isNotNull(), F.lit("expression"))
        .when(F.col(OP) == IGNORE, none)
        .when(unavailable.isNotNull(), F.lit("unavailable"))
        .when(violation.isNotNull(), F.lit("misfit"))
    )
    frame = frame.withColumn(ERROR, error)
    detail = F.when(~record.tombstone & ~record.is_other_type, record.problem["detail"])
    details = ERROR_DETAILS | {"misfit": violation["detail"], "timestamp": timestamp_problem}
    for error_class, text in details.items():
        detail = F.when(F.col(ERROR) == error_class, text).otherwise(detail)
    # By error class: if nothing could be read, all required columns are null, and none of them is the cause.
    fields = {
        "timestamp": F.lit(KAFKA_COLUMNS[3]),
        "malformed": record.problem["field"],
        "expression": failed_expression,
        "unavailable": unavailable,
        "misfit": violation["field"],
    }
    field = reduce(lambda found, each: F.when(F.col(ERROR) == each, fields[each]).otherwise(found), fields, none)
    return frame.withColumns({FIELD: field, DETAIL: detail})


def _timestamp_problem(contract: Contract, record: _Record) -> Column:
    """Why a record cannot do without the Kafka timestamp that it lacks; null if it can, or has one."""
    time, number = KAFKA_COLUMNS[3], F.col(STAGED_COLUMNS[TIMESTAMP_MS])
    is_needed = F.lit(time in contract.order or (contract.valid_to is not None and contract.valid_from == time))
    if any(c.source == DELETED_SOURCE and c.type == Primitive("timestamptz") for c in contract.columns):
        is_needed = is_needed | F.coalesce(record.is_delete, F.lit(False))  # null means that the row is not deleted
    none = F.lit("the record has no Kafka timestamp, and its row needs one")
    beyond = F.concat(
        F.lit("the record's Kafka timestamp"),
        F.coalesce(F.concat(F.lit(" ("), number, F.lit(" ms since 1970)")), F.lit("")),
        F.lit(" is beyond the years 1 to 9999; does its producer send microseconds?"),
    )
    return F.when(is_needed & F.col(time).isNull(), F.when(number == NO_TIMESTAMP, none).otherwise(beyond))


def _read(staged: DataFrame, contract: Contract, topic: str) -> DataFrame:
    """Read columns and inputs, next to the staged record, its problems and its change event."""
    if TIMESTAMP_MS not in staged.columns:  # a staging table that an earlier version created
        staged = staged.withColumn(TIMESTAMP_MS, F.lit(None).cast("bigint"))
    # Tombstones are found before the bytes are read, so that Spark need not carry them through the reading.
    value_part = VALUE._replace(types=contract.value.types)
    read_value = FORMATS[contract.value.format]
    wanted = wanted_fields(contract, flat_names=contract.value.format in JSON_FORMATS)
    frame = read_value(staged.withColumn(TOMBSTONE, _is_tombstone(contract)), wanted, value_part)
    inputs = (*contract.columns, *contract.inputs)
    # A key that is text or bytes is simply cast; other keys are read like values.
    key_has_fields = contract.key.format not in ("string", "bytes") and any(each.from_key for each in inputs)
    if key_has_fields:
        wanted = wanted_fields(contract, KEY, flat_names=contract.key.format in JSON_FORMATS)
        frame = FORMATS[contract.key.format](frame, wanted, KEY)
    if contract.value.format == "json_connect":  # a schema with a null payload
        no_payload = F.col(VALUE.fields).isNull() & F.col(VALUE.problem).isNull()
        frame = frame.withColumn(TOMBSTONE, F.col(TOMBSTONE) | no_payload)
    event = []
    if contract.cdc:
        if contract.cdc.format == "debezium_mongodb":
            frame = change_events.parse_documents(frame, _row_fields(contract, VALUE, flat_names=True))
        frame = change_events.open_envelope(frame, contract)
        event = [change_events.EVENT_KIND, change_events.ROW]
    if contract.key.format == "string":
        frame = frame.withColumn(KEY.problem, _text_key_problem(contract))
    read = {each: _read_type(contract, each) for each in inputs if each.header is not None}
    headers_problem = {HEADERS.problem: headers.find_problem(read)} if read else {}
    frame = frame.withColumns(headers_problem)
    key_problem = [KEY.problem] if KEY.problem in frame.columns else []
    values = ((each, _value(contract, each, key_has_fields=key_has_fields)) for each in inputs)
    return frame.select(
        # Before anything is computed of them, so that a filter or a key is that of the stored value.
        *(_canonical(value, each.type).alias(each.name) for each, value in values if value is not None),
        F.lit(topic).alias("_kafka_topic"),
        *KAFKA_COLUMNS[1:],
        *[F.col(name).alias(renamed) for name, renamed in STAGED_COLUMNS.items()],
        TOMBSTONE, VALUE.problem, *key_problem, *headers_problem, *event, *([OTHER_TYPE] if value_part.types else ()),
    )  # fmt: skip


def _canonical(value: Column, kind: IcebergType) -> Column:
    change = canonical_form(kind)
    return change(value) if change else value


def _value(contract: Contract, each: Input, *, key_has_fields: bool) -> Column | None:
    """The value of a column or input; None for a computed column."""
    target = _read_type(contract, each)
    key = _key(contract)
    key_as_target = key if isinstance(target, T.BinaryType) else read_text(key, target)
    if each.from_key:
        return _at(F.col(KEY.fields), each.key_path) if key_has_fields else key_as_target
    if each.header is not None:
        return headers.read(each, target)
    if each.is_valid_to:
        return F.lit(None).cast(target)  # set by the MERGE
    if each.from_envelope:
        return change_events.special_value(contract, each)
    if not each.path:
        return None
    value = _at(F.col(change_events.ROW if contract.cdc else FIELDS), each.path)
    is_tombstone_column = each.name == contract.tombstone_column
    return F.when(F.col(TOMBSTONE), key_as_target).otherwise(value) if is_tombstone_column else value


def _at(value: Column, path: Sequence[str]) -> Column:
    return reduce(lambda at, name: at[name], path, value)


def _key(contract: Contract) -> Column:
    """The key as bytes, or as text: null if it is not UTF-8."""
    text = F.col("key").cast("string")
    return F.col("key") if contract.key.format == "bytes" else F.when(F.is_valid_utf8(text), text)


def _text_key_problem(contract: Contract) -> Column:
    """Why a key of format string cannot be read as the columns and inputs want it; null if it can."""
    wanted = [_read_type(contract, each) for each in (*contract.columns, *contract.inputs) if each.from_key]
    key, is_text = F.col("key"), F.is_valid_utf8(F.col("key").cast("string"))
    invalid = key.isNotNull() & ~is_text & F.lit(bool(wanted))
    found = F.when(invalid, problem("the key is not UTF-8 text", KEY.root))
    for target in dict.fromkeys(wanted):
        if not isinstance(target, T.StringType):
            is_lost = _key(contract).isNotNull() & read_text(_key(contract), target).isNull()
            found = found.when(is_lost, problem(f"the key cannot be read as {target.simpleString()}", KEY.root))
    return found


def _is_tombstone(contract: Contract) -> Column:
    nothing = F.col(VALUE.raw).isNull()
    if contract.cdc and contract.value.format == "json":
        # Kafka Connect's converter writes `null` for a tombstone that Debezium's unwrap left with a schema.
        nothing = nothing | (F.col(VALUE.raw) == F.lit(b"null"))
    return nothing


def _operation(contract: Contract, record: _Record) -> tuple[Column, Column]:
    """What a record does, and the error class of a tombstone, which is null if the tombstone is valid."""
    none, tombstone = F.lit(None).cast("string"), record.tombstone
    if not contract.keyed:
        # An append table keeps the event of a delete; the tombstone after it only serves Kafka's compaction.
        if contract.cdc and contract.cdc.tombstones != "delete":
            return F.when(tombstone, F.lit(IGNORE)).otherwise(F.lit(UPSERT)), none
        return F.lit(UPSERT), F.lit("null_value")
    delete = {"ignore": IGNORE, "soft": UPSERT}.get(contract.deletes, DELETE)
    event = F.when(record.is_delete, F.lit(delete)).otherwise(F.lit(UPSERT))
    if not contract.tombstones_delete:
        return F.when(tombstone, F.lit(IGNORE)).otherwise(event), none
    op = F.when(tombstone, F.lit(DELETE)).otherwise(event)
    if not contract.key_names_rows and contract.tombstone_column is None:
        return op, F.lit("tombstone_key")
    keys = [contract.column(name) for name in contract.identifier]
    no_row = [record.is_key_unreadable, *(F.col(key.name).isNull() for key in keys)]
    no_row += [check.violated(F.col(key.name)) for key in keys for check in type_checks(key.type, key.name)]
    if contract.tombstone_column and not keys[0].from_key:
        # Read as a text, JSON or the bytes of a schema would be the key of no row and silently delete nothing.
        key = F.col(STAGED_COLUMNS["key"]).cast("string")
        no_row.append(key.rlike(r'^\s*[{"]') & F.get_json_object(key, "$").isNotNull())
        if contract.key.format == "string":
            no_row.append(key.startswith("\0") & (F.octet_length(key) >= PREFIX_BYTES))
    return op, F.when(reduce(or_, no_row), F.lit("tombstone_key"))


def _first_violation(contract: Contract) -> Column:
    """The problem of the first column whose value is missing though required, or violates its type; else null."""
    problems = []
    partition_checks = [*partition_path_checks(contract), *truncate_transform_checks(contract)]
    for column in contract.columns:
        value = F.col(column.name)
        checks = [(column.name, "required field missing", value.isNull())] if column.required else []
        checks += [(c.path, c.reason, c.violated(value)) for c in type_checks(column.type, column.name)]
        if column.name in contract.order and column.type in (Primitive("float"), Primitive("double")):
            # As the greatest number it would outrank all later versions of its key.
            checks.append((column.name, "NaN has no order", F.isnan(value)))
        checks += [each for each in partition_checks if each.column == column.name]
        # The event of a delete may have no more than the row's key and order.
        ignores_deletes = contract.cdc and column.name not in (*contract.identifier, *contract.order)
        for path, reason, violated in checks:
            applies = (F.col(OP) != DELETE) & violated if ignores_deletes else violated
            problems.append(F.when(applies, problem(reason, path)))
    return F.coalesce(*problems, F.lit(None).cast(PROBLEM_TYPE))
