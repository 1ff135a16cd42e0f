"""TODO docstring of sluice.iceberg.snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.batch import STEP


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


def told_by(summary: Mapping[str, str]) -> dict[str, int]:
    """What a commit's own summary says of rows: added, and deleted in whatever way."""
    names = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
    return {name: int(summary.get(name, "0")) for name in names}
