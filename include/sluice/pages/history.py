"""What the timeline's pages and the metrics read: a week of events, and the table whose past can be asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table

from sluice.contract import folder as contract_folder
from sluice.errors import TableDamagedError
from sluice.iceberg import availability, snapshots, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.ledger.offsets_table import State
from sluice.plan import resolve_topics
from sluice.status import timeline
from sluice.status.events import INGEST, Event, Lane, lanes

BACK = timedelta(days=7)
HOURS = (1, 6, 24, 168)


@dataclass(frozen=True)
class History:
    """A week.

    Attributes:
        events: newest first, at most `timeline.MOST` in each lane.
        table: as it was read, without its catalog; None for several tables together.
        last: of each table the batch published last, where several are told of together.
        ledger_rows: of the whole ledger.
        unread: why something that tells of events could not be read: its events are missing.
        trouble: why the table can't be asked for its past.
    """

    at: datetime
    events: Sequence[Event]
    table: Table | None = None
    last: Sequence[Event] = ()
    ledger_rows: int = 0
    unread: Sequence[str] = ()
    trouble: str | None = None


def read(name: str) -> History:
    """Read a table's week.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    now = datetime.now(UTC)
    with availability.catalog_errors(), catalogs.load() as catalog:
        contract = resolve_topics.resolve(contract_folder.load(strict=False), catalog, None).tables.get(name)
        if contract is None:
            return History(now, ())
        unread: list[str] = []
        events = timeline.events(catalog, now - BACK, [contract], unread=unread)
        try:
            table, trouble = _alone(tables.load(catalog, table_names.typed(contract))), None
        except TableDamagedError as error:  # of all moments this is when somebody looks at what happened
            table, trouble = None, str(error)
        return History(now, events, table, unread=tuple(unread), trouble=trouble)


def _alone(table: Table | None) -> Table | None:
    """A table that is kept while nobody reads: its catalog would keep connections, or memory, for each of them."""
    return table and Table(table.name(), table.metadata, table.metadata_location, table.io, NoopCatalog("pages"))


def read_groups(groups: str) -> History:
    """Read the week of the tables of some groups: what is cut is cut from what their readers see.

    Args:
        groups: their names, as a list in JSON.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    now, wanted = datetime.now(UTC), set(json.loads(groups))
    with availability.catalog_errors(), catalogs.load() as catalog:
        known = resolve_topics.resolve(contract_folder.load(strict=False), catalog, None).tables.values()
        unread: list[str] = []
        mine = [c for c in known if c.group in wanted]
        events, last = timeline.of_several(catalog, now - BACK, mine, unread=unread)
        try:
            ledger = tables.load(catalog, table_names.LEDGER)
        except TableDamagedError:  # that its events are missing is told
            ledger = None
        return History(now, events, None, last, snapshots.rows(ledger) if ledger else 0, tuple(unread))


def together(*known: History | None) -> History | None:
    """What several tell; None where none of them was read. It is as of the newest: the others may be away since."""
    read = [each for each in known if each is not None]
    if not read:
        return None
    merged = sorted((e for each in read for e in each.events), key=lambda e: e.at, reverse=True)
    return History(max(each.at for each in read), merged, unread=tuple(why for each in read for why in each.unread))


def untold(happened: Sequence[Event]) -> Sequence[Event]:
    """What happened to one table, without the failed runs whose failure the ledger or maintenance tells of."""
    telling = (Lane.REFUSED, Lane.CATALOG, Lane.REGISTRY, Lane.MAINTENANCE)
    told = {_run(e) for e in happened if e.bad and e.lane in telling and not e.told.startswith(State.RETRIED)}
    return [e for e in happened if e.lane != Lane.RUNS or _run(e) not in told]


def _run(event: Event) -> tuple[str, str | None]:
    """Which run it was: those of several DAGs that are scheduled for one moment have the same id."""
    dag = event.dag or INGEST
    return INGEST if dag.startswith(f"{INGEST}_") else dag, event.run_id


@dataclass(frozen=True)
class Window:
    """A part of a history, as a page draws it: events between two moments, by lane.

    Attributes:
        cut: where older events were left out, because there are too many.
    """

    start: datetime
    end: datetime
    events: Sequence[Event]
    lanes: Sequence[tuple[Lane, Sequence[Event]]]
    cut: Sequence[Lane]

    @property
    def middle(self) -> datetime:
        """Half way."""
        return self.start + (self.end - self.start) / 2

    @property
    def batches(self) -> Sequence[Event]:
        """What was published."""
        return [e for e in self.events if e.lane == Lane.PUBLISHED]


def window(known: History, hours: int, events: Sequence[Event]) -> Window:
    """The last hours of some of a history's events."""
    start = known.at - timedelta(hours=hours)
    inside = [e for e in events if start <= e.at <= known.at]
    cut = [lane for lane, each in lanes(known.events) if len(each) >= timeline.MOST and each[-1].at > start]
    return Window(start, known.at, inside, lanes(inside), cut)
