"""Expectations as ODCS's quality rules: a library metric where it means the same, else a rule for Great Expectations.

Sluice checks each batch, not the whole table: row counts and uniqueness are never written as library metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from open_data_contract_standard.model import DataQuality, SchemaProperty

from sluice.contract.document import parse_document
from sluice.contract.expectations import EXPECTATION_TYPES, Expectation
from sluice.contract.values import quote
from sluice.odcs.standard_file import own_property, own_values

ENGINE = "greatExpectations"
EXPECT = "expect_column_values_to_"
_SETTINGS = ("severity", "drift", "max_age")
_SHARE = ("mustBeLessThan", "mustBeLessOrEqualTo")
_OPERATORS = (
    "mustBe",
    "mustNotBe",
    "mustBeGreaterThan",
    "mustBeGreaterOrEqualTo",
    *_SHARE,
    "mustBeBetween",
    "mustNotBeBetween",
)
_LENGTHS = {"min_value": "minLength", "max_value": "maxLength"}
READ_OPTIONS = frozenset(
    {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "pattern", "timezone", *_LENGTHS.values()}
)
"""Options of a property's type that the type or an expectation is made of, besides `format`."""

Rule = dict[str, Any]
"""An expectation as the contract has it."""


class NoCounterpartError(Exception):
    """A rule that no expectation is like; the text says why."""


def write_rule(position: int, rule: Rule, column: str | None) -> DataQuality:
    """Return the quality rule of an expectation.

    Args:
        position: Its place among the contract's expectations, from 1.
        rule: The expectation.
        column: The column whose rule it becomes; None for a rule of the whole object.
    """
    kept = {name: rule[name] for name in _SETTINGS if rule.get(name) not in (None, "warn")}
    given = {name: each for name, each in rule.items() if name not in ("type", *_SETTINGS)}
    severity = "warning" if rule.get("severity", "warn") == "warn" else "error"
    common = {"severity": severity, "customProperties": own_property({"position": position, **kept})}
    if column and kept.keys() <= {"severity"} and (library := _as_library(rule["type"], given)):
        found = DataQuality(**library, **common)
        if read_rule(found, column) == {"type": rule["type"], **given, **kept}:
            return found
    body = {"type": rule["type"], "kwargs": given}
    return DataQuality(type="custom", engine=ENGINE, implementation=body, **common)


def _as_library(kind: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """The library's metric; whoever calls it checks that reading it gives the same expectation."""
    arguments: dict[str, Any] | None = None
    match kind.removeprefix(EXPECT):
        case "not_be_null":
            metric = "nullValues"
        case "be_in_set":
            metric, arguments = "invalidValues", {"validValues": given["value_set"]}
        case "match_regex":
            metric, arguments = "invalidValues", {"pattern": given["regex"]}
        case _:
            return None
    share = given.get("mostly")
    if share is None:
        return {"type": "library", "metric": metric, "arguments": arguments, "mustBe": 0}
    percent = float(100 - 100 * Decimal(str(share)))
    limit = {"mustBeLessOrEqualTo": int(percent) if percent.is_integer() else percent, "unit": "percent"}
    return {"type": "library", "metric": metric, "arguments": arguments, **limit}


def read_rule(rule: DataQuality, column: str | None) -> Rule:
    """Return the expectation of a quality rule.

    Args:
        rule: The rule.
        column: The column whose rule it is; None for a rule of the whole object.

    Raises:
        NoCounterpartError: There is none.
    """
    own = own_values(rule.customProperties, "quality")
    kept = {name: own[name] for name in _SETTINGS if name in own}
    kind = rule.type or ("library" if rule.metric or rule.rule else "text")
    if kind == "library":
        return {**_read_library(rule, column), **kept}
    if kind == "custom" and re.sub(r"[^a-z]", "", (rule.engine or "").lower()) == ENGINE.lower():
        return {**_read_expectation(rule.implementation, column), **kept}
    why = {"custom": f"for {rule.engine}", "text": "text only"}.get(kind, kind)
    raise NoCounterpartError(why)


def _read_library(rule: DataQuality, column: str | None) -> Rule:
    metric, arguments = rule.metric or rule.rule, rule.arguments or {}
    if column is None:
        if metric == "duplicateValues" and isinstance(columns := arguments.get("properties"), list):
            return {"type": "expect_compound_columns_to_be_unique", "column_list": columns, **_none_fails(rule)}
        raise NoCounterpartError("of the whole table: expectations check each batch")
    rest: Rule
    match metric:
        case "nullValues":
            kind, rest = "not_be_null", {}
        case "duplicateValues":
            return {"type": f"{EXPECT}be_unique", "column": column, **_none_fails(rule)}
        case "missingValues" if isinstance(missing := arguments.get("missingValues"), list):
            values = [each for each in missing if each is not None]
            kind, rest = ("not_be_in_set", {"value_set": values}) if values else ("not_be_null", {})
        case "invalidValues" if isinstance(valid := arguments.get("validValues"), list) and "pattern" not in arguments:
            # Great Expectations checks no nulls.
            kind, rest = "be_in_set", {"value_set": [each for each in valid if each is not None]}
        case "invalidValues" if isinstance(pattern := arguments.get("pattern"), str) and "validValues" not in arguments:
            kind, rest = "match_regex", {"regex": pattern}
        case _:
            raise NoCounterpartError("no such expectation")
    return {"type": f"{EXPECT}{kind}", "column": column, **rest, **_share(rule)}


def _none_fails(rule: DataQuality) -> Rule:
    if found := _share(rule):
        raise NoCounterpartError(f"{found['mostly']:g} of the values: duplicates can't be counted so")
    return {}


def _share(rule: DataQuality) -> Rule:
    """The share of values that must pass; nothing if all must."""
    given = {name: getattr(rule, name) for name in _OPERATORS if getattr(rule, name) is not None}
    if len(given) != 1:
        raise NoCounterpartError("it has not one bound" if given else "it has no bound")
    ((operator, bound),) = given.items()
    if operator in ("mustBe", "mustBeLessOrEqualTo") and bound == 0 and not isinstance(bound, bool):
        return {}
    if operator not in _SHARE or rule.unit != "percent" or not 0 < bound <= 100:
        raise NoCounterpartError("its bound is neither 0 nor a percentage that must not be exceeded")
    share = float(1 - Decimal(str(bound)) / 100)
    if not share:
        raise NoCounterpartError("any value passes")
    return {"mostly": share}


def _read_expectation(implementation: str | dict[str, Any] | None, column: str | None) -> Rule:
    body: Any = implementation
    if isinstance(body, str):
        parsed = parse_document(body.encode(errors="replace"), "implementation")
        if parsed.problems:
            raise NoCounterpartError(f"its implementation {parsed.problems[0].message}")
        body = parsed.data
    kind: object = body.get("type") or body.get("expectation_type") if isinstance(body, dict) else None
    if not isinstance(kind, str) or kind not in EXPECTATION_TYPES:
        raise NoCounterpartError(f"Sluice runs no {quote(kind)}" if kind else "its implementation names no type")
    kwargs = body.get("kwargs") or {}
    if not isinstance(kwargs, dict) or not all(isinstance(each, str) for each in kwargs):
        raise NoCounterpartError("its kwargs are no map")
    names = {each.replace("_", "").lower(): each for each in EXPECTATION_TYPES[kind].parameters}
    # The standard writes minValue.
    given = {names.get(str(name).lower(), str(name)): each for name, each in kwargs.items()}
    if column and EXPECTATION_TYPES[kind].columns == ("column",):
        given = {"column": column, **given}
    return {"type": kind, **{name: each for name, each in given.items() if name not in ("type", *_SETTINGS)}}


def position_of(rule: DataQuality) -> float:
    """Return the rule's place among the contract's expectations; those of other authors come last."""
    place = own_values(rule.customProperties, "quality").get("position")
    return place if isinstance(place, int) else float("inf")


def rules_of_options(column: SchemaProperty, name: str) -> Iterator[tuple[str, Rule]]:
    """Yield the expectations that the bounds of a property's type ask for, each with the fields it was made of.

    Args:
        column: The property.
        name: Its column.
    """
    options = {each: value for each, value in (column.logicalTypeOptions or {}).items() if value is not None}
    bounds = {
        "min_value": ("minimum", "exclusiveMinimum", "strict_min"),
        "max_value": ("maximum", "exclusiveMaximum", "strict_max"),
    }
    rule: Rule = {}
    for bound, (inclusive, exclusive, strict) in bounds.items():
        if inclusive in options:
            rule[bound] = options[inclusive]
        elif exclusive in options:
            rule |= {bound: options[exclusive], strict: True}
    if rule:
        used = ", ".join(each for each in options if each.lower().endswith(("minimum", "maximum")))
        yield used, {"type": f"{EXPECT}be_between", "column": name, **rule}
    lengths = {bound: options[each] for bound, each in _LENGTHS.items() if each in options}
    if lengths:
        used = ", ".join(each for each in _LENGTHS.values() if each in options)
        yield used, {"type": "expect_column_value_lengths_to_be_between", "column": name, **lengths}
    if "pattern" in options:
        yield "pattern", {"type": f"{EXPECT}match_regex", "column": name, "regex": options["pattern"]}
    if column.enum:
        yield "enum", {"type": f"{EXPECT}be_in_set", "column": name, "value_set": [each.value for each in column.enum]}
    if column.unique and not column.primaryKey:
        yield "unique", {"type": f"{EXPECT}be_unique", "column": name}


def columns_of(rule: Rule) -> tuple[str, ...]:
    """Return the columns that an expectation is about."""
    return Expectation.model_validate(rule).columns
