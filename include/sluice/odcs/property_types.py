"""Column types as ODCS has them: a logical type with its parts, and the physical type as Iceberg writes it.

A physical type that Iceberg knows is taken as it is; names of databases and logical types are translated.
"""

from __future__ import annotations

import re
from typing import Any

from open_data_contract_standard.model import MapDefinition, SchemaProperty
from pydantic import TypeAdapter, ValidationError

from sluice.contract.types import Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.contract.values import IDENTIFIER, ColumnType

_TYPE = TypeAdapter[IcebergType](ColumnType)
_LOGICAL: dict[str, tuple[str, dict[str, Any]]] = {
    "boolean": ("boolean", {}),
    "int": ("integer", {"format": "i32"}),
    "long": ("integer", {"format": "i64"}),
    "float": ("number", {"format": "f32"}),
    "double": ("number", {"format": "f64"}),
    "date": ("date", {}),
    "timestamp": ("timestamp", {"timezone": False}),
    "timestamptz": ("timestamp", {"timezone": True}),
    "string": ("string", {}),
    "uuid": ("string", {"format": "uuid"}),
    "binary": ("string", {"format": "binary"}),
}
TYPE_FORMATS = ("binary", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "uuid")
"""Values of the logical type's option `format` that say nothing more than the type."""

_SMALL_INTEGERS = frozenset({"i8", "i16", "i32", "u8", "u16"})
_DATABASE_TYPES = {
    "boolean": "bool",
    "int": "int2 int4 int32 integer mediumint serial smallint tinyint",
    "long": "bigint bigserial int8 int64",
    "float": "float4 real",
    "double": "double_precision float8 float64",
    "string": "char character character_varying clob json jsonb nchar nvarchar text varchar varchar2 variant",
    "timestamp": "datetime datetime2 timestamp_ntz timestamp_without_time_zone",
    "timestamptz": "datetimeoffset timestamp_ltz timestamp_tz timestamp_with_time_zone",
    "binary": "blob bytea bytes varbinary",
}
_ALIASES = {name: ours for ours, names in _DATABASE_TYPES.items() for name in names.split()}
_EXACT = frozenset({"decimal", "numeric", "number"})
_FORM = re.compile(r"([a-z][a-z0-9_]*)(?:\(([0-9]+)(?:,([0-9]+))?\))?")


def describe_type(kind: IcebergType) -> dict[str, Any]:
    """Return the fields of an ODCS property that say its type."""
    found: dict[str, Any] = {"physicalType": str(kind)}
    match kind:
        case ListOf():
            return {**found, "logicalType": "array", "items": SchemaProperty(**describe_type(kind.element))}
        case MapOf():
            key, value = (SchemaProperty(**describe_type(each)) for each in (kind.key, kind.value))
            return {**found, "logicalType": "map", "map": MapDefinition(key=key, value=value)}
        case Struct():
            parts = [SchemaProperty(name=name, **describe_type(each)) for name, each in kind.fields]
            return {**found, "logicalType": "object", "properties": parts}
        case Fixed():
            return {**found, "logicalType": "string", "logicalTypeOptions": {"format": "binary"}}
    logical, options = _LOGICAL.get(str(kind), ("number", {}))  # the last: decimals
    return {**found, "logicalType": logical, "logicalTypeOptions": options or None}


def read_type(column: SchemaProperty) -> tuple[IcebergType, str]:
    """Return the type of an ODCS property, and how it was found; empty if it is the physical type itself."""
    physical = column.physicalType or ""
    for text in (physical, physical.lower()):
        if text and (kind := _parsed(text)):
            return kind, ""
    if physical and (kind := _database_type(physical, column)):
        return kind, f"{physical} in the data contract"
    kind = _logical_type(column)
    named = [f"{what} {text}" for what, text in (("physical", physical), ("logical", column.logicalType)) if text]
    return kind, f"{' and '.join(named)} type in the data contract" if named else "the data contract has no type"


def _parsed(text: str) -> IcebergType | None:
    try:
        return _TYPE.validate_python(text)
    except ValidationError:
        return None


def _database_type(physical: str, column: SchemaProperty) -> IcebergType | None:
    plain = re.sub(r"\([0-9]+\)\s*(?=with)", " ", physical.strip().lower())  # a timestamp's precision
    found = _FORM.fullmatch(re.sub(r"\s+", "_", re.sub(r"\s*([(),])\s*", r"\1", plain)))
    if not found:
        return None
    name, precision, scale = found.groups()
    if name in _EXACT:
        if precision:
            return _parsed(f"decimal({precision}, {scale or 0})")
        return Primitive("long") if column.logicalType == "integer" else Primitive("double")
    return Primitive(_ALIASES[name]) if name in _ALIASES else None


def _logical_type(column: SchemaProperty) -> IcebergType:
    options = column.logicalTypeOptions or {}
    name = (
        "string"  # also for times of day, which Spark does not read, and for objects without known fields: their JSON
    )
    match column.logicalType:
        case "boolean" | "date" as same:
            name = same
        case "integer":
            name = "int" if str(options.get("format")) in _SMALL_INTEGERS else "long"
        case "number":
            name = "float" if options.get("format") == "f32" else "double"
        case "timestamp":
            name = "timestamp" if options.get("timezone") is False else "timestamptz"
        case "array":
            return ListOf(read_type(column.items)[0] if column.items else Primitive("string"))
        case "vector":
            return ListOf(Primitive("float"))
        case "map" if column.map:
            return MapOf(Primitive("string"), read_type(column.map.value or SchemaProperty())[0])
        case "object" if column.properties:
            return _struct(column.properties)
    return Primitive(name)


def _struct(parts: list[SchemaProperty]) -> IcebergType:
    names = [str(each.physicalName or each.name) for each in parts]
    if not all(map(IDENTIFIER.fullmatch, names)) or len({each.lower() for each in names}) < len(names):
        return Primitive("string")  # a struct has plain names: read as JSON
    return Struct(tuple((name, read_type(each)[0]) for name, each in zip(names, parts, strict=True)))
