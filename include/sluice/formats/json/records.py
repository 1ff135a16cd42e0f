"""Reads JSON objects, plain or behind Confluent's wire format prefix: in, staged bytes; out, the wanted fields.

One `from_json` with a schema reads a record, whatever the number of columns.
"""

from __future__ import annotations

import json
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.convert import SchemaMismatchError
from sluice.formats.inferred_columns import find_connect_names
from sluice.formats.internal_columns import CORRUPT, VALUE, RecordPart, nanos_of, problem
from sluice.formats.json import connect
from sluice.formats.json.parsing import (
    PARSED,
    TEXT,
    WORK_COLUMNS,
    DeferredTypes,
    add_parsed_object,
    find_flat_names,
    find_parse_problem,
    has_only_member,
    of_field,
    variant_decimal,
    variant_text,
)
from sluice.formats.logical_types import read_json_scalar
from sluice.formats.wire_format import look_up_schemas
from sluice.kafka.registry import WriterSchema


def _parse_type(want: T.DataType) -> T.DataType | None:
    if isinstance(want, T.DecimalType):
        return T.VariantType()
    return T.StringType() if isinstance(want, (T.DateType, T.TimestampType, T.TimestampNTZType)) else None


def _convert_scalar(value: Column, _: Column | None, want: T.DataType) -> Column:
    return variant_decimal(value, want) if isinstance(want, T.DecimalType) else read_json_scalar(value, want)


def _convert_named_scalar(value: Column, schema: Column | None, want: T.DataType) -> Column:
    """A variant as the logical type that a JSON Schema names for it, or else like any other."""
    assert schema is not None  # noqa: S101 - tells mypy that these records have a schema
    plain = value if isinstance(want, T.DecimalType) else variant_text(value)
    named = connect.DEFERRED_TYPES.convert_scalar(value, schema, want)
    if nanos_of(want):  # a number without a name is itself, too
        return named
    return F.when(schema["name"].isNotNull(), named).otherwise(_convert_scalar(plain, None, want))


DEFERRED_TYPES = DeferredTypes(_parse_type, _convert_scalar)
"""Spark's parser would expand a decimal with an exponent of nine digits, and would read a time without a date as
today's. Decimals are parsed as variants, since a number parsed as a string has only the digits that a double keeps."""
NAMED_TYPES = DeferredTypes(connect.DEFERRED_TYPES.parse_type, _convert_named_scalar)
"""The same for records whose JSON Schema names logical types of Kafka Connect."""
_NAMES = "_sluice_names"


def add_json_fields(frame: DataFrame, wanted: T.StructType, part: RecordPart = VALUE) -> DataFrame:
    """Add the wanted fields of a JSON object, or the whole of any other JSON."""
    return _add_fields(frame, F.col(part.raw), wanted, part, DEFERRED_TYPES)


def add_json_schema_fields(frame: DataFrame, wanted: T.StructType, part: RecordPart) -> DataFrame:
    """Add the wanted fields of JSON in Confluent's wire format.

    The schema is asked for its title, and for the logical types that Kafka Connect's converter names in it.
    """
    ids = look_up_schemas(frame, part, "JSON")
    readable = [
        number
        for number, schema in ids.known.items()
        if not ids.is_other_type(ids.number == number, number, partial(schema_title, schema))
    ]
    # -1 keeps the list from being empty; no schema has it.
    text = F.when(ids.number.isin([*readable, -1]), ids.payload)
    kind = connect.schema_type([wanted])
    named = F.lit(None).cast(kind)
    types = DEFERRED_TYPES
    for number in readable:
        try:
            names = find_connect_names(ids.known[number], wanted, part.root)
        except SchemaMismatchError as error:
            ids.add_problem(ids.number == number, number, error)
            continue
        if names:
            types = NAMED_TYPES
            named = F.when(ids.number == number, F.from_json(F.lit(json.dumps(names)), kind)).otherwise(named)
    if types is NAMED_TYPES:
        frame = frame.withColumn(_NAMES, named)
    frame = _add_fields(frame, text, wanted, part, types).drop(_NAMES).withColumns(ids.other_type_column())
    return frame.withColumn(part.problem, F.coalesce(ids.find_problem(F.lit(True)), F.col(part.problem)))


def schema_title(schema: WriterSchema) -> str | None:
    """The title of a JSON Schema, which RecordNameStrategy uses as the record's name."""
    try:
        root = json.loads(schema.text)
    except (ValueError, RecursionError):
        return None
    title = root.get("title") if isinstance(root, dict) else None
    return title if isinstance(title, str) else None


def _add_fields(
    frame: DataFrame, text: Column, wanted: T.StructType, part: RecordPart, types: DeferredTypes
) -> DataFrame:
    parsed, names = F.col(PARSED), F.col(_NAMES) if types is NAMED_TYPES else None
    parse_schema = types.parse_fields(wanted)
    is_whole = part.root in wanted.names
    # The whole is framed as the one member of an object.
    framed = F.concat(F.lit(f'{{"{part.root}":'.encode()), text, F.lit(b"}")) if is_whole else text
    frame = add_parsed_object(frame, framed, parse_schema, part)
    fields = [types.convert(parsed[f.name], of_field(names, f), f.dataType).alias(f.name) for f in wanted.fields]
    frame = frame.withColumn(part.fields, F.struct(*fields) if fields else F.struct(F.lit(None).alias(CORRUPT)))
    checks = [
        (lost, problem(f"field {path!r} is not a {kind}", path))
        for path, kind, lost in types.find_lost_values(parsed, F.col(part.fields), wanted)
    ]
    checks += find_flat_names(F.col(part.fields), wanted)
    if is_whole:  # `1, "a": 2` would fill the frame with two members
        is_more = F.col(TEXT).contains(",") & ~has_only_member(part.root)
        checks.append((is_more, problem(f"the {part.raw} is not JSON", part.root)))
    expected = "JSON of the contract's type" if is_whole else "a JSON object with fields of the contract's types"
    found = find_parse_problem(part, parse_schema, expected, checks)
    return frame.withColumn(part.problem, found).drop(*WORK_COLUMNS)
