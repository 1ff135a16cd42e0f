"""Checks of decoded values that their Spark type does not make: uuids, fixed lengths, partition path lengths.

In: a contract. Out: conditions on its columns, used by decode for error class `misfit` and for a tombstone's key; and
the one form of values that are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.contract.contract import Contract
from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.internal_columns import Expression, join_path

_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\z"
MAX_PATH_SEGMENT_BYTES = 255
"""File systems' limit for one folder name. Iceberg names a partition's folder `field=value`, URL-encoded."""
MAX_PARTITION_PATH_BYTES = 640
"""Limit for all partition folders together: an object store's key, location and file included, has 1,024 bytes."""


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
    return lambda value: reduce(lambda it, name: it.withField(name, changes[name](it.getField(name))), changes, value)
