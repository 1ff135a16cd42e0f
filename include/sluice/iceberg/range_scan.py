"""Reads a slice (offset ranges of one topic) from any table with Kafka coordinates: its files and its rows. No JVM.

PyIceberg evaluates a filter for each file and row group; a term per partition took a minute on a large staging table.
So the filter covers the ranges' least and greatest partition and offset, and the exact ranges are applied in Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import NestedField

from sluice.batch import Batch
from sluice.iceberg import scan, tables
from sluice.iceberg.filters import AlwaysFalse, And, BooleanExpression, above, at_most, equal

TOPIC, PARTITION, OFFSET = "_kafka_topic", "_kafka_partition", "_kafka_offset"
_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1


def plan_slice_files(table: Table, piece: Batch, extra_filter: BooleanExpression | None = None) -> list[FileScanTask]:
    """Return the files that may hold records of the slice that pass the extra filter."""
    partition, offset = (table.schema().find_field(name) for name in (PARTITION, OFFSET))
    planned = tables.plan_files(table, _row_filter(table, piece, extra_filter))
    return [task for task in planned if _may_hold(task.file, piece, partition, offset)]


def read_slice_records(
    table: Table,
    piece: Batch,
    columns: Sequence[str] = (PARTITION, OFFSET),
    *,
    extra_filter: BooleanExpression | None = None,
    files: Sequence[FileScanTask] | None = None,
) -> pa.Table:
    """Read the records of the slice.

    Args:
        table: staging, a typed table, or a quarantine.
        piece: the slice.
        columns: names of the columns to read; partition and offset are always added.
        extra_filter: a further condition on the rows.
        files: what `plan_slice_files` returned, if it was called before.
    """
    planned = plan_slice_files(table, piece, extra_filter) if files is None else files
    names = tuple(dict.fromkeys((*columns, PARTITION, OFFSET)))
    read = scan.read_files(table, planned, _row_filter(table, piece, extra_filter), names)
    ranges = sorted(piece.ranges.items())
    index = pc.index_in(read[PARTITION], pa.array([p for p, _ in ranges], pa.int32()))
    starts, ends = pa.array([r.start for _, r in ranges], pa.int64()), pa.array([r.end for _, r in ranges], pa.int64())
    offsets = read[OFFSET]
    return read.filter(pc.and_(pc.greater_equal(offsets, starts.take(index)), pc.less(offsets, ends.take(index))))


def slice_filter(piece: Batch) -> BooleanExpression:
    """Return a filter that all records of the slice pass, and some others, on a table of several topics."""
    return And(equal(TOPIC, piece.topic), offset_filter(piece))


def offset_filter(piece: Batch) -> BooleanExpression:
    """Return the same filter for a table of one topic, which is staging."""
    ranges = piece.ranges
    if not ranges:
        return AlwaysFalse()
    lowest, highest = min(r.start for r in ranges.values()), max(r.end for r in ranges.values())
    offsets = And(above(OFFSET, lowest - 1), at_most(OFFSET, highest - 1))
    # Bounds instead of a list of partitions, each of which would be compared with each file's bounds.
    return And(offsets, And(above(PARTITION, min(ranges) - 1), at_most(PARTITION, max(ranges))))


def _row_filter(table: Table, piece: Batch, extra_filter: BooleanExpression | None) -> BooleanExpression:
    # Staging has no column for the topic.
    by_range = slice_filter(piece) if TOPIC in table.schema().column_names else offset_filter(piece)
    return And(extra_filter, by_range) if extra_filter else by_range


def _may_hold(file: DataFile, piece: Batch, partition: NestedField, offset: NestedField) -> bool:
    """Whether a range of the slice overlaps the file's bounds of partition and offset."""
    least, most = (
        tables.decode_bound(bounds, partition, default)
        for bounds, default in ((file.lower_bounds, _MIN_LONG), (file.upper_bounds, _MAX_LONG))
    )
    first, last = (
        tables.decode_bound(bounds, offset, default)
        for bounds, default in ((file.lower_bounds, _MIN_LONG), (file.upper_bounds, _MAX_LONG))
    )
    single = piece.ranges.get(least) if least == most else None
    ranges = [single] if single else [r for p, r in piece.ranges.items() if least <= p <= most]
    return any(r.start <= last and r.end > first for r in ranges)
