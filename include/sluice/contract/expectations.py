"""`expectations:` of a contract: checks that Great Expectations runs on each batch, and what happens if one fails.

The supported types are listed here, because DAG files must not import Great Expectations; a test compares the list with
its models.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from math import isfinite
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from sluice.contract.types import Decimal, IcebergType
from sluice.contract.values import Duration, PositiveInt, StrictModel


@dataclass(frozen=True)
class ExpectationType:
    """One type of expectation that Great Expectations has and Sluice runs.

    Attributes:
        arguments: its parameters besides columns; of several in one tuple, at least one is required.
        column_kind: the columns it applies to: any, flat (no list, map or struct), ordered, number, text; or whole, the
            table.
        by_row: it evaluates each row by itself, so that failing rows can be quarantined.
        columns: the parameters that name columns.
        is_statistic: its observed value is a statistic; else it is, or may be, a value of some record.
    """

    arguments: tuple[str | tuple[str, ...], ...] = ()
    column_kind: Literal["any", "flat", "ordered", "number", "text", "whole"] = "any"
    by_row: bool = False
    columns: tuple[str, ...] = ("column",)
    is_statistic: bool = False

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters besides columns."""
        return [name for each in self.arguments for name in ((each,) if isinstance(each, str) else each)]


def _between(column_kind: Literal["flat", "ordered", "number", "whole"], **values: Any) -> ExpectationType:
    return ExpectationType((("min_value", "max_value"), "strict_min", "strict_max"), column_kind, **values)


NUMBERS = frozenset({"int", "long", "float", "double"})
_SET, _PAIR = (("value_set",),), ("column_A", "column_B")
EXPECTATION_TYPES: Mapping[str, ExpectationType] = MappingProxyType(
    {
        "expect_column_values_to_not_be_null": ExpectationType(("mostly",), by_row=True),
        "expect_column_values_to_be_null": ExpectationType(("mostly",), by_row=True),
        "expect_column_values_to_be_between": ExpectationType(
            (("min_value", "max_value"), "strict_min", "strict_max", "mostly"), "ordered", by_row=True
        ),
        "expect_column_values_to_be_in_set": ExpectationType((*_SET, "mostly"), "flat", by_row=True),
        "expect_column_values_to_not_be_in_set": ExpectationType((*_SET, "mostly"), "flat", by_row=True),
        "expect_column_values_to_match_regex": ExpectationType((("regex",), "mostly"), "text", by_row=True),
        "expect_column_values_to_not_match_regex": ExpectationType((("regex",), "mostly"), "text", by_row=True),
        "expect_column_value_lengths_to_equal": ExpectationType((("value",), "mostly"), "text", by_row=True),
        "expect_column_value_lengths_to_be_between": ExpectationType(
            (("min_value", "max_value"), "strict_min", "strict_max", "mostly"), "text", by_row=True
        ),
        "expect_column_pair_values_a_to_be_greater_than_b": ExpectationType(
            ("or_equal", "mostly"), "ordered", columns=_PAIR
        ),
        "expect_column_pair_values_to_be_equal": ExpectationType(("mostly",), "flat", columns=_PAIR),
        "expect_column_values_to_be_unique": ExpectationType(("mostly",), "flat"),
        "expect_compound_columns_to_be_unique": ExpectationType(("mostly",), "flat", columns=("column_list",)),
        "expect_column_proportion_of_unique_values_to_be_between": _between("flat", is_statistic=True),
        "expect_column_proportion_of_non_null_values_to_be_between": _between("flat", is_statistic=True),
        "expect_column_unique_value_count_to_be_between": _between("flat", is_statistic=True),
        "expect_column_distinct_values_to_be_in_set": ExpectationType(_SET, "flat"),
        "expect_column_distinct_values_to_contain_set": ExpectationType(_SET, "flat"),
        "expect_column_distinct_values_to_equal_set": ExpectationType(_SET, "flat"),
        "expect_column_mean_to_be_between": _between("number", is_statistic=True),
        "expect_column_stdev_to_be_between": _between("number", is_statistic=True),
        "expect_column_sum_to_be_between": _between("number", is_statistic=True),
        "expect_column_median_to_be_between": _between("number"),
        "expect_column_min_to_be_between": _between("ordered"),
        "expect_column_max_to_be_between": _between("ordered"),
        "expect_table_row_count_to_be_between": _between("whole", columns=(), is_statistic=True),
        "expect_table_row_count_to_equal": ExpectationType((("value",),), "whole", columns=(), is_statistic=True),
    }
)
"""The types that Sluice supports, by Great Expectations' names."""

MAX_BETWEEN = "expect_column_max_to_be_between"

MAX_PARAMETERS_LENGTH = 200
"""Characters of an expectation's parameters that are stored and shown."""
CUT = "… sha256:"
"""Stands between the beginning of longer parameters and their digest."""


class Drift(StrictModel):
    """Bounds around the mean observed value of earlier batches.

    Attributes:
        tolerance: Allowed share of the mean above and below it: 0.5 allows 50 % to 150 %.
        batches: With how many of the last batches it is compared.
        at_least: With fewer earlier batches the expectation is not evaluated.
    """

    tolerance: Annotated[float, Field(strict=True, gt=0)]
    batches: PositiveInt = 10
    at_least: PositiveInt = 3


class Expectation(StrictModel):
    """One expectation of Great Expectations; its own parameters are given beside these fields.

    Attributes:
        type: Its type, for example `expect_column_values_to_be_in_set`.
        severity: What happens if it fails: `warn` reports it, `quarantine_rows` quarantines the failing rows, `block`
            stops the table before the batch is published.
        drift: Bounds from earlier batches, instead of `min_value` and `max_value`.
        max_age: For `expect_column_max_to_be_between` of a time, instead of its bounds: how old the newest value may
            be. Only with severity `warn`.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    severity: Literal["warn", "quarantine_rows", "block"] = "warn"
    drift: Drift | None = None
    max_age: Duration | None = None

    @property
    def kind(self) -> ExpectationType:
        """Its type's properties."""
        return EXPECTATION_TYPES[self.type]

    @property
    def given(self) -> dict[str, Any]:
        """The parameters for Great Expectations, columns included."""
        return dict(self.model_extra or {})

    @property
    def parameters(self) -> str:
        """Its parameters without columns, as JSON; long ones are cut and end in a hash.

        Identifies it among expectations of one type about the same columns.
        """
        given = self.model_dump(mode="json", exclude_unset=True, exclude={"type", "severity", *self.kind.columns})
        text = json.dumps(given, sort_keys=True, ensure_ascii=False)
        if len(text) <= MAX_PARAMETERS_LENGTH:
            return text
        return f"{text[:MAX_PARAMETERS_LENGTH]}{CUT}{sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is about; empty for the table's expectations."""
        values = [self.given.get(name, ()) for name in self.kind.columns]
        given = [c for each in values for c in (each if isinstance(each, list | tuple) else (each,))]
        return tuple(c for c in given if isinstance(c, str))

    def with_columns(self, names: Mapping[str, str]) -> Self:
        """Return the same expectation about renamed columns; `names` maps old to new names."""

        def rename(given: Any) -> Any:
            return [rename(each) for each in given] if isinstance(given, list | tuple) else names.get(given, given)

        columns = {name: rename(self.given[name]) for name in self.kind.columns if name in self.given}
        return self.model_validate({**self.model_dump(exclude_unset=True), **columns})

    @property
    def name(self) -> tuple[str, str, str, str]:
        """Its identity within the contract; equal to the `name` of its results in `sluice.quality`."""
        return self.type, ",".join(self.columns), self.severity, self.parameters

    @property
    def label(self) -> str:
        """Type and columns, for messages."""
        return f"{self.type}({', '.join(self.columns)})"


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that fits Spark's types (64 bits)."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return abs(value) < 1 << 63 if whole else isinstance(value, float) and isfinite(value)


def to_column_value(value: Any, kind: IcebergType) -> Any:
    """Convert a value of the YAML to a column's type; None if it is not one.

    Dates and timestamps are text in the YAML, `2024-01-31` and `2024-01-31T00:00:00Z`; a timestamp without a time zone
    is UTC, as in the Spark application.
    """
    name = str(kind)
    if isinstance(kind, Decimal) or name in NUMBERS:
        fits = is_number(value) and (name not in {"int", "long"} or value == int(value))
        if fits and name == "float":
            try:
                return struct.unpack("<f", struct.pack("<f", value))[0]  # 0.1 is another number as a float
            except OverflowError:
                return None
        return value if fits else None
    if name == "boolean":
        return value if isinstance(value, bool) else None
    if not isinstance(value, str):
        return None
    if name in {"date", "timestamp", "timestamptz"}:
        return _parse_date_or_time(value, name)
    if name == "uuid":  # columns hold lower case
        return value.lower()
    return value if name == "string" else None


def _parse_date_or_time(value: str, name: str) -> date | datetime | None:
    try:
        if name == "date":
            return date.fromisoformat(value)
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    if (parsed.tzinfo is None) == (name == "timestamptz"):
        return None
    return parsed.replace(tzinfo=parsed.tzinfo or UTC).astimezone(UTC)
