"""What must hold for the expectations of a contract: names, columns and values that Great Expectations would take.

Called by `sluice.contract` when a contract is read. Each check notes every flaw it finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sluice.contract.columns import KAFKA_TYPES
from sluice.contract.expectations import KINDS, NEWEST, NUMBERS, Expectation, is_number, typed
from sluice.contract.types import Decimal, IcebergType, Primitive, is_primitive
from sluice.contract.values import Flaws, nearest, shown

if TYPE_CHECKING:
    from sluice.contract.fields import ContractFields

_RANGE = ("min_value", "max_value", "strict_min", "strict_max")
_OF_VALUES = frozenset(
    {
        "expect_column_values_to_be_between",
        "expect_column_min_to_be_between",
        "expect_column_max_to_be_between",
        "expect_column_median_to_be_between",
    }
)
"""Those whose bounds are values of the column; the bounds of the others are numbers."""


def check_expectations(contract: ContractFields, flaws: Flaws) -> None:
    """Note in `flaws` whatever Great Expectations, or a column, would not take."""
    types = _types(contract)
    for index, each in enumerate(contract.expectations):
        if contract.auto and each.type in KINDS and each.columns and not types.keys() >= set(each.columns):
            continue  # the registry may know the column: what it gives is checked as well
        for field, message in _wrong(each, types):
            flaws.add("expectations", index, *field, message=message)
        if each in contract.expectations[:index]:
            flaws.add("expectations", index, message="stands twice")


def fits(each: Expectation, contract: ContractFields) -> bool:
    """Whether it is sound for the columns of another contract than the one it was read with."""
    return not list(_wrong(each, _types(contract)))


def _types(contract: ContractFields) -> dict[str, IcebergType]:
    read = {column.name: column.type for column in contract.columns if not column.ends}
    return {**read, **KAFKA_TYPES}


_Wrong = Iterable[tuple[tuple[str, ...], str]]


def _wrong(each: Expectation, types: Mapping[str, IcebergType]) -> _Wrong:
    if each.type not in KINDS:
        hint = nearest(each.type, KINDS) or "; docs/contracts.md lists them"
        return [(("type",), f"{shown(each.type)} is not an expectation that Sluice runs{hint}")]
    known = [*each.kind.columns, *each.kind.parameters]
    hints = [*known, *Expectation.model_fields]
    unknown = [((n,), f"{each.type} takes no {n!r}{nearest(n, hints)}") for n in each.given if n not in known]
    return unknown or [*_wrong_columns(each, types), *_wrong_severity(each)] or [*_wrong_values(each, types)]


def _wrong_columns(each: Expectation, types: Mapping[str, IcebergType]) -> _Wrong:
    for name in each.kind.columns:
        given = each.given.get(name)
        several = name == "column_list"
        if given is None:
            yield (name,), "is required"
        elif several and not (isinstance(given, list) and len(given) > 1 and all(isinstance(c, str) for c in given)):
            yield (name,), f"must be a list of two columns or more, not {shown(given)}"
        elif not several and not isinstance(given, str):
            yield (name,), f"must be a column's name, not {shown(given)}"
        else:
            for column in given if several else [given]:
                if column not in types:
                    yield (name,), f"there is no column {column!r}{nearest(column, types)}"
                elif not _fits(each.kind.of, types[column]):
                    yield (name,), f"{each.type} does not fit a column of type {types[column]}"


def _fits(of: str, kind: IcebergType) -> bool:
    if of == "any":
        return True
    if not is_primitive(kind) or kind == Primitive("binary"):
        return False
    number = isinstance(kind, Decimal) or str(kind) in NUMBERS
    ordered = number or str(kind) in {"date", "timestamp", "timestamptz"}  # Great Expectations bounds no text
    return {"flat": True, "number": number, "ordered": ordered, "text": str(kind) in {"string", "uuid"}}[of]


def _wrong_severity(each: Expectation) -> _Wrong:
    if each.severity == "quarantine_rows":
        if not each.kind.by_row:
            yield ("severity",), "it does not judge a row by itself, so no rows can be set apart: use warn or block"
        if "mostly" in each.given:
            yield ("mostly",), "all rows that fail are set apart; errors.max_ratio says how many may be"
    if each.max_age and (each.type != NEWEST or each.severity != "warn"):
        why = f"is for {NEWEST}" if each.type != NEWEST else "can only warn: a batch that waits never grows younger"
        yield ("max_age",), why
    if each.drift and not (each.kind.told and "min_value" in each.kind.parameters):
        fit = ", ".join(name for name, k in KINDS.items() if k.told and "min_value" in k.parameters)
        yield ("drift",), f"is for statistics with bounds: {fit}"
    bounds = [name for name in _RANGE if name in each.given]
    for name in ("drift", "max_age"):
        if getattr(each, name) and bounds:
            yield (name,), f"gives the bounds itself: leave out {', '.join(bounds)}"
    if each.drift and each.max_age:
        yield ("drift",), "and max_age exclude one another"


def _wrong_values(each: Expectation, types: Mapping[str, IcebergType]) -> _Wrong:
    given = each.given
    for names in (n for n in each.kind.takes if isinstance(n, tuple)):
        if all(given.get(n) is None for n in names) and not (each.drift or each.max_age):
            yield (names[0],), "is required" if len(names) == 1 else f"one of {' and '.join(names)} is required"
    kind = types[each.columns[0]] if each.columns else None
    of_values = kind if kind is not None and each.type in _OF_VALUES else None
    if each.max_age and str(kind) not in {"timestamp", "timestamptz"}:
        yield ("max_age",), f"needs a column of type timestamptz or timestamp, not {kind}"
    for name, value in given.items():
        if name in each.kind.columns:
            continue
        message = _wrong_value(name, value, of_values, kind)
        if message:
            yield (name,), message
    ends = [given[n] for n in ("min_value", "max_value") if given.get(n) is not None]
    if len(ends) == 2 and not any(_wrong_value("min_value", e, of_values, kind) for e in ends):
        low, high = (typed(e, of_values) if of_values is not None else e for e in ends)
        if low > high:
            yield ("max_value",), "is less than min_value"


def _wrong_value(name: str, value: Any, of_values: IcebergType | None, kind: IcebergType | None) -> str | None:
    """What is wrong with the value of a parameter; None where all is well."""
    number = is_number(value)
    right, wanted = True, ""
    match name:
        case "mostly":
            right, wanted = number and 0 < value <= 1, "a share, above 0 and up to 1"
        case "strict_min" | "strict_max" | "or_equal":
            right, wanted = isinstance(value, bool), "true or false"
        case "value":
            right, wanted = number and isinstance(value, int) and value >= 0, "a whole number from 0"
        case "min_value" | "max_value" if of_values is not None:
            return None if typed(value, of_values) is not None else f"{shown(value)} is no {of_values}"
        case "min_value" | "max_value":
            right, wanted = number, "a number"
        case "value_set" if isinstance(value, list) and value and kind is not None:
            strange = [v for v in value if typed(v, kind) is None]
            return f"{shown(strange[0])} is no {kind}" if strange else None
        case "value_set":
            right, wanted = False, "a list of values"
        case "regex":
            right, wanted = isinstance(value, str) and bool(value) and not _is_broken(value), "a regular expression"
    return None if right else f"must be {wanted}, not {shown(value)}"


def _is_broken(regex: str) -> bool:
    """Whether it is wrong in Java as well: Python does not know all of what is right there."""
    try:
        re.compile(regex)
    except re.error as error:
        return error.msg.startswith(("missing )", "unbalanced", "unterminated character set", "nothing to repeat"))
    return False
