"""What a table's snapshots record: ancestry, summary properties, row counts, commit times. No JVM is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.batch import ADOPT_STEP, STEP


def ancestors(metadata: TableMetadata, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """Yield main's snapshots (or a snapshot and its ancestors), newest first, until the first expired one."""
    current = metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    while current is not None and (snapshot := metadata.snapshot_by_id(current)) is not None:
        yield snapshot
        current = snapshot.parent_snapshot_id


def summary(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the snapshot's summary properties."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def committed_at(snapshot: Snapshot) -> datetime:
    """Return when the snapshot was committed, to whatever branch."""
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def visible_times(metadata: TableMetadata) -> dict[int, datetime]:
    """Return, per snapshot id, when main was moved to it; if the snapshot log lacks it, when it was committed."""
    moved_ms = {entry.snapshot_id: entry.timestamp_ms for entry in reversed(metadata.snapshot_log)}
    return {
        s.snapshot_id: datetime.fromtimestamp(moved_ms.get(s.snapshot_id, s.timestamp_ms) / 1000, UTC)
        for s in metadata.snapshots
    }


def visible_at(metadata: TableMetadata, snapshot: Snapshot) -> datetime:
    """Return when main was moved to the snapshot, as `visible_times`."""
    return visible_times(metadata)[snapshot.snapshot_id]


def count_rows(table: Table) -> int:
    """Return the number of rows in the table's data files, including rows that delete files remove."""
    current = table.metadata.current_snapshot()
    return int(summary(current).get("total-records", "0")) if current else 0


def read_totals(snapshot: Snapshot | None) -> dict[str, int]:
    """Return the table's totals as of a snapshot, as far as its summary has them.

    `records` counts the rows of the data files. `deleted records` counts the rows that delete files mark as deleted;
    some of these may be in data files that were rewritten since.
    """
    properties = summary(snapshot) if snapshot else {}
    names = {
        "records": "total-records",
        "files": "total-data-files",
        "bytes": "total-files-size",
        "delete files": "total-delete-files",
        "deleted records": "total-position-deletes",
    }
    return {label: int(properties[name]) for label, name in names.items() if name in properties}


def has_equality_deletes(table: Table) -> bool:
    """Return whether main has equality deletes, which Sluice never writes."""
    current = table.metadata.current_snapshot()
    return current is not None and int(summary(current).get("total-equality-deletes", "0")) > 0


def bytes_per_record(table: Table) -> float | None:
    """Return the average size of a record in the table's files; None if unknown."""
    totals = read_totals(table.metadata.current_snapshot())
    return totals["bytes"] / totals["records"] if totals.get("bytes") and totals.get("records") else None


def has_rows_of_other_writers(table: Table) -> bool:
    """Return whether a snapshot of main that Sluice did not write added rows."""
    # Rows of before an adoption have no coordinates: no record of Sluice's can be among them.
    own = takewhile(lambda s: summary(s).get(STEP) != ADOPT_STEP, ancestors(table.metadata))
    return any(is_of_other_writer(s) and int(summary(s).get("added-records", "0")) > 0 for s in own)


def is_of_other_writer(snapshot: Snapshot) -> bool:
    """Return whether neither Sluice nor maintenance made the snapshot; maintenance's have the operation `replace`."""
    is_maintenance = snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE
    return STEP not in summary(snapshot) and not is_maintenance


def last_of_other_writer(table: Table) -> Mapping[str, str]:
    """Return the summary of main's newest snapshot that neither Sluice nor maintenance made; empty if there is none."""
    return next((summary(s) for s in ancestors(table.metadata) if is_of_other_writer(s)), {})


def is_first_snapshot(snapshot: Snapshot) -> bool:
    """Return whether the table, or what replaced its content, began with this snapshot.

    A missing parent id is no proof: PyIceberg's expiry removes it from the oldest snapshot that is left. Such a
    snapshot has more rows than it added, or deleted files.
    """
    properties = summary(snapshot)
    added = properties.get("added-records", "0")
    return (
        snapshot.parent_snapshot_id is None
        and properties.get("total-records", added) == added
        and "deleted-data-files" not in properties
    )


def read_row_counts(summary: Mapping[str, str]) -> dict[str, int]:
    """Return how many rows a commit added and deleted, by its summary properties."""
    names = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
    return {name: int(summary.get(name, "0")) for name in names}


def changed_rows(snapshot: Snapshot) -> bool:
    """Return whether a commit added or removed rows."""
    names = ("added-records", "deleted-records", "added-position-deletes")
    return any(int(summary(snapshot).get(name, "0")) for name in names)


def count_removed_rows(summary: Mapping[str, str]) -> int:
    """Return how many rows a commit removed: deleted ones, and earlier versions of those that it wrote anew.

    A new delete file or deletion vector of a data file repeats the positions of the one that it replaces.
    """
    removed = ("deleted-records", "added-position-deletes", "added-equality-deletes")
    repeated = ("removed-position-deletes", "removed-equality-deletes")
    one, other = (sum(int(summary.get(name, "0")) for name in names) for names in (removed, repeated))
    return one - other
