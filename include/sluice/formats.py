"""Formats: raw key and value bytes become fields, read as the types that the contract wants of them.

A format is one function from a frame of staged records, the wanted fields and the side (key or value) to the same
frame with two columns more, the struct of fields and what is wrong with it; FORMATS names them, so that a new one joins
without a change to any step. None of it runs row by row in Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.avro import avro_fields
from sluice.fields import CORRUPT, VALUE, Side, problem
from sluice.iceberg_types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.json_connect import connect_fields
from sluice.json_leaves import Leaves, decimal_in
from sluice.json_object import ADDED, READ, unread, with_object
from sluice.protobuf import protobuf_fields
from sluice.registry import WriterSchema
from sluice.semantics import number, read_json, read_text
from sluice.wire import framed

Format = Callable[[DataFrame, T.StructType, Side], DataFrame]
Read = Callable[[Column, T.DataType], Column]

_PRIMITIVES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampNTZType(),
    "timestamptz": T.TimestampType(),
    "string": T.StringType(),
    "uuid": T.StringType(),
    "binary": T.BinaryType(),
}


def spark_type(kind: IcebergType) -> T.DataType:
    """The Spark type that a column of `kind` is written from."""
    match kind:
        case Primitive(name):
            return _PRIMITIVES[name]
        case Decimal(precision, scale):
            return T.DecimalType(precision, scale)
        case Fixed(_):
            return T.BinaryType()
        case ListOf(element):
            return T.ArrayType(spark_type(element))
        case MapOf(key, value):
            return T.MapType(spark_type(key), spark_type(value))
        case Struct(fields):
            return T.StructType([T.StructField(n, spark_type(inner)) for n, inner in fields])


def _parse_as(want: T.DataType) -> T.DataType | None:
    if isinstance(want, T.DecimalType):
        return T.VariantType()
    return T.StringType() if isinstance(want, (T.DateType, T.TimestampType, T.TimestampNTZType)) else None


def _make(value: Column, _: Column | None, want: T.DataType) -> Column:
    return decimal_in(value, want) if isinstance(want, T.DecimalType) else read_json(value, want)


LEAVES = Leaves(_parse_as, _make)
"""Spark's parser would write out a decimal with an exponent of nine digits, and read a time as today's. As a text it
would give a number what a double keeps of it, so that decimals are parsed as variants."""


def json_fields(frame: DataFrame, wanted: T.StructType, side: Side = VALUE) -> DataFrame:
    """Add the wanted fields of a JSON object: one parse with a schema, whatever the number of columns."""
    return _json(frame, F.col(side.raw), wanted, side)


def _json_schema(frame: DataFrame, wanted: T.StructType, side: Side) -> DataFrame:
    """Add the wanted fields of JSON in Confluent's wire format: the prefix is checked, the object tells its fields."""
    found = framed(frame, side, "JSON")
    mine = [n for n, s in found.known.items() if not found.is_other(found.number == n, n, partial(title, s))]
    known = found.number.isin([*mine, -1])
    frame = _json(frame, F.when(known, found.payload), wanted, side).withColumns(found.other())
    return frame.withColumn(side.problem, F.coalesce(found.problem(F.lit(True)), F.col(side.problem)))


def title(schema: WriterSchema) -> str | None:
    """What RecordNameStrategy takes for a schema's name."""
    try:
        told = json.loads(schema.text)
    except (ValueError, RecursionError):
        return None
    title = told.get("title") if isinstance(told, dict) else None
    return title if isinstance(title, str) else None


def _json(frame: DataFrame, text: Column, wanted: T.StructType, side: Side) -> DataFrame:
    read = F.col(READ)
    asked = T.StructType([T.StructField(f.name, LEAVES.parsed_as(f.dataType), metadata=f.metadata) for f in wanted])
    frame = with_object(frame, text, asked, side)
    made = [LEAVES.made(read[f.name], None, f.dataType).alias(f.name) for f in wanted.fields]
    frame = frame.withColumn(side.fields, F.struct(*made) if made else F.struct(F.lit(None).alias(CORRUPT)))
    flaws = [
        (lost, problem(f"field {path!r} is nothing that becomes {kind}", path))
        for path, kind, lost in LEAVES.lost(read, F.col(side.fields), wanted)
    ]
    said = unread(side, asked, "a JSON object with fields of the contract's types", flaws)
    return frame.withColumn(side.problem, said).drop(*ADDED)


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
    "json": json_fields,
    "json_connect": connect_fields,
    "json_schema": _json_schema,
    "avro": avro_fields,
    "protobuf": protobuf_fields,
    "string": _plain(_text, "UTF-8 text", read_text),
    "bytes": _plain(lambda raw: raw, "bytes", read_text),
    "int": _plain(_whole_number(4), "a whole number of 4 bytes"),
    "long": _plain(_whole_number(8), "a whole number of 8 bytes"),
}
"""By the contract's `value.format` and `key.format`."""
