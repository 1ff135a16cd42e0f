"""Kafka timestamps of the records in a table, from the column bounds of its data files: no record is read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import TimestamptzType

from sluice import timestamps
from sluice.iceberg import tables
from sluice.iceberg.filters import equal

TIMESTAMP = "_kafka_timestamp"


def newest_record_time(
    staging: Table | None, seq: int, typed: Table | None, snapshot: Snapshot | None
) -> datetime | None:
    """Return the greatest record timestamp of a batch.

    Args:
        staging: read first, because it has all records of the batch, including tombstones and quarantined ones.
        seq: the batch's number.
        typed: read if staging no longer has the batch.
        snapshot: the typed table's snapshot that published the batch.
    """
    if staging is not None:
        files = [task.file for task in tables.plan_files(staging, equal("batch_seq", seq))]
        if times := _time_range(staging, files):
            return times[1]
    if typed is not None and snapshot is not None and (times := record_time_range(typed, snapshot)):
        return times[1]
    return None


def record_time_range(table: Table, snapshot: Snapshot) -> tuple[datetime, datetime] | None:
    """Return the least and greatest timestamp of the records that a snapshot added; None if it added none."""
    return _time_range(table, _added_files(table, snapshot))


def _added_files(table: Table, snapshot: Snapshot) -> list[DataFile]:
    found: list[DataFile] = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
            found += [
                entry.data_file
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
            ]
    return found


def _time_range(table: Table, files: Iterable[DataFile]) -> tuple[datetime, datetime] | None:
    field_id = table.schema().find_field(TIMESTAMP).field_id
    by_file = [(file.lower_bounds or {}, file.upper_bounds or {}) for file in files]
    bounds = [each[field_id] for pair in by_file for each in pair if field_id in each]
    times = [timestamps.utc_from_micros(int(from_bytes(TimestamptzType(), bound))) for bound in bounds]
    return (min(times), max(times)) if times else None
