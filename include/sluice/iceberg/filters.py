"""PyIceberg's predicates behind typed functions: their pydantic signatures hide how they are meant to be called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    In,
    LessThan,
    LessThanOrEqual,
    Or,
)

__all__ = ["AlwaysFalse", "And", "BooleanExpression", "Or", "above", "at_most", "below", "equal", "one_of"]


def equal(column: str, value: Any) -> BooleanExpression:
    """`column = value`."""
    return EqualTo(column, value)  # type: ignore[call-arg, misc, unused-ignore]


def above(column: str, value: Any) -> BooleanExpression:
    """`column > value`."""
    return GreaterThan(column, value)  # type: ignore[call-arg, misc, unused-ignore]


def at_most(column: str, value: Any) -> BooleanExpression:
    """`column <= value`."""
    return LessThanOrEqual(column, value)  # type: ignore[call-arg, misc, unused-ignore]


def below(column: str, value: Any) -> BooleanExpression:
    """`column < value`."""
    return LessThan(column, value)  # type: ignore[call-arg, misc, unused-ignore]


def one_of(column: str, values: Iterable[Any]) -> BooleanExpression:
    """`column IN (values)`."""
    return In(column, list(values))  # type: ignore[call-arg, misc, unused-ignore]
