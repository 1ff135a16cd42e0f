"""What a table's page shows beyond its status: batches, expectations, quarantine, contract versions, snapshots.

In: the table, its quarantine, Sluice's own tables, Kafka's retention. Out: a `TableDetail`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.batch import RUN_ID, STEP, TOPIC, PublishedOffsets, batches_from_summary
from sluice.contract import folder as contract_folder
from sluice.errors import CatalogUnavailableError, CursorUnknownError, SluiceError
from sluice.iceberg import availability, cursor, snapshots, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.kafka import broker
from sluice.ledger import maintenance_table, schemas_table
from sluice.offsets import OffsetRange
from sluice.pages import active_contract, quarantine_summary, table_contract
from sluice.pages.quality import trends
from sluice.pages.quality.trends import MAX_BATCHES, Trend
from sluice.pages.quarantine_summary import QuarantineSummary
from sluice.pages.table_contract import TableContract
from sluice.plan import resolve_topics, retention_warnings
from sluice.status import pilot, readiness
from sluice.status.readiness import ReadinessCheck

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from sluice.contract.contract import Contract
    from sluice.contract.folder import Contracts

T = TypeVar("T")

MAX_SNAPSHOTS = 30
KAFKA_TIMEOUT_S = 3.0
MAX_EFFECTS = 20


@dataclass(frozen=True)
class PublishedBatch:
    """A batch in the table's history. A commit may hold several batches; `added` and `removed` are of the commit.

    Attributes:
        shared: the batches of its commit, itself included.
        newest: the topic and number of the newest of these, which stands for the commit.
        removed: rows that were deleted, and earlier versions of those that were added.
        rejected: its records in quarantine now.
        failed: number of failed expectations; None if none were evaluated.
    """

    topic: str
    seq: int
    ranges: Mapping[int, OffsetRange]
    step: str
    snapshot_id: int
    at: datetime
    run_id: str | None
    added: int
    rejected: int
    failed: int | None
    removed: int = 0
    shared: int = 1
    newest: tuple[str, int] | None = None

    @property
    def stands_for_commit(self) -> bool:
        """Whether the counts of the commit are shown beside this batch."""
        return self.newest in (None, (self.topic, self.seq))


@dataclass(frozen=True)
class SnapshotSummary:
    """A snapshot of the main branch, and its data files.

    Attributes:
        step: the step of Sluice that committed it; for maintenance and other engines, Iceberg's operation.
        added: data files added.
        removed: data files removed.
        totals: of the whole table: records, files, bytes, delete files, deleted records.
    """

    snapshot_id: int
    at: datetime
    step: str
    added: int
    removed: int
    totals: Mapping[str, int]


@dataclass(frozen=True)
class TableDetail:
    """The details of a table.

    Attributes:
        snapshots: newest first.
        retention_left: seconds until Kafka's retention deletes the first record that is neither published nor staged,
            by topic and partition. Topics without a time limit are left out. None if Kafka did not answer.
        contract: non-default settings of the active contract, as YAML.
        version: version of the active contract; None without a table, or if it records none.
        difference: whether the contract file differs, and when that takes effect.
        changes: how it differs, a line each.
        auto: whether the columns come from the schema registry.
        keeps_raw: whether quarantined records can be replayed from the quarantine.
        shows_values: whether its newest records have their keys and values.
        missing: the error by name of the part that could not be read; without `contract`, the file is shown.
        promise: what the active contract tells readers, and where the table is.
    """

    batches: Sequence[PublishedBatch] = ()
    trends: Sequence[Trend] = ()
    quarantine: QuarantineSummary = field(default_factory=QuarantineSummary)
    snapshots: Sequence[SnapshotSummary] = ()
    retention_left: Mapping[str, Mapping[int, float]] | None = None
    versions: Sequence[schemas_table.SchemaRow] = ()
    effects: Sequence[maintenance_table.ActionResult] = ()
    readiness: Sequence[ReadinessCheck] = ()
    contract: str = ""
    version: int | None = None
    difference: str = ""
    changes: Sequence[str] = ()
    auto: bool = False
    keeps_raw: bool = True
    shows_values: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    promise: TableContract | None = None


def read_detail(
    name: str, kafka: Mapping[str, Any] | None = None, paused: Mapping[str, bool] = MappingProxyType({})
) -> TableDetail:
    """Read a table's details; they are empty if no contract has the table.

    Args:
        kafka: settings of librdkafka; None: those of the environment.
        paused: whether each maintenance DAG is paused, as far as it is known.

    Raises:
        CatalogUnavailableError: The catalog did not answer.
    """
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        known = resolve_topics.resolve(contract_folder.load_contracts(strict=False), catalog, None)
        contract = known.tables.get(name)
        return _read(catalog, known, contract, kafka, paused) if contract else TableDetail()


def _read(
    catalog: Catalog, known: Contracts, contract: Contract, kafka: Mapping[str, Any] | None, paused: Mapping[str, bool]
) -> TableDetail:
    parts, name = _PartReader(), contract.table
    table = parts.read("table", lambda: tables.load(catalog, table_names.typed(contract)), None)
    active = parts.read(
        "contract",
        lambda: active_contract.read_active_contract(catalog, table, contract),
        active_contract.from_file(contract),
    )
    if why := parts.missing.get("table"):
        parts.missing["contract"] = why  # only the table has the active contract
    results: Sequence[Trend] = parts.read(
        "expectations", lambda: trends.read_table_trends(catalog, name, active.contract), ()
    )
    through = _published_offsets(table)
    # The active contract decides whether raw records are written, the file whether they may be read.
    keeps_raw = not (active.contract.drops_raw_records or contract.drops_raw_records)
    shows_values = keeps_raw and contract.errors.show_values
    quarantine = parts.read(
        "quarantine",
        lambda: quarantine_summary.read_quarantine(catalog, contract, through, with_values=shows_values),
        QuarantineSummary(),
    )
    return TableDetail(
        parts.read("batches", lambda: _list_batches(table, quarantine.by_batch, results) if table else (), ()),
        results,
        quarantine,
        parts.read("snapshots", lambda: _list_snapshots(table) if table else (), ()),
        parts.read(
            "retention",
            lambda: _retention_left(catalog, contract, through, kafka) if through is not None else None,
            None,
        ),
        parts.read("versions", lambda: list(reversed(schemas_table.read_schema_rows(catalog, contract.table))), []),
        parts.read("maintenance", lambda: _list_effects(catalog, contract), []),
        parts.read(
            "readiness",
            lambda: [
                *readiness.check_table(active.contract, known, catalog, paused=paused),
                *pilot.check_pilot(active.contract, catalog),
            ],
            [],
        ),
        active.text,
        active.version,
        active.difference,
        active.changes,
        contract.auto is not None,
        keeps_raw,
        shows_values,
        parts.missing,
        table_contract.describe_contract(table, active.contract),
    )


class _PartReader:
    """Reads the parts of a page one by one: an error in one leaves the others readable."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    def read(self, name: str, read: Callable[[], T], default: T) -> T:
        """Read a part, or return the default and record the error.

        Raises:
            CatalogUnavailableError: The catalog did not answer; no other part can be read either.
        """
        try:
            with availability.translate_catalog_errors():
                try:
                    return read()
                except FileNotFoundError as error:  # the catalog has answered
                    self.missing[name] = availability.missing_file_message(error)
        except CatalogUnavailableError:
            raise
        except SluiceError as error:
            self.missing[name] = str(error)
        return default


def _list_effects(catalog: Catalog, contract: Contract) -> list[maintenance_table.ActionResult]:
    where = maintenance_table.ResultFilter(tables=[contract.table], states=("done", "failed"))
    columns = maintenance_table.SUMMARY_COLUMNS
    results = maintenance_table.read_results(catalog, where, columns=columns, limit=MAX_EFFECTS)
    return results[::-1]


def _published_offsets(table: Table | None) -> Mapping[str, PublishedOffsets] | None:
    try:
        return cursor.read_table_cursor(table)
    except CursorUnknownError:  # the status reports it
        return None


def _retention_left(
    catalog: Catalog, contract: Contract, through: Mapping[str, PublishedOffsets], kafka: Mapping[str, Any] | None
) -> dict[str, dict[int, float]] | None:
    try:
        client = broker.connect(KAFKA_TIMEOUT_S, kafka)
        states = broker.describe_topics(client, contract.topics).values()
        return {
            state.topic: retention_warnings.retention_seconds_left(
                client, state, _safe_offsets(catalog, state.topic, through.get(state.topic))
            )
            for state in states
            if isinstance(state, broker.TopicState) and state.retention_ms >= 0
        }
    except SluiceError:  # the status reports it
        return None


def _safe_offsets(catalog: Catalog, topic: str, through: PublishedOffsets | None) -> dict[int, int]:
    """Per partition, the first offset that is neither published nor staged."""
    published = dict(through.next_offsets) if through else {}
    try:
        staged = cursor.read_staging_cursor(tables.load_staging(catalog, topic))
    except SluiceError:  # the status reports it
        staged = None
    raw = staged.next_offsets if staged and (through is None or staged.topic_id == through.topic_id) else {}
    return {p: max(published.get(p, 0), raw.get(p, 0)) for p in {*published, *raw}}


def _list_batches(
    table: Table, rejected: Mapping[tuple[str, int], int], results: Sequence[Trend]
) -> list[PublishedBatch]:
    failed: dict[tuple[str, int], int] = {}
    for result in (r for trend in results for r in trend.results):
        key = (result.topic, result.batch_seq)
        failed[key] = failed.get(key, 0) + (result.success is False)
    found: list[PublishedBatch] = []
    visible = snapshots.visible_times(table.metadata)
    for snapshot in snapshots.ancestors(table.metadata):
        summary = snapshots.summary(snapshot)
        if TOPIC not in summary:
            continue
        at, batches = visible[snapshot.snapshot_id], batches_from_summary(summary)[::-1]
        found += [
            PublishedBatch(
                b.topic, b.seq, dict(b.ranges), summary.get(STEP, ""), snapshot.snapshot_id, at, summary.get(RUN_ID),
                int(summary.get("added-records", "0")), rejected.get((b.topic, b.seq), 0), failed.get((b.topic, b.seq)),
                snapshots.count_removed_rows(summary), len(batches), (batches[0].topic, batches[0].seq),
            )
            for b in batches
        ]  # fmt: skip
        if len(found) >= MAX_BATCHES:
            break
    return found[:MAX_BATCHES]


def _list_snapshots(table: Table) -> list[SnapshotSummary]:
    found, visible = [], snapshots.visible_times(table.metadata)
    for snapshot in islice(snapshots.ancestors(table.metadata), MAX_SNAPSHOTS):
        summary = snapshots.summary(snapshot)
        operation = snapshot.summary.operation.value if snapshot.summary else ""
        added, removed = (int(summary.get(f"{did}-data-files", "0")) for did in ("added", "deleted"))
        found.append(
            SnapshotSummary(
                snapshot.snapshot_id, visible[snapshot.snapshot_id], summary.get(STEP) or operation,
                added, removed, snapshots.read_totals(snapshot),
            )
        )  # fmt: skip
    return found
