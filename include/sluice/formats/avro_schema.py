"""Avro schemas: the types they name, union branches at the root, and the schemas that Spark's Avro reader is given.

In: a schema from the registry. Out: a writer schema and, per wanted field, a reader schema, both free of recursion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import log10
from typing import Any

from pyspark.sql import types as T

from sluice.formats.convert import MAX_FIELDS, SchemaMismatchError, resolved_references, too_many_fields
from sluice.formats.internal_columns import join_path
from sluice.formats.logical_types import AVRO_TYPES, CONNECT_TYPES, DECIMAL, MAX_DIGITS, LogicalType
from sluice.kafka.registry import WriterSchema

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_ATTRIBUTES = frozenset({"type", "logicalType", "precision", "scale", "size", "symbols", "connect.name"})
_MAX_INT = 2**31 - 1
# For decimals of up to this many digits Spark's reader uses only the last 64 bits of the bytes.
_MAX_LONG_DIGITS = 18
# Recursive types are read down to this many levels of fields, items and values. Avro's readers recurse for each level,
# also in fields that nobody reads; at some thousands the stack overflows, which Spark treats as fatal.
MAX_NESTING = 64
MAX_NESTED_FIELDS = 100_000
"""Fields of a writer's record, with those of the records in it: Avro's reader lists them one by one, and wanted fields
or not, 60 million take the heap of the application."""
_TOO_LONG_BYTES = 64 << 20  # the size of a fixed that no record has room for, given the session's limits
_PATH_PARTS = {"[]": "items", "{}": "values"}
_PATH_PART = re.compile(r"\[\]|\{\}|[^.\[{]+")


def parse_schema(schema: WriterSchema) -> tuple[Any, NamedTypes]:
    """The root of a schema, and all types that it names.

    Raises:
        SchemaMismatchError: It is not an Avro schema, or is nested too deeply.
    """
    names = NamedTypes()
    with invalid_schema_as_mismatch():
        for _, text in resolved_references(schema):
            names.add(json.loads(text))
        return names.add(json.loads(schema.text)), names


@contextmanager
def invalid_schema_as_mismatch() -> Iterator[None]:
    """Turn errors of an invalid or endless schema into SchemaMismatchError."""
    try:
        yield
    except RecursionError as error:
        raise SchemaMismatchError("", "the schema's types are nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaMismatchError("", f"this is not an Avro schema ({type(error).__name__})") from error


def root_type_name(schema: WriterSchema) -> str | None:
    """The full name of the root's type; None if it has no name.

    Raises:
        SchemaMismatchError: It is not an Avro schema.
    """
    root, names = parse_schema(schema)
    return root if isinstance(root, str) and root in names.types else None


def union_branches(schema: WriterSchema) -> list[tuple[bytes, WriterSchema]]:
    """The branches of a union at the root: the bytes before a value of the branch, and the schema of that value.

    Returns:
        An empty list if the root is not a union.

    Raises:
        SchemaMismatchError: It is not an Avro schema.
    """
    root, _ = parse_schema(schema)
    # The union itself becomes a reference, since it defines the types that its branches use.
    references = (*schema.references, ("", schema.text))
    kinds = root if isinstance(root, list) else []
    return [
        (_encode_long(index), replace(schema, text=json.dumps(kind), references=references))
        for index, kind in enumerate(kinds)
    ]


def _encode_long(value: int) -> bytes:
    """Avro's encoding of a number from 0: doubled, in groups of seven bits, the lowest first."""
    left, groups = value << 1, bytearray()
    while left > 0x7F:
        groups.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*groups, left))


def select_branch(schema: WriterSchema, types: Collection[str]) -> WriterSchema:
    """The one branch of an Avro union at the root that is of the given types; without types, the one that is not null.

    Args:
        schema: A schema of any kind; returned as it is if its root is not an Avro union.
        types: Full names of types.

    Raises:
        SchemaMismatchError: Not exactly one branch is of these types, or it is not an Avro schema.
    """
    kinds = [each for _, each in union_branches(schema)] if schema.kind == "AVRO" else []
    if not kinds:
        return schema
    names = {each: root_type_name(each) or each.text.strip('"') for each in kinds}
    selected = [each for each, name in names.items() if (name in types if types else name != "null")]
    if len(selected) != 1:
        found = ", ".join(names.values())
        raise SchemaMismatchError("", f"the root is a union of {found}; name one of its records in value.types")
    return selected[0]


@dataclass
class NamedTypes:
    """The named types of a schema by full name; references in them are full names."""

    types: dict[str, dict[str, Any]] = field(default_factory=dict)
    _recursive: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    def add(self, schema: Any, namespace: str = "") -> Any:
        """Collect the named types of a schema, and return it with each replaced by its full name."""
        if isinstance(schema, list):
            return [self.add(each, namespace) for each in schema]
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._full_name(schema, namespace)
        kind = schema["type"]
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {"type": kind, part: self.add(schema[part], namespace)}
        if not isinstance(kind, str):
            return self.add(kind, namespace)
        if kind in _NAMED:
            return self._add_named(schema, namespace)
        return _attributes(schema) if kind in _PRIMITIVES else self._full_name(kind, namespace)

    def _add_named(self, schema: dict[str, Any], namespace: str) -> str:
        name = str(schema["name"])
        namespace = name.rpartition(".")[0] if "." in name else schema.get("namespace", namespace)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        named = _attributes(schema) | {"name": full}
        if "." not in full:
            named["namespace"] = ""  # otherwise it would inherit that of the enclosing type
        self.types[full] = named
        self._recursive.clear()  # the new type may close a cycle
        if schema["type"] in ("record", "error"):
            named["type"] = "record"
            if not all(isinstance(f["name"], str) for f in schema["fields"]):
                raise ValueError("a field's name is not a string")
            named["fields"] = [
                {"name": f["name"], "type": self.add(f["type"], namespace), "doc": f.get("doc")}
                for f in schema["fields"]
            ]
        return full

    def type_at(self, schema: Any, path: str) -> dict[str, Any]:
        """The type at a path through records, lists (`[]`) and maps (`{}`); empty if there is none."""
        for part in (*_PATH_PART.findall(path), None):
            if isinstance(schema, list):
                schema = next((each for each in schema if each != "null"), None)
            if isinstance(schema, str):
                schema = self.types.get(schema)
            if not isinstance(schema, dict):
                return {}
            if part is None:
                return schema
            if part in _PATH_PARTS:
                schema = schema.get(_PATH_PARTS[part])
            else:
                schema = next((f["type"] for f in schema.get("fields", ()) if f["name"] == part), None)
        return {}

    def is_recursive(self, name: str) -> bool:
        """Whether a type may contain itself; cached, since it takes a walk along all types in it."""
        if name not in self._recursive:
            self._recursive[name] = name in self._reachable(name)
        return self._recursive[name]

    def _reachable(self, name: str) -> set[str]:
        """The types that may occur in a type, at any depth."""
        found, left = set[str](), self._referenced(self.types[name])
        while left:
            inner = left.pop()
            if inner not in found and inner in self.types:
                found.add(inner)
                left += self._referenced(self.types[inner])
        return found

    def _referenced(self, schema: Any) -> list[str]:
        """The type names in a schema."""
        if isinstance(schema, str):
            return [schema]
        if isinstance(schema, list):
            return [name for each in schema for name in self._referenced(each)]
        parts = [schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))]
        return [name for part in parts if part for name in self._referenced(part)]

    def _full_name(self, name: str, namespace: str) -> str:
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        return name if full not in self.types and name in self.types else full


def _attributes(schema: dict[str, Any]) -> dict[str, Any]:
    """What matters of a schema; an invalid logical type does not, as Avro's specification says."""
    kept = {name: value for name, value in schema.items() if name in _ATTRIBUTES}
    if not _has_valid_logical_type(schema):
        kept.pop("logicalType", None)
    return kept


def _has_valid_logical_type(schema: dict[str, Any]) -> bool:
    """Whether a schema's logical type is known and allowed on it, by the rules of Avro's Java library."""
    name = schema.get("logicalType")
    if not isinstance(name, str):
        return False
    if name != DECIMAL:
        return name in AVRO_TYPES and AVRO_TYPES[name].base == schema["type"]
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:  # a boolean is an int, too
        return False
    return 0 <= scale <= precision and 0 < precision <= min(_MAX_INT, _room(schema))


def logical_type(schema: dict[str, Any]) -> LogicalType | None:
    """What the values of a schema of `NamedTypes` mean beyond its base type; None for nothing, and for a decimal."""
    found = CONNECT_TYPES.get(str(schema.get("connect.name")))
    if found and found.base == schema.get("type"):
        return found
    return AVRO_TYPES.get(schema.get("logicalType", ""))


def is_decimal(schema: dict[str, Any]) -> bool:
    """Whether a schema of `NamedTypes` is a decimal."""
    return bool(schema.get("logicalType") == DECIMAL)


def is_unlimited_decimal(schema: dict[str, Any]) -> bool:
    """Whether a decimal declares more digits than any column has, as Connect's converter does without being told.

    Its precision then says nothing about its values.
    """
    return is_decimal(schema) and schema["precision"] > MAX_DIGITS


def select_fields(fields: list[Any], want: T.StructType) -> list[tuple[Any, T.DataType]]:
    """The wanted ones of a record's fields with their wanted types, in the wanted order."""
    by_name = {f["name"]: f for f in fields}
    return [(by_name[each.name], each.dataType) for each in want.fields if each.name in by_name]


@dataclass
class SchemaBuilder:
    """Builds a self-contained schema from named types.

    Attributes:
        names: The types.
        strict: Build a reader schema: refuse types that no column holds. Otherwise build a writer schema, in which a
            recursive record has one type per level. At `MAX_NESTING` that is a fixed longer than any record, so that
            records that go deeper are unreadable.
        enclosing: Full names of the records around the current position.
        built: The names of the types built so far, by full name and wanted part or level.
        sizes: How many fields the records built so far have, by name; see `size`.
    """

    names: NamedTypes
    strict: bool = False
    enclosing: tuple[str, ...] = ()
    built: dict[tuple[str, T.DataType | int | None], str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def build(self, schema: Any, path: str = "", want: T.DataType | None = None) -> Any:
        """Build a schema.

        Args:
            schema: A schema whose named types are replaced by their names.
            path: Its field, dotted.
            want: The wanted type. Records get only the fields of a wanted struct; all fields if it is not a struct.

        Raises:
            SchemaMismatchError: With the path of the field that no column holds.
        """
        if isinstance(schema, list):
            return self._union(schema, path, want)
        if isinstance(schema, dict):
            return self._unnamed(schema, path, want)
        return schema if schema in _PRIMITIVES else self._named(schema, path, want)

    def _named(self, name: str, path: str, want: T.DataType | None) -> Any:
        known = self.names.types.get(name)
        if known is None:
            raise SchemaMismatchError(path, f"is of type {name!r}, which the schema does not define")
        makes_another = T.BinaryType if is_decimal(known) else T.StructType if known["type"] == "record" else ()
        part = want if isinstance(want, makes_another) else None
        if self.strict and part is None and name in self.enclosing:
            raise SchemaMismatchError(path, f"is recursive ({name}), which no column type holds")
        level = None
        if not self.strict and self.names.is_recursive(name):
            level = min(len(_PATH_PART.findall(path)), MAX_NESTING)
        key = (name, level if part is None else part)
        if key in self.built:
            return self.built[key]
        # Other parts and levels of a record are other types and need other names; a record's name does not matter.
        is_known = any(each == name for each, _ in self.built)
        if is_known and known["type"] == "fixed":  # whose name matters
            raise SchemaMismatchError(path, f"is of type {name!r}, which other columns read as another type")
        unique = f"{name}_sluice_{len(self.built)}" if is_known else name
        self.built[key] = unique
        if level == MAX_NESTING:
            return {**known, "type": "fixed", "name": unique, "size": _TOO_LONG_BYTES, "fields": []}
        if known["type"] != "record":
            return self._unnamed(known, path, part)
        every = [(f, None) for f in known["fields"]]
        fields = select_fields(known["fields"], part) if isinstance(part, T.StructType) else every
        outer, self.enclosing = self.enclosing, (*self.enclosing, name)
        built = [
            {"name": f["name"], "type": self.build(f["type"], join_path(path, f["name"]), inner)} for f, inner in fields
        ]
        self.enclosing = outer
        self.sizes[unique] = sum(1 + self.size(each["type"]) for each in built)
        if self.sizes[unique] > (MAX_FIELDS if self.strict else MAX_NESTED_FIELDS):
            raise too_many_fields(path, MAX_FIELDS if self.strict else MAX_NESTED_FIELDS)
        return {**known, "name": unique, "fields": built}

    def size(self, built: Any) -> int:
        """How many fields are in a built schema, with those of a record counted at each use.

        In a writer schema, without those in unions, arrays and maps.
        """
        if isinstance(built, list):
            return sum(map(self.size, built)) if self.strict else 0
        if isinstance(built, str):
            return self.sizes.get(built, 0)
        if not self.strict and built["type"] in ("array", "map"):
            return 0
        if built["type"] in ("array", "map"):
            return self.size(built.get("items") or built["values"])
        return self.sizes.get(built.get("name", ""), 0)

    def _union(self, branches: list[Any], path: str, want: T.DataType | None) -> Any:
        kinds = [each for each in branches if each != "null"]
        if self.strict and len(kinds) != 1:
            names = ", ".join(str(k["type"]) if isinstance(k, dict) else k for k in kinds) or "only null"
            raise SchemaMismatchError(path, f"is a union of {names}, which no column type holds")
        return [self.build(each, path, want) for each in branches]

    def _unnamed(self, schema: dict[str, Any], path: str, want: T.DataType | None = None) -> Any:
        kind = schema["type"]
        if kind in ("array", "map"):
            part, mark = ("items", "[]") if kind == "array" else ("values", "{}")
            return {**schema, part: self.build(schema[part], path + mark, _wanted_inner(want, kind))}
        if not self.strict:
            return schema
        # Spark reads only decimals as such. Other logical types are converted afterwards: see `logical_conversions`.
        if not is_decimal(schema) or is_unlimited_decimal(schema) or isinstance(want, T.BinaryType):
            return {k: v for k, v in schema.items() if k != "logicalType"}
        return {**schema, "precision": _byte_digits(schema)} if widened_decimal(schema) else schema


def widened_decimal(schema: dict[str, Any]) -> T.DecimalType | None:
    """The type of a decimal that must be read with more digits than it declares, since its bytes may exceed 64 bits."""
    if not is_decimal(schema) or schema["precision"] > min(_MAX_LONG_DIGITS, _byte_digits(schema)):
        return None
    declared = T.DecimalType(schema["precision"], schema.get("scale", 0))
    return declared if _byte_digits(schema) > _MAX_LONG_DIGITS else None


def _byte_digits(schema: dict[str, Any]) -> int:
    """How many digits a decimal's bytes have room for, up to Iceberg's limit."""
    return min(MAX_DIGITS, _room(schema))


def _room(schema: dict[str, Any]) -> int:
    """How many digits fit into the bytes of a type; 0 if it has none."""
    match schema:
        case {"type": "bytes"}:
            return _MAX_INT
        case {"type": "fixed", "size": int(size)}:
            return int((8 * size - 1) * log10(2)) if size > 0 else 0
    return 0


def _wanted_inner(want: T.DataType | None, kind: str) -> T.DataType | None:
    """The wanted type of an array's items or a map's values."""
    if kind == "array":
        return want.elementType if isinstance(want, T.ArrayType) else None
    return want.valueType if isinstance(want, T.MapType) else None
