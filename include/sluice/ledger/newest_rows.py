"""Reads the newest rows of a large history table, per group or in all. In: a scan. Out: Arrow, oldest row first.

Files are read from the newest on, and no more of them, and of their columns, than needed. No JVM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from math import inf

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import DataScan, FileScanTask

from sluice.iceberg import scan as iceberg_scan
from sluice.iceberg import tables
from sluice.iceberg.filters import above

MAX_ROWS_AT_ONCE = 100_000
"""How many rows are read at once; a file is always read as a whole."""


def take_newest(rows: pa.Table, by: Sequence[str], count: int = 1) -> pa.Table:
    """Return the newest rows of each group by column `at`, oldest first.

    Args:
        rows: a table with a column `at`.
        by: the columns that identify a group.
        count: how many rows per group.
    """
    ordered = rows.sort_by([("at", "ascending")])
    numbered = ordered.select(list(by)).append_column("number", pa.array(range(len(ordered)), pa.int64()))
    if count == 1:
        groups = numbered.group_by(list(by), use_threads=False)
        return ordered.take(groups.aggregate([("number", "max")])["number_max"].combine_chunks().sort())
    groups = numbered.sort_by([("number", "descending")]).group_by(list(by), use_threads=False)
    numbers = groups.aggregate([("number", "list")])["number_list"].combine_chunks()
    return ordered.take(pc.list_flatten(pc.list_slice(numbers, 0, count)).sort())


def read_newest(
    scan: DataScan, by: Sequence[str], groups: Collection[tuple[str, ...]] | None = None, small: Sequence[str] = ()
) -> pa.Table:
    """Return the newest row of each group that a scan finds, as `take_newest` does.

    First the key columns alone are read, then the other columns of the chosen rows.

    Args:
        scan: its columns include `at` and those of `by`.
        by: the columns that identify a group.
        groups: the wanted groups, if they are known: reading stops once each is found.
        small: further columns to read together with the keys.
    """
    keys, columns = ["at", *by], scan.projection().column_names
    key_scan = scan.update(selected_fields=tuple(c for c in columns if c in {*keys, *small}))
    missing = None if groups is None else set(groups)
    parts, newest = list[list[FileScanTask]](), None
    for files, newest_at in _files_from_newest(scan):
        if missing is not None and newest is not None:
            missing -= _groups_that_are_final(newest, by, newest_at)
            if not missing:
                break
        rows = take_newest(iceberg_scan.read_tasks(key_scan, files), by)
        rows = rows.append_column("part", pa.array([len(parts)] * len(rows), pa.int64()))
        newest = rows if newest is None else take_newest(_concat([rows, newest]), by)
        parts.append(files)
    if newest is None:
        return scan.update(limit=0).to_arrow()
    if set(columns) <= {*keys, *small}:
        return newest.drop_columns(["part"])
    complete = []
    for number, files in enumerate(parts):
        chosen = newest.filter(pc.equal(newest["part"], number))
        if len(chosen):
            complete.append(_read_chosen(scan, files, chosen.select(keys)))
    return take_newest(_concat(complete), by)


def read_last_rows(scan: DataScan, count: int) -> pa.Table:
    """Return the newest rows that a scan finds by column `at`, oldest first."""
    last = None
    for files, newest_at in _files_from_newest(scan):
        if last is not None and len(last) == count and pc.cast(last["at"][0], pa.int64()).as_py() >= newest_at:
            break
        rows = iceberg_scan.read_tasks(scan, files)
        rows = (rows if last is None else _concat([rows, last])).sort_by([("at", "ascending")])
        last = rows.slice(max(len(rows) - count, 0))
    return scan.update(limit=0).to_arrow() if last is None else last


def _groups_that_are_final(newest: pa.Table, by: Sequence[str], newest_at: float) -> set[tuple[str, ...]]:
    """The groups whose row is at least as new as any in the files that are not read yet."""
    if newest_at == inf:
        return set()
    final = newest.filter(pc.greater_equal(pc.cast(newest["at"], pa.int64()), newest_at))
    return set(zip(*(final[name].to_pylist() for name in by), strict=True))


def _read_chosen(scan: DataScan, files: Sequence[FileScanTask], chosen: pa.Table) -> pa.Table:
    """All columns of the rows in these files that have the chosen keys."""
    keys = chosen.column_names
    since = pc.min(chosen["at"]).as_py() - timedelta(microseconds=1)
    rows = iceberg_scan.read_tasks(scan.filter(above("at", since.isoformat())), files)
    numbered = rows.select(keys).append_column("number", pa.array(range(len(rows)), pa.int64()))
    return rows.take(numbered.join(chosen, keys, join_type="left semi")["number"])


def _files_from_newest(scan: DataScan) -> Iterator[tuple[list[FileScanTask], float]]:
    """A scan's files in groups, by the greatest `at` in them; and that of the group and all that follow, in µs."""
    at = scan.table_metadata.schema().find_field("at")

    def newest_at(task: FileScanTask) -> float:
        return tables.decode_bound(task.file.upper_bounds, at, inf)

    group, rows = list[FileScanTask](), 0
    for task in sorted(scan.plan_files(), key=newest_at, reverse=True):
        if group and rows + task.file.record_count > MAX_ROWS_AT_ONCE:
            yield group, newest_at(group[0])
            group, rows = [], 0
        group.append(task)
        rows += task.file.record_count
    if group:
        yield group, newest_at(group[0])


def _concat(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts, promote_options="permissive")
