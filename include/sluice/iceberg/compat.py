"""Workarounds for what PyIceberg 0.12 has no public way to do. In: a table. Out: a copy of it for one commit.

Each function says what is missing; `tests/unit/iceberg/test_compat.py` fails once it is no longer missing.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from sluice.errors import TableUnavailableError


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


HIVE_LOCKS = "hadoop.iceberg.engine.hive.lock-enabled"
"""The setting of Iceberg in Java by which Hive's metastore compares commits instead of locking tables."""

HIVE_COLUMNS_BY_POSITION = "hive.metastore.disallow.incompatible.col.type.changes"
"""The metastore's setting by which a column must keep its place."""


class HiveConnections:
    """A Hive catalog's connections: one per use, whose commits are refused if another commit came first.

    PyIceberg (as of 0.12) has one connection for all threads. Its commits rely on the metastore's lock alone, which may
    expire before the commit, and which writers without locks do not take. A metastore with HIVE-26882 compares the
    metadata file that a commit replaces; others ignore the request. PyIceberg has no commit without a lock.
    """

    def __init__(self, catalog: Any) -> None:
        self._catalog, self._own = catalog, threading.local()

    def __enter__(self) -> Any:
        from hive_metastore import ttypes  # needs Thrift

        connection = self._catalog._create_hive_client(self._catalog.properties)
        client = connection.__enter__()
        self._own.open = [*getattr(self._own, "open", []), connection]
        alter = client.alter_table_with_environment_context

        def alter_if_unchanged(dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any) -> None:
            replaced = new_tbl.parameters.get("previous_metadata_location")
            renamed = f"{dbname}.{tbl_name}".lower() != f"{new_tbl.dbName}.{new_tbl.tableName}".lower()
            if replaced and not renamed:
                environment_context.properties |= {
                    "expected_parameter_key": "metadata_location",
                    "expected_parameter_value": replaced,
                }
            try:
                alter(dbname, tbl_name, new_tbl, environment_context)
            except ttypes.MetaException as error:
                if "table has been modified" in str(error):
                    raise CommitFailedException(f"{dbname}.{tbl_name} has been changed meanwhile.") from error
                raise
            except ttypes.InvalidOperationException as error:
                if "incompatible" in str(error):
                    raise TableUnavailableError(
                        f"Hive's metastore refuses the new columns: {error}",
                        table=f"{dbname}.{tbl_name}",
                        next_step=f"Set {HIVE_COLUMNS_BY_POSITION} to false in the metastore.",
                    ) from error
                raise

        client.alter_table_with_environment_context = alter_if_unchanged
        if self._catalog.properties.get(HIVE_LOCKS) == "false":
            client.lock = lambda _: ttypes.LockResponse(lockid=0, state=ttypes.LockState.ACQUIRED)
            client.unlock = lambda _: None
        return client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.open.pop().__exit__(kind, error, trace)


def with_hive_connections(catalog: Catalog) -> Catalog:
    """Return the catalog; if it is Hive's, it has `HiveConnections` from now on. Others are not changed."""
    if type(catalog).__module__ == "pyiceberg.catalog.hive":
        catalog._client = HiveConnections(catalog)  # type: ignore[attr-defined]
    return catalog


def _copy(table: Table, **changes: Any) -> Table:
    metadata = table.metadata.model_copy(update=changes)
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)
