"""Reads rows of given data files of a table into Arrow, without planning the scan again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import DataScan, FileScanTask, Table


def read_files(
    table: Table, tasks: Iterable[FileScanTask], row_filter: BooleanExpression, columns: Sequence[str] = ("*",)
) -> pa.Table:
    """Read the rows of these files that pass the filter, with delete files applied.

    Args:
        table: the files' table.
        tasks: planned earlier, such as by `tables.plan_files`.
        row_filter: evaluated per row; it also skips row groups.
        columns: names of the columns to read; all by default.
    """
    return read_tasks(table.scan(row_filter=row_filter, selected_fields=tuple(columns)), tasks)


def read_tasks(scan: DataScan, tasks: Iterable[FileScanTask]) -> pa.Table:
    """Read these files with the scan's filter and columns."""
    # No public way to execute a subset of a scan's tasks as of PyIceberg 0.12: `DataScan.to_arrow` plans anew.
    return ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter).to_table(tasks)
