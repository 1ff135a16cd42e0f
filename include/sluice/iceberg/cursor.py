"""Where a table stands, read from the table itself: the nearest ancestor of main that carries offsets, else the tag.

The ledger is asked last, and only believed when nothing that is left of main is older than what the ledger remembers.
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
    Remembered,
    Through,
    decode_through,
)
from sluice.errors import CursorUnknownError
from sluice.iceberg import snapshots


def carrier(table: Table, name: str, at: Snapshot | None = None) -> Snapshot | None:
    """The snapshot whose property `name` says where the table stands, or where it stood at another snapshot.

    Returns:
        None where the table never carried offsets: its ancestry is whole, and holds none.

    Raises:
        CursorUnknownError: the ancestry was cut by expiry, and no tag that fits answers.
    """
    head = at or table.metadata.current_snapshot()
    oldest: Snapshot | None = None
    for snapshot in snapshots.ancestors(table.metadata, head.snapshot_id if head else None):
        if name in snapshots.summary(snapshot):
            return snapshot
        oldest = snapshot
    if oldest is None or snapshots.began(oldest):
        return None
    tag = table.metadata.refs.get(CURSOR_TAG)
    tagged = table.metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    # An ancestor that the chain no longer shows is older than all that it shows. Any other tag belongs to what was
    # rolled back, however much was written since: believing it would skip records.
    if tagged and name in snapshots.summary(tagged) and _number(tagged) <= _number(oldest):
        return tagged
    raise CursorUnknownError(
        "No snapshot that is left, and no tag that fits, tells which offsets the table holds.",
        table=".".join(table.name()),
        head=head.snapshot_id if head else None,
    )


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def staged(table: Table | None, remembered: Callable[[], tuple[Batch, int] | None] | None = None) -> Batch | None:
    """The last batch in a staging table, with the topic's cursor after it.

    Args:
        table: the staging table, None where there is none yet.
        remembered: asks the ledger for the last batch it saw staged, and when (epoch ms).

    Raises:
        CursorUnknownError: the table has data, but neither it nor the ledger tells which.
    """
    if table is None:
        return None
    try:
        snapshot = carrier(table, NEXT_OFFSETS)
    except CursorUnknownError:
        memory = remembered() if remembered else None
        if memory and _is_not_older(table, memory[1]):
            return memory[0]
        raise
    return Batch.from_properties(snapshots.summary(snapshot)) if snapshot else None


def _is_not_older(table: Table, moment_ms: int) -> bool:
    """Whether all of main that is left was committed at or after a moment: nothing older was gone back to since.

    The head alone would not tell: others may have written on what was gone back to.
    """
    return min((s.timestamp_ms for s in snapshots.ancestors(table.metadata)), default=-1) >= moment_ms


def published(table: Table | None, remembered: Callable[[], Remembered | None] | None = None) -> Mapping[str, Through]:
    """Per topic how far a typed table has come; a topic that is missing was never published.

    Raises:
        CursorUnknownError: neither the table nor the ledger can tell.
    """
    if table is None:
        return {}
    try:
        snapshot = carrier(table, PUBLISHED_THROUGH)
    except CursorUnknownError:
        memory = remembered() if remembered else None
        if memory and _is_not_older(table, memory.committed_ms):
            return memory.through
        raise
    return decode_through(snapshots.summary(snapshot)[PUBLISHED_THROUGH]) if snapshot else {}


def staged_batches(table: Table | None, after: int = 0) -> dict[int, tuple[Batch, Snapshot]]:
    """The batches above `after` that main's snapshots still tell of, with the snapshot that staged each."""
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
