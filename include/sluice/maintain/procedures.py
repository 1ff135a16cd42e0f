"""Calls Iceberg's Spark procedures on a table. In: a procedure and its arguments. Out: the rows it returns."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row, SparkSession

from sluice.iceberg.sql_literals import quote_identifier, sql_literal
from sluice.ingest.context import Context
from sluice.maintain.targets import Target


def call_procedure(context: Context, target: Target, procedure: str, **arguments: Any) -> dict[str, Any]:
    """Call a procedure that returns one row, or none; returns it by column name."""
    rows = call_for_rows(context, target, procedure, **arguments)
    return rows[0].asDict() if rows else {}


def call_for_rows(context: Context, target: Target, procedure: str, **arguments: Any) -> list[Row]:
    """Call a procedure and return all its rows."""
    session: SparkSession = context.spark
    table = ".".join(quote_identifier(part) for part in target.identifier)
    listed = ", ".join(f"{name} => {_argument(value)}" for name, value in {"table": table, **arguments}.items())
    return session.sql(f"CALL {quote_identifier(context.catalog_name)}.system.{procedure}({listed})").collect()


def _argument(value: Any) -> str:
    if isinstance(value, dict):
        return "map(" + ", ".join(sql_literal(str(x)) for pair in value.items() for x in pair) + ")"
    return sql_literal(value)
