"""What a table with Kafka's coordinates has of a slice: its files, and its rows. No JVM.

PyIceberg takes a condition to each file and each of its row groups: with a term for each partition, that took a minute
over a large staging table. So it is asked for the hull of the ranges, and what lies within them is told here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import NestedField

from sluice.batch import Batch
from sluice.iceberg import tables
from sluice.iceberg.filters import AlwaysFalse, And, BooleanExpression, above, at_most, equal

TOPIC, PARTITION, OFFSET = "_kafka_topic", "_kafka_partition", "_kafka_offset"
_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


def files(table: Table, piece: Batch, also: BooleanExpression | None = None) -> list[FileScanTask]:
    """The files that may hold records of the slice.

    Args:
        also: what else is asked of its rows.
    """
    fields = table.schema()
    place = fields.find_field(PARTITION), fields.find_field(OFFSET)
    return [t for t in tables.files(table, _hull(table, piece, also)) if _may_hold(t.file, piece, *place)]


def rows(
    table: Table,
    piece: Batch,
    columns: Sequence[str] = (PARTITION, OFFSET),
    *,
    also: BooleanExpression | None = None,
    within: Sequence[FileScanTask] | None = None,
) -> pa.Table:
    """The rows of the slice.

    Args:
        columns: those that are wanted; the coordinates come with them.
        also: what else is asked of the rows.
        within: the `files`, where they are known.
    """
    found = files(table, piece, also) if within is None else within
    wanted = table.scan(selected_fields=tuple(dict.fromkeys((*columns, PARTITION, OFFSET)))).projection()
    read = ArrowScan(table.metadata, table.io, wanted, _hull(table, piece, also)).to_table(found)
    asked = sorted(piece.ranges.items())
    at = pc.index_in(read[PARTITION], pa.array([p for p, _ in asked], pa.int32()))
    starts, ends = pa.array([r.start for _, r in asked], pa.int64()), pa.array([r.end for _, r in asked], pa.int64())
    return read.filter(pc.and_(pc.greater_equal(read[OFFSET], starts.take(at)), pc.less(read[OFFSET], ends.take(at))))


def _hull(table: Table, piece: Batch, also: BooleanExpression | None) -> BooleanExpression:
    # Staging holds one topic, and does not name it.
    hull = within(piece) if TOPIC in table.schema().column_names else spanned(piece)
    return And(also, hull) if also else hull


def _may_hold(file: DataFile, piece: Batch, partition: NestedField, offset: NestedField) -> bool:
    """Whether one of the ranges meets what the file's metrics say of its partitions and offsets."""
    ends = (file.lower_bounds, _FIRST), (file.upper_bounds, _LAST)
    least, most = (tables.bound(of, partition, end) for of, end in ends)
    first, last = (tables.bound(of, offset, end) for of, end in ends)
    alone = piece.ranges.get(least) if least == most else None
    mine = [alone] if alone else [r for p, r in piece.ranges.items() if least <= p <= most]
    return any(r.start <= last and r.end > first for r in mine)


def within(piece: Batch) -> BooleanExpression:
    """The filter by which a table with Kafka's coordinates is scanned for what may be the slice's: see `spans`."""
    return And(equal("_kafka_topic", piece.topic), spanned(piece))


def spanned(piece: Batch) -> BooleanExpression:
    """The same for a table that holds one topic, which is staging."""
    ranges = piece.ranges
    if not ranges:
        return AlwaysFalse()
    lowest, highest = min(r.start for r in ranges.values()), max(r.end for r in ranges.values())
    offsets = And(above("_kafka_offset", lowest - 1), at_most("_kafka_offset", highest - 1))
    # Not a list: each of its values is compared with each file's bounds.
    return And(offsets, And(above("_kafka_partition", min(ranges) - 1), at_most("_kafka_partition", max(ranges))))
