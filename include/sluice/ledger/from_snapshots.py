"""What the snapshots of staging and typed tables tell of batches: which of them holds which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Identifier

from sluice.batch import BATCH_SEQ, BATCHES, RUN_ID, STEP, TOPIC, Batch, batches_of
from sluice.contract.folder import Contracts
from sluice.errors import LedgerError, SluiceError, TableDamagedError
from sluice.iceberg import cursor, snapshots, table_names, tables

BatchKey = tuple[str, int]
"""Topic and number."""


@dataclass(frozen=True)
class Brought:
    """The snapshot that brought a batch.

    Attributes:
        committed, at: when it was committed, and when readers first saw it.
        records: how many rows it added, where that is known.
        run_id: whose it is, where it says so.
    """

    snapshot_id: int
    committed: datetime
    at: datetime
    records: int | None
    run_id: str | None


@dataclass
class Told:
    """What the tables tell of one batch: which snapshot of which table holds it."""

    batch: Batch
    staged: Brought | None = None
    published: dict[str, Brought] = field(default_factory=dict)


def by_batch(
    contracts: Contracts, catalog: Catalog
) -> tuple[dict[BatchKey, Told], dict[str, Mapping[str, int]], list[str]]:
    """What all snapshots tell of batches; how far each typed table has come per topic; and tables that can't tell.

    Raises:
        LedgerError: two tables' snapshots contradict each other.
    """
    told: dict[BatchKey, Told] = {}
    reached: dict[str, Mapping[str, int]] = {}
    unknown: list[str] = []
    for table in _staging_tables(catalog, unknown):
        for batch, brought in _carriers(table):
            told.setdefault((batch.topic, batch.seq), Told(batch)).staged = brought
    for name, loaded in typed_tables(contracts, catalog, unknown):
        for batch, brought in _carriers(loaded):
            known = told.setdefault((batch.topic, batch.seq), Told(batch))
            if known.batch != batch:
                raise LedgerError(
                    f"Snapshot {brought.snapshot_id} gives {batch}; another table's snapshot gives {known.batch}.",
                    table=name,
                    way_out="Roll one of the two tables back to before that batch.",
                )
            known.published[name] = brought
        try:
            reached[name] = {t: x.seq for t, x in cursor.published(loaded).items()}
        except SluiceError as error:
            unknown.append(str(error))
    return told, reached, unknown


def _staging_tables(catalog: Catalog, unknown: list[str]) -> list[Table]:
    try:
        names = sorted(catalog.list_tables(table_names.STAGING))
    except NoSuchNamespaceError:
        return []
    return [found for name in names if (found := _whole(catalog, name, unknown))]


def typed_tables(contracts: Contracts, catalog: Catalog, unknown: list[str]) -> list[tuple[str, Table]]:
    """The contracts' tables that are whole; of those that are damaged `unknown` is given a sentence each."""
    names = {c.table: table_names.typed(c) for c in contracts.tables.values()}
    return [(name, found) for name, each in names.items() if (found := _whole(catalog, each, unknown))]


def _whole(catalog: Catalog, identifier: Identifier, unknown: list[str]) -> Table | None:
    """The table, if there is one and it is whole; one that is damaged is added to `unknown`."""
    try:
        return tables.load(catalog, identifier)
    except TableDamagedError as error:
        unknown.append(str(error))
        return None


def _carriers(table: Table) -> list[tuple[Batch, Brought]]:
    """Each batch with the snapshot of main that first brought it; replays bring nothing new."""
    found: dict[BatchKey, tuple[Batch, Brought]] = {}
    landed = snapshots.landed(table.metadata)
    for snapshot in snapshots.ancestors(table.metadata):
        properties = snapshots.summary(snapshot)
        if BATCH_SEQ in properties and TOPIC in properties and properties.get(STEP) != "replay":
            brought = Brought(
                snapshot.snapshot_id,
                snapshots.committed_at(snapshot),
                landed[snapshot.snapshot_id],
                _records(snapshot),
                properties.get(RUN_ID),
            )
            for batch in batches_of(properties):
                found[batch.topic, batch.seq] = (batch, brought)
    return list(found.values())


def _records(snapshot: Snapshot) -> int | None:
    """How many rows a batch's commit added; unknown for one of several batches of one commit."""
    properties = snapshots.summary(snapshot)
    return None if BATCHES in properties else int(properties.get("added-records", "0"))
