"""PyIceberg's catalogs, extended: a commit is refused if this machine's clock is behind the table's last commit.

Java's Iceberg rejects metadata that is stamped more than a minute before an earlier commit; PyIceberg writes it anyway.
A REST catalog's server stamps commits itself, so only catalogs whose client writes the metadata are listed here.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.table import CommitTableResponse, Table

from sluice.errors import ClockBehindError

if TYPE_CHECKING:
    from pyiceberg.table.update import TableRequirement, TableUpdate

MAX_BEHIND_S = 45
"""Below Java's limit of 60 s, because another writer may commit after the table was read."""

_CLASSES = {
    "sql": ("pyiceberg.catalog.sql", "SqlCatalog"),
    "glue": ("pyiceberg.catalog.glue", "GlueCatalog"),
    "hive": ("pyiceberg.catalog.hive", "HiveCatalog"),
}


def is_clock_checked(catalog_type: str) -> bool:
    """Return whether catalogs of this PyIceberg type need the check."""
    return catalog_type in _CLASSES


def open_checked(catalog_type: str, name: str, properties: dict[str, Any]) -> Catalog:
    """Open a catalog whose `commit_table` raises `ClockBehindError` instead of writing metadata that Java rejects."""
    module, class_name = _CLASSES[catalog_type]
    try:
        base = getattr(import_module(module), class_name)
    except ImportError as error:
        raise NotInstalledError(f"{error}; install PyIceberg with its extra for {catalog_type}") from error

    class ClockChecked(base):  # type: ignore[valid-type, misc]
        def commit_table(
            self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
        ) -> CommitTableResponse:
            check_clock(table)
            return super().commit_table(table, requirements, updates)  # type: ignore[no-any-return]

    opened: Catalog = ClockChecked(name, **properties)
    return opened


def check_clock(table: Table) -> None:
    """Compare this machine's clock with the table's last commit.

    Raises:
        ClockBehindError: the clock is more than `MAX_BEHIND_S` behind.
    """
    last_commit_ms = table.metadata.last_updated_ms
    behind_s = last_commit_ms / 1000 - time.time()
    if behind_s > MAX_BEHIND_S:
        raise ClockBehindError(
            f"This machine's clock is {behind_s:,.0f} s behind the last commit of the table.",
            table=".".join(table.name()),
            last_commit=datetime.fromtimestamp(last_commit_ms / 1000, UTC).isoformat(timespec="seconds"),
        )
