"""Small schemas of huge types: a type that is used twice at each of many levels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as T

from sluice.formats.avro_schema import SchemaBuilder, parse_schema
from sluice.formats.convert import SchemaMismatchError
from sluice.formats.inferred_columns import FIELD_READERS
from sluice.formats.schema_compat import find_incompatible_field
from sluice.kafka.registry import WriterSchema

pytestmark = pytest.mark.unit

FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}


def doubled(kind: str, levels: int) -> WriterSchema:
    """A schema whose types each have two fields of the next type."""
    if kind == "AVRO":
        record: dict[str, Any] = {"type": "record", "name": f"R{levels}", "fields": [{"name": "x", "type": "string"}]}
        for at in reversed(range(levels)):
            fields = [{"name": "a", "type": record}, {"name": "b", "type": ["null", f"R{at + 1}"]}]
            record = {"type": "record", "name": f"R{at}", "fields": fields}
        return WriterSchema(1, kind, json.dumps(record))
    if kind == "PROTOBUF":
        messages = [f"message R{at} {{ R{at + 1} a = 1; R{at + 1} b = 2; }}" for at in range(levels)]
        return WriterSchema(
            1, kind, "\n".join(['syntax = "proto3";', *messages, f"message R{levels} {{ string x = 1; }}"])
        )
    types: dict[str, Any] = {f"R{levels}": {"type": "string"}}
    for at in range(levels):
        inner = {"$ref": f"#/definitions/R{at + 1}"}
        types[f"R{at}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    return WriterSchema(1, kind, json.dumps({"definitions": types, **types["R0"]}))


@pytest.mark.parametrize("kind", FORMATS)
def test_the_fields_of_a_type_that_doubles_at_each_level_are_not_listed(kind: str) -> None:
    _, read = FIELD_READERS[FORMATS[kind]]
    assert [each.name for each in read(doubled(kind, 8), ())] == ["a", "b"]
    with pytest.raises(SchemaMismatchError, match="has more than 10,000 fields"):
        list(read(doubled(kind, 14), ()))


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_records_of_such_a_schema_are_read_for_the_fields_that_are_wanted(kind: str) -> None:
    text = T.StructType([T.StructField("a", T.StringType())])
    error = find_incompatible_field(FORMATS[kind], doubled(kind, 14), text)
    assert error
    assert "has more than 10,000 fields" in error.message
    leaf: T.DataType = T.StringType()
    for name in ("x", *["a"] * 14):
        leaf = T.StructType([T.StructField(name, leaf)])
    assert isinstance(leaf, T.StructType)
    assert find_incompatible_field(FORMATS[kind], doubled(kind, 14), leaf) is None


def test_avro_is_not_given_a_writer_schema_whose_fields_fill_the_heap() -> None:
    """Its reader lists the fields of records in records, also where none of them is wanted."""
    root, names = parse_schema(doubled("AVRO", 14))
    assert SchemaBuilder(names).build(root)
    text = doubled("AVRO", 17).text
    plain, optional = text.replace('["null", ', "").replace('"]', '"'), text
    root, names = parse_schema(WriterSchema(1, "AVRO", plain))
    with pytest.raises(SchemaMismatchError, match="has more than 100,000 fields"):
        SchemaBuilder(names).build(root)
    # What is behind a union is read when it is met.
    root, names = parse_schema(WriterSchema(1, "AVRO", optional))
    assert SchemaBuilder(names).build(root)


def test_an_error_quotes_a_schema_as_one_short_line() -> None:
    name = "a\x1b[2J\nERROR sluice \ud800"
    error = SchemaMismatchError(f"x.{name}", f"is struct<{name * 1000}>")
    assert error.path == r"x.a\x1b[2J\nERROR sluice \ud800"
    assert error.message.isprintable()
    assert len(error.message) < 600
    error.message.encode()
