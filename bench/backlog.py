"""(a) A JSON backlog through stage, check and publish, compared with other ways from Kafka into Iceberg.

They are a hand-written Structured Streaming job, Flink, and Kafka Connect's sink.
"""

from __future__ import annotations

import time
from typing import Any

from bench import feed, peers
from bench.lab import SCHEMA, Lab, contract, judge, say

TOPIC, FIRST = "backlog", "first"
SPARK_DEFAULTS = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
    "spark.sql.iceberg.planning.preserve-data-grouping": "false",
    "spark.scheduler.mode": "FIFO",
}
UNCAPPED, CAPPED, STREAMING = "no cap", "capped", "5 s"
Found = dict[tuple[str, str, str], dict[str, Any]]
"""What was found, by mode, batches, and who wrote."""


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:
    """Produce one backlog, ingest it with each writer in separate processes, and compare with the targets."""
    count = records or (300_000 if quick else 5_000_000)
    keys = max(count // 5 // 4, 1) * 4
    produce(lab, count, keys)
    found: Found = {}
    for mode, rows in (("append", count), ("upsert", keys)):
        found |= measure_mode(lab, mode, count, rows, tuned=not quick)
    targets(found)


def produce(lab: Lab, count: int, keys: int) -> None:
    """Fill the topic, and make the class archive of Sluice's driver."""
    say(f"\n(a) backlog: {count:,} JSON records of 100 B, {keys:,} distinct keys, 4 partitions")
    feed.create(lab.broker.bootstrap, [TOPIC, FIRST])
    feed.backlog(lab.broker.bootstrap, FIRST, 10_000, 2_000)
    _one(lab, "sluice", "upsert", 10_000, FIRST)  # the first run creates the class archive
    began = time.monotonic()
    feed.backlog(lab.broker.bootstrap, TOPIC, count, keys)
    say(f"    produced in {time.monotonic() - began:.0f} s")


def measure_mode(lab: Lab, mode: str, count: int, rows: int, *, tuned: bool = True) -> Found:
    """Ingest the backlog with each writer in one mode, and print each result.

    Args:
        lab: The place for measurements.
        mode: `append` or `upsert`.
        count: The records of the topic.
        rows: The rows of a right table.
        tuned: Whether the hand-written job also runs with Sluice's settings.

    Raises:
        SystemExit: A table has another number of rows.
    """
    found: Found = {}
    # "by hand" runs on the defaults of Spark and the JVM, "tuned" with Sluice's settings.
    spark_writers = ("sluice", "by hand", "tuned") if tuned else ("sluice", "by hand")
    caps = {UNCAPPED: count, CAPPED: max(count // 5, 1)}
    say(f"    {mode}; capped: at most {caps[CAPPED]:,} records per batch or trigger (maxOffsetsPerTrigger)")
    for cap_name, cap in caps.items():
        for who in spark_writers:
            found[mode, cap_name, who] = _one(lab, who, mode, cap)
            _report(mode, cap_name, who, found[mode, cap_name, who], count, rows)
    for who in peers.fetched(peers.OF_MODE[mode]):
        found[mode, STREAMING, who] = peers.copy(lab, who, TOPIC, count, upsert=mode == "upsert")
        _report(mode, STREAMING, who, found[mode, STREAMING, who], count, rows)
    return found


def _report(mode: str, batches: str, who: str, found: dict[str, Any], count: int, rows: int) -> None:
    if found["rows"] != rows:
        raise SystemExit(f"{who}, {mode}: {found['rows']} rows instead of {rows}")
    whole = found["whole"]
    parts = ", ".join(f"{k} {v:.1f}" for k, v in found["parts"].items())
    say(
        f"    {mode:7} {batches:7} {who:8} {found['seconds']:6.1f} s {count / found['seconds']:10,.0f} records/s   "
        f"CPU {found['cpu']:5.1f} s; whole processes {whole.seconds:6.1f} s, CPU {whole.cpu:5.1f} s   {parts}"
    )


def targets(found: Found) -> None:
    """Print each target with what was reached."""

    def cpu(mode: str, other: str, batches: str) -> float | None:
        """Sluice's CPU time in whole processes, in that of another writer."""
        if (mode, batches, other) not in found:
            return None
        return float(found[mode, CAPPED, "sluice"]["whole"].cpu / found[mode, batches, other]["whole"].cpu)

    def rate(cap_name: str) -> float:
        """Sluice's records per second from a ready session, in those of the hand-written MERGE."""
        return float(found["upsert", cap_name, "by hand"]["seconds"] / found["upsert", cap_name, "sluice"]["seconds"])

    judge("append, capped: CPU, whole processes, in Flink's", cpu("append", peers.FLINK, STREAMING), most=1.1)
    judge("append, capped: CPU, whole processes, in that by hand", cpu("append", "by hand", CAPPED), most=0.8)
    judge("upsert, capped: rate, in that of MERGE by hand", rate(CAPPED), least=2.5)
    judge("upsert, capped: CPU, whole processes, in Flink's", cpu("upsert", peers.FLINK, STREAMING), most=1.0)
    judge("upsert, one batch: rate, in that of MERGE by hand", rate(UNCAPPED), least=1.7)


def _one(lab: Lab, who: str, mode: str, cap: int, topic: str = TOPIC) -> dict[str, Any]:
    lake = lab.lake(tuned=who != "by hand")
    contract(lake, "db.target", topic, mode=mode, limits={"records_per_batch": cap, "seconds_per_run": 3000})
    found = lab.drive(lake, "bench.backlog", who=who, what=mode, cap=cap)
    lab.drop(lake)
    return {**found, "whole": lab.whole}


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
