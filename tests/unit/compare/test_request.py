"""What may be asked of a comparison, how columns are paired, and how its result reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import types as T

from sluice.compare.columns import common_type, pair_columns
from sluice.compare.request import make_request, parse_pairs
from sluice.compare.result import Commit, ComparedColumn, Comparison, Keys, Side
from sluice.contract.contract import Contract
from sluice.contract.types import parse_type
from sluice.errors import RefusedError
from sluice.formats.logical_types import spark_type

pytestmark = pytest.mark.unit
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
TABLES = {"table": "shop.orders", "other": "old.shop.orders"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "orders"}, "table: String should match"),
        ({"other": "shop.orders"}, "a table can't be compared with itself"),
        ({"since": NOON, "until": NOON}, "`from` is not before `to`"),
        ({"since": "2026-11-29T12:00:00"}, "since: Input should have timezone info"),
        ({"offsets": {"0": [5, 5]}}, "the range of partition 0 is empty"),
        ({"tolerance": {"amount": "0"}}, r"tolerance\.amount: Input should be greater than 0"),
        ({"tolerance": {"amount": "nan"}}, r"tolerance\.amount: Input should be a finite number"),
        ({"ignore": ["n"], "tolerance": {"n": 1}}, "column 'n' is ignored, and has a tolerance"),
        ({"columns": {"a": "n", "b": "n"}}, "are given the same name"),
        ({"colums": {}}, "colums: Extra inputs are not permitted"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        make_request({**TABLES, **given})


def test_a_window_is_said_in_words_and_pairs_are_parsed() -> None:
    found = make_request({**TABLES, "since": NOON, "time_column": "at", "offsets": {"1": [5, 9]}, "until": None})
    assert found.window == "at from 2026-11-29T12:00:00+00:00; offsets 1: 5 to 8"
    assert parse_pairs(["a=b", "c=d=1"], "--columns") == {"a": "b", "c=d": "1"}
    for wrong in (["a"], ["=1"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(RefusedError, match="is not a new NAME=VALUE"):
            parse_pairs(wrong, "--columns")


@pytest.mark.parametrize(
    ("ours", "theirs", "wider"),
    [
        ("int", "long", "bigint"),
        ("long", "double", "double"),
        ("float", "float", "float"),
        ("float", "double", "double"),
        ("decimal(10,2)", "decimal(12,4)", "decimal(12,4)"),
        ("decimal(10,2)", "int", "decimal(12,2)"),
        ("decimal(38,2)", "decimal(38,30)", None),
        ("decimal(10,2)", "double", "double"),
        ("timestamptz", "timestamp", "timestamp"),
        ("date", "timestamptz", None),
        ("string", "int", None),
        ("struct<a:int,b:string>", "struct<B:string,A:long>", "struct<a:bigint,b:string>"),
        ("struct<a:int>", "struct<a:int,b:int>", None),
        ("list<int>", "list<long>", "array<bigint>"),
        ("list<int>", "list<string>", None),
        ("map<string,int>", "map<string,double>", "map<string,double>"),
    ],
)
def test_values_are_compared_in_the_wider_type(ours: str, theirs: str, wider: str | None) -> None:
    one, another = (spark_type(parse_type(each)) for each in (ours, theirs))
    found = common_type(one, another), common_type(another, one)
    assert found[0] == found[1] or "struct" in str(wider), "fields have the order of the first"
    assert (found[0] and found[0].simpleString()) == wider


def contract(**changes: Any) -> Contract:
    columns = [{"name": n, "type": "string"} for n in ("id", "city")] + [{"name": "n", "type": "long"}]
    columns.append({"name": "mail", "type": "string", "mask": "sha256"})
    body = {"table": "shop.orders", "topic": "orders", "owner": "me", "columns": columns}
    return Contract.model_validate({**body, **changes})


UPSERT = {"mode": "upsert", "identifier": ["id"]}
OURS = "id string, city string, n long, mail string, _kafka_topic string, _kafka_partition int, _kafka_offset long"


def pair(theirs: str, made: Contract, **given: Any) -> Any:
    fields = [[each.split(" ") for each in text.split(", ")] for text in (OURS, theirs)]
    schemas = (T.StructType([T.StructField(n, spark_type(parse_type(k))) for n, k in each]) for each in fields)
    return pair_columns(make_request({**TABLES, **given}), made, *schemas)


def test_columns_are_paired_by_name_and_rows_by_what_identifies_them() -> None:
    found = pair("ID string, town string, N int, mail string, x int", contract(**UPSERT), columns={"town": "city"})
    assert [p.name for p in found.key] == ["id"]
    assert [(p.name, p.other, p.kind.simpleString()) for p in found.values] == [
        ("city", "town", "string"),
        ("n", "N", "bigint"),
    ]
    reasons = dict(found.not_compared)
    assert reasons["mail"] == "it is masked in the contract"
    assert reasons["x"] == "only old.shop.orders has it"
    assert reasons["_kafka_offset"] == "old.shop.orders has no such column"
    append = pair("_kafka_partition int, _kafka_offset long, n long, id string", contract(), ignore=["id"])
    assert [p.name for p in append.key] == ["_kafka_partition", "_kafka_offset"]
    assert dict(append.not_compared)["id"] == "ignored on request"
    assert pair(OURS, contract(), masked_alike=["mail"]).key[0].name == "_kafka_topic"
    ended = [{"name": "id", "type": "string"}, {"name": "ended", "type": "timestamptz", "source": "$valid_to"}]
    history = contract(mode="history", identifier=["id"], columns=ended, deletes="ignore")
    with pytest.raises(RefusedError, match="has no column '_kafka_timestamp' to identify rows by"):
        pair(OURS, history)


@pytest.mark.parametrize(
    ("theirs", "given", "message"),
    [
        ("n long", {}, r"has no column '_kafka_partition' to identify rows by\. Next step: .*`--key COL …`"),
        (OURS, {"ignore": ["ctiy"]}, r"shop\.orders has no column 'ctiy' \(did you mean 'city'\?\)"),
        (OURS, {"key": ["id"], "ignore": ["id"]}, "Rows are identified by column 'id': it can't be ignored"),
        (
            OURS,
            {"tolerance": {"_kafka_offset": 1}},
            "column '_kafka_offset': it can't be ignored, nor have a tolerance",
        ),
        (OURS, {"columns": {"x": "n"}}, r"old\.shop\.orders has no column 'x'"),
        (OURS, {"tolerance": {"city": 1}}, "'city' has type string, which takes no tolerance"),
        (OURS, {"key": ["mail"]}, r"'mail' can't be compared: it is masked in the contract\. .*--masked-alike mail"),
        (
            OURS.replace("n long", "n string"),
            {"tolerance": {"n": 1}},
            "bigint and string, have no common type",
        ),
        (OURS.replace("n long", "n string"), {"key": ["n"]}, "or with a view of the other table"),
    ],
)
def test_columns_that_can_not_be_used_as_asked_are_refused(theirs: str, given: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        pair(theirs, contract(), **given)


def result(**changes: Any) -> Comparison:
    commits = tuple(Commit(at=NOON + timedelta(minutes=n), newest=NOON) for n in range(4))
    given = {
        "ours": Side(name="shop.orders", snapshot_id=7, rows=1_000_000, commits=commits),
        "theirs": Side(name="old.shop.orders", snapshot_id=None, rows=1_000_000),
        "run_id": "r",
        "at": NOON,
        "key": ("id",),
        "window": "",
        "columns": (ComparedColumn(name="city"), ComparedColumn(name="n", tolerance="0.1")),
    }
    return Comparison(**{**given, **changes})


def test_the_verdict_comes_first_then_what_was_not_compared_and_why() -> None:
    equal = result(not_compared=(("x", "only old has it"), ("y", "only old has it"), ("z", "ignored on request")))
    assert list(equal.lines()) == [
        "equal: 1,000,000 rows, 3 columns",
        "  shop.orders: 1,000,000 rows, snapshot 7, a commit every 60 s, 90 s after its newest value",
        "  old.shop.orders: 1,000,000 rows, read once",
        "  rows are identified by id",
        "  not compared: x, y: only old has it",
        "  not compared: z: ignored on request",
    ]
    city = ComparedColumn(name="city", different=2, examples=(("id=1", None, "\\x07"),))
    found = result(
        only_ours=Keys(count=1, examples=("id=9",)), columns=(city,), different=2, window="offsets 0: 1 to 2"
    )
    assert found.verdict == ("different: 1 key is missing in old.shop.orders, 2 rows have other values (city: 2)")
    assert "    id=1: NULL here, '\\\\x07' in old.shop.orders" in list(found.lines())
    assert Comparison.model_validate_json(found.model_dump_json()) == found
    evidence = found.evidence()
    assert (evidence["only_ours"], evidence["different"], evidence["with"]) == (1, {"city": 2}, "old.shop.orders")
    assert evidence["ours"] == {"rows": 1_000_000, "snapshot_id": 7, "interval_seconds": 60.0, "delay_seconds": 90.0}
    assert "id=" not in str(evidence)
