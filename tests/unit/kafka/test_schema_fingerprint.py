"""Which differences between two texts of a schema are differences between schemas."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sluice.kafka.registry import WriterSchema

pytestmark = pytest.mark.unit

RECORD = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "m", "type": "t.P"}]}
PART = json.dumps({"type": "record", "name": "P", "namespace": "t", "fields": []})
AVRO = WriterSchema(1, "AVRO", json.dumps(RECORD), (("t.P", PART), ("t.Q", '"long"')))
PROTO = WriterSchema(1, "PROTOBUF", 'syntax = "proto3"; message R { int64 n = 1; }')


@pytest.mark.parametrize(
    ("schema", "other"),
    [
        (AVRO, replace(AVRO, text=json.dumps(RECORD, indent=2))),
        (AVRO, replace(AVRO, text=json.dumps(RECORD, sort_keys=True))),
        (AVRO, replace(AVRO, references=(("t.Q", ' "long" '), ("t.P", json.dumps(json.loads(PART), indent=1))))),
        (AVRO, replace(AVRO, text="inlined", registered=AVRO.text, references=())),
        (AVRO, replace(AVRO, references=(), missing="version 1 of subject 'p'")),
        (PROTO, replace(PROTO, text='syntax="proto3";\n\nmessage R\n{\n\tint64 n=1;\n}\n')),
        (WriterSchema(1, "AVRO", "long"), WriterSchema(1, "AVRO", " long\n")),
    ],
    ids=["indented", "other order of keys", "references", "references inlined", "references missing", "proto", "bare"],
)
def test_formatting_and_missing_references_are_no_difference(schema: WriterSchema, other: WriterSchema) -> None:
    assert not schema.fingerprint.differs_from(other.fingerprint)
    assert not other.fingerprint.differs_from(schema.fingerprint)


@pytest.mark.parametrize(
    ("schema", "other"),
    [
        (AVRO, replace(AVRO, text=json.dumps({**RECORD, "fields": RECORD["fields"][::-1]}))),
        (AVRO, replace(AVRO, references=(("t.P", PART), ("t.Q", '"int"')))),
        (AVRO, replace(AVRO, references=AVRO.references[:1])),
        (AVRO, replace(AVRO, kind="JSON")),
        (AVRO, replace(AVRO, text="inlined", registered='"long"', references=())),
        (PROTO, replace(PROTO, text=PROTO.text.replace("n = 1", "n = 2"))),
        (PROTO, replace(PROTO, text=PROTO.text.replace("int64 n", "int64n"))),
        (WriterSchema(1, "AVRO", "long"), WriterSchema(1, "AVRO", "int")),
    ],
    ids=["order of fields", "reference", "fewer references", "kind", "inlined", "number", "words", "bare"],
)
def test_another_schema_is_a_difference(schema: WriterSchema, other: WriterSchema) -> None:
    assert schema.fingerprint.differs_from(other.fingerprint)
    assert other.fingerprint.differs_from(schema.fingerprint)


def test_a_text_nested_too_deeply_for_json_has_a_fingerprint_too() -> None:
    deep = WriterSchema(1, "JSON", "[" * 100_000)
    assert not deep.fingerprint.differs_from(replace(deep, text=deep.text + "\n").fingerprint)
