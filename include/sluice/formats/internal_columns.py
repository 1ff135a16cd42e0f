"""What readers and `decode` share: names of temporary columns, the shape of a parse problem, types of wanted fields.

Used by the check and publish steps: decoded records carry an operation, an error class, a detail and a field.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.values import quote_name

OP, ERROR, DETAIL, FIELD = "_sluice_op", "_sluice_error", "_sluice_detail", "_sluice_field"
UPSERT, DELETE, IGNORE = "u", "d", "i"

Expression = Callable[[Column], Column]


class RecordPart(NamedTuple):
    """The key or the value of a record, and the columns that a reader adds for it.

    Attributes:
        raw: The staged column with the bytes.
        fields: Struct of the fields read; null where nothing could be read.
        problem: Struct of `detail` and `field`: why the bytes could not be read; null if they could.
        root: Source (`$key`, `$value`) of a key or value that is one scalar, not an object with fields.
        types: Full names of the only record types to read; empty for all. `OTHER_TYPE` is true for other types.
    """

    raw: str
    fields: str
    problem: str
    root: str
    types: tuple[str, ...] = ()


TIMESTAMP_MS = "_kafka_timestamp_ms"
"""Staged column with Kafka's number where it is no time of the years 1 to 9999; there `_kafka_timestamp` is null."""

STAGED_COLUMNS = {name: f"_sluice_{name}" for name in ("key", "value", "headers", "batch_seq", TIMESTAMP_MS)}
"""Staged column to its name after decode, so that the contract's columns may use the original names."""

OTHER_TYPE = "_sluice_other"
"""Whether a record's type is not among `RecordPart.types`; only added if those are given."""

BEST_EFFORT = "sluice.spare"
"""Metadata key of a field whose parse problem is reported only if the record has no other problem."""

ENVELOPE = "sluice.envelope"
"""Metadata key of a field that records of any kind may have, such as an event's operation: it is not of the row."""

FLAT_NAME = "sluice.path"
"""Metadata key of a field that no column reads: its name is names of a source with the dots between them. Its value is
the path that the source means, from the same object on."""

TO_JSON = {
    "ignoreNullFields": "false",
    # Spark's default formats drop microseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of `to_json` that lose nothing of a value."""

FIELDS, CORRUPT = "_sluice_fields", "_sluice_corrupt"
VALUE = RecordPart("value", FIELDS, "_sluice_problem", "$value")
KEY = RecordPart("key", "_sluice_key_fields", "_sluice_key_problem", "$key")
HEADERS = RecordPart("headers", "", "_sluice_headers_problem", "$headers")


def join_path(path: str, name: str) -> str:
    """The path of a field inside another, as a contract's `source` has it."""
    return f"{path}.{quote_name(name)}" if path else quote_name(name)


def problem(detail: str | Column, field: str | None = None) -> Column:
    """Why a record could not be read. The detail must not contain values of the record."""
    reason = F.lit(detail) if isinstance(detail, str) else detail
    return F.struct(reason.alias("detail"), F.lit(field).cast("string").alias("field"))


PROBLEM_TYPE = "struct<detail: string, field: string>"

END_MARKER = secrets.token_bytes(6)
"""Appended to what is parsed, because parsers ignore what follows a record. Random, so that no producer can send it."""


class _WantedType(T.DataType):
    """A type of Spark that says more than Spark's about the values that it takes; elsewhere it is that type."""

    how = ""
    nanos = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, T.DataType) and self.json() == other.json()

    def __hash__(self) -> int:
        return hash(self.json())

    @classmethod
    def typeName(cls) -> str:  # noqa: N802
        """Spark's name of the type."""
        return str(cls.__mro__[2].typeName())  # type: ignore[attr-defined]

    def simpleString(self) -> str:  # noqa: N802
        """The type in messages."""
        return f"{super().simpleString()} {self.how}"


class ExactDecimalType(_WantedType, T.DecimalType):
    """A decimal of a key: rounding would make one row of two, so a value with more digits is none of it."""

    how = "without rounding"


class ExactTimestampType(_WantedType, T.TimestampType):
    """A timestamptz of a key."""

    how = "without rounding"


class ExactTimestampNTZType(_WantedType, T.TimestampNTZType):
    """A timestamp of a key."""

    how = "without rounding"


class _IntMillisType(_WantedType, T.IntegerType):
    how, nanos = "of millis", 1_000_000


class _LongMillisType(_WantedType, T.LongType):
    how, nanos = "of millis", 1_000_000


class _LongMicrosType(_WantedType, T.LongType):
    how, nanos = "of micros", 1000


class _LongNanosType(_WantedType, T.LongType):
    how, nanos = "of nanos", 1


UNIT_TYPES: dict[tuple[str, str | None], T.DataType] = {
    ("int", "millis"): _IntMillisType(),
    ("long", "millis"): _LongMillisType(),
    ("long", "micros"): _LongMicrosType(),
    ("long", "nanos"): _LongNanosType(),
}
"""The types of columns that count time in one unit, by the column's type and unit."""


def nanos_of(want: T.DataType) -> int:
    """Nanoseconds of a wanted type's unit; 0 if it has none."""
    return want.nanos if isinstance(want, _WantedType) else 0


def exact(kind: T.DataType) -> T.DataType:
    """The type of a key, or of what a key is computed from: like the type, but no value is rounded to it."""
    match kind:
        case T.DecimalType(precision=precision, scale=scale):
            return ExactDecimalType(precision, scale)
        case T.TimestampType():
            return ExactTimestampType()
        case T.TimestampNTZType():
            return ExactTimestampNTZType()
        case T.ArrayType(elementType=element):
            return T.ArrayType(exact(element))
        case T.MapType(keyType=key, valueType=value):
            return T.MapType(key, exact(value))
        case T.StructType(fields=fields):
            return T.StructType([T.StructField(f.name, exact(f.dataType), metadata=f.metadata) for f in fields])
    return kind
