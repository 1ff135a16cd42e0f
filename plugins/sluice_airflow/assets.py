"""The Airflow asset of a table, and what emits its events: tasks of ingestion and backfill, or a watcher."""

from __future__ import annotations

from collections.abc import Iterable

from airflow.sdk import Asset

from sluice.contract.folder import Group, load_contracts
from sluice.iceberg import table_names
from sluice_airflow import compat


def table_asset(table: str) -> Asset:
    """Make the asset of a typed table, for the schedule of your own DAGs; with its watcher, if it has one.

    Airflow stops a watcher as long as the last DAG file that it has parsed has the asset without it.
    """
    if table not in watched_tables():
        return plain_asset(table)
    from sluice_airflow import table_watcher

    return table_watcher.watched_asset(table)


def plain_asset(table: str) -> Asset:
    """Make the asset of a typed table that has no watcher."""
    return Asset(name=table, uri=f"iceberg://{table_names.catalog_name()}/{table.replace('.', '/')}")


def watched_tables(groups: Iterable[Group] | None = None) -> set[str]:
    """Return the tables whose events watchers emit. A table of a topic pattern is not known when DAGs are parsed.

    Args:
        groups: with settings and contracts; default: all.
    """
    if not compat.has_asset_state():
        return set()
    found = load_contracts(strict=False).groups.values() if groups is None else groups
    return {contract.table for group in found if group.settings.has_watchers for contract in group.contracts}
