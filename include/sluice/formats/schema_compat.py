"""Compares a writer's schema with the wanted fields at plan time, without a JVM.

In: a schema from the registry. Out: the first field whose records would be quarantined as `malformed`, if any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pyspark.sql import types as T

from sluice.contract.types import Decimal, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats import compat
from sluice.formats.avro import iceberg_type_from_avro, logical_conversions
from sluice.formats.avro_schema import NamedTypes, SchemaBuilder, parse_schema, root_type_name, select_branch
from sluice.formats.convert import (
    LogicalConversion,
    SchemaMismatchError,
    check_convertible,
    check_has_row,
    no_logical_types,
    schema_failures_as_mismatch,
)
from sluice.formats.internal_columns import join_path
from sluice.formats.json.records import schema_title
from sluice.formats.logical_types import NamedType, spark_type
from sluice.kafka.registry import WriterSchema

_NUMBERS = (T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType)
_FROM_TEXT = (T.DateType, T.TimestampType, T.TimestampNTZType, T.BinaryType, T.DecimalType)
_READABLE_AS: dict[str, tuple[type[T.DataType], ...]] = {
    "boolean": (T.BooleanType,),
    "long": (*_NUMBERS, T.TimestampType),
    "double": (*_NUMBERS, T.TimestampType),
}
"""JSON Schema type to the wanted types that its values can be read as; other types are texts (`_FROM_TEXT`)."""

DecodedType = tuple[T.DataType, LogicalConversion]


def find_incompatible_field(form: str, schema: WriterSchema, wanted: T.StructType) -> SchemaMismatchError | None:
    """Why records of a schema cannot become the wanted fields; None if they can.

    Args:
        form: The contract's `value.format`.
        schema: The schema; of a Protobuf schema only the first message is compared.
        wanted: The wanted fields.
    """
    try:
        with schema_failures_as_mismatch():
            have, logical = DECODED_TYPES[form](schema, wanted)
            check_convertible(have, wanted, logical)
            check_has_row(have, wanted)
    except SchemaMismatchError as error:
        return error
    return None


def select_schema(form: str, schema: WriterSchema, types: Collection[str]) -> WriterSchema | None:
    """The schema, or the branch of a union at its root, that records of the given types are written with.

    Args:
        form: The contract's `value.format`.
        schema: The schema.
        types: Full names of types; empty for all types.

    Returns:
        None if the schema is of another type, or cannot be read.
    """
    try:
        with schema_failures_as_mismatch():
            selected = select_branch(schema, types)
            return selected if not types or TYPE_NAMES[form](selected) in types else None
    except SchemaMismatchError:
        return None


def _avro(schema: WriterSchema, wanted: T.StructType) -> DecodedType:
    root, names = parse_schema(schema)
    text = json.dumps(SchemaBuilder(names, strict=True).build(root, want=wanted))
    # Spark decodes Connect's named types as numbers; `logical_conversions` converts them.
    reader_names = NamedTypes()
    reader_root = reader_names.add(json.loads(text, object_hook=_without_connect_name))
    return spark_type(iceberg_type_from_avro(reader_root, reader_names.types)), logical_conversions(root, names)


def _without_connect_name(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "connect.name"}


def _first_message_name(schema: WriterSchema) -> str:
    from sluice.formats.protobuf_descriptors import descriptor_files, message_name

    return message_name(descriptor_files(schema), (0,))


def _protobuf(schema: WriterSchema, wanted: T.StructType) -> DecodedType:
    from sluice.formats.protobuf import spark_arrow_schema
    from sluice.formats.protobuf_descriptors import descriptor_files, prune_message

    files, _, copy = prune_message(descriptor_files(schema), (0,), wanted)
    return compat.spark_type_from_arrow(spark_arrow_schema(files, copy)), no_logical_types


DECODED_TYPES: dict[str, Callable[[WriterSchema, T.StructType], DecodedType]] = {"avro": _avro, "protobuf": _protobuf}
"""By `value.format`: the type that records are decoded to, for formats whose schemas name every field."""
TYPE_NAMES: dict[str, Callable[[WriterSchema], str | None]] = {
    "avro": root_type_name,
    "protobuf": _first_message_name,
    "json_schema": schema_title,
}
"""By `value.format`: the name of a schema's record type."""


def find_incompatible_json_field(
    have: Mapping[str, IcebergType | None], wanted: T.StructType
) -> SchemaMismatchError | None:
    """The first wanted field that no value of a JSON Schema can become; None if there is none.

    A text counts as no double, although "NaN" and "Infinity" are.

    Args:
        have: The schema's fields, with their types as `infer_json_schema_fields` reads them; None for skipped fields.
        wanted: The wanted fields.
    """
    return next(
        (each for f in wanted if (kind := have.get(f.name)) for each in _incompatible(kind, f.dataType, f.name)), None
    )


def is_closed(schema: WriterSchema) -> bool:
    """Whether a JSON Schema allows no fields that it does not name."""
    try:
        root = json.loads(schema.text)
    except (ValueError, RecursionError):
        return False
    open_keywords = {"patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
    return isinstance(root, dict) and root.get("additionalProperties") is False and not open_keywords & root.keys()


def _readable_as(have: IcebergType) -> tuple[type[T.DataType], ...]:
    """The wanted types that values of a JSON Schema's scalar can be read as."""
    match have:
        case NamedType(logical=kind) if kind.base != "string":
            return (*_NUMBERS, *(type(spark_type(Primitive(name))) for name in kind.columns))
        case Primitive(name):
            return _READABLE_AS.get(name, _FROM_TEXT)
        case Decimal():  # Connect's, a number or the bytes of one
            return (T.DecimalType, T.DoubleType, T.FloatType, T.BinaryType)
    return ()


def _incompatible(have: IcebergType, want: T.DataType, path: str) -> Iterator[SchemaMismatchError]:
    match have, want:
        case _, T.StringType():
            return
        case Struct(), T.StructType():
            fields = dict(have.fields)
            for each in want:
                if each.name in fields:
                    yield from _incompatible(fields[each.name], each.dataType, join_path(path, each.name))
        case ListOf(), T.ArrayType():
            yield from _incompatible(have.element, want.elementType, f"{path}[]")
        case MapOf(), T.MapType():
            yield from _incompatible(have.value, want.valueType, f"{path}{{}}")
        case (Struct(), T.MapType()) | (MapOf(), T.StructType()):
            return
        case Struct(), T.DecimalType() if {"scale", "value"} == {name for name, _ in have.fields}:
            return  # a VariableScaleDecimal
        case _:
            if not isinstance(want, _readable_as(have)):
                found = spark_type(have).simpleString()
                yield SchemaMismatchError(path, f"is {found}, but its column is {want.simpleString()}")
