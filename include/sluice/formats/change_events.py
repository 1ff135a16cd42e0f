"""Change events: an envelope's fields become the row that the event is about, and what the event does to it.

Works on fields, whatever format gave them. Which field says what is told by real envelopes of Debezium, as they are in
`tests/data/debezium`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE, Operations
from sluice.contract.columns import Input
from sluice.contract.contract import Contract
from sluice.contract.types import Decimal, IcebergType, ListOf, MapOf, Primitive
from sluice.formats.internal_columns import FIELDS, SPARE, VALUE
from sluice.formats.logical_types import moment, spark_type

EVENT, ROW, KIND = "_sluice_event", "_sluice_row", "_sluice_kind"
"""The envelope; the row, after the change or, of a delete, before it; and one of the three below, or null."""

CHANGED, DELETED, TRUNCATED = "changed", "deleted", "truncated"
BEFORE = "before"
UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium sends for a large value that PostgreSQL did not log, as it did not change."""
UNAVAILABLE_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""The same as Java makes a uuid of it (`UUID.nameUUIDFromBytes`): the one element of a list of uuids."""

UNAVAILABLE_JSON = f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}'
"""And of an hstore that is sent as JSON (`hstore.handling.mode`)."""
_UNITS = {1, 1000, 1_000_000}
"""Of how many microseconds the numbers may be that moments are read from: Debezium's, and seconds in JSON."""

WHY = {
    "operation": "the event names no operation that is known; one with its own schema needs format: json_connect",
    "truncate": "the table was truncated at its source: which rows are gone is not told; see docs/contracts.md",
    "no_row": "the event has no row",
    "unavailable": "the source did not log the unchanged value; PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL",
}
"""What is wrong with an event, by class of error."""


def wanted(contract: Contract, row: T.StructType, special: T.StructType) -> T.StructType:
    """The fields of the value that hold these fields of the row, and of the envelope.

    Args:
        row: what columns and inputs read.
        special: what they read of the envelope, such as `source.lsn`.
    """
    cdc = contract.cdc
    assert cdc  # noqa: S101 - tells mypy what the caller has looked at
    text = T.StringType()
    if cdc.format == "op_field":
        return _with(row, cdc.op_path, text)
    if cdc.format == "debezium_unwrapped":
        return _with(_with(row, ["__op"], text), ["__deleted"], text)
    spare = T.StructField(BEFORE, row, metadata={SPARE: True})
    # The first problem of a record is told: of `before`, where it does not count, only if there is no other.
    return T.StructType([*_with(special, ["op"], text), T.StructField("after", row), spare])


def opened(frame: DataFrame, contract: Contract) -> DataFrame:
    """Add EVENT, ROW and KIND to a frame with FIELDS."""
    cdc = contract.cdc
    assert cdc  # noqa: S101 - tells mypy what the caller has looked at
    fields = F.col(FIELDS)
    if cdc.format == "op_field":
        ops = cdc.ops or Operations()
        op = F.lower(_at(fields, cdc.op_path).cast("string"))
        kind = F.when(op.isin([w.lower() for w in ops.upsert]), CHANGED)
        kind = kind.when(op.isin([w.lower() for w in ops.delete]), DELETED)
        return frame.withColumns({EVENT: fields, ROW: fields, KIND: kind})
    if cdc.format == "debezium_unwrapped":
        op, deleted = fields["__op"].cast("string"), F.lower(fields["__deleted"].cast("string"))
        kind = F.when((deleted == "true") | (op == "d"), DELETED).when(op == "t", TRUNCATED)
        # Without `add.fields: op` and `rewrite` nothing marks a change: whatever has a row is one.
        marked = op.isNull() | op.isin("c", "r", "u")
        kind = kind.when(marked & (deleted.isNull() | (deleted == "false")), CHANGED)
        return frame.withColumns({EVENT: fields, ROW: fields, KIND: kind})
    op = fields["op"]
    kind = F.when(op.isin("c", "r", "u"), CHANGED).when(op == "d", DELETED).when(op == "t", TRUNCATED)
    row = F.when(op == "d", fields[BEFORE]).otherwise(fields["after"])
    # What a row was before a change is not looked at, so that it may be what the change repairs.
    told = F.col(VALUE.problem)
    repaired = F.coalesce((op != "d") & told["field"].rlike(rf"^{BEFORE}(\.|$)"), F.lit(False))
    return frame.withColumns({EVENT: fields, ROW: row, KIND: kind, VALUE.problem: F.when(~repaired, told)})


def value(contract: Contract, each: Input) -> Column:
    """What a column or input with a source that begins with `$` holds, of a frame that was opened."""
    assert contract.cdc  # noqa: S101 - tells mypy what the contract's checks have seen to
    if each.source == DELETED_SOURCE:
        deleted = F.col(KIND) == DELETED
        return deleted if each.type == Primitive("boolean") else F.when(deleted, F.col("_kafka_timestamp"))
    if each.source == OP_SOURCE:
        return _at(F.col(EVENT), contract.cdc.op_path).cast("string")
    return _at(F.col(EVENT), each.source.removeprefix("$").split("."))


def error(tombstone: Column) -> Column:
    """The class of what is wrong with an event as such, or null."""
    kind = F.col(KIND)
    return (
        F.when(tombstone, F.lit(None).cast("string"))
        .when(kind.isNull(), "operation")
        .when(kind == TRUNCATED, "truncate")
        .when(F.col(ROW).isNull(), "no_row")
    )


def unavailable(contract: Contract) -> Column:
    """The first column or input whose value the source did not send though it has one; null where there is none."""
    checks = []
    if contract.cdc and contract.cdc.format != "op_field":
        for column in (*contract.columns, *contract.inputs):
            not_sent = _not_sent(F.col(column.name), column.type) if column.path and not column.special else None
            if not_sent is not None:
                checks.append(F.when(not_sent, F.lit(column.name)))
    return F.coalesce(*checks, F.lit(None).cast("string"))


def _not_sent(value: Column, kind: IcebergType) -> Column | None:
    """Whether a value is what stands for one of its type that was not logged; None where nothing does.

    For a list of numbers, or of what is read from numbers, that is the text's bytes; for hstore a map that has the text
    as its key, or such a map as JSON.
    """
    text, numbers = F.lit(UNAVAILABLE), F.lit(list(UNAVAILABLE.encode()))
    match kind:
        case MapOf():
            return F.map_contains_key(value, text)
        case Primitive("string"):
            known = [text, F.lit(UNAVAILABLE_JSON)]
        case Primitive("binary"):
            known = [text.cast("binary")]
        case ListOf(Primitive("string")):
            known = [F.array(text), F.lit([UNAVAILABLE_UUID]), numbers.cast("array<string>")]
        case ListOf(Primitive("binary")):
            known = [F.array(text.cast("binary"))]
        case ListOf(Primitive("uuid")):
            known = [F.lit([UNAVAILABLE_UUID])]
        case ListOf(Primitive("boolean")):
            known = [F.transform(numbers, lambda number: number != 0)]
        case ListOf(Primitive("date")):
            known = [F.transform(numbers, F.date_from_unix_date)]
        case ListOf(Primitive("timestamp" | "timestamptz") as element):
            known = [F.transform(numbers, _as_moment(spark_type(element), micros)) for micros in _UNITS]
        case ListOf(Primitive("int" | "long" | "float" | "double") | Decimal() as element):
            known = [numbers.try_cast(T.ArrayType(spark_type(element)))]
        case _:
            return None
    return value.isin(*known)


def _as_moment(want: T.DataType, micros: int) -> Callable[[Column], Column]:
    return lambda number: moment(number, F.lit(micros), want)


def _at(column: Column, path: Sequence[str]) -> Column:
    for name in path:
        column = column[name]
    return column


def _with(struct: T.StructType, path: Sequence[str], kind: T.DataType) -> T.StructType:
    """The struct with a field at that path, unless there is one."""
    name, *rest = path
    found = next((f for f in struct if f.name == name), None)
    if rest:
        inner = found.dataType if found and isinstance(found.dataType, T.StructType) else T.StructType([])
        kind = _with(inner, rest, kind)
    elif found:
        return struct
    return T.StructType([*(f for f in struct if f.name != name), T.StructField(name, kind)])
