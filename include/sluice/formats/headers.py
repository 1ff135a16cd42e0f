"""Reads columns from headers. In: staged headers, names with bytes. Out: a value, and why it can't be read."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.columns import Input
from sluice.formats.internal_columns import HEADERS, problem
from sluice.formats.logical_types import read_text


def read(each: Input, target: T.DataType) -> Column:
    """The last header of a name, as Kafka's `lastHeader` gives it; as a list all of them, null if there is none."""
    values = _values(each)
    if isinstance(target, T.ArrayType):
        return F.when(F.size(values) > 0, F.transform(values, lambda value: _read_as(value, target.elementType)))
    return _read_as(F.try_element_at(values, F.lit(-1)), target)


def find_problem(inputs: Mapping[Input, T.DataType]) -> Column:
    """The first header that can't be read as the type that a column or input wants; null if all can."""
    return F.coalesce(*(_find_problem(each, target) for each, target in inputs.items()))


def _find_problem(each: Input, target: T.DataType) -> Column:
    kind = target.elementType if isinstance(target, T.ArrayType) else target
    values = _values(each)
    read_values = values if isinstance(target, T.ArrayType) else F.array(F.try_element_at(values, F.lit(-1)))
    is_lost = F.exists(read_values, lambda value: value.isNotNull() & _read_as(value, kind).isNull())
    return F.when(is_lost, problem(f"a header {each.header!r} cannot be read as {kind.simpleString()}", each.source))


def _values(each: Input) -> Column:
    named = F.filter(F.col(HEADERS.raw), lambda header: header["key"] == F.lit(each.header))
    return F.transform(named, lambda header: header["value"])


def _read_as(value: Column, target: T.DataType) -> Column:
    """A header's bytes as they are, or its UTF-8 text as the wanted type; null if it can't be read."""
    text = value.cast("string")
    return value if isinstance(target, T.BinaryType) else read_text(F.when(F.is_valid_utf8(text), text), target)
