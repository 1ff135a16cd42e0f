"""Converts decoded values to the contract's types, field by field, by name.

In: the type that a writer's schema decodes to and the wanted type. Out: a conversion, or SchemaMismatchError.
Numbers never lose digits; only a text read as a decimal is rounded to the decimal's scale, as in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.types import IcebergType
from sluice.errors import printable
from sluice.formats.internal_columns import ENVELOPE, Expression, join_path
from sluice.formats.logical_types import (
    decimal_from_unscaled,
    duration_from_seconds,
    read_text,
    timestamp_from_seconds,
)
from sluice.kafka.registry import WriterSchema

MAX_FIELDS = 10_000
"""Of a type, with a named type's fields counted at each use: thirty records, each with two fields of the next, are a
billion fields."""
MAX_TEXT = 500
_INTEGER_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}


@dataclass(frozen=True)
class SchemaField:
    """A field of a schema's root: its name, its column's type (None if it was skipped) and its comment."""

    name: str
    type: IcebergType | None
    doc: object = None


class SchemaMismatchError(Exception):
    """A schema whose records cannot become the wanted fields.

    Args:
        path: The field, dotted; empty for the schema as a whole.
        reason: What is wrong; follows the field's name, or stands alone if `path` is empty.
    """

    def __init__(self, path: str, reason: str) -> None:
        # Names and types of the schema: as one line that is not longer than a log or a quarantined record can bear.
        path, reason = (printable(each).replace("\n", "\\n")[:MAX_TEXT] for each in (path, reason))
        super().__init__(f"{path} {reason}")
        self.path, self.reason = path, reason

    @property
    def message(self) -> str:
        """The reason with the field's name."""
        return f"field {self.path!r} {self.reason}" if self.path else self.reason


class MissingReferenceError(SchemaMismatchError):
    """A schema that refers to another one, which the registry no longer has.

    Args:
        missing: Which one.
    """

    def __init__(self, missing: str, why: str = "which the registry no longer has") -> None:
        super().__init__("", f"the schema refers to {missing}, {why}")


class UnknownReferenceError(MissingReferenceError):
    """A schema that refers to another one, which is not registered as its reference: a web address, say.

    Args:
        name: The other one's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(repr(name), "which is not registered as one of its references")


def too_many_fields(path: str, most: int = MAX_FIELDS) -> SchemaMismatchError:
    """The error for a type of more fields than Sluice reads."""
    reason = f"more than {most:,} fields, with those of a type counted at each use"
    return SchemaMismatchError(path, f"has {reason}" if path else f"the schema has {reason}")


def resolved_references(schema: WriterSchema) -> tuple[tuple[str, str], ...]:
    """Name and text of each schema that a schema refers to, dependencies first.

    Raises:
        MissingReferenceError: The registry lacks one of them.
    """
    if schema.missing:
        raise MissingReferenceError(schema.missing)
    return schema.references


@contextmanager
def schema_failures_as_mismatch() -> Iterator[None]:
    """Turn whatever a schema makes its reader raise into SchemaMismatchError, so that other schemas are still read.

    Failures that no schema causes (full disk, no memory, JVM gone) are raised unchanged: they may pass, and would
    quarantine good records.
    """
    try:
        yield
    except (SchemaMismatchError, KeyboardInterrupt, SystemExit, OSError, MemoryError, ImportError):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):  # the JVM did not answer
            raise
        raise SchemaMismatchError("", f"the schema cannot be read ({type(error).__name__})") from error


LossCheck = Callable[[Column, Column], Column]
"""Whether a value was lost (became null), given the value and its conversion."""
LogicalConversion = Callable[[str, T.DataType, T.DataType], Expression | None]
"""From a field's path, its type and the wanted type to the conversion that the schema's logical type asks for; None if
there is none."""
_PROTOBUF_TIMES = {
    "google.protobuf.Timestamp": timestamp_from_seconds,
    "google.protobuf.Duration": duration_from_seconds,
}
"""The conversion of a message whose fields' names begin so, see `protobuf_descriptors`."""
_PARSED_TYPES = (T.DateType, T.TimestampType, T.TimestampNTZType, T.DecimalType)


def no_logical_types(_path: str, _have: T.DataType, _want: T.DataType) -> None:
    """The LogicalConversion of a schema without logical types."""


def convert_value(
    value: Column, have: T.DataType, want: T.DataType, logical: LogicalConversion = no_logical_types
) -> Column:
    """Convert a value to the wanted type.

    Missing fields become null, unwanted ones are left out. Types are only widened: int to long, float to double,
    numbers to a decimal with room for all digits. Values read from a text or by a logical type become null if they
    are not of the wanted type; see `find_lost_values`.

    Raises:
        SchemaMismatchError: The types differ in another way.
    """
    conversion = _conversion(have, want, "", logical)
    return conversion(value) if conversion else value


def check_convertible(have: T.DataType, want: T.DataType, logical: LogicalConversion = no_logical_types) -> None:
    """Raise SchemaMismatchError if `convert_value` would; needs no JVM."""
    _conversion(have, want, "", logical)


def check_has_row(have: T.DataType, want: T.StructType) -> None:
    """Refuse records of another kind, which would become rows of nulls.

    Raises:
        SchemaMismatchError: They have none of the wanted fields, those of an event's envelope aside.
    """
    found = list(_found_leaves(have, want))
    if found and not any(found):
        raise SchemaMismatchError("", "the schema has none of the fields that columns read")


def _found_leaves(have: T.DataType | None, want: T.DataType) -> Iterator[bool]:
    """Whether each wanted field that is no struct exists."""
    if not isinstance(want, T.StructType):
        yield have is not None
        return
    known = {f.name: f.dataType for f in have.fields} if isinstance(have, T.StructType) else {}
    for field in want.fields:
        if ENVELOPE not in field.metadata:
            yield from _found_leaves(known.get(field.name), field.dataType)


def find_lost_values(
    value: Column, converted: Column, have: T.DataType, want: T.DataType, logical: LogicalConversion = no_logical_types
) -> Iterator[tuple[str, str, Column]]:
    """Each path whose value `convert_value` may turn into null: path, wanted type, and whether it did in a record."""
    for path, kind, is_lost in _loss_checks(have, want, logical, ""):
        yield path, kind, is_lost(value, converted)


def _loss_checks(
    have: T.DataType, want: T.DataType, logical: LogicalConversion, path: str
) -> Iterator[tuple[str, str, LossCheck]]:
    if isinstance(want, T.StructType) and isinstance(have, T.StructType):
        for field in want.fields:
            if (name := field.name) in have.names:
                nested = _loss_checks(have[name].dataType, field.dataType, logical, join_path(path, name))
                for inner, kind, is_lost in nested:
                    yield inner, kind, _lost_in_field(name, is_lost)
    elif isinstance(want, T.ArrayType) and isinstance(have, T.ArrayType):
        for inner, kind, is_lost in _loss_checks(have.elementType, want.elementType, logical, f"{path}[]"):
            yield inner, kind, _lost_in_any(is_lost)
    elif isinstance(want, T.MapType) and isinstance(have, T.MapType):
        for inner, kind, is_lost in _loss_checks(have.valueType, want.valueType, logical, f"{path}{{}}"):
            yield inner, kind, _lost_in_any(is_lost, lambda it: F.map_values(keep_last_of_each_key(it)))
    elif _parsing(have, want, path, logical):
        yield path, want.simpleString(), lambda value, converted: value.isNotNull() & converted.isNull()


def _lost_in_field(name: str, is_lost: LossCheck) -> LossCheck:
    return lambda value, converted: is_lost(value.getField(name), converted.getField(name))


def _lost_in_any(is_lost: LossCheck, elements: Expression = lambda value: value) -> LossCheck:
    def any_lost(value: Column, converted: Column) -> Column:
        flags = F.zip_with(
            elements(value), elements(converted), lambda one, other: F.coalesce(is_lost(one, other), F.lit(False))
        )
        return F.exists(flags, lambda flag: flag)

    return any_lost


LeafCheck = Callable[[Column, T.DataType], Column | None]
"""Whether a value of a type that has no parts is valid; None for a type that needs no check."""


def is_utf8(value: Column, kind: T.DataType) -> Column | None:
    """Whether a string is UTF-8; None for other types."""
    return F.is_valid_utf8(value) if isinstance(kind, T.StringType) else None


def all_leaves(value: Column, kind: T.DataType, check: LeafCheck) -> Column | None:
    """Whether all parts of a value pass a check, null for a null; None for a type without parts to check."""
    if isinstance(kind, T.StructType):
        parts = [all_leaves(value.getField(f.name), f.dataType, check) for f in kind.fields]
    elif isinstance(kind, T.ArrayType):
        inner = kind.elementType
        if all_leaves(value, inner, check) is None:
            return None
        return F.forall(value, lambda each: F.coalesce(all_leaves(each, inner, check), F.lit(True)))  # type: ignore[arg-type]
    elif isinstance(kind, T.MapType):
        parts = [
            all_leaves(F.map_keys(value), T.ArrayType(kind.keyType), check),
            all_leaves(F.map_values(value), T.ArrayType(kind.valueType), check),
        ]
    else:
        return check(value, kind)
    known = [F.coalesce(part, F.lit(True)) for part in parts if part is not None]
    return reduce(lambda a, b: a & b, known) if known else None


def keep_last_of_each_key(value: Column) -> Column:
    """A map without duplicate keys, the last value of each: parsers keep duplicates.

    Relies on `spark.sql.mapKeyDedupPolicy`, which `sluice.ingest.session` sets.
    """
    keys = F.map_keys(value)
    unique = F.size(F.array_distinct(keys)) == F.size(keys)
    return F.when(unique, value).otherwise(F.map_from_entries(F.map_entries(value)))


def restore_precision(have: T.DecimalType, want: T.DataType, path: str) -> Expression:
    """Convert a decimal that was read with more digits than its type `have` allows; null if it has more.

    Raises:
        SchemaMismatchError: `have` cannot be widened to the wanted type.
    """
    if have != want and not _widens(have, want):
        raise _mismatch(path, have, want)
    return lambda value: value.try_cast(have).cast(want)


def _conversion(have: T.DataType, want: T.DataType, path: str, logical: LogicalConversion) -> Expression | None:
    """The conversion to the wanted type; None if the value already has it."""
    if isinstance(want, T.StructType) and isinstance(have, T.StructType):
        return _struct_conversion(have, want, path, logical)
    if isinstance(want, T.ArrayType) and isinstance(have, T.ArrayType):
        element = _conversion(have.elementType, want.elementType, f"{path}[]", logical)
        return (lambda value: F.transform(value, element)) if element else None
    if isinstance(want, T.MapType) and isinstance(have, T.MapType):
        return _map_conversion(have, want, path, logical)
    if parsing := _parsing(have, want, path, logical):
        return parsing
    if have == want or (isinstance(have, T.StringType) and isinstance(want, T.StringType)):
        return None
    if _widens(have, want):
        return lambda value: value.cast(want)
    raise _mismatch(path, have, want)


def _mismatch(path: str, have: T.DataType, want: T.DataType) -> SchemaMismatchError:
    return SchemaMismatchError(path, f"is {have.simpleString()}, but its column is {want.simpleString()}")


def _parsing(have: T.DataType, want: T.DataType, path: str, logical: LogicalConversion) -> Expression | None:
    """The conversion that yields null for values not of the wanted type; None if the types need no such conversion."""
    if converted := logical(path, have, want):
        return converted
    if isinstance(have, T.StringType) and isinstance(want, _PARSED_TYPES):
        return lambda value: read_text(value, want)
    if isinstance(have, T.StructType) and isinstance(want, T.DecimalType) and _is_scaled_number(have):
        return lambda value: decimal_from_unscaled(value["value"], value["scale"], want)
    for name, from_seconds in _PROTOBUF_TIMES.items():
        seconds, nanos = f"{name}.seconds", f"{name}.nanos"
        if isinstance(have, T.StructType) and have.names == [seconds, nanos]:
            return lambda value: from_seconds(value.getField(seconds), value.getField(nanos), want)
    return None


def _is_scaled_number(have: T.StructType) -> bool:
    """Whether a struct is Debezium's VariableScaleDecimal or confluent.type.Decimal."""
    kinds = {f.name: f.dataType for f in have.fields}
    is_scaled = isinstance(kinds.get("value"), T.BinaryType) and isinstance(kinds.get("scale"), T.IntegerType)
    return is_scaled and kinds.keys() <= {"value", "scale", "precision"}


def _struct_conversion(
    have: T.StructType, want: T.StructType, path: str, logical: LogicalConversion
) -> Expression | None:
    members: list[tuple[T.StructField, Expression]] = []
    same = have.names == want.names
    for field in want.fields:
        inner = join_path(path, field.name)
        alike = [each for each in have.fields if each.name.lower() == field.name.lower()]
        if len(alike) > 1:
            raise SchemaMismatchError(inner, "exists in two spellings, which Spark does not distinguish")
        if not alike or alike[0].name != field.name:
            members.append((field, lambda _, kind=field.dataType: F.lit(None).cast(kind)))  # type: ignore[misc]
            continue
        conversion = _conversion(alike[0].dataType, field.dataType, inner, logical)
        same = same and conversion is None
        members.append((field, _member(field.name, conversion)))
    if same:
        return None
    return lambda value: F.when(value.isNotNull(), F.struct(*[make(value).alias(f.name) for f, make in members]))


def _member(name: str, conversion: Expression | None) -> Expression:
    return lambda value: conversion(value.getField(name)) if conversion else value.getField(name)


def _map_conversion(have: T.MapType, want: T.MapType, path: str, logical: LogicalConversion) -> Expression:
    inner = _conversion(have.valueType, want.valueType, f"{path}{{}}", logical)
    if have.keyType == want.keyType:
        if inner is None:
            return keep_last_of_each_key
        return lambda value: F.transform_values(keep_last_of_each_key(value), lambda _, each: inner(each))
    integer_keys = isinstance(have.keyType, T.DecimalType) and have.keyType.scale == 0
    as_text = integer_keys or _integer_digits(have.keyType) or isinstance(have.keyType, T.BooleanType)
    if not (isinstance(want.keyType, T.StringType) and as_text):
        keys, wanted = have.keyType.simpleString(), want.keyType.simpleString()
        raise SchemaMismatchError(path, f"has {keys} keys, but its column has {wanted} keys")
    each = inner or (lambda value: value)
    return lambda value: F.transform_values(
        F.transform_keys(value, lambda key, _: key.cast("string")), lambda _, item: each(item)
    )


def _widens(have: T.DataType, want: T.DataType) -> bool:
    """Whether every value of a numeric type is a value of the wanted type."""
    digits, most = _integer_digits(have), _integer_digits(want)
    if digits and most:
        return digits < most
    if isinstance(want, T.DecimalType):
        if isinstance(have, T.DecimalType):
            return want.scale >= have.scale and want.precision - want.scale >= have.precision - have.scale
        return 0 < digits <= want.precision - want.scale
    if isinstance(want, T.DoubleType):
        return isinstance(have, T.FloatType) or 0 < digits <= 10
    return isinstance(want, T.FloatType) and 0 < digits <= 5


def _integer_digits(kind: T.DataType) -> int:
    """How many digits an integer type may have; 0 for other types."""
    return next((digits for each, digits in _INTEGER_DIGITS.items() if isinstance(kind, each)), 0)
