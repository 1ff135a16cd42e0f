"""Where a table stands, read from the table itself: the nearest ancestor of main that carries offsets, else the tag.

The ledger is asked last, and only believed when nothing that is left of main is older than what the ledger remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.errors import CursorUnknownError
from sluice.model import (
    BATCH_SEQ,
    CURSOR_TAG,
    NEXT_OFFSETS,
    PUBLISHED_THROUGH,
    STEP,
    Batch,
    Remembered,
    Through,
    decode_through,
)


def ancestors(metadata: TableMetadata, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """Main's snapshots (or those of `snapshot_id`), newest first, as far as expiry has left the chain whole."""
    current = metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    while current is not None and (snapshot := metadata.snapshot_by_id(current)) is not None:
        yield snapshot
        current = snapshot.parent_snapshot_id


def summary(snapshot: Snapshot) -> Mapping[str, str]:
    """The snapshot's summary properties."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def committed_at(snapshot: Snapshot) -> datetime:
    """When the snapshot was committed."""
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def landed(metadata: TableMetadata) -> dict[int, datetime]:
    """Per snapshot when readers first saw it: it is committed to a branch, and main moves onto it later.

    Where the table's log no longer tells, when it was committed.
    """
    first = {entry.snapshot_id: entry.timestamp_ms for entry in reversed(metadata.snapshot_log)}
    return {
        s.snapshot_id: datetime.fromtimestamp(first.get(s.snapshot_id, s.timestamp_ms) / 1000, UTC)
        for s in metadata.snapshots
    }


def landed_at(metadata: TableMetadata, snapshot: Snapshot) -> datetime:
    """The same of one snapshot."""
    return landed(metadata)[snapshot.snapshot_id]


def rows(table: Table) -> int:
    """The rows of the table's data files; those that delete files take away are among them."""
    head = table.metadata.current_snapshot()
    return int(summary(head).get("total-records", "0")) if head else 0


def totals(snapshot: Snapshot | None) -> dict[str, int]:
    """What a snapshot says of the whole table: records, files, bytes, delete files; nothing where it says nothing."""
    told = summary(snapshot) if snapshot else {}
    names = {"records": "total-records", "files": "total-data-files", "bytes": "total-files-size"}
    names["delete files"] = "total-delete-files"
    return {words: int(told[name]) for words, name in names.items() if name in told}


def bytes_per_record(table: Table) -> float | None:
    """What a record takes in the table's files on average; None where it holds none, or does not say."""
    told = totals(table.metadata.current_snapshot())
    return told["bytes"] / told["records"] if told.get("bytes") and told.get("records") else None


def has_foreign_rows(table: Table) -> bool:
    """Whether others have added rows to main, or altered some, as far as its snapshots reach back."""
    told = [s.summary for s in ancestors(table.metadata) if s.summary and s.summary.operation != Operation.REPLACE]
    others = (s.additional_properties for s in told if STEP not in s.additional_properties)
    return any(int(each.get("added-records", "0")) > 0 for each in others)


def carrier(table: Table, name: str, at: Snapshot | None = None) -> Snapshot | None:
    """The snapshot whose property `name` says where the table stands, or where it stood at another snapshot.

    Returns:
        None where the table never carried offsets: its ancestry is whole, and holds none.

    Raises:
        CursorUnknownError: the ancestry was cut by expiry, and no tag that fits answers.
    """
    head = at or table.metadata.current_snapshot()
    oldest: Snapshot | None = None
    for snapshot in ancestors(table.metadata, head.snapshot_id if head else None):
        if name in summary(snapshot):
            return snapshot
        oldest = snapshot
    if oldest is None or began(oldest):
        return None
    tag = table.metadata.refs.get(CURSOR_TAG)
    tagged = table.metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    # An ancestor that the chain no longer shows is older than all that it shows. Any other tag belongs to what was
    # rolled back, however much was written since: believing it would skip records.
    if tagged and name in summary(tagged) and _number(tagged) <= _number(oldest):
        return tagged
    raise CursorUnknownError(
        "No snapshot that is left, and no tag that fits, tells which offsets the table holds.",
        table=".".join(table.name()),
        head=head.snapshot_id if head else None,
    )


def began(snapshot: Snapshot) -> bool:
    """Whether a table, or what replaced it, began with this snapshot.

    One without a parent may only be the oldest that is left: PyIceberg's expiry takes the parent's id away, too. That
    one stands on something: on rows that it did not add, or files that it took away.
    """
    told = summary(snapshot)
    added = told.get("added-records", "0")
    return (
        snapshot.parent_snapshot_id is None
        and told.get("total-records", added) == added
        and "deleted-data-files" not in told
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
    return Batch.from_properties(summary(snapshot)) if snapshot else None


def _is_not_older(table: Table, moment_ms: int) -> bool:
    """Whether all of main that is left was committed at or after a moment: nothing older was gone back to since.

    The head alone would not tell: others may have written on what was gone back to.
    """
    return min((s.timestamp_ms for s in ancestors(table.metadata)), default=-1) >= moment_ms


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
    return decode_through(summary(snapshot)[PUBLISHED_THROUGH]) if snapshot else {}


def staged_batches(table: Table | None, after: int = 0) -> dict[int, tuple[Batch, Snapshot]]:
    """The batches above `after` that main's snapshots still tell of, with the snapshot that staged each."""
    found: dict[int, tuple[Batch, Snapshot]] = {}
    if table is None:
        return found
    for snapshot in ancestors(table.metadata):
        properties = summary(snapshot)
        if BATCH_SEQ in properties:
            batch = Batch.from_properties(properties)
            if batch.seq <= after:
                break
            found.setdefault(batch.seq, (batch, snapshot))
    return found
