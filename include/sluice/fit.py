"""Fit: a decoded value becomes what the columns want of it, field by field by name, without ever losing a digit."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

_WHOLE: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
"""Whole numbers, and how many digits each can have."""


class UnfitError(Exception):
    """A schema that can't become what the columns want.

    Args:
        path: The field, dotted.
        words: What is wrong, to follow the field's name.
    """

    def __init__(self, path: str, words: str) -> None:
        super().__init__(f"{path} {words}")
        self.path, self.words = path, words


def fit(value: Column, have: T.DataType, want: T.DataType, path: str = "") -> Column:
    """The value as the wanted type.

    A field that the value's type lacks is null, one that nobody wants is left out. A type changes only where every
    value survives it: int to long, float to double, a number to a decimal with room for all its digits.

    Raises:
        UnfitError: for any other difference.
    """
    changed = _change(have, want, path)
    return changed(value) if changed else value


def text_in(value: Column, kind: T.DataType) -> Column | None:
    """Whether all strings in a value are UTF-8, null where there are none; None for a type without strings."""
    if isinstance(kind, T.StringType):
        return F.is_valid_utf8(value)
    if isinstance(kind, T.StructType):
        parts = [text_in(value.getField(f.name), f.dataType) for f in kind.fields]
    elif isinstance(kind, T.ArrayType):
        inner = kind.elementType
        if text_in(value, inner) is None:
            return None
        return F.forall(value, lambda each: F.coalesce(text_in(each, inner), F.lit(True)))  # type: ignore[arg-type]
    elif isinstance(kind, T.MapType):
        parts = [
            text_in(F.map_keys(value), T.ArrayType(kind.keyType)),
            text_in(F.map_values(value), T.ArrayType(kind.valueType)),
        ]
    else:
        return None
    known = [F.coalesce(part, F.lit(True)) for part in parts if part is not None]
    return reduce(lambda a, b: a & b, known) if known else None


def _change(have: T.DataType, want: T.DataType, path: str) -> Callable[[Column], Column] | None:
    """How a value becomes the wanted type; None where it is of it."""
    if isinstance(want, T.StructType) and isinstance(have, T.StructType):
        return _struct(have, want, path)
    if isinstance(want, T.ArrayType) and isinstance(have, T.ArrayType):
        element = _change(have.elementType, want.elementType, f"{path}[]")
        return (lambda c: F.transform(c, element)) if element else None
    if isinstance(want, T.MapType) and isinstance(have, T.MapType):
        return _map(have, want, path)
    if have == want or (isinstance(have, T.StringType) and isinstance(want, T.StringType)):
        return None
    if _widens(have, want):
        return lambda c: c.cast(want)
    raise UnfitError(path, f"is {have.simpleString()}, and its column {want.simpleString()}")


def _struct(have: T.StructType, want: T.StructType, path: str) -> Callable[[Column], Column] | None:
    steps: list[tuple[T.StructField, Callable[[Column], Column]]] = []
    same = have.names == want.names
    for field in want.fields:
        inner = f"{path}.{field.name}" if path else field.name
        alike = [each for each in have.fields if each.name.lower() == field.name.lower()]
        if len(alike) > 1:
            raise UnfitError(inner, "is there in two spellings, which Spark tells not apart")
        if not alike or alike[0].name != field.name:
            steps.append((field, lambda _, kind=field.dataType: F.lit(None).cast(kind)))  # type: ignore[misc]
            continue
        change = _change(alike[0].dataType, field.dataType, inner)
        same = same and change is None
        steps.append((field, lambda c, n=field.name, f=change: f(c.getField(n)) if f else c.getField(n)))  # type: ignore[misc]
    if same:
        return None
    return lambda c: F.when(c.isNotNull(), F.struct(*[step(c).alias(field.name) for field, step in steps]))


def _map(have: T.MapType, want: T.MapType, path: str) -> Callable[[Column], Column] | None:
    value = _change(have.valueType, want.valueType, f"{path}{{}}")
    if have.keyType == want.keyType:
        return (lambda c: F.transform_values(c, lambda _, v: value(v))) if value else None
    if not (isinstance(want.keyType, T.StringType) and type(have.keyType) in (*_WHOLE, T.BooleanType)):
        raise UnfitError(path, f"has keys of {have.keyType.simpleString()}, its column {want.keyType.simpleString()}")
    changed = value or (lambda v: v)
    return lambda c: F.transform_values(F.transform_keys(c, lambda k, _: k.cast("string")), lambda _, v: changed(v))


def _widens(have: T.DataType, want: T.DataType) -> bool:
    digits = _WHOLE.get(type(have))
    if digits and type(want) in _WHOLE:
        return digits < _WHOLE[type(want)]
    if isinstance(want, T.DecimalType):
        if isinstance(have, T.DecimalType):
            return want.scale >= have.scale and want.precision - want.scale >= have.precision - have.scale
        return bool(digits) and want.precision - want.scale >= digits  # type: ignore[operator]
    if isinstance(want, T.DoubleType):
        return isinstance(have, T.FloatType) or (bool(digits) and digits <= 10)  # type: ignore[operator]
    return isinstance(want, T.FloatType) and bool(digits) and digits <= 5  # type: ignore[operator]
