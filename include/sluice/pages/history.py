"""The events of the last week or month, for the timelines, the metrics and the API.

In: the ledger and the tables. Out: a `History`, and the part of it that a page draws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from sluice.contract import folder as contract_folder
from sluice.errors import TableDamagedError
from sluice.iceberg import availability, snapshots, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.ledger.ledger_rows import LedgerState
from sluice.plan import resolve_topics
from sluice.status import timeline
from sluice.status.activity import TableActivity
from sluice.status.batch_counts import BatchCounts
from sluice.status.events import INGEST, MONTH_RANGES, WEEK_RANGES, Event, Lane, group_by_lane

WEEK = timedelta(hours=WEEK_RANGES[-1].hours)
MONTH = timedelta(hours=MONTH_RANGES[-1].hours)


class FileTotals(NamedTuple):
    """The data files that readers saw from a time on, and the bytes of all files."""

    at: datetime
    files: int
    size: int


@dataclass(frozen=True)
class History:
    """The events of a week or a month.

    Attributes:
        events: newest first, at most `timeline.MAX_EVENTS` per lane.
        table: without its catalog; None for several tables together.
        last: the last published batch of each table; only for several tables together.
        activity: what each table published lately; only for several tables and a week.
        ledger_rows: rows of the whole ledger.
        unread: the errors of sources that could not be read, and whose events are missing.
        trouble: the error, if the table's past states cannot be read.
        counts: all batches of the ranges that the reading covers, counted.
        files: oldest first, as far as the table's snapshot log reaches back.
    """

    at: datetime
    events: Sequence[Event]
    table: Table | None = None
    last: Sequence[Event] = ()
    activity: Mapping[str, TableActivity] = field(default_factory=dict)
    ledger_rows: int = 0
    unread: Sequence[str] = ()
    trouble: str | None = None
    counts: BatchCounts = field(default_factory=BatchCounts)
    files: Sequence[FileTotals] = ()


def read_history(name: str) -> History:
    """Read the last week of a table.

    Raises:
        CatalogUnavailableError: The catalog did not answer.
    """
    now = datetime.now(UTC)
    return _read_table(name, timeline.TimelineQuery(now - WEEK, until=now, ranges=WEEK_RANGES, bars=True))


def read_month(name: str) -> History:
    """Read the last 30 days of a table, as `read_history` does."""
    now = datetime.now(UTC)
    return _read_table(name, timeline.TimelineQuery(now - MONTH, until=now, ranges=MONTH_RANGES, bars=True))


def _read_table(name: str, query: timeline.TimelineQuery) -> History:
    now = query.until
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        contract = resolve_topics.resolve(contract_folder.load_contracts(strict=False), catalog, None).tables.get(name)
        if contract is None:
            return History(now, ())
        unread: list[str] = []
        found = timeline.read_timeline(catalog, replace(query, contracts=[contract]), unread)
        try:
            table, trouble = _detach_catalog(tables.load(catalog, table_names.typed(contract))), None
        except TableDamagedError as error:
            table, trouble = None, str(error)
        files = list_file_totals(table.metadata) if table else ()
        return History(
            now, found.events, table, unread=tuple(unread), trouble=trouble, counts=found.counts, files=files
        )


def list_file_totals(metadata: TableMetadata) -> list[FileTotals]:
    """The files of the snapshots that readers saw, oldest first, rollbacks included."""
    totals = {each.snapshot_id: snapshots.read_totals(each) for each in metadata.snapshots}
    known = ((entry.timestamp_ms, totals.get(entry.snapshot_id, {})) for entry in metadata.snapshot_log)
    return [
        FileTotals(datetime.fromtimestamp(at / 1000, UTC), each["files"], each["bytes"])
        for at, each in known
        if "files" in each and "bytes" in each
    ]


def _detach_catalog(table: Table | None) -> Table | None:
    """Detach a table that is kept in memory from its catalog, which would hold connections open."""
    return table and Table(table.name(), table.metadata, table.metadata_location, table.io, NoopCatalog("pages"))


def read_group_history(groups: str) -> History:
    """Read the last week of the tables of some groups. The limit per lane applies to these tables only.

    Args:
        groups: their names, as a JSON list.

    Raises:
        CatalogUnavailableError: The catalog did not answer.
    """
    now = datetime.now(UTC)
    return _read_groups(groups, timeline.TimelineQuery(now - WEEK, until=now, ranges=WEEK_RANGES, activity=True))


def read_group_month(groups: str) -> History:
    """Read the last 30 days of the tables of some groups, as `read_group_history` does."""
    now = datetime.now(UTC)
    return _read_groups(groups, timeline.TimelineQuery(now - MONTH, until=now, ranges=MONTH_RANGES, stream=True))


def _read_groups(groups: str, query: timeline.TimelineQuery) -> History:
    now, wanted = query.until, set(json.loads(groups))
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        known = resolve_topics.resolve(contract_folder.load_contracts(strict=False), catalog, None).tables.values()
        unread: list[str] = []
        mine = [c for c in known if c.group in wanted]
        found = timeline.read_timeline(catalog, replace(query, contracts=mine), unread)
        try:
            ledger = tables.load(catalog, table_names.LEDGER)
        except TableDamagedError:  # its events are reported as missing
            ledger = None
        rows = snapshots.count_rows(ledger) if ledger else 0
        last, activity, counts = found.last, found.activity, found.counts
        return History(now, found.events, None, last, activity, rows, tuple(unread), counts=counts)


def merge_histories(*known: History | None) -> History | None:
    """Merge the histories that were read; None if none was. The result has the time of the newest."""
    read = [each for each in known if each is not None]
    if not read:
        return None
    merged = sorted((e for each in read for e in each.events), key=lambda e: e.at, reverse=True)
    return History(max(each.at for each in read), merged, unread=tuple(why for each in read for why in each.unread))


def drop_explained_runs(events: Sequence[Event]) -> Sequence[Event]:
    """Drop the failed runs of one table whose failure the ledger or maintenance shows as well."""
    explaining = (Lane.REFUSED, Lane.CATALOG, Lane.REGISTRY, Lane.MAINTENANCE)
    explained = {
        _run_key(e) for e in events if e.bad and e.lane in explaining and not e.told.startswith(LedgerState.RETRIED)
    }
    return [e for e in events if e.lane != Lane.RUNS or _run_key(e) not in explained]


def _run_key(event: Event) -> tuple[str, str | None]:
    """DAG and run id: DAGs scheduled for the same time have the same run id."""
    dag = event.dag or INGEST
    return INGEST if dag.startswith(f"{INGEST}_") else dag, event.run_id


@dataclass(frozen=True)
class TimelineWindow:
    """The events of a time window, newest first.

    Attributes:
        cut: lanes whose older events are left out, because there are too many.
    """

    start: datetime
    end: datetime
    events: Sequence[Event]
    cut: Sequence[Lane]

    @property
    def middle(self) -> datetime:
        """The time in the middle of the window."""
        return self.start + (self.end - self.start) / 2


def select_hours(known: History, hours: int, events: Sequence[Event]) -> TimelineWindow:
    """Select the last hours of some of a history's events."""
    start = known.at - timedelta(hours=hours)
    inside = [e for e in events if start <= e.at <= known.at]
    cut = [
        lane for lane, each in group_by_lane(known.events) if len(each) >= timeline.MAX_EVENTS and each[-1].at > start
    ]
    return TimelineWindow(start, known.at, inside, cut)
