"""Checks that Spark's types and casts do not make: uuids, fixed lengths, partition path lengths, lossless casts.

In: a contract, or the types of a cast. Out: conditions on its columns, used by decode for error class `misfit` and for
a tombstone's key; the one form of values that are equal; and casts that fail instead of losing a part of a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add, or_
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.contract import Contract
from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.internal_columns import ExactDecimalType, Expression, join_path
from sluice.formats.logical_types import BELOW_MICROS, JAVA_NUMBER, to_decimal

_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\z"
MAX_PATH_SEGMENT_BYTES = 255
"""File systems' limit for one folder name. Iceberg names a partition's folder `field=value`, URL-encoded."""
MAX_PARTITION_PATH_BYTES = 640
"""Limit for all partition folders together: an object store's key, location and file included, has 1,024 bytes."""

_INFINITE = float("inf")
_WHOLE = (T.IntegerType, T.LongType, T.DateType)
"""Types to which Spark casts a fraction or a time by cutting it off."""
_FRACTIONS = (T.FractionalType, T.TimestampType, T.TimestampNTZType, T.DayTimeIntervalType)
_INFINITE_TEXT = r"(?i)^\s*[+-]?inf(inity)?\s*$"
TIME_WITHOUT_DATE = r"^[\x00-\x20\x7f]*(?:T|[0-9]{1,2}:)"
"""Texts that Spark casts to a timestamp of the current day, if to any: `12:30`, `T12`."""
_WHOLE_TEXT: dict[type[T.DataType], str] = {
    T.DateType: r"^\s*[+-]?[0-9]+(?:-[0-9]+){2}\s*$",
    T.TimestampNTZType: r"^\s*[+-]?[0-9]+(?:-[0-9]+){2}(?:[T ][0-9:.]*)?\s*$",
    T.TimestampType: r"^\s*[+-]?[0-9]+(?:-[0-9]+){2}",
}
"""Texts of which Spark's cast uses all, with a whole date. Of others it drops what follows the day, or the zone, or it
takes the first day or month."""


class TypeCheck(NamedTuple):
    """A place inside a value, and when the value there violates its type.

    Attributes:
        path: The field, dotted; `[]` for list elements, `{}` for map values.
        reason: What is wrong, for the error text.
        violated: Whether a value violates the type; null or false for null.
    """

    path: str
    reason: str
    violated: Expression


class PartitionCheck(NamedTuple):
    """A column whose value cannot be partitioned, why, and for which records."""

    column: str
    reason: str
    violated: Column


def type_checks(kind: IcebergType, path: str) -> Iterator[TypeCheck]:
    """The checks for all uuids and fixed values inside a type."""
    match kind:
        case Primitive("uuid"):
            yield TypeCheck(path, "the text is not a uuid", lambda value: ~value.rlike(_UUID))
        case Fixed(length):
            reason = f"the value does not have exactly {length} bytes"
            yield TypeCheck(path, reason, lambda value: F.length(value) != length)
        case ListOf(element):
            for inner, reason, violated in type_checks(element, f"{path}[]"):
                yield TypeCheck(inner, reason, _any_element(violated))
        case MapOf(_, each):
            for inner, reason, violated in type_checks(each, f"{path}{{}}"):
                yield TypeCheck(inner, reason, _any_element(violated, F.map_values))
        case Struct(fields):
            for name, member in fields:
                for inner, reason, violated in type_checks(member, join_path(path, name)):
                    yield TypeCheck(inner, reason, _in_field(name, violated))


def partition_path_checks(contract: Contract) -> Iterator[PartitionCheck]:
    """Checks that text and binary partition values fit into a path.

    Masked columns are skipped: their values are replaced before they are written.
    """
    kinds = {c.name: str(c.type) for c in contract.columns if not c.mask and str(c.type) in ("string", "binary")}
    sizes, lengths = [], []
    for field in contract.partitioning:
        if field.column not in kinds or field.transform not in ("identity", "truncate"):
            continue
        value = F.col(field.column)
        if field.argument is not None:
            value = F.substring(value, 1, field.argument)
        if kinds[field.column] == "binary":
            value = F.base64(value)
        limit = MAX_PATH_SEGMENT_BYTES - len(f"{field.name}=")
        # URL encoding makes at most three bytes of one, so that short values need not be encoded to be checked.
        size, length = F.octet_length(value), F.length(F.url_encode(value))
        reason = f"the value is too long for a partition: URL-encoded it may have {limit} bytes"
        yield PartitionCheck(field.column, reason, (size * 3 > limit) & ((size > limit) | (length > limit)))
        sizes.append(F.coalesce(size, F.lit(0)) + len(field.name))
        lengths.append(F.coalesce(length, F.lit(0)) + len(field.name))
        last = field.column
    if len(sizes) * MAX_PATH_SEGMENT_BYTES > MAX_PARTITION_PATH_BYTES:
        limit = MAX_PARTITION_PATH_BYTES
        reason = f"the values of all partition columns together are too long: URL-encoded they may have {limit} bytes"
        yield PartitionCheck(last, reason, (reduce(add, sizes) * 3 > limit) & (reduce(add, lengths) > limit))


def truncate_transform_checks(contract: Contract) -> Iterator[PartitionCheck]:
    """Checks that the truncated partition value of a decimal column has no more digits than its type."""
    kinds = {c.name: c.type for c in contract.columns}
    for field in contract.partitioning:
        kind = kinds.get(field.column)
        if isinstance(kind, Decimal) and field.transform == "truncate" and field.argument:
            # Iceberg truncates downwards, in units of the last digit.
            least = -((10**kind.precision - 1) // field.argument * field.argument)
            reason = f"the value is too low for a partition: {field.name} would have more digits than {kind}"
            too_low = F.col(field.column) < F.expr(f"CAST('{least}E-{kind.scale}' AS {kind})")
            yield PartitionCheck(field.column, reason, too_low)


def _any_element(violated: Expression, elements: Expression = lambda value: value) -> Expression:
    return lambda value: F.exists(elements(value), violated)


def _in_field(name: str, violated: Expression) -> Expression:
    return lambda value: violated(value.getField(name))


def canonical_form(kind: IcebergType, *, has_bounds: bool = True) -> Expression | None:
    """Gives equal values one form: uuids in lower case, as Iceberg returns them, and 0.0 for -0.0.

    In the bounds of files and in partitions Iceberg orders -0.0 before 0.0, so that a filter `d = 0` would miss it.

    Args:
        kind: The type of the values.
        has_bounds: Whether files have bounds of them. In lists and maps they do not, and -0.0 stays there, because
            Spark would call a function for each element.

    Returns:
        The conversion; None for a type that needs none.
    """
    match kind:
        case Primitive("uuid"):
            return F.lower
        case Primitive("float" | "double" as name) if has_bounds:
            return lambda value: value + F.lit(0.0).cast(name)  # IEEE 754: -0.0 + 0.0 is 0.0
        case ListOf(element):
            return _map_list(change) if (change := canonical_form(element, has_bounds=False)) else None
        case MapOf(_, element):
            return _map_values(change) if (change := canonical_form(element, has_bounds=False)) else None
        case Struct(fields):
            forms = ((name, canonical_form(member, has_bounds=has_bounds)) for name, member in fields)
            changes = {name: change for name, change in forms if change}
            return _map_fields(changes) if changes else None
    return None


def _map_list(change: Expression) -> Expression:
    return lambda value: F.transform(value, change)


def _map_values(change: Expression) -> Expression:
    return lambda value: F.transform_values(value, lambda _, each: change(each))


def _map_fields(changes: Mapping[str, Expression]) -> Expression:
    return lambda value: reduce(
        lambda it, name: it.withField(name, changes[name](value.getField(name))), changes, value
    )


def cast_result(column: Column, have: T.DataType, want: T.DataType, *, for_key: bool = False) -> Column:
    """Cast an expression's result to its column's type; fails where Spark's cast would lose a part of it.

    Decimals are rounded, and of a text's time what is below a microsecond is cut off, as formats do it.

    Args:
        column: The result.
        have: Its type.
        want: The column's type.
        for_key: Whether rounding fails as well, because it would make one row of two.
    """
    value = _to_timestamp(column, have) if _is_seconds(have, want) else column.cast(want)
    checked = reject_time_without_date(column).cast(want) if may_lack_date(have, want) else value
    lost = [*_losses(column, have, value, want), *(_roundings(column, have, value, want) if for_key else ())]
    return (
        F.when(reduce(or_, lost), F.raise_error(F.lit("a part would be lost"))).otherwise(checked) if lost else checked
    )


def _losses(column: Column, have: T.DataType, value: Column, want: T.DataType) -> Iterator[Column]:
    """When Spark's cast would lose a part of a value."""
    if whole := _whole_text(have, want):
        yield ~column.rlike(whole)
    if _may_become_null(have, want):
        yield column.isNotNull() & value.isNull()
    if _may_become_infinite(have, want):
        is_infinite = F.abs(column) == _INFINITE if isinstance(have, T.DoubleType) else column.rlike(_INFINITE_TEXT)
        yield (F.abs(value) == _INFINITE) & ~is_infinite
    if isinstance(have, T.StringType) and isinstance(want, T.FloatType | T.DoubleType):
        yield column.rlike(JAVA_NUMBER)
    if _may_be_cut(have, want):
        yield ~value.cast(have).eqNullSafe(column)


def _roundings(column: Column, have: T.DataType, value: Column, want: T.DataType) -> Iterator[Column]:
    """When a cast to a key's type would round a value."""
    if isinstance(have, T.StringType) and isinstance(want, T.DecimalType):
        exact = ExactDecimalType(want.precision, want.scale)
        yield column.isNotNull() & to_decimal(column, exact).isNull()
    elif isinstance(have, _FRACTIONS) and (isinstance(want, T.DecimalType) or _is_seconds(have, want)):
        yield ~value.cast(have).eqNullSafe(column)
    elif isinstance(have, T.StringType) and isinstance(want, T.TimestampType | T.TimestampNTZType):
        yield column.rlike(BELOW_MICROS)


def _is_seconds(have: T.DataType, want: T.DataType) -> bool:
    """Whether a number with a fraction is taken as seconds since 1970."""
    return isinstance(have, T.FractionalType) and isinstance(want, T.TimestampType)


def _to_timestamp(seconds: Column, have: T.DataType) -> Column:
    """The nearest microsecond of a number: Spark's cast cuts off the rest, so that it is often one too early."""
    if isinstance(have, T.DecimalType):
        return F.round(seconds, 6).cast("timestamp")
    return F.timestamp_micros(F.rint(seconds * F.lit(1e6)).cast("long"))


def may_lack_date(have: T.DataType, want: T.DataType) -> bool:
    """Whether Spark's cast would add the current day to some values."""
    return isinstance(have, T.StringType) and isinstance(want, T.TimestampType)


def _whole_text(have: T.DataType, want: T.DataType) -> str | None:
    """A regex for the texts of which Spark's cast uses all; None if it uses all of any text that it accepts."""
    return _WHOLE_TEXT.get(type(want)) if isinstance(have, T.StringType) else None


def _may_become_null(have: T.DataType, want: T.DataType) -> bool:
    """Whether Spark casts values that do not fit to null, even in ANSI mode."""
    return isinstance(have, T.FloatType | T.DoubleType) and isinstance(want, T.DecimalType)


def _may_become_infinite(have: T.DataType, want: T.DataType) -> bool:
    """Whether Spark casts numbers that are too large to infinity, even in ANSI mode."""
    from_text = isinstance(have, T.StringType) and isinstance(want, T.FloatType | T.DoubleType)
    return from_text or (isinstance(have, T.DoubleType) and isinstance(want, T.FloatType))


def _may_be_cut(have: T.DataType, want: T.DataType) -> bool:
    """Whether Spark casts by dropping a fraction, or a time of day, or takes any number but 0 for true."""
    if isinstance(want, T.BooleanType):
        return isinstance(have, T.NumericType)
    return isinstance(have, _FRACTIONS) and isinstance(want, _WHOLE)


def reject_time_without_date(text: Column, instead: Column | None = None) -> Column:
    """The value; where it is a time without a date, `instead`, or an error."""
    replacement = F.raise_error(F.lit("a time without a date")) if instead is None else instead
    return F.when(text.cast("string").rlike(TIME_WITHOUT_DATE), replacement).otherwise(text)


def type_parts(kind: T.DataType) -> list[T.DataType]:
    """The types in a list, a map or a struct."""
    match kind:
        case T.ArrayType(elementType=element):
            return [element]
        case T.MapType(keyType=key, valueType=value):
            return [key, value]
        case T.StructType(fields=fields):
            return [f.dataType for f in fields]
    return []


def misplaced_field(have: T.DataType, want: T.DataType) -> str | None:
    """The first field of a struct that a cast, which goes by position, would make another field of the wanted type."""
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
        known = [name.lower() for name in want.names]
        for name, other in zip(have.names, known, strict=False):
            if name.lower() != other and name.lower() in known:
                return str(name)
    return next(filter(None, map(misplaced_field, type_parts(have), type_parts(want))), None)


def unsafe_inner_cast(
    have: T.DataType, want: T.DataType, *, is_inner: bool = False
) -> tuple[T.DataType, T.DataType] | None:
    """The types of a cast inside a nested type that would yield null or infinity, use today's date, or cut a text.

    Of a variant also those of the whole: its values are cast by types that no check sees.
    """
    is_variant = isinstance(have, T.VariantType) and not isinstance(want, T.StringType)
    is_unsafe = (
        _may_become_null(have, want)
        or may_lack_date(have, want)
        or bool(_whole_text(have, want))
        or _may_be_cut(have, want)
        or _is_seconds(have, want)
        or (isinstance(have, T.DoubleType) and _may_become_infinite(have, want))
    )
    if is_variant or (is_inner and is_unsafe):
        return have, want
    pairs = zip(type_parts(have), type_parts(want), strict=False)
    return next(filter(None, (unsafe_inner_cast(x, y, is_inner=True) for x, y in pairs)), None)
