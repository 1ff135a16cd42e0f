"""The newest rows of each group, found in Arrow: of a million that were read, a page shows a thousand."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def newest(rows: pa.Table, by: Sequence[str], count: int = 1) -> pa.Table:
    """Of each group the last rows by `at`, so many at most, oldest first.

    Args:
        rows: any, with a column `at`.
        by: the columns that make a group.
    """
    ordered = rows.sort_by([("at", "ascending")])
    numbered = ordered.select(list(by)).append_column("number", pa.array(range(len(ordered)), pa.int64()))
    numbers = numbered.group_by(list(by), use_threads=False).aggregate([("number", "list")])["number_list"]
    chosen = sorted(n for group in numbers.to_pylist() for n in group[-count:])
    return ordered.take(pa.array(chosen, pa.int64()))
