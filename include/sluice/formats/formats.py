"""The formats by the contract's name: each adds the wanted fields, and why they could not be read, to staged records.

A format maps (staged records, wanted fields, key or value) to the records with `RecordPart.fields` and `.problem`; a
new one is added here without changing a step. None of them runs row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.avro import add_avro_fields
from sluice.formats.internal_columns import Expression, RecordPart, problem
from sluice.formats.json import records
from sluice.formats.json.connect import add_connect_fields
from sluice.formats.logical_types import convert_number, read_text
from sluice.formats.protobuf import add_protobuf_fields

Format = Callable[[DataFrame, T.StructType, RecordPart], DataFrame]
ScalarConversion = Callable[[Column, T.DataType], Column]


def _scalar(decode: Expression, expected: str, convert: ScalarConversion = convert_number) -> Format:
    """A format whose key or value is one scalar.

    Args:
        decode: From bytes to the scalar; null if they are not of the format.
        expected: What the bytes should be, for the error text.
        convert: From the scalar to the wanted type; null if it is not of that type.
    """

    def add_fields(frame: DataFrame, wanted: T.StructType, part: RecordPart) -> DataFrame:
        target = wanted[part.root].dataType if part.root in wanted.names else T.BinaryType()
        raw = F.col(part.raw)
        decoded = decode(raw)
        value = decoded if isinstance(target, T.BinaryType) else convert(decoded, target)
        frame = frame.withColumn(part.fields, F.struct(value.alias(part.root)))
        detail = f"the {part.raw} is not {expected}, or cannot be read as {target.simpleString()}"
        is_unread = raw.isNotNull() & F.col(part.fields)[part.root].isNull()
        return frame.withColumn(part.problem, F.when(is_unread, problem(detail, part.root)))

    return add_fields


def _integer(length: int) -> Expression:
    """Decodes what Kafka's serializers write: two's complement, the most significant byte first."""
    bits = 8 * length

    def decode(raw: Column) -> Column:
        number = F.conv(F.hex(raw), 16, -10).cast("long")
        if bits < 64:
            number = F.when(number >= 1 << (bits - 1), number - (1 << bits)).otherwise(number)
        return F.when(F.length(raw) == length, number)

    return decode


def _utf8(raw: Column) -> Column:
    text = raw.cast("string")
    return F.when(F.is_valid_utf8(text), text)


FORMATS: dict[str, Format] = {
    "json": records.add_json_fields,
    "json_connect": add_connect_fields,
    "json_schema": records.add_json_schema_fields,
    "avro": add_avro_fields,
    "protobuf": add_protobuf_fields,
    "string": _scalar(_utf8, "UTF-8 text", read_text),
    "bytes": _scalar(lambda raw: raw, "bytes", read_text),
    "int": _scalar(_integer(4), "an integer of 4 bytes"),
    "long": _scalar(_integer(8), "an integer of 8 bytes"),
}
"""Formats by the contract's `value.format` and `key.format`."""
