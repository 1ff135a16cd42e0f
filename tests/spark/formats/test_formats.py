"""Records of real producers with a schema registry (Avro, Protobuf, JSON Schema) become the right rows."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import math
import struct
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyspark.sql import DataFrame, SparkSession

from sluice.contract.contract import Contract
from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.errors import ConfigError, RegistryUnavailableError
from sluice.formats import logical_types, protobuf_descriptors
from sluice.formats.convert import SchemaMismatchError
from sluice.formats.decode import decode
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD, OP
from sluice.kafka.registry import SchemaRegistry as Schemas
from sluice.kafka.registry import WriterSchema
from tests.support.lake import Lake
from tests.support.services.port_forward import PortForward
from tests.support.services.registries import registry_client

pytestmark = pytest.mark.usefixtures("generated_code")

HTML = "'; DROP TABLE t; -- <script>ü</script>"
JSON_SCHEMA = json.dumps({"title": "x", "type": "object", "properties": {"n": {"type": "integer"}}})
MOMENT = dt.datetime(2013, 1, 31, 8, 0, 0, 123456, tzinfo=dt.UTC)


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return registry_client(registry)


def context(topic: str, field: str = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, field)


def avro(
    client: SchemaRegistryClient, schema: Any, value: Any, *, field: str = MessageField.VALUE, references: Any = ()
) -> bytes:
    """As a producer writes it, the schema being registered on the way, each under a subject of its own."""
    made = AvroSerializer(client, Schema(json.dumps(schema), "AVRO", list(references)))(value, context(name(), field))
    assert made is not None
    return made


def name() -> str:
    return f"s-{uuid.uuid4().hex[:10]}"


def record(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "namespace": "t",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def debezium(kind: str, name: str) -> dict[str, Any]:
    """As Connect's converters write Debezium's own types."""
    return {"type": kind, "connect.version": 1, "connect.name": f"io.debezium.time.{name}"}


LOCAL = MOMENT.replace(tzinfo=None)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NINES = 10**38 - 1
UNLIMITED = logical("bytes", "decimal", precision=64, scale=4)
VARIABLE = record(scale="int", value="bytes") | {
    "name": "VariableScaleDecimal", "connect.name": "io.debezium.data.VariableScaleDecimal"
}  # fmt: skip

# Avro's type, the column's, what the producer gives, what the table has.
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
        logical("bytes", "decimal", precision=9, scale=2), "decimal(9, 2)", Decimal("-1234567.89"),
        Decimal("-1234567.89"),
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
    "u_tx": (
        logical("string", "uuid"), "string", uuid.UUID("123e4567-e89b-12d3-a456-426614174000"),
        "123e4567-e89b-12d3-a456-426614174000",
    ),
    "tx_day": ("string", "date", "2013-01-31", dt.date(2013, 1, 31)),
    "tx_at": ("string", "timestamptz", "2013-01-31T10:00:00.123456+02:00", MOMENT),
    "tx_face": ("string", "timestamp", "2013-01-31T10:00:00", dt.datetime(2013, 1, 31, 10)),  # noqa: DTZ001
    "tx_dec": ("string", "decimal(5, 2)", "-12.5", Decimal("-12.50")),
    "dz_day": (debezium("int", "Date"), "date", 15736, dt.date(2013, 1, 31)),
    "dz_ms": (debezium("long", "Timestamp"), "timestamp", 1359619200123, dt.datetime(2013, 1, 31, 8, 0, 0, 123000)),  # noqa: DTZ001
    "dz_us": (debezium("long", "MicroTimestamp"), "timestamp", 1359619200123456, MOMENT.replace(tzinfo=None)),
    "dz_at": (debezium("long", "MicroTimestamp"), "timestamptz", 1359619200123456, MOMENT),
    "dz_raw": (debezium("long", "MicroTimestamp"), "long", 1359619200123456, 1359619200123456),
    "dz_days": (debezium("int", "Date"), "int", 15736, 15736),
    "dz_ms_at": (debezium("long", "Timestamp"), "timestamptz", 1359619200123, MOMENT.replace(microsecond=123000)),
    "dz_ms_raw": (debezium("long", "Timestamp"), "long", 1359619200123, 1359619200123),
    "dz_tx": (debezium("string", "ZonedTimestamp"), "string", "2013-01-31T08:00:00Z", "2013-01-31T08:00:00Z"),
    "dz_ns": (debezium("long", "NanoTimestamp"), "timestamp", 1359619200123456789, MOMENT.replace(tzinfo=None)),
    "dz_ns_raw": (debezium("long", "NanoTimestamp"), "long", 1359619200123456789, 1359619200123456789),
    "dz_ns_old": (debezium("long", "NanoTimestamp"), "timestamptz", -1, EPOCH - dt.timedelta(microseconds=1)),
    "dz_iso_day": (debezium("string", "IsoDate"), "date", "2017-09-15Z", dt.date(2017, 9, 15)),
    "dz_iso": (debezium("string", "IsoTimestamp"), "timestamp", "2013-01-31T08:00:00.123456Z", LOCAL),
    "dz_iso_at": (debezium("string", "IsoTimestamp"), "timestamptz", "2013-01-31T08:00:00.123456Z", MOMENT),
    "dz_iso_time": (debezium("string", "IsoTime"), "string", "08:00:00Z", "08:00:00Z"),
    "dz_iso_tx": (debezium("string", "IsoDate"), "string", "2017-09-15Z", "2017-09-15Z"),
    "co_at": (
        logical("long", "timestamp-millis", **{"connect.name": "org.apache.kafka.connect.data.Timestamp"}), "timestamp",
        MOMENT, MOMENT.replace(microsecond=123000, tzinfo=None),
    ),
    "dec_64": (UNLIMITED, "decimal(20, 4)", Decimal("-12.34"), Decimal("-12.3400")),
    "dec_64_2": (UNLIMITED, "decimal(5, 2)", Decimal("12.3400"), Decimal("12.34")),
    "dec_64_38": (logical("bytes", "decimal", precision=64), "decimal(38, 0)", Decimal(-NINES), Decimal(-NINES)),
    "dec_64_by": (UNLIMITED, "binary", Decimal("12.34"), b"\x01\xe2\x08"),
    "dec_64_tx": (UNLIMITED, "string", Decimal("12.34"), "12.3400"),
    "dec_64_f": (
        {"type": "fixed", "name": "F30", "size": 30, "logicalType": "decimal", "precision": 70, "scale": 2},
        "decimal(38, 2)", Decimal("-0.01"), Decimal("-0.01"),
    ),
    "dec_64_li": (
        {"type": "array", "items": ["null", logical("bytes", "decimal", precision=64, scale=1)]}, "list<decimal(9, 1)>",
        [None, Decimal("2.5")], [None, Decimal("2.5")],
    ),
    "dec_tx": (logical("bytes", "decimal", precision=9, scale=2), "string", Decimal("-1.50"), "-1.50"),
    "dec_by": (logical("bytes", "decimal", precision=9, scale=2), "binary", Decimal("-0.01"), b"\xff"),
    "vsd": (VARIABLE, "decimal(12, 4)", {"scale": 2, "value": b"\xfb\x2e"}, Decimal("-12.3400")),
    "vsd_st": (VARIABLE | {"name": "V2"}, "struct<scale: int>", {"scale": 2, "value": b"\x01"}, {"scale": 2}),
    "dz_zone": (debezium("string", "ZonedTimestamp"), "timestamptz", "2013-01-31T08:00:00.123456Z", MOMENT),
    "dz_in": (
        record(at=["null", debezium("long", "Timestamp")]) | {"name": "Row"}, "struct<at: timestamp>", {"at": 1000},
        {"at": dt.datetime(1970, 1, 1, 0, 0, 1)},  # noqa: DTZ001
    ),
    "dz_li": (
        {"type": "array", "items": ["null", debezium("int", "Date")]}, "list<date>", [15736, None],
        [dt.date(2013, 1, 31), None],
    ),
    "dz_m": (
        {"type": "map", "values": record(at={"type": "array", "items": debezium("long", "Timestamp")}) | {"name": "A"}},
        "map<string, struct<at: list<timestamp>>>", {"x": {"at": [1000]}},
        {"x": {"at": [dt.datetime(1970, 1, 1, 0, 0, 1)]}},  # noqa: DTZ001
    ),
    "tx_li": ({"type": "array", "items": "string"}, "list<decimal(5, 2)>", ["-12.5"], [Decimal("-12.50")]),
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


def unmeant(client: SchemaRegistryClient, schema: Any) -> Callable[..., bytes]:
    """Writes records of a schema as a writer does that has no idea of what its numbers mean."""
    number = client.register_schema(name(), Schema(json.dumps(schema), "AVRO"))
    bare = fastavro.parse_schema(json.loads(json.dumps(schema).replace('"logicalType"', '"meant"')))

    def written(**value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, bare, value)
        return framed(number, out.getvalue())

    return written


def unscaled(number: int, length: int = 16) -> bytes:
    return number.to_bytes(length, "big", signed=True)


def same(found: Any, expected: Any) -> bool:
    """PyIceberg gives a uuid as bytes."""
    return (
        uuid.UUID(bytes=found) if isinstance(expected, uuid.UUID) and isinstance(found, bytes) else found
    ) == expected


def read(
    spark: SparkSession, records: Iterable[tuple[bytes | None, bytes | None]], columns: list[Any], **more: Any
) -> list[dict[str, Any]]:
    """Keys and values through the real decoder, without broker and table; in the order given."""
    fields = {
        name: {"format": each} if isinstance(each, str) and name in ("key", "value") else each
        for name, each in more.items()
    }
    contract = Contract.model_validate(
        {"table": "db.t", "topic": "t", "group": "g", "owner": "tests", "columns": columns, **fields}
    )
    rows = [(1, 0, at, dt.datetime(2020, 1, 1), *record, None) for at, record in enumerate(records)]  # noqa: DTZ001
    frame: DataFrame = spark.createDataFrame(
        rows,
        "batch_seq long, _kafka_partition int, _kafka_offset long, _kafka_timestamp timestamp, key binary, "
        "value binary, headers array<struct<key: string, value: binary>>",
    )
    return [row.asDict(recursive=True) for row in decode(frame, contract, "t").orderBy("_kafka_offset").collect()]


def test_every_avro_type(spark: SparkSession, client: SchemaRegistryClient) -> None:
    columns = [{"name": n, "type": t} for n, (_, t, _, _) in AVRO_TYPES.items()]
    plain = record(**{n: t for n, (t, *_) in AVRO_TYPES.items()})
    nullable = {**plain, "fields": [{**f, "type": ["null", f["type"]]} for f in plain["fields"]]}
    value = {n: v for n, (_, _, v, _) in AVRO_TYPES.items()}
    values = [avro(client, plain, value), avro(client, nullable, value), avro(client, nullable, dict.fromkeys(value))]
    once = avro(client, record(dz_m=AVRO_TYPES["dz_m"][0]), {"dz_m": value["dz_m"]})
    values.append(once[:5] + b"\x04" + 2 * once[6:-1] + b"\0")  # its key twice
    rows = read(spark, [(None, each) for each in values], columns, value="avro")
    assert [row[DETAIL] for row in rows] == [None] * 4
    assert rows[3]["dz_m"] == rows[0]["dz_m"]
    for column, (_, kind, _, expected) in AVRO_TYPES.items():
        for found in (rows[0][column], rows[1][column]):
            if kind == "timestamptz":
                assert found.replace(tzinfo=dt.UTC) == expected, column
            else:
                assert found == (dict(expected) if kind.startswith("map") else _spark(expected)), column
        assert rows[2][column] is None


def test_avro_that_is_not_what_a_column_reads_from_it(spark: SparkSession, client: SchemaRegistryClient) -> None:
    """A text, or one of Debezium's numbers, that becomes nothing is told of, also in lists and maps."""
    columns = [
        {"name": "at", "type": "timestamptz", "source": "row.at"},
        {"name": "face", "type": "timestamp", "source": "row.face"},
        {"name": "day", "type": "date"},
        {"name": "n", "type": "decimal(4, 2)"},
        {"name": "us", "type": "timestamp"},
        {"name": "days", "type": "date"},
        {"name": "many", "type": "list<struct<on: date, at: map<string, timestamp>>>"},
        {"name": "cents", "type": "decimal(9, 2)"},
        {"name": "big", "type": "decimal(20, 0)"},
        {"name": "prices", "type": "list<struct<p: decimal(12, 2)>>"},
        {"name": "on", "type": "date"},
        {"name": "instant", "type": "timestamptz"},
        {"name": "clock", "type": "timestamp"},
        {"name": "times", "type": "list<timestamptz>"},
    ]
    row = record(at=["null", "string"], face=["null", "string"]) | {"name": "Row"}
    at = {"type": "map", "values": ["null", debezium("long", "MicroTimestamp")]}
    many = {"type": "array", "items": ["null", record(on=["null", "string"], at=at) | {"name": "Of"}]}
    outer = record(
        row=row,
        day="string",
        n="string",
        us=debezium("long", "MicroTimestamp"),
        days=debezium("int", "Date"),
        many=many,
    )
    whole = {"row": {"at": "2013-01-31T08:00:00Z", "face": "2013-01-31T08:00:00"}, "day": "2013-01-31", "n": "1.25"}
    whole |= {
        "us": 1,
        "days": 1,
        "many": [None, {"on": None, "at": {}}, {"on": "2013-01-31", "at": {"x": None, "y": 1}}],
    }
    good = [whole, {**whole, "row": {"at": None, "face": None}}, {**whole, "row": {"at": "2013-01-31 10:00:00+02"}}]
    # Spark would drop a zone and a time, take a time for today's, and count beyond what others read.
    bad: list[tuple[str, Any]] = [
        *(("row.at", each) for each in (HTML, "10:00:00Z", "2013-01-31T08:00:00Z ", "2013-02-30T08:00:00Z", "")),
        *(("row.face", f"2013-01-31T08:00:00{zone}") for zone in ("Z", "+02", "+02:00:00", " Europe/Paris", "UTC")),
        *(
            ("day", each)
            for each in ("2013", "2013-01-31T23:30:00", "2013-01-31 nonsense", "99999-01-01", "0000-01-01")
        ),
        *(("n", each) for each in ("123.45", "n/a")),
        *(("us", each) for each in (9_223_372_036_825_200_000, -(2**63))),
        ("days", 2**31 - 1),
        *(("many[].on", [{"on": each, "at": {}} for each in several]) for several in (["", None], [None, "2013"])),
        ("many[].at{}", [None, {"on": None, "at": {"x": 1, "y": 2**63 - 1}}]),
    ]
    cents = logical("bytes", "decimal", precision=9, scale=2)
    fixed = {**logical("fixed", "decimal", precision=18), "name": "F16", "size": 16}
    prices = {"type": "array", "items": record(p=cents) | {"name": "Price"}}
    moments = {
        "on": logical("int", "date"),
        "instant": logical("long", "timestamp-micros"),
        "clock": logical("long", "local-timestamp-millis"),
        "times": {"type": "array", "items": ["null", logical("long", "timestamp-millis")]},
    }
    odd = unmeant(client, record(cents=["null", cents], big=fixed, prices=prices, **moments))
    plain = {"cents": None, "big": bytes(16), "prices": [], "on": 0, "instant": 0, "clock": 0, "times": [None]}
    most = {"cents": unscaled(-999_999_999), "big": unscaled(10**18 - 1), "prices": [{"p": unscaled(500, 2)}]}
    most |= {"on": logical_types.LAST_DAY, "instant": 2**57, "times": [None, 0]}
    most |= {"clock": logical_types.FIRST_TIMESTAMP_US // 1000}
    # Of some Spark would take the last 64 bits.
    wide = [
        *(("cents", unscaled(each)) for each in (2**64 + 500, -(2**64) - 500, 2**120, 10**9)),
        *(("big", unscaled(each)) for each in (2**64 + 7, 10**18)),
        ("prices[].p", [{"p": unscaled(1)}, {"p": unscaled(2**64 + 500)}]),
        *(("on", each) for each in (logical_types.FIRST_DAY - 1, logical_types.LAST_DAY + 1, -(2**31))),
        *(
            ("instant", each)
            for each in (logical_types.FIRST_TIMESTAMP_US - 1, logical_types.LAST_TIMESTAMP_US + 1, 2**63 - 1)
        ),
        *(
            ("clock", each)
            for each in (logical_types.FIRST_TIMESTAMP_US // 1000 - 1, logical_types.LAST_TIMESTAMP_US // 1000 + 1)
        ),
        ("times[]", [None, logical_types.LAST_TIMESTAMP_US // 1000 + 1]),
    ]
    written = [{**whole, "row": {p[4:]: v}} if p.startswith("row.") else {**whole, p.split("[")[0]: v} for p, v in bad]
    values = [avro(client, outer, each) for each in (*good, *written)]
    values += [
        avro(client, record(us={**debezium("double", "Timestamp"), "connect.name": ["x"]}), {"us": 1.0}),
        avro(client, record(us=debezium("long", "NanoTime")), {"us": 1}),
        *(odd(**{**plain, path.split("[")[0]: each}) for path, each in wide),
    ]
    values[3:3] = [odd(**plain), odd(**most)]
    rows = read(spark, [(None, each) for each in values], columns, value="avro")
    assert [r[ERROR] for r in rows[:5]] == [None] * 5
    found = [(r["cents"], r["big"], r["prices"]) for r in rows[3:5]]
    assert found == [(None, 0, []), (Decimal("-9999999.99"), 10**18 - 1, [{"p": Decimal("5.00")}])]
    assert (rows[4]["on"], rows[4]["clock"]) == (dt.date(9999, 12, 31), dt.datetime(1, 1, 1))  # noqa: DTZ001
    del rows[3:5]
    assert rows[2]["at"] == rows[0]["at"] and rows[2]["face"] is None
    moment = {"x": None, "y": dt.datetime(1970, 1, 1, microsecond=1)}  # noqa: DTZ001
    assert rows[0]["many"] == [None, {"on": None, "at": {}}, {"on": dt.date(2013, 1, 31), "at": moment}]
    told = [(r[ERROR], r[FIELD]) for r in rows[3:]]
    assert told == [
        ("malformed", path) for path in (*(path for path, _ in bad), "us", "us", *(path for path, _ in wide))
    ]
    assert all(HTML not in r[DETAIL] for r in rows[3:])
    assert "is not a timestamp" in rows[3][DETAIL]


KEYS = [
    {"name": "amount", "type": "decimal(5, 2)"},
    {"name": "at", "type": "timestamptz"},
    {"name": "local", "type": "timestamp"},
    {"name": "half", "type": "decimal(3, 1)", "expression": "number / 2"},
    {"name": "other", "type": "decimal(5, 2)"},
]
OF_A_KEY: dict[str, Any] = {
    "columns": KEYS,
    "mode": "upsert",
    "deletes": "ignore",
    "identifier": ["amount", "at", "local", "half"],
    "inputs": [{"name": "number", "type": "double"}],
}


def test_a_key_is_never_rounded_to_its_column(spark: SparkSession, client: SchemaRegistryClient) -> None:
    """Else 0.005 and 0.01 would be one row. Other columns are rounded, as is documented."""
    good = {"amount": "0.01", "at": "2013-01-31T08:00:00.123456Z", "local": "2013-01-31T08:00", "number": 3}
    good["other"] = "0.005"
    same = [{"amount": each} for each in (0.01, "+.010000", "1e-2", 1e-2, "0.1E-1", -12.3, 100)]
    same += [{"at": "2013-01-31T08:00:00.123456000Z"}, {"at": 1359619200}, {"number": 4.2}]
    bad = [("amount", each) for each in ("0.005", 0.005, 0.014, "5e-3", "0.01000000000000000000001e0", "0.0100001")]
    bad += [("at", "2013-01-31T08:00:00.1234561Z"), ("local", "2013-01-31T08:00:00.000000001"), ("half", 0.25)]
    rows = [good, *({**good, **each} for each in same)]
    rows += [{**good, {"half": "number"}.get(field, field): value} for field, value in bad]
    values = [json.dumps(each).encode() for each in rows]
    found = read(spark, [(None, each) for each in values], value="json", **OF_A_KEY)
    assert [row[ERROR] for row in found[: len(same) + 1]] == [None] * (len(same) + 1), found
    assert (found[0]["amount"], found[0]["other"]) == (Decimal("0.01"), Decimal("0.01"))
    told = [(row[ERROR], row[FIELD]) for row in found[len(same) + 1 :]]
    assert told == [("expression" if field == "half" else "malformed", field) for field, _ in bad]
    assert "is not a decimal(5,2) without rounding" in found[len(same) + 1][DETAIL]

    # Avro's nanoseconds, and texts.
    schema = record(amount="string", at=logical("long", "timestamp-nanos"), local="string", number="double")
    fine = {"amount": "0.01", "at": 1_000_000_001_000, "local": good["local"], "number": 3.0}
    written = [fine, {**fine, "amount": "0.005"}, {**fine, "at": 1_000_000_001_001}]
    found = read(spark, [(None, avro(client, schema, each)) for each in written], value="avro", **OF_A_KEY)
    assert [row[FIELD] for row in found] == [None, "amount", "at"]
    assert found[0]["at"] == dt.datetime(1970, 1, 1, 0, 16, 40, 1)  # noqa: DTZ001

    # Protobuf's Timestamp has nanoseconds, too.
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { string amount = 1; '
    text += "google.protobuf.Timestamp at = 2; string local = 3; double number = 4; }"
    files = compiled(text)
    moments = [{"seconds": 1, "nanos": 1000}, {"seconds": -1, "nanos": 1}, {"seconds": 2**62}]
    made = [message_of(files, "M", **{**fine, "at": each}) for each in moments]
    found = read(spark, [(None, protobuf(client, each)) for each in made], value="protobuf", **OF_A_KEY)
    assert [row[FIELD] for row in found] == [None, "at", "at"]
    assert found[0]["at"] == dt.datetime(1970, 1, 1, 0, 0, 1, 1)  # noqa: DTZ001

    # The record's own key.
    own = [{"name": "id", "type": "decimal(5, 2)", "source": "$key"}]
    more = {"mode": "upsert", "identifier": ["id"], "key": "string", "value": "json"}
    found = read(spark, [(b"0.01", b"{}"), (b"0.005", b"{}"), (b"0.005", None)], own, **more)
    assert [row[ERROR] for row in found] == [None, "malformed", "tombstone_key"]


def test_what_a_row_was_is_not_held_against_its_change(spark: SparkSession, client: SchemaRegistryClient) -> None:
    """A change may be what repairs the row; of a delete it is all there is."""
    columns = [
        {"name": "id", "type": "long"},
        {"name": "n", "type": "decimal(4, 2)"},
        {"name": "s", "type": "string"},
    ]
    row = record(id="long", n="string", s="string") | {"name": "Row"}
    envelope = record(before=["null", row], after=["null", "t.Row"], op="string")

    def event(op: str, before: str | None, after: str | None, *, garbled: str = "") -> bytes:
        texts = {part: b"\xff\xfe" if part == garbled else b"ok" for part in ("before", "after")}
        rows = {part: n and {"id": 1, "n": n, "s": "?!"} for part, n in (("before", before), ("after", after))}
        written = avro(client, envelope, {**rows, "op": op})
        for part in ("before", "after"):
            if rows[part]:
                written = written.replace(b"?!", texts[part], 1)
        return written

    values = [event("u", "n/a", "1.5"), event("u", "n/a", "x"), event("c", None, "x"), event("d", "n/a", None)]
    values += [event("u", "n/a", "1.5", garbled="after"), event("u", "2", "1.5", garbled="after")]
    values += [event("u", "2", "1.5", garbled="before"), event("u", "2", "x", garbled="before")]
    more = {"mode": "upsert", "identifier": ["id"], "value": "avro", "cdc": {"format": "debezium"}}
    rows = read(spark, [(None, each) for each in values], columns, **more)
    told = [None, "after.n", "after.n", "before.n", "after", "after", None, "after.n"]
    assert [r[FIELD] for r in rows] == told
    assert [r[ERROR] for r in rows] == [each and "malformed" for each in told]
    assert (rows[0][ERROR], rows[0]["n"]) == (None, Decimal("1.50"))


@pytest.mark.parametrize("form", ["json", "json_connect"])
def test_in_json_neither(spark: SparkSession, form: str) -> None:
    """What Spark's parser can't read, in other fields than those that are parsed as text."""
    columns = [{"name": "id", "type": "long"}, {"name": "n", "type": "int"}]
    columns += [
        {"name": "total", "type": "decimal(4, 2)"},
        {"name": "at", "type": "timestamptz", "source": "$source.at"},
    ]
    given = [
        ("u", '{"id": 1, "n": "n/a"}', '{"id": 1, "n": 5}'), ("u", "7", '{"id": 1, "n": 5}'),
        ("u", '{"id": 1, "n": "n/a"}', '{"id": 1, "n": "x"}'), ("c", "null", '{"id": 1, "n": "x"}'),
        ("d", '{"id": "n/a"}', "null"), ("d", '{"id": 1, "n": "n/a"}', "null"),
        # What is read apart, beside it.
        ("u", '{"id": 1, "n": "n/a"}', '{"id": 1, "n": 5, "total": "123.45"}'),
        ("u", '{"id": 1, "total": "n/a"}', '{"id": 1, "n": 5, "total": "1.5"}'),
        ("u", '{"id": 1, "n": "n/a", "total": "n/a"}', '{"id": 1, "n": 5}, "source": {"at": "no moment"}'),
    ]  # fmt: skip
    values = [f'{{"op": "{op}", "before": {before}, "after": {after}}}' for op, before, after in given]
    if form == "json_connect":
        values = [f'{{"schema": null, "payload": {each}}}' for each in values]
    more = {"mode": "upsert", "identifier": ["id"], "value": form, "cdc": {"format": "debezium"}}
    rows = read(spark, [(None, each.encode()) for each in values], columns, **more)
    told = [(r[ERROR], r[FIELD], r["n"]) for r in rows]
    assert told[:2] == [(None, None, 5)] * 2
    assert [error for error, *_ in told[2:6]] == ["malformed"] * 4, told
    assert [field for _, field, _ in told[4:6]] == ["before"] * 2
    assert told[6:] == [("malformed", "after.total", 5), (None, None, 5), ("malformed", "source.at", 5)]


def _spark(expected: Any) -> Any:
    return str(expected) if isinstance(expected, uuid.UUID) else expected


TWICE = b"\x04" + b"".join(b"\x02x" + struct.pack("<d", number) for number in (0.5, 1.5)) + b"\0"


def test_avro_through_the_whole_way(lake: Callable[..., Lake], client: SchemaRegistryClient) -> None:
    """Schemas that differ and hostile records in one batch, with Avro keys."""
    it = lake()
    it.create_topic(1, max_message_bytes="20000000")
    producer = Producer({**it.kafka, "linger.ms": 5, "message.max.bytes": 20_000_000})
    used = {n: AVRO_TYPES[n] for n in ("i", "l", "d", "s", "dec", "u", "li", "st", "m")}
    columns = [{"name": n, "type": t} for n, (_, t, _, _) in used.items()]
    key = {"name": "id", "type": "string", "source": "$key.name"}
    table = it.contract(
        columns=[key, *columns, {"name": "later", "type": "string"}],
        key={"format": "avro"}, value={"format": "avro"}, errors={"max_ratio": 1.0},
    )  # fmt: skip
    plain = record(**{n: t for n, (t, *_) in used.items()})
    nullable = {**plain, "fields": [{**f, "type": ["null", f["type"]]} for f in plain["fields"]]}
    value = {n: v for n, (_, _, v, _) in used.items()}
    written = avro(client, plain, value)
    wide = name()
    client.register_schema(wide, Schema(json.dumps(record(s="string") | {"name": "Inner"}), "AVRO"))
    elsewhere = [SchemaReference("t.Inner", wide, 1)]
    good = {
        "plain": written,
        "nullable": avro(client, nullable, value),
        "nulls": avro(client, nullable, dict.fromkeys(value)),
        "fewer and later": avro(client, record(later="string", s="string"), {"later": HTML, "s": "x"}),
        "10 MB": avro(client, record(s="string"), {"s": "x" * 10_000_000}),
        "referred to": avro(client, record(x="t.Inner", i="int"), {"x": {"s": "s"}, "i": 5}, references=elsewhere),
        "NaN": avro(client, record(d="double"), {"d": float("nan")}),
        "a map's key twice": avro(client, record(m=AVRO_TYPES["m"][0]), {"m": {}})[:5] + TWICE,
        "a recursion that nobody reads": avro(
            client, record(i="int", next=["null", "t.R"]), {"i": 6, "next": {"i": 7, "next": None}}
        ),
    }
    tree = record(i="int", of={"type": "map", "values": ["null", {"type": "array", "items": "t.R"}]})
    good["a tree that nobody reads"] = avro(client, tree, {"i": 6, "of": {"x": [{"i": 7, "of": {"y": None}}]}})
    chain, branches = (
        int.from_bytes(good[f"a {each} that nobody reads"][1:5], "big") for each in ("recursion", "tree")
    )
    good["a chain of 63 that nobody reads"] = framed(chain, b"\x0c" + b"\x02\x0e" * 63 + b"\0")
    loop = {**record(a="int", b=["null", "t.Loop"]), "name": "Loop"}
    number = int.from_bytes(written[1:5], "big")
    decimal = int.from_bytes(avro(client, record(dec=logical("bytes", "decimal", precision=9, scale=2)),
                                  {"dec": Decimal("1.00")})[1:5], "big")  # fmt: skip
    text = int.from_bytes(good["10 MB"][1:5], "big")
    items = int.from_bytes(avro(client, record(li={"type": "array", "items": ["null", "int"]}), {"li": []})[1:5], "big")
    # What is in the quarantine of it: the field, and a part of the words.
    bad: dict[str, tuple[bytes, str | None, str]] = {
        "another type": (avro(client, record(l="string"), {"l": "1"}), "l", "is string, but its column is bigint"),
        "narrower": (avro(client, record(i="long"), {"i": 1}), "i", "is bigint, but its column is int"),
        "a union": (avro(client, record(s=["null", "string", "long"]), {"s": 1}), "s", "is a union of string, long"),
        "a recursion": (
            avro(client, record(st=["null", loop]), {"st": {"a": 1, "b": None}}), "st.b", "is recursive (t.Loop)"
        ),
        "not a record": (avro(client, {"type": "string"}, "x"), None, "the root is not a record"),
        "other kind": (
            JSONSerializer(JSON_SCHEMA, client)({"n": 1}, context(name())) or b"",
            None, "is of kind JSON",
        ),
        "truncated": (written[:-20], None, "truncated or damaged"),
        "nothing after the id": (framed(number), None, "truncated or damaged"),
        "no id": (b"\0\0\0", None, "shorter than the 5 bytes"),
        "wrong magic byte": (b"\1" + written[1:], None, "magic byte"),
        "AWS Glue": (b"\3\0" + bytes(range(16)) + b"a", None, "AWS Glue Schema Registry's wire format"),
        "AWS Glue, compressed": (b"\3\5" + bytes(range(16)) + b"a", None, "AWS Glue Schema Registry's wire format"),
        "too short for Glue": (b"\3\0" + bytes(15), None, "magic byte"),
        "JSON": (b'{"i": 1}', None, "magic byte"),
        "unknown id": (framed(1_000_000, written[5:]), None, "has no schema 1000000"),
        "an id beyond all": (framed(2**32 - 1, written[5:]), None, "has no schema 4294967295"),
        "an overflowing decimal": (framed(decimal, b"\x20" + b"\x7f" * 16), None, "truncated or damaged"),
        # Each level is a frame and more on the stack of what passes it over.
        "a chain of 64": (framed(chain, b"\x0c" + b"\x02\x0e" * 64 + b"\0"), None, "truncated or damaged"),
        "a chain of 400,000": (
            framed(chain, b"\x0c" + b"\x02\x0e" * 400_000 + b"\0"), None, "truncated or damaged"
        ),
        "a tree of 20,000 levels": (
            framed(branches, b"\x0c" + b"\x02\0\x02\x02\x0e" * 20_000 + b"\0" * 40_001), None, "truncated or damaged"
        ),
        "2 GB of text announced": (framed(text, b"\xfe\xff\xff\xff\x0fabc"), None, "truncated or damaged"),
        "2,000,000,000 items": (framed(items, b"\x80\xd0\xac\xf3\x0e" + b"\0" * 20), None, "truncated or damaged"),
        "no UTF-8": (framed(text, b"\x06\xff\xfe\x00"), "s", "not UTF-8"),
    }  # fmt: skip
    keys = {
        each: avro(client, {**record(name="string"), "name": "K"}, {"name": each}, field=MessageField.KEY)
        for each in (*good, *bad)
    }
    bad["a key that is none"] = (written, None, "the key does not begin with the magic byte")
    keys["a key that is none"] = b"plain"
    it.send(((0, keys[each], value) for each, value in good.items()), producer=producer)  # type: ignore[misc]
    it.send((0, keys[each], value) for each, (value, _, _) in bad.items())  # type: ignore[misc]
    outcome = it.run()[table]
    assert outcome["state"] == "published", outcome["error"]
    rows = {row["id"]: row for row in it.rows(table)}
    set_apart = {bytes(row["key"]): row for row in it.quarantined(table)}
    for each, (value, path, words) in bad.items():
        row = set_apart[keys[each]]
        assert (row["error_class"], row["field"], row["value"]) == ("malformed", path, value), each
        assert words in row["error"], each
    assert set(rows) == set(good)
    assert len(set_apart) == len(bad)
    for column, (_, _, _, expected) in used.items():
        assert all(same(rows[each][column], expected) for each in ("plain", "nullable")), column
        assert rows["nulls"][column] is None
    assert (rows["fewer and later"]["later"], rows["fewer and later"]["i"]) == (HTML, None)
    assert rows["plain"]["later"] is None
    assert len(rows["10 MB"]["s"]) == 10_000_000
    assert rows["referred to"]["i"] == 5 and rows["a recursion that nobody reads"]["i"] == 6
    assert rows["a tree that nobody reads"]["i"] == rows["a chain of 63 that nobody reads"]["i"] == 6
    assert rows["NaN"]["d"] != rows["NaN"]["d"] and rows["a map's key twice"]["m"] == [("x", 1.5)]


PROTO = """
syntax = "proto3";
package t;
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum E { RED = 0; BLUE = 1; }
message In { int32 c = 1; repeated string s = 2; }
message Node { int32 v = 1; Node next = 2; }
message M {
  int32 i = 1; int64 l = 2; uint32 u = 3; uint64 ul = 4; sint64 si = 5; fixed32 fx = 6; float f = 7; double d = 8;
  bool bo = 9; string s = 10; bytes by = 11; E en = 12; optional int32 op = 13;
  oneof one { string os = 14; int64 ol = 15; }
  repeated int32 li = 16; repeated In ins = 17; map<string, double> m = 18; map<int32, In> mi = 19;
  google.protobuf.Timestamp ts = 20; google.protobuf.Duration du = 21; google.protobuf.StringValue w = 22;
  In st = 23; Node node = 24; optional string at = 25;
  sint32 s3 = 26; sfixed32 f3 = 27; sfixed64 f6 = 28; fixed64 u6 = 29;
  optional string day = 30; optional string face = 31; optional string dec = 32;
  repeated double rd = 33;
  message Nested { int32 i = 1; }
}
message Second { string s = 1; }
message Incompatible { string i = 1; }
"""
GROUP = 'syntax = "proto2"; package t; message A { optional group St = 1 { optional int32 c = 1; } }'
IN = {"c": 4, "s": [HTML]}
# The column's type, what the table has of a full message, and of an empty one.
PROTO_TYPES: dict[str, tuple[str, Any, Any]] = {
    "i": ("int", -7, 0),
    "l": ("long", 2**60, 0),
    "u": ("long", 2**32 - 1, 0),
    "ul": ("decimal(20, 0)", Decimal(2**64 - 1), Decimal(0)),
    "si": ("long", -(2**60), 0),
    "fx": ("long", 2**32 - 1, 0),
    "f": ("double", 0.5, 0.0),
    "d": ("double", 1e300, 0.0),
    "bo": ("boolean", True, False),
    "s": ("string", HTML, ""),
    "by": ("binary", b"\x00\xff", b""),
    "en": ("string", "BLUE", "RED"),
    "op": ("int", 0, None),
    "os": ("string", None, None),
    "ol": ("long", 0, None),
    "li": ("list<long>", [1, 2], []),
    "rd": ("list<double>", [0.5], []),
    "ins": ("list<struct<c: int, s: list<string>>>", [IN], []),
    "m": ("map<string, double>", [("x", 1.5)], []),
    "mi": ("map<string, struct<c: long>>", [("3", {"c": 4})], []),
    "ts": ("timestamptz", MOMENT, None),
    "du": ("long", 1_500_000, None),
    "w": ("string", "", None),
    "st": ("struct<c: int, s: list<string>>", IN, None),
    "at": ("timestamptz", MOMENT, None),
    "s3": ("int", -(2**31), 0),
    "f3": ("int", -7, 0),
    "f6": ("long", -(2**60), 0),
    "u6": ("decimal(20, 0)", Decimal(2**64 - 1), Decimal(0)),
    "day": ("date", dt.date(2013, 1, 31), None),
    "face": ("timestamp", MOMENT.replace(tzinfo=None), None),
    "dec": ("decimal(5, 2)", Decimal("-12.50"), None),
}


def test_protobuf_through_the_whole_way(lake: Callable[..., Lake], client: SchemaRegistryClient) -> None:
    """Every type, several messages of one schema, schemas as text and as descriptors, and hostile records."""
    files = protobuf_descriptors.descriptor_files(WriterSchema(0, "PROTOBUF", PROTO))

    def message(full: str, **values: Any) -> Any:
        return message_factory.GetMessageClass(protobuf_descriptors.find_descriptor(files, f"t.{full}"))(**values)

    subject = name()

    def written(value: Any) -> bytes:
        """With the descriptor that the serializer registers."""
        return ProtobufSerializer(type(value), client)(value, context(subject)) or b""

    full = message("M", i=-7, l=2**60, u=2**32 - 1, ul=2**64 - 1, si=-(2**60), fx=2**32 - 1, f=0.5, d=1e300, bo=True,
                   s=HTML, by=b"\x00\xff", en=1, op=0, ol=0, li=[1, 2], rd=[0.5], ins=[IN], m={"x": 1.5}, st=IN,
                   s3=-(2**31), f3=-7, f6=-(2**60), u6=2**64 - 1, day="2013-01-31", dec="-12.5")  # fmt: skip
    full.mi[3].c = 4
    full.ts.FromDatetime(MOMENT)
    full.du.FromMilliseconds(1500)
    full.w.value = ""
    full.face = MOMENT.replace(tzinfo=None).isoformat()
    full.at = MOMENT.isoformat()
    beyond, longest, longer, cut_off = (message("M") for _ in range(4))
    beyond.ts.seconds = 2**50
    longest.du.seconds, longer.du.seconds, cut_off.du.seconds = 315_576_000_000, -315_576_000_001, 10**13
    deep = "".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(1, 800)) + "message M800 { int32 a = 1; }"
    chain = Schema(f'syntax = "proto3"; message M0 {{ int32 i = 1; M1 s = 2; }} {deep}', "PROTOBUF")
    whole, text = written(full), client.register_schema(name(), Schema(PROTO, "PROTOBUF"))
    good = {
        "full": whole,
        "as text": framed(text, whole[5:]),
        "empty": written(message("M")),
        "nested": written(message("M.Nested", i=3)),
        "second": written(message("Second", s="x")),
        "an enum's unknown value": written(message("M", en=77)),
        "a map's key twice": whole + full.SerializeToString(),
        "the longest duration": written(longest),
        "longer than is read at once": written(message("M", s="x" * 100_000)),
    }
    at = len(whole) - len(full.SerializeToString())
    bad: dict[str, tuple[bytes, str | None, str]] = {
        "truncated": (whole[:-3], None, "truncated or damaged"),
        "no message index": (whole[:5], None, "truncated or damaged"),
        "no such message": (whole[:5] + b"\2\x28" + whole[at:], None, "has no message at [20]"),
        "no count": (whole[:5] + b"\3\0" + whole[at:], None, "truncated or damaged"),
        "more than Python's stack holds": (
            framed(client.register_schema(name(), chain), b"\0\x08\x01"), None, "cannot be read (RecursionError)"
        ),
        "incompatible": (written(message("Incompatible", i="1")), "i", "is string, but its column is int"),
        "no UTF-8": (whole[:at] + b"\x52\x02\xff\xfe", None, "truncated or damaged"),
        "2 GB announced": (whole[:at] + b"\x52\xff\xff\xff\x7fab", None, "truncated or damaged"),
        "a moment beyond the calendar": (written(beyond), "ts", "is not a timestamp"),
        "too long a duration": (written(longer), "du", "is not a bigint"),
        "a duration that 64 bits don't hold": (written(cut_off), "du", "is not a bigint"),
        # A byte each, and a frame on the stack of what reads them.
        "groups in groups": (whole[:at] + b"\x0b" * 150_000, None, "truncated or damaged"),
        "a group": (
            framed(client.register_schema(name(), Schema(GROUP, "PROTOBUF")), b"\0\x0b\x08\x04\x0c"), "st", "is a group"
        ),
        "unknown id": (framed(1_000_000, whole[5:]), None, "has no schema 1000000"),
        "wrong magic byte": (b"\1" + whole[1:], None, "magic byte"),
    }  # fmt: skip
    it = lake()
    it.create_topic(1)
    table = it.contract(
        columns=[
            {"name": "id", "type": "string", "source": "$key"},
            *({"name": n, "type": kind} for n, (kind, _, _) in PROTO_TYPES.items()),
        ],
        value={"format": "protobuf"},
        errors={"max_ratio": 1.0},
    )
    it.send((0, each, value) for each, value in good.items())
    it.send((0, each, value) for each, (value, _, _) in bad.items())
    outcome = it.run()[table]
    assert outcome["state"] == "published", outcome["error"]
    rows = {row["id"]: row for row in it.rows(table)}
    set_apart = {row["key"].decode(): row for row in it.quarantined(table)}
    for each, (value, path, words) in bad.items():
        row = set_apart[each]
        assert (row["error_class"], row["field"], row["value"]) == ("malformed", path, value), each
        assert words in row["error"], each
    assert set(rows) == set(good)
    assert len(set_apart) == len(bad)
    for column, (_, expected, nothing) in PROTO_TYPES.items():
        assert rows["full"][column] == rows["as text"][column] == expected, column
        assert rows["empty"][column] == nothing, column
    assert rows["nested"]["i"] == 3 and rows["second"]["s"] == "x"
    assert rows["an enum's unknown value"]["en"] == "77"
    assert rows["the longest duration"]["du"] == 315_576_000_000 * 10**6
    assert len(rows["longer than is read at once"]["s"]) == 100_000
    assert all(rows["a map's key twice"][each] == rows["full"][each] for each in ("m", "mi"))


def test_json_schema_and_plain_formats(spark: SparkSession, client: SchemaRegistryClient) -> None:
    value = JSONSerializer(JSON_SCHEMA, client)({"n": 7, "s": HTML}, context(name())) or b""
    number = struct.Struct(">q").pack
    records = [
        (number(-3), value),
        (number(2**40), value[:5] + b'{"n": 1, "n": 8, "s": null}'),
        (number(1), value[:-1]),
        (number(2), value[:5] + b'{"n": "x"}'),
        (number(3), value[:5]),
        (number(4), framed(1_000_000, b"{}")),
        (b"1234", value),
        (number(5), b'{"n": 1}'),
    ]
    columns = [{"name": "id", "type": "long", "source": "$key"}, *({"name": n, "type": t} for n, t in NAMED)]
    rows = read(spark, records, columns, key="long", value="json_schema")
    assert [row[ERROR] for row in rows] == [None, None, *["malformed"] * 6]
    assert [(row["id"], row["n"], row["s"]) for row in rows[:2]] == [(-3, 7, HTML), (2**40, 8, None)]
    assert rows[6][FIELD] == "$key"
    words = [
        "cannot be parsed as a JSON object",
        "cannot be parsed as a JSON object",
        "cannot be parsed as a JSON object",
        "no schema 1000000",
        "the key",
        "magic byte",
    ]
    assert all(word in row[DETAIL] for word, row in zip(words, rows[2:], strict=True))


def test_a_key_that_is_one_thing_in_avro(spark: SparkSession, client: SchemaRegistryClient) -> None:
    key = avro(client, logical("long", "timestamp-micros"), MOMENT, field=MessageField.KEY)
    columns = [{"name": "at", "type": "timestamptz", "source": "$key"}, {"name": "n", "type": "long"}]
    rows = read(spark, [(key, b'{"n": 1}'), (key[:5], b'{"n": 2}'), (None, b'{"n": 3}')], columns, key="avro")
    assert [(row["at"] and row["at"].replace(tzinfo=dt.UTC), row["n"]) for row in rows] == [
        (MOMENT, 1), (None, 2), (None, 3)
    ]  # fmt: skip
    assert [row[DETAIL] is None for row in rows] == [True, False, True]


UUID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
NAMED = [("n", "long"), ("s", "string")]
INT, LONG = struct.Struct(">i").pack, struct.Struct(">q").pack
PLAIN: list[tuple[str, str, dict[bytes, Any], list[bytes]]] = [
    ("string", "string", {HTML.encode(): HTML, b"": ""}, [b"\xff\xfe"]),
    ("string", "double", {b"1.5e1": 15.0, b"-inf": -math.inf, b" .5": 0.5}, [b"1d", b"1.f", b"2D ", b"0x1p3"]),
    ("string", "long", {b"12": 12}, [b"x", b"99999999999999999999"]),
    ("string", "date", {b"2013-01-31": dt.date(2013, 1, 31)}, [b"2013-02-30"]),
    # Written out, such an exponent is a number of 160 MB, and minutes of work.
    (
        "string",
        "decimal(10, 2)",
        {b"-1.50": Decimal("-1.50"), b"1e3": Decimal(1000)},
        [b"1e400000000", b"1e-400000000"],
    ),
    ("bytes", "binary", {b"\xff": b"\xff"}, []),
    ("int", "int", {INT(-7): -7, INT(2**31 - 1): 2**31 - 1, INT(-(2**31)): -(2**31)}, [b"", b"12345", LONG(1)]),
    ("int", "long", {INT(-7): -7}, []),
    ("long", "long", {LONG(-7): -7, LONG(2**63 - 1): 2**63 - 1, LONG(-(2**63)): -(2**63)}, [b"1", INT(1)]),
]


def test_plain_values(spark: SparkSession) -> None:
    keyed = [{"name": "v", "type": "long", "source": "$key"}, {"name": "n", "type": "long"}]
    rows = read(spark, [(b"12", b"{}"), (b"x", b"{}"), (None, b"{}")], keyed)
    assert [(row["v"], row[ERROR], row[FIELD]) for row in rows] == [
        (12, None, None), (None, "malformed", "$key"), (None, None, None)
    ]  # fmt: skip
    upsert = {"mode": "upsert", "identifier": ["v"]}
    for kind, form, good, bad in (("uuid", "string", str(UUID).upper(), b"zz"), ("fixed[3]", "bytes", "abc", b"ab")):
        columns = [{"name": "v", "type": kind, "source": "$key"}, {"name": "n", "type": "long"}]
        given = [(good.encode(), None), (bad, None), (bad, b"{}"), (None, None)]
        rows = read(spark, given, columns, key=form, **upsert)
        told = [(row[OP], row[ERROR]) for row in rows]
        assert told == [("d", None), ("d", "tombstone_key"), ("u", "misfit"), ("d", "tombstone_key")], kind
    for form, kind, good, bad in PLAIN:
        columns = [{"name": "v", "type": kind, "source": "$value"}]
        rows = read(spark, [(None, each) for each in [*good, *bad]], columns, value=form)
        assert [row["v"] for row in rows] == [*good.values(), *[None] * len(bad)], (form, kind)
        assert [row[ERROR] for row in rows] == [*[None] * len(good), *["malformed"] * len(bad)], (form, kind)


def test_digits_zones_and_halves_of_json(spark: SparkSession) -> None:
    columns = [
        {"name": n, "type": t}
        for n, t in {"d": "decimal(38, 2)", "e": "decimal(38, 25)", "at": "timestamptz", "s": "string"}.items()
    ]
    wrong = {
        '{"d":100000000000000001e0}': None,
        '{"d":10000000000000000000000000000000000001.25}': None,
        '{"e":1.000000000000000001E-7}': None,
        '{"s":"\\\\ud83d\\ude00"}': "lone surrogate",
    }
    right = {
        '{"d":1.5e3}': {"d": Decimal(1500)},
        '{"e":1.5E-7,"s":"123456789012345678e"}': {"e": Decimal("0.00000015"), "s": "123456789012345678e"},
        '{"at":"2024-01-31T10:00:00z"}': {"at": dt.datetime(2024, 1, 31, 10)},  # noqa: DTZ001
        '{"s":"\\ud83d\\ude00"}': {"s": "\U0001f600"},
        '{"s":"\\\\\\ud83d\\ude00"}': {"s": "\\\U0001f600"},
    }
    rows = read(spark, [(None, each.encode()) for each in (*wrong, *right)], columns)
    for (text, words), row in zip(wrong.items(), rows, strict=False):
        assert row[ERROR] == "malformed" and (words or "") in row[DETAIL], text
    for (text, expected), row in zip(right.items(), rows[len(wrong) :], strict=True):
        assert row[ERROR] is None, (text, row[DETAIL])
        assert {n: same for n, same in row.items() if n in expected} == expected, text


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        ("json", ['{"id":1}{"id":2}', '{"id":1} x}', '{"id":1,"id":"x"}', '{"id":1,"n":"\xff"}', '{"id":"\\ud800"}']),
        ("json_connect", ['{"payload":{"id":1}}', '{"schema":null,"payload":{"id":1}} {}']),
    ],
)
def test_a_tombstone_whose_key_is_damaged_deletes_nothing(spark: SparkSession, form: str, keys: list[str]) -> None:
    columns = [{"name": "id", "type": "long", "source": "$key.id"}]
    sound = '{"id":7}' if form == "json" else '{"schema":null,"payload":{"id":7}}'
    records = [(each.encode("latin-1"), None) for each in (sound, *keys)]
    first, *others = read(spark, records, columns, key=form, mode="upsert", identifier=["id"])
    assert (first[ERROR], first[OP], first["id"]) == (None, "d", 7)
    assert [row[ERROR] for row in others] == ["tombstone_key"] * len(keys)


def test_an_entry_of_a_map_may_leave_its_message_out(spark: SparkSession, client: SchemaRegistryClient) -> None:
    text = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
    message Inner { int32 x = 1; }
    message M { map<string, Inner> m = 1; map<string, google.protobuf.Timestamp> at = 2; int32 n = 3; }"""
    number = client.register_schema(name(), Schema(text, "PROTOBUF"))
    inner, at = b"\x0a\x03\x0a\x01k", b"\x12\x03\x0a\x01k"
    columns = [
        {"name": "m", "type": "map<string, struct<x: int>>"},
        {"name": "at", "type": "map<string, timestamptz>"},
        {"name": "n", "type": "int"},
    ]
    sent = [inner + b"\x18\x07", at, b"\x18\x05", inner[:-1]]
    rows = read(spark, [(None, framed(number, b"\x02\x02" + each)) for each in sent], columns, value="protobuf")
    assert [row[ERROR] for row in rows] == [None, None, None, "malformed"]
    assert (rows[0]["m"], rows[0]["n"], rows[2]["n"]) == ({"k": {"x": 0}}, 7, 5)
    assert rows[1]["at"] == {"k": dt.datetime(1970, 1, 1)}  # noqa: DTZ001


def test_a_registry_that_is_away(
    spark: SparkSession, registry: EmbeddedRegistry, client: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that were seen go on, others stop the table; nothing is taken for malformed because of it."""
    seen = avro(client, record(n="long"), {"n": 1})
    new = avro(client, record(n="long", x="int"), {"n": 2, "x": 0})
    columns = [{"name": "n", "type": "long"}]
    with PortForward(registry.port) as front:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url.replace(str(registry.port), str(front.port)))
        assert [row["n"] for row in read(spark, [(None, seen)], columns, value="avro")] == [1]
    monkeypatch.setattr("sluice.kafka.registry.RETRIES", 0)
    assert [row["n"] for row in read(spark, [(None, seen)], columns, value="avro")] == [1]
    monkeypatch.setattr("sluice.kafka.registry._fetched", {})  # as in the next run's process
    assert [row["n"] for row in read(spark, [(None, seen)], columns, value="avro")] == [1]
    with pytest.raises(RegistryUnavailableError, match="did not answer"):
        read(spark, [(None, seen), (None, new)], columns, value="avro")


def test_what_answers_is_no_registry(registry: EmbeddedRegistry) -> None:
    with pytest.raises(ConfigError, match="is not a schema registry"):
        Schemas({"url": registry.url.replace("ccompat", "nothing")}).schemas([1])
    with pytest.raises(ConfigError, match="unusable") as error:
        Schemas({"url": registry.url, "basic.auth.user.info": "secret", "nonsense": 1}).schemas([10**6])
    assert "secret" not in str(error.value)


def message_of(files: protobuf_descriptors.DescriptorFiles, full: str, **values: Any) -> Any:
    return message_factory.GetMessageClass(protobuf_descriptors.find_descriptor(files, full))(**values)


def compiled(text: str, *references: tuple[str, str]) -> protobuf_descriptors.DescriptorFiles:
    return protobuf_descriptors.descriptor_files(WriterSchema(0, "PROTOBUF", text, references))


def protobuf(client: SchemaRegistryClient, value: Any, subject: str = "") -> bytes:
    """As a producer writes it, with the descriptor that the serializer registers."""
    return ProtobufSerializer(type(value), client)(value, context(subject or name())) or b""


def test_what_no_column_reads_of_a_nested_avro_record_does_no_harm(
    spark: SparkSession, client: SchemaRegistryClient
) -> None:
    """Within structs, lists and maps, and where one type is read in several ways."""
    big = logical("bytes", "decimal", precision=64, scale=2)
    row = record(id="long", big=["null", big], x=["null", "string", "int"], n="int", me=["null", "t.Row"])
    outer = record(
        st=row | {"name": "Row"},
        again=["null", "t.Row"],
        li={"type": "array", "items": ["null", "t.Row"]},
        m={"type": "map", "values": "t.Row"},
        none=["null", "t.Row"],
    )
    columns = [
        {"name": "st", "type": "struct<n: long, id: long>"},
        {"name": "again", "type": "struct<id: long, me: struct<id: long, me: struct<n: int>>>"},
        {"name": "li", "type": "list<struct<n: int>>"},
        {"name": "m", "type": "map<string, struct<id: decimal(20, 0)>>"},
        {"name": "none", "type": "struct<gone: int>"},
    ]
    least = {"id": 1, "big": Decimal("1.00"), "x": "x", "n": 2, "me": None}
    deep = {**least, "me": {**least, "id": 3, "me": {**least, "n": 4, "me": least}}}
    value = {"st": least, "again": deep, "li": [None, deep], "m": {"k": deep}, "none": least}
    loop = avro(client, outer, value)
    whole = [*columns[:1], {"name": "again", "type": "struct<me: string>"}]
    rows = read(spark, [(None, loop)], columns, value="avro")
    assert [row[DETAIL] for row in rows] == [None]
    assert rows[0]["st"] == {"n": 2, "id": 1}
    assert rows[0]["again"] == {"id": 1, "me": {"id": 3, "me": {"n": 4}}}
    assert rows[0]["li"] == [None, {"n": 2}]
    assert (rows[0]["m"], rows[0]["none"]) == ({"k": {"id": Decimal(1)}}, {"gone": None})
    rows = read(spark, [(None, loop)], whole, value="avro")
    assert (rows[0][ERROR], rows[0][FIELD]) == ("malformed", "again.me")

    envelope = record(before=["null", row | {"name": "Row"}], after=["null", "t.Row"], op="string")
    more = {"mode": "upsert", "identifier": ["id"], "value": "avro", "cdc": {"format": "debezium"}}
    event = avro(client, envelope, {"before": None, "after": least, "op": "c"})
    rows = read(spark, [(None, event)], [{"name": "id", "type": "long"}], **more)
    assert (rows[0][ERROR], rows[0]["id"]) == (None, 1)


def test_what_no_column_reads_of_a_nested_message_does_no_harm(
    spark: SparkSession, client: SchemaRegistryClient
) -> None:
    """Within structs, lists, maps and a oneof, and where one type is read in several ways."""
    files = compiled(
        """
        syntax = "proto3"; package t; import "google/protobuf/struct.proto";
        message Node {
          int32 a = 1; Node next = 2; google.protobuf.Struct any = 3; optional int32 o = 4; E e = 5;
          oneof one { string s = 6; Node n = 7; }
          map<string, Node> m = 8; repeated Node li = 9;
          enum E { RED = 0; BLUE = 1; }
        }
        message M { Node st = 1; Node deep = 2; Node parts = 3; Node none = 4; int32 i = 5; }
        """
    )
    node = {"a": 1, "o": 0, "e": 1, "s": HTML}
    parts = {"m": {"k": node}, "li": [node, {"a": 5}], "n": {"a": 6}}
    value = message_of(files, "t.M", st=node, deep={"next": {"next": {"a": 7}}}, parts=parts, none=node)
    value.st.any["x"] = 1
    columns = [
        {"name": "st", "type": "struct<e: string, a: long, o: int, s: string>"},
        {"name": "deep", "type": "struct<next: struct<next: struct<a: int, next: struct<a: int>>>>"},
        {
            "name": "parts",
            "type": "struct<m: map<string, struct<s: string>>, li: list<struct<a: int>>, n: struct<a: int>>",
        },
        {"name": "none", "type": "struct<gone: int>"},
    ]
    rows = read(spark, [(None, protobuf(client, value))], columns, value="protobuf")
    assert [row[DETAIL] for row in rows] == [None]
    assert rows[0]["st"] == {"e": "BLUE", "a": 1, "o": 0, "s": HTML}
    assert rows[0]["deep"] == {"next": {"next": {"a": 7, "next": None}}}
    assert rows[0]["parts"] == {"m": {"k": {"s": HTML}}, "li": [{"a": 1}, {"a": 5}], "n": {"a": 6}}
    assert rows[0]["none"] == {"gone": None}
    whole = [{"name": "st", "type": "struct<next: string>"}]
    rows = read(spark, [(None, protobuf(client, value))], whole, value="protobuf")
    assert (rows[0][ERROR], rows[0][FIELD]) == ("malformed", "st.next")


def test_protobuf_of_a_file_with_many_messages(
    spark: SparkSession, client: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indexes from 64 on take two bytes; what is beyond a limit is told so."""
    many = "\n".join(f"message M{n} {{ int32 i = 1; message In {{ int32 i = 1; }} }}" for n in range(200))
    files, subject = compiled(f'syntax = "proto3"; package t;\n{many}'), name()
    wanted = ["M0", "M1", "M63", "M64", "M69", "M199", "M64.In", "M199.In"]
    values = [protobuf(client, message_of(files, f"t.{m}", i=n), subject) for n, m in enumerate(wanted)]
    old = compiled('syntax = "proto2"; package t; message M { optional int32 i = 1 [default = 7]; }')
    values.append(protobuf(client, message_of(old, "t.M")))  # where a default is not what was set
    expected = [*range(len(wanted)), None]
    damaged = [values[3][:5] + prefix + b"\x08\x01" for prefix in (b"\x02\x80", b"\x02\x80\x80\x01", b"\x02\x81\x01")]
    columns = [{"name": "i", "type": "int"}]
    rare = protobuf(client, message_of(files, "t.M3", i=1), subject)
    monkeypatch.setattr("sluice.formats.protobuf.MAX_MESSAGE_TYPES", len(values) + len(damaged))
    written = (*values, *damaged, *values, *damaged, rare)
    rows = read(spark, [(None, each) for each in written], columns, value="protobuf")
    assert [(row[DETAIL], row["i"]) for row in rows[: len(values)]] == [(None, n) for n in expected]
    assert [row[ERROR] for row in rows[len(values) : len(values) + 3]] == ["malformed"] * 3
    told = [row[DETAIL] for row in rows[len(values) : len(values) + 3]]
    assert "no message at [512]" in told[0], told
    assert "beyond the first 8192" in told[1] and "truncated or damaged" in told[2], told
    assert rows[-1][ERROR] == "malformed" and "not among the 500 most frequent" in rows[-1][DETAIL], rows[-1][DETAIL]


COMMON = """
syntax = "proto3"; package shop.common;
message Money { string currency = 1; int64 units = 2; Money converted = 3; }
"""
KNOWN = """
syntax = "proto3"; package shop;
import "shop/common.proto";
import "confluent/meta.proto"; import "confluent/type/decimal.proto";
import "google/type/date.proto"; import "google/type/timeofday.proto"; import "google/type/money.proto";
import "google/type/datetime.proto";
import "google/protobuf/any.proto"; import "google/protobuf/empty.proto"; import "google/protobuf/field_mask.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/type.proto"; import "google/protobuf/struct.proto";
message M {
  string s = 1 [(confluent.field_meta).doc = "a name"];
  common.Money own = 2;
  confluent.type.Decimal dec = 3;
  google.type.Date day = 4; google.type.TimeOfDay time = 5; google.type.Money money = 6;
  google.protobuf.Int64Value i64 = 7; google.protobuf.Int32Value i32 = 8; google.protobuf.UInt64Value u64 = 9;
  google.protobuf.UInt32Value u32 = 10; google.protobuf.BoolValue bo = 11; google.protobuf.BytesValue by = 12;
  google.protobuf.DoubleValue d = 13; google.protobuf.FloatValue f = 14;
  google.protobuf.FieldMask mask = 15; google.protobuf.Any any = 16; google.protobuf.Empty empty = 17;
  map<uint64, string> mu = 18; map<fixed64, string> mf = 19; map<bool, string> mb = 20; map<sint64, string> ms = 21;
  google.type.DateTime local = 22; google.protobuf.Type type = 23; google.protobuf.Struct js = 24;
}
"""
# The column's type, what the table has of a full message, and of an empty one.
KNOWN_TYPES: dict[str, tuple[str, Any, Any]] = {
    "s": ("string", HTML, ""),
    "own": ("struct<units: long, currency: string>", {"units": 5, "currency": "EUR"}, None),
    "dec": (
        "struct<value: binary, precision: long, scale: int>",
        {"value": b"\x04\xd2", "precision": 4, "scale": 2},
        None,
    ),
    "day": ("struct<month: int, year: int>", {"month": 0, "year": 2013}, None),
    "time": ("struct<hours: int, nanos: int>", {"hours": 1, "nanos": 1}, None),
    "js": (
        "struct<fields: map<string, struct<string_value: string>>>",
        {"fields": {"k": {"string_value": HTML}}},
        None,
    ),
    "money": ("struct<units: long>", {"units": 5}, None),
    "i64": ("long", -(2**60), None),
    "i32": ("int", -7, None),
    "u64": ("decimal(20, 0)", Decimal(2**64 - 1), None),
    "u32": ("long", 2**32 - 1, None),
    "bo": ("boolean", False, None),
    "by": ("binary", b"\xff", None),
    "d": ("double", 0.5, None),
    "f": ("float", 0.0, None),
    "mask": ("struct<paths: list<string>>", {"paths": ["a.b"]}, None),
    "any": ("struct<type_url: string, value: binary>", {"type_url": "x/t.M", "value": b"\x08\x01"}, None),
    "empty": ("struct<nothing: int>", {"nothing": None}, None),
    "mu": ("map<string, string>", {str(2**64 - 1): "x"}, {}),
    "mf": ("map<string, string>", {"0": "x"}, {}),
    "mb": ("map<string, string>", {"true": "x"}, {}),
    "ms": ("map<string, string>", {"-1": "x"}, {}),
    "local": ("struct<year: int, utc_offset: long>", {"year": 2013, "utc_offset": 1_000_000}, None),
    "type": ("struct<name: string>", {"name": "n"}, None),
}


def test_protobuf_imports_and_well_known_types(spark: SparkSession, client: SchemaRegistryClient) -> None:
    """The producer's own files are references; Confluent's serializers leave out those that every client has."""
    files = compiled(KNOWN, ("shop/common.proto", COMMON))
    values = {
        column: expected for column, (_, expected, _) in KNOWN_TYPES.items()
        if column not in ("day", "time", "empty", "mu", "mf", "mb", "ms", "local", "js", *WRAPPED)
    }  # fmt: skip
    full = message_of(files, "shop.M", **values, day={"year": 2013}, mu={2**64 - 1: "x"},
                      time={"hours": 1, "nanos": 1}, mf={0: "x"}, mb={True: "x"}, ms={-1: "x"}, empty={},
                      local={"year": 2013, "utc_offset": {"seconds": 1}})  # fmt: skip
    full.js["k"] = HTML
    for each in WRAPPED:
        getattr(full, each).value = int(value) if isinstance(value := KNOWN_TYPES[each][1], Decimal) else value
    subject = name()
    written = protobuf(client, full, subject)
    registered = client.get_schema(int.from_bytes(written[1:5], "big"))
    assert [each.name for each in registered.references or ()] == ["shop/common.proto"]
    common = name()
    client.register_schema(common, Schema(COMMON, "PROTOBUF"))
    text = Schema(KNOWN, "PROTOBUF", [SchemaReference("shop/common.proto", common, 1)])
    as_text = framed(client.register_schema(name(), text), written[5:])
    empty = protobuf(client, message_of(files, "shop.M"), subject)
    columns = [{"name": n, "type": kind} for n, (kind, _, _) in KNOWN_TYPES.items()]
    rows = read(spark, [(None, each) for each in (written, as_text, empty)], columns, value="protobuf")
    assert [row[DETAIL] for row in rows] == [None] * 3
    for column, (_, expected, nothing) in KNOWN_TYPES.items():
        assert rows[0][column] == rows[1][column] == expected, column
        assert rows[2][column] == nothing, column


WRAPPED = ("i64", "i32", "u64", "u32", "bo", "by", "d", "f")


def test_an_import_that_nobody_has(spark: SparkSession, client: SchemaRegistryClient) -> None:
    file = FileDescriptorProto(name="x.proto", syntax="proto3", dependency=["google/type/none_such.proto"])
    file.message_type.add(name="M").field.add(name="i", number=1, type=5, label=1)
    with pytest.raises(
        SchemaMismatchError, match=r"imports 'google/type/none_such.proto', which the registry does not list"
    ):
        protobuf_descriptors.descriptor_files(
            WriterSchema(0, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode())
        )


def test_more_schema_ids_than_are_looked_up(
    spark: SparkSession, client: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broken producer makes up is set apart; the records of the others are read."""
    monkeypatch.setattr("sluice.formats.wire_format.MAX_SCHEMA_IDS", 3)
    good = [avro(client, record(n="long"), {"n": 1}), avro(client, record(n="int"), {"n": 2})]
    garbage = [framed(number, b"\x02") for number in range(1_000_000, 1_000_010)]
    columns = [{"name": "n", "type": "long"}]
    for form, mine, rare in (("avro", [*good, *garbage, *good], 9), ("json_schema", [*garbage, *garbage[:2]], 7)):
        rows = read(spark, [(None, each) for each in mine], columns, value=form)
        told = [row[DETAIL] for row in rows]
        assert sum(each is not None and "is not among the 3 most frequent" in each for each in told) == rare
        if form == "avro":
            assert [row["n"] for row in rows] == [1, 2, *[None] * 10, 1, 2]
            assert [row[ERROR] for row in rows] == [None, None, *["malformed"] * 10, None, None]
            assert told[2] == "the schema registry has no schema 1000000"


def test_several_record_types_in_a_topic(spark: SparkSession, client: SchemaRegistryClient) -> None:
    """Subjects by the record's name, and by topic and record: two types, told apart by a field that one of them has."""
    created = record(id="long", total="int") | {"name": "OrderCreated"}
    cancelled = record(id="long", reason="string") | {"name": "OrderCancelled"}
    other = record(elsewhere="int") | {"name": "Other"}
    nested = record(**{"in": record(elsewhere="int") | {"name": "In"}}) | {"name": "Nested"}
    for strategy in (record_subject_name_strategy, topic_record_subject_name_strategy):
        topic = name()

        def written(schema: Any, value: Any, topic: str = topic, strategy: Any = strategy) -> bytes:
            serializer = AvroSerializer(client, json.dumps(schema), conf={"subject.name.strategy": strategy})
            return serializer(value, context(topic)) or b""

        values = [
            written(created, {"id": 1, "total": 5}),
            written(cancelled, {"id": 1, "reason": HTML}),
            written(other, {"elsewhere": 1}),
            written(nested, {"in": {"elsewhere": 1}}),
        ]
        wanted = f"{topic}-t.Other" if strategy is topic_record_subject_name_strategy else "t.Other"
        assert wanted in client.get_subjects()
        columns = [{"name": "id", "type": "long"}, {"name": "total", "type": "int"}]
        columns.append({"name": "deep", "type": "int", "source": "in.deep"})
        rows = read(spark, [(None, each) for each in values], columns, value="avro", where="total IS NOT NULL")
        assert [(r["id"], r["total"], r[OP], r[ERROR]) for r in rows] == [
            (1, 5, "u", None), (1, None, "i", None), (None, None, "u", "malformed"), (None, None, "u", "malformed")
        ]  # fmt: skip
        assert "record t.Other has none of the fields" in rows[2][DETAIL]
        assert "the schema has none of the fields" in rows[3][DETAIL]
        columns = [{"name": "id", "type": "long"}, {"name": "reason", "type": "string"}]
        rows = read(spark, [(None, each) for each in values], columns, value="avro", where="reason IS NOT NULL")
        assert [(r["id"], r["reason"], r[OP]) for r in rows[:2]] == [(1, None, "i"), (1, HTML, "u")]


def test_a_table_takes_some_of_a_topics_types_by_their_names(
    lake: Callable[..., Lake], client: SchemaRegistryClient
) -> None:
    """Of others nothing is read: that a field of theirs has the same name and another type is no error here."""
    it = lake()
    it.create_topic(1)
    by_name = {"subject.name.strategy": record_subject_name_strategy}

    def event(kind: str, value: Any, **fields: str) -> bytes:
        schema = record(**fields) | {"name": f"{kind}{it.topic}".replace("-", "_"), "namespace": "shop"}
        return AvroSerializer(client, json.dumps(schema), conf=by_name)(value, context(it.topic)) or b""

    created, moved = (f"shop.{kind}{it.topic}".replace("-", "_") for kind in ("Created", "Moved"))
    n = {"name": "n", "type": "long"}
    one = it.contract(columns=[{**n, "required": True}], value={"format": "avro", "types": [created]})
    both = it.contract(columns=[n], value={"format": "avro", "types": [created, moved]}, errors={"max_ratio": 0.5})
    kept = it.contract(
        mode="upsert",
        columns=[{"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "string"}],
        value={"format": "avro", "types": [moved]},
    )
    auto = it.contract(columns=[{"auto": {"subject": created}}], value={"format": "avro", "types": [created]})
    values = [
        event("Created", {"n": 1}, n="long"),
        event("Moved", {"n": HTML}, n="string"),
        event("Created", {"n": 2, "more": 3}, n="long", more="int"),
        avro(client, {"type": "string"}, "of no name"),
    ]
    it.send([(0, f"key{at}", value) for at, value in enumerate(values[:3])])
    outcomes = it.run()
    assert {o["state"] for o in outcomes.values()} == {"published"}, outcomes
    assert sorted(row["n"] for row in it.rows(one)) == sorted(row["n"] for row in it.rows(auto)) == [1, 2]
    assert sorted(row["n"] for row in it.rows(both)) == [1, 2]
    (number,) = struct.unpack_from(">xI", values[1])
    why = [row["error"] for row in it.quarantined(both)]
    assert why == [f"schema {number}: field 'n' is string, but its column is bigint"]
    assert [(row["id"], row["n"]) for row in it.rows(kept)] == [("key1", HTML)]
    assert not it.quarantined(one) and not it.quarantined(kept)

    # A delete tells no type. A type without a name is not passed over in silence.
    it.send([(0, "key1", None), (0, "key9", values[3])])
    outcomes = it.run()
    assert outcomes[one]["state"] == outcomes[kept]["state"] == "blocked", outcomes
    (number,) = struct.unpack_from(">xI", values[3])
    words = "the record's type has no name, but the contract selects types by name"
    assert [row["error"] for row in it.quarantined(kept)] == [f"schema {number}: {words}"]


def test_types_of_a_union_at_the_root_are_read_as_if_each_were_written_alone(
    lake: Callable[..., Lake], registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several event types in one topic, as Confluent advises: one subject, whose union refers to the types' own."""
    monkeypatch.setattr("sluice.kafka.registry.LATEST_TTL_S", 0)  # the plans of this test are those of many processes
    it = lake()
    it.create_topic(1)
    order, refund = (f"shop.{kind}{it.topic}".replace("-", "_") for kind in ("Order", "Refund"))
    latest = {"auto.register.schemas": False, "use.latest.version": True}

    def registered(version: int, **fields: Any) -> Callable[[Any], bytes]:
        """The types and their union, the one of Refund referring to the one of Order itself; and who writes them."""
        client = registry_client(registry)  # each keeps what was the latest
        client.register_schema(order, Schema(json.dumps(record(**fields) | {"name": order}), "AVRO"))
        of = SchemaReference(order, order, version)
        text = json.dumps(record(id="long", n="string", of=order) | {"name": refund})
        client.register_schema(refund, Schema(text, "AVRO", [of]))
        both = [of, SchemaReference(refund, refund, version)]
        client.register_schema(f"{it.topic}-value", Schema(json.dumps([order, refund, "null", "string"]), "AVRO", both))
        serializer = AvroSerializer(client, conf=latest)
        return lambda value: serializer(value, context(it.topic)) or b""

    write = registered(1, id="long", n="int")
    auto = {"auto": {"subject": f"{it.topic}-value"}}

    def table(columns: list[Any], *types: str) -> str:
        return it.contract(columns=columns, value={"format": "avro", "types": list(types)}, errors={"max_ratio": 1.0})

    orders = table([auto], order)
    refunds = table([{"name": "n", "type": "string"}, {"name": "of", "type": "int", "source": "of.n"}], refund)
    every = table([{"name": "id", "type": "long"}, {"name": "n", "type": "int"}])
    one, other = (order, {"id": 1, "n": 5}), (refund, {"id": 2, "n": HTML, "of": {"id": 1, "n": 6}})
    nullable = ["null", record(id="long", n="int") | {"name": order}]
    good = [write(one), write(other)]
    good += [avro(registry_client(registry), *each) for each in ((nullable[1], one[1]), (nullable, {"id": 3, "n": 7}))]
    (number,) = struct.unpack_from(">xI", good[0])
    cut = "truncated or damaged"
    bad = {
        write("text"): "the root is not a record with fields but string",
        framed(number, b"\x04"): "the root is not a record with fields but null",
        framed(number): cut,
        framed(number, b"\x00"): cut,
        framed(number, b"\x08\x02\x0a"): cut,  # there are but four
        good[0] + b"\x00": cut,
    }
    it.send([(0, f"key{at}", value) for at, value in enumerate((*good, *bad))])
    outcomes = it.run()
    assert {o["state"] for o in outcomes.values()} == {"published"}, outcomes
    assert sorted((r["id"], r["n"]) for r in it.rows(orders)) == [(1, 5), (1, 5), (3, 7)]
    assert [(r["n"], r["of"]) for r in it.rows(refunds)] == [(HTML, 6)]
    assert sorted((r["id"], r["n"]) for r in it.rows(every)) == [(1, 5), (1, 5), (3, 7)]
    said = {r["value"]: (r["error_class"], r["field"], r["error"]) for r in it.quarantined(every)}
    assert said.pop(good[1])[1:] == ("n", f"schema {number}: field 'n' is string, but its column is int")
    assert said.keys() == bad.keys()
    assert all(kind == "malformed" and bad[value] in words for value, (kind, _, words) in said.items())
    of_orders = {framed(number, b"\x00"), good[0] + b"\x00"}
    for each, passed_over in ((orders, set()), (refunds, of_orders)):
        told = {r["value"]: r["error"] for r in it.quarantined(each)}
        assert told.keys() == bad.keys() - passed_over
        assert all(told[v].endswith("selects types by name") for v in list(bad)[:2])

    # A type's next version comes with the next version of the union.
    write = registered(2, id="long", n="int", more=["null", "string"])
    it.send([(0, "key", write((order, {"id": 9, "n": 9, "more": "yes"}))), (0, "key", write(other))])
    outcomes = it.run()
    assert {o["state"] for o in outcomes.values()} == {"published"}, outcomes
    assert {(r["id"], r["more"]) for r in it.rows(orders)} == {(1, None), (3, None), (9, "yes")}
    assert [(r["n"], r["of"]) for r in it.rows(refunds)] == [(HTML, 6)] * 2


def test_types_of_protobuf_and_json_schema_by_their_names(spark: SparkSession, client: SchemaRegistryClient) -> None:
    columns = [{"name": "n", "type": "long"}]
    files = compiled('syntax = "proto3"; package shop; message A { int32 n = 1; message B { string n = 1; } }')
    values = [protobuf(client, message_of(files, full, n=n)) for full, n in [("shop.A", 5), ("shop.A.B", "x")]]
    rows = read(spark, [(None, each) for each in values], columns, value={"format": "protobuf", "types": ["shop.A"]})
    assert [(r["n"], r[OP], r[ERROR], r[DETAIL]) for r in rows] == [(5, "u", None, None), (None, "i", None, None)]
    rows = read(spark, [(None, each) for each in values], columns, value={"format": "protobuf", "types": ["shop.A.B"]})
    assert [(r[OP], r[ERROR]) for r in rows] == [("i", None), ("u", "malformed")]

    def titled(title: str | None, value: Any) -> bytes:
        schema = {"type": "object", "properties": {}} | ({"title": title} if title else {})
        return JSONSerializer(json.dumps(schema), client)(value, context(name())) or b""

    values = [titled("Order", {"n": 7}), titled("Other", {"n": "x"}), titled(None, {"n": 8})]
    rows = read(spark, [(None, each) for each in values], columns, value={"format": "json_schema", "types": ["Order"]})
    found = [(r["n"], r[OP], r[ERROR], r[DETAIL]) for r in rows]
    assert found[:2] == [(7, "u", None, None), (None, "i", None, None)]
    assert (found[2][2], "the record's type has no name" in found[2][3]) == ("malformed", True)


def test_fields_nested_fifty_deep(spark: SparkSession, client: SchemaRegistryClient) -> None:
    deepest = 50
    schema: Any = record(n="int", x=["string", "int"]) | {"name": f"R{deepest}"}
    for at in reversed(range(deepest)):
        schema = record(n="int", a=["null", schema]) | {"name": f"R{at}"}
    value: Any = {"n": deepest, "x": "x"}
    for at in reversed(range(deepest)):
        value = {"n": at, "a": value}
    columns = [
        {"name": "n", "type": "long", "source": "a." * deepest + "n"},
        {"name": "top", "type": "int", "source": "n"},
    ]
    rows = read(spark, [(None, avro(client, schema, value))], columns, value="avro")
    assert [(row[DETAIL], row["n"], row["top"]) for row in rows] == [(None, deepest, 0)]

    files = compiled('syntax = "proto3"; package t; message R { int32 n = 1; R a = 2; }')
    message = message_of(files, "t.R")
    at = message
    for depth in range(deepest):
        at.n, at = depth, at.a
    at.n = deepest
    rows = read(spark, [(None, protobuf(client, message))], columns, value="protobuf")
    assert [(row[DETAIL], row["n"], row["top"]) for row in rows] == [(None, deepest, 0)]
