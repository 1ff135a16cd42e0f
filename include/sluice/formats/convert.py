"""Fit: a decoded value becomes what the columns want of it, field by field by name.

Numbers never lose a digit; a text that is read as a decimal is rounded to its scale, as JSON's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.internal_columns import dotted, last_of_each
from sluice.formats.logical_types import read_text
from sluice.kafka.registry import WriterSchema

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

    @property
    def told(self) -> str:
        """With the field, to follow the schema's name."""
        return f"field {self.path!r} {self.words}" if self.path else self.words


def references_of(schema: WriterSchema) -> tuple[tuple[str, str], ...]:
    """What a schema refers to, name and text, what is needed first coming first.

    Raises:
        UnfitError: The registry does not have all of it.
    """
    if schema.lacking:
        raise UnfitError("", f"there is a reference to {schema.lacking}, which the registry does not have any more")
    return schema.references


@contextmanager
def reading_schema() -> Iterator[None]:
    """Whatever a schema makes its reader raise becomes UnfitError: one bad schema is not the others' end.

    What is the fault of no schema (a full disk, no memory, a JVM that is gone) stays what it is: it may pass, and would
    set good records apart.
    """
    try:
        yield
    except (UnfitError, KeyboardInterrupt, SystemExit, OSError, MemoryError, ImportError):
        raise
    except BaseException as error:  # a panic of the Rust library is no Exception
        if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):  # no answer of the JVM
            raise
        raise UnfitError("", f"there is something that can't be read ({type(error).__name__})") from error


Change = Callable[[Column], Column]
Loss = Callable[[Column, Column], Column]
"""Whether a value became nothing, given what was made of it."""
Meaning = Callable[[str, T.DataType, T.DataType], Change | None]
"""What the writer's schema says of a number or a moment, given its path, its type and the wanted one: how it becomes
that, or null."""
_READABLE = (T.DateType, T.TimestampType, T.TimestampNTZType, T.DecimalType)


def plain(_path: str, _have: T.DataType, _want: T.DataType) -> None:
    """Of a schema whose types say all there is."""


def fit(value: Column, have: T.DataType, want: T.DataType, means: Meaning = plain) -> Column:
    """The value as the wanted type.

    A field that the value's type lacks is null, one that nobody wants is left out. A type changes only where every
    value survives it: int to long, float to double, a number to a decimal with room for all its digits. What is read
    from a text, or by what the schema says it means, is null where it is not that: see `lost`.

    Raises:
        UnfitError: for any other difference.
    """
    changed = _change(have, want, "", means)
    return changed(value) if changed else value


def check(have: T.DataType, want: T.DataType, means: Meaning = plain) -> None:
    """Raise UnfitError where `fit` would: that takes no JVM."""
    _change(have, want, "", means)


def lost(
    value: Column, made: Column, have: T.DataType, want: T.DataType, means: Meaning = plain
) -> Iterator[tuple[str, str, Column]]:
    """Each path whose value may have become nothing: path, wanted type, and whether it is so in a record.

    Args:
        made: what `fit` made of the value.
    """
    for path, kind, is_lost in _losses(have, want, means, ""):
        yield path, kind, is_lost(value, made)


def _losses(have: T.DataType, want: T.DataType, means: Meaning, path: str) -> Iterator[tuple[str, str, Loss]]:
    """As `lost`, of whatever value it is asked for."""
    if isinstance(want, T.StructType) and isinstance(have, T.StructType):
        for field in want.fields:
            if (name := field.name) in have.names:
                for inner, kind, is_lost in _losses(have[name].dataType, field.dataType, means, dotted(path, name)):
                    yield inner, kind, _of_field(name, is_lost)
    elif isinstance(want, T.ArrayType) and isinstance(have, T.ArrayType):
        for inner, kind, is_lost in _losses(have.elementType, want.elementType, means, f"{path}[]"):
            yield inner, kind, _of_some(is_lost)
    elif isinstance(want, T.MapType) and isinstance(have, T.MapType):
        for inner, kind, is_lost in _losses(have.valueType, want.valueType, means, f"{path}{{}}"):
            yield inner, kind, _of_some(is_lost, lambda it: F.map_values(last_of_each(it)))
    elif _reading(have, want, path, means):
        yield path, want.simpleString(), lambda value, made: value.isNotNull() & made.isNull()


def _of_field(name: str, is_lost: Loss) -> Loss:
    return lambda value, made: is_lost(value.getField(name), made.getField(name))


def _of_some(is_lost: Loss, items: Change = lambda value: value) -> Loss:
    """Whether it is so of some item of a list."""

    def some(value: Column, made: Column) -> Column:
        flags = F.zip_with(items(value), items(made), lambda one, other: F.coalesce(is_lost(one, other), F.lit(False)))
        return F.exists(flags, lambda flag: flag)

    return some


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


def _change(have: T.DataType, want: T.DataType, path: str, means: Meaning) -> Change | None:
    """How a value becomes the wanted type; None where it is of it."""
    if isinstance(want, T.StructType) and isinstance(have, T.StructType):
        return _struct(have, want, path, means)
    if isinstance(want, T.ArrayType) and isinstance(have, T.ArrayType):
        element = _change(have.elementType, want.elementType, f"{path}[]", means)
        return (lambda c: F.transform(c, element)) if element else None
    if isinstance(want, T.MapType) and isinstance(have, T.MapType):
        return _map(have, want, path, means)
    if read := _reading(have, want, path, means):
        return read
    if have == want or (isinstance(have, T.StringType) and isinstance(want, T.StringType)):
        return None
    if _widens(have, want):
        return lambda c: c.cast(want)
    raise _unfit(path, have, want)


def _unfit(path: str, have: T.DataType, want: T.DataType) -> UnfitError:
    return UnfitError(path, f"is {have.simpleString()}, and its column {want.simpleString()}")


def narrowed(have: T.DecimalType, want: T.DataType, path: str) -> Change:
    """How a decimal that was read with more digits than its type has becomes the wanted type, null where it has more.

    Raises:
        UnfitError: its type does not become the wanted one.
    """
    if have != want and not _widens(have, want):
        raise _unfit(path, have, want)
    return lambda c: c.try_cast(have).cast(want)


def _reading(have: T.DataType, want: T.DataType, path: str, means: Meaning) -> Change | None:
    """How a value is read as a type that not every value is of; None where there is no such way."""
    if isinstance(have, T.StringType) and isinstance(want, _READABLE):
        return lambda c: read_text(c, want)
    if (type(have) in _WHOLE and isinstance(want, _READABLE)) or isinstance(have, _READABLE):
        return means(path, have, want)
    return None


def _struct(have: T.StructType, want: T.StructType, path: str, means: Meaning) -> Change | None:
    steps: list[tuple[T.StructField, Change]] = []
    same = have.names == want.names
    for field in want.fields:
        inner = dotted(path, field.name)
        alike = [each for each in have.fields if each.name.lower() == field.name.lower()]
        if len(alike) > 1:
            raise UnfitError(inner, "is there in two spellings, which Spark tells not apart")
        if not alike or alike[0].name != field.name:
            steps.append((field, lambda _, kind=field.dataType: F.lit(None).cast(kind)))  # type: ignore[misc]
            continue
        change = _change(alike[0].dataType, field.dataType, inner, means)
        same = same and change is None
        steps.append((field, lambda c, n=field.name, f=change: f(c.getField(n)) if f else c.getField(n)))  # type: ignore[misc]
    if same:
        return None
    return lambda c: F.when(c.isNotNull(), F.struct(*[step(c).alias(field.name) for field, step in steps]))


def _map(have: T.MapType, want: T.MapType, path: str, means: Meaning) -> Change:
    value = _change(have.valueType, want.valueType, f"{path}{{}}", means)
    if have.keyType == want.keyType:
        return (lambda c: F.transform_values(last_of_each(c), lambda _, v: value(v))) if value else last_of_each
    whole = isinstance(have.keyType, T.DecimalType) and have.keyType.scale == 0
    if not (isinstance(want.keyType, T.StringType) and (whole or type(have.keyType) in (*_WHOLE, T.BooleanType))):
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
