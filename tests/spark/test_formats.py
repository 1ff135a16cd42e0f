"""Formats with a schema registry: what real producers write, through the real registry, decoder and table."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluice.embedded.registry import Registry
from tests.support.lake import Lake

HTML = "'; DROP TABLE t; -- <script>ü</script>"
MOMENT = dt.datetime(2013, 1, 31, 8, 0, 0, 123456, tzinfo=dt.UTC)


@pytest.fixture
def client(registry: Registry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def avro(client: SchemaRegistryClient, it: Lake, schema: Any, value: Any, **settings: Any) -> bytes:
    """As a producer writes it, the schema being registered on the way."""
    serializer = AvroSerializer(client, json.dumps(schema), conf=settings or None)
    made = serializer(value, SerializationContext(it.topic, MessageField.VALUE))
    assert made is not None
    return made


def record(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "namespace": "t",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


# Avro's type, the column's, what the producer gives, what the table has; and whether null may stand there.
AVRO_TYPES: dict[str, tuple[Any, str, Any, Any]] = {
    "bo": ("boolean", "boolean", True, True),
    "i": ("int", "int", -7, -7),
    "i_l": ("int", "long", -7, -7),
    "i_d": ("int", "double", 7, 7.0),
    "i_dec": ("int", "decimal(12, 2)", 7, Decimal("7.00")),
    "l": ("long", "long", 2**60, 2**60),
    "f": ("float", "float", 0.5, 0.5),
    "f_d": ("float", "double", 0.5, 0.5),
    "d": ("double", "double", 1e300, 1e300),
    "s": ("string", "string", HTML, HTML),
    "by": ("bytes", "binary", b"\x00\xff", b"\x00\xff"),
    "fx": ({"type": "fixed", "name": "F3", "size": 3}, "fixed[3]", b"abc", b"abc"),
    "en": ({"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}, "string", "BLUE", "BLUE"),
    "dec": (
        logical("bytes", "decimal", precision=9, scale=2), "decimal(9, 2)", Decimal("-1234567.89"), Decimal("-1234567.89")
    ),
    "dec_w": (
        logical("bytes", "decimal", precision=9, scale=2), "decimal(20, 4)", Decimal("1.23"), Decimal("1.2300")
    ),
    "dec_f": (
        {"type": "fixed", "name": "FD", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 3},
        "decimal(18, 3)", Decimal("-0.125"), Decimal("-0.125"),
    ),
    "day": (logical("int", "date"), "date", dt.date(2013, 1, 31), dt.date(2013, 1, 31)),
    "old": (logical("int", "date"), "date", dt.date(1066, 10, 14), dt.date(1066, 10, 14)),
    "t_ms": (logical("int", "time-millis"), "int", dt.time(0, 0, 1, 5000), 1005),
    "t_us": (logical("long", "time-micros"), "long", dt.time(0, 0, 1, 5), 1_000_005),
    "ts_ms": (logical("long", "timestamp-millis"), "timestamptz", MOMENT, MOMENT.replace(microsecond=123000)),
    "ts_us": (logical("long", "timestamp-micros"), "timestamptz", MOMENT, MOMENT),
    "lo_ms": (
        logical("long", "local-timestamp-millis"), "timestamp", dt.datetime(2013, 1, 31, 10, 0, 0, 123000),  # noqa: DTZ001
        dt.datetime(2013, 1, 31, 10, 0, 0, 123000),  # noqa: DTZ001
    ),
    "lo_us": (
        logical("long", "local-timestamp-micros"), "timestamp", dt.datetime(2013, 1, 31, 10, 0, 0, 123456),  # noqa: DTZ001
        dt.datetime(2013, 1, 31, 10, 0, 0, 123456),  # noqa: DTZ001
    ),
    "u": (
        logical("string", "uuid"), "uuid", uuid.UUID("123e4567-e89b-12d3-a456-426614174000"),
        uuid.UUID("123e4567-e89b-12d3-a456-426614174000"),
    ),
    "li": ({"type": "array", "items": ["null", "int"]}, "list<long>", [1, None, 3], [1, None, 3]),
    "m": ({"type": "map", "values": "double"}, "map<string, double>", {"x": 1.5}, [("x", 1.5)]),
    "st": (
        record(a="int", b={"type": "array", "items": {**record(c=logical("int", "date"), x="string"), "name": "In"}})
        | {"name": "Out"},
        "struct<b: list<struct<c: date>>, a: long, gone: string>",
        {"a": 1, "b": [{"c": dt.date(2020, 2, 29), "x": "left out"}]},
        {"b": [{"c": dt.date(2020, 2, 29)}], "a": 1, "gone": None},
    ),
}  # fmt: skip


def framed(number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">bI", 0, number) + payload


def told(it: Lake, table: str) -> dict[str, dict[str, Any]]:
    return {row["key"].decode(): row for row in it.quarantined(table)}


def test_avro_every_type_several_schemas_and_hostile_records(
    lake: Callable[..., Lake], client: SchemaRegistryClient
) -> None:
    it = lake()
    it.create_topic(1)
    columns = [{"name": n, "type": t} for n, (_, t, _, _) in AVRO_TYPES.items()]
    later = [{"name": "later", "type": "string"}, {"name": "moved", "type": "long", "source": "st.a"}]
    later = later[:1]
    key = {"name": "id", "type": "string", "source": "$key"}
    table = it.contract(columns=[key, *columns, *later], errors={"max_ratio": 1.0})
    plain = record(**{n: t for n, (t, *_) in AVRO_TYPES.items()})
    nullable = {**plain, "fields": [{**f, "type": ["null", f["type"]]} for f in plain["fields"]]}
    value = {n: v for n, (_, _, v, _) in AVRO_TYPES.items()}
    it_any = {"avro.remove.java.properties": False}
    good = {
        "plain": avro(client, it, plain, value),
        "nullable": avro(client, it, nullable, value, **{"subject.name.strategy": lambda *_: f"{it.topic}-nullable"}),
        "nulls": avro(client, it, nullable, dict.fromkeys(value), **{"subject.name.strategy": lambda *_: f"{it.topic}-nullable"}),
    }
    assert it_any
    it.send((0, key, value) for key, value in good.items())
    outcome = it.run()[table]
    assert outcome["state"] == "published", outcome["error"]
    assert {k: (r["error"], r["field"]) for k, r in told(it, table).items()} == {}
    rows = {row["id"]: row for row in it.rows(table)}
    for name, (_, _, _, expected) in AVRO_TYPES.items():
        for which in ("plain", "nullable"):
            found = rows[which][name]
            assert (uuid.UUID(bytes=found) if name == "u" and isinstance(found, bytes) else found) == expected, name
        assert rows["nulls"][name] is None
