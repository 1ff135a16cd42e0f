"""(a) A JSON backlog through stage, check and publish, beside Structured Streaming as people write it by hand."""

from __future__ import annotations

import time
from typing import Any

from bench import feed
from bench.lab import SCHEMA, Lab, contract, say

TOPIC = "backlog"
SPARK_DEFAULTS = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
    "spark.sql.iceberg.planning.preserve-data-grouping": "false",
    "spark.scheduler.mode": "FIFO",
}


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Produce one backlog and run it through each of the four, each in a driver of its own."""
    count = records or (300_000 if quick else 5_000_000)
    keys = max(count // 5 // 4, 1) * 4
    say(f"\n(a) backlog: {count:,} JSON records of 100 B, {keys:,} distinct keys, 4 partitions")
    feed.create(lab.broker.bootstrap, [TOPIC])
    began = time.monotonic()
    feed.backlog(lab.broker.bootstrap, TOPIC, count, keys)
    say(f"    produced in {time.monotonic() - began:.0f} s")
    rate: dict[str, float] = {}
    # What is written by hand runs on Spark's own defaults; "tuned" gives it the session settings that Sluice has.
    for what, expected, writers in (
        ("append", count, ("sluice", "by hand")),
        ("upsert", keys, ("sluice", "by hand") if quick else ("sluice", "by hand", "tuned")),
    ):
        for who in writers:
            lake = lab.lake()
            contract(lake, "db.target", TOPIC, mode=what, limits={"records_per_batch": count, "seconds_per_run": 3000})
            found = lab.drive(lake, "bench.backlog", who=who, what=what)
            lab.drop(lake)
            if found["rows"] != expected:
                raise SystemExit(f"{who}, {what}: {found['rows']} rows instead of {expected}")
            rate[f"{who} {what}"] = count / found["seconds"]
            parts = ", ".join(f"{k} {v:.1f}" for k, v in found["parts"].items())
            seconds, cpu = found["seconds"], found["cpu"]
            say(f"    {what:7} {who:8} {seconds:6.1f} s {count / seconds:10,.0f} records/s   CPU {cpu:.0f} s   {parts}")
    say(f"    append: {rate['sluice append'] / rate['by hand append']:.2f} x the plain streaming append (target 1.0)")
    say(f"    upsert: {rate['sluice upsert'] / rate['by hand upsert']:.2f} x foreachBatch + MERGE (target 2.0)")
    if not quick:
        say(f"    upsert: {rate['sluice upsert'] / rate['tuned upsert']:.2f} x the same with Sluice's session settings")


def main(who: str, what: str) -> dict[str, Any]:
    """In the driver: one of the four."""
    from bench.spark import cpu_seconds, run, session

    spark = session(SPARK_DEFAULTS if who == "by hand" else None)
    spark.range(1000).selectExpr("sum(id)").collect()
    began, burnt = time.monotonic(), cpu_seconds()
    parts: dict[str, float] = {}
    if who == "sluice":
        parts = run(spark, "bench")
    else:
        _create(spark)
        (_stream if what == "append" else _merge)(spark)
    seconds, cpu = time.monotonic() - began, cpu_seconds() - burnt
    return {"seconds": seconds, "cpu": cpu, "parts": parts, "rows": spark.table("lake.db.target").count()}


def _create(spark: Any) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    spark.sql(
        f"CREATE TABLE lake.db.target (id STRING, {SCHEMA}, _kafka_topic STRING, _kafka_partition INT, "
        "_kafka_offset BIGINT, _kafka_timestamp TIMESTAMP) USING iceberg"
    )


def _source(spark: Any) -> Any:
    import os

    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )


def _typed(frame: Any) -> Any:
    from pyspark.sql import functions as F

    parsed = F.from_json(F.col("value").cast("string"), SCHEMA)
    return frame.select(
        F.col("key").cast("string").alias("id"),
        parsed.alias("v"),
        F.col("topic").alias("_kafka_topic"),
        F.col("partition").alias("_kafka_partition"),
        F.col("offset").alias("_kafka_offset"),
        F.col("timestamp").alias("_kafka_timestamp"),
    ).select("id", "v.*", "_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")


def _stream(spark: Any) -> None:
    import os

    writer = _typed(_source(spark)).writeStream.format("iceberg").outputMode("append").trigger(availableNow=True)
    writer.option("checkpointLocation", os.environ["BENCH_FOLDER"] + "/checkpoint").toTable(
        "lake.db.target"
    ).awaitTermination()


def _merge(spark: Any) -> None:
    import os

    def batch(frame: Any, _: int) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        newest = Window.partitionBy("id").orderBy(F.col("_kafka_offset").desc())
        rows = _typed(frame).withColumn("rank", F.row_number().over(newest)).where("rank = 1").drop("rank")
        rows.createOrReplaceTempView("batch")
        frame.sparkSession.sql(
            "MERGE INTO lake.db.target t USING batch s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    stream = _source(spark).writeStream.foreachBatch(batch).trigger(availableNow=True)
    stream.option("checkpointLocation", os.environ["BENCH_FOLDER"] + "/checkpoint").start().awaitTermination()
