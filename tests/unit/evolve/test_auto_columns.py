"""`columns: auto`: the columns of the registry's newest schema by format, and what a contract changes in them."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from grpc_tools import protoc
from py4j.protocol import Py4JError
from pydantic import ValidationError

from sluice.cli import main
from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.contract.shape import shape
from sluice.contract.values import root_name
from sluice.errors import (
    ConfigError,
    RegistryUnavailableError,
    SchemaChangeError,
    SchemaMissingError,
    SluiceError,
)
from sluice.evolve import auto_columns, evolve, pending_change
from sluice.formats.convert import SchemaField, SchemaMismatchError, schema_failures_as_mismatch
from sluice.formats.inferred_columns import FIELD_READERS
from sluice.formats.logical_types import AVRO_TYPES, CONNECT_TYPES
from sluice.formats.protobuf import spark_arrow_schema
from sluice.formats.protobuf_descriptors import descriptor_files
from sluice.iceberg import tables
from sluice.kafka.registry import WriterSchema

pytestmark = pytest.mark.unit

LOGICAL = {
    "uuid": "string", "date": "int", "time-millis": "int", "time-micros": "long", "timestamp-millis": "long",
    "timestamp-micros": "long", "local-timestamp-millis": "long", "local-timestamp-micros": "long",
    "timestamp-nanos": "long",
}  # fmt: skip
LOGICAL_TYPES = {
    "uuid": "uuid", "date": "date", "time-millis": "int", "time-micros": "long", "timestamp-millis": "timestamptz",
    "timestamp-micros": "timestamptz", "local-timestamp-millis": "timestamp", "local-timestamp-micros": "timestamp",
    "timestamp-nanos": "long",
}  # fmt: skip
DEBEZIUM = [
    ("int", "Date", "date"),
    ("long", "Timestamp", "timestamp"),
    ("long", "MicroTimestamp", "timestamp"),
    ("string", "ZonedTimestamp", "timestamptz"),
    ("long", "NanoTimestamp", "long"),
    ("string", "IsoDate", "date"),
    ("string", "IsoTimestamp", "timestamp"),
    ("string", "IsoTime", "string"),
    ("string", "Date", "string"),
]
DECIMAL = {"logicalType": "decimal", "precision": 9, "scale": 2}

INVALID = [
    {"precision": "10"}, {"precision": None}, {"precision": 0}, {"precision": 2, "scale": 5}, {"scale": -1},
    {"precision": True, "scale": 0}, {"precision": 10.0}, {"scale": "2"}, {"precision": 2**31}, {"precision": [9]},
]  # fmt: skip


def record(fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    listed = [{"name": n, "type": k} for n, k in fields.items()]
    return {"type": "record", "name": name, "namespace": "t", "fields": listed}


AVRO: list[tuple[Any, str]] = [
    *((each, each) for each in ("boolean", "int", "long", "float", "double", "string")),
    ("bytes", "binary"),
    *(({"type": base, "logicalType": name}, LOGICAL_TYPES[name]) for name, base in LOGICAL.items()),
    ({"type": "string", "logicalType": "date"}, "string"),  # of another base it is none
    ({"type": "bytes", **DECIMAL}, "decimal(9, 2)"),
    ({"type": "fixed", "name": "D", "size": 4, **DECIMAL}, "decimal(9, 2)"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5}, "decimal(5, 0)"),
    ({"type": "bytes", **DECIMAL, "precision": 64}, "decimal(38, 2)"),
    # What Avro's rules do not allow is no logical type.
    *(({"type": "bytes", **DECIMAL, **wrong}, "binary") for wrong in INVALID),
    ({"type": "fixed", "name": "D1", "size": 3, **DECIMAL}, "fixed[3]"),
    ({"type": "string", **DECIMAL}, "string"),
    ({"type": "long", "logicalType": "date"}, "long"),
    ({"type": "int", "logicalType": ["date"]}, "int"),
    *(({"type": base, "connect.name": f"io.debezium.time.{name}"}, kind) for base, name, kind in DEBEZIUM),
    ({"type": "array", "items": {"type": "int", "connect.name": "io.debezium.time.Date"}}, "list<date>"),
    (
        {"type": "map", "values": {"type": "long", "connect.name": "io.debezium.time.Timestamp"}},
        "map<string, timestamp>",
    ),
    ({"type": "fixed", "name": "F", "size": 3}, "fixed[3]"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
    ({"type": {"type": "string"}}, "string"),
    (["null", "int"], "int"),
    (["int"], "int"),
    ({"type": "array", "items": ["null", "bytes"]}, "list<binary>"),
    ({"type": "map", "values": "double"}, "map<string, double>"),
    (record({"a": "int", "b": record({"c": ["string", "null"]}, "In")}, "Out"), "struct<a: int, b: struct<c: string>>"),
]
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message First {
  int32 i = 1; sint64 l = 2; uint32 u = 3; fixed64 u64 = 4; float f = 5; double d = 6; bool b = 7; string s = 8;
  bytes by = 9; E e = 10; Second m = 11; repeated Second ms = 12; map<int32, Second> mm = 13; optional int32 o = 14;
  google.protobuf.Timestamp at = 15; google.protobuf.Duration lasts = 16; google.protobuf.StringValue w = 17;
  oneof choice { string left = 18; int64 right = 19; }
}
enum E { NONE = 0; }
message Second { string name = 1; }
"""
PROTO_TYPES = {
    "i": "int", "l": "long", "u": "long", "u64": "decimal(20, 0)", "f": "float", "d": "double", "b": "boolean",
    "s": "string", "by": "binary", "e": "string", "m": "struct<name: string>", "ms": "list<struct<name: string>>",
    "mm": "map<string, struct<name: string>>", "o": "int", "at": "timestamptz", "lasts": "long", "w": "string",
    "left": "string", "right": "long",
}  # fmt: skip
CONNECT = "org.apache.kafka.connect.data."
CONNECT_JSON: list[tuple[str, str, Any, str]] = [
    ("integer", "Timestamp", {}, "timestamptz"),
    ("string", "Timestamp", {}, "string"),
    ("integer", "Date", {}, "date"),
    ("integer", "Time", {}, "long"),
    ("number", "Decimal", {"connect.parameters": {"scale": "2"}}, "decimal(38, 2)"),
    ("string", "Decimal", {"connect.parameters": {"scale": "2", "connect.decimal.precision": "9"}}, "decimal(9, 2)"),
]
OWN = "https://own.example/a.json"
JSON: list[tuple[Any, str]] = [
    ({"type": "boolean"}, "boolean"),
    ({"type": "integer"}, "long"),
    ({"type": "number"}, "double"),
    ({"type": "string", "format": "email"}, "string"),
    ({"type": "string", "format": "date"}, "date"),
    ({"type": "string", "format": "date-time"}, "timestamptz"),
    ({"type": "string", "format": "uuid"}, "uuid"),
    ({"enum": ["a", "b"]}, "string"),
    ({"type": ["null", "integer"]}, "long"),
    ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "long"),
    ({"$ref": "#/$defs/place"}, "struct<city: string>"),
    ({"$ref": "other.json#/$defs/x"}, "long"),
    ({"$ref": f"{OWN}#/$defs/place"}, "struct<city: string>"),
    ({"type": "array", "items": {"$ref": "#/$defs/place"}}, "list<struct<city: string>>"),
    ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string, double>"),
    *(({"type": base, "title": f"{CONNECT}{name}", **more}, kind) for base, name, more, kind in CONNECT_JSON),
    ({"type": "string", "connect.type": "bytes"}, "binary"),
    ({"type": "integer", "connect.type": "int64"}, "long"),
    ({"type": "string", "title": "io.debezium.time.ZonedTimestamp"}, "timestamptz"),
    ({"$ref": "other.json#/$defs/x", "title": f"{CONNECT}Timestamp"}, "timestamptz"),
    ({"oneOf": [{"type": "null"}, {"type": "integer"}], "title": f"{CONNECT}Date"}, "date"),
]
DEFS = {
    "place": {"type": "object", "properties": {"city": {"type": "string"}}},
    "loop": {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/loop"}]}}},
}
OTHER = json.dumps({"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"type": "integer"}}})


def read(form: str, text: Any, skip: tuple[str, ...] = ()) -> list[SchemaField]:
    kind, reader = FIELD_READERS[form]
    body = text if isinstance(text, str) else json.dumps(text)
    references = (("other.json", OTHER),) if form == "json_schema" else ()
    return list(reader(WriterSchema(1, kind, body, references), skip))


def test_every_type_of_each_format() -> None:
    for form, cases, whole in (
        ("avro", AVRO, lambda kind: record({"x": kind})),
        ("json_schema", JSON, lambda kind: {"$id": OWN, "type": "object", "properties": {"x": kind}, "$defs": DEFS}),
    ):
        for kind, wanted in cases:
            (found,) = read(form, whole(kind))
            assert str(found.type) == wanted, kind
    assert {f.name: str(f.type) for f in read("protobuf", PROTO)} == PROTO_TYPES


def test_a_number_that_counts_time_has_the_unit_that_its_schema_names() -> None:
    avro = {
        "time-millis": "millis", "time-micros": "micros", "timestamp-nanos": "nanos", "local-timestamp-nanos": "nanos",
        "timestamp-millis": None, "date": None,
    }  # fmt: skip
    names = {
        f"{CONNECT}Time": "millis", "io.debezium.time.Time": "millis", "io.debezium.time.MicroTime": "micros",
        "io.debezium.time.NanoTime": "nanos", "io.debezium.time.NanoTimestamp": "nanos",
        "io.debezium.time.MicroTimestamp": None, "io.debezium.time.Date": None, "x.Y": None,
    }  # fmt: skip

    def unit(kind: Any, form: str = "avro") -> str | None:
        whole = record({"x": kind}) if form == "avro" else {"properties": {"x": kind}}
        listed = auto_columns.list_columns(
            contract(value={"format": form}), WriterSchema(7, FIELD_READERS[form][0], json.dumps(whole)), "t-value"
        )
        (column,) = listed.columns
        return column.unit

    for name, wanted in avro.items():
        base = AVRO_TYPES[name].base
        assert unit(["null", {"type": base, "logicalType": name}]) == wanted, name
    for name, wanted in names.items():
        base = CONNECT_TYPES[name].base if name in CONNECT_TYPES else "long"
        assert unit(["null", {"type": base, "connect.name": name}]) == wanted, name
        assert unit({"oneOf": [{"type": "null"}, {"type": "integer", "title": name}]}, "json_schema") == wanted, name
    assert unit("long") is None
    assert unit({"type": "array", "items": {"type": "int", "logicalType": "time-millis"}}) is None


UNFIT = [
    ("avro", record({"a": record({"b": ["int", "string"]}, "In")}), "a.b", "union of int, string"),
    ("avro", record({"a": {"type": "array", "items": ["null", "t.R"]}}), "a[]", "is recursive"),
    ("avro", record({"a": {"type": "bytes", **DECIMAL, "precision": 64, "scale": 39}}), "a", "scale 39"),
    ("avro", "string", "", "not a record"),
    ("avro", {"type": "record", "name": "R"}, "", "not an Avro schema"),
    ("protobuf", 'syntax = "proto3"; message A { A a = 1; }', "a", "is recursive"),
    ("protobuf", 'syntax = "proto3"; message A { B b = 1; } message B {}', "b", "without fields"),
    ("protobuf", 'syntax = "proto2"; message A { repeated group G = 1 { optional int32 i = 1; } }', "g", "a group"),
    ("protobuf", 'syntax = "proto3"; enum E { X = 0; }', "", "no message"),
    ("json_schema", {"properties": {"a": {"type": ["string", "integer"]}}}, "a", "several types"),
    ("json_schema", {"properties": {"a": {"type": "object"}}}, "a", "unknown fields"),
    ("json_schema", {"properties": {"a": {"type": "array", "items": True}}}, "a[]", "anything"),
    ("json_schema", {"properties": {"a": {"$ref": "#/$defs/loop"}}, "$defs": DEFS}, "a.next", "is recursive"),
    ("json_schema", {"properties": {"a": {"$ref": "#/nowhere"}}}, "a", "does not have"),
    *(
        ("json_schema", schema if root else {"properties": {"s": schema}, "$defs": DEFS}, "" if root else "s", "beside")
        for beside in ({"allOf": [{"properties": {"b": {}}}]}, {"oneOf": []}, {"if": {}}, {"$ref": "#/$defs/loop"})
        for schema in ({"properties": {"a": {"type": "string"}}, **beside, "$defs": DEFS},)
        for root in (True, False)
    ),
    ("json_schema", {"type": "array"}, "", "not an object with properties"),
    ("json_schema", {"properties": {"a.b": {"type": "object"}}}, "`a.b`", "unknown fields"),
    ("json_schema", {"properties": {"a.b": {"type": "array", "items": True}}}, "`a.b`[]", "anything"),
    ("json_schema", {"properties": {"$a": {"properties": {"b.c": {"type": "long"}}}}}, "`$a`.`b.c`", "no field of a"),
    (
        "json_schema",
        {"properties": {"a": {"properties": {"b: int, c": {"type": "string"}}}}},
        "a.b: int, c",
        "no field",
    ),
]


@pytest.mark.parametrize(("form", "text", "path", "words"), UNFIT)
def test_what_no_column_holds_is_refused_with_its_path_unless_it_is_skipped(
    form: str, text: Any, path: str, words: str
) -> None:
    body = json.dumps(text) if form == "avro" else text
    with pytest.raises(SchemaMismatchError, match=words) as caught:
        read(form, body)
    assert caught.value.path == path
    if path:
        name = root_name(path)
        assert [(f.name, f.type) for f in read(form, body, (name,))] == [(name, None)]


class Newest:
    """What a registry answers; the real one is asked in tests/spark/evolve/test_auto_columns.py."""

    def __init__(self, answer: WriterSchema | SluiceError | None) -> None:
        self.answer, self.asked = answer, ""

    def newest(self, subject: str) -> WriterSchema | None:
        self.asked = subject
        if isinstance(self.answer, SluiceError):
            raise self.answer
        return self.answer


def contract(columns: Any = "auto", **fields: Any) -> Contract:
    about = {"table": "ns.t", "topic": "t", "group": "g", "owner": "me", "value": {"format": "avro"}}
    return Contract.model_validate({**about, "columns": columns, **fields})


def avro(fields: dict[str, Any]) -> WriterSchema:
    return WriterSchema(7, "AVRO", json.dumps(record(fields)))


def columns(of: Contract) -> dict[str, str]:
    return {c.name: str(c.type) for c in of.columns}


ID = {"name": "id", "type": "string", "source": "$key"}
MOMENT = {"type": "long", "logicalType": "timestamp-micros"}


def test_what_is_listed_takes_the_place_of_the_field_it_reads_and_the_rest_follows() -> None:
    listed = [
        ID,
        {"name": "city", "type": "string", "source": "place.city"},
        {"name": "twice", "type": "long", "expression": "hidden * 2"},
    ]
    file = contract(
        [*listed, {"auto": {"omit": ["ssn"]}}],
        mode="upsert", identifier=["id"], order=["lsn"], deletes="ignore", partition_by=["day(at)"],
        inputs=[{"name": "hidden", "type": "long"}], start="2024-01-01T00:00:00Z", freshness="2h",
        maintenance={"strategy": "sort", "sort_by": ["at"]},
        expectations=[{"type": "expect_column_values_to_be_between", "column": "n", "min_value": 1}],
    )  # fmt: skip
    place = record({"city": "string", "any": ["int", "string"]}, "P")
    known = {"lsn": "long", "place": place, "hidden": "long", "at": MOMENT, "ssn": "string", "n": ["null", "int"]}
    newest = Newest(avro(known))
    found = auto_columns.resolve_columns(file, newest)  # type: ignore[arg-type]
    assert newest.asked == "t-value"
    assert columns(found) == {
        "id": "string", "city": "string", "twice": "long", "lsn": "long", "at": "timestamptz", "n": "int"
    }  # fmt: skip
    assert found.auto is None
    assert found.column("lsn").required and not found.column("n").required
    kept = ("start", "freshness", "inputs", "expectations", "maintenance", "deletes", "partition_by", "order")
    assert all(getattr(found, name) == getattr(file, name) for name in kept)
    assert found.model_fields_set == file.model_fields_set - {"auto"}
    as_listed = [c.model_dump(mode="json", exclude_defaults=True) for c in found.columns]
    again = Contract.model_validate(
        {**file.model_dump(mode="json", exclude_unset=True, exclude={"auto"}), "columns": as_listed}
    )
    assert shape(again) == shape(found), "it is the contract that lists them"
    assert auto_columns.resolve_columns(found) is found


UNION = WriterSchema(7, "AVRO", json.dumps([record({"n": "int"}, "A"), record({"a": "A"}, "B"), "null"]))
NAMED = {"auto": {"subject": "t-value"}}


@pytest.mark.parametrize(("kind", "found"), [("t.A", {"n": "int"}), ("t.B", {"a": "struct<n: int>"})])
def test_of_a_union_at_the_root_the_columns_are_those_of_the_type_that_the_table_takes(kind: str, found: Any) -> None:
    named = contract([NAMED], value={"format": "avro", "types": [kind]})
    assert columns(auto_columns.resolve_columns(named, Newest(UNION))) == found  # type: ignore[arg-type]


def test_of_null_and_one_record_the_columns_are_the_records() -> None:
    newest = Newest(WriterSchema(7, "AVRO", json.dumps(["null", record({"n": "int"})])))
    assert columns(auto_columns.resolve_columns(contract(), newest)) == {"n": "int"}  # type: ignore[arg-type]


EDITION = 'edition = "2023"; message M { int32 i = 1; }'
CHAIN = 'syntax = "proto3";' + "".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(800)) + "message M800 {}"
SAYS: list[tuple[Any, dict[str, Any], Any, str]] = [
    ("auto", {}, avro({"a-b": "int"}) , "'a-b' is not a name"),
    ("auto", {}, avro({"a": "null"}), "'a' of the newest schema can't become a column.*'null'"),
    ("auto", {}, avro({"_kafka_x": "int"}), "'_kafka_x' of the newest schema can't become a column.*reserved"),
    ("auto", {}, avro({"_file": "int"}), "Iceberg's own metadata"),
    ("auto", {}, avro({"a": "int", "A": "int"}), "is a duplicate"),
    ([ID, "auto"], {}, avro({"id": "int"}), "is a duplicate"),
    ("auto", {}, avro({"a": ["int", "string"]}), r"'a' of the newest schema is a union.*omit: \[a\]"),
    ([{"auto": {"omit": ["snn"]}}], {}, avro({"ssn": "int"}), "no field 'snn' to omit .did you mean 'ssn'"),
    ("auto", {"mode": "upsert", "identifier": ["idd"]}, avro({"id": "int"}), "no column 'idd' .did you mean 'id'"),
    ("auto", {"mode": "upsert", "identifier": ["id"]}, avro({"id": "double"}), "a double cannot be a key"),
    ("auto", {"partition_by": ["day(n)"]}, avro({"n": "int"}), "partition_by"),
    ("auto", {"expectations": [{"type": "expect_column_values_to_not_be_null", "column": "m"}]}, avro({"n": "int"}),
     "no column 'm'"),
    ("auto", {}, WriterSchema(1, "JSON", "{}"), "type JSON"),
    # What the library that reads it has no idea of, and more than Python's stack holds.
    ("auto", {"value": {"format": "protobuf"}}, WriterSchema(1, "PROTOBUF", EDITION), "an edition of Protobuf"),
    ("auto", {"value": {"format": "protobuf"}}, WriterSchema(1, "PROTOBUF", CHAIN), r"be read .RecursionError"),
    ("auto", {}, None, "no schema of subject t-value"),
    ("auto", {}, UNION, "a union of t.A, t.B, null; name one of its records in value.types"),
    ([NAMED], {"value": {"format": "avro", "types": ["t.C"]}}, UNION, "a union of t.A, t.B, null"),
    ([NAMED], {"value": {"format": "avro", "types": ["t.A", "t.B"]}}, UNION, "a union of t.A, t.B, null"),
    ("auto", {}, WriterSchema(1, "AVRO", '["null", "string", "int"]'), "a union of null, string, int"),
    ("auto", {}, WriterSchema(1, "AVRO", '["null", "string"]'), "the root is not a record"),
]  # fmt: skip


@pytest.mark.parametrize(("listed", "fields", "newest", "words"), SAYS)
def test_what_makes_no_contract_says_why_and_the_way_out(listed: Any, fields: Any, newest: Any, words: str) -> None:
    with pytest.raises((SchemaChangeError, SchemaMissingError), match=words) as caught:
        auto_columns.resolve_columns(contract(listed, **fields), Newest(newest))  # type: ignore[arg-type]
    assert caught.value.next_step
    assert caught.value.fields["table"] == "ns.t"


def test_a_panic_of_the_library_that_reads_messages_is_told_as_the_schemas_fault() -> None:
    """Which is no Exception: here of an edition, which is refused before by those who read records."""
    files = descriptor_files(WriterSchema(1, "PROTOBUF", EDITION))
    with pytest.raises(SchemaMismatchError, match=r"descriptors cannot be read"):
        spark_arrow_schema(files, "M")


@pytest.mark.parametrize("failure", [OSError(28, "No space left"), MemoryError(), ImportError(), Py4JError("gone")])
def test_what_is_no_schemas_fault_sets_no_records_apart(failure: Exception) -> None:
    with pytest.raises(type(failure)), schema_failures_as_mismatch():
        raise failure


def test_a_disk_that_is_full_while_protoc_compiles_is_no_schemas_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where protoc is who notices, of which it says no more than of a schema that is none."""
    schema = WriterSchema(1, "PROTOBUF", 'syntax = "proto3"; message Full { int64 n = 1; }')

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fails(_: Any) -> int:
        monkeypatch.setattr(Path, "write_bytes", full)
        return 1

    for owner, name, instead in [(Path, "write_text", full), (protoc, "main", fails)]:
        monkeypatch.setattr(owner, name, instead)
        with pytest.raises(OSError, match="No space left"), schema_failures_as_mismatch():
            descriptor_files(schema)
        monkeypatch.undo()
    assert descriptor_files(schema)


@pytest.mark.parametrize("name", ["/a.proto", "../a.proto", f"{'a' * 300}.proto", "sluice_main.proto/b.proto", "."])
def test_a_reference_whose_name_is_no_path_is_the_schemas_fault(name: str) -> None:
    schema = WriterSchema(1, "PROTOBUF", 'syntax = "proto3"; message M {}', ((name, 'syntax = "proto3";'),))
    with pytest.raises(SchemaMismatchError), schema_failures_as_mismatch():
        descriptor_files(schema)


@pytest.mark.parametrize("ref", ["common.json#address", "#address"])
def test_a_reference_to_an_anchor_is_refused(ref: str) -> None:
    """By itself it would be taken for one to the whole document, and its fields for those of the address."""
    address = {"$anchor": "address", "type": "object", "properties": {"city": {"type": "string"}}}
    common = {"type": "object", "properties": {"id": {"type": "string"}}, "$defs": {"A": address}}
    root = {"type": "object", "properties": {"a": {"$ref": ref}}, "$defs": {"A": address}}
    schema = WriterSchema(1, "JSON", json.dumps(root), (("common.json", json.dumps(common)),))
    with pytest.raises(SchemaMismatchError, match=f"refers to {ref!r} by an anchor.*list its columns") as caught:
        list(FIELD_READERS["json_schema"][1](schema, ()))
    assert caught.value.path == "a"


@pytest.mark.parametrize(
    ("listed", "fields", "words"),
    [
        (["auto", ID], {}, "auto must be the last entry"),
        ([ID, "auto", {"auto": {}}], {}, "auto must be the last entry"),
        ("auto", {"value": {"format": "json"}}, "needs a schema registry's format"),
        ("auto", {"cdc": {"format": "debezium"}}, "list the columns"),
        ("auto", {"topic": ["a", "b"]}, "name the subject"),
        ("auto", {"mode": "upsert"}, "needs identifier"),
        ([{"auto": {"skip": ["a"]}}], {}, "Extra inputs|unknown"),
        ([], {}, "must not be empty"),
        ("all", {}, "valid tuple"),
    ],
)
def test_what_auto_does_not_go_with(listed: Any, fields: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        contract(listed, **fields)


def test_the_check_of_a_file_tells_line_and_field(tmp_path) -> None:
    lines = ["table: a.b", "topic: t", "group: g", "owner: o", "value: {format: avro}", "columns:"]
    (tmp_path / "a.yaml").write_text("\n".join([*lines, "  - auto: {ommit: [x]}"]))
    (problem,) = contract_folder.load_contracts(tmp_path, strict=False).problems
    assert str(problem).endswith("a.yaml:6: columns.auto.ommit: unknown field (did you mean 'omit'?)")


@pytest.fixture
def catalog(tmp_path):
    from pyiceberg.catalog.sql import SqlCatalog

    made = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield made
    made.close()


def test_a_table_goes_on_with_what_it_has_whatever_the_registry_says(catalog, monkeypatch) -> None:
    newest = Newest(avro({"n": "int"}))
    monkeypatch.setattr(auto_columns, "SchemaRegistry", lambda: newest)
    file = contract(schema_policy={"add_column": "refuse"})
    with pytest.raises(SchemaMissingError, match="does not exist yet"):
        tables.ensure_typed(catalog, file)  # as the driver does, which asks no registry
    tables.ensure_typed(catalog, auto_columns.resolve_columns(file))
    assert tables.ensure_typed(catalog, file).schema().column_names[0] == "n"

    def settled(answer: Any, **fields: Any) -> pending_change.PendingChange:
        newest.answer = answer
        return evolve.apply_pending(catalog, contract(**fields), run_id="r")

    for answer, words in (
        (RegistryUnavailableError("away."), "away"),
        (ConfigError("no registry."), "no registry"),
        (None, "no schema of subject"),
        (avro({"n": "int", "u": ["int", "string"]}), "union"),
        (avro({"n": "int", "more": "int"}), "refuses this change: adds column more"),
    ):
        found = settled(answer, schema_policy={"add_column": "refuse"})
        assert found.schema_error and words in found.schema_error
        assert "stays at version 1" in str(found.summary())
    assert settled(avro({"n": "string"})).review == "open"
    followed = settled(avro({"n": "long", "more": "int"}))
    assert [c.kind for c in followed.changes] == ["widen", "add_column"]
    assert settled(avro({"n": "long", "more": "int"})).summary() is None
    names = ["n", "more"]
    assert catalog.load_table("ns.t").schema().column_names[:2] == names


def test_the_check_tells_the_columns_that_a_table_would_get_and_what_is_not_followed(
    catalog, tmp_path, monkeypatch, capsys
) -> None:
    newest = Newest(avro({"n": "int"}))
    monkeypatch.setattr(auto_columns, "SchemaRegistry", lambda: newest)
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "t.yaml").write_text(
        "table: ns.t\ntopic: t\ngroup: g\nowner: o\nvalue: {format: avro}\ncolumns: auto\n"
    )
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path / "contracts"))
    for name, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{tmp_path}/catalog.db"),
        ("WAREHOUSE", f"file://{tmp_path}/warehouse"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)

    def check() -> tuple[int, str]:
        return main.main(["contract", "check"]), capsys.readouterr().out

    code, told = check()
    assert code == 0 and "ns.t: columns n int" in told
    newest.answer = avro({"n": ["int", "string"]})
    code, told = check()
    assert code == 3 and "union of int, string" in told
    newest.answer = avro({"n": "int"})
    tables.ensure_typed(catalog, auto_columns.resolve_columns(contract()))
    newest.answer = avro({"n": ["int", "string"]})
    code, told = check()
    assert code == 0 and "union of int, string" in told and "stays at version 1" in told
