"""Decides what expiry may remove: snapshots of any table, raw records of staging, rows past their history.

In: a table and what rollbacks of other tables may still need. Out: an `ExpiryPlan` or a `TrimPlan`. A kept chain always
ends with a snapshot that carries offsets: the cursor never depends on the tag alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_int

from sluice.batch import BATCH_SEQ, NEXT_OFFSETS, PUBLISHED_THROUGH, Batch, PublishedOffsets, decode_published_through
from sluice.contract.folder import Contracts
from sluice.contract.settings import Maintenance
from sluice.errors import SluiceError
from sluice.iceberg import availability, cursor, refs, snapshots, table_names, tables
from sluice.iceberg.filters import And, above, at_most
from sluice.ledger import slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, batches_from_rows
from sluice.ledger.offsets_table import Ledger

AGE_PROPERTY, COUNT_PROPERTY = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
# Cap for properties that mean "keep for ever": a century, and the greatest count that Iceberg knows.
MAX_AGE_MS, MAX_SNAPSHOTS = 100 * 365 * 86_400_000, 2**31 - 1
EXPIRY_DELAY = timedelta(hours=1)
"""How long after planning Iceberg's procedure may run, at most."""

SnapshotPredicate = Callable[[Snapshot], bool]


@dataclass(frozen=True)
class ExpiryPlan:
    """Which snapshots of a table are kept and which expire.

    Attributes:
        kept: main's snapshots that stay, newest first.
        older_than_ms: argument of Iceberg's procedure: unreferenced snapshots older than this expire.
        expired: the snapshots of the whole table that expire.
        retain_last: argument of Iceberg's procedure: this many snapshots of each branch stay, whatever their age.
        reset_main_retention: main's own retention would keep less; it must be removed first, or Iceberg obeys it.
    """

    kept: tuple[Snapshot, ...]
    older_than_ms: int
    expired: tuple[Snapshot, ...]
    retain_last: int
    reset_main_retention: bool = False


@dataclass(frozen=True)
class TrimPlan:
    """Batches `[first, through]` whose raw records are published everywhere and past their retention.

    Attributes:
        slices: backfill slices whose raw records are past their retention.
        incomplete: an earlier trim was interrupted: rows of batches before `first` are still there.
    """

    first: int
    through: int
    slices: tuple[int, ...] = ()
    incomplete: bool = False


def plan_expiry(table: Table, settings: Maintenance, now: datetime, can_be_oldest: SnapshotPredicate) -> ExpiryPlan:
    """Decide which snapshots expire.

    Args:
        can_be_oldest: whether main's kept chain may end with this snapshot. If none qualifies, the whole chain stays.
    """
    age, retain_last = _retention(table, settings)
    window_start = now - age
    # A snapshot becomes main's head when main moves onto it, which is later than its commit to a branch.
    visible = snapshots.visible_times(table.metadata)
    kept: list[Snapshot] = []
    for snapshot in snapshots.ancestors(table.metadata):
        kept.append(snapshot)
        if len(kept) >= retain_last and visible[snapshot.snapshot_id] < window_start and can_be_oldest(snapshot):
            break
    older_than = min([int(window_start.timestamp() * 1000), *(s.timestamp_ms for s in kept)])
    references = dict(table.metadata.refs)
    reset = False
    if main := references.get(refs.MAIN):
        left = set(_kept_of_branch(table, main, older_than, retain_last, now))
        reset = any(s.snapshot_id not in left for s in kept)
        references[refs.MAIN] = main.model_copy(update=dict.fromkeys(refs.BRANCH_RETENTION_FIELDS)) if reset else main
    stays = _kept_by_iceberg(table, references.values(), older_than, retain_last, now)
    expired = tuple(s for s in table.metadata.snapshots if s.snapshot_id not in stays)
    return ExpiryPlan(tuple(kept), older_than, expired, retain_last, reset)


def _retention(table: Table, settings: Maintenance) -> tuple[timedelta, int]:
    """Age and number of snapshots to keep: the contract's, or the table properties' where those keep more.

    Iceberg ignores the properties when its procedure gets arguments, and Sluice passes some.
    """
    age_ms = min(property_as_int(table.properties, AGE_PROPERTY) or 0, MAX_AGE_MS)
    count = min(property_as_int(table.properties, COUNT_PROPERTY) or 0, MAX_SNAPSHOTS)
    return max(settings.snapshot_age, timedelta(milliseconds=age_ms)), max(settings.min_snapshots, count)


def _kept_by_iceberg(
    table: Table, references: Iterable[SnapshotRef], older_than_ms: int, retain_last: int, now: datetime
) -> set[int]:
    """The snapshots that Iceberg's procedure keeps when called with these arguments."""
    stays: set[int] = set()
    referenced: set[int] = set()
    for ref in references:
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            stays.add(ref.snapshot_id)
            continue
        referenced |= {s.snapshot_id for s in snapshots.ancestors(table.metadata, ref.snapshot_id)}
        stays |= set(_kept_of_branch(table, ref, older_than_ms, retain_last, now))
    return stays | {
        s.snapshot_id
        for s in table.metadata.snapshots
        if s.snapshot_id not in referenced and s.timestamp_ms >= older_than_ms
    }


def _kept_of_branch(
    table: Table, ref: SnapshotRef, older_than_ms: int, retain_last: int, now: datetime
) -> Iterator[int]:
    """The snapshots of one branch that Iceberg keeps. The branch's own retention overrides the arguments."""
    if ref.max_snapshot_age_ms is not None:
        # Iceberg measures this age when the procedure runs, which is later than now.
        older_than_ms = int((now + EXPIRY_DELAY).timestamp() * 1000) - ref.max_snapshot_age_ms
    retain_last = ref.min_snapshots_to_keep or retain_last
    for number, snapshot in enumerate(snapshots.ancestors(table.metadata, ref.snapshot_id)):
        if number >= retain_last and snapshot.timestamp_ms < older_than_ms:
            break
        yield snapshot.snapshot_id


def carries_published(snapshot: Snapshot) -> bool:
    """For typed tables: whether the snapshot carries the published offsets of each topic."""
    return PUBLISHED_THROUGH in snapshots.summary(snapshot)


def carries_staged(published_through: int) -> SnapshotPredicate:
    """For staging: whether a snapshot carries the cursor, and its batch is published by all tables."""

    def check(snapshot: Snapshot) -> bool:
        summary = snapshots.summary(snapshot)
        return NEXT_OFFSETS in summary and int(summary[BATCH_SEQ]) <= published_through

    return check


@dataclass(frozen=True)
class RollbackWindow:
    """The snapshots of a typed table that a rollback may go back to.

    Attributes:
        published: each topic's published offsets in the oldest of them; empty where that may be before the first batch.
        slices: the backfill slices that such a rollback may undo.
    """

    published: Mapping[str, PublishedOffsets]
    slices: tuple[Batch, ...]


@dataclass(frozen=True)
class RollbackNeeds:
    """What rollbacks of a topic's typed tables may still need from its staging table.

    Attributes:
        published_through: the last batch that all tables hold in every snapshot of their rollback windows.
        slices: by number, the backfill slices that a rollback may undo.
        holds: why more is kept than the tables with a contract need: one sentence per recorded consumer.
    """

    topic: str
    published_through: int
    slices: Mapping[int, Batch]
    holds: tuple[str, ...] = ()


class AssessmentInputs:
    """What the assessments of a run share: catalog, contracts, time, and what they read of other tables, read once.

    Before acting on an assessment take a refreshed copy: other tables may have changed since.
    """

    def __init__(self, catalog: Catalog, contracts: Contracts, now: datetime | None = None) -> None:
        self.catalog, self.contracts, self.now = catalog, contracts, now or datetime.now(UTC)
        # Windows instead of tables: the metadata of 1,440 snapshots takes 10 MB of memory.
        self._windows: dict[str, RollbackWindow] = {}

    def refreshed(self) -> AssessmentInputs:
        """The same catalog, contracts and time, with nothing read yet."""
        return AssessmentInputs(self.catalog, self.contracts, self.now)

    def add_window(self, name: str, kept: Sequence[Snapshot]) -> None:
        """Remember a typed table's rollback window, given main's kept snapshots (`ExpiryPlan.kept`)."""
        # Where the chain ends without offsets, a rollback may go back to before the first batch.
        carried = snapshots.summary(kept[-1]).get(PUBLISHED_THROUGH) if kept else None
        undoable = tuple(piece for piece, _ in slices.find_replayed_slices(kept[:-1]))
        self._windows[name] = RollbackWindow(decode_published_through(carried) if carried else {}, undoable)

    def _window_of(self, name: str, settings: Maintenance) -> RollbackWindow:
        """The rollback window of a typed table.

        Raises:
            TableDamagedError: its metadata can't be read.
        """
        if name not in self._windows:
            table = tables.load(self.catalog, tuple(name.split(".")))
            self.add_window(name, plan_expiry(table, settings, self.now, carries_published).kept if table else ())
        return self._windows[name]

    def rollback_needs(self, topic: str, recorded: Collection[str]) -> RollbackNeeds:
        """What rollbacks of the topic's tables may still need.

        Args:
            recorded: the consumers in the topic's staging table. One without a contract here counts as well, by its own
                offsets and with the default retention of snapshots.
        """
        readers = self.contracts.topics[topic].tables
        windows = [self._window_of(name, self.contracts.tables[name].maintenance) for name in readers]
        through = min((_published(window, topic) for window in windows), default=0)
        lowest, holds = through, []
        for name in sorted(set(recorded) - set(readers)):
            contract = self.contracts.tables.get(name)
            read = partial(self._window_of, name, contract.maintenance if contract else Maintenance())
            try:
                window = availability.isolate_table_failure(self.catalog, read, table=name)
            except SluiceError as error:
                lowest = 0
                holds.append(_describe_hold(name, topic, 0, f", which can't be read: {error.message}"))
                continue
            windows.append(window)
            if (seq := _published(window, topic)) < through:
                lowest = min(lowest, seq)
                holds.append(_describe_hold(name, topic, seq))
        undoable = {piece.seq: piece for window in windows for piece in window.slices if piece.topic == topic}
        return RollbackNeeds(topic, lowest, undoable, tuple(holds))

    @cached_property
    def ledger(self) -> Ledger | None:
        """The ledger, if there is one."""
        found = tables.load(self.catalog, table_names.LEDGER)
        return Ledger(self.catalog, found) if found else None

    def slice_rows(self, topic: str) -> list[LedgerRow]:
        """The ledger's rows of the topic's slices, oldest first."""
        return [] if self._topics_with_slices.isdisjoint((topic, None)) else slices.read_slice_rows(self.ledger, topic)

    @cached_property
    def _topics_with_slices(self) -> frozenset[str | None]:
        """The topics that may have slices; None stands for any topic."""
        return frozenset(self.ledger.plan_files_by_topic(slices.ALL_SLICES)) if self.ledger else frozenset()


def _published(window: RollbackWindow, topic: str) -> int:
    """The last batch of a topic that a table holds in every snapshot of its window; 0 if unknown or none."""
    published = window.published.get(topic)
    return published.seq if published else 0


def _describe_hold(name: str, topic: str, seq: int, more: str = "") -> str:
    kept = f"raw records after batch {seq} are kept" if seq else "all raw records are kept"
    return (
        f"{kept} for {name}, a recorded consumer of {topic} that no contract here names{more}; if it is not to return: "
        f"sluice ledger retire-consumer {name} {topic}"
    )


def plan_trim(inputs: AssessmentInputs, staging: Table, needs: RollbackNeeds, retention: timedelta) -> TrimPlan | None:
    """Decide which raw records of a topic's staging table may be deleted; None: none.

    Args:
        retention: how long raw records stay after the ledger recorded that all tables of the topic hold them.
    """
    ledger = inputs.ledger
    if ledger is None:
        return None
    last = cursor.read_staging_cursor(staging)
    trimmed = tables.trimmed_through(staging)
    settled = ledger.settled_before(needs.topic, inputs.now - retention, trimmed)
    # The newest batch always stays: it carries the topic's cursor.
    through = min(settled, needs.published_through, last.seq - 1 if last else 0)
    first_needed, expired_slices = _backfill_limits(inputs, ledger, staging, needs, retention)
    through = max(min(through, first_needed - 1), trimmed)
    remaining = And(above("batch_seq", 0), at_most("batch_seq", trimmed))
    incomplete = trimmed > 0 and bool(tables.plan_files(staging, remaining))
    if through <= trimmed and not expired_slices and not incomplete:
        return None
    return TrimPlan(trimmed + 1, through, expired_slices, incomplete)


def history_cutoff(table: Table, history: timedelta, now: datetime) -> datetime | None:
    """The `at` up to which rows are past their history; None until some are a tenth of it older.

    The tenth avoids rewriting a table every day for the rows of one day.
    """
    overdue = at_most("at", (now - history - history / 10).isoformat())
    return now - history if tables.plan_files(table, overdue) else None


def _backfill_limits(
    inputs: AssessmentInputs, ledger: Ledger, staging: Table, needs: RollbackNeeds, retention: timedelta
) -> tuple[int, tuple[int, ...]]:
    """The first live batch that a backfill slice may read, and the slices whose own raw records may be deleted.

    Unfinished slices read staging. So does the preview of a rollback that undoes a slice: it reports which records
    can't be replayed.
    """
    rows, now = inputs.slice_rows(needs.topic), inputs.now
    planned_at = {r.batch_seq: r.at for r in rows if r.state == LedgerState.PLANNED}
    readers = {**slices.unfinished_slices(rows, now), **needs.slices}
    staged = slices.count_slice_rows(staging) if planned_at else {}
    old = {
        seq: piece
        for seq, piece in slices.planned_slices(rows).items()
        if seq in staged and planned_at[seq] < now - retention
    }
    expired = tuple(sorted(seq for seq in old if seq not in readers and not _overlaps(readers, old[seq])))
    if not readers:
        return sys.maxsize, expired
    written = (LedgerState.PLANNED, LedgerState.STAGED, LedgerState.SETTLED)
    live = batches_from_rows(ledger.rows({needs.topic: tables.trimmed_through(staging)}, written))
    return min((seq for (_, seq), batch in live.items() if _overlaps(readers, batch)), default=sys.maxsize), expired


def _overlaps(readers: Mapping[int, Batch], batch: Batch) -> bool:
    """Whether the ranges of any of the slices overlap those of the batch."""
    return any(
        r.start < batch.ranges[p].end and batch.ranges[p].start < r.end
        for piece in readers.values()
        for p, r in piece.ranges.items()
        if p in batch.ranges
    )
