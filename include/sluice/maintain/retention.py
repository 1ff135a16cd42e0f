"""Deletes rows past the contract's retention. In: a typed table. Out: how many files have some; one commit on main.

Of a table that is partitioned by the column's time, Iceberg drops whole files by metadata alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from sluice.batch import RUN_ID, STEP
from sluice.contract.contract import Contract
from sluice.errors import SchemaChangeError
from sluice.iceberg import active_contract, snapshots, table_names, tables
from sluice.iceberg.filters import below
from sluice.iceberg.sql_literals import quote_identifier, sql_literal

if TYPE_CHECKING:
    from sluice.ingest.context import Context

RETENTION_STEP = "retention"
DELETED_BEFORE = "sluice.deleted-before"
"""Summary property of such a commit: the day before which all rows were deleted, ISO 8601."""


@dataclass(frozen=True)
class ExpiredRows:
    """Rows past their retention.

    Attributes:
        contract: the table's.
        column: the one that says how old a row is.
        before: the day, in UTC, before which they are.
        files: the data files that may have some.
        records: the rows of these files, which is the most that may be deleted.
    """

    contract: Contract
    column: str
    before: date
    files: int
    records: int

    @property
    def reason(self) -> str:
        """Why they are deleted, with the figures."""
        counts = f"up to {self.records:,} rows in {self.files:,} files"
        return f"rows with {self.column} before {self.before} are past their retention: {counts}"


def find_expired_rows(table: Table, contract: Contract, now: datetime) -> ExpiredRows | None:
    """Find rows to delete, by the files' metadata; None if there are none, or they were deleted up to this day.

    The table's active contract decides: another retention in the file may wait for a review. A table that does not fit
    its active contract is stopped, and keeps its rows.
    """
    try:
        active = active_contract.resolve_active_contract(table, contract)
    except SchemaChangeError:
        return None
    before = active.retention_cutoff(now)
    if before is None or active.retention is None:
        return None
    column = active.retention.column
    done = (snapshots.summary(s).get(DELETED_BEFORE) for s in snapshots.ancestors(table.metadata))
    if (last := next(filter(None, done), None)) and date.fromisoformat(last) >= before:
        return None
    tasks = tables.plan_files(table, below(column, _boundary(table, column, before).isoformat()))
    records = sum(task.file.record_count for task in tasks)
    return ExpiredRows(contract, column, before, len(tasks), records) if tasks else None


def delete_expired_rows(context: Context, found: ExpiredRows) -> None:
    """Delete the rows in one commit, which carries no offsets: the table's cursor stays."""
    from sluice.ingest import compat  # needs PySpark, and an assessment has none

    table = context.catalog.load_table(table_names.typed(found.contract))
    value = _boundary(table, found.column, found.before)
    properties = {STEP: RETENTION_STEP, RUN_ID: context.run_id, DELETED_BEFORE: found.before.isoformat()}
    name = table_names.spark_name(context.catalog_name, table_names.typed(found.contract))
    if not compat.delete_whole_files(context.spark, name, (found.column, value.isoformat()), properties):
        condition = f"{quote_identifier(found.column)} < {sql_literal(value)}"
        with context.session(properties) as session:
            session.sql(f"DELETE FROM {name} WHERE {condition}")  # noqa: S608 - a quoted name and a literal


def _boundary(table: Table, column: str, before: date) -> date | datetime:
    """The day's begin as a value of the column's type."""
    kind = str(table.schema().find_field(column).field_type)
    return before if kind == "date" else datetime.combine(before, time(), UTC if kind == "timestamptz" else None)
