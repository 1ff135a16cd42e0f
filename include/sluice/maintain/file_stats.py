"""What a table's metadata tells of its files, without a JVM: sizes, deletes and manifests, per partition.

Reading stops when its time is used up: manifests are read newest first, because that is where the small files are; of
those that one rewrite wrote, the ones first that reach to the highest partition, which is the newest by time.
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

from sluice.iceberg import snapshots
from sluice.ledger.maintenance_table import Size

BUDGET_S = 0.7
PATIENT_S = 5.0  # for a second look, where the first did not come to the end and found nothing
AT_ONCE, AT_ONCE_BYTES = 8, 1 << 19  # manifests
SMALL = 0.5  # the share of the target below which a file is rewritten
SMALL_MANIFEST = 4 << 20
_DELETED_FILE_PATH = 2147483546  # Iceberg's field id of the path in a position delete file

Key = tuple[Any, ...]
"""A partition: the number of its spec, then its values."""


@dataclass
class PartitionFacts:
    """The live files of one partition.

    Attributes:
        small: data files that are below half of the target size.
        small_bytes: what they hold.
        worn: data files of which at least the contract's share of rows is deleted.
        worn_bytes: what they hold.
        surplus: files that hold deletes, more than one for the same data file.
        written_ms: when something was last written into it that is still there; rewrites do not count. 0: longer ago
            than the table's snapshots tell.
    """

    small: int = 0
    small_bytes: int = 0
    worn: int = 0
    worn_bytes: int = 0
    surplus: int = 0
    written_ms: int = 0


@dataclass
class Facts:
    """A table's files. `complete` is false where the time was used up first; the counts are then lower bounds."""

    size: Size
    partitions: dict[Key, PartitionFacts] = field(default_factory=dict)
    small_manifests: int = 0
    complete: bool = True


def size(table: Table) -> Size:
    """Counts that the head's own summary gives."""
    return _size(table, _listed(table))


def _listed(table: Table) -> list[ManifestFile]:
    head = table.current_snapshot()
    return head.manifests(table.io) if head else []


def _size(table: Table, manifests: list[ManifestFile]) -> Size:
    head = table.current_snapshot()
    told = snapshots.summary(head) if head else {}

    def count(name: str) -> int:
        return int(told.get(name, "0"))

    return Size(
        data_files=count("total-data-files"),
        delete_files=count("total-delete-files"),
        bytes=count("total-files-size"),
        manifests=len(manifests),
        snapshots=len(table.metadata.snapshots),
    )


def outline(table: Table) -> Facts:
    """What the list of the head's manifests tells by itself: nothing of partitions."""
    return _outline(table, _listed(table))


def _outline(table: Table, manifests: list[ManifestFile]) -> Facts:
    small = sum(1 for m in manifests if m.manifest_length < SMALL_MANIFEST)
    return Facts(_size(table, manifests), small_manifests=small)


def read(table: Table, *, target: int, delete_ratio: float, budget: float = BUDGET_S) -> Facts:
    """Look at every live file that the head's manifests name, for as long as the budget (seconds) lasts."""
    until = time.monotonic() + budget
    manifests = _listed(table)
    facts = _outline(table, manifests)
    writes = {
        s.snapshot_id: s.timestamp_ms
        for s in table.metadata.snapshots
        if s.summary is None or s.summary.operation != Operation.REPLACE
    }
    data: list[DataFile] = []
    deletes: list[DataFile] = []
    partitions: dict[Key, PartitionFacts] = defaultdict(PartitionFacts)
    fetch = partial(ManifestFile.fetch_manifest_entry, io=table.io, discard_deleted=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for some in _at_once(_newest_first(table, manifests)):
            if time.monotonic() > until:
                facts.complete = False
                break
            for entry in chain.from_iterable(pool.map(fetch, some)):
                file = entry.data_file
                (data if file.content == DataFileContent.DATA else deletes).append(file)
                partition = partitions[_partition(file)]
                partition.written_ms = max(partition.written_ms, writes.get(entry.snapshot_id or 0, 0))
    gone, by_partition = _deletes(deletes)
    for file in data:
        partition = partitions[_partition(file)]
        if file.file_size_in_bytes < SMALL * target:
            partition.small += 1
            partition.small_bytes += file.file_size_in_bytes
        if gone.get(file.file_path, 0) >= delete_ratio * max(file.record_count, 1):
            partition.worn += 1
            partition.worn_bytes += file.file_size_in_bytes
    for key, aims in by_partition.items():
        partitions[key].surplus = len(aims) - len(set(aims))
    facts.partitions = dict(partitions)
    return facts


def _at_once(manifests: list[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Those that are read at the same time: small ones wait for storage, large ones take what time there is."""
    some: list[ManifestFile] = []
    for manifest in manifests:
        full = len(some) == AT_ONCE or sum(m.manifest_length for m in [*some, manifest]) > AT_ONCE_BYTES
        if some and full:
            yield some
            some = []
        some.append(manifest)
    if some:
        yield some


def _newest_first(table: Table, manifests: list[ManifestFile]) -> list[ManifestFile]:
    specs, columns = table.specs(), table.schema()

    def reach(manifest: ManifestFile) -> list[tuple[bool, Any]]:
        """The greatest value of each partition field; none is less than any."""
        try:
            kinds = [f.field_type for f in specs[manifest.partition_spec_id].partition_type(columns).fields]
        except ValueError:  # a column of an old spec was dropped
            return []
        ends = zip(kinds, [summary.upper_bound for summary in manifest.partitions or ()], strict=False)
        return [
            (True, from_bytes(kind, end)) if isinstance(kind, PrimitiveType) and end is not None else (False, None)
            for kind, end in ends
        ]

    return sorted(manifests, key=lambda m: (m.sequence_number or 0, m.partition_spec_id, reach(m)), reverse=True)


def _deletes(files: list[DataFile]) -> tuple[dict[str, int], dict[Key, list[str | None]]]:
    """Rows deleted per data file, where a delete file names just one; and per partition what each one aims at."""
    gone: dict[str, int] = defaultdict(int)
    by_partition: dict[Key, list[str | None]] = defaultdict(list)
    for file in files:
        lower = (file.lower_bounds or {}).get(_DELETED_FILE_PATH)
        upper = (file.upper_bounds or {}).get(_DELETED_FILE_PATH)
        aim = lower.decode() if lower and lower == upper else None
        by_partition[_partition(file)].append(aim)
        if aim:
            gone[aim] += file.record_count
    return gone, by_partition


def _partition(file: DataFile) -> Key:
    return (file.spec_id, *(file.partition[i] for i in range(len(file.partition))))
