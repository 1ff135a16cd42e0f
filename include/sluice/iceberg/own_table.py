"""Writes rows into Sluice's own tables (`sluice.offsets`, …), which get many small commits. No JVM is needed.

In: a table and its new rows. Out: one commit; and few snapshots, even if maintenance does not run.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate

from sluice.iceberg import compat, refs

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS = timedelta(hours=1), 100
"""Retention of snapshots of Sluice's own tables. Their history is in their rows: an old snapshot only serves readers
that have started, and every commit reads and writes the metadata of all snapshots."""

MAX_EXCESS_SNAPSHOTS, EXPIRE_AT_ONCE = 2_000, 1_000
"""A writer expires the oldest snapshots, so many at once, when there are so many above `MIN_SNAPSHOTS`."""


def append(table: Table, data: pa.Table, *, retry: bool = True, **properties: str) -> None:
    """Append a few rows to one of Sluice's own tables. `table` itself stays at the snapshot it was loaded at.

    Args:
        table: one of Sluice's own tables.
        data: the rows, in the table's Arrow schema.
        retry: whether to commit onto a newer snapshot if another writer came first.
        properties: of the commit's summary.

    Raises:
        CommitFailedException: another writer came first; with `retry`, each time that PyIceberg tried.
    """
    writer = compat.with_current_snapshot_only(table if retry else compat.without_commit_retries(table))
    writer.append(data, snapshot_properties=properties)
    expire_excess_snapshots(writer)


def expire_excess_snapshots(table: Table) -> None:
    """Expire the oldest snapshots of one of Sluice's own tables if there are far too many, right after a commit.

    This is maintenance's work, which also deletes the files. While maintenance is paused or waits for Spark, commits
    would come to take seconds, and planners would conflict. The files that are left here are orphans from then on.
    """
    by_age = sorted(table.metadata.snapshots, key=lambda s: s.timestamp_ms)
    if len(by_age) < MAX_EXCESS_SNAPSHOTS + MIN_SNAPSHOTS:
        return
    if by_age[MAX_EXCESS_SNAPSHOTS].timestamp_ms / 1000 > time.time() - MAX_SNAPSHOT_AGE.total_seconds():
        return
    referenced = {ref.snapshot_id for ref in table.metadata.refs.values()}
    cutoff_ms = by_age[EXPIRE_AT_ONCE].timestamp_ms
    oldest = [s for s in by_age[:EXPIRE_AT_ONCE] if s.timestamp_ms < cutoff_ms]
    ids = [s.snapshot_id for s in oldest if s.snapshot_id not in referenced]
    name = ".".join(table.name())
    try:
        refs.commit(table.catalog, table, (), (RemoveSnapshotsUpdate(snapshot_ids=ids),))
    except Exception as error:  # noqa: BLE001 - the rows are committed; the next writer tries again
        log.info("%s: the next commit expires old snapshots: %s", name, type(error).__name__)
    else:
        log.info("%s: %d old snapshots were expired by a writer; maintenance has not run for long", name, len(ids))


def add_missing_columns(table: Table, wanted: Schema) -> Table:
    """Return the table with the columns that its schema lacks."""
    if {f.name for f in wanted.fields} <= set(table.schema().column_names):
        return table
    with suppress(CommitFailedException), table.update_schema() as update:  # another writer adds them now
        update.union_by_name(wanted)
    return table.refresh()
