"""Partition transforms: parses `flight_date`, `month(flight_date)`, `bucket(16, id)` and `truncate(8, name)`.

`iceberg.schema` converts the result into a PyIceberg spec.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluice.contract.suggestions import did_you_mean
from sluice.contract.types import Decimal, Fixed, IcebergType, is_primitive

TRANSFORMS = ("identity", "year", "month", "day", "hour", "bucket", "truncate")
"""Every transform a contract may name; a bare column name means `identity`."""

_DATES = frozenset({"date", "timestamp", "timestamptz"})
_FITS: dict[str, frozenset[str]] = {
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": frozenset({"timestamp", "timestamptz"}),
    "bucket": _DATES | {"int", "long", "decimal", "string", "uuid", "fixed", "binary"},
    "truncate": frozenset({"int", "long", "decimal", "string", "binary"}),
}
# The names that Iceberg's own spec builder gives.
_SUFFIX = {"identity": "", "truncate": "_trunc"}
_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\(\s*([^()]*?)\s*\)\s*)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MAX_ARGUMENT = 2**31 - 1


@dataclass(frozen=True)
class PartitionField:
    """One field of a partition spec.

    Attributes:
        column: Name of the source column.
        transform: One of `TRANSFORMS`.
        argument: Number of buckets, or width in characters, bytes or units; None for the other transforms.
    """

    column: str
    transform: str = "identity"
    argument: int | None = None

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        inside = self.column if self.argument is None else f"{self.argument}, {self.column}"
        return f"{self.transform}({inside})"

    @property
    def name(self) -> str:
        """Name of the partition field in Iceberg, for example `flight_date_month`."""
        return self.column + _SUFFIX.get(self.transform, f"_{self.transform}")

    @property
    def redundancy_key(self) -> tuple[str, str]:
        """Two fields with the same key are redundant, and Iceberg rejects the second."""
        kind = "time" if self.transform in {"year", "month", "day", "hour"} else self.transform
        return self.column, kind


def parse_partition(text: str) -> PartitionField:
    """Parse one entry of `partition_by`.

    `bucket` and `truncate` take the number first, as in Spark; the other order is accepted too.

    Raises:
        ValueError: The text is not a column name or a known transform of one.
    """
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError(f"{text[:80]!r} is neither a column nor a transform like month(col) or bucket(16, col)")
    head, inside = found[1], found[2]
    if inside is None:
        return PartitionField(head)
    if head not in TRANSFORMS:
        hint = did_you_mean(head, TRANSFORMS) or f" (known: {', '.join(TRANSFORMS)})"
        raise ValueError(f"unknown transform {head!r}{hint}")
    arguments = [each.strip() for each in inside.split(",")]
    if head not in {"bucket", "truncate"}:
        if len(arguments) != 1 or not _NAME.fullmatch(arguments[0]):
            raise ValueError(f"{head} takes one column: {head}(col)")
        return PartitionField(arguments[0], head)
    numbers = [each for each in arguments if each.isdigit()]
    names = [each for each in arguments if _NAME.fullmatch(each)]
    if len(arguments) != 2 or len(numbers) != 1 or len(names) != 1:
        raise ValueError(f"{head} takes a whole number and a column: {head}(16, col)")
    if len(numbers[0]) > 10 or not 1 <= int(numbers[0]) <= _MAX_ARGUMENT:
        raise ValueError(f"the number of {head} must be from 1 to {_MAX_ARGUMENT}")
    return PartitionField(names[0], head, int(numbers[0]))


def type_mismatch(field: PartitionField, kind: IcebergType) -> str | None:
    """Return why `field`'s transform can't be applied to a column of type `kind`; None if it can."""
    if not is_primitive(kind):
        return f"{kind} cannot be a partition: it must be a primitive type"
    base = "decimal" if isinstance(kind, Decimal) else "fixed" if isinstance(kind, Fixed) else str(kind)
    if field.transform == "identity":
        # With Spark 4.1.1, Iceberg 1.12.0 and PyIceberg 0.12.0 a uuid breaks Spark's table of partitions, and PyIceberg
        # cannot read manifests with a fixed.
        hint = f"bucket(16, {field.column})"
        return f"identity does not work with {kind}: use {hint}" if base in {"uuid", "fixed"} else None
    fits = _FITS[field.transform]
    if base in fits:
        return None
    return f"{field.transform} does not apply to {kind}; it takes {', '.join(sorted(fits))}"
