"""The newest rows of each group, found in Arrow: of a million that were read, a page shows a thousand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from math import inf

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import DataScan, FileScanTask

from sluice.iceberg import tables
from sluice.iceberg.filters import above

AT_ONCE = 100_000
"""So many rows of a table are held at once, or those of one file."""


def newest(rows: pa.Table, by: Sequence[str], count: int = 1) -> pa.Table:
    """Of each group the last rows by `at`, so many at most, oldest first.

    Args:
        rows: any, with a column `at`.
        by: the columns that make a group.
    """
    ordered = rows.sort_by([("at", "ascending")])
    numbered = ordered.select(list(by)).append_column("number", pa.array(range(len(ordered)), pa.int64()))
    groups = numbered.group_by(list(by), use_threads=False)
    if count == 1:
        return ordered.take(groups.aggregate([("number", "max")])["number_max"].combine_chunks().sort())
    numbers = groups.aggregate([("number", "list")])["number_list"]
    chosen = sorted(n for group in numbers.to_pylist() for n in group[-count:])
    return ordered.take(pa.array(chosen, pa.int64()))


def newest_of(
    scan: DataScan, by: Sequence[str], groups: Collection[tuple[str, ...]] | None = None, short: Sequence[str] = ()
) -> pa.Table:
    """What `newest` would tell of all that a scan finds, of which few rows are held at once, and few columns.

    Args:
        scan: of `at` and the columns of `by` among others.
        groups: those that are asked for, where they are known: when each was found, older files stay closed.
        short: further columns that are not worth a second look into the files.
    """
    keys, missing = ["at", *by], None if groups is None else set(groups)
    columns = scan.projection().column_names
    narrow = scan.update(selected_fields=tuple(c for c in columns if c in {*keys, *short}))
    parts, found = list[list[FileScanTask]](), None
    for some, until in _from_the_newest(scan):
        if missing is not None and found is not None:
            told = found.filter(pc.greater_equal(pc.cast(found["at"], pa.int64()), until)) if until < inf else found[:0]
            missing -= set(zip(*(told[name].to_pylist() for name in by), strict=True))
            if not missing:
                break
        rows = newest(_read(narrow, some), by)
        rows = rows.append_column("part", pa.array([len(parts)] * len(rows), pa.int64()))
        found = rows if found is None else newest(_together([rows, found]), by)
        parts.append(some)
    if found is None:
        return scan.update(limit=0).to_arrow()
    if set(columns) <= {*keys, *short}:
        return found.drop_columns(["part"])
    # What else is asked of them is read where they were found.
    whole = []
    for number, some in enumerate(parts):
        mine = found.filter(pc.equal(found["part"], number))
        if len(mine):
            since = pc.min(mine["at"]).as_py() - timedelta(microseconds=1)
            rows = _read(scan.filter(above("at", since.isoformat())), some)
            numbered = rows.select(keys).append_column("number", pa.array(range(len(rows)), pa.int64()))
            whole.append(rows.take(numbered.join(mine.select(keys), keys, join_type="left semi")["number"]))
    return newest(_together(whole), by)


def last_of(scan: DataScan, most: int) -> pa.Table:
    """The last rows by `at` that a scan finds, so many at most, oldest first; no more files are read than must be."""
    found = None
    for some, until in _from_the_newest(scan):
        if found is not None and len(found) == most and pc.cast(found["at"][0], pa.int64()).as_py() >= until:
            break
        rows = _read(scan, some)
        rows = (rows if found is None else _together([rows, found])).sort_by([("at", "ascending")])
        found = rows.slice(max(len(rows) - most, 0))
    return scan.update(limit=0).to_arrow() if found is None else found


def _from_the_newest(scan: DataScan) -> Iterator[tuple[list[FileScanTask], float]]:
    """A scan's files, some at once, by the greatest `at` in them; and that of these and all that follow, in µs."""
    at = scan.table_metadata.schema().find_field("at")

    def until(task: FileScanTask) -> float:
        return tables.bound(task.file.upper_bounds, at, inf)

    some, rows = list[FileScanTask](), 0
    for task in sorted(scan.plan_files(), key=until, reverse=True):
        if some and rows + task.file.record_count > AT_ONCE:
            yield some, until(some[0])
            some, rows = [], 0
        some.append(task)
        rows += task.file.record_count
    if some:
        yield some, until(some[0])


def _read(scan: DataScan, tasks: Sequence[FileScanTask]) -> pa.Table:
    return ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter).to_table(tasks)


def _together(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts, promote_options="permissive")
