"""Slices: the parts of a backfill, as the ledger, staging and the typed tables tell of them. No JVM.

A slice is a batch with a number below zero, by which nothing that follows the live feed can take it for one of its own.
Its `planned` rows freeze it; a `replayed`, `blocked` or `failed` row tells what came of it.
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
from sluice.iceberg import cursor, refs, table_names, tables
from sluice.iceberg import snapshots as iceberg_snapshots
from sluice.iceberg.filters import And, at_most, equal, one_of
from sluice.ledger import backlog
from sluice.ledger import offsets_table as ledgers
from sluice.ledger.accepted_gaps import with_gaps
from sluice.ledger.offsets_table import Ledger, Row, State
from sluice.offsets import OffsetRange, Ranges

UNKNOWN = "The ledger that told was lost; the table's snapshot tells of the slice."

HOLD = timedelta(days=7)
"""For so long after its run told of any slice, one that has not landed may still come: staging keeps what it reads, and
its branch stays."""

ANY = at_most("batch_seq", -1)
"""Rows of slices, whatever their topic."""


class Origin(StrEnum):
    """Where a backfill reads."""

    KAFKA = "kafka"
    STAGING = "staging"
    QUARANTINE = "quarantine"


def rows(ledger: Ledger | None, *topics: str) -> list[Row]:
    """All that the ledger tells of these topics' slices, oldest first."""
    if ledger is None or ledger.table.metadata.current_snapshot_id is None:
        return []
    wanted = And(one_of("topic", topics), ANY)
    found = ledger.table.scan(row_filter=wanted).to_arrow().sort_by([("at", "ascending")])
    return [ledgers.row_of(r) for r in found.to_pylist()]


def planned(found: Iterable[Row], run_id: str | None = None) -> dict[int, Batch]:
    """The slices by number, or those of one run."""
    frozen = [r for r in found if r.state == State.PLANNED and run_id in (None, r.run_id)]
    return {seq: replace(b, next_offsets={}) for (_, seq), b in sorted(ledgers.batches(frozen).items(), reverse=True)}


def unfinished(found: Iterable[Row], now: datetime) -> dict[int, Batch]:
    """The slices by number that have not landed, and may still come."""
    told = list(found)
    # A run of a thousand slices may take longer than that, and tells of each.
    last: dict[str | None, datetime] = {}
    for row in told:
        last[row.run_id] = max(row.at, last.get(row.run_id, row.at))
    recent = {r.batch_seq for r in told if r.state == State.PLANNED and now - last[r.run_id] < HOLD}
    landed = {r.batch_seq for r in told if r.state == State.REPLAYED}
    return {seq: piece for seq, piece in planned(told).items() if seq in recent - landed}


def plan_rows(piece: Batch, table: str, *, who: str | None, why: str | None) -> list[Row]:
    """A slice as ledger rows, one per partition."""
    return [
        Row(
            topic=piece.topic,
            state=State.PLANNED,
            topic_id=piece.topic_id,
            batch_seq=piece.seq,
            partition=p,
            start_offset=r.start,
            end_offset=r.end,
            table=table,
            who=who,
            why=why,
        )
        for p, r in sorted(piece.ranges.items())
    ]


def last_number(catalog: Catalog, names: Iterable[str], topic: str, known: Iterable[Row]) -> int:
    """The lowest number that a slice of the topic ever had, as far as anything tells; 0 where there was none.

    Args:
        names: the topic's typed tables, whose snapshots count even where main has left them.
        known: the ledger's rows.
    """
    staging = tables.load(catalog, table_names.staging(topic))
    numbers = [0, *(r.batch_seq for r in known if r.batch_seq), *held(staging)]
    for table in filter(None, (staging, *(tables.load(catalog, tuple(n.split("."))) for n in names))):
        told = (iceberg_snapshots.summary(s) for s in table.metadata.snapshots)
        numbers += [int(t[BACKFILL]) for t in told if BACKFILL in t and t.get(TOPIC) == topic]
    return min(numbers)


def landed(table: Table, piece: Batch, step: str = "replay") -> Snapshot | None:
    """The snapshot among main's ancestors that brought the slice; with step `stage`, into staging."""
    for snapshot in iceberg_snapshots.ancestors(table.metadata):
        told = iceberg_snapshots.summary(snapshot)
        if told.get(BACKFILL) == str(piece.seq) and told.get(TOPIC) == piece.topic and told.get(STEP) == step:
            return snapshot
    return None


def landed_as(table: Table, name: str, piece: Batch, known: Iterable[Row]) -> int | None:
    """The snapshot that brought the slice, also where it expired since; None where it is not in main.

    None as well where it came before the table was rolled back, or made again: run again, it changes nothing there.

    Args:
        name: the table's, as the ledger has it.
        known: the ledger's rows of slices.
    """
    if found := landed(table, piece):
        return found.snapshot_id
    replayed = (r for r in known if (r.batch_seq, r.state, r.table) == (piece.seq, State.REPLAYED, name))
    *_, last = (None, *replayed)
    snapshot_id = (last.snapshots or {}).get(name) if last else None
    *_, oldest = (None, *iceberg_snapshots.ancestors(table.metadata))
    cut = oldest is not None and oldest.sequence_number != 1  # else it is all there, or the table was made again
    if last is None or snapshot_id is None or not cut or table.snapshot_by_id(snapshot_id):
        return None  # what is there and no ancestor of main was rolled back
    since_ms = int(table.properties.get(tables.SLICES_SINCE, "0"))
    return snapshot_id if last.at.timestamp() * 1000 > since_ms else None


def brought(snapshots: Iterable[Snapshot]) -> list[tuple[Batch, Snapshot]]:
    """The slices that these snapshots of a typed table brought."""
    told = ((iceberg_snapshots.summary(s), s) for s in snapshots)
    return [(Batch.from_properties(t), s) for t, s in told if BACKFILL in t and t.get(STEP) == "replay"]


def rebuilt(name: str, table: Table, kept: Iterable[Row]) -> list[Row]:
    """The rows of the slices that a typed table's snapshots tell of and the ledger no longer does."""
    known = {(r.topic, r.batch_seq, r.state) for r in kept}
    out: list[Row] = []
    for piece, snapshot in brought(iceberg_snapshots.ancestors(table.metadata)):
        at = iceberg_snapshots.committed_at(snapshot)
        fresh: list[Row] = []
        if (piece.topic, piece.seq, State.PLANNED) not in known:
            fresh += plan_rows(piece, name, who=None, why=UNKNOWN)
        if (piece.topic, piece.seq, State.REPLAYED) not in known:
            place = {name: snapshot.snapshot_id}
            fresh.append(Row(piece.topic, State.REPLAYED, piece.topic_id, piece.seq, table=name, snapshots=place))
        out += [replace(row, at=at) for row in fresh]
    return out


def held(staging: Table | None) -> dict[int, int]:
    """The slices of which staging has files, and how many rows."""
    return backlog.rows_by_batch(staging, ANY)


def is_staged(staging: Table, piece: Batch) -> bool:
    """Whether staging holds the slice: its rows came in one commit, so that any row stands for all."""
    return rows_of(staging, piece) > 0


def rows_of(staging: Table, piece: Batch) -> int:
    """How many rows staging holds under the slice's number."""
    return backlog.rows_by_batch(staging, equal("batch_seq", piece.seq)).get(piece.seq, 0)


def rows_staged(staging: Table, piece: Batch) -> int:
    """How many rows were staged under the slice's number; where that has expired, how many there are."""
    brought = landed(staging, piece, "stage")
    return int(iceberg_snapshots.summary(brought).get("added-records", "0")) if brought else rows_of(staging, piece)


def in_staging(staging: Table | None, topic: str, known: Iterable[Row], ledger: Ledger | None) -> list[Batch]:
    """The batches and slices of the topic whose raw records staging holds whole, as far as anything tells of them."""
    if staging is None:
        return []
    last = cursor.staged(staging, (lambda: ledger.remembered_batch(topic)) if ledger else None)
    gone = tables.trimmed_through(staging)
    live = {seq: b for seq, (b, _) in cursor.staged_batches(staging, gone).items()}
    if ledger:
        written = (State.PLANNED, State.STAGED, State.SETTLED)
        told = ledgers.batches(ledger.rows({topic: gone}, written))
        given_up = ledger.gaps([topic])
        live = {seq: with_gaps(b, given_up) for (_, seq), b in told.items() if last and seq <= last.seq} | live
    successive = [b for _, b in sorted(live.items())]
    # By their rows too: where offsets may lack a record, what somebody deleted by hand would be missed by nobody.
    whole = [each.batch for each in backlog.held(staging, successive, ledger) if each.whole]
    there = held(staging)
    return [
        *whole,
        *(b for seq, b in planned(known).items() if seq in there and there[seq] >= rows_staged(staging, b)),
    ]


def missing(wanted: Ranges, batches: Sequence[Batch]) -> dict[int, list[OffsetRange]]:
    """Per partition the parts of the ranges that none of the batches spans."""
    out: dict[int, list[OffsetRange]] = {}
    parts: dict[int, list[OffsetRange]] = {}
    for batch in batches:
        for p, part in batch.to_read.items():
            parts.setdefault(p, []).append(part)
    for p, r in sorted(wanted.items()):
        at = r.start
        for part in sorted(parts.get(p, ())):
            if part.start > at:
                out.setdefault(p, []).append(OffsetRange(at, min(part.start, r.end)))
            at = max(at, part.end)
            if at >= r.end:
                break
        if at < r.end:
            out.setdefault(p, []).append(OffsetRange(at, r.end))
    return {p: holes for p, each in out.items() if (holes := [h for h in each if h.span > 0])}


def leftovers(table: Table, pieces: Iterable[Batch]) -> set[str]:
    """Branches of attempts at these slices that did not come to an end."""
    mine = [(b.topic, b.seq) for b in pieces]
    return {name for name in table.metadata.refs if any(refs.is_attempt_at(name, *each) for each in mine)}


def abandoned(table: Table, ledger: Ledger, topics: Sequence[str], now: datetime) -> set[str]:
    """Branches of attempts at slices that nobody goes on with: they have landed, or were silent for too long."""
    attempts = {name for name in table.metadata.refs if refs.is_slice_attempt(name)}
    if not attempts:
        return set()
    ledger.refresh()  # what was planned before the table was looked at is no stranger
    return attempts - leftovers(table, unfinished(rows(ledger, *topics), now).values())
