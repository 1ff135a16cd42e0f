"""A writer's schema as columns: field by field the Iceberg type that the decoder of its format reads without loss.

One function per format. What no column type holds is refused with its path, in the words of the decoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.convert import UnfitError
from sluice.formats.logical_types import DEBEZIUM
from sluice.kafka.registry import WriterSchema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Field:
    """A field of a schema's root, the type of its column (None: it was not looked at), and the schema's comment."""

    name: str
    type: IcebergType | None
    doc: object = None


STRING = Primitive("string")
_AVRO_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamptz",
    "timestamp-micros": "timestamptz",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "uuid": "uuid",
}
_AVRO_BASE = {"int": {"date"}, "string": {"uuid"}, "long": {k for k in _AVRO_LOGICAL if "timestamp" in k}}
_DEBEZIUM = {
    ("int", f"{DEBEZIUM}Date"): "date",
    ("long", f"{DEBEZIUM}Timestamp"): "timestamp",
    ("long", f"{DEBEZIUM}MicroTimestamp"): "timestamp",
    ("string", f"{DEBEZIUM}ZonedTimestamp"): "timestamptz",
}
_AVRO_NAMES = {"bytes": "binary", "enum": "string"}


def avro(schema: WriterSchema, skip: Collection[str]) -> Iterator[Field]:
    """The fields of an Avro record."""
    from sluice.formats.avro_schema import Emitter, no_schema, parsed

    root, names = parsed(schema)
    record = names.found.get(root) if isinstance(root, str) else None
    if record is None or record["type"] != "record":
        raise UnfitError("", "the root is no record with fields: list a column with source: $value")
    refuse = Emitter(names, strict=True, inside=(str(root),))
    with no_schema():
        for each in record["fields"]:
            if each["name"] in skip:
                yield Field(each["name"], None)
                continue
            refuse.emit(each["type"], each["name"])
            yield Field(each["name"], avro_type(each["type"], names.found), each["doc"])


def avro_type(schema: Any, named: dict[str, dict[str, Any]]) -> IcebergType:
    """Of a schema that the decoder's own check has passed: one branch to a union, and an end to each type."""
    if isinstance(schema, list):
        return avro_type(next(each for each in schema if each != "null"), named)
    if isinstance(schema, str):
        known = named.get(schema)
        return avro_type(known, named) if known else Primitive(_AVRO_NAMES.get(schema, schema))
    kind, logical = schema["type"], schema.get("logicalType")
    name = _AVRO_LOGICAL[logical] if logical in _AVRO_BASE.get(kind, ()) else _AVRO_NAMES.get(kind, kind)
    name = _DEBEZIUM.get((kind, str(schema.get("connect.name"))), name)
    made: IcebergType
    match kind:
        case "array":
            made = ListOf(avro_type(schema["items"], named))
        case "map":
            made = MapOf(STRING, avro_type(schema["values"], named))
        case "record":
            made = Struct(tuple((f["name"], avro_type(f["type"], named)) for f in schema["fields"]))
        case "bytes" | "fixed" if logical == "decimal":
            made = Decimal(schema["precision"], schema.get("scale", 0))
        case "fixed":
            made = Fixed(schema["size"])
        case _:
            made = Primitive(name)
    return made


def protobuf(schema: WriterSchema, skip: Collection[str]) -> Iterator[Field]:
    """The fields of a schema's first message, as the decoder itself says that it reads them."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from sluice.formats.protobuf import arrow_schema
    from sluice.formats.protobuf_descriptors import cut, files_of

    files = files_of(schema)
    messages = FileDescriptorProto.FromString(files[-1]).message_type
    if not messages:
        raise UnfitError("", "there is no message")
    names = [f.name for f in messages[0].field]
    wanted = T.StructType([T.StructField(name, T.NullType()) for name in names if name not in skip])
    files, _, copy = cut(files, (0,), wanted)
    read = arrow_schema(files, copy) if wanted.names else ()
    types = {each.name: _arrow_type(each.type, each.name) for each in read}
    yield from (Field(name, types.get(name)) for name in names)


def _arrow_type(kind: pa.DataType, path: str) -> IcebergType:
    import pyarrow as pa

    known = pa.types
    if known.is_struct(kind):
        if not kind.num_fields:
            raise UnfitError(path, "is a message without fields, which no column type holds")
        return Struct(tuple((f.name, _arrow_type(f.type, f"{path}.{f.name}")) for f in kind))
    if known.is_list(kind):
        return ListOf(_arrow_type(kind.value_type, f"{path}[]"))
    if known.is_map(kind):  # whole numbers as keys become text
        return MapOf(STRING, _arrow_type(kind.item_type, f"{path}{{}}"))
    if known.is_decimal(kind):
        return Decimal(kind.precision, kind.scale)
    if known.is_timestamp(kind):
        return Primitive("timestamptz" if kind.tz else "timestamp")
    names = {
        pa.bool_(): "boolean", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float", pa.float64(): "double",
        pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    }  # fmt: skip
    if kind not in names:
        raise UnfitError(path, f"is read as {kind}, which no column type holds")
    return Primitive(names[kind])


_JSON_TYPES = {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_JSON_FORMATS = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}
_JSON_UNTYPED = ("oneOf", "anyOf", "allOf")


def json_schema(schema: WriterSchema, skip: Collection[str]) -> Iterator[Field]:
    """The properties of a JSON Schema's root."""
    try:
        reader = _JsonReader({name: json.loads(text) for name, text in schema.references})
        root, whole, _ = reader.followed(json.loads(schema.text), json.loads(schema.text), "", ())
        properties = reader.alone(root, "").get("properties")
        if not properties:
            raise UnfitError("", "the root is no object with properties")
        for name, each in properties.items():
            if name in skip:
                yield Field(name, None)
                continue
            doc = each.get("description") if isinstance(each, dict) else None
            yield Field(name, reader.type(each, whole, name, ()), doc)
    except RecursionError as error:
        raise UnfitError("", "types are nested too deep") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UnfitError("", f"there is no JSON Schema that can be followed ({type(error).__name__})") from error


@dataclass
class _JsonReader:
    """Reads JSON Schemas; `others` are those that the registry names as references."""

    others: dict[str, Any] = field(default_factory=dict)

    def followed(self, schema: Any, whole: Any, path: str, inside: tuple[str, ...]) -> tuple[Any, Any, tuple[str, ...]]:
        """What a `$ref` refers to, the document that it stands in, and the refs on the way."""
        while isinstance(schema, dict) and "$ref" in schema:
            self.alone(schema, path, "$ref")
            ref = str(schema["$ref"])
            document, _, pointer = ref.partition("#")
            if pointer and not pointer.startswith("/"):
                raise UnfitError(path, f"refers to {ref!r} by an anchor, which is not followed: list its columns")
            whole = self.others[document] if document else whole
            mark = f"{id(whole)}#{pointer}"
            if mark in inside:
                raise UnfitError(path, f"holds itself ({ref}): a column can't nest without end")
            inside = (*inside, mark)
            schema = whole
            for step in pointer.split("/")[1:]:
                schema = schema[step.replace("~1", "/").replace("~0", "~")]
        return schema, whole, inside

    def alone(self, schema: Any, path: str, *further: str) -> Any:
        """The schema, provided that nothing beside its properties names fields as well."""
        beside = [name for name in (*_JSON_UNTYPED, "if", *further) if name in schema]
        if "properties" in schema and beside:
            raise UnfitError(path, f"has properties and {beside[0]} beside them: list its columns")
        return schema

    def type(self, schema: Any, whole: Any, path: str, inside: tuple[str, ...]) -> IcebergType:
        schema, whole, inside = self.followed(schema, whole, path, inside)
        if not isinstance(schema, dict):
            raise UnfitError(path, "may be anything, which no column type holds")
        for name in _JSON_UNTYPED:
            if name in self.alone(schema, path):
                return self.type(self._one(schema[name], path), whole, path, inside)
        kinds = schema.get("type", "object" if "properties" in schema else "string" if "enum" in schema else [])
        kind = self._one([kinds] if isinstance(kinds, str) else kinds, path)
        if kind == "object":
            return self._object(schema, whole, path, inside)
        if kind == "array":
            return ListOf(self.type(schema.get("items"), whole, f"{path}[]", inside))
        if kind == "string" and schema.get("format") in _JSON_FORMATS:
            return Primitive(_JSON_FORMATS[schema["format"]])
        return Primitive(_JSON_TYPES[kind])

    def _object(self, schema: Any, whole: Any, path: str, inside: tuple[str, ...]) -> IcebergType:
        if properties := schema.get("properties"):
            fields = ((n, self.type(each, whole, f"{path}.{n}", inside)) for n, each in properties.items())
            return Struct(tuple(fields))
        values = schema.get("additionalProperties")
        if not isinstance(values, dict):
            raise UnfitError(path, "is an object of unknown fields, which no column type holds")
        return MapOf(STRING, self.type(values, whole, f"{path}{{}}", inside))

    def _one(self, choices: Any, path: str) -> Any:
        """The one choice besides null."""
        kinds = [each for each in choices if each not in ("null", {"type": "null"})]
        if len(kinds) != 1:
            raise UnfitError(path, "may be of several types, which no column type holds")
        return kinds[0]


READERS: dict[str, tuple[str, Callable[[WriterSchema, Collection[str]], Iterator[Field]]]] = {
    "avro": ("AVRO", avro),
    "protobuf": ("PROTOBUF", protobuf),
    "json_schema": ("JSON", json_schema),
}
"""By `value.format`: the registry's word for such schemas, and what reads their fields."""
