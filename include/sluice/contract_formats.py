"""The formats of keys and values: which there are, and what a column can take from each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sluice.contract_fields import KEY_SOURCE, VALUE_SOURCE, Flaws
from sluice.iceberg_types import Fixed, IcebergType, Primitive, is_primitive

if TYPE_CHECKING:
    from sluice.contract import Input

Format = Literal["json", "json_connect", "json_schema", "avro", "protobuf", "string", "bytes", "int", "long"]
"""`json_connect` is JSON that brings its own schema; the three after it are Confluent's wire format, and need a schema
registry; the last four have no fields."""

PLAIN = ("string", "bytes")
REGISTERED = ("avro", "protobuf", "json_schema")
WHOLE_NUMBERS = {"int": ("int", "long"), "long": ("long",)}
OBJECTS = ("json", "json_schema", "protobuf")
"""Formats that are always objects with fields; `avro` and `json_connect` may be, the others never are."""


def key_holds(kind: IcebergType, key_format: str) -> bool:
    """Tell whether a whole key or value of that format can be read as a value of type `kind`."""
    if key_format in OBJECTS:
        return False
    if key_format in WHOLE_NUMBERS:
        return str(kind) in WHOLE_NUMBERS[key_format]
    if key_format not in PLAIN:
        return True
    binary = isinstance(kind, Fixed) or kind == Primitive("binary")
    return is_primitive(kind) and binary == (key_format == "bytes")


def check_whole(column: Input, side: str, form: str, flaws: Flaws, at: tuple[str | int, ...]) -> None:
    """Whether a key or value of that format has what the column is to hold of it."""
    whole = column.source in (KEY_SOURCE, VALUE_SOURCE)
    if whole and form in OBJECTS:
        flaws.add(*at, "source", message=f"a {side} of format {form} is an object: name a field of it")
    elif not whole and form in (*PLAIN, *WHOLE_NUMBERS):
        source = KEY_SOURCE if side == "key" else VALUE_SOURCE
        flaws.add(*at, "source", message=f"a {side} of format {form} has no fields: use source: {source}")
    elif whole and not key_holds(column.type, form):
        takes = {"bytes": "binary or fixed[n]", "string": "a primitive type other than binary"}.get(
            form, " or ".join(WHOLE_NUMBERS.get(form, ()))
        )
        flaws.add(*at, "type", message=f"a {side} of format {form} needs {takes}, not {column.type}")
