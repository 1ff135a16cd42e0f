"""Values inside JSON that are not left to Spark's parser: they are parsed as they were written, and understood after.

Where they stand, in structs, lists and maps, is the same for every JSON format; what they become is each format's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.internal_columns import decimal_of, dotted, last_of_each
from sluice.formats.json_object import TEXT


class Leaves(NamedTuple):
    """Which values are read apart, and how.

    Attributes:
        parse_as: The type to parse a value as that shall become another; None where it is left to Spark.
        make: From what was parsed, what the record's own schema says of it, if it brings one, and the wanted type to
            the value, null where it is none.
    """

    parse_as: Callable[[T.DataType], T.DataType | None]
    make: Callable[[Column, Column | None, T.DataType], Column]

    def touched(self, want: T.DataType) -> bool:
        """Whether anything in a type is read apart."""
        return self.parsed_as(want) != want

    def parsed_as(self, want: T.DataType) -> T.DataType:
        """The type to parse JSON as, of what shall become this type."""
        match want:
            case T.StructType(fields=fields):
                return T.StructType(
                    [T.StructField(f.name, self.parsed_as(f.dataType), metadata=f.metadata) for f in fields]
                )
            case T.ArrayType(elementType=element):
                return T.ArrayType(self.parsed_as(element))
            case T.MapType(keyType=key, valueType=value):
                return T.MapType(key, self.parsed_as(value))
        return self.parse_as(want) or want

    def made(self, value: Column, node: Column | None, want: T.DataType) -> Column:
        """What was parsed as the wanted type; null, or null within, where it does not become that."""
        if not self.touched(want) and not _holds_map(want):
            return value
        match want:
            case T.StructType(fields=fields):
                members = [self.made(value[f.name], _member(node, f), f.dataType).alias(f.name) for f in fields]
                return F.when(value.isNotNull(), F.struct(*members))
            case T.ArrayType(elementType=element):
                return F.transform(value, lambda each: self.made(each, _inner(node, "items"), element))
            case T.MapType(valueType=inner):
                value = last_of_each(value)
                if not self.touched(inner) and not _holds_map(inner):
                    return value
                return F.transform_values(value, lambda _, each: self.made(each, _inner(node, "values"), inner))
        return self.make(value, node, want)

    def lost(self, parsed: Column, made: Column, want: T.DataType, path: str = "") -> Iterator[tuple[str, str, Column]]:
        """Each path with a value that may have become nothing: path, wanted type, and whether it is so in a record."""
        if not self.touched(want):
            return
        match want:
            case T.StructType(fields=fields):
                for f in fields:
                    inner = dotted(path, f.name)
                    yield from self.lost(parsed[f.name], made[f.name], f.dataType, inner)
            case T.ArrayType(elementType=element):
                yield f"{path}[]", element.simpleString(), self._some_lost(parsed, made, element)
            case T.MapType(valueType=value):
                some = self._some_lost(F.map_values(last_of_each(parsed)), F.map_values(made), value)
                yield f"{path}{{}}", value.simpleString(), some
            case _:
                there = parsed.isNotNull()
                if isinstance(self.parse_as(want), T.VariantType):  # JSON's null is a variant, too
                    there = there & ~F.is_variant_null(parsed)
                yield path, want.simpleString(), there & made.isNull()

    def _some_lost(self, parsed: Column, made: Column, element: T.DataType) -> Column:
        def lost(one: Column, other: Column) -> Column:
            return reduce(or_, (F.coalesce(each, F.lit(False)) for _, _, each in self.lost(one, other, element)))

        return F.exists(F.zip_with(parsed, made, lost), lambda it: it)


def _member(node: Column | None, field: T.StructField) -> Column | None:
    """What a struct's schema says of a field."""
    return None if node is None else F.get(F.filter(node["fields"], lambda each: each["field"] == field.name), 0)


def _inner(node: Column | None, part: str) -> Column | None:
    return None if node is None else node[part]


def _holds_map(kind: T.DataType) -> bool:
    match kind:
        case T.StructType(fields=fields):
            return any(_holds_map(f.dataType) for f in fields)
        case T.ArrayType(elementType=element):
            return _holds_map(element)
    return isinstance(kind, T.MapType)


def told(value: Column, kind: str) -> Column:
    """Whether a variant is of a type whose name begins so."""
    return F.schema_of_variant(value).startswith(kind)


def text_of(value: Column) -> Column:
    """The text or number in a variant, as a text; null where it is neither."""
    return F.try_variant_get(value, "$", "string")


_EXACT = r"^-?0*[.]?0*(?:[0-9][.]?){1,15}0*(?:[.]0*)?(?:E-?[0-9]+)?$"


_LONG = r"[:,\[]\s*-?(?:[0-9.]{17,}[eE]|[0-9.]{40,})"
"""A number of more digits than a double keeps, though what is left of them may look like fewer."""


def decimal_in(value: Column, want: T.DecimalType) -> Column:
    """A variant's text or number as a decimal; null where it is none, or no longer has all its digits.

    A variant keeps 38 digits, but of a number with an exponent, or with more of them, only those of a double. Up to 15
    of them are what was written, unless the text that was parsed has a number of more.
    """
    text = text_of(value)
    exact = ~told(value, "DOUBLE") | (text.rlike(_EXACT) & ~F.col(TEXT).rlike(_LONG))
    return decimal_of(F.when(exact, text), want)
