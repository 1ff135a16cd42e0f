"""Avro's schemas: the types that one names, the branches of a union at its root, and how Spark's reader is given it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import log10
from typing import Any

from pyspark.sql import types as T

from sluice.formats.convert import UnfitError, references_of
from sluice.formats.internal_columns import dotted
from sluice.kafka.registry import WriterSchema

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "error", "enum", "fixed"})
# Others are read as the type that they are made of: Spark has none that Iceberg takes.
_LOGICAL = frozenset(
    {
        "decimal",
        "date",
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
    }
)
_DIGITS = 38
# Of a decimal of up to so many digits Spark's reader takes the last 64 bits, whatever stands before them.
_DIGITS_OF_A_LONG = 18
# A type that holds itself is read where less than so many fields, items and values lie around it: Avro's readers call
# themselves for each, also in what nobody reads, and at some thousands the stack is full, which Spark counts as fatal.
DEEPEST = 64
_LONGEST = 64 << 20  # of a fixed, by the limits that the session sets: no record has so many bytes left
_INNER = {"[]": "items", "{}": "values"}
_STEP = re.compile(r"\[\]|\{\}|[^.\[{]+")


def parsed(schema: WriterSchema) -> tuple[Any, Names]:
    """A schema's root, and all types that it names.

    Raises:
        UnfitError: There is no Avro schema, or one that is nested too deep.
    """
    names = Names()
    with no_schema():
        for _, text in references_of(schema):
            names.add(json.loads(text))
        return names.add(json.loads(schema.text)), names


@contextmanager
def no_schema() -> Iterator[None]:
    """What is no schema, or one without an end, raises UnfitError."""
    try:
        yield
    except RecursionError as error:
        raise UnfitError("", "types are nested too deep") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnfitError("", f"there is no Avro schema ({type(error).__name__})") from error


def type_name(schema: WriterSchema) -> str | None:
    """The full name of the type at the root, if that is a named one.

    Raises:
        UnfitError: There is no Avro schema.
    """
    root, names = parsed(schema)
    return root if isinstance(root, str) and root in names.found else None


def branches(schema: WriterSchema) -> list[tuple[bytes, WriterSchema]]:
    """Of a union at the root, its branches: what stands before a value of each, and the schema of that value alone.

    Returns:
        Nothing where the root is no union.

    Raises:
        UnfitError: There is no Avro schema.
    """
    root, _ = parsed(schema)
    # The union itself is referred to, as it names what its branches are made of.
    known = (*schema.references, ("", schema.text))
    kinds = root if isinstance(root, list) else []
    return [(_number(at), replace(schema, text=json.dumps(k), references=known)) for at, k in enumerate(kinds)]


def _number(value: int) -> bytes:
    """As Avro writes a number from 0: doubled, in groups of seven bits, the lowest first."""
    left, groups = value << 1, bytearray()
    while left > 0x7F:
        groups.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*groups, left))


def alone(schema: WriterSchema, types: Collection[str]) -> WriterSchema:
    """Of an Avro union at the root the one branch that is of the types, or is not null; else the schema itself.

    Args:
        types: full names; none where all types are asked for.

    Raises:
        UnfitError: No branch, or more than one, is of them; or there is no Avro schema.
    """
    kinds = [each for _, each in branches(schema)] if schema.kind == "AVRO" else []
    if not kinds:
        return schema
    named = {each: type_name(each) or each.text.strip('"') for each in kinds}
    mine = [each for each, name in named.items() if (name in types if types else name != "null")]
    if len(mine) != 1:
        found = ", ".join(named.values())
        raise UnfitError("", f"the root is a union of {found}: let value.types name one record of it")
    return mine[0]


@dataclass
class Names:
    """Named types by their full names, with every reference written as one."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    _looped: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    def add(self, schema: Any, space: str = "") -> Any:
        """The schema with each named type replaced by its full name; remembers what they are."""
        if isinstance(schema, list):
            return [self.add(each, space) for each in schema]
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._full(schema, space)
        kind = schema["type"]
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {"type": kind, part: self.add(schema[part], space)}
        if not isinstance(kind, str):
            return self.add(kind, space)
        if kind not in _NAMED:
            return {k: v for k, v in schema.items() if k in _KEPT} if kind in _PRIMITIVES else self._full(kind, space)
        name = str(schema["name"])
        space = name.rpartition(".")[0] if "." in name else schema.get("namespace", space)
        full = name if "." in name or not space else f"{space}.{name}"
        kept = {k: v for k, v in schema.items() if k in _KEPT} | {"name": full}
        if "." not in full:
            kept["namespace"] = ""  # or it would take that of the type around it
        self.found[full] = kept
        self._looped.clear()  # it may close a loop
        if kind in ("record", "error"):
            kept["type"] = "record"
            if not all(isinstance(f["name"], str) for f in schema["fields"]):
                raise ValueError("a field's name is no text")
            kept["fields"] = [
                {"name": f["name"], "type": self.add(f["type"], space), "doc": f.get("doc")} for f in schema["fields"]
            ]
        return full

    def semantic(self, schema: Any, path: str) -> str | None:
        """The name that Kafka Connect gave to the type at a path, as in `at`."""
        name = self.at(schema, path).get("connect.name")
        return name if isinstance(name, str) else None

    def at(self, schema: Any, path: str) -> dict[str, Any]:
        """What is said of the type at a path through records, lists (`[]`) and maps (`{}`); nothing where none is."""
        for part in (*_STEP.findall(path), None):
            if isinstance(schema, list):
                schema = next((each for each in schema if each != "null"), None)
            if isinstance(schema, str):
                schema = self.found.get(schema)
            if not isinstance(schema, dict):
                return {}
            if part is None:
                return schema
            if part in _INNER:
                schema = schema.get(_INNER[part])
            else:
                schema = next((f["type"] for f in schema.get("fields", ()) if f["name"] == part), None)
        return {}

    def holds_itself(self, name: str) -> bool:
        """Whether a record may stand within itself; found out once, as it takes a walk along all types in it."""
        if name not in self._looped:
            self._looped[name] = name in self._within(name)
        return self._looped[name]

    def _within(self, name: str) -> set[str]:
        """The types that may stand in a record, however deep."""
        met, left = set[str](), self._named(self.found[name])
        while left:
            inner = left.pop()
            if inner not in met and inner in self.found:
                met.add(inner)
                left += self._named(self.found[inner])
        return met

    def _named(self, schema: Any) -> list[str]:
        """The types that are named in a schema."""
        if isinstance(schema, str):
            return [schema]
        if isinstance(schema, list):
            return [name for each in schema for name in self._named(each)]
        parts = [schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))]
        return [name for part in parts if part for name in self._named(part)]

    def _full(self, name: str, space: str) -> str:
        full = f"{space}.{name}" if space and "." not in name else name
        return name if full not in self.found and name in self.found else full


_KEPT = frozenset({"type", "logicalType", "precision", "scale", "size", "symbols", "connect.name"})


def wanted_of(fields: list[Any], want: T.StructType) -> list[tuple[Any, T.DataType]]:
    """The fields that are wanted, each with what is wanted of it, in that order: then nothing is left to rearrange."""
    there = {f["name"]: f for f in fields}
    return [(there[each.name], each.dataType) for each in want.fields if each.name in there]


@dataclass
class Emitter:
    """Writes a schema out; a strict one refuses what no column holds, in what is wanted of it.

    One that is not strict has a type for each level of a record that holds itself, down to `DEEPEST`: there stands what
    is longer than any record, so that one that goes on is none of the schema.
    """

    names: Names
    strict: bool = False
    inside: tuple[str, ...] = ()
    met: dict[tuple[str, T.StructType | int | None], str] = field(default_factory=dict)

    def emit(self, schema: Any, path: str = "", want: T.DataType | None = None) -> Any:
        """The schema, written out; of records those fields that a wanted struct has, else all of them.

        Raises:
            UnfitError: with the field's path.
        """
        if isinstance(schema, list):
            return self._union(schema, path, want)
        if isinstance(schema, dict):
            return self._plain(schema, path, want)
        if schema in _PRIMITIVES:
            return schema
        known = self.names.found.get(schema)
        if known is None:
            raise UnfitError(path, f"is of a type {schema!r} that is defined nowhere")
        part = want if isinstance(want, T.StructType) and known["type"] == "record" else None
        if self.strict and part is None and schema in self.inside:
            raise UnfitError(path, f"holds itself ({schema}): a column can't nest without end")
        level = None
        if not self.strict and self.names.holds_itself(schema):
            level = min(len(_STEP.findall(path)), DEEPEST)
        key = (schema, level if part is None else part)
        if key in self.met:
            return self.met[key]
        # Other parts and levels of a record are other types, which need names of their own; a record's may be any.
        name = f"{schema}_sluice_{len(self.met)}" if any(each == schema for each, _ in self.met) else schema
        self.met[key] = name
        if level == DEEPEST:
            return {**known, "type": "fixed", "name": name, "size": _LONGEST, "fields": []}
        if known["type"] != "record":
            return self._plain(known, path)
        fields = [(f, None) for f in known["fields"]] if part is None else wanted_of(known["fields"], part)
        outer, self.inside = self.inside, (*self.inside, schema)
        made = [{"name": f["name"], "type": self.emit(f["type"], dotted(path, f["name"]), of)} for f, of in fields]
        self.inside = outer
        return {**known, "name": name, "fields": made}

    def _union(self, branches: list[Any], path: str, want: T.DataType | None) -> Any:
        kinds = [each for each in branches if each != "null"]
        if self.strict and len(kinds) != 1:
            named = ", ".join(str(k["type"]) if isinstance(k, dict) else k for k in kinds) or "nothing but null"
            raise UnfitError(path, f"is a union of {named}, which no column type holds")
        return [self.emit(each, path, want) for each in branches]

    def _plain(self, schema: dict[str, Any], path: str, want: T.DataType | None = None) -> Any:
        kind = schema["type"]
        if kind == "record":
            return {**schema, "fields": [{**f, "type": self.emit(f["type"], path)} for f in schema["fields"]]}
        if kind in ("array", "map"):
            part, mark = ("items", "[]") if kind == "array" else ("values", "{}")
            return {**schema, part: self.emit(schema[part], path + mark, _inner(want, kind))}
        if not self.strict:
            return schema
        if schema.get("logicalType") == "decimal" and schema.get("precision", 0) > _DIGITS:
            raise UnfitError(path, f"is a decimal of {schema['precision']} digits, and Iceberg has {_DIGITS}")
        if schema.get("logicalType") not in _LOGICAL:
            return {k: v for k, v in schema.items() if k != "logicalType"}
        return {**schema, "precision": _room(schema)} if read_wider(schema) else schema


def read_wider(schema: dict[str, Any]) -> T.DecimalType | None:
    """The type of a decimal that is read with more digits than it has, as more than 64 bits may stand in its bytes."""
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or not isinstance(digits, int) or not isinstance(scale, int):
        return None
    fits = 0 <= scale <= digits and 0 < digits <= min(_DIGITS_OF_A_LONG, _room(schema))
    return T.DecimalType(digits, scale) if fits and _room(schema) > _DIGITS_OF_A_LONG else None


def _room(schema: dict[str, Any]) -> int:
    """How many digits of a decimal its bytes hold, as far as Iceberg does."""
    match schema:
        case {"type": "bytes"}:
            return _DIGITS
        case {"type": "fixed", "size": int(size)}:
            return min(_DIGITS, int((8 * size - 1) * log10(2)))
    return 0


def _inner(want: T.DataType | None, kind: str) -> T.DataType | None:
    """What is wanted of the items of an array, or of the values of a map."""
    if kind == "array":
        return want.elementType if isinstance(want, T.ArrayType) else None
    return want.valueType if isinstance(want, T.MapType) else None
