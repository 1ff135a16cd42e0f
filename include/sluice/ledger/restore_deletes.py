"""Restores an upsert table's deletes table after the typed table was rolled back.

A deleted key that is in the deletes table but not in the typed table would suppress older versions of the key when they
are published again. Usually its delete is published again too; after a contract change it may not be.
"""

from __future__ import annotations

import logging

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId

from sluice.batch import STEP
from sluice.iceberg import compat, refs, snapshots

log = logging.getLogger(__name__)

EMPTY = 0
STEPS_THAT_DELETE = ("publish", "replay")
"""The steps that write to the deletes table."""


def find_restore_point(
    deletes: Table | None, table: TableMetadata, target: Snapshot, first_undone: Snapshot
) -> int | None:
    """Find the newest snapshot of the deletes table without deletes of undone batches.

    A publish writes its deletes after its rows and before main moves. So deletes from before the first undone snapshot
    belong to earlier batches, except those of a refused or killed earlier attempt at the undone batch: these were
    written after main had moved to the last snapshot before it.

    Returns:
        A snapshot id; `EMPTY` if all deletes are of undone batches; None if the deletes table stays as it is, because
        it is right already or the snapshot has expired.
    """
    if deletes is None or deletes.metadata.current_snapshot_id is None:
        return None
    history = list(snapshots.ancestors(deletes.metadata))
    publishes = (
        s for s in snapshots.ancestors(table, target.snapshot_id) if snapshots.summary(s).get(STEP) in STEPS_THAT_DELETE
    )
    last = next(publishes, None)
    moved_ms = [e.timestamp_ms for e in table.snapshot_log if last and e.snapshot_id == last.snapshot_id]
    until_ms = min([first_undone.timestamp_ms, *(ms + 1 for ms in moved_ms)])
    restore_to = next((s for s in history if s.timestamp_ms < until_ms), None)
    if restore_to is None:
        return EMPTY if snapshots.is_first_snapshot(history[-1]) else None
    return None if restore_to is history[0] else restore_to.snapshot_id


def restore_snapshot(deletes: Table, catalog: Catalog, snapshot_id: int) -> None:
    """Set the deletes table back to a snapshot, or empty it. Call it after the typed table's rollback, never before.

    If a run has written to it since it was loaded, it stays as it is: too many deletes do less harm than too few.
    """
    name, head = ".".join(deletes.name()), deletes.metadata.current_snapshot_id
    try:
        if snapshot_id == EMPTY:
            compat.without_commit_retries(deletes).delete(delete_filter=AlwaysTrue())
        else:
            unmoved = (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=head),)
            refs.commit(catalog, deletes, unmoved, (refs.set_ref(refs.MAIN, snapshot_id),))
    except CommitFailedException as error:
        log.warning("%s: not restored, because a run has written to it: %s", name, error)
