"""TODO docstring of sluice.maintain.procedures."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row, SparkSession

from sluice.iceberg.sql_literals import literal, quoted
from sluice.ingest.landing import Context
from sluice.maintain.subjects import Subject


def _call(context: Context, subject: Subject, procedure: str, **arguments: Any) -> dict[str, Any]:
    rows = _rows(context, subject, procedure, **arguments)
    return rows[0].asDict() if rows else {}


def _rows(context: Context, subject: Subject, procedure: str, **arguments: Any) -> list[Row]:
    """Call one of Iceberg's procedures on the table."""
    session: SparkSession = context.spark
    table = ".".join(quoted(part) for part in subject.identifier)
    given = {"table": table, **arguments}
    listed = ", ".join(f"{name} => {_argument(value)}" for name, value in given.items())
    return session.sql(f"CALL {quoted(context.catalog_name)}.system.{procedure}({listed})").collect()


def _argument(value: Any) -> str:
    if isinstance(value, dict):
        return "map(" + ", ".join(literal(str(x)) for pair in value.items() for x in pair) + ")"
    return literal(value)
