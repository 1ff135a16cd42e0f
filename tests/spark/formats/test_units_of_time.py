"""A column with a unit holds that unit alone, whatever unit the schema of a record names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from pyspark.sql import SparkSession

from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD
from tests.spark.formats.test_formats import context, debezium, logical, name, read, record, unmeant
from tests.support.services.registries import registry_client

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]

CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
NANOS = {"millis": 10**6, "micros": 10**3, "nanos": 1}
COLUMNS = {"i_ms": ("int", "millis"), "ms": ("long", "millis"), "us": ("long", "micros"), "ns": ("long", "nanos")}
READ = [{"name": n, "type": kind, "unit": unit} for n, (kind, unit) in COLUMNS.items()]
DAY = 86_400_000
NAMES = {
    f"{CONNECT}Time": ("int", NANOS["millis"]),
    f"{CONNECT}Date": ("int", DAY * 10**6),
    f"{DEBEZIUM}Time": ("int", NANOS["millis"]),
    f"{DEBEZIUM}MicroTime": ("long", NANOS["micros"]),
    f"{DEBEZIUM}NanoTime": ("long", NANOS["nanos"]),
    f"{DEBEZIUM}Timestamp": ("long", NANOS["millis"]),
    f"{DEBEZIUM}NanoTimestamp": ("long", NANOS["nanos"]),
}
NUMBERS = {
    NANOS["millis"]: [0, DAY - 1, -1],
    NANOS["micros"]: [DAY * 1000 - 1, DAY * 1000 - 1000, 1, -1, -1000, 1000, 2**63 - 1, -(2**63)],
    NANOS["nanos"]: [DAY * 10**6 - 1, 10**6, -(10**6), 1000, -1, 2**63 - 1, 3 * 10**15],
    DAY * 10**6: [0, 1, 24, -25, 19_000, 2**31 - 1],
}


def expected(number: int, nanos: int, column: str) -> int | None:
    """The number of a column; None for a record that is quarantined."""
    kind, unit = COLUMNS[column]
    units, rest = divmod(number * nanos, NANOS[unit])
    bits = 31 if kind == "int" else 63
    return units if rest == 0 and -(2**bits) <= units < 2**bits else None


def check(spark: SparkSession, form: str, sent: list[tuple[bytes, str, int | None]]) -> None:
    """Read values of one field each as all columns, and compare each with the number that its column has."""
    rows = read(spark, [(None, value) for value, _, _ in sent], READ, value=form)
    for (value, column, number), row in zip(sent, rows, strict=True):
        told = (row[ERROR], row[FIELD]) if number is None else row[column]
        assert told == (("malformed", column) if number is None else number), (value, column, row[DETAIL])


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return registry_client(registry)


def test_in_avro(spark: SparkSession, client: SchemaRegistryClient) -> None:
    kinds = [({"type": base, "connect.name": each}, nanos) for each, (base, nanos) in NAMES.items()]
    kinds += [(logical("int", "time-millis"), NANOS["millis"]), (logical("long", "time-micros"), NANOS["micros"])]
    kinds += [(logical("long", f"{each}timestamp-nanos"), 1) for each in ("", "local-")]
    sent = []
    for kind, nanos in kinds:
        write = unmeant(client, record(**{key: ["null", kind] for key in COLUMNS}))
        for column in COLUMNS:
            sent += [(write(**{column: n}), column, expected(n, nanos, column)) for n in NUMBERS[nanos]]
    check(spark, "avro", sent)


def test_in_avro_a_number_without_a_unit_is_itself(spark: SparkSession, client: SchemaRegistryClient) -> None:
    written = [unmeant(client, record(**{column: ["null", "int"]}))(**{column: 7}) for column in COLUMNS]
    check(spark, "avro", list(zip(written, COLUMNS, [7] * 4, strict=True)))
    wide = unmeant(client, record(i_ms="long"))(i_ms=7)
    at = unmeant(client, record(us=logical("long", "timestamp-micros")))(us=7)
    days = unmeant(client, record(ms=logical("int", "date")))(ms=7)
    rows = read(spark, [(None, each) for each in (wide, at, days)], READ, value="avro")
    words = [
        "'i_ms' is bigint, but its column is int of millis",
        "'us' is timestamptz, but its column is bigint of micros",
        "'ms' is date, but its column is bigint of millis",
    ]
    assert all(each in row[DETAIL] for each, row in zip(words, rows, strict=True)), [row[DETAIL] for row in rows]


def connect(field: str, semantic: str | None, payload: Any, kind: str = "int64") -> bytes:
    named = {"name": semantic} if semantic else {}
    schema = {"type": "struct", "fields": [{"type": kind, "optional": True, "field": field, **named}]}
    return json.dumps({"schema": schema, "payload": {field: payload}}).encode()


def test_in_json_with_its_schema(spark: SparkSession) -> None:
    sent: list[tuple[bytes, str, int | None]] = []
    for semantic, (_, nanos) in NAMES.items():
        for column in COLUMNS:
            sent += [(connect(column, semantic, n), column, expected(n, nanos, column)) for n in NUMBERS[nanos]]
    micros = f"{DEBEZIUM}MicroTime"
    for column in ("i_ms", "us"):
        factor = 1000 if column == "i_ms" else 1
        sent.append((connect(column, micros, 5000.0), column, 5000 // factor))
        sent += [(connect(column, micros, each), column, None) for each in (5000.5, "5000", True, [5000], 10**30)]
        # Without a name, of another, or without a schema a number is itself.
        sent += [(connect(column, each, 5001), column, 5001) for each in (None, "x.Y", f"{DEBEZIUM}ZonedTime")]
        sent.append((json.dumps({"schema": None, "payload": {column: 5001}}).encode(), column, 5001))
        sent += [(connect(column, None, each), column, None) for each in ("5001", 5001.5)]
    sent += [(connect("i_ms", None, 2**31), "i_ms", None), (connect("us", None, 2**31), "us", 2**31)]
    check(spark, "json_connect", sent)
    (nothing,) = read(spark, [(None, connect("us", micros, None))], READ, value="json_connect")
    assert (nothing[ERROR], nothing["us"]) == (None, None)


def test_in_json_by_the_title_of_a_json_schema(spark: SparkSession, client: SchemaRegistryClient) -> None:
    def writer(title: str | None) -> Callable[[str, Any], bytes]:
        kind = {"type": "integer", **({"title": title} if title else {})}
        fields = {key: {"oneOf": [{"type": "null"}, kind]} for key in COLUMNS}
        serializer = JSONSerializer(json.dumps({"title": "R", "type": "object", "properties": fields}), client)
        subject = context(name())
        return lambda column, number: serializer({column: number}, subject) or b""

    sent: list[tuple[bytes, str, int | None]] = []
    for title, (_, nanos) in NAMES.items():
        write = writer(title)
        for column in COLUMNS:
            sent += [(write(column, n), column, expected(n, nanos, column)) for n in NUMBERS[nanos]]
    plain, micros = writer(None), writer(f"{DEBEZIUM}MicroTime")
    for column in COLUMNS:
        sent += [(plain(column, 7), column, 7), (plain(column, 7.0), column, 7)]
        # What no serializer checks.
        texts = (write(column, 7)[:5] + f'{{"{column}": "7000"}}'.encode() for write in (plain, micros))
        sent += [(each, column, None) for each in texts]
    check(spark, "json_schema", sent)
    # Of records without any name the numbers are parsed as they are.
    check(spark, "json_schema", [(plain(column, 7), column, 7) for column in COLUMNS])


@pytest.mark.parametrize("form", ["avro", "json_connect"])
def test_in_debeziums_envelope(spark: SparkSession, client: SchemaRegistryClient, form: str) -> None:
    """A source's TIME(3) becomes a TIME(6), and then a datetime2(7)."""
    columns = [{"name": "id", "type": "long"}, {"name": "t", "type": "long", "unit": "micros"}]
    columns += [{"name": "seconds", "type": "long", "expression": "t_ms div 1000"}]
    more = {"inputs": [{"name": "t_ms", "type": "long", "unit": "millis", "source": "again"}]}
    given = [("Time", 61_005), ("MicroTime", 61_005_000), ("NanoTime", 61_005_000_000), ("NanoTime", 61_005_000_001)]

    def event(semantic: str, number: int, before: int) -> bytes:
        kind = "int" if semantic == "Time" else "long"
        row, was = ({"id": 1, "t": each, "again": each} for each in (number, before))
        if form == "avro":
            timed = record(id="long", t=debezium(kind, semantic), again=debezium(kind, semantic)) | {"name": "Row"}
            envelope = record(before=["null", timed], after=["null", "t.Row"], op="string")
            return unmeant(client, envelope)(op="u", before=was, after=row)
        timed = [{"type": kind, "field": f, "name": f"{DEBEZIUM}{semantic}"} for f in ("t", "again")]
        fields = [{"type": "int64", "field": "id"}, *timed]
        parts = [{"type": "struct", "fields": fields, "field": part} for part in ("before", "after")]
        schema = {"type": "struct", "fields": [*parts, {"type": "string", "field": "op"}]}
        return json.dumps({"schema": schema, "payload": {"op": "u", "before": was, "after": row}}).encode()

    values = [event(semantic, number, 1) for semantic, number in given]  # what the row was is not held against it
    more |= {"mode": "upsert", "identifier": ["id"], "value": form, "cdc": {"format": "debezium"}}
    rows = read(spark, [(None, each) for each in values], columns, **more)
    assert [(r[ERROR], r["t"], r["seconds"]) for r in rows[:3]] == [(None, 61_005_000, 61)] * 3
    assert (rows[3][ERROR], rows[3][FIELD]) == ("malformed", "after.t")


def test_in_keys(spark: SparkSession, client: SchemaRegistryClient) -> None:
    columns = [{"name": "t", "type": "int", "unit": "millis", "source": "$key.t"}, {"name": "n", "type": "long"}]
    upsert = {"mode": "upsert", "identifier": ["t"], "value": "json"}
    numbers = [("time-millis", "int", 5), ("time-micros", "long", 5000), ("time-micros", "long", 5001)]
    keys = [unmeant(client, record(t=logical(kind, each)))(t=n) for each, kind, n in numbers]
    rows = read(spark, [(key, b'{"n": 1}') for key in keys], columns, key="avro", **upsert)
    assert [(r[ERROR], r["t"]) for r in rows[:2]] == [(None, 5)] * 2
    assert (rows[2][ERROR], rows[2][FIELD]) == ("malformed", "t")
    keys = [connect("t", f"{DEBEZIUM}{each}", n) for each, n in (("Time", 5), ("NanoTime", 5_000_000), ("NanoTime", 1))]
    rows = read(spark, [(key, b'{"n": 1}') for key in keys], columns, key="json_connect", **upsert)
    assert [(r[ERROR], r["t"]) for r in rows] == [(None, 5), (None, 5), ("malformed", None)]

    whole = [{**columns[0], "source": "$key"}, columns[1]]
    number = client.register_schema(name(), Schema(json.dumps(logical("long", "time-micros")), "AVRO"))
    key = number.to_bytes(5, "big") + b"\x90\x4e"  # 5000
    rows = read(spark, [(key, b'{"n": 1}'), (key, None)], whole, key="avro", **upsert)
    assert [(r[ERROR], r["t"]) for r in rows] == [(None, 5)] * 2, "a tombstone deletes the row of its key"
