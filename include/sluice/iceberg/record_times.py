"""The two clocks of a table: its newest record in Kafka, and the newest record in its last durable snapshot.

Neither reads a record. Kafka tells its newest timestamp by ListOffsets; Iceberg keeps the upper bound of each
column with each data file.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import TimestamptzType

from sluice import timestamps
from sluice.iceberg import tables
from sluice.iceberg.filters import equal

if TYPE_CHECKING:
    pass

TIMESTAMP = "_kafka_timestamp"


def table_clock(staging: Table | None, seq: int, typed: Table | None, snapshot: Snapshot | None) -> datetime | None:
    """The greatest record timestamp of a batch, from the column bounds of its data files.

    Args:
        staging: asked first, because it has every record of the batch, tombstones and bad ones among them.
        seq: the batch's number.
        typed: asked when staging no longer has the batch.
        snapshot: the typed table's snapshot that published the batch.
    """
    if staging is not None:
        files = [task.file for task in tables.files(staging, equal("batch_seq", seq))]
        if found := _between(staging, files):
            return found[1]
    if typed is not None and snapshot is not None and (found := span(typed, snapshot)):
        return found[1]
    return None


def span(table: Table, snapshot: Snapshot) -> tuple[datetime, datetime] | None:
    """The least and the greatest record timestamp of what a snapshot added; None where it added no record."""
    return _between(table, _added(table, snapshot))


def _added(table: Table, snapshot: Snapshot) -> list[DataFile]:
    """The data files that one snapshot added."""
    found: list[DataFile] = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
            found += [
                entry.data_file
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
            ]
    return found


def _between(table: Table, files: Iterable[DataFile]) -> tuple[datetime, datetime] | None:
    field_id = table.schema().find_field(TIMESTAMP).field_id
    told = [(file.lower_bounds or {}, file.upper_bounds or {}) for file in files]
    bounds = [each[field_id] for pair in told for each in pair if field_id in each]
    moments = [timestamps.moment(int(from_bytes(TimestamptzType(), bound))) for bound in bounds]
    return (min(moments), max(moments)) if moments else None
