"""MERGE: deduplication, the order of changes, and the bounds in the ON clause, on small frames."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.formats import internal_columns
from sluice.iceberg.sql_literals import sql_literal
from sluice.ingest import merge
from sluice.offsets import OffsetRange
from tests.support.lake import Lake
from tests.support.thorough import only_thorough, usual

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]


def contract(**changes: Any) -> Contract:
    columns = [{"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "long", "required": True}]
    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "o", "mode": "upsert", "identifier": ["id"]}
    return Contract.model_validate({**body, "columns": columns, **changes})


def frame(spark: SparkSession, *rows: tuple[str, int, int, int]) -> Any:
    """(id, n, partition, offset)."""
    made = spark.createDataFrame(list(rows), "id string, n bigint, _kafka_partition int, _kafka_offset bigint")
    return made.select(
        "id",
        "n",
        F.lit("t").alias("_kafka_topic"),
        "_kafka_partition",
        "_kafka_offset",
        F.current_timestamp().alias("_kafka_timestamp"),
        F.lit("u").alias(internal_columns.OP),
    )


def test_what_lies_within_many_ranges_is_found_by_one_short_condition(spark: SparkSession) -> None:
    ranges = {p: OffsetRange(10 * p, 10 * p + 1 + p % 3) for p in range(0, 2000, 2)}
    many = Batch("t", "id", -1, ranges, {})
    assert "OR" not in merge.in_ranges(many)
    places = [(p, 10 * p + n) for p in (0, 1, 2, 64, 1000, 1998, 1999, 2000) for n in (-1, 0, 1, 2)]
    rows = frame(spark, *(("a", 1, *place) for place in places)).withColumn("_kafka_topic", F.lit("t"))
    found = rows.where(F.expr(merge.in_ranges(many))).select("_kafka_partition", "_kafka_offset").collect()
    assert sorted(map(tuple, found)) == [(p, n) for p, n in places if p in ranges and n in range(*ranges[p])]
    other = rows.withColumn("_kafka_topic", F.lit("u")).where(F.expr(merge.in_ranges(many)))
    assert other.isEmpty()


def test_the_last_version_of_each_key_is_kept(spark: SparkSession) -> None:
    rows = frame(spark, ("a", 1, 0, 5), ("b", 2, 1, 7), ("a", 3, 0, 9), ("a", 2, 0, 6), ("b", 9, 1, 8), ("c", 4, 0, 1))
    assert sorted((r.id, r.n) for r in merge.keep_latest(rows, contract()).collect()) == [("a", 3), ("b", 9), ("c", 4)]


@pytest.mark.parametrize(
    "apart",
    [
        [("a", 1, 0, 5), ("a", 2, 1, 5)],
        [("a", 1, 0, 1), ("a", 2, 0, 9), ("a", 3, 1, 4)],
        [("a", 1, 1, 1), ("a", 2, 0, 9), ("a", 3, 1, 4)],
        [("b", 1, 0, 1), ("a", 1, 2, 1), ("a", 2, 2, 2), ("a", 3, 2, 3), ("a", 4, 1, 90)],
    ],
)
def test_a_key_in_two_partitions_fails_by_name(spark: SparkSession, apart: list[tuple[str, int, int, int]]) -> None:
    with pytest.raises(Exception, match=merge.ORDER_MARK):
        merge.keep_latest(frame(spark, *apart), contract()).collect()


def test_an_order_of_its_own_decides_across_partitions(spark: SparkSession) -> None:
    rows = frame(spark, ("a", 7, 0, 1), ("a", 2, 1, 99))
    assert [r.n for r in merge.keep_latest(rows, contract(order=["n"], deletes="ignore")).collect()] == [7]


@pytest.mark.parametrize(("how", "join"), [("broadcast", "BroadcastHashJoin"), ("merge", "SortMergeJoin")])
@pytest.mark.parametrize("live", [True, False])
def test_a_key_that_was_deleted_in_another_partition_fails_by_name(
    spark: SparkSession, how: str, join: str, live: bool
) -> None:
    """However the two are joined; one that was deleted in its own is left out where older rows are read again."""
    rows = frame(spark, ("a", 1, 0, 5), ("b", 2, 1, 7), ("c", 3, 0, 8))

    def left(*deleted: tuple[str, int, int], **changes: Any) -> list[str]:
        told = frame(spark, *[(key, offset, partition, offset) for key, partition, offset in deleted]).hint(how)
        own = contract(**changes)
        found = merge.drop_deleted(rows, own, told, merge.find_key_bounds(rows, own, 3), live=live)
        assert join in str(found._jdf.queryExecution().executedPlan())  # type: ignore[operator]
        return sorted(r.id for r in found.collect())

    same = [("a", 0, 9), ("b", 1, 3), ("d", 0, 8)]
    assert left(*same) == (["a", "b", "c"] if live else ["b", "c"])
    for apart in ("a", 1, 2), ("b", 0, 99):
        with pytest.raises(Exception, match=merge.ORDER_MARK):
            left(("c", 0, 1), apart)
    assert left(("a", 1, 0), ("b", 0, 99), order=["n"], deletes="ignore") == ["a", "c"]


@pytest.mark.parametrize("name", ["place", "a", "b"])
def test_keys_of_any_name_are_placed(spark: SparkSession, name: str) -> None:
    columns = [{"name": name, "type": "string", "source": "$key"}, {"name": "n", "type": "long"}]
    rows = frame(spark, ("x", 1, 0, 5), ("x", 2, 1, 7)).withColumnRenamed("id", name)
    told = merge.find_conflicts(rows, [], contract(identifier=[name], columns=columns))
    assert told == "t partition 0 offset 5 and t partition 1 offset 7"


@only_thorough("test_keys_next_to_the_least_number_are_bounded_by_equality_alone")
@pytest.mark.parametrize("inline", [merge.KEYS_INLINE, 0])
def test_keys_next_to_the_least_number_leave_the_others_findable(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(merge, "KEYS_INLINE", inline)
    it = lake()
    it.create_topic(1)
    least = {"long": 5 - (1 << 63), "int": 1 - (1 << 31), "decimal(9, 2)": "-9999999.99"}
    until = {"name": "until", "type": "timestamptz", "source": "$valid_to"}
    made = {}
    for kind, mode in ((k, m) for m in ("upsert", "history") for k in least if m == "upsert" or k == "long"):
        columns = [{"name": "id", "type": kind, "source": kind[:3]}, {"name": "n", "type": "long"}]
        columns += [until] if mode == "history" else []
        by, errors = ["truncate(10, id)"], {"max_ratio": 1.0}
        kept = {"identifier": ["id"], "deletes": "ignore", "partition_by": by, "errors": errors}
        made[it.contract(mode=mode, columns=columns, **kept)] = kind
    lowest = {k[:3]: v for k, v in least.items()}
    for n, keys in ((1, [dict.fromkeys(lowest, k) for k in (7, 8)]), (2, [dict.fromkeys(lowest, 7), lowest]),
                    (3, [lowest])):  # fmt: skip
        it.send((0, "k", {**key, "n": n}) for key in keys)
        assert {o["state"] for o in it.run().values()} == {"published"}
    for name, kind in made.items():
        rows = [(str(r["id"]), r["n"]) for r in it.rows(name) if r.get("until") is None]
        there = [] if kind not in ("long", "int") else [(str(least[kind]), 3)]
        one = "" if kind in ("long", "int") else ".00"
        assert sorted(rows) == sorted([(f"7{one}", 2), (f"8{one}", 1), *there]), name
        # A decimal that its partition has no room for is set apart, and stops nothing.
        assert [r["error_class"] for r in it.quarantined(name)] == ["misfit"] * 2 * (not there)


@pytest.mark.parametrize(("kind", "least"), [("int", -1), ("long", (1 << 31) - (1 << 63) - 1)])
def test_keys_next_to_the_least_number_are_bounded_by_equality_alone(
    spark: SparkSession, kind: str, least: int
) -> None:
    rows = spark.createDataFrame([(least,), (7,)], f"id {kind}")
    of_keys = contract(columns=[{"name": "id", "type": kind, "required": True}])
    (bound,) = merge.find_key_bounds(rows, of_keys, 2)
    assert bound.condition("t").split(" IN ")[0] == "t.`id`"
    assert merge.find_key_bounds(rows, of_keys, merge.KEYS_INLINE + 1) == []
    higher = rows.where(f"id > {least}").unionByName(rows.selectExpr(f"CAST({least + 1} AS {kind}) AS id"))
    (bound,) = merge.find_key_bounds(higher, of_keys, merge.KEYS_INLINE + 1)
    assert bound.condition("t").startswith("t.`id` >= ")


@pytest.mark.parametrize("records", [10, merge.KEYS_INLINE + 1])
def test_bounds_enclose_the_keys(spark: SparkSession, records: int) -> None:
    rows = frame(spark, ("b", 1, 0, 1), ("a'x", 1, 0, 2), ("ü", 1, 0, 3))
    target = spark.createDataFrame([("a",), ("a'x",), ("b",), ("c",), ("ü",), ("z",)], "id string").alias("t")
    bounds = merge.find_key_bounds(rows, contract(), records)
    expected = ["a'x", "b", "ü"] if records == 10 else ["a'x", "b", "c", "z", "ü"]
    assert sorted(r.id for r in target.where(" AND ".join(b.condition("t") for b in bounds)).collect()) == expected


TOP = chr(0x10FFFF)
LONG = 900_000


@pytest.mark.parametrize("records", [10, merge.KEYS_INLINE + 1])
@pytest.mark.parametrize("kind", ["string", "binary"])
@pytest.mark.parametrize("last", usual([f"c{TOP}"], ["c", "\ud7ff", f"c{TOP}", "c'"]))
def test_long_keys_are_bounded_by_what_they_begin_with(spark: SparkSession, records: int, kind: str, last: str) -> None:
    """Each was a literal several times over: 200 keys of 900 kB were more than a driver of 2 GB holds."""
    keys = {"b": "b" * LONG, "c": f"c{last[1:] * LONG}z" if len(last) > 1 else last * LONG, "m": "bb"}
    ends = {"a": "a", "d": TOP, "least": "a" * 300}
    made = spark.createDataFrame(list({**keys, **ends}.items()), "name string, id string")
    made = made.withColumn("id", F.col("id").cast(kind))
    columns = [{"name": "id", "type": kind, "required": True}]
    made_of = contract(columns=columns)
    bounds = merge.find_key_bounds(made.where(F.col("name").isin(list(keys))), made_of, records)
    assert sum(len(each) for b in bounds for each in b.values) < 10_000
    found = made.alias("t").where(" AND ".join(b.condition("t") for b in bounds)).collect()
    assert sorted(r.name for r in found) == ["b", "c", "m"]


@pytest.mark.parametrize(("kind", "key"), [("string", f"repeat('{TOP}', 300)"), ("binary", "unhex(repeat('ff', 300))")])
def test_a_long_key_that_none_can_be_above_leaves_the_target_unbounded(
    spark: SparkSession, kind: str, key: str
) -> None:
    rows = spark.range(1).select(F.expr(key).alias("id"))
    assert merge.find_key_bounds(rows, contract(columns=[{"name": "id", "type": kind, "required": True}]), 1) == []


def test_keys_that_are_many_bytes_together_are_bounded_by_two(spark: SparkSession) -> None:
    rows = spark.range(merge.KEYS_INLINE, numPartitions=2).select(F.expr("concat(id, repeat('x', 240))").alias("id"))
    (bound,) = merge.find_key_bounds(rows, contract(), merge.KEYS_INLINE)
    assert not bound.every
    assert [each.strip("x'") for each in bound.values] == ["0", "9"]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_bounds_enclose_days_and_moments_wherever_the_driver_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    kinds = {"day": "date", "at": "timestamptz", "local": "timestamp"}
    columns = [{"name": name, "type": kind, "required": True} for name, kind in kinds.items()]
    moments = [
        "DATE'2024-01-31', TIMESTAMP_LTZ'2024-01-31 00:30:00.000001Z', TIMESTAMP_NTZ'1969-12-31 23:59:59'",
        # Python's years end with 9999.
        "date_from_unix_date(3000000), timestamp_micros(260000000000000000L), TIMESTAMP_NTZ'+10001-01-01 00:00:00'",
    ]
    rows = spark.sql(f"SELECT * FROM VALUES ({'), ('.join(moments)}) AS t(day, at, local)")
    rows.createOrReplaceTempView("moments")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        bounds = merge.find_key_bounds(rows, contract(columns=columns, identifier=list(kinds)), 2)
    time.tzset()
    assert spark.table("moments").where(" AND ".join(b.condition("moments") for b in bounds)).count() == 2
    for name in kinds:
        later = rows.withColumn(name, F.col(name) + F.expr("INTERVAL 3 DAYS"))
        later.createOrReplaceTempView("moments")
        assert spark.table("moments").where(" AND ".join(b.condition("moments") for b in bounds)).count() == 0


@pytest.mark.parametrize("records", [10, merge.KEYS_INLINE + 1])
def test_a_key_that_is_there_in_part_does_not_widen_the_bounds(spark: SparkSession, records: int) -> None:
    columns = [{"name": name, "type": "string", "required": True} for name in ("id", "part")]
    rows = spark.createDataFrame([("b", "b"), ("z", None), (None, "z")], "id string, part string")
    bounds = merge.find_key_bounds(rows, contract(columns=columns, identifier=["id", "part"]), records)
    target = spark.createDataFrame([("b", "b"), ("z", "b"), ("b", "z")], "id string, part string").alias("t")
    assert [tuple(r) for r in target.where(" AND ".join(b.condition("t") for b in bounds)).collect()] == [("b", "b")]


def test_a_key_that_is_no_utf8_leaves_the_target_unbounded(spark: SparkSession) -> None:
    rows = frame(spark, ("a", 1, 0, 1)).withColumn("id", F.expr("CAST(X'ff61' AS STRING)"))
    assert merge.find_key_bounds(rows, contract(), 1) == []


def test_a_batch_without_keys_has_no_bounds(spark: SparkSession) -> None:
    rows = frame(spark, ("a", 1, 0, 1))
    assert merge.find_key_bounds(rows.where("false"), contract(), 1) == []
    assert merge.find_key_bounds(rows.where("false"), contract(), merge.KEYS_INLINE + 1) == []
    assert merge.find_key_bounds(rows.withColumn("id", F.lit(None).cast("string")), contract(), 1) == []


@pytest.mark.parametrize("text", ["order-0000000001", "", "it's", "a\\b", "ü", "${x}", "a;--", "x" * 300])
def test_text_literals_mean_the_text(spark: SparkSession, text: str) -> None:
    assert spark.range(1).select(F.expr(sql_literal(text)).alias("x")).collect()[0].x == text
