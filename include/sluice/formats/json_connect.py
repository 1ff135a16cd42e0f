"""JSON that brings its own schema, as Kafka Connect's JsonConverter writes it: `{"schema": …, "payload": …}`.

The payload is read as plain JSON is. The schema beside it says what JSON can't: that a text is a decimal's bytes, that
a number is days or milliseconds. It may differ from record to record, so it is read with each, and only as far as a
column asks for it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats import logical_types
from sluice.formats.internal_columns import CORRUPT, Side, problem
from sluice.formats.json_object import ADDED, READ, unread, with_object
from sluice.formats.json_values import Leaves, decimal_in, text_of, told

SCHEMA, PAYLOAD = "schema", "payload"
_MOST_DIGITS, _MOST_BYTES = 38, 16


def connect_fields(frame: DataFrame, wanted: T.StructType, side: Side) -> DataFrame:
    """Add the wanted fields of the payload; no fields, and no problem, where the payload is null."""
    whole = side.whole in wanted.names
    # Without fields to read it still must be an object; a struct needs one to be made of.
    fields_wanted = wanted if wanted.fields else T.StructType([T.StructField(CORRUPT, T.StringType())])
    want = wanted[side.whole].dataType if whole else fields_wanted
    envelope = T.StructType([T.StructField(SCHEMA, _node([want])), T.StructField(PAYLOAD, LEAVES.parsed_as(want))])
    frame = with_object(frame, F.col(side.raw), envelope, side)
    schema, payload = F.col(READ)[SCHEMA], F.col(READ)[PAYLOAD]
    made = LEAVES.made(payload, schema, want)
    fields = F.when(payload.isNotNull(), F.struct(made.alias(side.whole)) if whole else made)
    frame = frame.withColumn(side.fields, fields)
    made = F.col(side.fields)[side.whole] if whole else F.col(side.fields)
    keys = F.json_object_keys(F.col(side.raw).cast("string"))
    both = F.coalesce(F.array_contains(keys, SCHEMA) & F.array_contains(keys, PAYLOAD), F.lit(False))
    words = '{"schema": …, "payload": …}'
    bare = problem(f"the {side.raw} is not {words}, which Kafka Connect writes with schemas.enable")
    flaws = [(~(schema.isNotNull() & payload.isNotNull()) & ~both, bare)]
    for path, kind, lost in LEAVES.lost(payload, made, want, side.whole if whole else ""):
        flaws.append((lost, problem(f"field {path!r} is by its schema nothing that becomes {kind}", path)))
    said = unread(side, envelope, f"{words} with a payload of the contract's types", flaws)
    return frame.withColumn(side.problem, said).drop(*ADDED)


def _node(wants: list[T.DataType]) -> T.StructType:
    """The type to parse a schema as: what has to be known of the schema of values of these types."""
    text = T.StringType()
    scale = T.StructType([T.StructField("scale", text)])
    node: dict[str, T.DataType] = {"type": text, "field": text, "name": text, "parameters": scale}
    asked = [w for w in wants if LEAVES.touched(w)]
    if inner := [f.dataType for w in asked if isinstance(w, T.StructType) for f in w]:
        node["fields"] = T.ArrayType(_node(inner))
    if inner := [w.elementType for w in asked if isinstance(w, T.ArrayType)]:
        node["items"] = _node(inner)
    if inner := [w.valueType for w in asked if isinstance(w, T.MapType)]:
        node["values"] = _node(inner)
    return T.StructType([T.StructField(name, kind) for name, kind in node.items()])


def _parse_as(want: T.DataType) -> T.DataType | None:
    logical = isinstance(want, (T.DecimalType, T.DateType, T.TimestampType, T.TimestampNTZType))
    return T.VariantType() if logical else None


def _make(value: Column, node: Column | None, want: T.DataType) -> Column:
    assert node is not None  # noqa: S101 - tells mypy that these records bring their schema
    if isinstance(want, T.DecimalType):
        return _decimal(value, node, want)
    return _date(value, node) if isinstance(want, T.DateType) else _moment(value, node, want)


def _decimal(value: Column, node: Column, want: T.DecimalType) -> Column:
    """Of a text, Connect's Decimal is the bytes of the unscaled number, in base64; of a number, it is that number."""
    raw = F.try_to_binary(text_of(value), F.lit("base64"))
    digits = F.hex(raw)
    sign = F.when(F.conv(F.substring(digits, 1, 1), 16, 10).cast("int") >= 8, "F").otherwise("0")
    padded = F.lpad(digits, 2 * _MOST_BYTES, sign)
    wide = T.DecimalType(_MOST_DIGITS, 0)
    half = F.lit(str(2**64)).cast(T.DecimalType(20, 0))
    high, low = F.conv(F.substring(padded, 1, 16), 16, -10), F.conv(F.substring(padded, 17, 16), 16, 10)
    # Of a negative number the upper half alone may have a digit more than there is room for.
    less = F.when(sign == "F", 1).otherwise(0)
    unscaled = F.try_add(F.try_multiply((high + less).cast(wide), half), low.cast(wide) - half * less)
    given = node["parameters"]["scale"].try_cast("int")
    scale = F.when(given.between(-_MOST_DIGITS, want.scale), given)
    scaled = F.concat(unscaled.cast("string"), F.lit("E"), (-scale).cast("string"))
    fits = F.length(raw).between(1, _MOST_BYTES)
    of_bytes = (node["name"] == logical_types.DECIMAL) & told(value, "STRING")
    return F.when(of_bytes, F.when(fits, scaled).try_cast(want)).when(
        (node["name"] != logical_types.DECIMAL) | given.isNull() | (given <= want.scale), decimal_in(value, want)
    )


def _date(value: Column, node: Column) -> Column:
    days = F.try_variant_get(value, "$", "int")
    named = F.coalesce(node["name"].isin(*logical_types.DATES), F.lit(False))
    return F.when(named & told(value, "BIGINT"), logical_types.date(days)).when(
        told(value, "STRING"), logical_types.read_text(text_of(value), T.DateType())
    )


def _moment(value: Column, node: Column, want: T.DataType) -> Column:
    units = F.try_variant_get(value, "$", "bigint")
    factor = F.lit(None).cast("long")
    for name, micros in logical_types.MOMENTS.items():
        factor = F.when(node["name"] == name, F.lit(micros).cast("long")).otherwise(factor)
    moment = logical_types.moment(units, factor, want)
    return F.when(told(value, "BIGINT"), moment).when(
        told(value, "STRING"), logical_types.read_text(text_of(value), want)
    )


LEAVES = Leaves(_parse_as, _make)
"""Types that JSON lacks are parsed as variants: these tell whether a value was a text or a number."""
