"""Events on one time axis, and the table as readers saw it at any time.

In: the ledger, Sluice's quality, schema and maintenance tables, and the table's own snapshots and snapshot log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from sluice import dag_ids
from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, TOPIC, PublishedOffsets, decode_published_through
from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError, SluiceError
from sluice.iceberg import availability, cursor, snapshots, table_names, tables
from sluice.ledger import maintenance_table, quality_table, schemas_table
from sluice.ledger.error_causes import Cause, classify
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, row_from_record
from sluice.ledger.newest_rows import take_newest
from sluice.offsets import OffsetRange
from sluice.status import ledger_history
from sluice.status.activity import TableActivity
from sluice.status.batch_counts import BatchCounts, count_batches, list_batches, make_bars
from sluice.status.events import INGEST, Event, Lane, TimeRange, batch_name, group_by_lane
from sluice.status.ledger_activity import summarize_activity

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

MAX_EVENTS = 500
MAX_ROWS_KEPT = 50_000
"""So many rows of a long time are in memory before only the newest of frequent ones are kept."""
MAX_TABLES_WITH_FILES = 50
"""File events take each table's metadata: of more tables together, they are left out."""

_BATCH_STATES = (LedgerState.STAGED, LedgerState.PUBLISHED)
_ERROR_STATES = (LedgerState.BLOCKED, LedgerState.FAILED, LedgerState.RETRIED)
_OPERATOR_STATES = (
    *(LedgerState.GAP, LedgerState.ROLLED_BACK, LedgerState.REPLAYED, LedgerState.RETIRED),
    LedgerState.TOLERATED,
)
_SHOWN_STATES = (*_BATCH_STATES, *_ERROR_STATES, *_OPERATOR_STATES)
_ERROR_LANES = {Cause.CATALOG: Lane.CATALOG, Cause.REGISTRY: Lane.REGISTRY, None: Lane.REFUSED}
_ANSWERS = (schemas_table.SchemaState.APPROVED, schemas_table.SchemaState.REJECTED)
_DAGS = {"publish": INGEST, "replay": dag_ids.BACKFILL}


def read_events(
    catalog: Catalog,
    since: datetime,
    contracts: Sequence[Contract] | None = None,
    *,
    most: int | None = None,
    unread: list[str] | None = None,
) -> list[Event]:
    """Read the events since a time, newest first.

    Args:
        contracts: the contracts of the tables; None: all tables.
        most: limit per lane, so that frequent batches crowd out nothing else.
        unread: takes the errors of sources that could not be read; without it, such an error is raised.
    """
    return [*read_timeline(catalog, TimelineQuery(since, contracts, most), unread).events]


@dataclass(frozen=True)
class TimelineQuery:
    """Which events to read.

    Attributes:
        contracts: the contracts of the tables; None: all tables.
        most: limit per lane, so that frequent batches crowd out nothing else.
        until: the end of the ranges; default: now.
        ranges: count the batches in these ranges.
        bars: make the bars of one table.
        activity: summarize what each table published lately.
        stream: of many tables and a long time: read the ledger part by part, and keep of frequent rows the newest.
    """

    since: datetime
    contracts: Sequence[Contract] | None = None
    most: int | None = None
    until: datetime = field(default_factory=lambda: datetime.now(UTC))
    ranges: Sequence[TimeRange] = ()
    bars: bool = False
    activity: bool = False
    stream: bool = False


@dataclass(frozen=True)
class Timeline:
    """What `read_timeline` found.

    Attributes:
        events: newest first.
        last: the last published batch of each table.
        activity: what each table published lately, however many events there are.
        counts: the batches of each range.
    """

    events: Sequence[Event] = ()
    last: Sequence[Event] = ()
    activity: Mapping[str, TableActivity] = field(default_factory=dict)
    counts: BatchCounts = field(default_factory=BatchCounts)


def read_timeline(catalog: Catalog, query: TimelineQuery, unread: list[str] | None = None) -> Timeline:
    """Read the events as `read_events` does, with the last batches and the counts of batches."""
    most, since, contracts = query.most or MAX_EVENTS, query.since, query.contracts
    names = None if contracts is None else {c.table for c in contracts}
    last: list[Event] = []
    counts = BatchCounts()
    activity: dict[str, TableActivity] = {}

    def read_ledger() -> Iterator[Event]:
        nonlocal counts
        rows, counts = _read_ledger(catalog, query, most)
        if rows:
            last.extend(_last_published(rows))
            if query.activity:
                activity.update(summarize_activity(rows, query.until))
            for lane in _split_by_lane(rows):
                yield from _ledger_events(lane.slice(0, most), rows)

    found: list[Event] = []
    for source in (
        read_ledger,
        lambda: _quality_events(catalog, since, names, most),
        lambda: _schema_events(catalog, since, names),
        lambda: _maintenance_events(catalog, since, names, most),
        lambda: _file_events(catalog, since, contracts or ()),
    ):
        try:
            found += source()
        except (SluiceError, FileNotFoundError) as error:
            if unread is None or isinstance(error, CatalogUnavailableError):
                raise
            unread.append(str(error) if isinstance(error, SluiceError) else availability.missing_file_message(error))
    # A run of review_schema applies the change, and rolls the table back where it republishes.
    answered = {e.run_id for e in found if e.dag == dag_ids.REVIEW_SCHEMA}
    found = [
        replace(e, dag=dag_ids.REVIEW_SCHEMA) if e.dag in (None, dag_ids.ROLLBACK) and e.run_id in answered else e
        for e in found
    ]
    kept = [event for _, each in group_by_lane(_newest_first(found)) for event in each[:most]]
    return Timeline(_newest_first(kept), last, activity, counts)


def _read_ledger(catalog: Catalog, query: TimelineQuery, most: int) -> tuple[pa.Table | None, BatchCounts]:
    """The ledger's rows, newest first, and the batches of each range."""
    if not query.stream:
        rows = ledger_history.read_rows(catalog, query.since, query.contracts, _SHOWN_STATES)
        if not rows or not query.ranges:
            return rows, BatchCounts()
        batches = list_batches(rows) if query.bars else []
        bars = {each.hours: make_bars(batches, each, query.until) for each in query.ranges}
        return rows, BatchCounts(bars, count_batches([rows], query.ranges, query.until))
    kept: list[pa.Table] = []

    def parts() -> Iterator[pa.Table]:
        limit = MAX_ROWS_KEPT
        for rows in ledger_history.read_parts(catalog, query.since, query.contracts, _SHOWN_STATES):
            kept.append(rows)
            yield rows
            if sum(map(len, kept)) > limit:
                kept[:] = [_thin_out(pa.concat_tables(kept), most)]
                limit = MAX_ROWS_KEPT + len(kept[0])

    cells = count_batches(parts(), query.ranges, query.until)
    return (_thin_out(pa.concat_tables(kept), most) if kept else None), BatchCounts({}, cells)


def _thin_out(rows: pa.Table, most: int) -> pa.Table:
    """Keep the newest staged and the newest published rows, and all others; newest first."""
    newest_first = rows.sort_by([("at", "descending")])
    of_state = [newest_first.filter(pc.equal(newest_first["state"], state)).slice(0, most) for state in _BATCH_STATES]
    others = newest_first.filter(pc.invert(pc.is_in(newest_first["state"], pa.array(map(str, _BATCH_STATES)))))
    # Sorting copies: a slice alone would keep all rows in memory.
    return pa.concat_tables([*of_state, others]).sort_by([("at", "descending")])


def _split_by_lane(rows: pa.Table) -> Iterator[pa.Table]:
    """Split the ledger's rows by lane, so that rows of one lane crowd out none of another."""
    for states in (*((state,) for state in _BATCH_STATES), _OPERATOR_STATES):
        yield rows.filter(pc.is_in(rows["state"], pa.array(map(str, states))))
    trouble = rows.filter(pc.is_in(rows["state"], pa.array(map(str, _ERROR_STATES))))
    if "exception" not in trouble.column_names:  # a ledger of an older version
        yield trouble
        return
    known = trouble["exception"].unique().to_pylist()
    for each in _ERROR_LANES:
        classes = pa.array([name for name in known if classify(name) == each], pa.string())
        yield trouble.filter(pc.is_in(trouble["exception"], classes))


def _newest_first(found: Iterable[Event]) -> list[Event]:
    return sorted(found, key=lambda e: e.at, reverse=True)


def read_published_batches(catalog: Catalog, since: datetime, contract: Contract) -> list[Event]:
    """Read the batches published to a table since a time, newest first, from the ledger alone."""
    rows = ledger_history.read_rows(catalog, since, [contract], _BATCH_STATES)
    return [*_ledger_events(rows.filter(pc.equal(rows["state"], LedgerState.PUBLISHED)), rows)] if rows else []


def _last_published(rows: pa.Table) -> list[Event]:
    live = rows.filter(pc.greater(pc.fill_null(rows["batch_seq"], 0), 0))
    last = take_newest(live.filter(pc.equal(live["state"], LedgerState.PUBLISHED)), ("table",))
    return [*_ledger_events(last, rows)]


def _ledger_events(rows: pa.Table, ledger: pa.Table) -> Iterator[Event]:
    """Make events of some ledger rows; the event of a published batch takes fields of its staged row."""
    theirs = rows.filter(pc.equal(rows["state"], LedgerState.PUBLISHED))
    beside = ledger.filter(
        pc.and_(
            pc.equal(ledger["state"], LedgerState.STAGED),
            pc.and_(pc.is_in(ledger["topic"], theirs["topic"]), pc.is_in(ledger["batch_seq"], theirs["batch_seq"])),
        )
    )
    staged = {(r.topic, r.batch_seq): r for r in map(row_from_record, beside.to_pylist())}
    back = ledger.filter(pc.equal(ledger["state"], LedgerState.ROLLED_BACK))
    undone = {(r.run_id, r.table) for r in map(row_from_record, back.to_pylist())}
    for row in map(row_from_record, rows.to_pylist()):
        # A gap that a rollback accepted for the table.
        lost = row.state == LedgerState.GAP and (row.run_id, row.table) in undone
        dag = dag_ids.ROLLBACK if lost else _row_dag(row)
        yield _row_event(row, staged.get((row.topic, row.batch_seq)), dag)


def _row_event(row: LedgerRow, staged: LedgerRow | None, dag: str | None) -> Event:
    published, oldest = row.state == LedgerState.PUBLISHED, staged.oldest if staged else None
    batch = "" if row.batch_seq is None else batch_name(row.batch_seq)
    offsets = OffsetRange(row.start_offset or 0, row.end_offset or 0)
    place = "" if row.partition is None else f"partition {row.partition} [{offsets.start}, {offsets.end})"
    counts = "" if row.records is None else f"{row.records:,} records"
    rejected = f"{row.rejected:,} quarantined" if row.rejected else ""
    reason = ": ".join(part for part in (row.who, row.why) if part) if row.why else ""
    lane = _row_lane(row)
    error = (
        f"{(row.exception or '').rpartition('.')[2]}: {row.error}"
        if lane in (Lane.CATALOG, Lane.REGISTRY)
        else row.error
    )
    parts = (str(row.state).replace("_", " "), row.topic, batch, place, counts, rejected, error, reason)
    return Event(
        row.at, lane, ", ".join(p for p in parts if p), row.table, row.topic,
        row.state in (*_ERROR_STATES, LedgerState.GAP), row.run_id, row.seconds, row.records, row.rejected,
        (row.snapshots or {}).get(row.table or ""),
        (row.at - oldest).total_seconds() if oldest and published else None,
        staged.unread if staged and published else row.unread,
        row.commit_seconds,
        dag,
        row.batch_seq,
    )  # fmt: skip


def _row_lane(row: LedgerRow) -> Lane:
    if row.state in _ERROR_STATES:
        return _ERROR_LANES[classify(row.exception)]
    return Lane.OPERATOR if row.state in _OPERATOR_STATES else Lane(row.state)


def _row_dag(row: LedgerRow) -> str | None:
    """The DAG that wrote a row. A gap without a name was restored by healing the ledger."""
    if row.state == LedgerState.ROLLED_BACK:
        return dag_ids.ROLLBACK
    if row.state == LedgerState.GAP:
        return dag_ids.ACCEPT_GAP if row.who else None
    if row.state == LedgerState.TOLERATED:
        return dag_ids.PUBLISH_BLOCKED
    return _batch_dag(row.batch_seq)


def _batch_dag(seq: int | None) -> str | None:
    return None if not seq else INGEST if seq > 0 else dag_ids.BACKFILL


def _quality_events(catalog: Catalog, since: datetime, names: Collection[str] | None, most: int) -> Iterator[Event]:
    by_batch: dict[tuple[str, str, int], list[quality_table.ExpectationResult]] = {}
    for result in quality_table.read_results_since(catalog, since, names, batches=most):
        by_batch.setdefault((result.table, result.topic, result.batch_seq), []).append(result)
    for (name, topic, seq), results in by_batch.items():
        failed = [f"{r.severity}: {r.summary}" for r in results if r.success is False]
        count = f"{len(failed)} of {len(results)} expectations failed: " if failed else ""
        text = f"{count}{'; '.join(failed)}" or f"{len(results)} expectations, none failed"
        yield Event(
            results[-1].at, Lane.QUALITY, f"{topic}, {batch_name(seq)}: {text}", name, topic, bool(failed),
            results[-1].run_id, dag=_batch_dag(seq), batch=seq,
        )  # fmt: skip


def _schema_events(catalog: Catalog, since: datetime, names: Collection[str] | None) -> Iterator[Event]:
    for row in schemas_table.read_schema_rows(catalog, None, since):
        if names is not None and row.table not in names:
            continue
        text = f"version {row.version} {row.state}: {'; '.join(row.words) or 'first version'}"
        if row.who:
            text += f" ({row.who}{f': {row.why}' if row.why else ''})"
        is_open = row.state == schemas_table.SchemaState.REVIEW
        dag = dag_ids.REVIEW_SCHEMA if row.state in _ANSWERS else None
        yield Event(
            row.at, Lane.SCHEMA, text, row.table, bad=is_open, run_id=row.run_id, snapshot_id=row.snapshot_id, dag=dag
        )


def _maintenance_events(catalog: Catalog, since: datetime, names: Collection[str] | None, most: int) -> Iterator[Event]:
    where = maintenance_table.ResultFilter(tables=names, states=("done", "failed"), since=since)
    columns = maintenance_table.SUMMARY_COLUMNS
    for effect in maintenance_table.read_results(catalog, where, columns=columns, limit=most):
        text = f"{effect.action.replace('_', ' ')}: {effect.summary}"
        yield Event(
            effect.at, Lane.MAINTENANCE, text, effect.table, bad=effect.failed, run_id=effect.run_id,
            seconds=effect.seconds, dag=dag_ids.maintenance_dag(effect.action),
        )  # fmt: skip


def _file_events(catalog: Catalog, since: datetime, contracts: Sequence[Contract]) -> Iterator[Event]:
    """Events for commits that added files to typed tables, on any branch; none for too many tables."""
    for contract in contracts if len(contracts) <= MAX_TABLES_WITH_FILES else ():
        try:
            table = tables.load(catalog, table_names.typed(contract))
        except SluiceError:  # its metadata is missing: the status reports it
            continue
        visible = snapshots.visible_times(table.metadata) if table else {}
        for snapshot in table.metadata.snapshots if table else ():
            summary, at = snapshots.summary(snapshot), visible[snapshot.snapshot_id]
            data, deletes, gone = (
                int(summary.get(name, "0")) for name in ("added-data-files", "added-delete-files", "deleted-data-files")
            )
            if at <= since or not data + deletes:
                continue
            size = int(summary.get("added-files-size", "0"))
            made = " and ".join(_count_files(n, kind) for n, kind in ((data, "data"), (deletes, "delete")) if n)
            out = f", {_count_files(gone, 'data')} removed" if gone else ""
            step = summary.get(STEP) or (snapshot.summary.operation.value if snapshot.summary else "")
            yield Event(
                at, Lane.FILES, f"{step}: {made} created, {size / 1000:,.1f} kB{out}", contract.table,
                summary.get(TOPIC), run_id=summary.get(RUN_ID), snapshot_id=snapshot.snapshot_id, dag=_DAGS.get(step),
            )  # fmt: skip


def _count_files(number: int, kind: str) -> str:
    return f"{number:,} {kind} file{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class TableAsOf:
    """The table as readers saw it at a time.

    Attributes:
        since: when its snapshot became the current one.
        until: when another snapshot replaced it; None: it is still current.
        through: the last batch and next offsets, by topic.
        totals: from the snapshot summary.
    """

    at: datetime
    snapshot_id: int
    since: datetime
    until: datetime | None
    through: Mapping[str, PublishedOffsets]
    totals: Mapping[str, int]


def _are_adjacent(table: Table, one: int, other: int) -> bool:
    """Whether main went directly from one snapshot to the other, with no entry in between lost from the log.

    A commit's snapshot has the previous one as parent; a rollback leads to an ancestor. A lost entry breaks the chain
    of parents, or leaves the same snapshot twice in a row.
    """
    lines = [{s.snapshot_id for s in snapshots.ancestors(table.metadata, each)} for each in (one, other)]
    return one != other and (one in lines[1] or other in lines[0])


def find_table_as_of(table: Table, at: datetime) -> TableAsOf | None:
    """Find the main branch's snapshot at a time in the table's snapshot log.

    Returns:
        None if the log does not reach back: expiry shortens it, and PyIceberg's expiry removes single entries.

    Raises:
        CursorUnknownError: The snapshot exists, but the one with its offsets has expired.
    """
    log = table.metadata.snapshot_log
    last = max((i for i, e in enumerate(log) if e.timestamp_ms <= at.timestamp() * 1000), default=None)
    if last is None or (snapshot := table.metadata.snapshot_by_id(log[last].snapshot_id)) is None:
        return None
    if last + 1 < len(log) and not _are_adjacent(table, log[last].snapshot_id, log[last + 1].snapshot_id):
        return None
    since, *after = (datetime.fromtimestamp(e.timestamp_ms / 1000, UTC) for e in log[last : last + 2])
    carrier = cursor.find_offset_snapshot(table, PUBLISHED_THROUGH, snapshot)
    through = decode_published_through(snapshots.summary(carrier)[PUBLISHED_THROUGH]) if carrier else {}
    return TableAsOf(at, snapshot.snapshot_id, since, next(iter(after), None), through, snapshots.read_totals(snapshot))
