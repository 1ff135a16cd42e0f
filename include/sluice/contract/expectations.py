"""`expectations:` of a contract: what Great Expectations shall find true of each batch, and what happens if it is not.

DAG files read contracts too, so the expectations that Sluice runs stand here by name, with what they take, and Great
Expectations itself is imported by the Spark application alone. A test holds the list against its own models.
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
from sluice.contract.values import Duration, Strict, Whole


@dataclass(frozen=True)
class Kind:
    """What Sluice knows of one expectation of Great Expectations.

    Attributes:
        takes: its parameters; of several in one tuple, one must be given.
        of: the columns it fits: any, flat (no list, map or struct), ordered, number, text; or whole, the table.
        by_row: it judges each row by itself, so that the rows that fail can be set apart.
        columns: the parameters that name columns.
        told: its observed value is a statistic; else it is, or may be, a value of some record.
    """

    takes: tuple[str | tuple[str, ...], ...] = ()
    of: Literal["any", "flat", "ordered", "number", "text", "whole"] = "any"
    by_row: bool = False
    columns: tuple[str, ...] = ("column",)
    told: bool = False

    @property
    def parameters(self) -> list[str]:
        """All that it takes besides columns."""
        return [name for each in self.takes for name in ((each,) if isinstance(each, str) else each)]


def _between(of: Literal["flat", "ordered", "number", "whole"], **values: Any) -> Kind:
    return Kind((("min_value", "max_value"), "strict_min", "strict_max"), of, **values)


NUMBERS = frozenset({"int", "long", "float", "double"})
_SET, _PAIR = (("value_set",),), ("column_A", "column_B")
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "expect_column_values_to_not_be_null": Kind(("mostly",), by_row=True),
        "expect_column_values_to_be_null": Kind(("mostly",), by_row=True),
        "expect_column_values_to_be_between": Kind(
            (("min_value", "max_value"), "strict_min", "strict_max", "mostly"), "ordered", by_row=True
        ),
        "expect_column_values_to_be_in_set": Kind((*_SET, "mostly"), "flat", by_row=True),
        "expect_column_values_to_not_be_in_set": Kind((*_SET, "mostly"), "flat", by_row=True),
        "expect_column_values_to_match_regex": Kind((("regex",), "mostly"), "text", by_row=True),
        "expect_column_values_to_not_match_regex": Kind((("regex",), "mostly"), "text", by_row=True),
        "expect_column_value_lengths_to_equal": Kind((("value",), "mostly"), "text", by_row=True),
        "expect_column_value_lengths_to_be_between": Kind(
            (("min_value", "max_value"), "strict_min", "strict_max", "mostly"), "text", by_row=True
        ),
        "expect_column_pair_values_a_to_be_greater_than_b": Kind(("or_equal", "mostly"), "ordered", columns=_PAIR),
        "expect_column_pair_values_to_be_equal": Kind(("mostly",), "flat", columns=_PAIR),
        "expect_column_values_to_be_unique": Kind(("mostly",), "flat"),
        "expect_compound_columns_to_be_unique": Kind(("mostly",), "flat", columns=("column_list",)),
        "expect_column_proportion_of_unique_values_to_be_between": _between("flat", told=True),
        "expect_column_proportion_of_non_null_values_to_be_between": _between("flat", told=True),
        "expect_column_unique_value_count_to_be_between": _between("flat", told=True),
        "expect_column_distinct_values_to_be_in_set": Kind(_SET, "flat"),
        "expect_column_distinct_values_to_contain_set": Kind(_SET, "flat"),
        "expect_column_distinct_values_to_equal_set": Kind(_SET, "flat"),
        "expect_column_mean_to_be_between": _between("number", told=True),
        "expect_column_stdev_to_be_between": _between("number", told=True),
        "expect_column_sum_to_be_between": _between("number", told=True),
        "expect_column_median_to_be_between": _between("number"),
        "expect_column_min_to_be_between": _between("ordered"),
        "expect_column_max_to_be_between": _between("ordered"),
        "expect_table_row_count_to_be_between": _between("whole", columns=(), told=True),
        "expect_table_row_count_to_equal": Kind((("value",),), "whole", columns=(), told=True),
    }
)
"""The expectations that Sluice runs, by the names that Great Expectations gives them."""

NEWEST = "expect_column_max_to_be_between"

SHOWN = 200
"""So many characters of an expectation's parameters are told."""


class Drift(Strict):
    """Bounds taken from the batches before: their mean observed value, give or take a share of it.

    Attributes:
        tolerance: Share of the mean, above 0: 0.5 allows half of it to three halves.
        batches: How many of the last batches. Default 10.
        at_least: With fewer batches to compare with, nothing is judged. Default 3.
    """

    tolerance: Annotated[float, Field(strict=True, gt=0)]
    batches: Whole = 10
    at_least: Whole = 3


class Expectation(Strict):
    """One expectation of Great Expectations; its own parameters stand beside these, as it names them.

    Attributes:
        type: Its name, for example `expect_column_values_to_be_in_set`.
        severity: `warn` tells; `quarantine_rows` sets the rows that fail apart, as if they could not be decoded;
            `block` stops the table before the batch is published. Default `warn`.
        drift: Instead of `min_value` and `max_value`: bounds from the batches before.
        max_age: Of `expect_column_max_to_be_between`, instead of its bounds: how old the newest value may be.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    severity: Literal["warn", "quarantine_rows", "block"] = "warn"
    drift: Drift | None = None
    max_age: Duration | None = None

    @property
    def kind(self) -> Kind:
        """What is known of its type."""
        return KINDS[self.type]

    @property
    def given(self) -> dict[str, Any]:
        """What Great Expectations is given, columns among it."""
        return dict(self.model_extra or {})

    @property
    def parameters(self) -> str:
        """What it is given besides its columns, as JSON: it tells it from another of its type about the same column.

        Of one that is long there is the beginning, and a digest of the whole.
        """
        given = self.model_dump(mode="json", exclude_unset=True, exclude={"type", "severity", *self.kind.columns})
        text = json.dumps(given, sort_keys=True, ensure_ascii=False)
        if len(text) <= SHOWN:
            return text
        return f"{text[:SHOWN]}… sha256:{sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at; none for those of the table, nor for what is no name."""
        named = [self.given.get(name, ()) for name in self.kind.columns]
        given = [c for each in named for c in (each if isinstance(each, list | tuple) else (each,))]
        return tuple(c for c in given if isinstance(c, str))

    def about(self, names: Mapping[str, str]) -> Self:
        """The same of columns that have other names: those that are in `names`."""

        def named(given: Any) -> Any:
            return [named(each) for each in given] if isinstance(given, list | tuple) else names.get(given, given)

        there = {name: named(self.given[name]) for name in self.kind.columns if name in self.given}
        return self.model_validate({**self.model_dump(exclude_unset=True), **there})

    @property
    def name(self) -> tuple[str, str, str, str]:
        """What tells it from others of the contract, as `quality.Result.name` has it."""
        return self.type, ",".join(self.columns), self.severity, self.parameters

    @property
    def label(self) -> str:
        """For messages: the type, and its columns."""
        return f"{self.type}({', '.join(self.columns)})"


def is_number(value: Any) -> bool:
    """Whether it is one that Spark takes: a whole one has 64 bits."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return abs(value) < 1 << 63 if whole else isinstance(value, float) and isfinite(value)


def typed(value: Any, kind: IcebergType) -> Any:
    """A value of the YAML as one of a column of type `kind`; None where it is none.

    Dates and times stand there as text, `2024-01-31` and `2024-01-31T00:00:00Z`; a timestamp without a zone is UTC,
    as it is in the Spark application.
    """
    name = str(kind)
    if isinstance(kind, Decimal) or name in NUMBERS:
        fits = is_number(value) and (name not in {"int", "long"} or value == int(value))
        if fits and name == "float":
            try:
                return struct.unpack("<f", struct.pack("<f", value))[0]  # 0.1 is another number there
            except OverflowError:
                return None
        return value if fits else None
    if name == "boolean":
        return value if isinstance(value, bool) else None
    if not isinstance(value, str):
        return None
    if name in {"date", "timestamp", "timestamptz"}:
        return _moment(value, name)
    if name == "uuid":  # which a column has in small letters
        return value.lower()
    return value if name == "string" else None


def _moment(value: str, name: str) -> date | datetime | None:
    try:
        if name == "date":
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if (moment.tzinfo is None) == (name == "timestamptz"):
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
