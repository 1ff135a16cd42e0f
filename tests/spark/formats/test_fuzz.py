"""Damaged records of every format are either decoded correctly or quarantined; none is lost.

`tests/support/reference_decoders.py` says which values are correct. Each run tries the same few examples;
`SLUICE_FUZZ_EXAMPLES=100` tries 100 random ones.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.protobuf import message_factory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.contract.contract import Contract
from sluice.contract.values import quote_name
from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.formats import protobuf_descriptors
from sluice.formats.decode import decode
from sluice.formats.internal_columns import DETAIL, ERROR
from sluice.iceberg import table_names, tables
from sluice.kafka.registry import WriterSchema
from tests.spark.formats.test_formats import (
    IN,
    JSON_SCHEMA,
    MOMENT,
    PROTO,
    avro,
    context,
    debezium,
    logical,
    name,
    record,
)
from tests.spark.formats.test_json_connect import GOOD
from tests.support import reference_decoders as ref
from tests.support.damaged_records import BYTES, HTML, TEXT, damage_records, odd_json
from tests.support.lake import Lake
from tests.support.services.registries import registry_client

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("generated_code"),
    pytest.mark.timeout(0),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

EXAMPLES = int(os.environ.get("SLUICE_FUZZ_EXAMPLES", "0"))
RECORDS = 60
SECONDS = 60
"""How long a wrong record is made smaller."""
Record = tuple[bytes | None, bytes | None]
PLAIN = {"json", "json_connect"}


@dataclass(frozen=True)
class Form:
    """A format: what its tables look like, records of it, and what these become."""

    name: str
    columns: dict[str, str]
    good: list[bytes]
    keys: list[bytes]
    read: ref.Read
    read_key: ref.Read
    odd: st.SearchStrategy[bytes]
    hostile: list[bytes]
    found: list[bytes]
    """What was once read wrong, as small as it was made."""

    @property
    def body(self) -> dict[str, Any]:
        """Of a contract."""
        key = {"name": "key", "type": "long", "source": "$key.k"}
        columns = [key, *({"name": column(n), "type": t, "source": quote_name(n)} for n, t in self.columns.items())]
        return {"columns": columns, "value": {"format": self.name}, "key": {"format": self.name}}

    def records(self) -> st.SearchStrategy[list[Record]]:
        ids = [b"\0" + n for n in (b"\0\0\0\0", b"\x00\x0f\x42\x40", b"\xff\xff\xff\xff")]
        ids = [] if self.name in PLAIN else [*{each[:5] for each in self.good}, *ids, b"\1", b""]
        bad = partial(damage_records, hostile=self.hostile, ids=ids)
        value = st.one_of(st.sampled_from(self.good), bad(self.good), bad(self.good), self.odd, self.odd, st.none())
        key = st.one_of(*[st.sampled_from(self.keys)] * 3, bad(self.keys), st.none())
        return st.lists(st.tuples(key, value), min_size=RECORDS, max_size=2 * RECORDS, unique=True)

    def expected(self, record: Record) -> dict[str, Any] | None:
        """The row; None of what is to be set apart.

        Raises:
            UnsaidError: either will do.
        """
        raw_key, raw = record
        try:
            ref.refuse_unless(raw is not None)
            key = {"k": None} if raw_key is None else self.read_key(raw_key)
            row = self.read(raw)
        except ref.RefusedError:
            return None
        return None if row is None else {"key": key and key["k"], **{column(n): v for n, v in row.items()}}


def column(field: str) -> str:
    """The name of a field's column."""
    return field.replace(".", "_")


JSON_COLUMNS: dict[str, tuple[str, ref.Read]] = {
    "n": ("long", ref.integer(64)),
    "i": ("int", ref.integer(32)),
    "bo": ("boolean", ref.boolean),
    "f": ("double", ref.double),
    "d": ("decimal(20, 3)", ref.decimal(20, 3)),
    "s": ("string", ref.text),
    "log.level": ("string", ref.text),
    "day": ("date", ref.epoch_day),
    "at": ("timestamptz", ref.seconds_or_utc_micros),
    "face": ("timestamp", ref.local_micros),
    "by": ("binary", ref.binary),
    "st": ("struct<a: int, b: list<string>, d: decimal(38, 3)>",
           ref.struct(a=ref.integer(32), b=ref.items(ref.text), d=ref.decimal(38, 3))),
    "m": ("map<string, double>", ref.mapping(ref.double)),
    "days": ("map<string, date>", ref.mapping(ref.epoch_day)),
    "li": ("list<timestamptz>", ref.items(ref.seconds_or_utc_micros)),
}  # fmt: skip
JSON_RECORD = {
    "n": 2**53, "i": -1, "bo": True, "f": 0.5, "d": 1.125, "s": HTML, "log.level": "info", "day": "2013-01-31",
    "at": "2013-01-31T08:00:00Z",
    "face": "2013-01-31 08:00", "by": "AP8=", "st": {"a": 1, "b": ["x", None], "d": "1"}, "m": {"x": 1.5},
    "days": {"x": "2013-01-31"}, "li": [1], "left out": [[{}]],
}  # fmt: skip


def json_form(client: SchemaRegistryClient | None = None) -> Form:
    """Without a schema, or in the wire format."""
    prefix = (
        b"" if client is None else struct.pack(">bI", 0, client.register_schema(name(), Schema(JSON_SCHEMA, "JSON")))
    )

    def framed(read: ref.Read) -> ref.Read:
        def of_known(raw: bytes) -> Any:
            ref.refuse_unless(raw.startswith(prefix))
            return read(raw[len(prefix) :])

        return of_known

    kinds = {n: kind for n, (kind, _) in JSON_COLUMNS.items()}
    twice = b'{"m": {"x": 1, "x": 2}, "days": {"x": "2013-01-31", "x": "2014-01-31"}, "d": 12345678901234567.125}'
    found = [
        b'{"n": 42.0, "i": 1e3, "at": 1359675000.0}', b'{"n": 9007199254740993.0, "i": -0.0}', b'{"n": 42.5}',
        b'{"st": {"a": 2147483648.0}}', b'{"st": {"a": 1.5e1}, "at": 1.359675e9}', b'{"n": 1e19}',
        b'{"log": {"level": "x"}}', b'{"log.level": 1}', b'{"log.level": "x", "log.level": null}',
        b"{}{}", b"{}]", b"{'n': 1}", b'{"s": "\\ud800"}', b'{"at": "0001-01-01T00:00:00+02"}',
        b'{"li": ["9999-12-31T23:00:00-02"]}', b'{"at": "2026-03-31T03:17Z"}', b'{"at": "0001-01-01 00:17+02"}',
        b'{"li": ["2026-03-31T03:17+02:00", "2026-03-31 03:17z", "2026-03-31T03:17 UTC"]}', b'{"at": "2026-03-31Z"}',
        b'{"st": {"d": 12345678901234567890123456789012345.125}}', b'{"d": 1234567890123456.125e1}', b'{"d": 1e-7}',
        b'{"f": 1e400, "m": {"x": "NaN", "y": "-Infinity", "z": NaN}}', b'{"f": "1e400"}', b'{"f": "nan"}',
    ]  # fmt: skip
    good = [
        json.dumps(JSON_RECORD).encode(),
        b"{}",
        twice,
        json.dumps(JSON_RECORD, indent=1, ensure_ascii=False).encode(),
    ]
    odd = odd_json(list(kinds)).map(lambda text: prefix + text.encode("utf-8", "surrogatepass"))
    reads = {n: read for n, (_, read) in JSON_COLUMNS.items()}
    return Form(
        "json" if client is None else "json_schema", kinds, [prefix + each for each in good], [prefix + b'{"k": 5}'],
        framed(ref.json_record(reads)), framed(ref.json_record({"k": ref.integer(64)})), odd, TEXT,
        [prefix + each for each in found],
    )  # fmt: skip


CONNECT_COLUMNS: dict[str, tuple[str, ref.ConnectRead]] = {
    "d": ("decimal(10, 2)", ref.connect_decimal(10, 2)),
    "day": ("date", ref.connect_epoch_day),
    "at": ("timestamptz", ref.connect_utc_micros(ref.utc_micros)),
    "local": ("timestamp", ref.connect_utc_micros(ref.local_micros)),
    "s": ("string", ref.ignore_schema(ref.text)),
    "n": ("long", ref.ignore_schema(ref.integer(64))),
    "li": ("list<struct<d: decimal(38, 3), n: int>>",
           ref.connect_items(d=ref.connect_decimal(38, 3), n=ref.ignore_schema(ref.integer(32)))),
    "m": ("map<string, timestamptz>", ref.connect_mapping(ref.connect_utc_micros(ref.utc_micros))),
    "by": ("binary", ref.ignore_schema(ref.binary)),
}  # fmt: skip


def connect_form(_: SchemaRegistryClient) -> Form:
    good = [value for value, _ in GOOD]
    heads = [each[: each.index(b'"payload"')].decode() for each in good]
    payload = st.tuples(st.sampled_from(heads), odd_json(list(CONNECT_COLUMNS)))
    odd = payload.map(lambda it: f'{it[0]}"payload": {it[1]}}}'.encode("utf-8", "surrogatepass"))
    reads = {n: read for n, (_, read) in CONNECT_COLUMNS.items()}
    return Form(
        "json_connect", {n: kind for n, (kind, _) in CONNECT_COLUMNS.items()}, good,
        [b'{"schema": {"type": "struct", "fields": [{"type": "int64", "field": "k"}]}, "payload": {"k": 5}}'],
        ref.connect_record(reads), ref.connect_record({"k": ref.ignore_schema(ref.integer(64))}), odd, TEXT,
        [
            b'{"schema": null, "payload": {}}{}',
            b'{"schema": null, "payload": {"d": 12345678.005e0, "m": {"x": null, "x": null}}}',
        ],
    )  # fmt: skip


def as_is(value: Any) -> Any:
    return value


# Avro's type, the column's, a value, and how the bytes' own type becomes the column's.
AVRO_COLUMNS: dict[str, tuple[Any, str, Any, ref.Read]] = {
    "bo": ("boolean", "boolean", True, as_is),
    "i": ("int", "int", -7, as_is),
    "i_dec": ("int", "decimal(12, 2)", 7, Decimal),
    "l": ("long", "long", 2**60, as_is),
    "f": ("float", "double", 0.5, as_is),
    "d": ("double", "double", 1e300, as_is),
    "s": ("string", "string", HTML, as_is),
    "by": ("bytes", "binary", b"\x00\xff", as_is),
    "fx": ({"type": "fixed", "name": "F3", "size": 3}, "fixed[3]", b"abc", as_is),
    "en": ({"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}, "string", "BLUE", as_is),
    "dec": (logical("bytes", "decimal", precision=9, scale=2), "decimal(9, 2)", Decimal("-1.23"), ref.unscaled(9, 2)),
    "big": (logical("bytes", "decimal", precision=38, scale=3), "decimal(38, 3)", Decimal(10**30), ref.unscaled(38, 3)),
    "day": (logical("int", "date"), "date", dt.date(2013, 1, 31), ref.units(1, ref.DAYS)),
    "ts_ms": (logical("long", "timestamp-millis"), "timestamptz", MOMENT, ref.units(1000)),
    "ts_us": (logical("long", "timestamp-micros"), "timestamptz", MOMENT, ref.units(1)),
    "tx_at": ("string", "timestamptz", "2013-01-31T10:00:00.123456+02:00", ref.utc_micros),
    "tx_dec": ("string", "decimal(5, 2)", "-12.5", ref.decimal(5, 2)),
    "dz_day": (debezium("int", "Date"), "date", 15736, ref.units(1, ref.DAYS)),
    "dz_ms": (debezium("long", "Timestamp"), "timestamp", 1359619200123, ref.units(1000)),
    "li": ({"type": "array", "items": ["null", "int"]}, "list<long>", [1, None, 3], as_is),
    "m": ({"type": "map", "values": "double"}, "map<string, double>", {"x": 1.5}, as_is),
    "st": (record(a="int", x="long") | {"name": "Out"}, "struct<a: long, gone: string>", {"a": 1, "x": 2},
           lambda it: {"a": it["a"], "gone": None}),
}  # fmt: skip


def avro_form(client: SchemaRegistryClient) -> Form:
    import io

    import fastavro

    plain = record(**{n: kind for n, (kind, *_) in AVRO_COLUMNS.items()})
    nullable = {**plain, "fields": [{**f, "type": ["null", f["type"]]} for f in plain["fields"]]}
    value = {n: given for n, (_, _, given, _) in AVRO_COLUMNS.items()}
    good = [avro(client, plain, value), avro(client, nullable, value), avro(client, nullable, dict.fromkeys(value))]
    key = record(k="long", before=["null", "long"])
    keys = [avro(client, key, {"k": 5, "before": None})]

    def number(raw: bytes) -> int:
        return int.from_bytes(raw[1:5], "big")

    # Values as a writer writes them that has no idea of what they mean.
    raw_schema = json.loads(json.dumps(plain).replace('"logicalType"', '"meant"'))
    fields = {f["name"]: f["type"] for f in raw_schema["fields"]}
    kinds = {
        "boolean": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1), "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32), "double": st.floats(), "string": st.one_of(st.text(max_size=5), ISO),
        "bytes": st.binary(max_size=20),
    }  # fmt: skip

    def strategy(kind: Any) -> st.SearchStrategy[Any] | None:
        found = kind if isinstance(kind, str) else kind["type"]
        return kinds.get(found)

    odd_values = {n: found for n, kind in fields.items() if (found := strategy(kind)) is not None}
    parsed = fastavro.parse_schema(raw_schema)
    stream = io.BytesIO(good[0][5:])
    base = fastavro.schemaless_reader(stream, parsed, None)

    def written(changes: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, {**base, **changes})
        return good[0][:5] + out.getvalue()

    some = st.lists(st.sampled_from(sorted(odd_values)), min_size=1, max_size=2, unique=True)
    odd = some.flatmap(lambda names: st.fixed_dictionaries({n: odd_values[n] for n in names})).map(written)
    return Form(
        "avro", {n: kind for n, (_, kind, _, _) in AVRO_COLUMNS.items()}, good, keys,
        ref.avro_record(
            {number(good[0]): plain, number(good[1]): nullable}, {n: read for n, (*_, read) in AVRO_COLUMNS.items()}
        ),
        ref.avro_record({number(keys[0]): key}, {"k": as_is}), odd, BYTES,
        [each + b"\0" for each in good],
    )  # fmt: skip


# A map as Java's descriptors write it, an enum that begins with another number, and names that differ by case.
_ENTRY = "message MEntry { option map_entry = true; string key = 1; double value = 2; }"
JAVA_MADE = f"{PROTO} message Legacy {{ string id = 1; string ID = 2; }}"
for each, instead in {
    "map<string, double> m": "repeated MEntry m",
    "message Nested { int32 i = 1; }": f"message Nested {{ int32 i = 1; }} {_ENTRY}",
    "RED = 0; BLUE = 1;": "BLUE = 1; RED = 0;",
}.items():
    JAVA_MADE = JAVA_MADE.replace(each, instead)
# Packed doubles of nine bytes, ends of other groups, a field's number beyond 32 bits, long numbers, text that is none;
# a timestamp, a wrapper and a map's entry in parts.
PROTO_FOUND = [
    "8a0209" + "00" * 9, "a306ac06", "0c", "8080808080800107", "08" + "ff" * 10 + "01", "000100", "5201ff",
    "b201030a01ff", "a201020801a2010310e807", "b201030a0161b20100", "92010100", "9201030a0178", "9a010408031200",
    "82010180",
]  # fmt: skip
ISO = st.sampled_from(
    [
        "2013-01-31T08:00:00Z",
        "2013-01-31T08:00Z",
        "0001-01-01T00:00:00+02",
        "9999-12-31T23:59:59-02",
        "1.5",
        "1.5\n",
        "-9e2",
        "٣",
    ]
)
_IN = ref.message_struct(c=as_is, s=list)
PROTO_COLUMNS: dict[str, tuple[str, ref.Read]] = {
    "i": ("int", as_is), "l": ("long", as_is), "u": ("long", as_is), "ul": ("decimal(20, 0)", Decimal),
    "si": ("long", as_is), "fx": ("long", as_is), "f": ("double", as_is), "d": ("double", as_is),
    "bo": ("boolean", as_is), "s": ("string", as_is), "by": ("binary", as_is),
    "en": ("string", ref.enum_name({0: "RED", 1: "BLUE"})), "op": ("int", as_is), "os": ("string", as_is),
    "ol": ("long", as_is), "li": ("list<long>", list),
    "ins": ("list<struct<c: int, s: list<string>>>", lambda many: [_IN(each) for each in many]),
    "m": ("map<string, double>", dict),
    "mi": ("map<string, struct<c: long>>", lambda it: {str(k): {"c": v.c} for k, v in it.items()}),
    "ts": ("timestamptz", ref.valid_micros), "du": ("long", ref.micros),
    "w": ("string", ref.optional(lambda it: it.value)), "st": ("struct<c: int, s: list<string>>", _IN),
    "at": ("timestamptz", ref.optional(ref.utc_micros)), "rd": ("list<double>", list),
}  # fmt: skip


def protobuf_form(client: SchemaRegistryClient) -> Form:
    # Of fields that no column reads, only the frame matters.
    text = PROTO.replace("Node node = 24;", "")
    text = "\n".join(line for line in text.split("\n") if "sint32 s3" not in line and "optional string day" not in line)
    files = protobuf_descriptors.descriptor_files(WriterSchema(0, "PROTOBUF", text))
    kinds = {
        n: message_factory.GetMessageClass(protobuf_descriptors.find_descriptor(files, f"t.{n}"))
        for n in ("M", "Second", "M.Nested")
    }
    full = kinds["M"](i=-7, l=2**60, u=1, ul=2**64 - 1, d=1e300, bo=True, s=HTML, by=b"\x00\xff", en=1, ol=0, li=[1, 2],
                      ins=[IN], m={"x": 1.5}, st=IN, at="2013-01-31T08:00:00Z")  # fmt: skip
    full.ts.FromDatetime(MOMENT)
    full.du.FromMilliseconds(1500)
    full.mi[3].c, full.rd[:] = 4, [0.5]
    subject = name()
    values = [full, kinds["M"](), kinds["Second"](s="x"), kinds["M.Nested"](i=3), kinds["M"](en=77, os="x")]
    good = [ProtobufSerializer(type(each), client)(each, context(subject)) or b"" for each in values]
    messages = {(ref.prefix(raw), ref.indexes(raw[5:])[0]): type(each) for each, raw in zip(values, good, strict=True)}
    java = client.register_schema(name(), Schema(JAVA_MADE, "PROTOBUF"))
    good.append(struct.pack(">bI", 0, java) + good[0][5:])
    # Damage puts this id before the other messages as well. Those within M have other indexes, without a map's entries.
    messages |= {(java, path): kind for (_, path), kind in messages.items() if len(path) == 1}
    key_files = protobuf_descriptors.descriptor_files(
        WriterSchema(0, "PROTOBUF", 'syntax = "proto3"; message K { int64 k = 1; }')
    )
    key_kind = message_factory.GetMessageClass(protobuf_descriptors.find_descriptor(key_files, "K"))
    keys = [ProtobufSerializer(key_kind, client)(key_kind(k=5), context(name())) or b""]
    wide, narrow = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
    moment = st.one_of(wide, st.integers(-62_135_596_801, 253_402_300_800)), st.one_of(narrow, st.integers(0, 10**9))

    def changed(change: tuple[str, Any]) -> bytes:
        field, given = change
        message = kinds["M"]()
        if isinstance(given, tuple):
            getattr(message, field).seconds, getattr(message, field).nanos = given
        else:
            setattr(message, field, given)
        return good[0][:8] + message.SerializeToString()

    one = st.one_of(
        st.tuples(st.sampled_from(["ts", "du"]), st.tuples(*moment)), st.tuples(st.just("en"), narrow),
        st.tuples(st.sampled_from(["l", "ol", "si"]), wide),
        st.tuples(st.sampled_from(["s", "at", "os"]), st.one_of(ISO, st.text(max_size=4))),
        st.tuples(st.sampled_from(["f", "d"]), st.floats(width=32)),
    ).map(changed)  # fmt: skip
    odd = st.lists(one, min_size=1, max_size=3).map(lambda many: many[0] + b"".join(each[8:] for each in many[1:]))
    return Form(
        "protobuf", {n: kind for n, (kind, _) in PROTO_COLUMNS.items()}, good, keys,
        ref.protobuf_record(messages, {n: r for n, (_, r) in PROTO_COLUMNS.items()}),
        ref.protobuf_record({(ref.prefix(keys[0]), (0,)): key_kind}, {"k": as_is}), odd, BYTES,
        [good[4] + b"\x78\x00", good[0] + b"\x0b" * 150_000, changed(("du", (10**13, 0))),
         *(good[1] + bytes.fromhex(each) for each in PROTO_FOUND)],
    )  # fmt: skip


FORMS: dict[str, Callable[[SchemaRegistryClient], Form]] = {
    "json": lambda _: json_form(), "json_schema": json_form, "json_connect": connect_form,
    "avro": avro_form, "protobuf": protobuf_form,
}  # fmt: skip


def counted(kind: pa.DataType) -> pa.DataType:
    """A type with numbers for days and moments: not all of them are dates in Python."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, counted(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, counted(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(counted(kind.value_type))
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    table.validate(full=True)  # text that is none, for one
    return table.cast(pa.schema([pa.field(f.name, counted(f.type)) for f in table.schema])).to_pylist()


def wrong(form: Form, record: Record, row: dict[str, Any] | None) -> str | None:
    """What is wrong with what a record became, if anything is."""
    try:
        expected = form.expected(record)
    except ref.UndefinedError:
        return None
    if (row is None) != (expected is None):
        return f"{'set apart' if row is None else 'typed'}, and should be {expected or 'set apart'}: {row}"
    if row is None or expected is None:
        return None
    return (
        "; ".join(f"{n} is {row[n]!r}, not {v!r}" for n, v in expected.items() if not ref.same_value(row[n], v)) or None
    )


class Decoder:
    """Records of one format through the real decoder."""

    def __init__(self, spark: SparkSession, form: Form) -> None:
        self.spark, self.form = spark, form
        about = {"table": "db.t", "topic": "t", "group": "g", "owner": "tests", **form.body}
        self.contract = Contract.model_validate(about)

    def wrong(self, records: Sequence[Record]) -> list[tuple[Record, str]]:
        """Those that become what they should not, or that no batch survives."""
        try:
            return self._wrong(records)
        except (Py4JError, PySparkException, pa.ArrowInvalid) as error:
            if len(records) == 1:
                return [(records[0], f"stops the batch: {error}")]
            middle = len(records) // 2
            return self.wrong(records[:middle]) or self.wrong(records[middle:])

    def _wrong(self, records: Sequence[Record]) -> list[tuple[Record, str]]:
        count, moment = len(records), dt.datetime(2020, 1, 1)  # noqa: DTZ001
        staged = pa.table(
            {
                "batch_seq": pa.array([1] * count, pa.int64()),
                "_kafka_partition": pa.array([0] * count, pa.int32()),
                "_kafka_offset": pa.array(range(count), pa.int64()),
                "_kafka_timestamp": pa.array([moment] * count, pa.timestamp("us", "UTC")),
                "key": pa.array([key for key, _ in records], pa.binary()),
                "value": pa.array([value for _, value in records], pa.binary()),
                "headers": pa.array(
                    [None] * count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                ),
            }
        )
        frame = decode(self.spark.createDataFrame(staged), self.contract, "t")
        kept = [*(c.name for c in self.contract.columns), "_kafka_offset", ERROR, DETAIL]
        table = frame.select(*kept).toArrow()
        assert sorted(table["_kafka_offset"].to_pylist()) == list(range(count)), "not one row for each record"
        assert table[ERROR].is_null().equals(table[DETAIL].is_null()), "set apart without a word"
        typed = {row["_kafka_offset"]: row for row in rows_of(table.filter(table[ERROR].is_null()))}
        told = [(record, wrong(self.form, record, typed.get(at))) for at, record in enumerate(records)]
        return [(record, why) for record, why in told if why]

    def smallest(self, record: Record, why: str) -> tuple[Record, str]:
        """A part of a wrong record that is wrong as well, as small as some queries find it."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            key, value = record
            parts: list[Record] = [] if key is None else [(None, value)]
            size = len(value or b"")
            while value and size:
                size //= 2
                step = max(size, 1)
                parts += [
                    (key, value[:at] + value[at + step :]) for at in range(0, len(value), max(step, len(value) // 200))
                ]
            smaller = [found for found in self.wrong(parts) if found[1][:8] == why[:8]] if parts else []
            if not smaller:
                break
            record, why = min(smaller, key=lambda found: sum(len(each or b"") for each in found[0]))
        return record, why


SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": not EXAMPLES,
    "database": None,
    "phases": [Phase.generate],  # what is wrong is made smaller by `smallest`, with many tries in one query
    "suppress_health_check": list(HealthCheck),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_record_is_typed_as_other_decoders_read_it_or_set_apart(
    spark: SparkSession, registry: EmbeddedRegistry, name: str
) -> None:
    form = FORMS[name](registry_client(registry))
    decoder = Decoder(spark, form)
    good: list[Record] = [(form.keys[0], value) for value in form.good]
    assert all(form.expected(record) for record in good)
    found = decoder.wrong([*good, *((None, value) for value in form.found)])

    @settings(max_examples=EXAMPLES or 4, **SETTINGS)
    @given(form.records())
    def prove(records: list[Record]) -> None:
        found.extend(decoder.wrong(records))

    prove()
    if found:
        found.sort(key=lambda each: len(repr(each[0])))
        told = "\n".join(f"{record}: {why}"[:600] for record, why in [decoder.smallest(*found[0]), *found[:10]])
        pytest.fail(f"{len(found)} records are wrong; one made smaller, and the smallest of them:\n{told}")


def drawn(form: Form) -> list[Record]:
    """The records of three lists: of one alone, chance may leave next to none that is whole, or none that is not."""
    found: list[Record] = []

    @settings(max_examples=3, **SETTINGS)
    @given(form.records())
    def collect(records: list[Record]) -> None:
        found.extend(records)

    collect()
    return found


@pytest.mark.timeout(600)
def test_through_the_whole_way_each_is_in_the_table_or_in_quarantine(
    lake: Callable[..., Lake], registry: EmbeddedRegistry
) -> None:
    forms = [make(registry_client(registry)) for make in FORMS.values()]
    batches = [drawn(form) for form in forms]
    it = lake()
    made = []
    for form, records in zip(forms, batches, strict=True):
        topic = f"{it.topic}.{form.name}"
        it.create_topic(1, name=topic)
        about = {"topic": topic, "errors": {"max_ratio": 1.0}}
        made.append(it.contract(table=f"db.{it.group}_{form.name}", **form.body, **about))
        it.send([(0, key, value) for key, value in records], topic=topic)  # type: ignore[misc]
    # A damaged day or moment is the key of a row as any other is.
    keyed = {"mode": "upsert", "identifier": ["day", "ts_us"], "deletes": "ignore", "value": {"format": "avro"}}
    listed = [{"name": n, "type": AVRO_COLUMNS[n][1]} for n in keyed["identifier"]]
    upsert = it.contract(topic=f"{it.topic}.avro", columns=listed, errors={"max_ratio": 1.0}, **keyed)
    outcomes = it.run()
    assert outcomes[upsert]["state"] == "published", outcomes[upsert]
    for form, records, table in zip(forms, batches, made, strict=True):
        assert outcomes[table]["state"] == "published", outcomes[table]
        # By Spark: of a list of structs that is null, PyIceberg 0.12 makes an empty one.
        read = it.spark.table(table_names.spark_name("lake", table_names.typed(it.contract_of(table)))).toArrow()
        typed = {row["_kafka_offset"]: row for row in rows_of(read)}
        quarantine = tables.load(it.catalog, table_names.quarantine(it.contract_of(table)))
        assert quarantine, form.name
        apart = (
            quarantine.scan(selected_fields=("_kafka_offset", "value", "error_class", "error")).to_arrow().to_pylist()
        )
        places = [*typed, *(row["_kafka_offset"] for row in apart)]
        assert sorted(places) == list(range(len(records))), form.name
        assert len(typed) > 5 and len(apart) > 5, f"{form.name}: the accidents tell nothing"
        became = [(each, wrong(form, each, typed.get(at))) for at, each in enumerate(records)]
        if told := [f"{each}: {why}"[:600] for each, why in became if why]:
            pytest.fail(f"{form.name}: {len(told)} records are wrong:\n" + "\n".join(told[:10]))
        for row in apart:
            assert row["value"] == records[row["_kafka_offset"]][1] and row["error"], row
            assert row["error_class"] in ("malformed", "misfit", "null_value"), row
