"""Stage: read exactly the batch's offset ranges from Kafka, once, into the topic's staging table.

The raw bytes land as they are, with their coordinates. The commit carries the ranges and the topic's cursor after them.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.batch import RUN_ID, STEP, Batch
from sluice.errors import AuditError, BatchOrderError, OffsetsMissingError, PlanLostError, TopicRecreatedError
from sluice.iceberg import cursor, record_times, refs, snapshots, table_names, tables
from sluice.ingest import librdkafka_source
from sluice.ingest.landing import Attempt, Context
from sluice.kafka import broker, java_settings, login
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger

log = logging.getLogger(__name__)

# Spark asks for the partition's bounds after each poll, which throws away what was fetched ahead. With 500 records
# a poll, Kafka's default, a megabyte is fetched ten times over: take all that a fetch brought. At the topic's end the
# fetch ahead waits for records to come, half a second by default, and the question for the bounds waits behind it, in
# each task; what a batch reads is there already. A user's settings win.
FETCH = {
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.wait.ms": "10",
}


@dataclass(frozen=True)
class Staged:
    """The outcome.

    Attributes:
        snapshot_id: the one that holds the batch; this, `records` and `span` are None where it was staged before.
        span: the least and the greatest timestamp of its records; None where it has none.
        commit_seconds: of `seconds`, how long the commit took.
    """

    batch: Batch
    snapshot_id: int | None
    records: int | None
    seconds: float
    span: tuple[datetime, datetime] | None = None
    commit_seconds: float | None = None


def read(spark: SparkSession, kafka: dict[str, str], batch: Batch) -> DataFrame:
    """The batch's records as staging rows; nothing but committed records, and never fewer than Kafka can give.

    `failOnDataLoss` stays on: a record that vanishes while we read fails the read.
    """
    ranges = batch.to_read
    starts = {str(p): r.start for p, r in ranges.items()}
    ends = {str(p): r.end for p, r in ranges.items()}
    parallel = spark.sparkContext.defaultParallelism
    source = (
        spark.read.format("kafka")
        .options(**FETCH)
        .options(**kafka)
        .option("assign", json.dumps({batch.topic: sorted(ranges)}))
        .option("startingOffsets", json.dumps({batch.topic: starts}))
        .option("endingOffsets", json.dumps({batch.topic: ends}))
        .option("failOnDataLoss", "true")
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        # More tasks than partitions only where there is enough to read; each task opens a consumer.
        .option("minPartitions", str(parallel if batch.span > 100_000 else 1))
        .load()
    )
    return staging_rows(source, batch)


def staging_rows(source: DataFrame, batch: Batch) -> DataFrame:
    """What Spark's Kafka source gives, as rows of staging."""
    return source.select(
        F.lit(batch.seq).cast("bigint").alias("batch_seq"),
        F.col("partition").alias("_kafka_partition"),
        F.col("offset").alias("_kafka_offset"),
        F.col("timestamp").alias("_kafka_timestamp"),
        F.col("timestampType").alias("_kafka_timestamp_type"),
        "key",
        "value",
        "headers",
    )


def stage(context: Context, batch: Batch, *, gaps_expected: bool) -> Staged:
    """Stage one batch, or find that it is staged already. A slice of a backfill moves no cursor.

    Args:
        gaps_expected: the topic is compacted or written in transactions, so that offsets may be missing.

    Raises:
        OffsetsMissingError: offsets are missing where none may be; nothing became visible.
        BatchOrderError: the batch does not begin where the topic's cursor stands.
        PlanLostError: staging holds other offsets under the batch's number; nothing of this one became visible.
        FencedError: another writer staged meanwhile.
        AuditError: there are more records than offsets; nothing became visible.
        TopicRecreatedError: the topic is not the one that was planned; nothing became visible.
        TopicMissingError, BrokerUnavailableError: it is gone, or Kafka is, or does not let us in.
    """
    began = time.monotonic()
    identifier = table_names.staging(batch.topic)
    tables.ensure_staging(context.catalog, batch.topic)
    attempt = Attempt(context, identifier, batch)
    if batch.is_slice:
        if slices.is_staged(attempt.base, batch):
            return Staged(batch, None, None, time.monotonic() - began)
        refs.drop_branches(context.catalog, identifier, slices.leftovers(attempt.base, [batch]))
    else:
        last = cursor.staged(attempt.base, lambda: Ledger(context.catalog).remembered_batch(batch.topic))
        if last and last.seq >= batch.seq:
            _check_known(attempt.base, batch, last)
            return Staged(batch, None, None, time.monotonic() - began)
        _check_next(batch, last)
    with attempt:
        properties = {STEP: "stage", RUN_ID: context.run_id, **batch.properties()}
        session = context.session(properties)
        target = attempt.spark_branch
        if batch.to_read:
            rows = read(session, java_settings.spark_options(context.kafka), batch)
        else:
            rows = session.table(table_names.spark_name(context.catalog_name, identifier)).limit(0)
        try:
            _write(rows, target)
        except Exception as error:
            if refusal := login.spark_refusal(error):
                raise refusal from error
            if librdkafka_source.OVERFLOW not in str(error):
                raise
            log.warning("stage   %s: a record's timestamp is beyond the year 294247; reading by librdkafka", batch)
            _write(staging_rows(librdkafka_source.load(session, context.kafka, batch), batch), target)
        snapshot = attempt.result()
        added = int(snapshots.summary(snapshot).get("added-records", "0"))
        if added > batch.span:
            raise AuditError(
                f"{added} records were written for {batch.span} offsets.", topic=batch.topic, batch=batch.seq
            )
        if added < batch.span and not gaps_expected:
            raise _missing(session.table(target).where(F.col("batch_seq") == batch.seq), batch, added)
        span = record_times.span(attempt.base, snapshot)
        if batch.to_read:
            _check_same(context, batch)
        attempt.land()
    return Staged(batch, snapshot.snapshot_id, added, time.monotonic() - began, span, attempt.commit_seconds)


def _write(rows: DataFrame, target: str) -> None:
    # All rows go to one partition of the table: there is nothing to sort them by.
    rows.writeTo(target).option("fanout-enabled", "true").append()


def _check_known(staging: Table, batch: Batch, last: Batch) -> None:
    """What was staged under the number is this batch: after a lost ledger, another plan may have given it out."""
    told = cursor.staged_batches(staging, batch.seq - 1).get(batch.seq)
    there = told[0] if told else last
    if there.seq == batch.seq and there != batch:
        raise PlanLostError(
            f"Staging holds {there}: another plan gave out the number.",
            batch=str(batch),
            way_out="Nothing to do: the next run goes by what is staged.",
        )


def _check_same(context: Context, batch: Batch) -> None:
    """The topic that was read is the one of the plan: an application goes on for minutes after it looked."""
    now = broker.topic_id(context.client, batch.topic)
    if now != batch.topic_id:
        raise TopicRecreatedError(
            "The topic was made anew while it was read; nothing of it became visible.",
            topic=batch.topic,
            batch=batch.seq,
            was=batch.topic_id,
            now=now,
        )


def _check_next(batch: Batch, last: Batch | None) -> None:
    at = last.next_offsets if last else {}
    # All partitions, for a batch need not read each; one that was added since begins at 0.
    apart = {p: (at.get(p, 0), start) for p, start in sorted(batch.starts.items()) if last and start != at.get(p, 0)}
    if apart:
        raise BatchOrderError(
            f"The batch does not begin at the topic's cursor: {{partition: (cursor, start)}} {apart}.",
            topic=batch.topic,
            batch=batch.seq,
        )


def _missing(rows: DataFrame, batch: Batch, added: int) -> OffsetsMissingError:
    """The error with the exact holes of each partition, at most ten of them."""
    from pyspark.sql import Window

    by_partition = Window.partitionBy("_kafka_partition").orderBy("_kafka_offset")
    ends = rows.sparkSession.createDataFrame(
        [(p, r.start - 1, r.end) for p, r in batch.to_read.items()], "p int, first bigint, last bigint"
    )
    marks = (
        rows.select("_kafka_partition", "_kafka_offset")
        .union(ends.select("p", "first"))
        .union(ends.select("p", "last"))
    )
    following = marks.withColumn("following", F.lead("_kafka_offset").over(by_partition))
    holes = following.where(F.col("following") - F.col("_kafka_offset") > 1).orderBy(
        "_kafka_partition", "_kafka_offset"
    )
    found = [f"partition {h[0]} [{h[1] + 1}, {h[2]})" for h in holes.limit(10).collect()]
    return OffsetsMissingError(
        f"{batch.span - added} offsets are missing: {'; '.join(found)}.", topic=batch.topic, batch=batch.seq
    )
