"""The Airflow asset of a table; ingestion and backfill emit events of the same one."""

from __future__ import annotations

from airflow.sdk import Asset

from sluice.iceberg import table_names


def table_asset(table: str) -> Asset:
    """Make the asset of a typed table."""
    return Asset(name=table, uri=f"iceberg://{table_names.catalog_name()}/{table.replace('.', '/')}")
