"""The slices of backfills that a rollback undoes: what of their records nobody but the table may hold any more.

They are not published again by themselves. Whoever brings them again reads staging, or Kafka as far as that has them;
those that came from quarantine have left it when they landed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import Batch
from sluice.iceberg import snapshots, table_names, tables
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange, encode_gaps, encode_ranges


@dataclass(frozen=True)
class Undone:
    """A slice that a rollback undoes.

    Attributes:
        batch: the slice.
        added: how many rows it wrote.
        holes: per partition what of its ranges staging does not hold; empty where it changed nothing.
    """

    batch: Batch
    added: int
    holes: Mapping[int, list[OffsetRange]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether staging holds all that it brought."""
        return not self.holes

    def __str__(self) -> str:
        lacks = f", and staging lacks {encode_gaps(self.holes)}" if self.holes else ""
        return f"backfill {self.batch.seq} {encode_ranges(self.batch.ranges)}: {self.added:,} rows written{lacks}"


def look(undone: Iterable[Snapshot], catalog: Catalog, ledger: Ledger | None) -> tuple[Undone, ...]:
    """The slices that these snapshots of a typed table brought, and what staging has of them.

    Raises:
        TableDamagedError: staging can't be read.
    """
    held: dict[str, list[Batch]] = {}
    out = []
    for piece, snapshot in slices.brought(undone):
        told = snapshots.told_by(snapshots.summary(snapshot))
        holes = {}
        if any(told.values()):
            if piece.topic not in held:
                staging = tables.load(catalog, table_names.staging(piece.topic))
                known = slices.rows(ledger, piece.topic)
                held[piece.topic] = slices.in_staging(staging, piece.topic, known, ledger)
            # A topic that was created again has other records at these offsets.
            holes = slices.missing(piece.ranges, [b for b in held[piece.topic] if b.topic_id == piece.topic_id])
        out.append(Undone(piece, told["added-records"], holes))
    return tuple(out)
