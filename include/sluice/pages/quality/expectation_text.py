"""Expectations in words: "amount is between 0 and 10,000" in place of Great Expectations' name and JSON.

In: type, columns and parameters as `sluice.quality` keeps them. Out: a sentence, and the numbers that results are
compared with. Great Expectations' own renderers are not used: its import takes seconds and much memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sluice.contract.expectations import CUT, is_number
from sluice.contract.values import parse_duration

MAX_LISTED = 8
"""Values of a set that a sentence lists."""
Parameters = Mapping[str, Any]
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class _UnknownParametersError(Exception):
    """The parameters are not those of the type: they were cut, or not recorded."""


@lru_cache(maxsize=4096)
def parse_parameters(text: str) -> Parameters | None:
    """Parse the parameters of an expectation; None if they are no JSON object.

    Those that were cut keep all but the last one, and of that the beginning.
    """
    kept, is_cut, _ = text.partition(CUT)
    # A list is cut after its last whole value, a text anywhere.
    cut = (kept.rpartition(", ")[0] + ', "…"]}', kept.rstrip("\\") + '…"}') if is_cut else ()
    for each in (text, *cut):
        try:
            found = json.loads(each)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return MappingProxyType(found)
    return None


def describe(expectation: str, column: str, parameters: str) -> str:
    """Describe an expectation in a sentence; by its name and parameters where it has no sentence."""
    try:
        sentence = _SENTENCES[expectation](column, parse_parameters(parameters) or {})
    except (KeyError, ValueError, _UnknownParametersError):
        return name_in_full(expectation.replace("_", " "), column, parameters)
    share = tolerated_share(parameters)
    return f"{sentence}; at most {format_share(share)} of the rows fail" if share else sentence


def name_in_full(expectation: str, column: str, parameters: str) -> str:
    """Type, columns and parameters, as Great Expectations knows them."""
    return f"{expectation}({column}){f' {parameters}' if parameters not in ('', '{}') else ''}"


def tolerated_share(parameters: str) -> float | None:
    """The share of rows that may fail by `mostly`; 0 without it; None if the parameters are not known."""
    given = parse_parameters(parameters)
    mostly = None if given is None else number(given.get("mostly", 1))
    return None if mostly is None else min(max(round(1 - mostly, 9), 0.0), 1.0)


def number(value: object) -> float | None:
    """A finite number of a parameter as float; None for anything else."""
    return float(value) if isinstance(value, int | float) and is_number(value) else None


def format_share(share: float) -> str:
    """A share in percent with three digits; neither 0 nor 100 % unless it is exactly that."""
    if 0 < share < 0.0001:
        return "under 0.01 %"
    if 0.9995 <= share < 1:
        return "over 99.9 %"
    return f"{share * 100:.3g} %"


def _bounds(given: Parameters) -> str:
    """The bounds of a `…_to_be_between`, or the value of a `…_to_equal`: `between 0 and 10,000`, `less than 5`."""
    if isinstance(drift := given.get("drift"), dict):
        tolerance = number(drift.get("tolerance"))
        if tolerance is None:
            raise _UnknownParametersError
        return f"within {format_share(tolerance)} of the mean of the last {_value(drift.get('batches', 10))} batches"
    if "value" in given:
        return _value(given["value"])
    low, high = given.get("min_value"), given.get("max_value")
    least = "more than" if given.get("strict_min") is True else "at least"
    most = "less than" if given.get("strict_max") is True else "at most"
    if low is not None and high is not None:
        if (least, most) == ("at least", "at most"):
            return _value(low) if low == high else f"between {_value(low)} and {_value(high)}"
        return f"{least} {_value(low)} and {most} {_value(high)}"
    if low is not None:
        return f"{least} {_value(low)}"
    if high is not None:
        return f"{most} {_value(high)}"
    raise _UnknownParametersError


def _value(value: object) -> str:
    """A parameter's value: numbers with thousands separators, times as they are."""
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _set(given: Parameters) -> str:
    values = given.get("value_set")
    if not isinstance(values, list):
        raise _UnknownParametersError
    whole = len(values) - (values[-1:] == ["…"])  # as `parse_parameters` marks one that was cut
    listed = [json.dumps(value, ensure_ascii=False) for value in values[: min(whole, MAX_LISTED)]]
    if whole < len(values):
        listed.append("…")
    elif whole > MAX_LISTED:
        listed.append(f"{whole - MAX_LISTED:,} more")
    return ", ".join(listed) or "an empty set"


def _text(given: Parameters, name: str) -> str:
    if not isinstance(value := given.get(name), str):
        raise _UnknownParametersError
    return value


def _pair(column: str) -> tuple[str, str]:
    left, right = column.split(",")
    return left, right


def _greater(column: str, given: Parameters) -> str:
    left, right = _pair(column)
    return f"{left} is {'at least' if given.get('or_equal') is True else 'greater than'} {right}"


def format_whole(seconds: int) -> str:
    """A length of time in the greatest unit that divides it: `36 h`."""
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return f"{seconds // size:,} {unit}"


def _maximum(column: str, given: Parameters) -> str:
    if isinstance(age := given.get("max_age"), str):
        return f"the newest {column} is at most {format_whole(int(parse_duration(age).total_seconds()))} old"
    return f"the largest {column} is {_bounds(given)}"


def _statistic(what: str) -> Callable[[str, Parameters], str]:
    return lambda column, given: f"{what} {column} is {_bounds(given)}"


_SENTENCES: Mapping[str, Callable[[str, Parameters], str]] = MappingProxyType(
    {
        "expect_column_values_to_not_be_null": lambda c, _: f"{c} is never null",
        "expect_column_values_to_be_null": lambda c, _: f"{c} is always null",
        "expect_column_values_to_be_between": lambda c, given: f"{c} is {_bounds(given)}",
        "expect_column_values_to_be_in_set": lambda c, given: f"{c} is one of {_set(given)}",
        "expect_column_values_to_not_be_in_set": lambda c, given: f"{c} is none of {_set(given)}",
        "expect_column_values_to_match_regex": lambda c, given: f"{c} matches {_text(given, 'regex')}",
        "expect_column_values_to_not_match_regex": lambda c, given: f"{c} does not match {_text(given, 'regex')}",
        "expect_column_value_lengths_to_equal": _statistic("the length of"),
        "expect_column_value_lengths_to_be_between": _statistic("the length of"),
        "expect_column_pair_values_a_to_be_greater_than_b": _greater,
        "expect_column_pair_values_to_be_equal": lambda c, _: "{} equals {}".format(*_pair(c)),
        "expect_column_values_to_be_unique": lambda c, _: f"{c} is unique",
        "expect_compound_columns_to_be_unique": lambda c, _: f"the combination of {c.replace(',', ', ')} is unique",
        "expect_column_proportion_of_unique_values_to_be_between": _statistic("the share of distinct values of"),
        "expect_column_proportion_of_non_null_values_to_be_between": _statistic("the share of non-null values of"),
        "expect_column_unique_value_count_to_be_between": _statistic("the number of distinct values of"),
        "expect_column_distinct_values_to_be_in_set": lambda c, given: f"{c} has only values of {_set(given)}",
        "expect_column_distinct_values_to_contain_set": lambda c, given: f"{c} has each value of {_set(given)}",
        "expect_column_distinct_values_to_equal_set": lambda c, given: f"{c} has exactly the values {_set(given)}",
        "expect_column_mean_to_be_between": _statistic("the mean of"),
        "expect_column_stdev_to_be_between": _statistic("the standard deviation of"),
        "expect_column_sum_to_be_between": _statistic("the sum of"),
        "expect_column_median_to_be_between": _statistic("the median of"),
        "expect_column_min_to_be_between": _statistic("the smallest"),
        "expect_column_max_to_be_between": _maximum,
        "expect_table_row_count_to_be_between": lambda _, given: f"the number of rows is {_bounds(given)}",
        "expect_table_row_count_to_equal": lambda _, given: f"the number of rows is {_bounds(given)}",
    }
)
"""A sentence for each type of `EXPECTATION_TYPES`."""
