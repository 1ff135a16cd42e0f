"""Stage: read a batch's exact offset ranges from Kafka, once, into the topic's staging table.

Raw bytes are stored unchanged, with their coordinates. The commit carries the ranges and the topic's cursor after them.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from sluice import timestamps
from sluice.batch import LEADER_EPOCHS, RUN_ID, STEP, Batch
from sluice.errors import AuditError, BatchOrderError, OffsetsMissingError, PlanLostError, TopicRecreatedError
from sluice.formats.internal_columns import TIMESTAMP_MS
from sluice.formats.logical_types import within_calendar
from sluice.iceberg import cursor, record_times, refs, snapshots, table_names, tables
from sluice.ingest import compat, librdkafka_source
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from sluice.kafka import broker, java_settings, kerberos, login
from sluice.ledger import slices
from sluice.offsets import Offsets, encode_offsets

log = logging.getLogger(__name__)

# Spark asks for the partition's offset bounds after each poll, which discards what was prefetched. With 500 records per
# poll, Kafka's default, a megabyte is fetched ten times over, so a poll takes all that a fetch brought. At the topic's
# end the prefetch waits for new records (0.5 s by default), which a batch does not need. A user's settings win.
FETCH = {
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.wait.ms": "10",
}


@dataclass(frozen=True)
class StageResult:
    """What staging a batch came to.

    Attributes:
        snapshot_id: the snapshot that holds the batch. This, `records` and `span` are None if it was staged before.
        span: the least and the greatest timestamp of its records; None without records.
        commit_seconds: how much of `seconds` the commit took.
    """

    batch: Batch
    snapshot_id: int | None
    records: int | None
    seconds: float
    span: tuple[datetime, datetime] | None = None
    commit_seconds: float | None = None


def read_from_kafka(spark: SparkSession, kafka: dict[str, str], batch: Batch) -> DataFrame:
    """Read the batch's committed records as rows of staging.

    `failOnDataLoss` is on: a record that disappears during the read fails it.

    Raises:
        ConfigError: the driver's Java has no Kerberos, which these settings need; Kafka's client would only time out.
    """
    by_kerberos = kafka.get("kafka.sasl.mechanism") == kerberos.MECHANISM
    if by_kerberos and not compat.has_java_module(spark, kerberos.JAVA_MODULE):
        raise kerberos.missing_module_error()
    ranges = batch.ranges_to_read
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
    return to_staging_rows(librdkafka_source.with_exact_timestamps(source), batch)


def to_staging_rows(source: DataFrame, batch: Batch) -> DataFrame:
    """Convert rows of Spark's Kafka source to rows of staging.

    Args:
        source: has Kafka's number as `millis`, too; `timestamp` is null where it can't hold that.
        batch: the batch.
    """
    millis = F.col("millis")
    # PyIceberg can read no table with times beyond these years.
    time = F.when(millis != timestamps.NO_TIMESTAMP, within_calendar(F.col("timestamp"), TimestampType()))
    return source.select(
        F.lit(batch.seq).cast("bigint").alias("batch_seq"),
        F.col("partition").alias("_kafka_partition"),
        F.col("offset").alias("_kafka_offset"),
        time.alias("_kafka_timestamp"),
        F.col("timestampType").alias("_kafka_timestamp_type"),
        "key",
        "value",
        "headers",
        F.when(time.isNull(), millis).alias(TIMESTAMP_MS),
    )


def stage(context: Context, batch: Batch, *, gaps_expected: bool, leader_epochs: Offsets | None = None) -> StageResult:
    """Stage one batch, unless it is staged already. On an error nothing becomes visible.

    Args:
        batch: a batch, or a slice of a backfill, which moves no cursor.
        gaps_expected: offsets may be missing, because the topic is compacted or written in transactions.
        leader_epochs: per partition the epoch of its leader before the read, by which the next plan notices that the
            log was truncated since.

    Raises:
        OffsetsMissingError: offsets are missing, and `gaps_expected` is false.
        BatchOrderError: the batch does not begin at the topic's cursor.
        PlanLostError: staging holds other offsets under the batch's number.
        FencedError: another writer staged during the write.
        AuditError: there are more records than offsets.
        TopicRecreatedError: the topic is not the one that was planned.
        TopicMissingError, BrokerUnavailableError: Kafka does not have the topic, or does not answer.
    """
    began = time.monotonic()
    identifier = table_names.staging(batch.topic)
    tables.ensure_staging(context.catalog, batch.topic)
    write = BranchWrite(context, identifier, batch)
    if batch.is_slice:
        if slices.is_slice_staged(write.base, batch):
            return StageResult(batch, None, None, time.monotonic() - began)
        refs.drop_branches(context.catalog, identifier, slices.find_slice_branches(write.base, [batch]))
    else:
        last = cursor.read_staging_cursor(write.base)
        if last and last.seq >= batch.seq:
            _check_same_batch(write.base, batch, last)
            return StageResult(batch, None, None, time.monotonic() - began)
        _check_next(batch, last)
    properties = {STEP: "stage", RUN_ID: context.run_id, **batch.properties(), **_epoch_properties(leader_epochs)}
    with write, context.session(properties) as session:
        target = write.spark_branch
        if batch.ranges_to_read:
            rows = read_from_kafka(session, java_settings.spark_options(context.kafka), batch)
        else:
            rows = session.table(table_names.spark_name(context.catalog_name, identifier)).limit(0)
        try:
            _write(rows, target)
        except Exception as error:
            if refusal := login.login_error_from_spark(error):
                raise refusal from error
            if not librdkafka_source.is_needed(error):
                raise
            log.warning("stage   %s: Spark can't read a record's timestamp; reading with librdkafka instead", batch)
            _write(to_staging_rows(librdkafka_source.read_batch(session, context.kafka, batch), batch), target)
        snapshot = write.written_snapshot()
        added = int(snapshots.summary(snapshot).get("added-records", "0"))
        if added > batch.span:
            raise AuditError(
                f"{added} records were written for {batch.span} offsets.", topic=batch.topic, batch=batch.seq
            )
        if added < batch.span and not gaps_expected:
            raise _missing_offsets_error(session.table(target).where(F.col("batch_seq") == batch.seq), batch, added)
        span = record_times.record_time_range(write.base, snapshot)
        if batch.ranges_to_read:
            _check_same_topic(context, write.base, batch)
        write.fast_forward_main()
    return StageResult(batch, snapshot.snapshot_id, added, time.monotonic() - began, span, write.commit_seconds)


def _write(rows: DataFrame, target: str) -> None:
    # All rows go to one partition of the table, so they need no sort.
    rows.writeTo(target).option("fanout-enabled", "true").append()


def _epoch_properties(leader_epochs: Offsets | None) -> dict[str, str]:
    return {LEADER_EPOCHS: encode_offsets(leader_epochs)} if leader_epochs else {}


def _check_same_batch(staging: Table, batch: Batch, last: Batch) -> None:
    """Refuse if staging holds another batch of that number: after the ledger was lost, two plans may use one number."""
    staged = cursor.read_staged_batches(staging, batch.seq - 1).get(batch.seq)
    found = staged[0] if staged else last
    if found.seq == batch.seq and found != batch:
        raise PlanLostError(
            f"Staging holds {found}, which another plan gave the same number.",
            batch=str(batch),
            next_step="No action: the next run continues from what is staged.",
        )


def _check_same_topic(context: Context, staging: Table, batch: Batch) -> None:
    """Refuse if the topic was recreated since it was planned: an application runs for minutes."""
    now = cursor.known_topic_id(staging, broker.fetch_topic_id(context.client, batch.topic))
    if now != batch.topic_id:
        raise TopicRecreatedError(
            "The topic was deleted and created again while it was read; nothing of it became visible.",
            topic=batch.topic,
            batch=batch.seq,
            was=batch.topic_id,
            now=now,
        )


def _check_next(batch: Batch, last: Batch | None) -> None:
    cursor_at = last.next_offsets if last else {}
    # All partitions, also those that the batch does not read; one that was added since starts at 0.
    differing = {
        p: (cursor_at.get(p, 0), start)
        for p, start in sorted(batch.start_offsets.items())
        if last and start != cursor_at.get(p, 0)
    }
    if differing:
        raise BatchOrderError(
            f"The batch does not begin at the topic's cursor: {{partition: (cursor, start)}} {differing}.",
            topic=batch.topic,
            batch=batch.seq,
        )


def _missing_offsets_error(rows: DataFrame, batch: Batch, added: int) -> OffsetsMissingError:
    """The error with the exact missing ranges by partition, at most ten."""
    by_partition = Window.partitionBy("_kafka_partition").orderBy("_kafka_offset")
    ends = rows.sparkSession.createDataFrame(
        [(p, r.start - 1, r.end) for p, r in batch.ranges_to_read.items()], "p int, first bigint, last bigint"
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
