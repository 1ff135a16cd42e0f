"""Warnings about columns that the newest writer schema lacks; spark/evolve/test_auto_columns.py has a real registry."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.contract import Contract
from sluice.embedded.home import REPOSITORY
from sluice.errors import RegistryUnavailableError
from sluice.formats import avro_schema
from sluice.kafka.registry import SchemaRegistry, WriterSchema
from sluice.plan import writer_schema_warnings

pytestmark = pytest.mark.unit

COLUMNS = [
    {"name": "id", "type": "string", "source": "$key"},
    {"name": "n", "type": "long", "required": True},
    {"name": "city", "type": "string", "source": "place.city"},
    {"name": "box", "type": "struct<a: string>"},
]
PROTO = """syntax = "proto3";
message Order {
  message Place { string city = 1; }
  message Box { string a = 1; }
  %s
  Place place = 2;
  Box box = 3;
}
"""


# The library that reads Protobuf knows no editions, and panics.
EDITION = 'edition = "2023"; message Order { int64 n = 1; }'


class Answers(SchemaRegistry):
    """A registry that has one schema, for each subject or for one; or is away."""

    def __init__(self, schema: WriterSchema | None = None, *, away: bool = False, subject: str = "") -> None:
        self.schema, self.away, self.subject, self.asked = schema, away, subject, list[str]()

    def newest(self, subject: str) -> WriterSchema | None:
        self.asked.append(subject)
        if self.away:
            raise RegistryUnavailableError("away")
        return self.schema if self.subject in ("", subject) else None


def contract(value: str = "avro", *types: str) -> Contract:
    about = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "columns": COLUMNS}
    return Contract.model_validate({**about, "value": {"format": value, "types": list(types)}})


def avro(*fields: dict[str, Any]) -> WriterSchema:
    return WriterSchema(7, "AVRO", json.dumps({"type": "record", "name": "Order", "fields": fields}))


def nested(field: str, *names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": "string"} for name in names]
    return {"name": field, "type": ["null", {"type": "record", "name": f"In_{field}", "fields": fields}]}


N, ODD = {"name": "n", "type": "int"}, {"name": "odd", "type": ["int", "string"]}
PLACE, BOX = nested("place", "city"), nested("box", "a", "b")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (avro(N, PLACE, BOX), None),
        (avro(ODD, N, PLACE, BOX), None),  # what no column type holds is nobody's business here
        (avro(N, nested("place", "town"), BOX), "no field place.city, which city reads: it is null in records"),
        (avro(N, PLACE, nested("box", "b")), "no field box.a, which box reads: it is null in records"),
        (
            avro(ODD, BOX),
            "no field n, place, which n, city reads: it is null in records written with that schema; n is",
        ),
        (
            avro({"name": "n", "type": "string"}, PLACE, BOX),
            "(id 7) field 'n' is string, but its column is bigint: all records written with it are quarantined",
        ),
        (avro({**N, "type": ["int", "string"]}, PLACE, BOX), "(id 7) field 'n' is a union of int, string"),
        (
            avro(N, {"name": "place", "type": "string"}, BOX),
            "(id 7) field 'place' is string, but its column is struct<",
        ),
        (avro({"name": "other", "type": "int"}), None),  # it is the schema of something else
        (WriterSchema(7, "JSON", "{}"), None),
        (WriterSchema(7, "AVRO", "no schema"), None),
        (avro(N, {"name": "place", "type": {**PLACE["type"][1], "fields": [{"name": {}, "type": "int"}]}}), None),
        (None, None),
    ],
)
def test_only_what_is_read_and_is_not_there_is_told(schema: WriterSchema | None, said: str | None) -> None:
    found = writer_schema_warnings.find_schema_risks(contract(), Answers(schema))
    assert [r.table for r in found] == (["db.t"] if said else [])
    assert said is None or said in str(found[0])
    assert said is None or "the newest schema of t-value (id 7)" in str(found[0])


def test_a_schema_of_many_fields_that_no_column_holds_is_not_read_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time the whole schema was parsed again: some 10,000 fields added up to many minutes of a plan."""
    read, times = avro_schema.parse_schema, list[WriterSchema]()
    monkeypatch.setattr(avro_schema, "parse_schema", lambda schema: times.append(schema) or read(schema))  # type: ignore[func-returns-value]
    odd = [{"name": f"odd{i}", "type": ["int", "string"]} for i in range(300)]
    assert writer_schema_warnings.find_schema_risks(contract(), Answers(avro(*odd, N))) == []
    assert len(times) < 150


LOOP = {"type": "record", "name": "Loop", "fields": [{"name": "v", "type": "int"}, {"name": "me", "type": "Loop"}]}


def named(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "connect.name": f"io.debezium.time.{name}"}


@pytest.mark.parametrize(
    ("kind", "column", "fits"),
    [
        (named("long", "MicroTimestamp"), "timestamp", True),
        (named("long", "MicroTimestamp"), "long", True),
        ({"type": "array", "items": named("int", "Date")}, "list<date>", True),
        ({"type": "array", "items": named("int", "Date")}, "list<timestamp>", False),
        (named("string", "ZonedTimestamp"), "string", True),
        ("long", "timestamp", False),
        ({"type": "string", "logicalType": "uuid"}, "uuid", True),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamptz", True),
        ({"type": "long", "logicalType": "timestamp-micros"}, "long", False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(12, 4)", True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9, 4)", False),
        ({"type": "map", "values": {"type": "fixed", "name": "F", "size": 3}}, "map<string, fixed[3]>", True),
        (LOOP, "struct<v: long, me: struct<v: int>>", True),
        (LOOP, "struct<me: struct<v: string>>", False),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", True),
    ],
)
def test_a_column_is_compared_as_its_decoder_would(kind: Any, column: str, fits: bool) -> None:
    about = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "columns": [{"name": "n", "type": column}]}
    found = writer_schema_warnings.find_schema_risks(
        Contract.model_validate({**about, "value": {"format": "avro"}}), Answers(avro({"name": "n", "type": kind}))
    )
    assert [str(r) for r in found if fits] == []
    assert fits or "field 'n" in str(found[0])


PARCEL = json.loads((REPOSITORY / "tests/data/debezium/envelope_avro.schemas.json").read_text())["2"]


@pytest.mark.parametrize(
    ("column", "cdc", "said"),
    [
        ({"name": "carrier", "type": "string"}, "debezium", None),
        ({"name": "weight", "type": "decimal(8, 3)"}, "debezium", None),
        ({"name": "lsn", "type": "long", "source": "$source.lsn"}, "debezium", None),
        (
            {"name": "gone", "type": "string", "required": True},
            "debezium",
            "no field after.gone, which gone reads: it is null in records written with that schema; gone is required",
        ),
        ({"name": "carrier", "type": "long"}, "debezium", "field 'after.carrier' is string, but its column is bigint"),
        (
            {"name": "carrier", "type": "long"},
            "debezium_unwrapped",
            "field 'carrier' is string, but its column is bigint",
        ),
        ({"name": "gone", "type": "long"}, "debezium_unwrapped", "has no field gone, which gone reads"),
    ],
)
def test_of_change_events_the_row_is_compared(column: dict[str, Any], cdc: str, said: str | None) -> None:
    after = next(f for f in PARCEL["fields"] if f["name"] == "before")["type"][1]
    schema = WriterSchema(7, "AVRO", json.dumps(PARCEL if cdc == "debezium" else after))
    about = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "value": {"format": "avro"}}
    columns = [{"name": "number", "type": "long"}, column]
    made = Contract.model_validate({**about, "columns": columns, "cdc": {"format": cdc}})
    found = writer_schema_warnings.find_schema_risks(made, Answers(schema))
    assert len(found) == (said is not None)
    assert said is None or said in str(found[0])


def without(fields: list[dict[str, Any]], *path: str, **instead: Any) -> list[dict[str, Any]]:
    """The fields of a schema of which one, maybe within another, is not there, or is of another type."""
    name, *rest = path
    kept = [dict(f) for f in fields if f["name"] != name or rest or instead]
    for each in kept:
        if each["name"] == name and rest:
            each["type"] = {**each["type"], "fields": without(each["type"]["fields"], *rest, **instead)}
        elif each["name"] == name:
            each.update(instead)
    return kept


LSN = {"name": "lsn", "type": "long", "source": "$source.lsn"}


@pytest.mark.parametrize(
    ("path", "instead", "said"),
    [
        (("op",), {}, "has no field op, which names the operation of an event: it is null in records"),
        (("op",), {"type": "int"}, "field 'op' is int, but its column is string: all records written with it are"),
        (("source", "lsn"), {}, "no field source.lsn, which lsn reads: it is null in records written with that schema; "
         "lsn is required, so they are quarantined"),
        (("source", "lsn"), {"type": ["null", "string"]}, "'source.lsn' is string, but its column is bigint: all"),
        (("source",), {}, "has no field source, which lsn reads"),
        (("source", "txId"), {}, None),
        (("ts_ms",), {"type": "string"}, None),
        (("before",), {}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [[{"name": "carrier", "type": "string"}], []])
def test_of_the_envelope_what_is_read_is_compared(path: Any, instead: Any, said: str | None, rows: Any) -> None:
    fields = PARCEL["fields"]
    if path == ("before",):  # where the type of both rows is given
        row = next(f["type"][1] for f in fields if f["name"] == "before")
        fields = without(fields, "after", type=["null", row])
    schema = WriterSchema(7, "AVRO", json.dumps({**PARCEL, "fields": without(fields, *path, **instead)}))
    about = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "value": {"format": "avro"}}
    key = {"name": "id", "type": "string", "source": "$key", "required": True}
    keyed = {"mode": "upsert", "identifier": ["id"], "order": ["lsn"], "cdc": {"format": "debezium"}}
    made = Contract.model_validate({**about, "columns": [key, {**LSN, "required": True}, *rows], **keyed})
    found = [str(each) for each in writer_schema_warnings.find_schema_risks(made, Answers(schema))]
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]


OP = {"name": "op", "type": "string", "source": "$op"}


@pytest.mark.parametrize(
    ("cdc", "columns", "fields", "said"),
    [
        ({"format": "op_field", "op": "meta.kind"}, [], [N], "no field meta, which names the operation of an event"),
        ({"format": "op_field", "op": "meta.kind"}, [OP], [N, nested("meta", "x")],
         "no field meta.kind, which op reads and names the operation of an event: it is null"),
        ({"format": "op_field", "op": "meta.kind"}, [], [N, nested("meta", "kind")], None),
        ({"format": "op_field", "op": "o"}, [], [N, {"name": "o", "type": "int"}], "is int, but its column is string"),
        ({"format": "debezium_unwrapped"}, [], [N], None),
        ({"format": "debezium_unwrapped"}, [OP], [N], "no field __op, which op reads: it is null in records"),
        ({"format": "debezium_unwrapped"}, [], [N, {"name": "__deleted", "type": "boolean"}], "'__deleted' is boolean"),
        ({"format": "debezium_unwrapped"}, [], [{"name": "__op", "type": "string"}], None),  # of another message
    ],
)  # fmt: skip
def test_what_tells_the_operation_is_compared(cdc: Any, columns: Any, fields: Any, said: str | None) -> None:
    about = {"table": "db.t", "topic": "t", "group": "g", "owner": "me", "value": {"format": "avro"}}
    made = Contract.model_validate({**about, "columns": [{"name": "n", "type": "long"}, *columns], "cdc": cdc})
    found = [str(each) for each in writer_schema_warnings.find_schema_risks(made, Answers(avro(*fields)))]
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]


def test_a_schema_that_no_library_survives_warns_of_nothing() -> None:
    found = writer_schema_warnings.find_schema_risks(
        contract("protobuf"), Answers(WriterSchema(7, "PROTOBUF", EDITION))
    )
    assert found == []


def test_protobuf_is_compared_as_well() -> None:
    (told,) = writer_schema_warnings.find_schema_risks(
        contract("protobuf"), Answers(WriterSchema(7, "PROTOBUF", PROTO % "string n = 1;"))
    )
    assert "(id 7) field 'n' is string, but its column is bigint" in str(told)


@pytest.mark.parametrize(("field", "lost"), [("int64 n = 1;", []), ("int64 m = 1;", ["n"])])
def test_protobuf_is_read_by_its_own_names(field: str, lost: list[str]) -> None:
    found = writer_schema_warnings.find_schema_risks(
        contract("protobuf"), Answers(WriterSchema(7, "PROTOBUF", PROTO % field))
    )
    assert len(found) == len(lost)
    assert all(f"no field {name}, which {name} reads" in str(r) for name, r in zip(lost, found, strict=True))


JSON = {"n": {"type": "integer"}, "place": {"type": "object", "properties": {"city": {"type": "string"}}}}
BOXED = {"type": "object", "properties": {"a": {"type": ["null", "integer"]}, "more": {"type": "string"}}}


@pytest.mark.parametrize(
    ("properties", "more", "said"),
    [
        (JSON, {}, None),  # there may be a box all the same
        (JSON, {"additionalProperties": True}, None),
        (JSON, {"additionalProperties": False, "patternProperties": {"^b": BOXED}}, None),
        (JSON, {"additionalProperties": False}, "no field box, which box reads: it is null in records written with"),
        (JSON | {"box": BOXED}, {"additionalProperties": False}, None),
        (JSON | {"box": {"type": ["string", "integer"]}}, {"additionalProperties": False}, None),
        (JSON | {"n": {"type": "number"}}, {}, None),  # it may be whole
        (
            JSON | {"n": {"type": "string"}},
            {},
            "field 'n' is string, but its column is bigint: records that have one are",
        ),
        (JSON | {"n": {"enum": ["a"]}}, {}, "field 'n' is string, but its column is bigint"),
        (JSON | {"place": {"type": "array", "items": {"type": "string"}}}, {}, "field 'place' is array<string>, but"),
        (JSON | {"box": {"additionalProperties": {"type": "integer"}, "type": "object"}}, {}, None),
        ({"elsewhere": {"type": "string"}}, {"additionalProperties": False}, None),
    ],
)
def test_of_a_json_schema_only_what_is_certain_is_told(properties: dict[str, Any], more: Any, said: str | None) -> None:
    schema = WriterSchema(7, "JSON", json.dumps({"type": "object", "title": "Order", "properties": properties, **more}))
    found = writer_schema_warnings.find_schema_risks(contract("json_schema"), Answers(schema))
    assert [said in str(each) for each in found] == ([True] if said else [])
    assert len(writer_schema_warnings.find_schema_risks(contract("json_schema", "Order"), Answers(schema))) == len(
        found
    )
    assert writer_schema_warnings.find_schema_risks(contract("json_schema", "Sent"), Answers(schema)) == []


def test_nobody_is_asked_where_names_prove_nothing_and_nothing_stops_where_nobody_answers() -> None:
    answers = Answers(avro(nested("place", "x")))
    assert writer_schema_warnings.find_schema_risks(contract("json"), answers) == []
    assert answers.asked == []
    assert writer_schema_warnings.find_schema_risks(contract(), Answers(away=True)) == []


def test_a_type_is_looked_up_by_its_name_and_several_are_not() -> None:
    newest = avro(N, nested("place", "town"), BOX)
    named = replace(newest, text=newest.text.replace('"Order"', '"shop.Order"'))
    answers = Answers(named, subject="shop.Order")
    (told,) = writer_schema_warnings.find_schema_risks(contract("avro", "shop.Order"), answers)
    assert answers.asked == ["t-value", "t-shop.Order", "shop.Order"]
    assert "the newest schema of shop.Order (id 7) has no field place.city" in str(told)
    assert writer_schema_warnings.find_schema_risks(contract("avro", "shop.Sent"), answers) == []
    assert writer_schema_warnings.find_schema_risks(contract("avro", "shop.Order", "shop.Sent"), answers) == []
    message = Answers(WriterSchema(7, "PROTOBUF", PROTO % "int64 m = 1;"))
    assert len(writer_schema_warnings.find_schema_risks(contract("protobuf", "Order"), message)) == 1
    assert writer_schema_warnings.find_schema_risks(contract("protobuf", "Other"), message) == []


def test_of_a_union_at_the_root_the_branch_of_the_type_is_compared() -> None:
    """It may refer to an older schema than the newest of the type's own subject."""
    union = WriterSchema(7, "AVRO", json.dumps(["null", json.loads(avro(N, BOX).text), {**PLACE["type"][1]}]))
    answers = Answers(union, subject="t-value")
    (told,) = writer_schema_warnings.find_schema_risks(contract("avro", "Order"), answers)
    assert "the newest schema of t-value (id 7) has no field place, which city reads" in str(told)
    assert answers.asked == ["t-value"]
    assert writer_schema_warnings.find_schema_risks(contract("avro"), answers) == [], "of several nobody knows which"


def test_the_looks_of_a_plan_ask_for_a_subject_once_and_come_to_an_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    about = {"table": "db.t", "topic": ["t", "u"], "group": "g", "owner": "me", "columns": COLUMNS}
    two = Contract.model_validate({**about, "value": {"format": "avro"}})
    answers = Answers(avro(N, nested("place", "town"), BOX), subject="u-value")
    subjects = writer_schema_warnings.SubjectCache(answers)
    assert [len(writer_schema_warnings.find_schema_risks(two, subjects)) for _ in range(2)] == [1, 1]
    assert answers.asked == ["t-value", "u-value"], "also what there is no schema of"
    monkeypatch.setattr(writer_schema_warnings, "REGISTRY_SECONDS", -1)
    subjects = writer_schema_warnings.SubjectCache(answers)
    assert writer_schema_warnings.find_schema_risks(two, subjects) == []
    assert answers.asked == ["t-value", "u-value"]
    assert "db.t: the newest schema of t, u was not checked: The schema registry was asked for" in caplog.text
