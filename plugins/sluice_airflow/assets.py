"""The asset of a table: by its name and URI Airflow knows that ingestion and a backfill tell of the same one."""

from __future__ import annotations

from airflow.sdk import Asset

from sluice.iceberg import table_names


def asset(table: str) -> Asset:
    """The asset of a typed table."""
    return Asset(name=table, uri=f"iceberg://{table_names.catalog_name()}/{table.replace('.', '/')}")
