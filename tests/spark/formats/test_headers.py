"""Columns from headers: the last one of a name, or all of them, and what is no value of the column's type."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.contract.contract import Contract
from sluice.formats.decode import decode
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]

STAGED = (
    "batch_seq bigint, _kafka_partition int, _kafka_offset bigint, _kafka_timestamp timestamp, key binary, "
    "value binary, headers array<struct<key: string, value: binary>>"
)


def decoded(spark: SparkSession, headers: list[list[tuple[str, bytes | None]] | None], **more: Any) -> list[Any]:
    columns = [
        {"name": "trace", "type": "string", "source": "$headers.trace-id"},
        {"name": "at", "type": "timestamptz", "source": "$headers.ce_time"},
        {"name": "tries", "type": "int", "source": "$headers.`retry.count`"},
        {"name": "raw", "type": "binary", "source": "$headers.trace-id"},
        {"name": "every", "type": "list<string>", "source": "$headers.trace-id"},
        {"name": "first", "type": "string", "expression": "upper(every[0])"},
        {"name": "headers", "type": "long", "source": "n"},
    ]
    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "o", "columns": columns, **more}
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rows = [(1, 0, n, now, b"k", b'{"n": 7}', each) for n, each in enumerate(headers)]
    frame = decode(spark.createDataFrame(rows, STAGED), Contract.model_validate(body), "t")
    return frame.orderBy("_kafka_offset").collect()


def test_headers_become_columns(spark: SparkSession) -> None:
    sent: list[tuple[str, bytes | None]] = [
        ("trace-id", b"a"),
        ("other", b"x"),
        ("trace-id", "ü".encode()),
        ("ce_time", b"2026-11-29T10:00:00Z"),
        ("retry.count", b"3"),
    ]
    full, none, null, no_text, no_number = decoded(
        spark,
        [sent, None, [("trace-id", None)], [("trace-id", b"\xff")], [("retry.count", b"many")]],
    )
    assert (full.trace, full.raw, full.every, full["first"]) == ("ü", "ü".encode(), ["a", "ü"], "A")
    assert (full.tries, full.headers, full[ERROR]) == (3, 7, None)
    assert full["at"].timestamp() == dt.datetime(2026, 11, 29, 10, tzinfo=dt.UTC).timestamp()
    assert (none.trace, none.raw, none.every, none["first"], none[ERROR]) == (None, None, None, None, None)
    assert (null.trace, null.raw, null.every, null[ERROR]) == (None, None, [None], None)
    assert (no_text[ERROR], no_text[FIELD]) == ("malformed", "$headers.trace-id")
    assert no_text[DETAIL] == "a header 'trace-id' cannot be read as string"
    assert (no_number[ERROR], no_number[FIELD]) == ("malformed", "$headers.`retry.count`")
    assert "cannot be read as int" in no_number[DETAIL]


def test_a_row_may_be_identified_by_headers(spark: SparkSession) -> None:
    (row,) = decoded(
        spark, [[("trace-id", b"1"), ("retry.count", b"2")]], mode="upsert", identifier=["trace", "tries"],
        deletes="ignore",
    )  # fmt: skip
    assert (row.trace, row.tries, row[ERROR]) == ("1", 2, None)
