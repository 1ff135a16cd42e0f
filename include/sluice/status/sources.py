"""What a status is told by: Kafka, the catalog and the planner, asked once for all tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pyarrow.compute as pc
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import BrokerUnavailableError, SluiceError
from sluice.iceberg import availability, cursor, table_names, tables
from sluice.iceberg.filters import And, above, equal, one_of
from sluice.kafka import broker
from sluice.ledger import maintenance_table, offsets_table, quality_table, slices
from sluice.ledger import offsets_table as ledgers
from sluice.ledger.newest_rows import newest
from sluice.ledger.offsets_table import Ledger, Row, State
from sluice.plan import plan, risk
from sluice.plan import resolve_topics as matching
from sluice.status.model import CATALOG, KAFKA, OF_PLANNER, LastError, MaintenanceStatus, Status

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

_OF_LEDGER = ("last_error", "further_errors", "slices", "day_records", "day_rejected", "day_apart")


@dataclass
class Day:
    """What was published into a table within the last 24 hours.

    Attributes:
        records, rejected: of all batches.
        wanting: topic and number of those of which some records were rejected.
    """

    records: int = 0
    rejected: int = 0
    wanting: set[tuple[str, int]] = field(default_factory=set)

    def apart(self, quarantine: Table | None) -> int:
        """How many of the rejected records are in quarantine now: partitions of it, of which few need be read."""
        if quarantine is None or not self.wanting:
            return 0
        # In a hull, and then told apart: a condition for each batch is slow, and there may be thousands.
        found = tables.files(quarantine, above("batch_seq", min(seq for _, seq in self.wanting) - 1))
        mine = [each for each in found if (each.file.partition[0], each.file.partition[1]) in self.wanting]
        cut = [each for each in mine if each.delete_files]
        whole = sum(each.file.record_count for each in mine if not each.delete_files)
        if not cut:
            return whole
        read = ArrowScan(quarantine.metadata, quarantine.io, quarantine.schema().select("batch_seq"), AlwaysTrue())
        return whole + len(read.to_table(cut))


@dataclass
class World:
    """What could be opened and asked once for all tables; `opened` closes it."""

    catalog: Catalog | None = None
    client: AdminClient | None = None
    ledger: Ledger | None = None
    states: dict[str, Any] = field(default_factory=dict)
    staging: dict[str, Table | None] = field(default_factory=dict)
    staged: dict[str, Batch | None] = field(default_factory=dict)
    known: dict[tuple[str, int], Batch] = field(default_factory=dict)
    given_up: list[Row] = field(default_factory=list)
    slices: dict[tuple[str, str | None], list[Row]] = field(default_factory=dict)
    warnings: list[risk.Risk] = field(default_factory=list)
    refusals: dict[str, dict[str, list[LastError]]] = field(default_factory=dict)
    day: dict[str, Day] = field(default_factory=dict)
    maintained: dict[str, list[MaintenanceStatus]] = field(default_factory=dict)
    judged: dict[str, list[quality_table.Result]] = field(default_factory=dict)
    stops: dict[str, SluiceError] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    broken: dict[str, SluiceError] = field(default_factory=dict)
    partly: bool = False
    unread: list[str] = field(default_factory=list)
    opened: ExitStack = field(default_factory=ExitStack)

    @property
    def unasked(self) -> list[str]:
        """Who did not answer, or not all that was asked."""
        away = {KAFKA: self.client is None, CATALOG: self.catalog is None or self.partly}
        return [name for name, is_away in away.items() if is_away]


class _Once:
    """A catalog that is asked once for each table: planner and status want the same, and of one moment."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._asked: dict[Identifier, Table | NoSuchTableError] = {}

    def load_table(self, identifier: Identifier) -> Table:
        """The table as it was when it was first asked for."""
        if identifier not in self._asked:
            try:
                self._asked[identifier] = self._catalog.load_table(identifier)
            except NoSuchTableError as error:
                self._asked[identifier] = error
        found = self._asked[identifier]
        if isinstance(found, NoSuchTableError):
            raise found
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


def open_all(status: Status, patience: float, kafka: Mapping[str, Any] | None = None) -> World:
    """Kafka and the catalog, as far as they answer."""
    world = World()
    world.opened.callback(_let_go, world, status)
    try:
        world.client = broker.open_broker(patience, kafka)
    except SluiceError as error:
        status.unavailable.append(error)
    try:
        world.catalog = cast("Catalog", _Once(world.opened.enter_context(availability.open_catalog(patience))))
    except SluiceError as error:
        status.unavailable.append(error)
    return world


def _let_go(world: World, status: Status) -> None:
    """Leave of each error what it says: the frames that it came through hold Kafka's client, with its threads."""
    for error in (*status.errors, *world.stops.values(), *world.broken.values(), *world.states.values()):
        if isinstance(error, SluiceError):
            error.__traceback__ = error.__cause__ = error.__context__ = None


def resolved(contracts: Contracts, world: World, status: Status) -> Contracts:
    """The contracts with their topics, as far as there is somebody to ask."""
    try:
        with availability.catalog_errors():
            return matching.resolve(contracts, world.catalog, world.client)
    except SluiceError as error:
        status.unavailable.append(error)
        if isinstance(error, BrokerUnavailableError):
            world.client = None
        else:
            world.catalog = None
        return resolved(contracts, world, status)


def ask(contracts: Contracts, chosen: list[Contract], world: World, status: Status) -> None:
    """Fill in what Kafka, the tables and the planner say of these contracts."""
    topics = sorted({t for c in chosen for t in c.topics})
    world.stops |= contracts.stopped
    try:
        if world.client is not None:
            world.states = dict(broker.describe(world.client, topics))
    except SluiceError as error:
        world.client = None
        status.unavailable.append(error)
    if (catalog := world.catalog) is None:
        return
    expecting = [c.table for c in chosen if c.expectations]
    # Each by itself: what one of Sluice's own tables can't tell hides nothing of what the planner stops for.
    readings: list[tuple[Callable[[], None], Sequence[str]]] = [
        (lambda: _read_staging(world, catalog, topics), ["open_batches"]),
        (lambda: _read_ledger(world, catalog, topics), _OF_LEDGER),
        (lambda: _read_maintenance(world, catalog, chosen), ["maintenance"]),
        (lambda: world.judged.update(quality_table.last(catalog, expecting)), ["expectations", "further_expectations"]),
    ]
    if len(chosen) == len(contracts.tables):
        readings.append((lambda: status.unclaimed.extend(matching.unclaimed(contracts, catalog)), ()))
    if (client := world.client) is not None:
        readings.append((lambda: _ask_planner(contracts, chosen, world, catalog, client), OF_PLANNER))
    for read, told in readings:
        try:
            with availability.catalog_errors():
                read()
        except SluiceError as error:
            if not isinstance(error, BrokerUnavailableError):
                world.partly = True
                world.unread += told
            if str(error) not in map(str, status.unavailable):
                status.unavailable.append(error)


def _read_staging(world: World, catalog: Catalog, topics: list[str]) -> None:
    for topic in topics:
        try:
            world.staging[topic] = tables.load(catalog, table_names.staging(topic))
            world.staged[topic] = cursor.staged(world.staging[topic])
        except SluiceError as error:
            world.broken[topic] = error


def _read_ledger(world: World, catalog: Catalog, topics: list[str]) -> None:
    found = offsets_table.existing_ledger_table(catalog)
    world.ledger = Ledger(catalog, found) if found else None
    if world.ledger and world.ledger.table.metadata.current_snapshot_id is not None:
        floor = {t: b.seq if b else 0 for t, b in world.staged.items()}
        world.known |= ledgers.batches(world.ledger.rows(floor, (State.PLANNED, State.STAGED)), world.broken)
        world.given_up = world.ledger.gaps(topics)
        for row in slices.rows(world.ledger, *topics):
            world.slices.setdefault((row.topic, row.table), []).append(row)
        refusals = world.ledger.table.scan(row_filter=one_of("state", [str(State.BLOCKED), str(State.FAILED)]))
        rows = refusals.to_arrow().sort_by([("at", "ascending")])
        cured = _published(world.ledger, rows)
        for row in rows.to_pylist():
            if row["table"] and (row["batch_seq"] or 0) >= 0:  # a refused slice of a backfill holds nothing up
                refused = LastError(
                    row["at"], row["state"], row["topic"], row["batch_seq"], row["error"], row["run_id"],
                    open=cured.get((row["table"], row["topic"], row["batch_seq"]), row["at"]) <= row["at"],
                )  # fmt: skip
                world.refusals.setdefault(row["table"], {}).setdefault(row["topic"], []).append(refused)
        world.day = _day(world.ledger)


def _published(ledger: Ledger, refusals: pa.Table) -> dict[tuple[str, str, int], datetime]:
    """When each batch that was ever refused was published last. A rollback takes the batch away, not that cure."""
    if not refusals:
        return {}
    since, batches = refusals["at"][0].as_py(), sorted(set(refusals["batch_seq"].to_pylist()) - {None})
    since_then = And(above("at", since.isoformat()), one_of("batch_seq", batches))
    wanted = And(equal("state", str(State.PUBLISHED)), since_then)
    rows = ledger.table.scan(row_filter=wanted, selected_fields=("table", "topic", "batch_seq", "at")).to_arrow()
    return {(r["table"], r["topic"], r["batch_seq"]): r["at"] for r in rows.sort_by([("at", "ascending")]).to_pylist()}


def _read_maintenance(world: World, catalog: Catalog, chosen: list[Contract]) -> None:
    """What was done last to each table, and to those that belong to it."""
    mine = {
        c.table: [
            table_names.typed(c),
            table_names.quarantine(c),
            *([table_names.deletes(c)] if c.upsert else []),
            *map(table_names.staging, c.topics),
        ]
        for c in chosen
    }
    found: dict[str, list[maintenance_table.Effect]] = {}
    names = {".".join(i) for each in mine.values() for i in each}
    for (name, _), done in sorted(maintenance_table.last(catalog, names).items()):
        found.setdefault(name, []).append(done)
    for table, each in mine.items():
        world.maintained[table] = [
            MaintenanceStatus(done.action, done.at, done.state, done.told, "" if name == table else name)
            for name in map(".".join, each)
            for done in found.get(name, ())
        ]


def _day(ledger: Ledger) -> dict[str, Day]:
    """Per table what was published within the last 24 hours."""
    since = datetime.now(UTC) - timedelta(days=1)
    wanted = And(equal("state", str(State.PUBLISHED)), And(above("at", since.isoformat()), above("batch_seq", 0)))
    batch = ("table", "topic", "topic_id", "batch_seq")
    rows = ledger.table.scan(row_filter=wanted, selected_fields=("at", *batch, "records", "rejected")).to_arrow()
    rows = newest(rows, batch)  # one that was rolled back was published twice
    counts = rows.group_by("table").aggregate([("records", "sum"), ("rejected", "sum")]).to_pylist()
    found = {r["table"]: Day(r["records_sum"] or 0, r["rejected_sum"] or 0) for r in counts}
    for row in rows.filter(pc.field("rejected") > 0).to_pylist():
        found[row["table"]].wanting.add((row["topic"], row["batch_seq"]))
    return found


def _ask_planner(
    contracts: Contracts, chosen: list[Contract], world: World, catalog: Catalog, client: AdminClient
) -> None:
    """What the next run would stop for: the planner's own answer, not a second opinion."""
    groups = contracts.together(sorted({c.group for c in chosen}))
    found = plan.look(groups, contracts, catalog, client, world.ledger)
    world.stops |= found.stops
    world.warnings += found.warnings
    world.schemas |= {name: line for name, each in found.outlooks.items() if (line := each.line())}
