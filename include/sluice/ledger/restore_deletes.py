"""Take an upsert table's memory of deleted keys back, after the table itself was rolled back.

A delete that is remembered and not in the table would drop older versions of its key when they are published again. As
long as the delete is published again as well, that changes nothing; after a changed contract it may not be.
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
from sluice.iceberg import own_table, refs, snapshots

log = logging.getLogger(__name__)

EMPTY = 0
REMEMBER = ("publish", "replay")
"""The steps that remember deletes."""


def state_before(memory: Table | None, table: TableMetadata, target: Snapshot, first_undone: Snapshot) -> int | None:
    """The newest state of the memory that knows nothing of what is undone.

    A publish remembers its deletes after it has written its rows, and before it lands: what is older than the first
    snapshot that is undone belongs to batches before it. But for what an earlier attempt at that batch remembered,
    which was refused or killed: that came after the last commit of before had landed.

    Returns:
        A snapshot, `EMPTY` where all of it came later, or None where it stays: it is right, or the snapshot expired.
    """
    if memory is None or memory.metadata.current_snapshot_id is None:
        return None
    line = list(snapshots.ancestors(memory.metadata))
    steps = (s for s in snapshots.ancestors(table, target.snapshot_id) if snapshots.summary(s).get(STEP) in REMEMBER)
    last = next(steps, None)
    landed = [e.timestamp_ms for e in table.snapshot_log if last and e.snapshot_id == last.snapshot_id]
    until = min([first_undone.timestamp_ms, *(ms + 1 for ms in landed)])
    before = next((s for s in line if s.timestamp_ms < until), None)
    if before is None:
        return EMPTY if snapshots.began(line[-1]) else None
    return None if before is line[0] else before.snapshot_id


def go_back(memory: Table, catalog: Catalog, snapshot_id: int) -> None:
    """Take the memory, as it was looked at, back to a snapshot, or to nothing. After the table, never before it.

    A run that has remembered more meanwhile wins: a memory that knows too much is the lesser harm.
    """
    name, head = ".".join(memory.name()), memory.metadata.current_snapshot_id
    try:
        if snapshot_id == EMPTY:
            own_table.commit_once(memory)
            memory.delete(delete_filter=AlwaysTrue())
        else:
            here = (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=head),)
            refs.commit(catalog, memory, here, (refs.point(refs.MAIN, snapshot_id),))
    except CommitFailedException as error:
        log.warning("%s: left as it is, a run has written to it meanwhile: %s", name, error)
