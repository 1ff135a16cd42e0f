"""JSON with an embedded Connect schema: every logical type, and schemas that Kafka Connect would not write."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Context, Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.formats.internal_columns import DETAIL, ERROR, FIELD
from tests.spark.formats.test_formats import HTML, read

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]

CONNECT = "org.apache.kafka.connect.data."


BIG = Context(prec=40)


def field(name: str, kind: str, semantic: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": True, "field": name, **({"name": semantic} if semantic else {}), **more}


def decimal(name: str, scale: str) -> dict[str, Any]:
    return field(name, "bytes", f"{CONNECT}Decimal", version=1, parameters={"scale": scale})


def debezium(name: str, kind: str, semantic: str) -> dict[str, Any]:
    return field(name, kind, f"io.debezium.time.{semantic}")


VARIABLE = field(
    "d", "struct", "io.debezium.data.VariableScaleDecimal",
    fields=[{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}],
)  # fmt: skip


def told(fields: list[dict[str, Any]] | None, payload: Any) -> bytes:
    schema = None if fields is None else {"type": "struct", "optional": False, "fields": fields}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def coded(unscaled: int, length: int | None = None) -> str:
    size = length or (unscaled.bit_length() // 8 + 1)
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


COLUMNS = {
    "d": "decimal(10, 2)", "day": "date", "at": "timestamptz", "local": "timestamp", "s": "string", "n": "long",
    "li": "list<struct<d: decimal(38, 3), n: int>>", "m": "map<string, timestamptz>", "by": "binary",
    "t_ms": "int", "t_us": "long",
}  # fmt: skip
ITEM = {"type": "struct", "fields": [decimal("d", "3"), field("n", "int32")]}
MAP = {"values": {"type": "int64", "name": f"{CONNECT}Timestamp"}, "keys": {"type": "string"}}
AT = dt.datetime(2013, 1, 31, 8)  # noqa: DTZ001
MILLIS = int(AT.replace(tzinfo=dt.UTC).timestamp()) * 1000
GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (told([decimal("d", "2")], {"d": coded(-123)}), {"d": Decimal("-1.23")}),
    (told([decimal("d", "2")], {"d": 1.5}), {"d": Decimal("1.50")}),
    (told([decimal("d", "2")], {"d": coded(-1, 17)}), {"d": Decimal("-0.01")}),
    (told([decimal("d", "4")], {"d": coded(12300)}), {"d": Decimal("1.23")}),
    (told([decimal("d", "4")], {"d": 12.3400}), {"d": Decimal("12.34")}),
    (told([VARIABLE], {"d": {"scale": 3, "value": coded(-1230)}}), {"d": Decimal("-1.23")}),
    (told([debezium("day", "string", "IsoDate"), debezium("local", "string", "IsoTimestamp")],
          {"day": "2013-01-31Z", "local": "2013-01-31T08:00:00Z"}), {"day": dt.date(2013, 1, 31), "local": AT}),
    (told([debezium("at", "int64", "NanoTimestamp"), debezium("local", "int64", "NanoTimestamp")],
          {"at": MILLIS * 10**6, "local": MILLIS * 10**6 + 7999}), {"at": AT, "local": AT.replace(microsecond=7)}),
    # Four digits are both a number and base64: the JSON's own type decides.
    (told([decimal("d", "0")], {"d": 1234}), {"d": Decimal("1234.00")}),
    (told([decimal("d", "0")], {"d": "1234"}), {"d": Decimal(0xD76DF8 - (1 << 24)).quantize(Decimal("1.00"))}),
    (told([decimal("d", "-2")], {"d": coded(7)}), {"d": Decimal("700.00")}),
    (told([field("d", "string")], {"d": "1.25"}), {"d": Decimal("1.25")}),
    (told([field("day", "int32", f"{CONNECT}Date")], {"day": -1}), {"day": dt.date(1969, 12, 31)}),
    (told([field("at", "int64", f"{CONNECT}Timestamp"), field("local", "int64", "io.debezium.time.MicroTimestamp")],
          {"at": MILLIS, "local": MILLIS * 1000 + 7}), {"at": AT, "local": AT.replace(microsecond=7)}),
    (told([field("at", "string", "io.debezium.time.ZonedTimestamp")], {"at": "2013-01-31T10:00:00+02:00"}), {"at": AT}),
    (told([field("li", "array", items=ITEM)], {"li": [{"d": coded(10**37, 16), "n": 5}, {"d": None}, None]}),
     {"li": [{"d": Decimal(10**34), "n": 5}, {"d": None, "n": None}, None]}),
    *((told([field("li", "array", items=ITEM)], {"li": [{"d": coded(n * (10**38 - 1), 16), "n": 5}]}),
       {"li": [{"d": Decimal(n * (10**38 - 1)).scaleb(-3, BIG), "n": 5}]}) for n in (1, -1)),
    (told([{**field("m", "map"), **MAP}], {"m": {HTML: MILLIS, "": None}}), {"m": {HTML: AT, "": None}}),
    (told([field("s", "string"), field("by", "bytes")], {"s": HTML, "by": "AP8="}), {"s": HTML, "by": b"\x00\xff"}),
    (told([field("t_ms", "int32", f"{CONNECT}Time"), field("t_us", "int64", "io.debezium.time.MicroTime")],
          {"t_ms": 1005, "t_us": 1_000_005}), {"t_ms": 1005, "t_us": 1_000_005}),
    (told([field("t_us", "int32", "io.debezium.time.Time")], {"t_us": 1005}), {"t_us": 1005}),
    # Without a schema what is said is what JSON says.
    (told(None, {"n": 1, "d": 2.5, "day": "2013-01-31", "local": "2013-01-31T08:00:00", "unknown": {}}),
     {"n": 1, "d": Decimal("2.50"), "day": dt.date(2013, 1, 31), "local": AT}),
    (told([], {}), {}),
]  # fmt: skip
ENVELOPE = '{"schema": …, "payload": …}'
BAD: list[tuple[bytes, str | None, str]] = [
    (b'{"n": 1}', None, ENVELOPE),
    (b'{"payload": {"n": 1}}', None, ENVELOPE),
    (b'{"schema": {"type": "struct", "fields": []}}', None, ENVELOPE),
    (b'{"schema": "struct", "payload": {"n": 1}}', None, ENVELOPE),
    (told([], {"n": 1})[:-1], None, ENVELOPE),
    (told([], [1]), None, ENVELOPE),
    (told([], {"n": "x"}), None, ENVELOPE),
    (b"[]", None, ENVELOPE),
    (b"", None, ENVELOPE),
    (b"\xff\xfe", None, "is not UTF-8 text"),
    (told([], {"d": 1}).replace(b"1", b"[" * 2000 + b"]" * 2000), None, ENVELOPE),
    (told([decimal("d", "3")], {"d": coded(1)}), "d", "decimal(10,2)"),
    (told([decimal("d", "2")], {"d": coded(10**11)}), "d", "decimal(10,2)"),
    (told([decimal("d", "2")], {"d": coded(2**130 + 1, 17)}), "d", "decimal(10,2)"),
    (told([decimal("d", "2")], {"d": "no base64!"}), "d", "decimal(10,2)"),
    (told([decimal("d", "2")], {"d": ""}), "d", "decimal(10,2)"),
    (told([decimal("d", "999999999")], {"d": coded(1)}), "d", "decimal(10,2)"),
    (told([decimal("d", "-999999999")], {"d": coded(1)}), "d", "decimal(10,2)"),
    (told([decimal("d", "two")], {"d": coded(1)}), "d", "decimal(10,2)"),
    (told([field("d", "bytes", f"{CONNECT}Decimal")], {"d": coded(1)}), "d", "decimal(10,2)"),
    (told([field("d", "bytes")], {"d": "1234"}), "d", "decimal(10,2)"),
    (told([decimal("d", "2")], {"d": {"x": 1}}), "d", "decimal(10,2)"),
    (told([decimal("d", "2")], {"d": "779"}), "d", "decimal(10,2)"),
    (told([decimal("d", "3")], {"d": 1.239}), "d", "decimal(10,2)"),
    (told([VARIABLE], {"d": {"scale": 3, "value": coded(1)}}), "d", "decimal(10,2)"),
    (told([VARIABLE], {"d": {"scale": 1.5, "value": coded(1)}}), "d", "decimal(10,2)"),
    (told([debezium("day", "string", "IsoTimestamp")], {"day": "2013-01-31T08:00:00Z"}), "day", "date"),
    (
        told([debezium("local", "string", "ZonedTimestamp")], {"local": "2013-01-31T08:00:00Z"}),
        "local",
        "timestamp_ntz",
    ),
    (told([field("day", "int32")], {"day": 1}), "day", "date"),
    (told([field("day", "int32", f"{CONNECT}Date")], {"day": 2**40}), "day", "date"),
    (told([field("at", "int64")], {"at": MILLIS}), "at", "timestamp"),
    (told([field("at", "int64", f"{CONNECT}Timestamp")], {"at": 2**62}), "at", "timestamp"),
    (told([field("local", "string")], {"local": "2013-01-31T10:00:00+02:00"}), "local", "timestamp_ntz"),
    (told([field("li", "array", items=ITEM)], {"li": [{"d": "!"}]}), "li[]", "decimal(38,3)"),
    (told([{**field("m", "map"), **MAP}], {"m": {"x": True}}), "m{}", "timestamp"),
]


def test_every_logical_type_and_broken_envelopes(spark: SparkSession) -> None:
    columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    values = [*(value for value, _ in GOOD), *(value for value, _, _ in BAD), told([], None)]
    keys = [b'{"schema": {"type": "int64", "optional": false}, "payload": 5}'] * (len(values) - 1)
    keys += [b'{"schema": {"type": "int64", "optional": true}, "payload": null}']
    columns.append({"name": "key", "type": "long", "source": "$key"})
    rows = read(spark, list(zip(keys, values, strict=True)), columns, key="json_connect", value="json_connect")
    for (value, expected), row in zip(GOOD, rows, strict=False):
        assert row[ERROR] is None, (value, row[DETAIL])
        assert {name: row[name] for name in COLUMNS} == {**dict.fromkeys(COLUMNS), **expected}, value
        assert row["key"] == 5
    for (value, path, words), row in zip(BAD, rows[len(GOOD) :], strict=False):
        assert (row[ERROR], row[FIELD]) == ("malformed", path), (value[:200], row[DETAIL])
        assert words in row[DETAIL], value
    assert (rows[-1][ERROR], rows[-1]["key"]) == ("null_value", None), "a null payload is no value"
    (bare,) = read(spark, [(b"5", GOOD[0][0])], columns, key="json_connect", value="json_connect")
    assert bare[ERROR] == "malformed" and "the key cannot be parsed as" in bare[DETAIL]
