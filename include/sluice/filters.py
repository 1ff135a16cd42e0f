"""PyIceberg's predicates behind typed functions: their pydantic signatures hide how they are meant to be called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, EqualTo, GreaterThan, In, LessThanOrEqual, Or

__all__ = ["AlwaysFalse", "And", "BooleanExpression", "Or", "above", "any_of", "at_most", "equal", "one_of"]


def equal(column: str, value: Any) -> BooleanExpression:
    """`column = value`."""
    return EqualTo(column, value)  # type: ignore[call-arg, misc, unused-ignore]


def above(column: str, value: Any) -> BooleanExpression:
    """`column > value`."""
    return GreaterThan(column, value)  # type: ignore[call-arg, misc, unused-ignore]


def at_most(column: str, value: Any) -> BooleanExpression:
    """`column <= value`."""
    return LessThanOrEqual(column, value)  # type: ignore[call-arg, misc, unused-ignore]


def one_of(column: str, values: Iterable[Any]) -> BooleanExpression:
    """`column IN (values)`."""
    return In(column, list(values))  # type: ignore[call-arg, misc, unused-ignore]


def any_of(wanted: Sequence[BooleanExpression]) -> BooleanExpression:
    """One of these, or several: as a balanced tree, for what PyIceberg does with one is as deep as that."""
    if len(wanted) < 2:
        return wanted[0] if wanted else AlwaysFalse()
    half = len(wanted) // 2
    return Or(any_of(wanted[:half]), any_of(wanted[half:]))
