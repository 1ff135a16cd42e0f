"""Restores an upsert table's deletes table after the typed table was rolled back.

A deleted key that is in the deletes table but not in the typed table would suppress older versions of the key when they
are published again. Usually its delete is published again too; after a contract change it may not be.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId

from sluice.batch import BACKFILL, BASE_SNAPSHOT, BATCH_SEQ, TOPIC, TOPIC_ID, PublishedOffsets
from sluice.iceberg import compat, refs, snapshots

log = logging.getLogger(__name__)

EMPTY = 0
STEPS_THAT_DELETE = ("publish", "replay")
"""The steps that write to the deletes table."""


def find_restore_point(
    deletes: Table | None, published: Mapping[str, PublishedOffsets], undone_bases: Collection[int]
) -> int | None:
    """Find the newest snapshot of the deletes table without deletes of undone batches and slices.

    Each commit on the deletes table names its batch or slice, and the head that its write began from. Timestamps decide
    nothing: the clocks that stamp the two tables may differ. If in doubt a delete stays, because too many deletes do
    less harm than too few.

    Args:
        published: the offsets that the typed table is rolled back to, by topic. Deletes of later batches are undone.
        undone_bases: the snapshots that the rollback undoes, and its target. A slice that began from one of them, and
            so from above the target, is undone.

    Returns:
        A snapshot id; `EMPTY` if all deletes are of undone batches; None if the deletes table stays as it is, because
        it is right already or the snapshot has expired.
    """
    if deletes is None:
        return None
    restore_from: Snapshot | None = None
    for snapshot in snapshots.ancestors(deletes.metadata):
        if _is_undone(snapshots.summary(snapshot), published, undone_bases):
            restore_from = snapshot
        elif not _is_rewrite(snapshot):
            break
    if restore_from is None:
        return None
    return EMPTY if snapshots.is_first_snapshot(restore_from) else restore_from.parent_snapshot_id


def _is_undone(
    summary: Mapping[str, str], published: Mapping[str, PublishedOffsets], undone_bases: Collection[int]
) -> bool:
    if BACKFILL in summary:
        return int(summary[BASE_SNAPSHOT]) in undone_bases
    if BATCH_SEQ not in summary:
        return False
    offsets = published.get(summary[TOPIC])
    if offsets and offsets.topic_id != summary[TOPIC_ID]:
        return False
    return int(summary[BATCH_SEQ]) > (offsets.seq if offsets else 0)


def _is_rewrite(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE


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
