"""Change events (CDC): in, the fields of an event, whatever format they were read from; out, its row and operation.

The meaning of Debezium's fields follows the captured events in `tests/data/debezium`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE, Operations
from sluice.contract.columns import JSON_FORMATS, Input
from sluice.contract.contract import Contract
from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.internal_columns import BEST_EFFORT, ENVELOPE, FIELDS, VALUE, Expression, RecordPart, problem
from sluice.formats.json.records import add_json_fields
from sluice.formats.logical_types import spark_type, timestamp_from_units

EVENT, ROW, EVENT_KIND = "_sluice_event", "_sluice_row", "_sluice_kind"
"""The envelope, the row (after the change; for a delete, before it), and the kind: one of those below, or null."""

CHANGED, DELETED, TRUNCATED, PARTIAL = "changed", "deleted", "truncated", "partial"
AFTER, BEFORE, _CHANGES = "after", "before", "updateDescription"
_DOCUMENT_AS_TEXT = rf'"(?:{AFTER}|{BEFORE})"\s*:\s*"'
_AS_TEXT = "the row is JSON as text, as MongoDB's connector writes it: set cdc: {format: debezium_mongodb}"
UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder for a large value that PostgreSQL did not log because it did not change."""
_BASE64, _HEX = base64.b64encode(UNAVAILABLE.encode()).decode(), UNAVAILABLE.encode().hex()
UNAVAILABLE_TEXTS = (UNAVAILABLE, _BASE64, _BASE64.rstrip("="), _HEX, _HEX.upper())
"""The placeholder as text: of a bytea by `binary.handling.mode`."""
UNAVAILABLE_BYTES = (*(text.encode() for text in UNAVAILABLE_TEXTS), base64.b64decode(_HEX))
"""The placeholder as bytes; the last one if bytes are read from the hexadecimal text, as if it were base64."""
UNAVAILABLE_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""The placeholder in a list of uuids: the text as `UUID.nameUUIDFromBytes`."""
_BYTES = list(UNAVAILABLE.encode())
UNAVAILABLE_JSON = tuple(
    json.dumps(each, separators=(",", ":"))
    for each in (
        {UNAVAILABLE: UNAVAILABLE},
        *([text] for text in (*UNAVAILABLE_TEXTS, UNAVAILABLE_UUID)),
        *([kind(each) for each in _BYTES] for kind in (int, float, str, bool)),
    )
)
"""The placeholder as JSON: in an hstore (`hstore.handling.mode`), and in lists that a column reads as `string`."""
_GEOMETRY = f'{{"wkb":"{_BASE64}"'
"""How a geometry begins that a column reads as `string`."""
_TIMESTAMP_UNITS_US = {1, 1000, 1_000_000}
"""Units that timestamps are read from, in microseconds: Debezium's, and seconds in JSON."""

EVENT_ERRORS = {
    "operation": "the event has no known operation; an event with its own schema needs format: json_connect",
    "truncate": "the source table was truncated; the event does not name the deleted rows: see docs/guides/debezium.md",
    "no_row": "the event has no row",
    "partial_update": "the event has the changed fields alone; MongoDB: capture.mode: change_streams_update_full",
    "unavailable": "the source did not log the unchanged value; PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL",
}
"""Error class to the detail of its records."""


def envelope_fields(contract: Contract, row: T.StructType, special: T.StructType) -> T.StructType:
    """The fields of the value to read.

    Args:
        contract: A contract with `cdc`.
        row: What columns and inputs read of the row.
        special: What they read of the envelope, such as `source.lsn`.
    """
    cdc = contract.cdc
    assert cdc  # noqa: S101 - tells mypy what the caller has checked
    text = T.StringType()
    if cdc.format == "op_field":
        return _with_field(row, cdc.op_path, text)
    if cdc.format == "debezium_unwrapped":
        return _with_field(_with_field(row, ["__op"], text), ["__deleted"], text)
    if cdc.format == "debezium_mongodb":
        for path in (["op"], [AFTER], [BEFORE], [_CHANGES, "updatedFields"]):
            special = _with_field(special, path, text)
        return special
    before = T.StructField(BEFORE, row, metadata={BEST_EFFORT: True})
    special = _with_field(special, ["op"], text)
    envelope = [T.StructField(f.name, f.dataType, metadata={ENVELOPE: True}) for f in special]
    return T.StructType([*envelope, T.StructField(AFTER, row), before])


def open_envelope(frame: DataFrame, contract: Contract) -> DataFrame:
    """Add EVENT, ROW and EVENT_KIND to a frame with FIELDS."""
    cdc = contract.cdc
    assert cdc  # noqa: S101 - tells mypy what the caller has checked
    fields = F.col(FIELDS)
    if cdc.format == "op_field":
        ops = cdc.ops or Operations()
        op = F.lower(_at(fields, cdc.op_path).cast("string"))
        kind = F.when(op.isin([name.lower() for name in ops.upsert]), CHANGED)
        kind = kind.when(op.isin([name.lower() for name in ops.delete]), DELETED)
        return frame.withColumns({EVENT: fields, ROW: fields, EVENT_KIND: kind})
    if cdc.format == "debezium_unwrapped":
        op, deleted = fields["__op"].cast("string"), F.lower(fields["__deleted"].cast("string"))
        kind = F.when((deleted == "true") | (op == "d"), DELETED).when(op == "t", TRUNCATED)
        # Without `add.fields: op` and `rewrite` nothing marks a change; then every event with a row is one.
        marked = op.isNull() | op.isin("c", "r", "u")
        kind = kind.when(marked & (deleted.isNull() | (deleted == "false")), CHANGED)
        return frame.withColumns({EVENT: fields, ROW: fields, EVENT_KIND: kind})
    op = fields["op"]
    kind = F.when(op.isin("c", "r", "u"), CHANGED).when(op == "d", DELETED).when(op == "t", TRUNCATED)
    row = F.when(op == "d", fields[BEFORE]).otherwise(fields[AFTER])
    if cdc.format == "debezium_mongodb":
        kind = F.when((kind == CHANGED) & row.isNull() & fields[_CHANGES].isNotNull(), PARTIAL).otherwise(kind)
    # A change's `before` is not used, and an unreadable value in it may be what the change repairs.
    found = F.col(VALUE.problem)
    ignored = F.coalesce((op != "d") & found["field"].rlike(rf"^{BEFORE}(\.|$)"), F.lit(False))
    if cdc.format == "debezium" and contract.value.format in JSON_FORMATS:
        is_text = F.col(VALUE.raw).cast("string").rlike(_DOCUMENT_AS_TEXT)
        found = F.when(found.isNotNull() & is_text, problem(_AS_TEXT, AFTER)).otherwise(found)
    return frame.withColumns({EVENT: fields, ROW: row, EVENT_KIND: kind, VALUE.problem: F.when(~ignored, found)})


def parse_documents(frame: DataFrame, row: T.StructType) -> DataFrame:
    """Replace `after` and `before`, which MongoDB's connector writes as JSON text, by their fields."""
    fields, problems = F.col(FIELDS), [F.col(VALUE.problem)]
    is_delete = F.coalesce(fields["op"] == "d", F.lit(False))
    documents = {}
    for name, is_used in ((AFTER, ~is_delete), (BEFORE, is_delete)):
        part = RecordPart(name, f"_sluice_{name}", f"_sluice_{name}_problem", "")
        frame = add_json_fields(frame.withColumn(name, fields[name].cast("binary")), row, part)
        documents[name] = F.when(F.col(name).isNotNull(), F.col(part.fields))
        problems.append(F.when(is_used, F.col(part.problem)))
    replaced = fields.withField(AFTER, documents[AFTER]).withField(BEFORE, documents[BEFORE])
    return frame.withColumns({FIELDS: replaced, VALUE.problem: F.coalesce(*problems)})


def special_value(contract: Contract, each: Input) -> Column:
    """The value of a column or input whose source begins with `$`, in a frame of `open_envelope`."""
    assert contract.cdc  # noqa: S101 - tells mypy what the contract's checks ensure
    if each.source == DELETED_SOURCE:
        deleted = F.col(EVENT_KIND) == DELETED
        return deleted if each.type == Primitive("boolean") else F.when(deleted, F.col("_kafka_timestamp"))
    if each.source == OP_SOURCE:
        return _at(F.col(EVENT), contract.cdc.op_path).cast("string")
    return _at(F.col(EVENT), each.envelope_path)


def event_error(contract: Contract, tombstone: Column) -> Column:
    """The error class of an event as a whole, or null."""
    kind = F.col(EVENT_KIND)
    # A delete needs no row if the record's key names it.
    keys = [contract.column(name) for name in contract.identifier]
    needs_row = ~(kind == DELETED) if keys and all(c.from_key or c.expression for c in keys) else F.lit(True)
    return (
        F.when(tombstone, F.lit(None).cast("string"))
        .when(kind.isNull(), "operation")
        .when(kind == TRUNCATED, "truncate")
        .when(kind == PARTIAL, "partial_update")
        .when(F.col(ROW).isNull() & needs_row, "no_row")
    )


def find_unavailable_column(contract: Contract) -> Column:
    """The first column or input that holds a placeholder for an unchanged value; null if none does."""
    checks = []
    if contract.cdc and contract.cdc.format != "op_field":
        for column in (*contract.columns, *contract.inputs):
            if not column.path or column.from_envelope:
                continue
            if (is_placeholder := _is_placeholder(F.col(column.name), column.type)) is not None:
                checks.append(F.when(is_placeholder, F.lit(column.name)))
    return F.coalesce(*checks, F.lit(None).cast("string"))


def _is_placeholder(value: Column, kind: IcebergType) -> Column | None:
    """Whether a value is the placeholder of its type; None for types without one.

    In a list of numbers, or of values read from numbers, the placeholder is the text's bytes; in an hstore, a map with
    the text as its key, or that map as JSON.
    """
    numbers = F.lit(_BYTES)
    texts, many_bytes = list(map(F.lit, UNAVAILABLE_TEXTS)), list(map(F.lit, UNAVAILABLE_BYTES))
    match kind:
        case MapOf():
            return reduce(or_, (F.map_contains_key(value, text) for text in texts))
        case Struct(fields):
            found = (_is_placeholder(value.getField(name), inner) for name, inner in fields)
            checks = [F.coalesce(check, F.lit(False)) for check in found if check is not None]
            return reduce(or_, checks) if checks else None
        case Primitive("string"):
            known = [*texts, *map(F.lit, UNAVAILABLE_JSON)]
            return value.isin(*known) | value.startswith(_GEOMETRY)
        case Primitive("binary") | Fixed():
            known = many_bytes
        case ListOf(Primitive("string")):
            known = [*map(F.array, texts), F.lit([UNAVAILABLE_UUID]), numbers.cast("array<string>")]
        case ListOf(Primitive("binary") | Fixed()):
            known = [*map(F.array, many_bytes)]
        case ListOf(Primitive("uuid")):
            known = [F.lit([UNAVAILABLE_UUID])]
        case ListOf(Primitive("boolean")):
            known = [F.transform(numbers, lambda number: number != 0)]
        case ListOf(Primitive("date")):
            known = [F.transform(numbers, F.date_from_unix_date)]
        case ListOf(Primitive("timestamp" | "timestamptz") as element):
            known = [F.transform(numbers, _to_timestamp(spark_type(element), micros)) for micros in _TIMESTAMP_UNITS_US]
        case ListOf(Primitive("int" | "long" | "float" | "double") | Decimal() as element):
            known = [numbers.try_cast(T.ArrayType(spark_type(element)))]
        case _:
            return None
    return value.isin(*known)


def _to_timestamp(want: T.DataType, micros: int) -> Expression:
    return lambda number: timestamp_from_units(number, F.lit(micros), want)


def _at(column: Column, path: Sequence[str]) -> Column:
    for name in path:
        column = column[name]
    return column


def _with_field(struct: T.StructType, path: Sequence[str], kind: T.DataType) -> T.StructType:
    """The struct with a field of an envelope at a path, which is only added if there is none."""
    name, *rest = path
    found = next((f for f in struct if f.name == name), None)
    metadata = None if rest else {ENVELOPE: True}
    if rest:
        inner = found.dataType if found and isinstance(found.dataType, T.StructType) else T.StructType([])
        kind = _with_field(inner, rest, kind)
    elif found:
        return struct
    return T.StructType([*(f for f in struct if f.name != name), T.StructField(name, kind, metadata=metadata)])
