"""Slices, the parts of a backfill, as the ledger, staging and the typed tables record them. No JVM.

A slice is a batch with a negative number, so that live ingest never takes it for one of its own. `planned` rows define
it; a `replayed`, `blocked` or `failed` row records its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import BACKFILL, STEP, TOPIC, Batch
from sluice.iceberg import cursor, refs, snapshots, tables
from sluice.iceberg.filters import And, at_most, equal, one_of
from sluice.ledger import backlog
from sluice.ledger.accepted_gaps import add_accepted_gaps
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, batches_from_rows, row_from_record, rows_by_partition
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange, Ranges

RECOVERED_REASON = "The ledger lost the operator's reason; the table's snapshot records the slice."

GRACE_PERIOD = timedelta(days=7)
"""A slice that has no result may still be written for so long after its run's last row: staging keeps its rows, and
its branch stays."""

ALL_SLICES = at_most("batch_seq", -1)
"""Filter for rows of slices, whatever their topic."""


class Origin(StrEnum):
    """Where a backfill reads records from."""

    KAFKA = "kafka"
    STAGING = "staging"
    QUARANTINE = "quarantine"


def read_slice_rows(ledger: Ledger | None, *topics: str) -> list[LedgerRow]:
    """Return the ledger's rows of these topics' slices, oldest first."""
    if ledger is None or ledger.table.metadata.current_snapshot_id is None:
        return []
    row_filter = And(one_of("topic", topics), ALL_SLICES)
    found = ledger.table.scan(row_filter=row_filter).to_arrow().sort_by([("at", "ascending")])
    return [row_from_record(r) for r in found.to_pylist()]


def planned_slices(rows: Iterable[LedgerRow], run_id: str | None = None) -> dict[int, Batch]:
    """Return one topic's planned slices by number, newest number last; with `run_id`, those of one run."""
    planned = [r for r in rows if r.state == LedgerState.PLANNED and run_id in (None, r.run_id)]
    return {
        seq: replace(b, next_offsets={}) for (_, seq), b in sorted(batches_from_rows(planned).items(), reverse=True)
    }


def unfinished_slices(rows: Iterable[LedgerRow], now: datetime) -> dict[int, Batch]:
    """Return one topic's slices by number that are not replayed and may still be, within `GRACE_PERIOD`."""
    known = list(rows)
    # By the run's last row: a run of a thousand slices may take longer, and writes a row for each.
    last_row: dict[str | None, datetime] = {}
    for row in known:
        last_row[row.run_id] = max(row.at, last_row.get(row.run_id, row.at))
    recent = {r.batch_seq for r in known if r.state == LedgerState.PLANNED and now - last_row[r.run_id] < GRACE_PERIOD}
    replayed = {r.batch_seq for r in known if r.state == LedgerState.REPLAYED}
    return {seq: piece for seq, piece in planned_slices(known).items() if seq in recent - replayed}


def slice_plan_rows(piece: Batch, table: str, *, who: str | None, why: str | None) -> list[LedgerRow]:
    """Return a slice as ledger rows, one per partition."""
    row = LedgerRow(piece.topic, LedgerState.PLANNED, piece.topic_id, piece.seq, table=table, who=who, why=why)
    return rows_by_partition(row, piece.ranges)


def lowest_slice_number(catalog: Catalog, names: Iterable[str], topic: str, rows: Iterable[LedgerRow]) -> int:
    """Return the lowest number that a slice of the topic ever had, as far as recorded; 0 if there was none.

    Args:
        catalog: the catalog.
        names: the topic's typed tables. All their snapshots count, even those that main no longer contains.
        topic: the topic.
        rows: the ledger's rows.
    """
    staging = tables.load_staging(catalog, topic)
    numbers = [0, *(r.batch_seq for r in rows if r.batch_seq), *count_slice_rows(staging)]
    typed = (tables.load(catalog, tuple(name.split("."))) for name in names)
    for table in filter(None, (staging, *typed)):
        summaries = map(snapshots.summary, table.metadata.snapshots)
        numbers += [int(each[BACKFILL]) for each in summaries if BACKFILL in each and each.get(TOPIC) == topic]
    return min(numbers)


def find_slice_snapshot(table: Table, piece: Batch, step: str = "replay") -> Snapshot | None:
    """Find the snapshot of main that replayed the slice into a typed table; with step `stage`, into staging."""
    wanted = {BACKFILL: str(piece.seq), TOPIC: piece.topic, STEP: step}
    for snapshot in snapshots.ancestors(table.metadata):
        if wanted.items() <= snapshots.summary(snapshot).items():
            return snapshot
    return None


def find_replay_snapshot_id(table: Table, name: str, piece: Batch, rows: Iterable[LedgerRow]) -> int | None:
    """Return the id of the snapshot that replayed the slice, even if it has expired; None if main does not contain it.

    Also None if the table was rolled back or created again since: replaying the slice again is then harmless.

    Args:
        table: the typed table.
        name: the table's name in the ledger.
        piece: the slice.
        rows: the ledger's rows of slices.
    """
    if found := find_slice_snapshot(table, piece):
        return found.snapshot_id
    replayed = [r for r in rows if (r.batch_seq, r.state, r.table) == (piece.seq, LedgerState.REPLAYED, name)]
    last = replayed[-1] if replayed else None
    snapshot_id = (last.snapshots or {}).get(name) if last else None
    *_, oldest = (None, *snapshots.ancestors(table.metadata))
    was_expired = oldest is not None and oldest.sequence_number != 1  # else nothing expired, or the table is a new one
    if last is None or snapshot_id is None or not was_expired or table.snapshot_by_id(snapshot_id):
        return None  # a snapshot that exists outside main was rolled back
    slices_since_ms = int(table.properties.get(tables.SLICES_SINCE, "0"))
    return snapshot_id if last.at.timestamp() * 1000 > slices_since_ms else None


def find_replayed_slices(of_table: Iterable[Snapshot]) -> list[tuple[Batch, Snapshot]]:
    """Return the slices that these snapshots of a typed table replayed."""
    summaries = ((snapshots.summary(s), s) for s in of_table)
    return [(Batch.from_properties(p), s) for p, s in summaries if BACKFILL in p and p.get(STEP) == "replay"]


def recover_slice_rows(name: str, table: Table, existing: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return rows of slices that a typed table's snapshots record and the ledger has lost."""
    known = {(r.topic, r.batch_seq, r.state) for r in existing}
    recovered: list[LedgerRow] = []
    for piece, snapshot in find_replayed_slices(snapshots.ancestors(table.metadata)):
        rows: list[LedgerRow] = []
        if (piece.topic, piece.seq, LedgerState.PLANNED) not in known:
            rows += slice_plan_rows(piece, name, who=None, why=RECOVERED_REASON)
        if (piece.topic, piece.seq, LedgerState.REPLAYED) not in known:
            held_by = {name: snapshot.snapshot_id}
            rows.append(
                LedgerRow(piece.topic, LedgerState.REPLAYED, piece.topic_id, piece.seq, table=name, snapshots=held_by)
            )
        recovered += [replace(row, at=snapshots.committed_at(snapshot)) for row in rows]
    return recovered


def count_slice_rows(staging: Table | None) -> dict[int, int]:
    """Return how many rows staging holds of each slice."""
    return backlog.count_rows_by_batch(staging, ALL_SLICES)


def is_slice_staged(staging: Table, piece: Batch) -> bool:
    """Return whether staging holds the slice. Its rows are written in one commit: any row means all."""
    return count_rows_in_staging(staging, piece) > 0


def count_rows_in_staging(staging: Table, piece: Batch) -> int:
    """Return how many rows staging holds of one slice."""
    return backlog.count_rows_by_batch(staging, equal("batch_seq", piece.seq)).get(piece.seq, 0)


def count_rows_staged(staging: Table, piece: Batch) -> int:
    """Return how many rows of a slice were staged; if that snapshot has expired, how many there are now."""
    staged = find_slice_snapshot(staging, piece, "stage")
    if staged is None:
        return count_rows_in_staging(staging, piece)
    return int(snapshots.summary(staged).get("added-records", "0"))


def find_staged_batches(
    staging: Table | None, topic: str, rows: Iterable[LedgerRow], ledger: Ledger | None
) -> list[Batch]:
    """Return the topic's batches and slices whose raw records staging holds completely.

    Args:
        staging: the topic's staging table.
        topic: the topic.
        rows: the ledger's rows of slices.
        ledger: the ledger, if there is one.
    """
    if staging is None:
        return []
    last = cursor.read_staging_cursor(staging)
    trimmed = tables.trimmed_through(staging)
    batches = {seq: b for seq, (b, _) in cursor.read_staged_batches(staging, trimmed).items()}
    if ledger:
        states = (LedgerState.PLANNED, LedgerState.STAGED, LedgerState.SETTLED)
        in_ledger = batches_from_rows(ledger.rows({topic: trimmed}, states))
        gaps = ledger.gaps([topic])
        staged = {seq: b for (_, seq), b in in_ledger.items() if last and seq <= last.seq}
        batches = {seq: add_accepted_gaps(b, gaps) for seq, b in staged.items()} | batches
    successive = [b for _, b in sorted(batches.items())]
    # Rows are counted: where offsets may lack a record anyway, rows deleted by hand would go unnoticed.
    complete = [each.batch for each in backlog.count_staged_rows(staging, successive, ledger) if each.complete]
    counts = count_slice_rows(staging)
    slices = planned_slices(rows).items()
    return [*complete, *(b for seq, b in slices if seq in counts and counts[seq] >= count_rows_staged(staging, b))]


def find_missing_ranges(wanted: Ranges, batches: Sequence[Batch]) -> dict[int, list[OffsetRange]]:
    """Return, per partition, the parts of the wanted ranges that no batch covers."""
    covered: dict[int, list[OffsetRange]] = {}
    for batch in batches:
        for p, part in batch.ranges_to_read.items():
            covered.setdefault(p, []).append(part)
    missing = {p: _subtract(r, sorted(covered.get(p, ()))) for p, r in sorted(wanted.items())}
    return {p: parts for p, parts in missing.items() if parts}


def _subtract(wanted: OffsetRange, covered: Iterable[OffsetRange]) -> list[OffsetRange]:
    missing: list[OffsetRange] = []
    position = wanted.start
    for part in covered:
        if part.start > position:
            missing.append(OffsetRange(position, min(part.start, wanted.end)))
        position = max(position, part.end)
        if position >= wanted.end:
            break
    if position < wanted.end:
        missing.append(OffsetRange(position, wanted.end))
    return [part for part in missing if part.span > 0]


def find_slice_branches(table: Table, pieces: Iterable[Batch]) -> set[str]:
    """Return the table's branches that attempts at these slices left behind."""
    keys = [(b.topic, b.seq) for b in pieces]
    return {name for name in table.metadata.refs if any(refs.is_branch_of(name, *key) for key in keys)}


def find_abandoned_branches(table: Table, ledger: Ledger, topics: Sequence[str], now: datetime) -> set[str]:
    """Return the table's branches of slices that are replayed, or whose run has been silent for `GRACE_PERIOD`."""
    branches = {name for name in table.metadata.refs if refs.is_slice_branch(name)}
    if not branches:
        return set()
    ledger.refresh()  # must have every slice that was planned before the table was loaded
    by_topic: dict[str, list[LedgerRow]] = {}
    for row in read_slice_rows(ledger, *topics):
        by_topic.setdefault(row.topic, []).append(row)
    # Topic by topic: each numbers its slices from -1.
    unfinished = [piece for rows in by_topic.values() for piece in unfinished_slices(rows, now).values()]
    return branches - find_slice_branches(table, unfinished)
