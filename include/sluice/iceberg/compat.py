"""Workarounds for what PyIceberg 0.12 has no public way to do. In: a table. Out: a copy of it for one commit.

Each function says what is missing; `tests/unit/iceberg/test_compat.py` fails once it is no longer missing.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.table import Table


def without_commit_retries(table: Table) -> Table:
    """Return a copy whose next commit requires main to be at the snapshot that the copy names.

    PyIceberg moves a commit onto a new snapshot by itself, as often as the table's metadata says. There is no option
    per commit (as of 0.12), and the stored property must stay, because Spark's maintenance needs its retries.
    """
    return _copy(table, properties={**table.metadata.properties, "commit.retry.num-retries": "0"})


def with_current_snapshot_only(table: Table) -> Table:
    """Return a copy for a small append, with the current snapshot alone; the catalog's metadata stays complete.

    PyIceberg (as of 0.12) copies all metadata several times per append: with 2,000 snapshots an append took 3.3 s,
    through this copy 0.4 s. Its manifests are merged from 10 on instead of 100: readers open each one.
    """
    metadata = table.metadata
    # The log of metadata files stays: by it PyIceberg decides, after the commit, which of them to delete.
    return _copy(
        table,
        properties={**metadata.properties, "commit.manifest.min-count-to-merge": "10"},
        snapshots=[s for s in metadata.snapshots if s.snapshot_id == metadata.current_snapshot_id],
        snapshot_log=[],
    )


def _copy(table: Table, **changes: Any) -> Table:
    metadata = table.metadata.model_copy(update=changes)
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)
