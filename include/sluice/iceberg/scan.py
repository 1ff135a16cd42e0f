"""Reads rows of given data files of a table into Arrow, without planning the scan again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyarrow import dataset
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, expression_to_pyarrow, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
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


def read_own_files(
    table: Table, tasks: Iterable[FileScanTask], row_filter: BooleanExpression, columns: Sequence[str] = ()
) -> pa.Table:
    """Read as `read_files` does, but many small files at once, of one of Sluice's own tables.

    PyIceberg (as of 0.12) resolves the schema of each file in Python, which takes longer than reading it. The columns
    of these tables are added but never renamed, so their names identify them.

    Args:
        table: the files' table.
        tasks: planned earlier.
        row_filter: evaluated per row; it also skips row groups.
        columns: names of the columns to read; all by default.
    """
    files = list(tasks)
    io, names = table.io, list(columns) or [field.name for field in table.schema().fields]
    plain = all(not each.delete_files and each.file.file_format == FileFormat.PARQUET for each in files)
    if not files or not plain or not isinstance(io, PyArrowFileIO):
        return read_files(table, files, row_filter, names)
    places: dict[tuple[str, str], list[str]] = {}
    for each in files:
        scheme, netloc, path = io.parse_location(each.file.file_path, io.properties)
        places.setdefault((scheme, netloc), []).append(path)
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    wanted = expression_to_pyarrow(bind(table.schema(), row_filter, case_sensitive=True), table.schema())
    parts = [
        dataset.dataset(paths, schema, format=dataset.ParquetFileFormat(), filesystem=io.fs_by_scheme(*place)).to_table(
            names, wanted
        )
        for place, paths in places.items()
    ]
    return pa.concat_tables(parts)


def read_tasks(scan: DataScan, tasks: Iterable[FileScanTask]) -> pa.Table:
    """Read these files with the scan's filter and columns."""
    # No public way to execute a subset of a scan's tasks as of PyIceberg 0.12: `DataScan.to_arrow` plans anew.
    return ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter).to_table(tasks)
