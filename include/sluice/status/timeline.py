"""Events on one time axis, and the table as readers saw it at any time.

In: the ledger, Sluice's quality, schema and maintenance tables, and the table's own snapshots and snapshot log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from sluice import dag_ids
from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, TOPIC, PublishedOffsets, decode_published_through
from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError, SluiceError, missing_file_message
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.iceberg.filters import And, Or, above, one_of
from sluice.ledger import maintenance_table, quality_table, schemas_table
from sluice.ledger.error_causes import Cause, classify
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, row_from_record
from sluice.ledger.newest_rows import take_newest
from sluice.offsets import OffsetRange
from sluice.status.activity import TableActivity
from sluice.status.events import INGEST, Event, Lane, group_by_lane
from sluice.status.ledger_activity import summarize_activity

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

MAX_EVENTS = 500
MAX_FILTER_TOPICS = 20
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
    return read_events_and_activity(catalog, since, contracts, most=most, unread=unread).events


class EventsRead(NamedTuple):
    """What a reading found.

    Attributes:
        events: newest first.
        last: the last published batch of each table.
        activity: by table.
    """

    events: list[Event]
    last: list[Event]
    activity: dict[str, TableActivity]


def read_events_and_activity(
    catalog: Catalog,
    since: datetime,
    contracts: Sequence[Contract] | None = None,
    *,
    most: int | None = None,
    unread: list[str] | None = None,
) -> EventsRead:
    """Read the events as `read_events` does, and what each table published lately, however many events there are."""
    most = most or MAX_EVENTS
    names = None if contracts is None else {c.table for c in contracts}
    last: list[Event] = []
    activity: dict[str, TableActivity] = {}

    def read_ledger() -> Iterator[Event]:
        rows = _read_ledger_rows(catalog, since, contracts, _SHOWN_STATES)
        if rows:
            last.extend(_last_published(rows))
            activity.update(summarize_activity(rows, datetime.now(UTC)))
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
            unread.append(missing_file_message(error) if isinstance(error, FileNotFoundError) else str(error))
    # A run of review_schema applies the change, and rolls the table back where it republishes.
    answered = {e.run_id for e in found if e.dag == dag_ids.REVIEW_SCHEMA}
    found = [
        replace(e, dag=dag_ids.REVIEW_SCHEMA) if e.dag in (None, dag_ids.ROLLBACK) and e.run_id in answered else e
        for e in found
    ]
    kept = [event for _, each in group_by_lane(_newest_first(found)) for event in each[:most]]
    return EventsRead(_newest_first(kept), last, activity)


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
    rows = _read_ledger_rows(catalog, since, [contract], _BATCH_STATES)
    return [*_ledger_events(rows.filter(pc.equal(rows["state"], LedgerState.PUBLISHED)), rows)] if rows else []


def _last_published(rows: pa.Table) -> list[Event]:
    live = rows.filter(pc.greater(pc.fill_null(rows["batch_seq"], 0), 0))
    last = take_newest(live.filter(pc.equal(live["state"], LedgerState.PUBLISHED)), ("table",))
    return [*_ledger_events(last, rows)]


def _read_ledger_rows(
    catalog: Catalog, since: datetime, contracts: Sequence[Contract] | None, states: Iterable[LedgerState]
) -> pa.Table | None:
    """Read the ledger's rows with these states since a time, newest first; None without a ledger."""
    ledger = tables.load(catalog, table_names.LEDGER)
    if ledger is None or ledger.current_snapshot() is None:
        return None
    where = And(above("at", since.isoformat()), one_of("state", [str(s) for s in states]))
    topics = {topic for c in contracts or () for topic in c.topics}
    if 0 < len(topics) <= MAX_FILTER_TOPICS:  # the cost of a filter grows with files times topics
        own = one_of("table", sorted({c.table for c in contracts or ()}))
        where = And(Or(one_of("topic", sorted(topics)), own), where)
    newest_first = ledger.scan(row_filter=where).to_arrow().sort_by([("at", "descending")])
    if contracts is not None:  # before the limit applies: a topic may feed tables that the user may not see
        names = pa.array([c.table for c in contracts], pa.string())
        own = pc.is_in(newest_first["table"], names)  # also of topics that the table no longer reads
        read = pc.is_in(newest_first["topic"], pa.array(sorted(topics), pa.string()))
        newest_first = newest_first.filter(pc.or_(own, pc.and_(pc.is_null(newest_first["table"]), read)))
    return _merge_staged_rows(newest_first)


def _merge_staged_rows(rows: pa.Table) -> pa.Table:
    """Keep one staged row per batch: older versions wrote one per partition."""
    staged = pc.equal(rows["state"], LedgerState.STAGED)
    if not pc.any(pc.and_(staged, pc.is_valid(rows["partition"]))).as_py():
        return rows
    best: dict[tuple[str, int], int] = {}
    spread: set[int] = set()
    columns = (rows[name].to_pylist() for name in ("state", "topic", "batch_seq", "partition"))
    for n, (state, topic, seq, partition) in enumerate(zip(*columns, strict=True)):
        if state == LedgerState.STAGED and partition is not None:
            spread.add(n)
            best.setdefault((topic, seq), n)
        elif state == LedgerState.STAGED:  # written by the run itself: it has more fields
            best[topic, seq] = n
    kept = sorted({*range(len(rows))} - spread | {*best.values()})
    whole = pc.if_else(staged, pa.scalar(None, rows["partition"].type), rows["partition"])
    return rows.set_column(rows.column_names.index("partition"), "partition", whole).take(pa.array(kept, pa.int64()))


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
        lost = (
            row.state == LedgerState.GAP and (row.run_id, row.table) in undone
        )  # a gap that a rollback accepted for the table
        dag = dag_ids.ROLLBACK if lost else _row_dag(row)
        yield _row_event(row, staged.get((row.topic, row.batch_seq)), dag)


def _row_event(row: LedgerRow, staged: LedgerRow | None, dag: str | None) -> Event:
    published, oldest = row.state == LedgerState.PUBLISHED, staged.oldest if staged else None
    batch = (
        "" if row.batch_seq is None else f"batch {row.batch_seq}" if row.batch_seq >= 0 else f"slice {row.batch_seq}"
    )
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
        text = f"{topic}, batch {seq}: {'; '.join(failed) or f'{len(results)} expectations, none failed'}"
        run_id = results[-1].run_id
        yield Event(results[-1].at, Lane.QUALITY, text, name, topic, bool(failed), run_id, dag=_batch_dag(seq))


def _schema_events(catalog: Catalog, since: datetime, names: Collection[str] | None) -> Iterator[Event]:
    for row in schemas_table.read_schema_rows(catalog, None, since):
        if names is not None and row.table not in names:
            continue
        text = f"version {row.version} {row.state}: {'; '.join(row.words) or 'first version'}"
        if row.who:
            text += f" ({row.who}{f': {row.why}' if row.why else ''})"
        is_open = row.state == schemas_table.SchemaState.REVIEW
        dag = (
            dag_ids.REVIEW_SCHEMA
            if row.state in (schemas_table.SchemaState.APPROVED, schemas_table.SchemaState.REJECTED)
            else None
        )
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
