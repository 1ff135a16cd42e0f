"""Formats: raw key and value bytes become fields, read as the types that the contract wants of them.

A format is one function from a frame of staged records, the wanted fields and the side (key or value) to the same
frame with two columns more, the struct of fields and what is wrong with it; FORMATS names them, so that a new one joins
without a change to any step. None of it runs row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats import json as formats_json
from sluice.formats.avro import avro_fields
from sluice.formats.internal_columns import Side, problem
from sluice.formats.json_connect import connect_fields
from sluice.formats.logical_types import number, read_text
from sluice.formats.protobuf import protobuf_fields

Format = Callable[[DataFrame, T.StructType, Side], DataFrame]
Read = Callable[[Column, T.DataType], Column]


def _plain(convert: Callable[[Column], Column], words: str, read: Read = number) -> Format:
    """A format whose key or value is one thing: `convert` makes it, or null of what is none, `read` the wanted type."""

    def fields(frame: DataFrame, wanted: T.StructType, side: Side) -> DataFrame:
        target = wanted[side.whole].dataType if side.whole in wanted.names else T.BinaryType()
        raw = F.col(side.raw)
        made = convert(raw)
        one = made if isinstance(target, T.BinaryType) else read(made, target)
        frame = frame.withColumn(side.fields, F.struct(one.alias(side.whole)))
        said = problem(f"the {side.raw} is not {words}, or not one that fits a {target.simpleString()}", side.whole)
        return frame.withColumn(side.problem, F.when(raw.isNotNull() & F.col(side.fields)[side.whole].isNull(), said))

    return fields


def _whole_number(length: int) -> Callable[[Column], Column]:
    """Kafka's serializers write two's complement, the most significant byte first."""
    bits = 8 * length

    def convert(raw: Column) -> Column:
        number = F.conv(F.hex(raw), 16, -10).cast("long")
        if bits < 64:
            number = F.when(number >= 1 << (bits - 1), number - (1 << bits)).otherwise(number)
        return F.when(F.length(raw) == length, number)

    return convert


def _text(raw: Column) -> Column:
    text = raw.cast("string")
    return F.when(F.is_valid_utf8(text), text)


FORMATS: dict[str, Format] = {
    "json": formats_json.json_fields,
    "json_connect": connect_fields,
    "json_schema": formats_json._json_schema,
    "avro": avro_fields,
    "protobuf": protobuf_fields,
    "string": _plain(_text, "UTF-8 text", read_text),
    "bytes": _plain(lambda raw: raw, "bytes", read_text),
    "int": _plain(_whole_number(4), "a whole number of 4 bytes"),
    "long": _plain(_whole_number(8), "a whole number of 8 bytes"),
}
"""By the contract's `value.format` and `key.format`."""
