"""What a table's page shows beyond its status: batches and snapshots, expectations, rejected records, versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.batch import RUN_ID, STEP, TOPIC, Through, batches_of
from sluice.contract import folder as contract_folder
from sluice.errors import CatalogUnavailableError, CursorUnknownError, SluiceError, gone
from sluice.iceberg import availability, cursor, snapshots, table_names, tables
from sluice.iceberg import catalog as catalogs
from sluice.kafka import broker
from sluice.ledger import maintenance_table, schemas_table
from sluice.offsets import OffsetRange
from sluice.pages import in_force, rejected, trends
from sluice.pages.rejected import Rejected
from sluice.pages.trends import BATCHES, Trend
from sluice.plan import resolve_topics, retention_warnings
from sluice.status import readiness

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from sluice.contract.contract import Contract
    from sluice.contract.folder import Contracts

T = TypeVar("T")

SNAPSHOTS = 30
KAFKA_PATIENCE_S = 3.0
EFFECTS = 20


@dataclass(frozen=True)
class BatchLine:
    """A batch in the table's history; the numbers are of the commit, which may hold several batches.

    Attributes:
        rejected: its records in quarantine now.
        failed: expectations that did not hold; None where none were judged.
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


@dataclass(frozen=True)
class SnapshotLine:
    """A snapshot of main's, and what it did to the table's files.

    Attributes:
        step: what of Sluice's committed it; else Iceberg's word for the operation: maintenance, or another writer.
        added, removed: data files.
        totals: what the table held after it: records, files, bytes, delete files.
    """

    snapshot_id: int
    at: datetime
    step: str
    added: int
    removed: int
    totals: Mapping[str, int]


@dataclass(frozen=True)
class Detail:
    """All of it.

    Attributes:
        snapshots: the newest first, as far as they are kept.
        kept: by topic that Kafka does not keep for ever, per partition with records that are neither in the table nor
            staged how many seconds longer it keeps the first of them at least; None where nobody could say.
        readiness: the scorecard.
        contract: the one in force, as YAML, without what is left to its default.
        version: its number; None where there is no table yet, or one that is too old to tell.
        differs: what the contract's file says otherwise, and what becomes of that.
        auto: whether a schema of the registry gives the columns.
        missing: by what it is about, why it could not be read: `contract` is then the file's.
        keeps_raw: whether what is in quarantine can be replayed from there.
    """

    batches: Sequence[BatchLine] = ()
    trends: Sequence[Trend] = ()
    rejected: Rejected = field(default_factory=Rejected)
    snapshots: Sequence[SnapshotLine] = ()
    kept: Mapping[str, Mapping[int, float]] | None = None
    versions: Sequence[schemas_table.Row] = ()
    effects: Sequence[maintenance_table.Effect] = ()
    readiness: Sequence[readiness.Line] = ()
    contract: str = ""
    version: int | None = None
    differs: str = ""
    auto: bool = False
    keeps_raw: bool = True
    missing: Mapping[str, str] = field(default_factory=dict)


def read(name: str, kafka: Mapping[str, Any] | None = None) -> Detail:
    """Read it from the catalog; nothing where no contract has the table any more.

    Args:
        kafka: librdkafka's settings; those of the environment when left out.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    with availability.catalog_errors(), catalogs.load() as catalog:
        known = resolve_topics.resolve(contract_folder.load(strict=False), catalog, None)
        contract = known.tables.get(name)
        return _read(catalog, known, contract, kafka) if contract else Detail()


def _read(catalog: Catalog, known: Contracts, contract: Contract, kafka: Mapping[str, Any] | None) -> Detail:
    part, name = _Parts(), contract.table
    table = part.of("table", lambda: tables.load(catalog, table_names.typed(contract)), None)
    held = part.of("contract", lambda: in_force.look(catalog, table, contract), in_force.written(contract))
    if why := part.missing.get("table"):
        part.missing["contract"] = why  # without the table it is not the file's
    found: Sequence[Trend] = part.of("expectations", lambda: trends.of_table(catalog, name, held.contract), ())
    through = _published(table)
    quarantine = part.of("rejected", lambda: rejected.read(catalog, contract, through), Rejected())
    return Detail(
        part.of("batches", lambda: _batches(table, quarantine.by_batch, found) if table else (), ()),
        found,
        quarantine,
        part.of("snapshots", lambda: _snapshots(table) if table else (), ()),
        part.of("kept", lambda: _kept(catalog, contract, through, kafka) if through is not None else None, None),
        part.of("versions", lambda: list(reversed(schemas_table.rows(catalog, contract.table))), []),
        part.of("maintenance", lambda: _effects(catalog, contract), []),
        part.of("readiness", lambda: readiness.of_table(held.contract, known, catalog), []),
        held.text,
        held.version,
        held.differs,
        contract.auto is not None,
        # By the first it was written, and by the file's a backfill is let or refused.
        not (held.contract.drops_raw or contract.drops_raw),
        part.missing,
    )


class _Parts:
    """What a page shows, part by part: where the table that one is read from is damaged, the others stay."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    def of(self, name: str, read: Callable[[], T], without: T) -> T:
        """A part.

        Args:
            without: what stands in its place where it can't be read.

        Raises:
            CatalogUnavailableError: the catalog did not answer, which is so for the other parts as well.
        """
        try:
            with availability.catalog_errors():
                try:
                    return read()
                except FileNotFoundError as error:  # the catalog has answered
                    self.missing[name] = gone(error)
        except CatalogUnavailableError:
            raise
        except SluiceError as error:
            self.missing[name] = str(error)
        return without


def _effects(catalog: Catalog, contract: Contract) -> list[maintenance_table.Effect]:
    states = ("done", "failed")
    kept = maintenance_table.kept(
        catalog, names=[contract.table], states=states, fields=maintenance_table.TOLD, most=EFFECTS
    )
    return kept[::-1]


def _published(table: Table | None) -> Mapping[str, Through] | None:
    try:
        return cursor.published(table)
    except CursorUnknownError:  # the status tells of it
        return None


def _kept(
    catalog: Catalog, contract: Contract, through: Mapping[str, Through], kafka: Mapping[str, Any] | None
) -> dict[str, dict[int, float]] | None:
    try:
        client = broker.open_broker(KAFKA_PATIENCE_S, kafka)
        states = broker.describe(client, contract.topics).values()
        return {
            state.topic: retention_warnings.left(client, state, _safe(catalog, state.topic, through.get(state.topic)))
            for state in states
            if isinstance(state, broker.TopicState) and state.retention_ms >= 0
        }
    except SluiceError:  # the status tells of it
        return None


def _safe(catalog: Catalog, topic: str, through: Through | None) -> dict[int, int]:
    """Per partition the first offset that Kafka alone holds: what is staged no longer needs it."""
    published = dict(through.next_offsets) if through else {}
    try:
        staged = cursor.staged(tables.load(catalog, table_names.staging(topic)))
    except SluiceError:  # the status tells of it
        staged = None
    raw = staged.next_offsets if staged and (through is None or staged.topic_id == through.topic_id) else {}
    return {p: max(published.get(p, 0), raw.get(p, 0)) for p in {*published, *raw}}


def _batches(table: Table, rejected: Mapping[tuple[str, int], int], judged_by: Sequence[Trend]) -> list[BatchLine]:
    judged: dict[tuple[str, int], int] = {}
    for result in (r for trend in judged_by for r in trend.results):
        key = (result.topic, result.batch_seq)
        judged[key] = judged.get(key, 0) + (result.success is False)
    found: list[BatchLine] = []
    landed = snapshots.landed(table.metadata)
    for snapshot in snapshots.ancestors(table.metadata):
        told = snapshots.summary(snapshot)
        if TOPIC not in told:
            continue
        at = landed[snapshot.snapshot_id]
        found += [
            BatchLine(
                b.topic, b.seq, dict(b.ranges), told.get(STEP, ""), snapshot.snapshot_id, at, told.get(RUN_ID),
                int(told.get("added-records", "0")), rejected.get((b.topic, b.seq), 0), judged.get((b.topic, b.seq)),
            )
            for b in reversed(batches_of(told))
        ]  # fmt: skip
        if len(found) >= BATCHES:
            break
    return found[:BATCHES]


def _snapshots(table: Table) -> list[SnapshotLine]:
    found, landed = [], snapshots.landed(table.metadata)
    for snapshot in islice(snapshots.ancestors(table.metadata), SNAPSHOTS):
        told = snapshots.summary(snapshot)
        operation = snapshot.summary.operation.value if snapshot.summary else ""
        added, removed = (int(told.get(f"{did}-data-files", "0")) for did in ("added", "deleted"))
        found.append(
            SnapshotLine(
                snapshot.snapshot_id, landed[snapshot.snapshot_id], told.get(STEP) or operation,
                added, removed, snapshots.totals(snapshot),
            )
        )  # fmt: skip
    return found
