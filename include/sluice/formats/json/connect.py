"""Reads JSON with an embedded schema, `{"schema": …, "payload": …}`, as Kafka Connect's JsonConverter writes it.

The payload is read like plain JSON. The schema beside it says which texts are a decimal's bytes and which numbers are
days or milliseconds. It may differ in each record, so it is parsed with each, limited to what the columns need.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats import logical_types
from sluice.formats.internal_columns import CORRUPT, ExactDecimalType, RecordPart, nanos_of, problem
from sluice.formats.json.parsing import (
    PARSED,
    WORK_COLUMNS,
    DeferredTypes,
    add_parsed_object,
    find_flat_names,
    find_parse_problem,
    variant_decimal,
    variant_is,
    variant_text,
    whole_number,
)

SCHEMA, PAYLOAD = "schema", "payload"
_BASE64_SPACE = " \t\r\n"
_ENVELOPE = '{"schema": …, "payload": …}'


def add_connect_fields(frame: DataFrame, wanted: T.StructType, part: RecordPart) -> DataFrame:
    """Add the wanted fields of the payload; no fields and no problem if the payload is null."""
    is_scalar = part.root in wanted.names
    # Without wanted fields the payload must still be an object, and a struct needs at least one field.
    wanted_fields = wanted if wanted.fields else T.StructType([T.StructField(CORRUPT, T.StringType())])
    want = wanted[part.root].dataType if is_scalar else wanted_fields
    payload_type = _ENVELOPED.parse_schema(want)
    envelope = T.StructType([T.StructField(SCHEMA, schema_type([want])), T.StructField(PAYLOAD, payload_type)])
    frame = add_parsed_object(frame, F.col(part.raw), envelope, part)
    schema, payload = F.col(PARSED)[SCHEMA], F.col(PARSED)[PAYLOAD]
    if isinstance(payload_type, T.VariantType):  # in which JSON's null is a value
        payload = F.when(~F.is_variant_null(payload), payload)
    converted = _ENVELOPED.convert(payload, schema, want)
    fields = F.when(payload.isNotNull(), F.struct(converted.alias(part.root)) if is_scalar else converted)
    frame = frame.withColumn(part.fields, fields)
    converted = F.col(part.fields)[part.root] if is_scalar else F.col(part.fields)
    checks = [_envelope_check(part, schema, payload)]
    for path, kind, lost in _ENVELOPED.find_lost_values(payload, converted, want, part.root if is_scalar else ""):
        checks.append((lost, problem(f"field {path!r} and its embedded schema do not give a {kind}", path)))
    if not is_scalar:
        checks += find_flat_names(converted, wanted)
    found = find_parse_problem(part, envelope, f"{_ENVELOPE} with a payload of the contract's types", checks)
    return frame.withColumn(part.problem, found).drop(*WORK_COLUMNS)


def _envelope_check(part: RecordPart, schema: Column, payload: Column) -> tuple[Column, Column]:
    """Whether an object lacks the members `schema` or `payload`, and the problem."""
    keys = F.json_object_keys(F.col(part.raw).cast("string"))
    has_both = F.coalesce(F.array_contains(keys, SCHEMA) & F.array_contains(keys, PAYLOAD), F.lit(False))
    bare = problem(f"the {part.raw} is not {_ENVELOPE}, which Kafka Connect writes with schemas.enable")
    return ~(schema.isNotNull() & payload.isNotNull()) & ~has_both, bare


def schema_type(wants: list[T.DataType]) -> T.StructType:
    """The type to parse an embedded schema as: what is needed to read values of these types."""
    text = T.StringType()
    scale = T.StructType([T.StructField("scale", text)])
    members: dict[str, T.DataType] = {"type": text, "field": text, "name": text, "parameters": scale}
    deferred = [want for want in wants if DEFERRED_TYPES.within(want)]
    if inner := [f.dataType for want in deferred if isinstance(want, T.StructType) for f in want]:
        members["fields"] = T.ArrayType(schema_type(inner))
    if inner := [want.elementType for want in deferred if isinstance(want, T.ArrayType)]:
        members["items"] = schema_type(inner)
    if inner := [want.valueType for want in deferred if isinstance(want, T.MapType)]:
        members["values"] = schema_type(inner)
    return T.StructType([T.StructField(name, kind) for name, kind in members.items()])


def _parse_type(want: T.DataType) -> T.DataType | None:
    return T.VariantType() if logical_types.may_be_named(want) else None


def _convert_scalar(value: Column, schema: Column | None, want: T.DataType) -> Column:
    assert schema is not None  # noqa: S101 - tells mypy that these records have a schema
    if isinstance(want, T.DecimalType):
        return _decimal(value, schema, want)
    if nanos_of(want):
        return _count(value, schema, want)
    units, text = F.try_variant_get(value, "$", "bigint"), variant_text(value)
    number, other = _read_by_name(units, schema, want, "number"), _read_by_name(text, schema, want, "string")
    found = F.when(variant_is(value, "BIGINT"), number)
    found = found.when(variant_is(value, "STRING"), F.coalesce(other, logical_types.read_text(text, want)))
    whole = whole_number(value, None, T.LongType())  # JSON Schema takes 19000.0 for an integer
    return found.otherwise(logical_types.let(whole, lambda units: _read_by_name(units, schema, want, "number")))


def _read_by_name(value: Column, schema: Column, want: T.DataType, form: str) -> Column:
    """A JSON number or string as the logical type that its schema names; null if it names none of that form."""
    found = F.lit(None).cast(want)
    for name, kind in reversed(logical_types.CONNECT_TYPES.items()):  # so that the first is compared first
        if (kind.base == "string") == (form == "string") and (reader := kind.reader(want)):
            found = F.when(schema["name"] == name, reader(value)).otherwise(found)
    return found


def _count(value: Column, schema: Column, want: T.DataType) -> Column:
    """A JSON number in the unit of a wanted type; itself if its schema names no unit."""

    def convert(it: Column) -> Column:
        read = {kind: reader for kind in logical_types.CONNECT_TYPES.values() if (reader := kind.reader(want))}
        found = it["units"].try_cast(want)
        for kind, reader in read.items():
            names = [name for name, each in logical_types.CONNECT_TYPES.items() if each == kind]
            found = F.when(it["name"].isin(names), reader(it["units"])).otherwise(found)
        return found

    whole = F.when(variant_is(value, "BIGINT"), F.try_variant_get(value, "$", "bigint"))
    units = whole.otherwise(whole_number(value, None, T.LongType()))
    return logical_types.let(F.struct(units.alias("units"), schema["name"].alias("name")), convert)


def _decimal(value: Column, schema: Column, want: T.DecimalType) -> Column:
    """Connect's Decimal: a text is the base64 of the unscaled number's bytes, a number is the number itself."""

    def convert(it: Column) -> Column:
        value, name, text = it["value"], it["name"], variant_text(it["value"])
        is_decimal = F.coalesce(name == logical_types.CONNECT_DECIMAL, F.lit(False))
        is_scaled = F.coalesce(name == logical_types.VARIABLE_SCALE_DECIMAL, F.lit(False))
        raw = F.when(is_scaled, F.try_variant_get(value, "$.value", "string")).otherwise(text)
        # By way of a text, because a variant's 1.5 would become 1.
        scale = F.when(is_scaled, F.try_variant_get(value, "$.scale", "string")).otherwise(it["scale"]).try_cast("int")
        # Connect's own converter takes no text without its padding; Spark would read "779" as two bytes.
        padded = F.length(F.translate(raw, _BASE64_SPACE, "")) % 4 == 0
        unscaled = F.when(padded, F.try_to_binary(raw, F.lit("base64")))
        unpacked = logical_types.decimal_from_unscaled(unscaled, scale, want)
        exact = variant_decimal(value, ExactDecimalType(want.precision, want.scale))
        number = F.when(is_decimal, exact).otherwise(variant_decimal(value, want))
        found = F.when(is_scaled | (is_decimal & variant_is(value, "STRING")), unpacked)
        # The base64 of bytes may consist of digits alone.
        return found.when(is_decimal | ~it["type"].eqNullSafe("bytes"), number)

    members = {name: schema[name] for name in ("type", "name")} | {"scale": schema["parameters"]["scale"]}
    return logical_types.let(
        F.struct(value.alias("value"), *(each.alias(name) for name, each in members.items())), convert
    )


DEFERRED_TYPES = DeferredTypes(_parse_type, _convert_scalar)
"""Types that JSON lacks are parsed as variants, which distinguish strings from numbers."""


def _convert_enveloped_scalar(value: Column, schema: Column | None, want: T.DataType) -> Column:
    """A scalar by its schema; a number without one is seconds since 1970, as in plain JSON."""
    found = _convert_scalar(value, schema, want)
    if not isinstance(want, T.TimestampType):
        return found
    return F.when(F.col(PARSED)[SCHEMA].isNull(), logical_types.read_json_scalar(variant_text(value), want)).otherwise(
        found
    )


_ENVELOPED = DeferredTypes(_parse_type, _convert_enveloped_scalar)
"""The same for records whose schema may be null."""
