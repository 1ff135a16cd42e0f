"""TODO docstring of sluice.iceberg.own_table."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from sluice.iceberg import tables

if TYPE_CHECKING:
    import pyarrow as pa


OWN_AGE, OWN_LEAST = timedelta(hours=1), 100
"""How long snapshots of Sluice's own tables stay, and how many at least. What they tell of the past stands in their
rows: an old snapshot is for who began to read it, and each commit reads and writes the metadata of all there are."""

SPARE, DROPPED = 2_000, 1_000
"""From so many more snapshots on whoever writes drops the oldest, so many at once; see `drop_spare`."""


def ready_to_append(table: Table) -> None:
    """Prepare this process's copy of one of Sluice's own tables for a small append; the catalog's metadata stays.

    PyIceberg copies all that the metadata holds twenty times per append, and of snapshots needs the head alone. Readers
    open each manifest: of a hundred small ones, where Iceberg would merge them first, that takes half a second.
    """
    known = table.metadata
    properties = {**known.properties, "commit.manifest.min-count-to-merge": "10"}
    head = [s for s in known.snapshots if s.snapshot_id == known.current_snapshot_id]
    # Not the log of metadata files: by it PyIceberg knows, after the commit, which of them to delete.
    table.metadata = known.model_copy(update={"properties": properties, "snapshots": head, "snapshot_log": []})


def append(table: Table, data: pa.Table, **properties: str) -> None:
    """Append a few rows to one of Sluice's own tables.

    Args:
        properties: of the commit's summary.

    Raises:
        CommitFailedException: another writer came first, each time that PyIceberg tried.
    """
    ready_to_append(table)
    table.append(data, snapshot_properties=properties)
    drop_spare(table)


def drop_spare(table: Table) -> None:
    """Drop the oldest snapshots of one of Sluice's own tables where there are far too many, right after a commit.

    They are maintenance's to expire, which deletes their files as well. But while it is paused, or waits for Spark, a
    commit would come to take seconds, and planners would lose one to another. Their files, which PyIceberg leaves, are
    orphans from then on. The head stays, and is all that others' commits require.
    """
    known = sorted(table.metadata.snapshots, key=lambda s: s.timestamp_ms)
    if len(known) < SPARE + OWN_LEAST:
        return
    if known[SPARE].timestamp_ms / 1000 > time.time() - OWN_AGE.total_seconds():
        return
    # Not all at once: PyIceberg compares each that goes with each that is there. And of those that stay this process's
    # copy needs the head alone, see `ready_to_append`.
    whole, going, head = table.metadata, known[:DROPPED], table.current_snapshot()
    shown = [*going, *([head] if head and head not in going else [])]
    stays = datetime.fromtimestamp(known[DROPPED].timestamp_ms / 1000, UTC)
    name = ".".join(table.name())
    try:
        table.metadata = whole.model_copy(update={"snapshots": shown, "snapshot_log": []})
        table.maintenance.expire_snapshots().older_than(stays).commit()
    except Exception as error:  # noqa: BLE001 - what was written is written; others dropped them, or will
        table.metadata = whole
        tables.log.info("%s: old snapshots are left to the next commit: %s", name, type(error).__name__)
    else:
        tables.log.info("%s: snapshots from before %s were dropped, maintenance has not come for long", name, stays)


def commit_once(table: Table) -> None:
    """Make the head that this process's copy of a table names a requirement of its next commit.

    PyIceberg moves a commit onto a new head by itself; without retries, the head that its snapshot names as parent is a
    requirement.
    """
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def widened(table: Table, wanted: Schema) -> Table:
    """The table with the columns that were added to its schema since it was made."""
    if {f.name for f in wanted.fields} <= set(table.schema().column_names):
        return table
    with suppress(CommitFailedException), table.update_schema() as update:  # somebody else does it at this moment
        update.union_by_name(wanted)
    return table.refresh()
