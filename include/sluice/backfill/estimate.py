"""Estimates of a backfill plan: records to read, rows in the table, time. In: the ranges. Out: numbers. No JVM."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table import FileScanTask, Table

from sluice.backfill.ranges import COORDINATES, RangeSources
from sluice.batch import Batch
from sluice.iceberg import range_scan
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, batches_from_rows
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin

# A plan counts no more rows than this one by one.
COUNTABLE = 2_000_000


def count_records(
    origin: Origin, whole: Batch, sources: RangeSources, ledger: Ledger | None, *, sparse: bool
) -> tuple[int, str]:
    """How many records there are to read, as a number and as text that says how exact it is.

    Args:
        origin: where they are read.
        whole: the ranges.
        sources: its `staging` is counted where it is set: only set it where staging holds all of the ranges.
        ledger: for the share of offsets that had a record in earlier batches.
        sparse: whether offsets may have no record.
    """
    span = whole.span
    if origin == Origin.QUARANTINE:
        count = _count_coordinates(sources.quarantine, whole)
        return (span, f"at most {span:,}") if count is None else (count, f"{count:,}")
    if not sparse:
        return span, f"{span:,}"
    if sources.staging and (count := _count_coordinates(sources.staging, whole)) is not None:
        # Compaction may have left fewer of them in Kafka.
        return count, f"{count:,}" if origin == Origin.STAGING else f"at most {count:,}"
    rows = ledger.rows({whole.topic: 0}, (LedgerState.PLANNED, LedgerState.STAGED)) if ledger else []
    spans = {seq: b.span for (_, seq), b in batches_from_rows(rows).items() if b.span}
    counted = {r.batch_seq: r.records for r in rows if r.records is not None and r.batch_seq in spans}
    if not counted:
        return span, f"at most {span:,}"
    share = sum(counted.values()) / sum(spans[seq] for seq in counted)
    return round(span * share), f"about {span * share:,.0f}: {share:.0%} of the offsets of earlier batches had a record"


def _count_coordinates(table: Table | None, whole: Batch) -> int | None:
    """How many distinct records of the ranges the table holds; None where counting them would take long."""
    if table is None or table.current_snapshot() is None:
        return 0
    files = range_scan.plan_slice_files(table, whole)
    if _row_bound(files) > COUNTABLE:
        return None
    return len(
        range_scan.read_slice_records(table, whole, COORDINATES, files=files).group_by(list(COORDINATES)).aggregate([])
    )


def count_rows(table: Table, whole: Batch) -> tuple[int, bool]:
    """How many rows of the ranges the table holds, and whether that is exact; else it is an upper bound."""
    files = range_scan.plan_slice_files(table, whole)
    most = _row_bound(files)
    return (len(range_scan.read_slice_records(table, whole, files=files)), True) if most <= COUNTABLE else (most, False)


def _row_bound(files: Sequence[FileScanTask]) -> int:
    return sum(task.file.record_count for task in files)


def estimate_seconds(
    ledger: Ledger | None, table: str, topic: str, count: int, known: Sequence[LedgerRow]
) -> float | None:
    """The expected time, from earlier slices of the table; else from staging and publishing of its batches."""
    rates = [_seconds_per_record(known, LedgerState.REPLAYED, table)]
    if rates == [None] and ledger:
        rows = ledger.rows({topic: 0}, (LedgerState.STAGED, LedgerState.PUBLISHED))
        rates = [
            _seconds_per_record(rows, LedgerState.STAGED, None),
            _seconds_per_record(rows, LedgerState.PUBLISHED, table),
        ]
    return None if None in rates else count * sum(filter(None, rates))


def _seconds_per_record(rows: Sequence[LedgerRow], state: LedgerState, table: str | None) -> float | None:
    mine = [r for r in rows if r.state == state and r.table == table and r.records and r.seconds][-50:]
    return sum(r.seconds or 0 for r in mine) / sum(r.records or 0 for r in mine) if mine else None
