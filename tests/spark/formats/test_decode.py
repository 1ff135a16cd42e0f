"""Every column type is decoded, merged and stored; hostile values are quarantined and never fail a batch."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer

from sluice.iceberg import table_names
from tests.support.lake import Lake
from tests.support.thorough import usual

pytestmark = pytest.mark.usefixtures("generated_code")

COLUMNS = [
    ("id", "string", "a"),
    ("b", "boolean", True),
    ("i", "int", -7),
    ("l", "long", 2**60),
    ("f", "float", 0.5),
    ("d", "double", 1e300),
    ("dec", "decimal(9, 2)", "1234567.89"),
    ("day", "date", "2013-01-31"),
    ("ts", "timestamp", "2013-01-31T10:00:00.123456"),
    ("tz", "timestamptz", "2013-01-31T10:00:00.123456+02:00"),
    ("s", "string", "'; DROP TABLE t; -- <b>ü</b>"),
    ("u", "uuid", "123e4567-e89b-12d3-a456-426614174000"),
    ("us", "list<uuid>", ["123E4567-E89B-12D3-A456-426614174000", None]),
    ("ins", "struct<u: uuid, m: map<string, struct<u: uuid>>>",
     {"u": "123E4567-e89b-12d3-a456-426614174000", "m": {"x": {"u": "123e4567-e89b-12d3-a456-426614174000"}}}),
    ("fx", "fixed[3]", base64.b64encode(b"abc").decode()),
    ("fxs", "list<fixed[3]>", [base64.b64encode(b"abc").decode(), None]),
    ("bin", "binary", base64.b64encode(b"\x00\xff").decode()),
    ("li", "list<int>", [1, None, 3]),
    ("m", "map<string, double>", {"x": 1.5}),
    ("st", "struct<a: int, b: list<struct<c: date>>>", {"a": 1, "b": [{"c": "2020-02-29"}]}),
    # As the staged record's own are called.
    ("key", "string", "a key"),
    ("value", "long", 5),
    ("headers", "list<string>", ["h"]),
    ("batch_seq", "int", -1),
]  # fmt: skip
UUID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
EXPECTED = {
    "b": True, "i": -7, "l": 2**60, "f": 0.5, "d": 1e300, "dec": Decimal("1234567.89"),
    "day": dt.date(2013, 1, 31), "ts": dt.datetime(2013, 1, 31, 10, 0, 0, 123456),  # noqa: DTZ001
    "tz": dt.datetime(2013, 1, 31, 8, 0, 0, 123456, tzinfo=dt.UTC), "s": "'; DROP TABLE t; -- <b>ü</b>",
    "u": UUID, "us": [UUID, None], "ins": {"u": UUID, "m": [("x", {"u": UUID})]},
    "fx": b"abc", "fxs": [b"abc", None], "bin": b"\x00\xff", "li": [1, None, 3],
    "m": [("x", 1.5)], "st": {"a": 1, "b": [{"c": dt.date(2020, 2, 29)}]},
    "key": "a key", "value": 5, "headers": ["h"], "batch_seq": -1,
}  # fmt: skip


def told(found: Any) -> Any:
    """PyIceberg gives a uuid as bytes."""
    if isinstance(found, bytes) and len(found) == 16:
        return uuid.UUID(bytes=found)
    if isinstance(found, dict):
        return {name: told(each) for name, each in found.items()}
    return type(found)(map(told, found)) if isinstance(found, (list, tuple)) else found


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_every_type_reaches_its_column(lake: Callable[..., Lake], mode: str) -> None:
    it = lake()
    it.create_topic(1)
    columns = [{"name": name, "type": kind} for name, kind, _ in COLUMNS[1:]]
    columns = [{"name": "id", "type": "string", "source": "$key"}, *columns]
    table = it.contract(mode=mode, columns=columns, errors={"max_ratio": 0.5})
    value = {name: each for name, _, each in COLUMNS[1:]} | {"dec": 1234567.89}
    it.send([(0, "full", value), (0, "empty", {}), (0, "bad", {"value": "no number"})])
    assert it.run()[table]["state"] == "published"
    by_id = {row["id"]: row for row in it.rows(table)}
    for name, expected in EXPECTED.items():
        assert told(by_id["full"][name]) == expected, name
        assert by_id["empty"][name] is None
    (bad,) = it.quarantined(table)
    assert (bytes(bad["key"]), bad["batch_seq"], bad["field"]) == (b"bad", 1, "value")


def test_zero_is_found_whatever_its_sign(lake: Callable[..., Lake]) -> None:
    """In Iceberg's bounds of a file or a partition -0.0 is less than 0.0; for Spark they are equal."""
    it = lake()
    it.create_topic(1)
    kinds = {"d": "double", "f": "float", "s": "struct<d: double, u: uuid>", "l": "list<struct<d: double>>"}
    columns = [*({"name": n, "type": kind} for n, kind in kinds.items()), {"name": "neg", "type": "float"}]
    columns[-1]["expression"] = "-coalesce(f, 0.0)"
    table = it.contract(columns=columns, partition_by=["f"])
    it.send([(0, "a", '{"d": -0.0, "f": -0.0, "s": {"d": -0.0}, "l": [{"d": -0.0}]}'), (0, "b", '{"s": {"d": -1}}')])
    assert it.run()[table]["state"] == "published"
    where = ("d = 0", "d >= 0", "f = 0", "f >= 0", "s.d >= 0", "neg = 0 AND d IS NOT NULL", "neg <= 0 AND s.d < 0")
    name = table_names.spark_name(table_names.catalog_name(), tuple(table.split(".")))
    assert [it.spark.table(name).where(each).count() for each in where] == [1] * len(where)
    stored = next(r for r in it.rows(table) if r["d"] is not None)
    signs = (math.copysign(1, each) for each in (stored["d"], stored["f"], stored["s"]["d"], stored["l"][0]["d"]))
    assert list(signs) == [1, 1, 1, -1]


HOSTILE = {
    "truncated": b'{"n": 1',
    "not an object": b"[1, 2]",
    "a number": b"7",
    "no bytes": b"",
    "a word for a number": b'{"n": "x"}',
    "a fraction for a whole number": b'{"n": 1.5}',
    "too large a number": b'{"n": 99999999999999999999}',
    "an overflowing decimal": b'{"dec": 123456789.12}',
    "a day that is none": b'{"day": "2013-02-30"}',
    "no uuid": b'{"u": "zz"}',
    **{
        f"a line end after a uuid ({end!r})": json.dumps({"u": f"123e4567-e89b-12d3-a456-426614174000{end}"}).encode()
        for end in ("\n", "\r\n", "\u2028")
    },
    "several of other types": b'{"n": "many", "d": [1], "ins": 7, "tz": "soon"}',
    "another type and damaged": b'{"n": "many", "d": [1]',
    "too short for fixed": b'{"fx": "YQ=="}',
    "no uuid in a list": b'{"us": [null, "x"]}',
    "a short uuid in a struct": b'{"ins": {"u": "1-1-1-1-1"}}',
    "no uuid in a map": b'{"ins": {"m": {"x": null, "y": {"u": ""}}}}',
    "too long for fixed in a list": b'{"fxs": [null, "YWJjZA=="]}',
    "no base64": b'{"bin": "***"}',
    "binary": bytes(range(256)),
    "no UTF-8 in a text": b'{"s": "\xff"}',
    "no UTF-8 in a name": b'{"n": 1, "\xed\xa0\x80": 2}',
    "no UTF-8 beside it": b'{"n": 1, "left out": "\xc0\x80"}',
    "a time without a day": b'{"tz": "10:00:00Z"}',
    "a month without a day": b'{"day": "2013-01"}',
    "a day with a time": b'{"day": "2013-01-31T23:30:00Z"}',
    "a zone that would be lost": b'{"ts": "2013-01-31T23:30:00+02:00"}',
    "milliseconds": b'{"tz": 1359675000000}',
    "microseconds": b'{"tz": 1359675000000000}',
    "more than a long": b'{"tz": 99999999999999999999}',
    "seconds with a fraction": b'{"tz": 1359675000.5}',
    "seconds without a zone": b'{"ts": 1359675000}',
    "days": b'{"day": 15736}',
    "a moment that is an object": b'{"tz": {"seconds": 1}}',
    "two objects": b'{"n": 1} {"n": 2}',
    "an object and a brace": b'{"n": 1}}',
    "an object and the middle of another": b'{"n": 1}, "n": 2}',
    "an object and an empty one": b'{"n": 1}{}',
    "what would close and open a list around it": b'{"n": 1}], "x": [{"n": 2}',
    "a comma before the end": b'{"n": 1,}',
    "a comma alone": b"{,}",
    "a text that the end lies in": b'{"n": 1, "s": "}',
    "an object within that the end closes": b'{"n": 1, "x": {"y": 2}',
    "a brace alone": b"}",
    "spaces before a brace": b"  }",
    "null and a brace": b"null }",
    "a text and a brace": b'"n" }',
    "an empty text and a brace": b'"" }',
    "a number and a brace": b"7 }",
    "true and a brace": b"true }",
    "an array that a brace ends": b'["n" }',
    "an array around an object that does not end": b'[{"n": 1}',
    "an array and a brace": b"[] }",
    "a name without a value": b'{"n"}',
    "a name and a colon": b'{"n":}',
    "a comment": b'{"n": 1 /* } */}',
    "an object in an array": b'[{"n": 1}]',
    "a space that is none in JSON": b'{"n": 1}\x0b',
    "too long for a folder": json.dumps({"s": "x" * 254}).encode(),
    "too long for any": json.dumps({"s": "x" * 900_000}).encode(),
    "too long for a folder when encoded": json.dumps({"s": "/ü" * 29}).encode(),
    "too long for a folder in base64": json.dumps({"bin": base64.b64encode(b"\xff" * 150).decode()}).encode(),
    "too long for a path": json.dumps({"s": "x" * 240, "p": "ü" * 35, "bin": "YWJj" * 50}).encode(),
}


def test_hostile_values_are_quarantined_and_good_ones_pass(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1, max_message_bytes=str(20_000_000))
    names = ["d", "dec", "day", "ts", "tz", "s", "u", "us", "ins", "fx", "fxs", "bin"]
    columns = [{"name": n, "type": k} for n, k, _ in COLUMNS if n in names] + [{"name": "p", "type": "string"}]
    table = it.contract(
        columns=[{"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "long"}, *columns],
        partition_by=["s", "truncate(35, p)", "truncate(160, bin)"],
        errors={"max_ratio": 1.0},
    )
    many = ",".join(f'"{i}": null' for i in range(100_000)) + f', "7": {{"u": "{UUID}"}}'
    deep = json.dumps({"n": 2, "extra": "<script>" * 10}).encode()
    good = {
        "good": b'{"n": 1}',
        "sql": deep,
        "nul": b'{"n": 3, "t": "\\u0000"}',
        "nested": b'{"n": 4, "x": ' + b"[" * 500 + b"]" * 500 + b"}",
        "wide": b'{"n": 5, "x": "' + b"y" * 10_000_000 + b'"}',
        "seconds": b'{"n": 6, "tz": 1359675000}',
        "seconds as text": b'{"n": 7, "tz": "-1"}',
        "empty": b"{}",
        "empty with a line in it": b" {\r\n\t} ",
        "spaces around": b' \r\n{"n": 9}\t\n ',
        "written over lines": b'{\n  "n": 10,\n  "x": {}\n}\n',
        "braces in a text": b'{"n": 11, "s": "}{}"}',
        "an empty name": b'{"": {"": {}}}',
        "beyond the greatest double": b'{"n": 12, "d": -1e400}',
        "no number": b'{"n": 13, "d": "NaN"}',
        "as long as a folder may be": json.dumps({"n": 14, "s": "ü/ x" * 23}).encode(),
        "cut for its folder": json.dumps({"n": 15, "p": "x" * 900_000, "s": "x" * 253}).encode(),
        "a name twice among very many": f'{{"n": 16, "ins": {{"m": {{{many}}}}}}}'.encode(),
        "in words": b'{"n": 8, "tz": "2013-01-31 23:30:00 UTC", "ts": "2013-01-31 23:30", "day": "0001-01-01"}',
    }
    producer = Producer({**it.kafka, "message.max.bytes": 20_000_000})
    it.send(((0, key, value) for key, value in [*HOSTILE.items(), *good.items()]), producer=producer)
    outcome = it.run()[table]
    assert outcome["state"] == "published", outcome["error"]
    rows = {row["id"]: row for row in it.rows(table)}
    assert sorted(rows) == sorted(good)
    assert {key: rows[key]["n"] for key in good} == {key: json.loads(text).get("n") for key, text in good.items()}
    moment = dt.datetime(2013, 1, 31, 23, 30, tzinfo=dt.UTC)
    assert rows["seconds"]["tz"] == rows["in words"]["tz"] == moment
    assert rows["seconds as text"]["tz"] == dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    named = dict(rows["a name twice among very many"]["ins"]["m"])
    assert (len(named), told(named["7"]), named["8"]) == (100_000, {"u": UUID}, None), "the last one counts"
    assert rows["beyond the greatest double"]["d"] == -math.inf and math.isnan(rows["no number"]["d"])
    assert (rows["in words"]["ts"], rows["in words"]["day"]) == (moment.replace(tzinfo=None), dt.date(1, 1, 1))
    rejected = {row["key"].decode(): row for row in it.quarantined(table)}
    assert set(rejected) == set(HOSTILE)
    assert all(rejected[key]["value"] == value for key, value in HOSTILE.items()), "the raw bytes are kept"
    assert rejected["a word for a number"]["field"] == "n"
    assert rejected["no uuid"]["field"] == "u"
    several = rejected["several of other types"]
    assert several["field"] == "n" and several["error"].startswith("type mismatch in n (long), ")
    assert all(f", {each}" in several["error"] for each in ("d (double)", "ins (object)", "tz (timestamptz)"))
    assert rejected["another type and damaged"]["error"].startswith("the value cannot be parsed as a JSON object")
    assert rejected["too short for fixed"]["field"] == "fx"
    nested = ["no uuid in a list", "a short uuid in a struct", "no uuid in a map", "too long for fixed in a list"]
    assert [rejected[each]["field"] for each in nested] == ["us[]", "ins.u", "ins.m{}.u", "fxs[]"]
    assert rejected["milliseconds"]["field"] == "tz"
    long = {key: (r["field"], r["error_class"]) for key, r in rejected.items() if key.startswith("too long for a")}
    assert set(long.values()) == {("s", "misfit"), ("bin", "misfit")}
    assert [long[f"too long for a {each}"][0] for each in ("folder in base64", "path")] == ["bin", "bin"]
    assert rejected["no UTF-8 in a text"]["error"] == "the value is not UTF-8 text"
    assert rejected["no uuid"]["error"] == "the text is not a uuid"
    assert all(row["error"] for row in rejected.values()), "nothing is set apart without a word"
