"""Protobuf schemas that only registries take, and damaged messages; the rest is in tests/spark/formats."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import types as T

from sluice.formats import protobuf, protobuf_descriptors
from sluice.formats.convert import SchemaMismatchError
from sluice.formats.inferred_columns import infer_protobuf_fields
from sluice.kafka.registry import WriterSchema

pytestmark = pytest.mark.unit


def rows(schema: WriterSchema, *payloads: bytes, names: str = "") -> list[Any]:
    """What payloads of the schema's first message become, by default with all of its fields, as `auto` has them."""
    wanted = names.split() or [each.name for each in infer_protobuf_fields(schema, ())]
    struct = T.StructType([T.StructField(name, T.NullType()) for name in wanted])
    files, _, copy = protobuf_descriptors.prune_message(protobuf_descriptors.descriptor_files(schema), (0,), struct)
    read = protobuf._decode_payloads(files, copy, pa.array(payloads, pa.binary()))
    assert read.type.equals(pa.struct(protobuf.spark_arrow_schema(files, copy)))
    read.validate(full=True)
    return list(read.to_pylist())


def proto3(text: str, *references: tuple[str, str]) -> WriterSchema:
    return WriterSchema(1, "PROTOBUF", f'syntax = "proto3"; {text}', references)


# A text, a message's bytes, and the row.
TAKEN_BY_REGISTRIES: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "a map as Java's descriptors write it": (
        """message M { map<string, int32> a = 1; repeated LabelsEntry labels = 2; message LabelsEntry {
           /* { */ option map_entry = true; // }
           string key = 1; I value = 2; } message I { int32 n = 1; } }""",
        b"\x0a\x05\x0a\x01x\x10\x01\x12\x07\x0a\x01y\x12\x02\x08\x07",
        {"a": [("x", 1)], "labels": [("y", {"n": 7})]},
    ),
    "a file as Java's client prints it": (
        """package com.shop;

        import public "google/protobuf/timestamp.proto";

        option java_package = "com.shop";

        message Order {
          int64 id = 1 [json_name = "id"];

          repeated .com.shop.Order.LabelsEntry labels = 2 [json_name = "labels"];

          optional .com.shop.Status status = 4 [deprecated = true];

          oneof choice {
            string note = 3;
          }
          reserved 10 to 12, 15;
          reserved "old", "older";

          message LabelsEntry {
            option map_entry = true;

            string key = 1;

            .google.protobuf.Timestamp value = 2;
          }
        }

        enum Status {
          option allow_alias = true;

          UNKNOWN = 0;

          NONE = 0;
        }""",
        b"\x08\x01\x12\x03\x0a\x01x\x1a\x01y\x20\x00",
        {"id": 1, "labels": [("x", dt.datetime(1970, 1, 1, tzinfo=dt.UTC))], "status": "UNKNOWN", "note": "y"},
    ),
    "an enum that begins with another number": (
        "message M { E e = 1; repeated E r = 2; map<string, E> m = 3; } enum E { A = 1; B = 0; C = -2; }",
        b"\x12\x02\x01\x09\x1a\x03\x0a\x01x",
        {"e": "B", "r": ["A", "9"], "m": [("x", "B")]},
    ),
    "an enum without 0": (
        """message M { E e = 1; repeated E r = 2; oneof o { E x = 3; int32 y = 4; } optional E z = 5; }
        enum E { A = 1; }""",
        b"\x12\x02\x01\x00\x18\x01",
        {"e": None, "r": ["A", "0"], "x": "A", "y": None, "z": None},
    ),
    "names of enums' values that only differ in other languages": (
        "message M { E e = 1; F f = 2; enum E { E_RED = 0; RED = 1; UNKNOWN = 2; } enum F { UNKNOWN = 0; NONE = 0; } }",
        b"\x08\x01",
        {"e": "RED", "f": "UNKNOWN"},
    ),
    "fields with one JSON name, read": (
        "message M { int32 user_id = 1; int32 userId = 2; repeated I l = 3; map<string, I> m = 4; I f1 = 5; }"
        "message I { string user_id = 1; uint64 userId = 2; }",
        b"\x08\x01\x10\x02\x1a\x02\x10\x03\x22\x08\x0a\x01x\x12\x03\x0a\x01y",
        {
            "user_id": 1, "userId": 2, "l": [{"user_id": "", "userId": 3}], "m": [("x", {"user_id": "y", "userId": 0})],
            "f1": None,
        },
    ),
    "and in a message that nobody reads": (
        "message M { int32 n = 1; } message Legacy { string id = 1; string ID = 2; int32 a_b = 3; int32 aB = 4; }",
        b"\x08\x01",
        {"n": 1},
    ),
    "names that proto2 takes": (
        "message M { int32 n = 1; } message Legacy { string id = 1; string ID = 2; }", b"\x08\x01", {"n": 1}
    ),
    "options and imports that nobody has": (
        """package a.b; import "validate/validate.proto"; import 'google/protobuf/timestamp.proto';
        option java_package = "x;}"; option (a.list) = { a: [1, {b: 2}] c { d: "}" } };
        message M { option (a.msg).z = true; reserved 2; reserved "n"; // }
          int64 n = 1 [(validate.rules).int64 = {gt: [0]}, deprecated = true]; .a.b.I i = 2 [json_name = "n"];
          google.protobuf.Timestamp at = 3; message group { bool b = 1; }
          .a.b.M.group g = 4; }
        service S { rpc group(M) returns (M) { option (google.api.http) = { get: "/v1/{x}" body: "*" }; } }
        message I { optional int32 a = 1; } enum group { option (a.e) = 1; X = 0 [(a.v) = "]"]; }""",
        b"\x08\x07\x12\x02\x08\x02\x1a\x02\x08\x00\x22\x02\x08\x01",
        {"n": 7, "i": {"a": 2}, "at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC), "g": {"b": True}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TAKEN_BY_REGISTRIES)
def test_what_registries_take_is_read(what: str) -> None:
    """A schema's id never changes: refused once, records that have it would be unreadable for ever."""
    text, payload, row = TAKEN_BY_REGISTRIES[what]
    (found,) = rows(proto3(text), payload)
    assert found == row


def test_proto2_of_the_same_kind_is_read() -> None:
    text = """syntax = "proto2"; enum E { A = 3; B = 1; }
    message M { optional int32 user_id = 1 [default = 5]; required int32 userId = 2; optional E e = 3 [default = B];
      repeated int32 packed = 4 [packed = true]; extensions 100 to 200; }
    extend M { optional int32 z = 100; }
    message Unread { optional group G = 1 { optional int32 a = 1 [default = "x"]; } }"""

    found = rows(WriterSchema(1, "PROTOBUF", text), b"", b"\x08\x01\x10\x02\x18\x01\x22\x01\x07\x20\x08")
    assert found == [
        {"user_id": None, "userId": None, "e": None, "packed": []},
        {"user_id": 1, "userId": 2, "e": "B", "packed": [7, 8]},
    ]


def test_imported_texts_are_taken_as_well() -> None:
    other = """syntax = "proto3"; package t; import "gone.proto"; enum E { A = 1; UNKNOWN = 0; }
    message I { E e = 1; repeated MEntry m = 2;
      message MEntry { option map_entry = true; string key = 1; E value = 2; } }"""
    main = proto3('package t; import "other.proto"; message M { I i = 1; F f = 2; } enum F { B = 1; Z = 0; }',
                  ("other.proto", other))  # fmt: skip
    assert rows(main, b"\x0a\x07\x12\x05\x0a\x01x\x10\x01") == [{"i": {"e": "UNKNOWN", "m": [("x", "A")]}, "f": "Z"}]


def test_a_descriptor_that_a_client_registered_is_taken_as_well() -> None:
    made = text_format.Parse(
        """syntax: "proto3" message_type { name: "M"
          field { name: "user_id" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
          field { name: "userId" number: 2 type: TYPE_ENUM type_name: "E" label: LABEL_OPTIONAL } }
        enum_type { name: "E" value { name: "A" number: 1 } value { name: "B" number: 0 } }""",
        FileDescriptorProto(),
    )
    schema = WriterSchema(1, "PROTOBUF", base64.b64encode(made.SerializeToString()).decode())
    assert rows(schema, b"\x08\x05") == [{"user_id": 5, "userId": "B"}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("message M { map<string, E> m = 1; } enum E { A = 1; }", "'m{}' is of an enum without the value 0"),
        ("message M { int32 a = 1; int32 b = 1; }", "protoc cannot compile"),
        ("message M { Gone a = 1; }", "protoc cannot compile"),
        ("message M { int32 a = 1; } }{ import ;", "protoc cannot compile"),
        ('import "\\033[31m.proto"; message M { Gone a = 1; }', "protoc cannot compile"),
    ],
)
def test_what_cannot_be_read_rightly_is_refused(text: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SchemaMismatchError) as told:
        rows(proto3(text), b"")
    assert words in told.value.message
    assert capfd.readouterr().err == "", "a terminal gets nothing of a schema"


DAMAGED = {
    "": ["", "10", "80", "1a0561", "0a0100"],
    "packed doubles of nine bytes": ["0a09" + "00" * 9],
    "packed numbers": ["22020001", "220380", "2a0180", "2a02ff01"],
    "groups": ["a306ac06", "a306", "0c", "a306a406", "0b0c", "a306ab06ac06a406", "a306a306a406", "9c06"],
    "long numbers": ["10" + "ff" * 9 + "01", "10" + "ff" * 9 + "7f", "10" + "ff" * 10 + "01", "10" + "80" * 9 + "00"],
    "fields' numbers": ["0001", "0500000000", "8080808080800107", "f8ffffff0f01", "f8ffffff1f01", "fa0700", "8000"],
    "wire types": ["120107", "1001", "1601", "1701", "0d01000000", "0901", "1d00000000", "3001"],
    "text": ["1a01ff", "1a02c080", "1a03eda080", "3204120261ff", "fa0701ff", "1a0161"],
    "nested": ["3202120a", "3203080110", "320312016131", "3206a306ab06a406", "3a040a016110", "3a060a01611201ff"],
    "a well-known one": ["42020801", "420108", "4203088001", "42030aff", "4a020a05", "4a040a02c3a9", "4a030a01ff"],
}


def test_what_googles_library_refuses_is_malformed_and_nothing_else_is() -> None:
    """In what is read, and in how the rest is framed."""
    schema = proto3("""import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
    message M { repeated double d = 1; int32 a = 2; string s = 3; repeated fixed32 f = 4; repeated bool b = 5; I i = 6;
      map<string, string> m = 7; google.protobuf.Timestamp at = 8; google.protobuf.StringValue w = 9; }
    message I { int32 n = 1; string s = 2; }""")
    files = protobuf_descriptors.descriptor_files(schema)
    google = GetMessageClass(protobuf_descriptors.find_descriptor(files, "M"))
    whole = bytes.fromhex("1005")
    told = 0
    payloads = [each for one in DAMAGED.values() for one_hex in one for each in _placed(bytes.fromhex(one_hex), whole)]
    for payload, found in zip(payloads, rows(schema, *payloads), strict=True):
        try:
            message = google.FromString(payload)
        except DecodeError:
            assert found is None, payload.hex()
            told += 1
            continue
        assert found is not None, payload.hex()
        assert (found["a"], found["d"], found["s"]) == (message.a, list(message.d), message.s), payload.hex()
        assert (found["b"], found["f"], dict(found["m"])) == (list(message.b), list(message.f), dict(message.m))
        assert (found["i"] or {}).get("s") == (message.i.s if message.HasField("i") else None), payload.hex()
        assert found["w"] == (message.w.value if message.HasField("w") else None), payload.hex()
    assert 40 < told < len(payloads) - 40


def _placed(piece: bytes, whole: bytes) -> tuple[bytes, ...]:
    return piece, whole + piece, piece + whole


def test_what_was_written_twice_is_merged_as_protobuf_has_it() -> None:
    schema = proto3("""import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
    message M { google.protobuf.Timestamp at = 1; google.protobuf.Int64Value w = 2;
      oneof o { string a = 3; int32 b = 4; } map<string, int32> m = 5; }""")
    seconds, nanos = b"\x0a\x02\x08\x01", b"\x0a\x03\x10\xe8\x07"
    found = rows(schema, seconds + nanos, b"\x12\x02\x08\x01\x12\x00", b"\x1a\x01x\x20\x01", b"\x2a\x03\x0a\x01x")
    assert found[0]["at"].timestamp() == 1.000001
    assert found[1]["w"] == 1
    assert (found[2]["a"], found[2]["b"]) == (None, 1)
    assert found[3]["m"] == [("x", 0)]


def test_a_member_of_a_oneof_is_cleared_by_a_later_one_that_nobody_reads() -> None:
    schema = proto3("""message M { oneof o { string s = 1; string S = 2; M m = 3; E e = 4; int64 n = 5; float f = 6; } }
    enum E { A = 0; }""")
    read, others = b"\x0a\x01x", (b"\x12\x01\xff", b"\x1a\x01\x0a", b"\x20\x07", b"\x28\x01", b"\x35" + bytes(4))
    found = rows(schema, read, *(read + each for each in others), *(each + read for each in others), names="s")
    assert [each["s"] for each in found] == ["x", *[None] * 5, *["x"] * 5]


@pytest.mark.parametrize("enum", ["A = 0; B = 1;", "B = 1;"])
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_a_number_that_an_enum_lacks_stays_in_its_place(syntax: str, enum: str) -> None:
    """Google's library writes those of proto2 after all other fields."""
    of_map = "E" if "0" in enum else "int32"
    text = f"""syntax = "{syntax}"; enum E {{ {enum} }}
      message M {{ optional E e = 1; repeated E r = 2; oneof o {{ E x = 3; string y = 4; }}
        map<string, {of_map}> m = 5; optional I i = 6; }} message I {{ repeated E r = 1; }}"""
    schema = WriterSchema(1, "PROTOBUF", text)
    e7, e1, r7, r1, x7, y = b"\x08\x07", b"\x08\x01", b"\x10\x07", b"\x10\x01", b"\x18\x07", b"\x22\x01y"
    m7, m1, i = b"\x2a\x05\x0a\x01k\x10\x07", b"\x2a\x05\x0a\x01k\x10\x01", b"\x32\x06\x0a\x04\x01\x07\x01\x09"
    payloads = [e7 + e1, e1 + e7, r1 + r7 + r1, x7 + y, y + x7, m7 + m1, m1 + m7, i]
    found = rows(schema, *payloads)
    assert [each["e"] for each in found[:2]] == ["B", "7"]
    assert found[2]["r"] == ["B", "7", "B"]
    assert [(each["x"], each["y"]) for each in found[3:5]] == [(None, "y"), ("7", None)]
    known, unknown = ("B", "7") if "0" in enum else (1, 7)
    assert [each["m"] for each in found[5:7]] == [[("k", known)], [("k", unknown)]]
    assert found[7]["i"]["r"] == ["B", "7", "B", "9"]
    alone = rows(schema, *payloads[:3], names="e r")  # not written again before they are read
    assert alone == [{name: each[name] for name in ("e", "r")} for each in found[:3]]


@pytest.mark.parametrize("index", [(0, 0), (0, 1)])
def test_a_nested_message_is_found_whether_a_map_counts_or_not(index: tuple[int, ...]) -> None:
    """Java goes by the text, where a map is no message; Python by protoc's descriptor."""
    text = "message M { map<string, int32> a = 1; message N { int32 x = 1; } }"
    assert protobuf_descriptors.message_name(protobuf_descriptors.descriptor_files(proto3(text)), index) == "M.N"
    with pytest.raises(SchemaMismatchError, match="no message at"):
        protobuf_descriptors.message_name(protobuf_descriptors.descriptor_files(proto3(text)), (0, 2))


def test_large_payloads_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "CHUNK_BYTES", 100)
    payloads = [b"\x0a" + bytes([each]) + b"x" * each for each in range(1, 120)] + [b"\x0a\x7f"]
    found = rows(proto3("message M { string s = 1; }"), *payloads)
    assert [each and len(each["s"]) for each in found] == [*range(1, 120), None]
