"""Checks of a contract's expectations: types, columns and parameters that Great Expectations accepts.

Called by `contract.contract`; each check adds all errors it finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sluice.contract.columns import KAFKA_TYPES
from sluice.contract.expectations import (
    EXPECTATION_TYPES,
    MAX_BETWEEN,
    NUMBERS,
    Expectation,
    is_number,
    to_column_value,
)
from sluice.contract.suggestions import did_you_mean
from sluice.contract.types import Decimal, IcebergType, Primitive, is_primitive
from sluice.contract.values import FieldErrors, quote

if TYPE_CHECKING:
    from sluice.contract.fields import ContractFields

_RANGE = ("min_value", "max_value", "strict_min", "strict_max")
_BOUNDS_ARE_VALUES = frozenset(
    {
        "expect_column_values_to_be_between",
        "expect_column_min_to_be_between",
        "expect_column_max_to_be_between",
        "expect_column_median_to_be_between",
    }
)
"""Types whose bounds are values of the column; the bounds of the others are numbers."""


def check_expectations(contract: ContractFields, errors: FieldErrors) -> None:
    """Add to `errors` what Great Expectations would reject, or a column can't have."""
    types = _types(contract)
    for index, each in enumerate(contract.expectations):
        if contract.auto and each.type in EXPECTATION_TYPES and each.columns and not types.keys() >= set(each.columns):
            continue  # it may be a column from the registry; those are checked later
        for field, message in find_errors(each, types):
            errors.add("expectations", index, *field, message=message)
        if each in contract.expectations[:index]:
            errors.add("expectations", index, message="is a duplicate")


def is_valid_for(each: Expectation, contract: ContractFields) -> bool:
    """Return whether an expectation is valid for the columns of another contract."""
    return not list(find_errors(each, _types(contract)))


def _types(contract: ContractFields) -> dict[str, IcebergType]:
    read = {column.name: column.type for column in contract.columns if not column.is_valid_to}
    return {**read, **KAFKA_TYPES}


_Errors = Iterable[tuple[tuple[str, ...], str]]
"""Field and message of each error."""


def find_errors(each: Expectation, types: Mapping[str, IcebergType]) -> _Errors:
    """Return what is wrong with an expectation about columns of these types: the field and the message."""
    if each.type not in EXPECTATION_TYPES:
        hint = did_you_mean(each.type, EXPECTATION_TYPES) or "; docs/reference/contract.md lists them"
        return [(("type",), f"{quote(each.type)} is not an expectation that Sluice supports{hint}")]
    known = [*each.kind.columns, *each.kind.parameters]
    hints = [*known, *Expectation.model_fields]
    unknown = [
        ((n,), f"{each.type} has no parameter {n!r}{did_you_mean(n, hints)}") for n in each.given if n not in known
    ]
    return unknown or [*_column_errors(each, types), *_severity_errors(each)] or [*_parameter_errors(each, types)]


def _column_errors(each: Expectation, types: Mapping[str, IcebergType]) -> _Errors:
    for name in each.kind.columns:
        given = each.given.get(name)
        several = name == "column_list"
        if given is None:
            yield (name,), "is required"
        elif several and not (isinstance(given, list) and len(given) > 1 and all(isinstance(c, str) for c in given)):
            yield (name,), f"must be a list of at least two columns, not {quote(given)}"
        elif not several and not isinstance(given, str):
            yield (name,), f"must be a column's name, not {quote(given)}"
        else:
            for column in given if several else [given]:
                if column not in types:
                    yield (name,), f"there is no column {column!r}{did_you_mean(column, types)}"
                elif not _applies_to(each.kind.column_kind, types[column]):
                    yield (name,), f"{each.type} does not apply to a column of type {types[column]}"


def _applies_to(column_kind: str, kind: IcebergType) -> bool:
    if column_kind == "any":
        return True
    if not is_primitive(kind) or kind == Primitive("binary"):
        return False
    number = isinstance(kind, Decimal) or str(kind) in NUMBERS
    ordered = number or str(kind) in {"date", "timestamp", "timestamptz"}  # Great Expectations has no bounds for text
    return {"flat": True, "number": number, "ordered": ordered, "text": str(kind) in {"string", "uuid"}}[column_kind]


def _severity_errors(each: Expectation) -> _Errors:
    if each.severity == "quarantine_rows":
        if not each.kind.by_row:
            yield ("severity",), "does not evaluate single rows, so it can't quarantine any: use warn or block"
        if "mostly" in each.given:
            yield (
                ("mostly",),
                "can't be used with quarantine_rows: all failing rows are quarantined; errors.max_ratio limits them",
            )
    if each.max_age and (each.type != MAX_BETWEEN or each.severity != "warn"):
        why = (
            f"needs {MAX_BETWEEN}" if each.type != MAX_BETWEEN else "can only warn: a batch that waits only gets older"
        )
        yield ("max_age",), why
    if each.drift and not (each.kind.is_statistic and "min_value" in each.kind.parameters):
        supported = ", ".join(
            name for name, k in EXPECTATION_TYPES.items() if k.is_statistic and "min_value" in k.parameters
        )
        yield ("drift",), f"needs a statistic with bounds: {supported}"
    bounds = [name for name in _RANGE if name in each.given]
    for name in ("drift", "max_age"):
        if getattr(each, name) and bounds:
            yield (name,), f"sets the bounds itself: remove {', '.join(bounds)}"
    if each.drift and each.max_age:
        yield ("drift",), "can't be combined with max_age"


def _parameter_errors(each: Expectation, types: Mapping[str, IcebergType]) -> _Errors:
    given = each.given
    for names in (n for n in each.kind.arguments if isinstance(n, tuple)):
        if all(given.get(n) is None for n in names) and not (each.drift or each.max_age):
            yield (names[0],), "is required" if len(names) == 1 else f"one of {' and '.join(names)} is required"
    kind = types[each.columns[0]] if each.columns else None
    bound_type = kind if kind is not None and each.type in _BOUNDS_ARE_VALUES else None
    if each.max_age and str(kind) not in {"timestamp", "timestamptz"}:
        yield ("max_age",), f"needs a column of type timestamptz or timestamp, not {kind}"
    for name, value in given.items():
        if name in each.kind.columns:
            continue
        message = _value_error(name, value, bound_type, kind)
        if message:
            yield (name,), message
    ends = [given[n] for n in ("min_value", "max_value") if given.get(n) is not None]
    if len(ends) == 2 and not any(_value_error("min_value", e, bound_type, kind) for e in ends):
        low, high = (to_column_value(e, bound_type) if bound_type is not None else e for e in ends)
        if low > high:
            yield ("max_value",), "is less than min_value"


def _value_error(name: str, value: Any, bound_type: IcebergType | None, kind: IcebergType | None) -> str | None:
    """Return what is wrong with the value of a parameter; None if it is valid.

    Args:
        name: the parameter.
        value: its value.
        bound_type: the type of bounds that are values of the column; None if bounds are numbers.
        kind: the column's type; None without a column.
    """
    number = is_number(value)
    valid, wanted = True, ""
    match name:
        case "mostly":
            valid, wanted = number and 0 < value <= 1, "a share, above 0 and up to 1"
        case "strict_min" | "strict_max" | "or_equal":
            valid, wanted = isinstance(value, bool), "true or false"
        case "value":
            valid, wanted = number and isinstance(value, int) and value >= 0, "a whole number from 0"
        case "min_value" | "max_value" if bound_type is not None:
            return None if to_column_value(value, bound_type) is not None else f"{quote(value)} is not a {bound_type}"
        case "min_value" | "max_value":
            valid, wanted = number, "a number"
        case "value_set" if isinstance(value, list) and value and kind is not None:
            invalid = [v for v in value if to_column_value(v, kind) is None]
            return f"{quote(invalid[0])} is not a {kind}" if invalid else None
        case "value_set":
            valid, wanted = False, "a list of values"
        case "regex":
            valid, wanted = isinstance(value, str) and bool(value) and not _is_broken(value), "a regular expression"
    return None if valid else f"must be {wanted}, not {quote(value)}"


def _is_broken(regex: str) -> bool:
    """Return whether a regex is broken in Java too, which allows more than Python."""
    try:
        re.compile(regex)
    except re.error as error:
        return error.msg.startswith(("missing )", "unbalanced", "unterminated character set", "nothing to repeat"))
    return False
