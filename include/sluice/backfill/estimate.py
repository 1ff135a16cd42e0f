"""What a backfill's plan tells in numbers: records to read, rows that are there, time. No JVM."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table import FileScanTask, Table

from sluice.backfill.ranges import PLACE
from sluice.batch import Batch
from sluice.iceberg import range_scan
from sluice.ledger.offsets_table import Ledger, Row, State, batches
from sluice.ledger.slices import Origin

# More rows than this are not counted one by one to show a plan.
COUNTABLE = 2_000_000


def records(
    origin: Origin, whole: Batch, ledger: Ledger | None, sparse: bool, quarantine: Table | None, staging: Table | None
) -> tuple[int, str]:
    """How many records there are to read, and the same in words, with how that is known.

    Args:
        sparse: offsets may lack a record; elsewhere each has one, or nothing lands.
        staging: where it holds all of the range.
    """
    span = whole.span
    if origin == Origin.QUARANTINE:
        count = _places(quarantine, whole)
        return (span, f"at most {span:,}") if count is None else (count, f"{count:,}")
    if not sparse:
        return span, f"{span:,}"
    if staging and (count := _places(staging, whole)) is not None:
        # Compaction may have left fewer of them in Kafka.
        return count, f"{count:,}" if origin == Origin.STAGING else f"at most {count:,}"
    told = ledger.rows({whole.topic: 0}, (State.PLANNED, State.STAGED)) if ledger else []
    spans = {seq: b.span for (_, seq), b in batches(told).items() if b.span}
    counted = {r.batch_seq: r.records for r in told if r.records is not None and r.batch_seq in spans}
    if not counted:
        return span, f"at most {span:,}"
    share = sum(counted.values()) / sum(spans[seq] for seq in counted)
    return round(span * share), f"about {span * share:,.0f}, as {share:.0%} of the offsets of batches held one"


def _places(table: Table | None, whole: Batch) -> int | None:
    """How many records lie there, each once, however often it does; None where reading them would take long."""
    if table is None or table.current_snapshot() is None:
        return 0
    there = range_scan.files(table, whole)
    if _at_most(there) > COUNTABLE:
        return None
    return len(range_scan.rows(table, whole, PLACE, within=there).group_by(list(PLACE)).aggregate([]))


def rows(table: Table, whole: Batch) -> tuple[int, bool]:
    """How many rows of the range the table holds; only a bound where counting would take long."""
    there = range_scan.files(table, whole)
    most = _at_most(there)
    return (len(range_scan.rows(table, whole, within=there)), True) if most <= COUNTABLE else (most, False)


def _at_most(there: Sequence[FileScanTask]) -> int:
    return sum(task.file.record_count for task in there)


def seconds(ledger: Ledger | None, table: str, topic: str, count: int, known: Sequence[Row]) -> float | None:
    """What earlier slices took for each record; else what staging and publishing of batches took."""
    rates = [_rate(known, State.REPLAYED, table)]
    if rates == [None] and ledger:
        told = ledger.rows({topic: 0}, (State.STAGED, State.PUBLISHED))
        rates = [_rate(told, State.STAGED, None), _rate(told, State.PUBLISHED, table)]
    return None if None in rates else count * sum(filter(None, rates))


def _rate(told: Sequence[Row], state: State, table: str | None) -> float | None:
    mine = [r for r in told if r.state == state and r.table == table and r.records and r.seconds][-50:]
    return sum(r.seconds or 0 for r in mine) / sum(r.records or 0 for r in mine) if mine else None
