"""Batches as the snapshots of staging and typed tables record them.

In: the catalog's tables. Out: batches and ledger rows. Used to rebuild the ledger, and by planning to add rows that
the ledger has lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, Self

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Identifier

from sluice.batch import BATCH_SEQ, BATCHES, RUN_ID, STEP, TOPIC, Batch, batches_from_summary
from sluice.contract.folder import Contracts
from sluice.errors import LedgerError, SluiceError, TableDamagedError
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ledger.ledger_rows import BatchKey, LedgerRow, LedgerState, plan_rows


@dataclass(frozen=True)
class BatchSnapshot:
    """The snapshot with which a table got a batch.

    Attributes:
        committed: when it was committed, to whatever branch.
        at: when main was moved to it.
        records: how many rows it added for the batch; None if it is of several batches.
        run_id: the run that wrote it, if recorded.
    """

    snapshot_id: int
    committed: datetime
    at: datetime
    records: int | None
    run_id: str | None

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, at: datetime) -> Self:
        """Read a snapshot's summary.

        Args:
            snapshot: one that carries offsets.
            at: when main was moved to it.
        """
        properties = snapshots.summary(snapshot)
        records = None if BATCHES in properties else int(properties.get("added-records", "0"))
        return cls(snapshot.snapshot_id, snapshots.committed_at(snapshot), at, records, properties.get(RUN_ID))


@dataclass
class RecoveredBatch:
    """A batch, and the snapshots of staging and of typed tables (by name) that hold it."""

    batch: Batch
    staged: BatchSnapshot | None = None
    published: dict[str, BatchSnapshot] = field(default_factory=dict)


class RecoveredState(NamedTuple):
    """What the tables' snapshots record.

    Attributes:
        batches: by topic and number.
        published: the last published batch, by typed table and topic.
        problems: one sentence per table that could not be read.
    """

    batches: dict[BatchKey, RecoveredBatch]
    published: dict[str, Mapping[str, int]]
    problems: list[str]


def read_batches(contracts: Contracts, catalog: Catalog) -> RecoveredState:
    """Read the batches of all staging tables and of the contracts' typed tables.

    Raises:
        LedgerError: two tables' snapshots have different ranges for one batch.
    """
    found = RecoveredState({}, {}, [])
    for table in _load_staging_tables(catalog, found.problems):
        for batch, snapshot in _first_snapshots(table):
            found.batches.setdefault((batch.topic, batch.seq), RecoveredBatch(batch)).staged = snapshot
    for name, table in load_typed_tables(contracts, catalog, found.problems):
        for batch, snapshot in _first_snapshots(table):
            known = found.batches.setdefault((batch.topic, batch.seq), RecoveredBatch(batch))
            if known.batch != batch:
                raise LedgerError(
                    f"Snapshot {snapshot.snapshot_id} has {batch}; another table's snapshot has {known.batch}.",
                    table=name,
                    next_step="Roll one of the two tables back to before that batch.",
                )
            known.published[name] = snapshot
        try:
            found.published[name] = {topic: x.seq for topic, x in cursor.read_table_cursor(table).items()}
        except SluiceError as error:
            found.problems.append(str(error))
    return found


def load_typed_tables(contracts: Contracts, catalog: Catalog, problems: list[str]) -> list[tuple[str, Table]]:
    """Load the contracts' tables; for each damaged one, a sentence is added to `problems`."""
    names = {c.table: table_names.typed(c) for c in contracts.tables.values()}
    return [(name, table) for name, each in names.items() if (table := _load_undamaged(catalog, each, problems))]


def staged_rows(batch: Batch, table: str, snapshot: BatchSnapshot, *, who: str) -> list[LedgerRow]:
    """Return the `planned` and `staged` rows of a batch, written again from its snapshot.

    Args:
        batch: the batch.
        table: the staging table's name.
        snapshot: the one that staged it.
        who: the writer of the rows.
    """
    rows = plan_rows(batch)
    rows.append(
        LedgerRow(
            batch.topic,
            LedgerState.STAGED,
            batch.topic_id,
            batch.seq,
            snapshots={table: snapshot.snapshot_id},
            records=snapshot.records,
        )
    )
    return [replace(row, at=snapshot.at, run_id=snapshot.run_id, who=who) for row in rows]


def _load_staging_tables(catalog: Catalog, problems: list[str]) -> list[Table]:
    try:
        names = sorted(catalog.list_tables(table_names.STAGING))
    except NoSuchNamespaceError:
        return []
    return [table for name in names if (table := _load_undamaged(catalog, name, problems))]


def _load_undamaged(catalog: Catalog, identifier: Identifier, problems: list[str]) -> Table | None:
    try:
        return tables.load(catalog, identifier)
    except TableDamagedError as error:
        problems.append(str(error))
        return None


def _first_snapshots(table: Table) -> list[tuple[Batch, BatchSnapshot]]:
    """Each batch with the snapshot of main that first held it; replays hold nothing new."""
    found: dict[BatchKey, tuple[Batch, BatchSnapshot]] = {}
    visible_times = snapshots.visible_times(table.metadata)
    for snapshot in snapshots.ancestors(table.metadata):
        properties = snapshots.summary(snapshot)
        if BATCH_SEQ in properties and TOPIC in properties and properties.get(STEP) != "replay":
            held = BatchSnapshot.from_snapshot(snapshot, visible_times[snapshot.snapshot_id])
            for batch in batches_from_summary(properties):
                found[batch.topic, batch.seq] = (batch, held)
    return list(found.values())
