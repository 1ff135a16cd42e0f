"""Avro: read in the JVM by spark-avro, each record with the schema that it was written with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from sluice import semantics
from sluice.fields import MARK, Side, dotted, problem
from sluice.fit import Change, Meaning, UnfitError, text_in
from sluice.registry import WriterSchema
from sluice.wire import Decoded, Variant, by_schema

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
_WHOLE, _END = "_sluice_whole", "_sluice_end"
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
_DIGITS = 38
# A type that holds itself is read where less than so many fields, items and values lie around it: Avro's readers call
# themselves for each, also in what nobody reads, and at some thousands the stack is full, which Spark counts as fatal.
DEEPEST = 64
_LONGEST = 64 << 20  # of a fixed, by the limits that the session sets: no record has so many bytes left
_INNER = {"[]": "items", "{}": "values"}
_STEP = re.compile(r"\[\]|\{\}|[^.\[{]+")


def avro_fields(frame: DataFrame, wanted: T.StructType, side: Side) -> DataFrame:
    """Add the wanted fields of Avro in Confluent's wire format."""
    frame = by_schema(frame, wanted, side, "AVRO", lambda variant: _decode(variant, wanted, side), _name)
    # Spark takes the bytes of a string as they are; a table with others than UTF-8 can't be read by everybody.
    fields = F.col(side.fields)
    garbled = [
        F.when(~is_text, problem(f"field {f.name!r} is not UTF-8 text", f.name))
        for f in wanted.fields
        if (is_text := text_in(fields[f.name], f.dataType)) is not None
    ]
    return frame.withColumn(side.problem, F.coalesce(F.col(side.problem), *garbled)) if garbled else frame


def _name(variant: Variant) -> str | None:
    """The full name of the type at the root, if that is a named one."""
    root, names = parsed(variant.schema)
    return root if isinstance(root, str) and root in names.found else None


def parsed(schema: WriterSchema) -> tuple[Any, Names]:
    """A schema's root, and all types that it names.

    Raises:
        UnfitError: There is no Avro schema, or one that is nested too deep.
    """
    names = Names()
    with _no_schema():
        for _, text in schema.references:
            names.add(json.loads(text))
        return names.add(json.loads(schema.text)), names


@contextmanager
def _no_schema() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise UnfitError("", "types are nested too deep") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnfitError("", f"there is no Avro schema ({type(error).__name__})") from error


def _decode(variant: Variant, wanted: T.StructType, side: Side) -> Decoded:
    root, names = parsed(variant.schema)
    with _no_schema():
        whole = side.whole in wanted.names
        if not whole:
            _check(root, names, wanted)
        want = wanted[side.whole].dataType if whole else wanted
        writer = _ended(Emitter(names).emit(root))
        reader = _ended(Emitter(names, strict=True).emit(root, want=want))
    read = from_avro(
        F.concat(variant.payload, F.lit(MARK)), json.dumps(writer), {**_OPTIONS, "avroSchema": json.dumps(reader)}
    )

    def opened(it: Column) -> Column:
        # What can't be read is a record of nulls, and Spark's reader stops where the record ends, whatever follows.
        read = it.getField(_WHOLE)
        return F.when(it.getField(_END) == F.lit(MARK), F.struct(read.alias(side.whole)) if whole else read)

    return Decoded(read, opened, meaning(root, names, side.whole if whole else ""))


def meaning(root: Any, names: Names, whole: str = "") -> Meaning:
    """What Kafka Connect's names say of whole numbers.

    Args:
        whole: where the root stands in what is wanted.
    """

    def means(path: str, want: T.DataType) -> Change | None:
        name = names.semantic(root, path.removeprefix(whole).removeprefix("."))
        if name in semantics.DATES and isinstance(want, T.DateType):
            return semantics.date
        if name in semantics.MOMENTS and isinstance(want, (T.TimestampType, T.TimestampNTZType)):
            return lambda units: semantics.moment(units, F.lit(semantics.MOMENTS[name]).cast("long"), want)
        return None

    return means


@dataclass
class Names:
    """Named types by their full names, with every reference written as one."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

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
        if kind in ("record", "error"):
            kept["type"] = "record"
            kept["fields"] = [{"name": f["name"], "type": self.add(f["type"], space)} for f in schema["fields"]]
        return full

    def semantic(self, schema: Any, path: str) -> str | None:
        """The name that Kafka Connect gave to the type at a path through records, lists (`[]`) and maps (`{}`)."""
        for part in (*_STEP.findall(path), None):
            if isinstance(schema, list):
                schema = next((each for each in schema if each != "null"), None)
            if isinstance(schema, str):
                schema = self.found.get(schema)
            if not isinstance(schema, dict):
                return None
            if part is None:
                name = schema.get("connect.name")
                return name if isinstance(name, str) else None
            if part in _INNER:
                schema = schema.get(_INNER[part])
            else:
                schema = next((f["type"] for f in schema.get("fields", ()) if f["name"] == part), None)
        return None

    def holds_itself(self, name: str) -> bool:
        """Whether a record may stand within itself."""
        met, left = set[str](), self._named(self.found[name])
        while left:
            inner = left.pop()
            if inner not in met and inner in self.found:
                met.add(inner)
                left += self._named(self.found[inner])
        return name in met

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


def _ended(schema: Any) -> dict[str, Any]:
    """What is written with a schema, and the mark after it."""
    mark = {"type": "fixed", "name": _END, "size": len(MARK)}
    return {
        "type": "record",
        "name": _WHOLE,
        "fields": [{"name": _WHOLE, "type": schema}, {"name": _END, "type": mark}],
    }


def _check(root: Any, names: Names, wanted: T.StructType) -> None:
    """Refuse what is no record, or has nothing that columns read."""
    found = names.found.get(root) if isinstance(root, str) else root
    if not isinstance(found, dict) or found.get("type") != "record":
        raise UnfitError("", "the root is no record with fields")
    # A record of another kind, and a row of nulls would be all that it says.
    if wanted.names and not wanted_of(found["fields"], wanted):
        raise UnfitError("", f"record {found['name']} has none of the fields that columns read")


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
        return schema


def _inner(want: T.DataType | None, kind: str) -> T.DataType | None:
    """What is wanted of the items of an array, or of the values of a map."""
    if kind == "array":
        return want.elementType if isinstance(want, T.ArrayType) else None
    return want.valueType if isinstance(want, T.MapType) else None
