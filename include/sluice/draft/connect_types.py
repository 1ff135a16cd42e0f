"""Column types for the schemas that Kafka Connect writes into JSON records."""

from __future__ import annotations

from typing import Any

from sluice.contract.types import Decimal, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.contract.values import IDENTIFIER
from sluice.formats.logical_types import CONNECT_DECIMAL, CONNECT_TYPES, MAX_DIGITS, VARIABLE_SCALE_DECIMAL, NamedType

_BASES = {
    "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float", "float32": "float",
    "double": "double", "float64": "double", "boolean": "boolean", "string": "string", "bytes": "binary",
}  # fmt: skip
_STRING = Primitive("string")


def connect_type(schema: Any) -> IcebergType:
    """Return the column type of an embedded schema; text, which is the value's JSON, where there is no better one."""
    if not isinstance(schema, dict):
        return _STRING
    name = schema.get("name")
    if name == CONNECT_DECIMAL:
        scale = str((schema.get("parameters") or {}).get("scale", "0"))
        return Decimal(MAX_DIGITS, min(int(scale), MAX_DIGITS)) if scale.isdecimal() else _STRING
    if name == VARIABLE_SCALE_DECIMAL:
        return Decimal(MAX_DIGITS, 10)
    if isinstance(name, str) and name in CONNECT_TYPES:
        return NamedType(CONNECT_TYPES[name].columns[0], CONNECT_TYPES[name])
    match schema.get("type"):
        case "array":
            return ListOf(connect_type(schema.get("items")))
        case "map":
            text_keys = (schema.get("keys") or {}).get("type") == "string"
            return MapOf(_STRING, connect_type(schema.get("values"))) if text_keys else _STRING
        case "struct":
            return _struct_type(schema)
        case kind:
            return Primitive(_BASES.get(str(kind), "string"))


def _struct_type(schema: dict[str, Any]) -> IcebergType:
    fields = connect_fields(schema)
    names = [name for name, _ in fields]
    if not fields or not all(map(IDENTIFIER.fullmatch, names)) or len({n.lower() for n in names}) < len(names):
        return _STRING
    return Struct(tuple((name, connect_type(inner)) for name, inner in fields))


def connect_fields(schema: Any) -> list[tuple[str, Any]]:
    """Return name and schema of each field of a struct."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return [
        (str(each["field"]), each)
        for each in fields or ()
        if isinstance(each, dict) and isinstance(each.get("field"), str)
    ]
