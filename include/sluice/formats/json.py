"""TODO docstring of sluice.formats.json."""

from __future__ import annotations

import json
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.internal_columns import CORRUPT, VALUE, Side, problem
from sluice.formats.json_object import ADDED, READ, unread, with_object
from sluice.formats.json_values import Leaves, decimal_in
from sluice.formats.logical_types import read_json
from sluice.formats.wire_format import framed
from sluice.kafka.registry import WriterSchema


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
