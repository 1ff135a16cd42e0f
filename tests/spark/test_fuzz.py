"""Damaged records of every format, thousands in one batch: each is typed or in quarantine, and none is lost.

With `SLUICE_FUZZ_SEED=<number>` other accidents happen than those of every day.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.protobuf import message_factory

from sluice import descriptors, tables
from sluice.embedded.registry import Registry
from sluice.registry import WriterSchema
from tests.spark.test_formats import AVRO_TYPES, HTML, IN, MOMENT, PROTO, PROTO_TYPES, avro, context, name, record
from tests.spark.test_json_connect import COLUMNS, GOOD
from tests.support.lake import Lake
from tests.support.registries import client_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]

SEED = int(os.environ.get("SLUICE_FUZZ_SEED", "20261122"))
RECORDS = 1_000
PREFIX = 5
# What breaks readers of bytes: lengths without end, negative counts, NaN, groups in groups, no UTF-8.
BYTES = [
    b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80" * 20, b"\x01", b"\xff" * 8,
    b"\x00" * 6 + b"\xf8\x7f", b"\x0b" * 2000, b"\xc0\x80", b"\xed\xa0\x80", HTML.encode(),
]  # fmt: skip
# What breaks readers of JSON: depth, numbers without end, halves of characters, names twice.
TEXT = [
    b"[" * 2000, b'{"a":' * 2000, b"9" * 400, b"1e400", b"1e-400", b"1e400000000", b"1e-400000000", b"NaN",
    b"-Infinity", b'"\\ud800"', b'"\\u0000"', b"\x00", b"\xff", b"null", b"true", b'"', b"}", b'"n":1,', b'"n":"x",',
    b"[[1]]", b'"+123456-01-01"', b'"9999999999"', HTML.encode(),
]  # fmt: skip
KINDS = ["cut", "flip", "put", "over", "twice", "splice", "value", "anything"]
JSON_VALUE = re.compile(rb':\s*("[^"]*"|[\w.+-]+)')


def damaged(draw: random.Random, good: list[bytes], ids: list[bytes], hostile: list[bytes]) -> bytes:
    """A good record after one to three accidents; the schema's id stays, or becomes another of a few."""
    value = bytearray(draw.choice(good))
    first = PREFIX if ids else 0
    for _ in range(draw.randint(1, 3)):
        at = draw.randint(min(first, len(value)), len(value))
        piece = draw.choice([draw.choice(hostile), draw.randbytes(draw.randint(1, 9))])
        match draw.choice([*KINDS, *(("magic", "id") if ids else ())]):
            case "cut":
                del value[at:]
            case "flip" if at < len(value):
                value[at] ^= 1 << draw.randrange(8)
            case "put":
                value[at:at] = piece
            case "over":
                value[at : at + len(piece)] = piece
            case "twice":
                value[at:at] = value[at : at + draw.randint(1, 40)]
            case "splice":
                value[at:] = draw.choice(good)[at:]
            case "value" if spots := [each.span(1) for each in JSON_VALUE.finditer(value)]:
                value[slice(*draw.choice(spots))] = piece
            case "anything":
                value[first:] = draw.randbytes(draw.randint(0, 40))
            case "magic":
                value[:1] = b"\1"
            case "id":
                value[1:5] = draw.choice(ids)
    return bytes(value)


def batch(good: list[bytes], hostile: list[bytes], *, framed: bool) -> list[bytes]:
    """The good records and what accidents made of them: the same for the same seed."""
    draw = random.Random(SEED)
    known = list(dict.fromkeys(each[1:5] for each in good))
    ids = [*known, b"\0\0\0\0", b"\x00\x0f\x42\x40", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"] if framed else []
    return [*good, *(damaged(draw, good, ids, hostile) for _ in range(RECORDS))]


def avro_records(client: SchemaRegistryClient) -> tuple[list[bytes], dict[str, str]]:
    used = {n: AVRO_TYPES[n] for n in ("bo", "l", "f_d", "s", "by", "fx", "en", "dec", "day", "ts_us", "li", "m", "st")}
    plain = record(**{n: kind for n, (kind, *_) in used.items()})
    nullable = {**plain, "fields": [{**f, "type": ["null", f["type"]]} for f in plain["fields"]]}
    value = {n: given for n, (_, _, given, _) in used.items()}
    made = [avro(client, plain, value), avro(client, nullable, value), avro(client, nullable, dict.fromkeys(value))]
    return made, {n: kind for n, (_, kind, _, _) in used.items()}


def protobuf_records(client: SchemaRegistryClient) -> tuple[list[bytes], dict[str, str]]:
    files = descriptors.files_of(WriterSchema(0, "PROTOBUF", PROTO))
    kinds = {n: message_factory.GetMessageClass(descriptors.descriptor(files, f"t.{n}")) for n in ("M", "Second")}
    full = kinds["M"](i=-7, l=2**60, u=1, ul=2**64 - 1, d=1e300, bo=True, s=HTML, by=b"\x00\xff", en=1, ol=0, li=[1, 2],
                      ins=[IN], m={"x": 1.5}, st=IN)  # fmt: skip
    full.ts.FromDatetime(MOMENT)
    full.mi[3].c = 4
    subject = name()
    values = [full, kinds["M"](), kinds["Second"](s="x")]
    made = [ProtobufSerializer(type(each), client)(each, context(subject)) or b"" for each in values]
    return made, {n: kind for n, (kind, _, _) in PROTO_TYPES.items()}


JSON_COLUMNS = {
    "n": "long", "f": "double", "d": "decimal(20, 3)", "s": "string", "day": "date", "at": "timestamptz",
    "by": "binary", "st": "struct<a: int, b: list<string>>", "m": "map<string, double>",
}  # fmt: skip
JSON_RECORD = {
    "n": 2**53, "f": 0.5, "d": 1.125, "s": HTML, "day": "2013-01-31", "at": "2013-01-31T08:00:00Z", "by": "AP8=",
    "st": {"a": 1, "b": ["x", None]}, "m": {"x": 1.5}, "left out": [[{}]],
}  # fmt: skip


@pytest.mark.timeout(600)
def test_damaged_records_are_typed_or_set_apart(lake: Callable[..., Lake], registry: Registry) -> None:
    client = client_of(registry)
    plain = [json.dumps(JSON_RECORD).encode(), b"{}", json.dumps(JSON_RECORD, indent=1).encode()]
    schema = json.dumps({"title": "x", "type": "object", "properties": {"n": {"type": "integer"}}})
    prefix = (JSONSerializer(schema, client)({"n": 1}, context(name())) or b"")[:PREFIX]
    avro_good, avro_columns = avro_records(client)
    protobuf_good, protobuf_columns = protobuf_records(client)
    batches = {
        "avro": (batch(avro_good, BYTES, framed=True), avro_columns),
        "protobuf": (batch(protobuf_good, BYTES, framed=True), protobuf_columns),
        "json_schema": (batch([prefix + each for each in plain], TEXT, framed=True), JSON_COLUMNS),
        "json": (batch(plain, TEXT, framed=False), JSON_COLUMNS),
        "json_connect": (batch([value for value, _ in GOOD], TEXT, framed=False), COLUMNS),
    }
    it = lake()
    made: dict[str, str] = {}
    for form, (values, columns) in batches.items():
        topic = f"{it.topic}.{form}"
        it.create_topic(1, name=topic)
        listed = [{"name": n, "type": kind} for n, kind in columns.items()]
        body = {"topic": topic, "columns": listed, "value": {"format": form}, "errors": {"max_ratio": 1.0}}
        made[form] = it.contract(table=f"db.{it.group}_{form}", **body)
        it.send([(0, None, value) for value in values], topic=topic)
    # A damaged day or moment is the key of a row as any other is.
    keyed = {"mode": "upsert", "identifier": ["day", "ts_us"], "deletes": "ignore"}
    listed = [{"name": n, "type": avro_columns[n], "required": True} for n in keyed["identifier"]]
    upsert = it.contract(
        topic=f"{it.topic}.avro", columns=listed, value={"format": "avro"}, errors={"max_ratio": 1.0}, **keyed
    )
    outcomes = it.run()
    assert outcomes[upsert]["state"] == "published", outcomes[upsert]
    for form, (values, _) in batches.items():
        said, good = f"{form}, seed {SEED}: ", 3 if form != "json_connect" else len(GOOD)
        assert outcomes[made[form]]["state"] == "published", said + str(outcomes[made[form]])
        typed = it.catalog.load_table(made[form]).scan().to_arrow()
        typed.validate(full=True)  # text that is none, for one
        quarantine = tables.load(it.catalog, tables.quarantine(it.loaded(made[form])))
        assert quarantine, said
        apart = quarantine.scan(selected_fields=("_kafka_offset", "value", "error_class", "error")).to_arrow()
        places = [*typed["_kafka_offset"].to_pylist(), *apart["_kafka_offset"].to_pylist()]
        assert sorted(places) == list(range(len(values))), said + f"{len(typed)} typed, {len(apart)} set apart"
        assert set(range(good)) <= set(typed["_kafka_offset"].to_pylist()), said
        assert len(typed) > good and len(apart) > RECORDS // 10, said + "the accidents tell nothing"
        for row in apart.to_pylist():
            assert row["value"] == values[row["_kafka_offset"]] and row["error"], said + str(row)
            assert row["error_class"] in ("malformed", "misfit", "null_value"), said + str(row)
