"""Which offsets a table holds, read from its own snapshots. In: a staging or typed table. Out: its cursor.

Lookup order:
1. the nearest ancestor of main's current snapshot that carries offsets (or nothing, if the ancestry is complete);
2. the tag `sluice_cursor`, if expiry cut the ancestry and the tag's snapshot is older than what is left of it;
3. the ledger, if its entry is older than all that is left of the ancestry: nothing was rolled back since.
Otherwise the table stops with `CursorUnknownError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import (
    BATCH_SEQ,
    CURSOR_TAG,
    NEXT_OFFSETS,
    PUBLISHED_THROUGH,
    Batch,
    LedgerCursor,
    PublishedOffsets,
    decode_published_through,
)
from sluice.errors import CursorUnknownError
from sluice.iceberg import snapshots


def find_offset_snapshot(table: Table, offset_property: str, at: Snapshot | None = None) -> Snapshot | None:
    """Find the snapshot that holds the table's cursor: steps 1 and 2 of the lookup order.

    Args:
        table: a staging or typed table.
        offset_property: the summary property with the offsets, `NEXT_OFFSETS` or `PUBLISHED_THROUGH`.
        at: look up the cursor as of this snapshot; by default main's current one.

    Returns:
        None if the ancestry is complete and no snapshot carries offsets.

    Raises:
        CursorUnknownError: expiry cut the ancestry, and the tag does not help.
    """
    start = at or table.metadata.current_snapshot()
    oldest: Snapshot | None = None
    for snapshot in snapshots.ancestors(table.metadata, start.snapshot_id if start else None):
        if offset_property in snapshots.summary(snapshot):
            return snapshot
        oldest = snapshot
    if oldest is None or snapshots.is_first_snapshot(oldest):
        return None
    tag = table.metadata.refs.get(CURSOR_TAG)
    tagged = table.metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    # An expired ancestor is older than every ancestor that is left. A tag on a newer snapshot belongs to commits that
    # were rolled back: using it would skip records.
    if tagged and offset_property in snapshots.summary(tagged) and _is_not_newer(tagged, oldest):
        return tagged
    raise CursorUnknownError(
        "Neither a snapshot nor the cursor tag gives the offsets that the table holds.",
        table=".".join(table.name()),
        head=start.snapshot_id if start else None,
    )


def read_staging_cursor(
    table: Table | None, ask_ledger: Callable[[], tuple[Batch, int] | None] | None = None
) -> Batch | None:
    """Return the last batch in a staging table, with the topic's cursor after it.

    Args:
        table: the staging table; None if it does not exist.
        ask_ledger: step 3: returns the last batch that the ledger has as staged, and when (epoch ms).

    Raises:
        CursorUnknownError: the table has data, and no step of the lookup gives its offsets.
    """
    if table is None:
        return None
    try:
        snapshot = find_offset_snapshot(table, NEXT_OFFSETS)
    except CursorUnknownError:
        entry = ask_ledger() if ask_ledger else None
        if entry and _is_ancestry_newer_than(table, entry[1]):
            return entry[0]
        raise
    return Batch.from_properties(snapshots.summary(snapshot)) if snapshot else None


def read_table_cursor(
    table: Table | None, ask_ledger: Callable[[], LedgerCursor | None] | None = None
) -> Mapping[str, PublishedOffsets]:
    """Return a typed table's position per topic, without topics that were never published.

    Args:
        table: the typed table; None if it does not exist.
        ask_ledger: step 3: returns the cursor that the ledger has.

    Raises:
        CursorUnknownError: the table has data, and no step of the lookup gives its offsets.
    """
    if table is None:
        return {}
    try:
        snapshot = find_offset_snapshot(table, PUBLISHED_THROUGH)
    except CursorUnknownError:
        entry = ask_ledger() if ask_ledger else None
        if entry and _is_ancestry_newer_than(table, entry.committed_ms):
            return entry.published
        raise
    return decode_published_through(snapshots.summary(snapshot)[PUBLISHED_THROUGH]) if snapshot else {}


def read_staged_batches(table: Table | None, after: int = 0) -> dict[int, tuple[Batch, Snapshot]]:
    """Return the batches above number `after` in main's snapshots, with the snapshot that staged each."""
    found: dict[int, tuple[Batch, Snapshot]] = {}
    if table is None:
        return found
    for snapshot in snapshots.ancestors(table.metadata):
        properties = snapshots.summary(snapshot)
        if BATCH_SEQ in properties:
            batch = Batch.from_properties(properties)
            if batch.seq <= after:
                break
            found.setdefault(batch.seq, (batch, snapshot))
    return found


def _is_not_newer(snapshot: Snapshot, other: Snapshot) -> bool:
    return (snapshot.sequence_number or 0) <= (other.sequence_number or 0)


def _is_ancestry_newer_than(table: Table, time_ms: int) -> bool:
    """Whether every ancestor that is left was committed at or after a time, so that main was not rolled back since.

    Main's current snapshot alone does not show it: another engine may have committed after a rollback.
    """
    return min((s.timestamp_ms for s in snapshots.ancestors(table.metadata)), default=-1) >= time_ms
