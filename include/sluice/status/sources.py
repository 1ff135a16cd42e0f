"""Reads Kafka, the catalog, the ledger and the planner once for all tables.

In: the contracts. Out: `StatusSources`, from which `status.py` makes the status of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import BrokerUnavailableError, SluiceError
from sluice.iceberg import availability, cursor, scan, table_names, tables
from sluice.iceberg.filters import And, above, equal, one_of
from sluice.kafka import broker
from sluice.ledger import maintenance_table, offsets_table, quality_table, slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.newest_rows import take_newest
from sluice.ledger.offsets_table import Ledger
from sluice.plan import plan, risk
from sluice.plan import resolve_topics as matching
from sluice.plan.model import PlanInputs
from sluice.status.model import CATALOG, KAFKA, PLANNER_FIELDS, LastError, MaintenanceStatus, Status

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

_LEDGER_FIELDS = ("last_error", "further_errors", "slices", "day_records", "day_rejected", "day_apart")


@dataclass
class DailyCounts:
    """The batches published to a table within the last 24 hours.

    Attributes:
        records: records of all these batches.
        rejected: quarantined records of all these batches.
        with_rejected: topic and number of the batches with quarantined records.
    """

    records: int = 0
    rejected: int = 0
    with_rejected: set[tuple[str, int]] = field(default_factory=set)

    def count_quarantined(self, quarantine: Table | None) -> int:
        """Count the records of these batches that are still in quarantine; few of its files are read."""
        if quarantine is None or not self.with_rejected:
            return 0
        # Filter by the lowest batch first: one condition per batch is slow for thousands of batches.
        found = tables.plan_files(quarantine, above("batch_seq", min(seq for _, seq in self.with_rejected) - 1))
        own = [each for each in found if (each.file.partition[0], each.file.partition[1]) in self.with_rejected]
        with_deletes = [each for each in own if each.delete_files]
        count = sum(each.file.record_count for each in own if not each.delete_files)
        if not with_deletes:
            return count
        return count + len(scan.read_files(quarantine, with_deletes, AlwaysTrue(), ("batch_seq",)))


@dataclass
class StatusSources:
    """What was read once for all tables. `exit_stack` closes the catalog.

    Attributes:
        catalog: None if it did not answer.
        client: None if Kafka did not answer.
        topics: state of each topic, or the error that keeps the planner from reading it.
        stream_clocks: the newest record's time by topic; empty if not all could be read: then each table's own reading
            reports why.
        topic_errors: errors of the staging tables and of the ledger, by topic.
        errors: blocked and failed batches, by table and topic, oldest first.
        stops: errors that stop a table's next run, by table.
        partial: whether the catalog answered, but not to all reads.
        unread_fields: fields of `TableStatus` that could not be read.
    """

    catalog: Catalog | None = None
    client: AdminClient | None = None
    ledger: Ledger | None = None
    topics: dict[str, Any] = field(default_factory=dict)
    stream_clocks: dict[str, datetime | None] = field(default_factory=dict)
    staging: dict[str, Table | None] = field(default_factory=dict)
    staged: dict[str, Batch | None] = field(default_factory=dict)
    planned_batches: dict[tuple[str, int], Batch] = field(default_factory=dict)
    accepted_gaps: list[LedgerRow] = field(default_factory=list)
    slices: dict[tuple[str, str | None], list[LedgerRow]] = field(default_factory=dict)
    warnings: list[risk.Risk] = field(default_factory=list)
    errors: dict[str, dict[str, list[LastError]]] = field(default_factory=dict)
    daily: dict[str, DailyCounts] = field(default_factory=dict)
    maintained: dict[str, list[MaintenanceStatus]] = field(default_factory=dict)
    results: dict[str, list[quality_table.ExpectationResult]] = field(default_factory=dict)
    stops: dict[str, SluiceError] = field(default_factory=dict)
    schemas: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    topic_errors: dict[str, SluiceError] = field(default_factory=dict)
    partial: bool = False
    unread_fields: list[str] = field(default_factory=list)
    exit_stack: ExitStack = field(default_factory=ExitStack)

    @property
    def unasked(self) -> list[str]:
        """The sources that did not answer, or only in part."""
        missing = {KAFKA: self.client is None, CATALOG: self.catalog is None or self.partial}
        return [name for name, is_missing in missing.items() if is_missing]


class CachedCatalog(NoopCatalog):
    """A read-only catalog that loads each table once: planner and status see the same version of it."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog.name, **catalog.properties)
        self._catalog = catalog
        self._tables: dict[str | Identifier, Table | NoSuchTableError] = {}

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return the table as it was when it was first loaded."""
        if identifier not in self._tables:
            try:
                self._tables[identifier] = self._catalog.load_table(identifier)
            except NoSuchTableError as error:
                self._tables[identifier] = error
        found = self._tables[identifier]
        if isinstance(found, NoSuchTableError):
            raise found
        return found

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """List the tables of a namespace."""
        return self._catalog.list_tables(namespace)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """List the namespaces within a namespace."""
        return self._catalog.list_namespaces(namespace)


def open_sources(status: Status, patience: float, kafka: Mapping[str, Any] | None = None) -> StatusSources:
    """Connect to Kafka and the catalog. Errors go to the status."""
    inputs = StatusSources()
    inputs.exit_stack.callback(_drop_tracebacks, inputs, status)
    try:
        inputs.client = broker.connect(patience, kafka)
    except SluiceError as error:
        status.unavailable.append(error)
    try:
        inputs.catalog = CachedCatalog(inputs.exit_stack.enter_context(availability.open_catalog(patience)))
    except SluiceError as error:
        status.unavailable.append(error)
    return inputs


def _drop_tracebacks(inputs: StatusSources, status: Status) -> None:
    """Drop the tracebacks of errors: their frames keep Kafka's client and its threads alive."""
    for error in (*status.errors, *inputs.stops.values(), *inputs.topic_errors.values(), *inputs.topics.values()):
        if isinstance(error, SluiceError):
            error.__traceback__ = error.__cause__ = error.__context__ = None


def resolve_contracts(contracts: Contracts, inputs: StatusSources, status: Status) -> Contracts:
    """Resolve the topic patterns of the contracts with the sources that answer."""
    try:
        with availability.translate_catalog_errors():
            return matching.resolve(contracts, inputs.catalog, inputs.client)
    except SluiceError as error:
        status.unavailable.append(error)
        if isinstance(error, BrokerUnavailableError):
            inputs.client = None
        else:
            inputs.catalog = None
        return resolve_contracts(contracts, inputs, status)


def read_sources(contracts: Contracts, chosen: list[Contract], inputs: StatusSources, status: Status) -> None:
    """Read Kafka, the tables, the ledger and the planner for these contracts."""
    topics = sorted({t for c in chosen for t in c.topics})
    inputs.stops |= contracts.stopped
    try:
        if inputs.client is not None:
            inputs.topics = dict(broker.describe_topics(inputs.client, topics))
            states = {t: s.watermarks for t, s in inputs.topics.items() if isinstance(s, broker.TopicState)}
            with suppress(BrokerUnavailableError):
                inputs.stream_clocks = broker.read_stream_clocks(inputs.client, states)
    except SluiceError as error:
        inputs.client = None
        status.unavailable.append(error)
    if (catalog := inputs.catalog) is None:
        return
    expecting = [c.table for c in chosen if c.expectations]
    # One by one: if one of Sluice's own tables cannot be read, the errors of the planner still show.
    readings: list[tuple[Callable[[], None], Sequence[str]]] = [
        (lambda: _read_staging(inputs, catalog, topics), ["open_batches"]),
        (lambda: _read_ledger(inputs, catalog, topics), _LEDGER_FIELDS),
        (lambda: _read_maintenance(inputs, catalog, chosen), ["maintenance"]),
        (
            lambda: inputs.results.update(quality_table.read_latest_results(catalog, expecting)),
            ["expectations", "further_expectations"],
        ),
    ]
    if len(chosen) == len(contracts.tables):
        readings.append((lambda: status.unclaimed.extend(matching.find_unclaimed_staging(contracts, catalog)), ()))
    if (client := inputs.client) is not None:
        readings.append((lambda: _read_planner(contracts, chosen, inputs, catalog, client), PLANNER_FIELDS))
    for read, fields in readings:
        try:
            with availability.translate_catalog_errors():
                read()
        except SluiceError as error:
            if not isinstance(error, BrokerUnavailableError):
                inputs.partial = True
                inputs.unread_fields += fields
            if str(error) not in map(str, status.unavailable):
                status.unavailable.append(error)


def _read_staging(inputs: StatusSources, catalog: Catalog, topics: list[str]) -> None:
    for topic in topics:
        try:
            inputs.staging[topic] = tables.load_staging(catalog, topic)
            inputs.staged[topic] = cursor.read_staging_cursor(inputs.staging[topic])
            if topic in inputs.topics:
                inputs.topics[topic] = cursor.with_known_id(inputs.topics[topic], inputs.staging[topic])
        except SluiceError as error:
            inputs.topic_errors[topic] = error


def _read_ledger(inputs: StatusSources, catalog: Catalog, topics: list[str]) -> None:
    found = offsets_table.load_ledger_table(catalog)
    inputs.ledger = Ledger(catalog, found) if found else None
    if inputs.ledger and inputs.ledger.table.metadata.current_snapshot_id is not None:
        # The planner asks for the last staged batch, too: so this reading is the only one.
        floor = {t: max(b.seq - 1, 0) if b else 0 for t, b in inputs.staged.items()}
        inputs.planned_batches, errors = inputs.ledger.batches(floor)
        inputs.topic_errors |= errors
        inputs.accepted_gaps = inputs.ledger.gaps(topics)
        for row in slices.read_slice_rows(inputs.ledger, *topics):
            inputs.slices.setdefault((row.topic, row.table), []).append(row)
        inputs.errors = _read_errors(inputs.ledger)
        inputs.daily = _read_daily_counts(inputs.ledger)


def _read_errors(ledger: Ledger) -> dict[str, dict[str, list[LastError]]]:
    """Read the blocked and failed batches by table and topic, oldest first."""
    states = one_of("state", [str(LedgerState.BLOCKED), str(LedgerState.FAILED), str(LedgerState.TOLERATED)])
    rows = ledger.table.scan(row_filter=states).to_arrow().sort_by([("at", "ascending")])
    decided = {
        (row["table"], row["topic"], row["topic_id"], row["batch_seq"]): row
        for row in rows.filter(pc.field("state") == str(LedgerState.TOLERATED)).to_pylist()
    }
    rows = rows.filter(pc.field("state") != str(LedgerState.TOLERATED))
    published = _read_publish_times(ledger, rows)
    errors: dict[str, dict[str, list[LastError]]] = {}
    for row in rows.to_pylist():
        if row["table"] and (row["batch_seq"] or 0) >= 0:  # a backfill slice holds up no batch
            decision = decided.get((row["table"], row["topic"], row["topic_id"], row["batch_seq"]))
            if decision and decision["at"] < row["at"]:  # refused since, for another reason
                decision = None
            error = LastError(
                row["at"], row["state"], row["topic"], row["batch_seq"], row["error"], row["run_id"],
                open=published.get((row["table"], row["topic"], row["batch_seq"]), row["at"]) <= row["at"],
                exception=row.get("exception"),  # a ledger of an older version has none
                decided_by=decision and (decision["who"] or "unknown"),
                decided_at=decision and decision["at"],
            )  # fmt: skip
            errors.setdefault(row["table"], {}).setdefault(row["topic"], []).append(error)
    return errors


def _read_publish_times(ledger: Ledger, refusals: pa.Table) -> dict[tuple[str, str, int], datetime]:
    """When each blocked or failed batch was last published. A rollback does not reopen its error."""
    if not refusals:
        return {}
    since, batches = refusals["at"][0].as_py(), sorted(set(refusals["batch_seq"].to_pylist()) - {None})
    since_then = And(above("at", since.isoformat()), one_of("batch_seq", batches))
    wanted = And(equal("state", str(LedgerState.PUBLISHED)), since_then)
    rows = ledger.table.scan(row_filter=wanted, selected_fields=("table", "topic", "batch_seq", "at")).to_arrow()
    return {(r["table"], r["topic"], r["batch_seq"]): r["at"] for r in rows.sort_by([("at", "ascending")]).to_pylist()}


def _read_maintenance(inputs: StatusSources, catalog: Catalog, chosen: list[Contract]) -> None:
    """Read the last actions on each table and on its quarantine, deletes and staging tables."""
    related = {
        c.table: [
            table_names.typed(c),
            table_names.quarantine(c),
            *([table_names.deletes(c)] if c.upsert else []),
            *map(table_names.staging, c.topics),
        ]
        for c in chosen
    }
    found: dict[str, list[maintenance_table.ActionResult]] = {}
    names = {".".join(i) for each in related.values() for i in each}
    for (name, _), done in sorted(maintenance_table.last_results(catalog, names).items()):
        found.setdefault(name, []).append(done)
    for table, each in related.items():
        inputs.maintained[table] = [
            MaintenanceStatus(done.action, done.at, done.state, done.summary, "" if name == table else name)
            for name in map(".".join, each)
            for done in found.get(name, ())
        ]


def _read_daily_counts(ledger: Ledger) -> dict[str, DailyCounts]:
    """Read what was published within the last 24 hours, by table."""
    since = datetime.now(UTC) - timedelta(days=1)
    wanted = And(equal("state", str(LedgerState.PUBLISHED)), And(above("at", since.isoformat()), above("batch_seq", 0)))
    batch = ("table", "topic", "topic_id", "batch_seq")
    files = ledger.table.scan(row_filter=wanted).plan_files()
    rows = scan.read_own_files(ledger.table, files, wanted, ("at", *batch, "state", "records", "rejected"))
    rows = take_newest(rows, batch)  # a batch that was rolled back was published twice
    counts = rows.group_by("table").aggregate([("records", "sum"), ("rejected", "sum")]).to_pylist()
    found = {r["table"]: DailyCounts(r["records_sum"] or 0, r["rejected_sum"] or 0) for r in counts}
    for row in rows.filter(pc.field("rejected") > 0).to_pylist():
        found[row["table"]].with_rejected.add((row["topic"], row["batch_seq"]))
    return found


def _read_planner(
    contracts: Contracts, chosen: list[Contract], inputs: StatusSources, catalog: Catalog, client: AdminClient
) -> None:
    """Read from the planner itself what the next run would stop for."""
    groups = contracts.merge_groups(sorted({c.group for c in chosen}))
    found = plan.make_plan(groups, PlanInputs(contracts, catalog, client, inputs.ledger, kafka=inputs.topics))
    inputs.stops |= found.stops
    inputs.warnings += found.warnings
    inputs.schemas |= {
        name: (line, each.state) for name, each in found.pending_changes.items() if (line := each.summary())
    }
