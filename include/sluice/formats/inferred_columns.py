"""Infers columns from a writer's schema: in, a schema from the registry; out, its fields with Iceberg types.

Used by `columns: auto` and by plan's warnings. Each type is the one that the format's decoder reads without loss; what
no column type holds raises SchemaMismatchError with its path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urljoin

from pyspark.sql import types as T

from sluice.contract.types import Decimal, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.contract.values import IDENTIFIER, quote_name
from sluice.formats.avro import infer_avro_fields
from sluice.formats.convert import (
    MAX_FIELDS,
    MissingReferenceError,
    SchemaField,
    SchemaMismatchError,
    UnknownReferenceError,
    too_many_fields,
)
from sluice.formats.internal_columns import join_path
from sluice.formats.logical_types import (
    CONNECT_DECIMAL,
    CONNECT_TYPES,
    JSON_SCHEMA_FORMATS,
    MAX_DIGITS,
    VARIABLE_SCALE_DECIMAL,
    NamedType,
    may_be_named,
)
from sluice.kafka.registry import WriterSchema


def infer_protobuf_fields(schema: WriterSchema, skip: Collection[str]) -> Iterator[SchemaField]:
    """The fields of a schema's first message, with the types that the decoder itself reports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from sluice.formats.protobuf import iceberg_type_from_arrow, spark_arrow_schema
    from sluice.formats.protobuf_descriptors import descriptor_files, prune_message

    files = descriptor_files(schema)
    messages = FileDescriptorProto.FromString(files[-1]).message_type
    if not messages:
        raise SchemaMismatchError("", "the schema has no message")
    names = [f.name for f in messages[0].field]
    wanted = T.StructType([T.StructField(name, T.NullType()) for name in names if name not in skip])
    files, _, copy = prune_message(files, (0,), wanted)
    read = spark_arrow_schema(files, copy) if wanted.names else ()
    types = {each.name: iceberg_type_from_arrow(each.type, each.name) for each in read}
    yield from (SchemaField(name, types.get(name)) for name in names)


_JSON_TYPES = {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_JSON_BASES = {"integer": ("int", "long"), "string": ("string",)}
"""JSON Schema type to the bases of the logical types that Connect's converter writes as it."""
_JSON_UNTYPED = ("oneOf", "anyOf", "allOf")
_JSON_CONDITIONS = ("then", "else", "dependentSchemas", "dependencies")
_JSON_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_OTHER_MEMBERS = ("patternProperties", "additionalProperties", "unevaluatedProperties")
_ITEMS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
_CONNECT_NAMES = {*CONNECT_TYPES, CONNECT_DECIMAL, VARIABLE_SCALE_DECIMAL}
_NOT_FOLLOWED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What a JSON Schema raises that is not one, or refers to nothing."""


def infer_json_schema_fields(schema: WriterSchema, skip: Collection[str]) -> Iterator[SchemaField]:
    """The properties of a JSON Schema's root; those to skip have no type."""
    try:
        reader, node = _read_json_schema(schema)
        root = reader.resolve(node)
        properties = _check_properties(root).get("properties")
        if not properties:
            raise SchemaMismatchError("", "the root is not an object with properties")
        for name, each in properties.items():
            if name in skip:
                yield SchemaField(name, None)
                continue
            doc = each.get("description") if isinstance(each, dict) else None
            yield SchemaField(name, reader.type_of(_Node(each, root.document, quote_name(name))), doc)
    except RecursionError as error:
        raise SchemaMismatchError("", "the schema's types are nested too deeply") from error
    except _NOT_FOLLOWED as error:
        raise SchemaMismatchError("", f"the JSON Schema cannot be followed ({type(error).__name__})") from error


def find_connect_names(schema: WriterSchema, wanted: T.StructType, root: str) -> dict[str, Any] | None:
    """What a JSON Schema says of the wanted fields in Kafka Connect's words, in the form of an embedded Connect schema.

    Args:
        schema: The schema.
        wanted: The wanted fields.
        root: The name that the whole key or value has among them.

    Returns:
        None if it names no logical type of Connect or Debezium, or is no JSON.

    Raises:
        SchemaMismatchError: A wanted field may be of several types by these names, or is in a schema that cannot be
            found.
    """
    try:
        reader, node = _read_json_schema(schema)
        if root not in wanted.names:
            return reader.connect_names([node], wanted)
        names = reader.connect_names([node._replace(path=root)], wanted[root].dataType)
        return names and {"fields": [{**names, "field": root}]}
    except (RecursionError, ValueError):
        return None


class _Node(NamedTuple):
    """A schema within a JSON Schema.

    Attributes:
        schema: The schema.
        document: The document that `#/…` references in it refer to.
        path: The field that it describes, dotted.
        enclosing: The references that led to it.
    """

    schema: Any
    document: Any
    path: str
    enclosing: tuple[int, ...] = ()

    def inner(self, schema: Any, step: str) -> _Node:
        return self._replace(schema=schema, path=f"{self.path}{step}")

    def member(self, name: str, schema: Any) -> _Node:
        return self._replace(schema=schema, path=join_path(self.path, name))

    def field(self, name: str, schema: Any) -> _Node:
        """The schema of a field of a struct."""
        node = self.member(name, schema)
        if not IDENTIFIER.fullmatch(name):
            raise SchemaMismatchError(node.path, "has a name that no field of a struct may have")
        return node


def _check_properties(node: _Node, *further: str) -> Any:
    """The node's schema; refused if a keyword beside `properties` may name more fields."""
    found = [name for name in (*_JSON_UNTYPED, "if", *further) if name in node.schema]
    if "properties" in node.schema and found:
        raise SchemaMismatchError(node.path, f"has {found[0]} beside properties; list its columns")
    return node.schema


def _only_choice(choices: Any, path: str) -> Any:
    """The one choice besides null."""
    kinds = [each for each in choices if each not in ("null", {"type": "null"})]
    if len(kinds) != 1:
        raise SchemaMismatchError(path, "may be of several types, which no column type holds")
    return kinds[0]


def _is_named(schema: dict[str, Any]) -> bool:
    return isinstance(title := schema.get("title"), str) and title in _CONNECT_NAMES


def _with_name(outer: dict[str, Any], inner: Any) -> Any:
    """A schema with the name that stands beside the reference to it, or beside its choice."""
    if not (isinstance(inner, dict) and _is_named(outer)):
        return inner
    return inner | {each: outer[each] for each in ("title", "connect.parameters") if each in outer}


def _parts(schema: dict[str, Any], *keywords: str) -> Iterator[Any]:
    """The schemas that keywords list, give names to, or are."""
    for keyword in keywords:
        match schema.get(keyword):
            case list() as found:
                yield from found
            case dict() as found:
                yield from found.values() if keyword in _JSON_BY_NAME else [found]


def _member(schema: dict[str, Any], name: str) -> Iterable[Any]:
    """The schemas that a member of an object may have."""
    known = schema.get("properties")
    if isinstance(known, dict) and name in known:
        return [known[name]]
    return _parts(schema, *_OTHER_MEMBERS)


def _only_name(nodes: list[_Node]) -> dict[str, Any] | None:
    """The name of the logical type of a value that may have these schemas; None if they have none."""
    names, kinds = dict[tuple[str, str], dict[str, Any]](), {True: set[str](), False: set[str]()}
    for schema in (node.schema for node in nodes):
        given = schema.get("type", [])
        found = {
            "integer" if each == "number" else str(each) for each in ([given] if isinstance(given, str) else given)
        }
        kinds[_is_named(schema)] |= found - {"null"}
        if _is_named(schema):
            scale = str((schema.get("connect.parameters") or {}).get("scale", 0))
            names[schema["title"], scale] = {"name": schema["title"], "parameters": {"scale": scale}}
    if len(names) > 1 or kinds[True] & kinds[False]:
        raise SchemaMismatchError(nodes[0].path, "may be of several types of Kafka Connect, which JSON does not show")
    return next(iter(names.values()), None)


def _json_scalar_type(schema: dict[str, Any], kind: str, path: str) -> IcebergType:
    title, given = schema.get("title"), schema.get("format")
    logical = CONNECT_TYPES.get(title) if isinstance(title, str) else None
    if title == CONNECT_DECIMAL and kind in ("string", "number"):
        precision = (schema.get("connect.parameters") or {}).get("connect.decimal.precision")
        digits = int(str(precision)) if str(precision).isdecimal() else MAX_DIGITS
        scale = _connect_scale(schema, path)
        return Decimal(min(max(digits, scale), MAX_DIGITS), scale)
    if logical and logical.base in _JSON_BASES.get(kind, ()):
        first = logical.columns[0]
        return NamedType(_JSON_TYPES[kind] if first == logical.base else first, logical)
    if kind == "string" and given in JSON_SCHEMA_FORMATS:
        return Primitive(JSON_SCHEMA_FORMATS[given].columns[0])
    return Primitive("binary" if (kind, schema.get("connect.type")) == ("string", "bytes") else _JSON_TYPES[kind])


def _connect_scale(schema: dict[str, Any], path: str) -> int:
    """The scale of Connect's Decimal in a JSON Schema.

    Raises:
        SchemaMismatchError: It is no whole number.
    """
    scale = str((schema.get("connect.parameters") or {}).get("scale", 0))
    if not re.fullmatch("-?[0-9]{1,9}", scale):
        raise SchemaMismatchError(path, "is a decimal whose scale is not a whole number")
    return int(scale)


@dataclass
class _JsonSchemaReader:
    """Reads the types of a JSON Schema.

    Attributes:
        references: The documents that the registry lists for it, by name.
        missing: Those that it lacks, as text.
        read: How many types were read.
        by_base: The references by names relative to a document's own.
    """

    references: dict[str, Any]
    missing: str = ""
    read: int = 0
    by_base: dict[str, dict[str, Any]] = field(default_factory=dict)

    def resolve(self, node: _Node) -> _Node:
        """Follow `$ref`."""
        while isinstance(node.schema, dict) and "$ref" in node.schema:
            _check_properties(node, "$ref")
            found = self._target(node)
            if id(found.schema) in node.enclosing:
                reason = f"is recursive ({node.schema['$ref']}), which no column type holds"
                raise SchemaMismatchError(node.path, reason)
            enclosing = (*node.enclosing, id(found.schema))
            node = found._replace(schema=_with_name(node.schema, found.schema), enclosing=enclosing)
        return node

    def _target(self, node: _Node) -> _Node:
        """The schema that a `$ref` refers to."""
        ref = str(node.schema["$ref"])
        name, _, pointer = ref.partition("#")
        if pointer and not pointer.startswith("/"):
            raise SchemaMismatchError(
                node.path, f"refers to {ref!r} by an anchor, which is not followed; list its columns"
            )
        document = schema = self._document(name, node.document)
        try:
            for step in pointer.split("/")[1:]:
                schema = schema[step.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError) as error:
            raise SchemaMismatchError(node.path, f"refers to {ref!r}, which the schema does not have") from error
        return _Node(schema, document, node.path)

    def _document(self, name: str, document: Any) -> Any:
        """The document of a name in another one, relative to whose own name it is, as in JSON Schema."""
        base = str(document.get("$id", "")).rstrip("#")
        if base not in self.by_base:
            self.by_base[base] = {urljoin(base, each): found for each, found in self.references.items()}
        known = {**self.by_base[base], **self.references, base: document, "": document}
        uri = name if name in known else urljoin(base, name)
        if uri not in known:
            raise MissingReferenceError(self.missing) if self.missing else UnknownReferenceError(name)
        return known[uri]

    def type_of(self, node: _Node) -> IcebergType:
        """The Iceberg type of a schema."""
        self.read += 1
        if self.read > MAX_FIELDS:
            raise too_many_fields(node.path)
        node = self.resolve(node)
        schema = node.schema
        if not isinstance(schema, dict):
            raise SchemaMismatchError(node.path, "may be anything, which no column type holds")
        for name in _JSON_UNTYPED:
            if name in _check_properties(node):
                return self.type_of(node.inner(_with_name(schema, _only_choice(schema[name], node.path)), ""))
        kinds = schema.get("type", "object" if "properties" in schema else "string" if "enum" in schema else [])
        kind = _only_choice([kinds] if isinstance(kinds, str) else kinds, node.path)
        if kind == "object":
            return self._object_type(node)
        if kind == "array":
            return ListOf(self.type_of(node.inner(schema.get("items"), "[]")))
        return _json_scalar_type(schema, kind, node.path)

    def connect_names(self, given: Iterable[_Node], want: T.DataType) -> dict[str, Any] | None:
        """The names of logical types in the schemas that a wanted value may have; None if there are none.

        Raises:
            SchemaMismatchError: They have several names for one value, or one that not all schemas of a type have.
        """
        if not may_be_named(want):
            return None
        nodes = self._all_of(given)
        match want:
            case T.StructType(fields=fields):
                found = []
                for name, kind in ((f.name, f.dataType) for f in fields):
                    members = (n.member(name, each) for n in nodes for each in _member(n.schema, name))
                    if names := self.connect_names(members, kind):
                        found.append({**names, "field": name})
                return {"fields": found} if found else None
            case T.ArrayType(elementType=kind):
                items = (n.inner(each, "[]") for n in nodes for each in _parts(n.schema, *_ITEMS))
                names = self.connect_names(items, kind)
                return names and {"items": names}
            case T.MapType(valueType=kind):
                values = (
                    n.inner(each, "{}") for n in nodes for each in _parts(n.schema, "properties", *_OTHER_MEMBERS)
                )
                names = self.connect_names(values, kind)
                return names and {"values": names}
        return _only_name(nodes)

    def _all_of(self, given: Iterable[_Node]) -> list[_Node]:
        """The schemas, what they refer to, and their choices; where one has a name, it holds for all within."""
        found: dict[int, _Node] = {}
        left = [*given]
        while left:
            node = left.pop()
            if not isinstance(node.schema, dict) or id(node.schema) in found:
                continue
            found[id(node.schema)] = node
            if not _is_named(node.schema):
                if "$dynamicRef" in node.schema or "$recursiveRef" in node.schema:
                    raise SchemaMismatchError(node.path, "has a dynamic reference, which is not followed")
                left += [self._target(node)] if "$ref" in node.schema else []
                left += (node.inner(each, "") for each in _parts(node.schema, *_JSON_UNTYPED, *_JSON_CONDITIONS))
        return [*found.values()]

    def _object_type(self, node: _Node) -> IcebergType:
        if properties := node.schema.get("properties"):
            return Struct(tuple((n, self.type_of(node.field(n, each))) for n, each in properties.items()))
        values = node.schema.get("additionalProperties")
        if not isinstance(values, dict):
            raise SchemaMismatchError(node.path, "is an object of unknown fields, which no column type holds")
        return MapOf(Primitive("string"), self.type_of(node.inner(values, "{}")))


def _read_json_schema(schema: WriterSchema) -> tuple[_JsonSchemaReader, _Node]:
    """The reader of a JSON Schema, and its root."""
    document = json.loads(schema.text)
    known = {name: json.loads(text) for name, text in schema.references}
    own = document.get("$id") if isinstance(document, dict) else None
    # A reference may refer back to the schema.
    known |= {own.rstrip("#"): document} if isinstance(own, str) else {}
    return _JsonSchemaReader(known, schema.missing), _Node(document, document, "")


FIELD_READERS: dict[str, tuple[str, Callable[[WriterSchema, Collection[str]], Iterator[SchemaField]]]] = {
    "avro": ("AVRO", infer_avro_fields),
    "protobuf": ("PROTOBUF", infer_protobuf_fields),
    "json_schema": ("JSON", infer_json_schema_fields),
}
"""By `value.format`: the registry's name for its schemas, and the function that infers their fields."""
