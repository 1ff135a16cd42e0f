"""Decode: the fields of a record become the contract's columns, what the record does, or an error that says why not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE
from sluice.contract.contract import Contract
from sluice.contract.fields import rows_at
from sluice.contract.values import KAFKA_COLUMNS
from sluice.formats import change_events, expressions, masks
from sluice.formats.formats import FORMATS
from sluice.formats.internal_columns import (
    DELETE,
    DETAIL,
    ERROR,
    FIELD,
    FIELDS,
    IGNORE,
    KEY,
    NO_PROBLEM,
    OP,
    OTHER,
    STAGED,
    UPSERT,
    VALUE,
    Side,
    problem,
)
from sluice.formats.json_connect import PAYLOAD
from sluice.formats.logical_types import read_text, spark_type
from sluice.formats.value_checks import lowered, misfits, unfit_folders, unfit_steps
from sluice.formats.wire_format import PREFIX

TOMBSTONE = "_sluice_tombstone"

WHY = change_events.WHY | {
    "timestamp": "Kafka's timestamp of the record is beyond the year 294247: are its milliseconds nanoseconds?",
    "null_value": "the record has no value, and a table of mode append takes no deletes",
    "tombstone_key": "the record has no value, and its key names no row to delete",
    "expression": "the expression failed on this record",
}
"""What is wrong with a record, by class of error, where nothing says more."""


def wanted(contract: Contract, side: Side = VALUE) -> T.StructType:
    """The fields of the value, or of the key, that columns and inputs are taken from, each with its type."""
    row: dict[str, Any] = {}
    special: dict[str, Any] = {}
    for each in (*contract.columns, *contract.inputs):
        if side is KEY:
            if each.from_key:
                _add(row, each.key_path, spark_type(each.type))
        elif each.special and each.source not in (DELETED_SOURCE, OP_SOURCE):
            _add(special, each.source.removeprefix("$").split("."), spark_type(each.type))
        elif each.path and not each.special:
            _add(row, each.path, spark_type(each.type))
    if contract.cdc and side is VALUE:
        return change_events.wanted(contract, _struct(row), _struct(special))
    return _struct(row)


def _add(tree: dict[str, Any], path: Sequence[str], kind: T.DataType) -> None:
    *outer, name = path
    node = reduce(lambda at, part: at.setdefault(part, {}), outer, tree)
    node[name] = kind


def _struct(tree: dict[str, Any]) -> T.StructType:
    return T.StructType(
        [T.StructField(name, _struct(node) if isinstance(node, dict) else node) for name, node in tree.items()]
    )


def decode(staged: DataFrame, contract: Contract, topic: str) -> DataFrame:
    """Staged records of one topic → the same rows with typed columns, what each does, and what is wrong with it.

    Returns:
        The contract's columns and the four Kafka coordinates; the record under the names of `STAGED`;
        and `_sluice_op` (u, d, i), `_sluice_error` (class or null), `_sluice_detail`, `_sluice_field`.

    Raises:
        ContractError: an expression of the contract is none that Sluice takes.
        ConfigError: the contract masks a column, and the key for it is not set.
    """
    frame = _read(staged, contract, topic)
    tombstone = F.col(TOMBSTONE)
    unread = F.coalesce(*(F.col(side.problem) for side in (VALUE, KEY) if side.problem in frame.columns))
    event_error = change_events.error(tombstone) if contract.cdc else F.lit(None).cast("string")
    deleted = F.col(change_events.KIND) == change_events.DELETED if contract.cdc else F.lit(False)
    garbled = F.col(KEY.problem).isNotNull() if KEY.problem in frame.columns else F.lit(False)
    op, tombstone_error = _operation(contract, tombstone, deleted, garbled)
    other = F.col(OTHER) if contract.value.types else F.lit(False)
    op = F.when(other, IGNORE).otherwise(op)
    failed = unavailable = none = F.lit(None).cast("string")
    if contract.computes:
        sound = ~tombstone & unread.isNull() & event_error.isNull() & (op != IGNORE)
        changes = sound & (op == UPSERT)
        # A delete may lack the fields that the condition asks for, so it goes wherever its key may be.
        routed = changes & ~deleted if contract.keyed else changes
        frame, failed, taken = expressions.computed(frame, contract, changes, sound, routed)
        op = F.when(taken, op).otherwise(IGNORE)
    frame = frame.withColumn(OP, op)
    if uuids := {c.name: lower(F.col(c.name)) for c in contract.columns if (lower := lowered(c.type))}:
        frame = frame.withColumns(uuids)  # a key in capitals is the same key
    misfit = _misfit(contract)
    if contract.cdc:
        unavailable = F.when(F.col(OP) == UPSERT, change_events.unavailable(contract))
    timeless = F.col(KAFKA_COLUMNS[3]).isNull()
    error = (
        F.when(timeless & (F.col(OP) != IGNORE), F.lit("timestamp"))
        .when(tombstone, tombstone_error)
        .when(other, none)
        .when(unread.isNotNull(), F.lit("malformed"))
        .when(event_error.isNotNull(), event_error)
        .when(failed.isNotNull(), F.lit("expression"))
        .when(F.col(OP) == IGNORE, none)
        .when(unavailable.isNotNull(), F.lit("unavailable"))
        .when(misfit.isNotNull(), F.lit("misfit"))
    )
    detail = F.when(~tombstone & ~other, unread["detail"])
    frame = frame.withColumn(ERROR, error)
    for kind, words in (*WHY.items(), ("misfit", misfit["detail"])):
        detail = F.when(F.col(ERROR) == kind, words).otherwise(detail)
    # Of its own class: where nothing could be read, all required columns are null, and none of them is to blame.
    fields = {
        "timestamp": F.lit(KAFKA_COLUMNS[3]),
        "malformed": unread["field"],
        "expression": failed,
        "unavailable": unavailable,
        "misfit": misfit["field"],
    }
    about = reduce(lambda told, kind: F.when(F.col(ERROR) == kind, fields[kind]).otherwise(told), fields, none)
    frame = frame.withColumns({FIELD: about, DETAIL: detail})
    kept = [*(c.name for c in contract.columns), *KAFKA_COLUMNS, *STAGED.values()]
    return masks.masked(frame, contract).select(*kept, OP, ERROR, FIELD, DETAIL)


def _read(staged: DataFrame, contract: Contract, topic: str) -> DataFrame:
    """Columns and inputs as they were read, the record as it was staged, what kept it from being read, its event."""
    # Asked of the bytes before they are read, so that Spark need not carry them through the reading.
    side = VALUE._replace(types=contract.value.types)
    frame = FORMATS[contract.value.format](staged.withColumn(TOMBSTONE, _no_value(contract)), wanted(contract), side)
    read = (*contract.columns, *contract.inputs)
    # A key that is the column, as it is or as text, is simply cast; others are read as values are.
    fields_of_key = contract.key.format not in ("string", "bytes") and any(each.from_key for each in read)
    if fields_of_key:
        frame = FORMATS[contract.key.format](frame, wanted(contract, KEY), KEY)
    if contract.value.format == "json_connect":
        # A schema, and no payload.
        no_payload = F.col(VALUE.fields).isNull() & F.col(VALUE.problem).isNull()
        frame = frame.withColumn(TOMBSTONE, F.col(TOMBSTONE) | no_payload)
    tombstone = F.col(TOMBSTONE)
    row, event = FIELDS, []
    if contract.cdc:
        frame, row, event = (
            change_events.opened(frame, contract),
            change_events.ROW,
            [change_events.KIND, change_events.ROW],
        )
    text = F.col("key").cast("string")
    key = F.col("key") if contract.key.format == "bytes" else F.when(F.is_valid_utf8(text), text)
    if contract.key.format == "string":
        garbled = F.col("key").isNotNull() & ~F.is_valid_utf8(text) & F.lit(any(each.from_key for each in read))
        said = F.when(garbled, problem("the key is not UTF-8 text", KEY.whole))
        targets = dict.fromkeys(spark_type(each.type) for each in read if each.from_key)
        for target in (t for t in targets if not isinstance(t, T.StringType)):
            none = key.isNotNull() & read_text(key, target).isNull()
            said = said.when(none, problem(f"the key is nothing that becomes {target.simpleString()}", KEY.whole))
        frame = frame.withColumn(KEY.problem, said)
    key_problem = [KEY.problem] if KEY.problem in frame.columns else []
    tombstone_column = contract.tombstone_column
    columns: list[Column] = []
    for each in read:
        target = spark_type(each.type)
        from_key = key if isinstance(target, T.BinaryType) else read_text(key, target)
        if each.from_key:
            value = reduce(lambda at, part: at[part], each.key_path, F.col(KEY.fields)) if fields_of_key else from_key
        elif each.ends:
            value = F.lit(None).cast(target)  # the MERGE knows
        elif each.special:
            value = change_events.value(contract, each)
        elif each.path:
            value = reduce(lambda at, part: at[part], each.path, F.col(row))
            if each.name == tombstone_column:
                value = F.when(tombstone, from_key).otherwise(value)
        else:
            continue
        columns.append(value.alias(each.name))
    return frame.select(
        *columns,
        F.lit(topic).alias("_kafka_topic"),
        *KAFKA_COLUMNS[1:],
        *[F.col(name).alias(kept) for name, kept in STAGED.items()],
        TOMBSTONE, VALUE.problem, *key_problem, *event, *([OTHER] if side.types else ()),
    )  # fmt: skip


def _no_value(contract: Contract) -> Column:
    """Whether a record has no value."""
    nothing = F.col(VALUE.raw).isNull()
    if contract.cdc and contract.value.format == "json":
        # What Kafka Connect's converter makes of no value where Debezium's unwrap has left it a schema.
        nothing = nothing | (F.col(VALUE.raw) == F.lit(b"null"))
    return nothing


def _operation(contract: Contract, tombstone: Column, deleted: Column, garbled: Column) -> tuple[Column, Column]:
    """What a record does, and why a record without a value is an error, if it is.

    Args:
        deleted: whether it is an event of a delete.
        garbled: whether its key could not be read, though some of its fields may have been.
    """
    none = F.lit(None).cast("string")
    if not contract.keyed:
        # A log keeps the event of a delete; the tombstone behind it is for Kafka's compaction.
        if contract.cdc and contract.cdc.tombstones != "delete":
            return F.when(tombstone, F.lit(IGNORE)).otherwise(F.lit(UPSERT)), none
        return F.lit(UPSERT), F.lit("null_value")
    delete = {"ignore": IGNORE, "soft": UPSERT}.get(contract.deletes, DELETE)
    event = F.when(deleted, F.lit(delete)).otherwise(F.lit(UPSERT))
    if not contract.tombstones_delete:
        return F.when(tombstone, F.lit(IGNORE)).otherwise(event), none
    op = F.when(tombstone, F.lit(DELETE)).otherwise(event)
    if not contract.key_names_rows and contract.tombstone_column is None:
        return op, F.lit("tombstone_key")
    keys = [contract.column(name) for name in contract.identifier]
    nameless = [garbled, *(F.col(key.name).isNull() for key in keys)]
    nameless += [wrong(F.col(key.name)) for key in keys for *_, wrong in misfits(key.type, key.name)]
    if contract.cdc and contract.cdc.format != "op_field" and contract.tombstone_column and not keys[0].from_key:
        # Debezium's key is an object. Taken for a text, it would be the key of no row, and delete none in silence.
        key = F.col(STAGED["key"]).cast("string")
        nameless.append(key.startswith("{") & F.get_json_object(key, "$").isNotNull())
    return op, F.when(reduce(or_, nameless), F.lit("tombstone_key"))


def _misfit(contract: Contract) -> Column:
    """The first column whose value is absent though required, or does not fit its type; null where all is well."""
    checks = []
    folders = [*unfit_folders(contract), *unfit_steps(contract)]
    for column in contract.columns:
        value = F.col(column.name)
        found = [(path, words, wrong(value)) for path, words, wrong in misfits(column.type, column.name)]
        found += [each for each in folders if each[0] == column.name]
        if column.required:
            words = "the column is required, and its field is null or not there"
            found.insert(0, (column.name, words, value.isNull()))
        for path, words, wrong in found:
            if contract.cdc and column.name not in (*contract.identifier, *contract.order):
                # A delete may tell no more than which row it is about, and when.
                wrong = (F.col(OP) != DELETE) & wrong  # noqa: PLW2901
            checks.append(F.when(wrong, problem(words, path)))
    return F.coalesce(*checks, F.lit(None).cast(NO_PROBLEM))


def failed_field(contract: Contract) -> Column:
    """For a record that did not parse: the first field that is there but could not be read as the contract's type."""
    if contract.value.format not in ("json", "json_connect", "json_schema"):
        return F.col(FIELD)
    skipped = PREFIX + 1 if contract.value.format == "json_schema" else 1
    payload = (PAYLOAD,) if contract.value.format == "json_connect" else ()
    text = F.expr(f"substring({STAGED['value']}, {skipped})").cast("string")
    checks = []
    for column in contract.columns:
        if not column.path or column.special:
            continue
        for outer in rows_at(contract):
            names = (part.replace("'", "") for part in (*payload, *outer, *column.path))
            there = F.get_json_object(text, "$" + "".join(f"['{name}']" for name in names))
            checks.append(F.when(there.isNotNull() & F.col(column.name).isNull(), F.lit(".".join(column.path))))
    told = F.col(FIELD)
    return F.coalesce(F.when(told != change_events.BEFORE, told), *checks, told)
