"""Counts a table's live files from its manifests, without a JVM: small files, deletes and manifests per partition.

In: a table and a time budget. Out: `TableFiles`. Manifests are read newest first, as the newest list the small files.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import PrimitiveType

from sluice.iceberg import compat, snapshots
from sluice.ledger.maintenance_table import FileCounts

BUDGET_S = 0.7
SECOND_BUDGET_S = 5.0  # where the first pass ran out of time and found nothing to do
CONCURRENT_MANIFESTS, CONCURRENT_BYTES = 8, 1 << 19  # read at the same time
SMALL_RATIO = 0.5  # a file below this share of the target size is rewritten
SMALL_MANIFEST = 4 << 20
_DELETED_FILE_PATH = 2147483546  # Iceberg's field id of the path in a position delete file

Key = tuple[Any, ...]
"""A partition: its spec id, then its values."""


@dataclass
class PartitionFiles:
    """The live files of one partition.

    Attributes:
        small: number of data files below half of the target size.
        small_bytes: their total size.
        delete_heavy: number of data files whose share of deleted rows reaches the contract's `delete_ratio`.
        delete_heavy_bytes: their total size.
        surplus_deletes: number of delete files beyond the first for the same data file.
        written_ms: when the newest live file was written, rewrites not counted; 0: before the oldest snapshot left.
    """

    small: int = 0
    small_bytes: int = 0
    delete_heavy: int = 0
    delete_heavy_bytes: int = 0
    surplus_deletes: int = 0
    written_ms: int = 0


@dataclass
class TableFiles:
    """A table's live files. If `complete` is false, time ran out and the counts are lower bounds."""

    counts: FileCounts
    partitions: dict[Key, PartitionFiles] = field(default_factory=dict)
    small_manifests: int = 0
    complete: bool = True


def measure_head(table: Table) -> FileCounts:
    """The counts in the head snapshot's summary."""
    return _head_counts(table, _head_manifests(table))


def _head_manifests(table: Table) -> list[ManifestFile]:
    head = table.current_snapshot()
    return head.manifests(table.io) if head else []


def _head_counts(table: Table, manifests: list[ManifestFile]) -> FileCounts:
    head = table.current_snapshot()
    summary = snapshots.summary(head) if head else {}

    def count(name: str) -> int:
        return int(summary.get(name, "0"))

    return FileCounts(
        data_files=count("total-data-files"),
        delete_files=count("total-delete-files"),
        bytes=count("total-files-size"),
        manifests=len(manifests),
        snapshots=len(table.metadata.snapshots),
    )


def read_manifest_list(table: Table) -> TableFiles:
    """The counts that need no manifest to be read: nothing per partition."""
    return _count_manifests(table, _head_manifests(table))


def _count_manifests(table: Table, manifests: list[ManifestFile]) -> TableFiles:
    small = sum(1 for m in manifests if m.manifest_length < SMALL_MANIFEST)
    return TableFiles(_head_counts(table, manifests), small_manifests=small)


def read_files(table: Table, *, target: int, delete_ratio: float, budget: float = BUDGET_S) -> TableFiles:
    """Count the live files that the head's manifests list, for at most `budget` seconds.

    Args:
        target: the target file size in bytes.
        delete_ratio: the share of deleted rows from which a data file is rewritten.
    """
    until = time.monotonic() + budget
    manifests = _head_manifests(table)
    found = _count_manifests(table, manifests)
    written_at = {
        s.snapshot_id: s.timestamp_ms
        for s in table.metadata.snapshots
        if s.summary is None or s.summary.operation != Operation.REPLACE
    }
    data: list[DataFile] = []
    deletes: list[DataFile] = []
    partitions: dict[Key, PartitionFiles] = defaultdict(PartitionFiles)
    fetch = partial(compat.read_live_entries, io=table.io)
    with ThreadPoolExecutor(CONCURRENT_MANIFESTS) as pool:
        for chunk in _chunks(_newest_first(table, manifests)):
            if time.monotonic() > until:
                found.complete = False
                break
            for entry in chain.from_iterable(pool.map(fetch, chunk)):
                file = entry.data_file
                (data if file.content == DataFileContent.DATA else deletes).append(file)
                partition = partitions[_partition_key(file)]
                partition.written_ms = max(partition.written_ms, written_at.get(entry.snapshot_id or 0, 0))
    deleted_rows, delete_targets = _count_deletes(deletes)
    for file in data:
        partition = partitions[_partition_key(file)]
        if file.file_size_in_bytes < SMALL_RATIO * target:
            partition.small += 1
            partition.small_bytes += file.file_size_in_bytes
        if deleted_rows.get(file.file_path, 0) >= delete_ratio * max(file.record_count, 1):
            partition.delete_heavy += 1
            partition.delete_heavy_bytes += file.file_size_in_bytes
    for key, paths in delete_targets.items():
        partitions[key].surplus_deletes = len(paths) - len(set(paths))
    found.partitions = dict(partitions)
    return found


def _chunks(manifests: list[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Manifests to read at the same time: many small ones, which wait for storage, but few large ones."""
    chunk: list[ManifestFile] = []
    for manifest in manifests:
        size = sum(m.manifest_length for m in [*chunk, manifest])
        if chunk and (len(chunk) == CONCURRENT_MANIFESTS or size > CONCURRENT_BYTES):
            yield chunk
            chunk = []
        chunk.append(manifest)
    if chunk:
        yield chunk


def _newest_first(table: Table, manifests: list[ManifestFile]) -> list[ManifestFile]:
    """By sequence number. Manifests of one rewrite share it: then by the highest partition, the newest by time."""
    specs, columns = table.specs(), table.schema()

    def upper_bounds(manifest: ManifestFile) -> list[tuple[bool, Any]]:
        """The greatest value of each partition field; null sorts before any value."""
        try:
            kinds = [f.field_type for f in specs[manifest.partition_spec_id].partition_type(columns).fields]
        except ValueError:  # a column of an old spec was dropped
            return []
        ends = zip(kinds, [summary.upper_bound for summary in manifest.partitions or ()], strict=False)
        return [
            (True, from_bytes(kind, end)) if isinstance(kind, PrimitiveType) and end is not None else (False, None)
            for kind, end in ends
        ]

    return sorted(manifests, key=lambda m: (m.sequence_number or 0, m.partition_spec_id, upper_bounds(m)), reverse=True)


def _count_deletes(files: list[DataFile]) -> tuple[dict[str, int], dict[Key, list[str | None]]]:
    """Deleted rows per data file, and per partition the data file that each delete file is about.

    A delete file about several data files counts for none of them: None stands for it.
    """
    deleted_rows: dict[str, int] = defaultdict(int)
    targets: dict[Key, list[str | None]] = defaultdict(list)
    for file in files:
        lower = (file.lower_bounds or {}).get(_DELETED_FILE_PATH)
        upper = (file.upper_bounds or {}).get(_DELETED_FILE_PATH)
        path = compat.referenced_data_file(file) or (lower.decode() if lower and lower == upper else None)
        targets[_partition_key(file)].append(path)
        if path:
            deleted_rows[path] += file.record_count
    return deleted_rows, targets


def _partition_key(file: DataFile) -> Key:
    return (file.spec_id, *(file.partition[i] for i in range(len(file.partition))))
