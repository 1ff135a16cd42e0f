"""(a) A JSON backlog through stage, check and publish, compared with a hand-written Structured Streaming job."""

from __future__ import annotations

import time
from typing import Any

from bench import feed
from bench.lab import SCHEMA, Lab, contract, say

TOPIC, FIRST = "backlog", "first"
SPARK_DEFAULTS = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
    "spark.sql.iceberg.planning.preserve-data-grouping": "false",
    "spark.scheduler.mode": "FIFO",
}


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Produce one backlog and ingest it with each writer, with and without a cap, each in a separate driver."""
    count = records or (300_000 if quick else 5_000_000)
    keys = max(count // 5 // 4, 1) * 4
    say(f"\n(a) backlog: {count:,} JSON records of 100 B, {keys:,} distinct keys, 4 partitions")
    feed.create(lab.broker.bootstrap, [TOPIC, FIRST])
    feed.backlog(lab.broker.bootstrap, FIRST, 10_000, 2_000)
    _one(lab, "sluice", "upsert", 10_000, FIRST)  # the first run creates the class archive
    began = time.monotonic()
    feed.backlog(lab.broker.bootstrap, TOPIC, count, keys)
    say(f"    produced in {time.monotonic() - began:.0f} s")
    caps = {"no cap": count, "capped": max(count // 5, 1)}
    say(f"    capped: at most {caps['capped']:,} records per batch or trigger (maxOffsetsPerTrigger)")
    for mode, expected, target in (("append", count, 1.0), ("upsert", keys, 2.0)):
        for cap_name, cap in caps.items():
            rate: dict[str, float] = {}
            # "by hand" runs on the defaults of Spark and the JVM, "tuned" with Sluice's settings.
            for who in ("sluice", "by hand") if quick else ("sluice", "by hand", "tuned"):
                found = _one(lab, who, mode, cap)
                if found["rows"] != expected:
                    raise SystemExit(f"{who}, {mode}: {found['rows']} rows instead of {expected}")
                rate[who] = count / found["seconds"]
                parts = ", ".join(f"{k} {v:.1f}" for k, v in found["parts"].items())
                say(
                    f"    {mode:7} {cap_name:7} {who:8} {found['seconds']:6.1f} s {rate[who]:10,.0f} records/s   "
                    f"CPU {found['cpu']:.0f} s   {parts}"
                )
            ratios = ", ".join(f"{rate['sluice'] / r:.2f} x {who}" for who, r in rate.items() if who != "sluice")
            say(f"    {mode:7} {cap_name:7} {ratios} (target {target} x by hand)")


def _one(lab: Lab, who: str, mode: str, cap: int, topic: str = TOPIC) -> Any:
    lake = lab.lake(tuned=who != "by hand")
    contract(lake, "db.target", topic, mode=mode, limits={"records_per_batch": cap, "seconds_per_run": 3000})
    found = lab.drive(lake, "bench.backlog", who=who, what=mode, cap=cap)
    lab.drop(lake)
    return found


def main(who: str, what: str, cap: int) -> dict[str, Any]:
    """Run one of the writers in the driver; return its seconds and the table's rows."""
    from bench.spark import cpu_seconds, run, session

    spark = session(SPARK_DEFAULTS if who == "by hand" else None)
    spark.range(1000).selectExpr("sum(id)").collect()
    began, burnt = time.monotonic(), cpu_seconds()
    parts: dict[str, float] = {}
    if who == "sluice":
        parts = run(spark, "bench")
    else:
        _create(spark)
        (_stream if what == "append" else _merge)(spark, cap)
    seconds, cpu = time.monotonic() - began, cpu_seconds() - burnt
    return {"seconds": seconds, "cpu": cpu, "parts": parts, "rows": spark.table("lake.db.target").count()}


def _create(spark: Any) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    spark.sql(
        f"CREATE TABLE lake.db.target (id STRING, {SCHEMA}, _kafka_topic STRING, _kafka_partition INT, "
        "_kafka_offset BIGINT, _kafka_timestamp TIMESTAMP) USING iceberg"
    )


def _source(spark: Any, cap: int) -> Any:
    import os

    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", cap)
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


def _stream(spark: Any, cap: int) -> None:
    import os

    writer = _typed(_source(spark, cap)).writeStream.format("iceberg").outputMode("append").trigger(availableNow=True)
    writer.option("checkpointLocation", os.environ["BENCH_FOLDER"] + "/checkpoint").toTable(
        "lake.db.target"
    ).awaitTermination()


def _merge(spark: Any, cap: int) -> None:
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

    stream = _source(spark, cap).writeStream.foreachBatch(batch).trigger(availableNow=True)
    stream.option("checkpointLocation", os.environ["BENCH_FOLDER"] + "/checkpoint").start().awaitTermination()
