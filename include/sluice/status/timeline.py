"""What happened, on one time axis, and what was true at a moment: told by the ledger and the tables' own history.

The ledger tells of batches and of what operators did, `sluice.quality`, `sluice.schemas` and `sluice.maintenance` of
the rest; a table's snapshots tell which files each added, its snapshot log which of them readers saw at a moment, and
that snapshot which offsets it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, TOPIC, Through, decode_through
from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError, SluiceError, gone
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.iceberg.filters import And, Or, above, one_of
from sluice.ledger import maintenance_table, quality_table, schemas_table
from sluice.ledger.error_causes import Cause, cause
from sluice.ledger.newest_rows import newest
from sluice.ledger.offsets_table import Row, State, row_of
from sluice.offsets import OffsetRange
from sluice.status.events import BY_HAND, INGEST, Event, Lane, lanes

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

MOST = 500
FEW = 20
FILES_OF = 50
"""Of so many tables at once each one's metadata is read for the files that were created."""

_OF_BATCHES = (State.STAGED, State.PUBLISHED)
_TROUBLE = (State.BLOCKED, State.FAILED, State.RETRIED)
_BY_HAND = (State.GAP, State.ROLLED_BACK, State.REPLAYED)
_TOLD = (*_OF_BATCHES, *_TROUBLE, *_BY_HAND)
_ERRORS = {Cause.CATALOG: Lane.CATALOG, Cause.REGISTRY: Lane.REGISTRY, None: Lane.REFUSED}
_BACKFILL, _ROLLBACK, _ACCEPT_GAP, _REVIEW = BY_HAND
_DAGS = {"publish": INGEST, "replay": _BACKFILL}


def events(
    catalog: Catalog,
    since: datetime,
    contracts: Sequence[Contract] | None = None,
    *,
    most: int | None = None,
    unread: list[str] | None = None,
) -> list[Event]:
    """What happened from a moment on, to these contracts' tables and their topics or to all, newest first.

    Args:
        most: how many in each lane, the newest of them: batches, which come all the time, crowd out nothing else.
        unread: takes why something that tells of events could not be read, which then keeps no other from telling;
            without it that is an error.
    """
    return of_several(catalog, since, contracts, most=most, unread=unread)[0]


def of_several(
    catalog: Catalog,
    since: datetime,
    contracts: Sequence[Contract] | None = None,
    *,
    most: int | None = None,
    unread: list[str] | None = None,
) -> tuple[list[Event], list[Event]]:
    """The events of these tables from a moment on, newest first; and of each the batch that was published last."""
    most = most or MOST
    names = None if contracts is None else {c.table for c in contracts}
    last: list[Event] = []

    def of_ledger() -> Iterator[Event]:
        rows = _rows(catalog, since, contracts, _TOLD)
        if rows:
            last.extend(_published_last(rows))
            for lane in _by_lane(rows):
                yield from _events(lane.slice(0, most), rows)

    found: list[Event] = []
    for source in (
        of_ledger,
        lambda: _of_quality(catalog, since, names, most),
        lambda: _of_schemas(catalog, since, names),
        lambda: _of_maintenance(catalog, since, names, most),
        lambda: _of_files(catalog, since, contracts or ()),
    ):
        try:
            found += source()
        except (SluiceError, FileNotFoundError) as error:
            if unread is None or isinstance(error, CatalogUnavailableError):
                raise
            unread.append(gone(error) if isinstance(error, FileNotFoundError) else str(error))
    # The answer applies the change within its run, and takes the table back where it publishes again.
    answered = {e.run_id for e in found if e.dag == _REVIEW}
    found = [replace(e, dag=_REVIEW) if e.dag in (None, _ROLLBACK) and e.run_id in answered else e for e in found]
    kept = [event for _, each in lanes(_newest_first(found)) for event in each[:most]]
    return _newest_first(kept), last


def _by_lane(rows: pa.Table) -> Iterator[pa.Table]:
    """The ledger's rows lane by lane, so that those of one crowd out none of another."""
    for states in (*((state,) for state in _OF_BATCHES), _BY_HAND):
        yield rows.filter(pc.is_in(rows["state"], pa.array(map(str, states))))
    trouble = rows.filter(pc.is_in(rows["state"], pa.array(map(str, _TROUBLE))))
    if "exception" not in trouble.column_names:  # a ledger that nobody has written to since it has that column
        yield trouble
        return
    known = trouble["exception"].unique().to_pylist()
    for each in _ERRORS:
        classes = pa.array([name for name in known if cause(name) == each], pa.string())
        yield trouble.filter(pc.is_in(trouble["exception"], classes))


def _newest_first(found: Iterable[Event]) -> list[Event]:
    return sorted(found, key=lambda e: e.at, reverse=True)


def published(catalog: Catalog, since: datetime, contract: Contract) -> list[Event]:
    """All batches that a table was published from a moment on, newest first; nothing but the ledger is read."""
    rows = _rows(catalog, since, [contract], _OF_BATCHES)
    return [*_events(rows.filter(pc.equal(rows["state"], State.PUBLISHED)), rows)] if rows else []


def _published_last(rows: pa.Table) -> list[Event]:
    live = rows.filter(pc.greater(pc.fill_null(rows["batch_seq"], 0), 0))
    last = newest(live.filter(pc.equal(live["state"], State.PUBLISHED)), ("table",))
    return [*_events(last, rows)]


def _rows(
    catalog: Catalog, since: datetime, contracts: Sequence[Contract] | None, states: Iterable[State]
) -> pa.Table | None:
    """The ledger's rows of these states from a moment on, newest first; None where there is no ledger."""
    ledger = tables.load(catalog, table_names.LEDGER)
    if ledger is None or ledger.current_snapshot() is None:
        return None
    where = And(above("at", since.isoformat()), one_of("state", [str(s) for s in states]))
    topics = {topic for c in contracts or () for topic in c.topics}
    if 0 < len(topics) <= FEW:  # a filter grows with files times topics
        own = one_of("table", sorted({c.table for c in contracts or ()}))
        where = And(Or(one_of("topic", sorted(topics)), own), where)
    newest_first = ledger.scan(row_filter=where).to_arrow().sort_by([("at", "descending")])
    if contracts is not None:  # before they are cut: a topic may feed many tables, and not everybody sees all
        names = pa.array([c.table for c in contracts], pa.string())
        own = pc.is_in(newest_first["table"], names)  # of a topic that it reads no more, too
        read = pc.is_in(newest_first["topic"], pa.array(sorted(topics), pa.string()))
        newest_first = newest_first.filter(pc.or_(own, pc.and_(pc.is_null(newest_first["table"]), read)))
    return _gathered(newest_first)


def _gathered(rows: pa.Table) -> pa.Table:
    """One staged row per batch: older versions wrote one for each partition, which tell nothing but its ranges."""
    staged = pc.equal(rows["state"], State.STAGED)
    if not pc.any(pc.and_(staged, pc.is_valid(rows["partition"]))).as_py():
        return rows
    best: dict[tuple[str, int], int] = {}
    spread: set[int] = set()
    columns = (rows[name].to_pylist() for name in ("state", "topic", "batch_seq", "partition"))
    for n, (state, topic, seq, partition) in enumerate(zip(*columns, strict=True)):
        if state == State.STAGED and partition is not None:
            spread.add(n)
            best.setdefault((topic, seq), n)
        elif state == State.STAGED:  # written by the run itself: it tells more
            best[topic, seq] = n
    kept = sorted({*range(len(rows))} - spread | {*best.values()})
    whole = pc.if_else(staged, pa.scalar(None, rows["partition"].type), rows["partition"])
    return rows.set_column(rows.column_names.index("partition"), "partition", whole).take(pa.array(kept, pa.int64()))


def _events(rows: pa.Table, ledger: pa.Table) -> Iterator[Event]:
    """The events of some of the ledger's rows. A published batch is told with the help of its staged row."""
    theirs = rows.filter(pc.equal(rows["state"], State.PUBLISHED))
    beside = ledger.filter(
        pc.and_(
            pc.equal(ledger["state"], State.STAGED),
            pc.and_(pc.is_in(ledger["topic"], theirs["topic"]), pc.is_in(ledger["batch_seq"], theirs["batch_seq"])),
        )
    )
    staged = {(r.topic, r.batch_seq): r for r in map(row_of, beside.to_pylist())}
    back = ledger.filter(pc.equal(ledger["state"], State.ROLLED_BACK))
    undone = {(r.run_id, r.table) for r in map(row_of, back.to_pylist())}
    for row in map(row_of, rows.to_pylist()):
        lost = row.state == State.GAP and (row.run_id, row.table) in undone  # what a rollback gave up for the table
        dag = _ROLLBACK if lost else _dag(row)
        yield _of_row(row, staged.get((row.topic, row.batch_seq)), dag)


def _of_row(row: Row, staged: Row | None, dag: str | None) -> Event:
    published, oldest = row.state == State.PUBLISHED, staged.oldest if staged else None
    batch = (
        "" if row.batch_seq is None else f"batch {row.batch_seq}" if row.batch_seq >= 0 else f"slice {row.batch_seq}"
    )
    offsets = OffsetRange(row.start_offset or 0, row.end_offset or 0)
    place = "" if row.partition is None else f"partition {row.partition} [{offsets.start}, {offsets.end})"
    counts = "" if row.records is None else f"{row.records:,} records"
    rejected = f"{row.rejected:,} rejected" if row.rejected else ""
    word = ": ".join(part for part in (row.who, row.why) if part) if row.why else ""
    lane = _lane(row)
    error = (
        f"{(row.exception or '').rpartition('.')[2]}: {row.error}"
        if lane in (Lane.CATALOG, Lane.REGISTRY)
        else row.error
    )
    parts = (str(row.state).replace("_", " "), row.topic, batch, place, counts, rejected, error, word)
    return Event(
        row.at, lane, ", ".join(p for p in parts if p), row.table, row.topic,
        row.state in (*_TROUBLE, State.GAP), row.run_id, row.seconds, row.records, row.rejected,
        (row.snapshots or {}).get(row.table or ""),
        (row.at - oldest).total_seconds() if oldest and published else None,
        staged.unread if staged and published else row.unread,
        row.commit_seconds,
        dag,
    )  # fmt: skip


def _lane(row: Row) -> Lane:
    if row.state in _TROUBLE:
        return _ERRORS[cause(row.exception)]
    return Lane.OPERATOR if row.state in _BY_HAND else Lane(row.state)


def _dag(row: Row) -> str | None:
    """What wrote a row. A gap without somebody's name was written by whoever found that the ledger lacks it."""
    if row.state == State.ROLLED_BACK:
        return _ROLLBACK
    if row.state == State.GAP:
        return _ACCEPT_GAP if row.who else None
    return _of_batch(row.batch_seq)


def _of_batch(seq: int | None) -> str | None:
    """What a batch was run by, or a slice."""
    return None if not seq else INGEST if seq > 0 else _BACKFILL


def _of_quality(catalog: Catalog, since: datetime, names: Collection[str] | None, most: int) -> Iterator[Event]:
    by_batch: dict[tuple[str, str, int], list[quality_table.Result]] = {}
    for result in quality_table.since(catalog, since, names, batches=most):
        by_batch.setdefault((result.table, result.topic, result.batch_seq), []).append(result)
    for (name, topic, seq), results in by_batch.items():
        failed = [f"{r.severity}: {r.told}" for r in results if r.success is False]
        told = f"{topic}, batch {seq}: {'; '.join(failed) or f'{len(results)} expectations, none failed'}"
        run_id = results[-1].run_id
        yield Event(results[-1].at, Lane.QUALITY, told, name, topic, bool(failed), run_id, dag=_of_batch(seq))


def _of_schemas(catalog: Catalog, since: datetime, names: Collection[str] | None) -> Iterator[Event]:
    for row in schemas_table.rows(catalog, None, since):
        if names is not None and row.table not in names:
            continue
        told = f"version {row.version} {row.state}: {'; '.join(row.words) or 'the first'}"
        if row.who:
            told += f" ({row.who}{f': {row.why}' if row.why else ''})"
        waits = row.state == schemas_table.State.REVIEW
        dag = _REVIEW if row.state in (schemas_table.State.APPROVED, schemas_table.State.REJECTED) else None
        yield Event(
            row.at, Lane.SCHEMA, told, row.table, bad=waits, run_id=row.run_id, snapshot_id=row.snapshot_id, dag=dag
        )


def _of_maintenance(catalog: Catalog, since: datetime, names: Collection[str] | None, most: int) -> Iterator[Event]:
    states = ("done", "failed")
    for effect in maintenance_table.kept(
        catalog, names=names, states=states, since=since, fields=maintenance_table.TOLD, most=most
    ):
        told = f"{effect.action.replace('_', ' ')}: {effect.told}"
        yield Event(
            effect.at, Lane.MAINTENANCE, told, effect.table, bad=effect.red, run_id=effect.run_id,
            seconds=effect.seconds, dag=f"maintain_{effect.action}",
        )  # fmt: skip


def _of_files(catalog: Catalog, since: datetime, contracts: Sequence[Contract]) -> Iterator[Event]:
    """Each commit that added files to a typed table, on whatever branch; nothing of more than `FILES_OF` tables."""
    for contract in contracts if len(contracts) <= FILES_OF else ():
        try:
            table = tables.load(catalog, table_names.typed(contract))
        except SluiceError:  # its metadata is gone: the status tells of it
            continue
        landed = snapshots.landed(table.metadata) if table else {}
        for snapshot in table.metadata.snapshots if table else ():
            told, at = snapshots.summary(snapshot), landed[snapshot.snapshot_id]
            data, deletes, gone = (
                int(told.get(name, "0")) for name in ("added-data-files", "added-delete-files", "deleted-data-files")
            )
            if at <= since or not data + deletes:
                continue
            size = int(told.get("added-files-size", "0"))
            made = " and ".join(_files(n, kind) for n, kind in ((data, "data"), (deletes, "delete")) if n)
            out = f", {_files(gone, 'data')} taken out" if gone else ""
            step = told.get(STEP) or (snapshot.summary.operation.value if snapshot.summary else "")
            yield Event(
                at, Lane.FILES, f"{step}: {made} created, {size / 1000:,.1f} kB{out}", contract.table, told.get(TOPIC),
                run_id=told.get(RUN_ID), snapshot_id=snapshot.snapshot_id, dag=_DAGS.get(step),
            )  # fmt: skip


def _files(number: int, kind: str) -> str:
    return f"{number:,} {kind} file{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Standing:
    """What readers of a table saw at a moment.

    Attributes:
        since, until: when its snapshot became main's head, and when another did; None: it still is.
        through: per topic the last batch in it and the offsets after it.
        totals: what the snapshot says of the whole table.
    """

    at: datetime
    snapshot_id: int
    since: datetime
    until: datetime | None
    through: Mapping[str, Through]
    totals: Mapping[str, int]


def _follows(table: Table, one: int, other: int) -> bool:
    """Whether main went from one snapshot to the other, and to none in between that the log tells no more.

    A commit's snapshot has the one before it as its parent, a rollback leads to an ancestor. By an entry that is gone
    the chain is broken as well: the snapshot was deleted, and with it what names its parent. Or it stands twice.
    """
    lines = [{s.snapshot_id for s in snapshots.ancestors(table.metadata, each)} for each in (one, other)]
    return one != other and (one in lines[1] or other in lines[0])


def standing(table: Table, moment: datetime) -> Standing | None:
    """What main was at a moment, by the table's own snapshot log.

    Returns:
        None where the log does not tell: expiry shortens it, and PyIceberg's takes single entries out of it.

    Raises:
        CursorUnknownError: the snapshot is there, but expiry took the one that told of its offsets.
    """
    log = table.metadata.snapshot_log
    last = max((i for i, e in enumerate(log) if e.timestamp_ms <= moment.timestamp() * 1000), default=None)
    if last is None or (snapshot := table.metadata.snapshot_by_id(log[last].snapshot_id)) is None:
        return None
    if last + 1 < len(log) and not _follows(table, log[last].snapshot_id, log[last + 1].snapshot_id):
        return None
    since, *after = (datetime.fromtimestamp(e.timestamp_ms / 1000, UTC) for e in log[last : last + 2])
    told = cursor.carrier(table, PUBLISHED_THROUGH, snapshot)
    through = decode_through(snapshots.summary(told)[PUBLISHED_THROUGH]) if told else {}
    return Standing(moment, snapshot.snapshot_id, since, next(iter(after), None), through, snapshots.totals(snapshot))
