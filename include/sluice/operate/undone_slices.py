"""Finds the backfill slices that a rollback undoes, and which of their records staging no longer holds.

In: the undone snapshots. Out: an `UndoneSlice` each. Ingestion does not publish them again: a new backfill replays them
from staging or Kafka. Records that were replayed from quarantine are no longer there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import Batch
from sluice.iceberg import snapshots, tables
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange, encode_gaps, encode_ranges


@dataclass(frozen=True)
class UndoneSlice:
    """A backfill slice that a rollback undoes.

    Attributes:
        batch: the slice.
        added: how many rows it wrote.
        missing: per partition, its ranges that staging does not hold; empty where it wrote nothing.
    """

    batch: Batch
    added: int
    missing: Mapping[int, list[OffsetRange]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether staging holds all its records."""
        return not self.missing

    def __str__(self) -> str:
        lacks = f", and staging lacks {encode_gaps(self.missing)}" if self.missing else ""
        return f"backfill {self.batch.seq} {encode_ranges(self.batch.ranges)}: {self.added:,} rows written{lacks}"


def find_undone_slices(undone: Iterable[Snapshot], catalog: Catalog, ledger: Ledger | None) -> tuple[UndoneSlice, ...]:
    """The slices that these snapshots of a typed table published, and what staging lacks of them.

    Raises:
        TableDamagedError: staging can't be read.
    """
    staged: dict[str, list[Batch]] = {}
    found = []
    for piece, snapshot in slices.find_replayed_slices(undone):
        counts = snapshots.read_row_counts(snapshots.summary(snapshot))
        missing = {}
        if any(counts.values()):
            if piece.topic not in staged:
                staging = tables.load_staging(catalog, piece.topic)
                rows = slices.read_slice_rows(ledger, piece.topic)
                staged[piece.topic] = slices.find_staged_batches(staging, piece.topic, rows, ledger)
            # A topic that was recreated has other records at these offsets.
            same_topic = [batch for batch in staged[piece.topic] if batch.topic_id == piece.topic_id]
            missing = slices.find_missing_ranges(piece.ranges, same_topic)
        found.append(UndoneSlice(piece, counts["added-records"], missing))
    return tuple(found)


def last_recorded_ms(undone: Collection[UndoneSlice], ledger: Ledger) -> int:
    """The time of the ledger's newest row of these slices, in whole milliseconds (epoch); 0 if there is none.

    A rollback counts as later than all of these, whatever its own clock says: else a slice that it undid would be taken
    for one that the table holds, once its snapshot has expired.
    """
    numbers = {(each.batch.topic, each.batch.seq) for each in undone}
    rows = slices.read_slice_rows(ledger, *sorted({topic for topic, _ in numbers})) if numbers else []
    return max((ceil(r.at.timestamp() * 1000) for r in rows if (r.topic, r.batch_seq) in numbers), default=0)
