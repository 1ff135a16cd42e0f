"""What expiry must leave: the snapshots that a rollback may go back to, their offsets, and staging's raw records.

One rule for snapshots: main's chain is kept back to the one that was its head when the rollback window began, and
further to a snapshot that carries offsets. So a cursor never hangs on the tag alone, however often it was rewritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_int

from sluice.batch import BATCH_SEQ, NEXT_OFFSETS, PUBLISHED_THROUGH, Batch, Through, decode_through
from sluice.contract.folder import Contracts
from sluice.contract.settings import Maintenance
from sluice.iceberg import cursor, refs, snapshots, table_names, tables
from sluice.iceberg.filters import And, above, at_most
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger, Row, State, batches

AGE_PROPERTY, LEAST_PROPERTY = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
# For ever is said by the greatest number that there is: a century, and as many as Iceberg counts.
MOST_AGE_MS, MOST_SNAPSHOTS = 100 * 365 * 86_400_000, 2**31 - 1
LATE = timedelta(hours=1)

Enough = Callable[[Snapshot], bool]


@dataclass(frozen=True)
class Cut:
    """Where main's chain may be cut.

    Attributes:
        kept: main's snapshots that stay, newest first.
        older_than_ms: what is older than this may go, if nothing else refers to it.
        doomed: the snapshots of the whole table that go.
        least: so many of each branch stay, however old they are.
        short: main was told to keep less by itself, which Iceberg would go by: it has to be taken off first.
    """

    kept: tuple[Snapshot, ...]
    older_than_ms: int
    doomed: tuple[Snapshot, ...]
    least: int
    short: bool = False


@dataclass(frozen=True)
class Trim:
    """Batches `[first, through]` whose raw records have been published everywhere, and outlived their retention.

    Attributes:
        slices: slices of backfills that have outlived it.
        left: whether rows of batches before `first` are there, as an earlier trim did not come to its end.
    """

    first: int
    through: int
    slices: tuple[int, ...] = ()
    left: bool = False


def cut(table: Table, settings: Maintenance, now: datetime, enough: Enough) -> Cut:
    """Decide which snapshots may go.

    Args:
        enough: whether the chain may end with this snapshot; if none is found, all of it is kept.
    """
    age, least = _window(table, settings)
    began = now - age
    # A snapshot is main's head from when main moved onto it, not from when it was committed to its branch.
    landed = snapshots.landed(table.metadata)
    kept: list[Snapshot] = []
    for snapshot in snapshots.ancestors(table.metadata):
        kept.append(snapshot)
        if len(kept) >= least and landed[snapshot.snapshot_id] < began and enough(snapshot):
            break
    older_than = min([int(began.timestamp() * 1000), *(s.timestamp_ms for s in kept)])
    branches = dict(table.metadata.refs)
    short = False
    if main := branches.get(refs.MAIN):
        left = set(_of_branch(table, main, older_than, least, now))
        short = any(s.snapshot_id not in left for s in kept)
        branches[refs.MAIN] = main.model_copy(update=dict.fromkeys(refs.RETENTION)) if short else main
    stays = _stays(table, branches.values(), older_than, least, now)
    doomed = tuple(s for s in table.metadata.snapshots if s.snapshot_id not in stays)
    return Cut(tuple(kept), older_than, doomed, least, short)


def _window(table: Table, settings: Maintenance) -> tuple[timedelta, int]:
    """How long snapshots are kept, and how many: as the contract says, or more where the table itself was told so.

    Iceberg's own expiry goes by the table's properties where nobody gives it others, as Sluice does.
    """
    age_ms = min(property_as_int(table.properties, AGE_PROPERTY) or 0, MOST_AGE_MS)
    least = min(property_as_int(table.properties, LEAST_PROPERTY) or 0, MOST_SNAPSHOTS)
    return max(settings.snapshot_age, timedelta(milliseconds=age_ms)), max(settings.min_snapshots, least)


def _stays(table: Table, named: Iterable[SnapshotRef], older_than_ms: int, least: int, now: datetime) -> set[int]:
    """What Iceberg's own expiry leaves, given a moment and a least number per branch."""
    stays: set[int] = set()
    referenced: set[int] = set()
    for ref in named:
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            stays.add(ref.snapshot_id)
            continue
        referenced |= {s.snapshot_id for s in snapshots.ancestors(table.metadata, ref.snapshot_id)}
        stays |= set(_of_branch(table, ref, older_than_ms, least, now))
    return stays | {
        s.snapshot_id
        for s in table.metadata.snapshots
        if s.snapshot_id not in referenced and s.timestamp_ms >= older_than_ms
    }


def _of_branch(table: Table, ref: SnapshotRef, older_than_ms: int, least: int, now: datetime) -> Iterator[int]:
    """What it leaves of a branch, whose own age and number go before those that it is given."""
    if ref.max_snapshot_age_ms is not None:
        # By the clock of a later moment: it is asked when the application has come to this table.
        older_than_ms = int((now + LATE).timestamp() * 1000) - ref.max_snapshot_age_ms
    least = ref.min_snapshots_to_keep or least
    for number, snapshot in enumerate(snapshots.ancestors(table.metadata, ref.snapshot_id)):
        if number >= least and snapshot.timestamp_ms < older_than_ms:
            break
        yield snapshot.snapshot_id


def carries_published(snapshot: Snapshot) -> bool:
    """For typed tables: the snapshot tells how far each topic has come."""
    return PUBLISHED_THROUGH in snapshots.summary(snapshot)


def carries_staged(floor: int) -> Enough:
    """For staging: the snapshot tells the cursor, and of no batch that a table may still have to publish."""

    def enough(snapshot: Snapshot) -> bool:
        told = snapshots.summary(snapshot)
        return NEXT_OFFSETS in told and int(told[BATCH_SEQ]) <= floor

    return enough


@dataclass(frozen=True)
class Window:
    """How far a rollback of a typed table may go back.

    Attributes:
        through: how far each topic had come there; empty where that may be before the first batch.
        slices: those of backfills that it may undo.
    """

    through: Mapping[str, Through]
    slices: tuple[Batch, ...]


class Others:
    """What expiry asks of other tables than the one it looks at, read once for all looks; who acts makes it anew."""

    def __init__(self, catalog: Catalog, contracts: Contracts, now: datetime) -> None:
        self.catalog, self.contracts, self.now = catalog, contracts, now
        # Not the tables: the metadata of 1,440 snapshots takes 10 MB here.
        self._windows: dict[str, Window] = {}

    def note(self, name: str, kept: Sequence[Snapshot]) -> None:
        """Remember a typed table's window by main's snapshots that stay, see `Cut`."""
        # Where the chain ends without offsets, a rollback may go back to before the first batch.
        told = snapshots.summary(kept[-1]).get(PUBLISHED_THROUGH) if kept else None
        undoable = tuple(piece for piece, _ in slices.brought(kept[:-1]))
        self._windows[name] = Window(decode_through(told) if told else {}, undoable)

    def _of(self, topic: str) -> list[Window]:
        """Those of the topic's tables."""
        found = []
        for contract in (self.contracts.tables[name] for name in self.contracts.topics[topic].tables):
            if contract.table not in self._windows:
                table = tables.load(self.catalog, table_names.typed(contract))
                kept = cut(table, contract.maintenance, self.now, carries_published).kept if table else ()
                self.note(contract.table, kept)
            found.append(self._windows[contract.table])
        return found

    def floor(self, topic: str) -> int:
        """The last batch of a topic that all its tables hold in every snapshot that a rollback may go back to."""
        reached = (window.through.get(topic) for window in self._of(topic))
        return min((through.seq if through else 0 for through in reached), default=0)

    def undoable(self, topic: str) -> dict[int, Batch]:
        """The slices of backfills that a rollback of one of the topic's tables may undo."""
        return {piece.seq: piece for window in self._of(topic) for piece in window.slices if piece.topic == topic}

    @cached_property
    def ledger(self) -> Ledger | None:
        """The ledger, if there is one."""
        found = tables.load(self.catalog, table_names.LEDGER)
        return Ledger(self.catalog, found) if found else None

    def slices(self, topic: str) -> list[Row]:
        """All that the ledger tells of the topic's slices, oldest first."""
        return [] if self._sliced.isdisjoint((topic, None)) else slices.rows(self.ledger, topic)

    @cached_property
    def _sliced(self) -> frozenset[str | None]:
        """The topics that may have any; None: whichever."""
        return frozenset(self.ledger.files(slices.ANY)) if self.ledger else frozenset()


def trim(
    others: Others, staging: Table, topic: str, published: int, undoable: Mapping[int, Batch], retention: timedelta
) -> Trim | None:
    """The batches whose raw records may go.

    Args:
        published: see `Others.floor`.
        undoable: slices, see there.
        retention: how long they stay after the ledger saw all tables of the topic hold them.
    """
    ledger = others.ledger
    if ledger is None:
        return None
    last = cursor.staged(staging, lambda: ledger.remembered_batch(topic))
    gone = tables.trimmed_through(staging)
    settled = ledger.settled_before(topic, others.now - retention, gone)
    # The newest batch stays, whatever its age: it shows where the topic stands.
    through = min(settled, published, last.seq - 1 if last else 0)
    needed, going = _for_backfills(others, ledger, staging, topic, undoable, retention)
    through = max(min(through, needed - 1), gone)
    left = gone > 0 and bool(tables.files(staging, And(above("batch_seq", 0), at_most("batch_seq", gone))))
    return Trim(gone + 1, through, going, left) if through > gone or going or left else None


def outlived(table: Table, history: timedelta, now: datetime) -> datetime | None:
    """The moment up to which rows may go that stay so long, by their `at`; None while none has outlived it by a tenth.

    So a table is not rewritten each day for the rows of one.
    """
    long_ago = at_most("at", (now - history - history / 10).isoformat())
    return now - history if tables.files(table, long_ago) else None


def _for_backfills(
    others: Others, ledger: Ledger, staging: Table, topic: str, undoable: Mapping[int, Batch], retention: timedelta
) -> tuple[int, tuple[int, ...]]:
    """The first live batch that a slice may read, and the slices whose own raw records may go.

    Those that are running read; and those that landed, should they be undone: a rollback shows what can't come again.
    """
    known, now = others.slices(topic), others.now
    at = {r.batch_seq: r.at for r in known if r.state == State.PLANNED}
    readers = {**slices.unfinished(known, now), **undoable}
    there = slices.held(staging) if at else {}
    old = {seq: piece for seq, piece in slices.planned(known).items() if seq in there and at[seq] < now - retention}
    going = tuple(sorted(seq for seq in old if seq not in readers and not _may_read(readers, old[seq])))
    if not readers:
        return sys.maxsize, going
    written = (State.PLANNED, State.STAGED, State.SETTLED)
    live = batches(ledger.rows({topic: tables.trimmed_through(staging)}, written))
    return min((seq for (_, seq), batch in live.items() if _may_read(readers, batch)), default=sys.maxsize), going


def _may_read(readers: Mapping[int, Batch], batch: Batch) -> bool:
    """Whether the ranges of such a slice overlap those of the batch."""
    return any(
        r.start < batch.ranges[p].end and batch.ranges[p].start < r.end
        for piece in readers.values()
        for p, r in piece.ranges.items()
        if p in batch.ranges
    )


def moment(ms: int) -> datetime:
    """Epoch milliseconds as a time."""
    return datetime.fromtimestamp(ms / 1000, UTC)
