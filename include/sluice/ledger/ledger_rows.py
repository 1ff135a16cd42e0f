"""Rows of the ledger `sluice.offsets`: their schema, and conversions between rows, Arrow and batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, MapType, NestedField, StringType, TimestamptzType

from sluice.batch import Batch
from sluice.errors import LedgerError
from sluice.offsets import OffsetRange, Ranges

BatchKey = tuple[str, int]
"""Topic and batch number."""


class LedgerState(StrEnum):
    """What a ledger row records."""

    PLANNED = "planned"
    STAGED = "staged"
    PUBLISHED = "published"
    BLOCKED = "blocked"
    FAILED = "failed"
    RETRIED = "retried"
    SETTLED = "settled"
    GAP = "gap"
    ROLLED_BACK = "rolled_back"
    REPLAYED = "replayed"
    RETIRED = "retired"
    TOLERATED = "tolerated"


SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="when the row was written"),
    NestedField(2, "run_id", StringType(), doc="the Airflow run, or who ran the command"),
    NestedField(3, "topic", StringType(), required=True),
    NestedField(4, "topic_id", StringType(), doc="Kafka's id of the topic, new when it is created again"),
    NestedField(5, "batch_seq", LongType(), doc="the topic's batch number; below zero: a slice of a backfill"),
    NestedField(6, "partition", IntegerType(), doc="null in rows about a batch as a whole"),
    NestedField(7, "start_offset", LongType(), doc="first offset of the range"),
    NestedField(8, "end_offset", LongType(), doc="one past the last offset; equal to start where nothing is read"),
    NestedField(9, "state", StringType(), required=True, doc=", ".join(LedgerState)),
    NestedField(10, "table", StringType(), doc="the typed table that the row is about"),
    NestedField(
        11, "snapshots", MapType(14, StringType(), 15, LongType()), doc="table -> snapshot that holds the batch"
    ),
    NestedField(12, "records", LongType(), doc="records staged or published"),
    NestedField(13, "rejected", LongType(), doc="records sent to quarantine"),
    NestedField(16, "seconds", DoubleType(), doc="how long the step took"),
    NestedField(17, "error", StringType(), doc="why a table was blocked or failed, or an attempt was retried"),
    NestedField(
        18, "who", StringType(), doc="of an operator's decision or a backfill: who; or who wrote the row again"
    ),
    NestedField(
        19, "why", StringType(), doc="of an operator's decision or a backfill: the reason; replayed: what changed"
    ),
    NestedField(20, "oldest", TimestamptzType(), doc="staged: the least timestamp of the batch's records in Kafka"),
    NestedField(21, "newest", TimestamptzType(), doc="staged: the greatest"),
    NestedField(22, "unread", LongType(), doc="staged: the topic's offsets from this batch on, to Kafka's end by then"),
    NestedField(23, "commit_seconds", DoubleType(), doc="staged, published: of these, how long readers' commit took"),
    NestedField(24, "exception", StringType(), doc="the class of that error, with its package, in Python or Java"),
)
SPEC = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "topic"))


@dataclass(frozen=True)
class LedgerRow:
    """One line of the ledger; see `SCHEMA` for what each field means."""

    topic: str
    state: LedgerState
    topic_id: str | None = None
    batch_seq: int | None = None
    partition: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    table: str | None = None
    snapshots: Mapping[str, int] | None = None
    records: int | None = None
    rejected: int | None = None
    seconds: float | None = None
    error: str | None = None
    who: str | None = None
    why: str | None = None
    oldest: datetime | None = None
    newest: datetime | None = None
    unread: int | None = None
    commit_seconds: float | None = None
    exception: str | None = None
    run_id: str | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


def row_from_record(record: Mapping[str, Any]) -> LedgerRow:
    """Return a row of which these columns were read from the table."""
    converted = {"snapshots": dict(record.get("snapshots") or []), "state": LedgerState(record["state"])}
    return LedgerRow(**{**record, **converted})


def rows_to_arrow(rows: Iterable[LedgerRow], schema: pa.Schema, run_id: str) -> pa.Table:
    """Return rows as they are written to the table; those without a run id get `run_id`."""
    records = [
        {**asdict(row), "run_id": row.run_id or run_id, "snapshots": sorted((row.snapshots or {}).items())}
        for row in rows
    ]
    return pa.Table.from_pylist(records, schema=schema)


def rows_by_partition(row: LedgerRow, ranges: Ranges) -> list[LedgerRow]:
    """Return a row once per partition, with that partition's range."""
    return [replace(row, partition=p, start_offset=r.start, end_offset=r.end) for p, r in sorted(ranges.items())]


def plan_rows(
    batch: Batch, state: LedgerState = LedgerState.PLANNED, snapshots: Mapping[str, int] | None = None
) -> list[LedgerRow]:
    """Return a batch as ledger rows, one per partition; the range is empty if there is nothing to read."""
    row = LedgerRow(batch.topic, state, batch.topic_id, batch.seq, snapshots=snapshots)
    return rows_by_partition(row, {p: OffsetRange(s, batch.next_offsets[p]) for p, s in batch.start_offsets.items()})


def batches_from_rows(rows: Iterable[LedgerRow]) -> dict[BatchKey, Batch]:
    """Return the batches that `plan_rows` made into these rows.

    Raises:
        LedgerError: two rows give one partition of a batch different ranges.
    """
    batches, errors = split_batches(rows)
    for error in errors.values():
        raise error
    return batches


def split_batches(rows: Iterable[LedgerRow]) -> tuple[dict[BatchKey, Batch], dict[str, LedgerError]]:
    """Return the batches of all topics with consistent rows; and, by topic, the error of each other topic."""
    by_batch: dict[BatchKey, dict[int, LedgerRow]] = {}
    errors: dict[str, LedgerError] = {}
    for row in rows:
        if row.partition is None or row.batch_seq is None or row.state == LedgerState.GAP:
            continue
        first = by_batch.setdefault((row.topic, row.batch_seq), {}).setdefault(row.partition, row)
        if (first.start_offset, first.end_offset) != (row.start_offset, row.end_offset):
            error = LedgerError(
                "The ledger has two different ranges for one batch.",
                topic=row.topic,
                batch=row.batch_seq,
                partition=row.partition,
            )
            errors.setdefault(row.topic, error)
    consistent = {key: partitions for key, partitions in by_batch.items() if key[0] not in errors}
    return {key: _batch_from_partitions(*key, partitions) for key, partitions in consistent.items()}, errors


def _batch_from_partitions(topic: str, seq: int, partitions: Mapping[int, LedgerRow]) -> Batch:
    ranges = {p: OffsetRange(r.start_offset or 0, r.end_offset or 0) for p, r in sorted(partitions.items())}
    return Batch(
        topic=topic,
        topic_id=next(iter(partitions.values())).topic_id or "",
        seq=seq,
        ranges={p: r for p, r in ranges.items() if r.span},
        next_offsets={p: r.end for p, r in ranges.items()},
    )
