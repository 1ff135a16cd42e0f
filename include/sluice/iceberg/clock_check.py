"""PyIceberg's catalogs, extended: a commit is refused if this machine's clock is behind the table's last commit.

Java's Iceberg rejects metadata that is stamped more than a minute before an earlier commit; PyIceberg writes it anyway.
A REST catalog's server stamps commits itself, so only catalogs whose client writes the metadata (`MetastoreCatalog`)
are checked.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.table import CommitTableResponse, Table

from sluice.errors import ClockBehindError

if TYPE_CHECKING:
    from pyiceberg.table.update import TableRequirement, TableUpdate

MAX_BEHIND_S = 45
"""Below Java's limit of 60 s, because another writer may commit after the table was read."""


def add_clock_check(catalog: Catalog) -> Catalog:
    """Return the catalog; if its client writes the metadata, its `commit_table` raises `ClockBehindError` from now on.

    The object is changed, not its class: a configuration may name any class (`py-catalog-impl`).
    """
    if isinstance(catalog, MetastoreCatalog):
        commit = catalog.commit_table

        def commit_table(
            table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
        ) -> CommitTableResponse:
            check_clock(table)
            return commit(table, requirements, updates)

        catalog.commit_table = commit_table  # type: ignore[method-assign]
    return catalog


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
