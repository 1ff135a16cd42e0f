"""Table `sluice.quality`: the result of each expectation for each batch, in counts. No JVM is needed.

Results are written before a batch is published, and overwritten when it is checked again: they do not prove that it was
published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType, TimestamptzType
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_incrementing

from sluice.iceberg import compat, own_table, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, above, at_most, equal, one_of
from sluice.ledger.newest_rows import take_newest

MAX_WRITE_ATTEMPTS = 30
MAX_LISTED_FAILURES = 20
RECENT = timedelta(days=1)
MAX_EVALUATION_TIME = timedelta(hours=1)
"""All results of a batch are written within this time."""
MAX_TABLES_IN_FILTER = 20
"""PyIceberg compares each table name of a filter with each file: above so many, rows are filtered in Arrow."""
BATCH_KEY = ["table", "topic", "batch_seq"]
EXPECTATION_KEY = ("expectation", "column", "severity", "parameters")
"""The columns that identify an expectation of a table."""

SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="when the batch was checked"),
    NestedField(2, "run_id", StringType(), required=True, doc="the Airflow run"),
    NestedField(3, "table", StringType(), required=True),
    NestedField(4, "topic", StringType(), required=True),
    NestedField(5, "batch_seq", LongType(), required=True, doc="below zero: a slice of a backfill"),
    NestedField(6, "expectation", StringType(), required=True, doc="its type, as Great Expectations names it"),
    NestedField(7, "column", StringType(), required=True, doc="columns, with commas; empty for the whole table"),
    NestedField(8, "severity", StringType(), required=True, doc="warn, quarantine_rows, block"),
    NestedField(9, "success", BooleanType(), doc="null if there was nothing to evaluate, or to compare with"),
    NestedField(10, "records", LongType(), required=True, doc="rows that were checked"),
    NestedField(11, "unexpected", LongType(), doc="rows that fail"),
    NestedField(12, "missing", LongType(), doc="rows without a value"),
    NestedField(13, "observed", DoubleType(), doc="the statistic, where it is about one"),
    NestedField(14, "low", DoubleType(), doc="drift: the least that it might be"),
    NestedField(15, "high", DoubleType(), doc="drift: the most that it might be"),
    NestedField(16, "values", StringType(), doc="values of records, as JSON; only where the contract shows them"),
    NestedField(17, "error", StringType(), doc="why it could not be evaluated"),
    NestedField(18, "seconds", DoubleType(), required=True, doc="for all expectations of the batch together"),
    NestedField(19, "too_long", LongType(), doc="of those that fail the rows whose text is too long for the regex"),
    NestedField(
        20, "parameters", StringType(), doc="as the contract gives them, as JSON; a long one is cut, with a digest"
    ),
)
_BY_TABLE = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "table"))


@dataclass(frozen=True)
class ExpectationResult:
    """The result of one expectation for one batch; the fields are the table's columns."""

    table: str
    topic: str
    batch_seq: int
    expectation: str
    column: str
    severity: str
    success: bool | None
    records: int
    unexpected: int | None = None
    missing: int | None = None
    observed: float | None = None
    low: float | None = None
    high: float | None = None
    values: str | None = None
    error: str | None = None
    too_long: int | None = None
    parameters: str = ""
    seconds: float = 0.0
    run_id: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The values of `EXPECTATION_KEY`."""
        return self.expectation, self.column, self.severity, self.parameters

    @property
    def summary(self) -> str:
        """Type, columns and outcome in one line."""
        return f"{self.expectation}({self.column}): {self.outcome}"

    @property
    def outcome(self) -> str:
        """The outcome in one line, without values of records."""
        if self.error:
            return f"could not be evaluated, {self.error}"
        if self.success is None and self.observed is None:
            return "not evaluated, no values"
        if self.success is None:
            return f"not evaluated yet, too few batches to compare with, observed {self.observed:,.6g}"
        parts = []
        if self.unexpected is not None:
            too_long = f", {self.too_long:,} of them as their text is too long for the regex" if self.too_long else ""
            parts.append(f"{self.unexpected:,} of {self.records:,} rows fail{too_long}")
        if self.observed is not None:
            parts.append(f"observed {self.observed:,.6g}")
        if self.low is not None and self.high is not None:
            parts.append(f"expected {self.low:,.6g} to {self.high:,.6g}")
        return ", ".join(parts) or ("passed" if self.success else "failed")


@retry(
    retry=retry_if_exception_type((CommitFailedException, ValidationException)),  # the latter: files were rewritten
    stop=stop_after_attempt(MAX_WRITE_ATTEMPTS),
    wait=wait_incrementing(0.1, 0.1, max=1.0),
    reraise=True,
)
def write_results(catalog: Catalog, results: Sequence[ExpectationResult], *, run_id: str) -> None:
    """Write the results of one table and topic in one commit; they replace earlier results of these batches.

    Raises:
        CommitFailedException, ValidationException: other writers came first, at each attempt. The step may be retried.
    """
    if not results:
        return
    same_batches = And(
        equal("table", results[0].table),
        And(equal("topic", results[0].topic), one_of("batch_seq", {r.batch_seq for r in results})),
    )
    records = [asdict(r) | {"run_id": run_id} for r in results]
    table = own_table.add_missing_columns(tables.ensure_table(catalog, table_names.QUALITY, SCHEMA, _BY_TABLE), SCHEMA)
    data = pa.Table.from_pylist(records, schema=table.schema().as_arrow())
    if tables.plan_files(table, same_batches):
        writer = compat.without_commit_retries(table)
        writer.overwrite(data, overwrite_filter=same_batches)
        own_table.expire_excess_snapshots(writer)
    else:
        own_table.append(table, data, retry=False)  # two writers may both find nothing: one must look again


def read_previous_statistics(
    catalog: Catalog, table: str, topic: str, seq: int, batches: int
) -> list[ExpectationResult]:
    """Return the results with a statistic of the `batches` batches before number `seq`; all of them are published."""
    quality = tables.load(catalog, table_names.QUALITY)
    if quality is None:
        return []
    before = And(at_most("batch_seq", seq - 1), above("batch_seq", max(seq - 1 - batches, 0)))
    row_filter = And(equal("table", table), And(equal("topic", topic), before))
    return [r for r in _read(quality, row_filter) if r.observed is not None]


def read_run_results(catalog: Catalog, table: str | None, run_id: str) -> list[ExpectationResult]:
    """Return the results of a run for one table or all, oldest first. Runs of several DAGs may have the same id."""
    quality = tables.load(catalog, table_names.QUALITY)
    of_run = equal("run_id", run_id)
    row_filter = of_run if table is None else And(equal("table", table), of_run)
    return sorted(_read(quality, row_filter) if quality else [], key=_age)


def read_results_since(
    catalog: Catalog,
    since: datetime,
    names: Collection[str] | None = None,
    *,
    of_each: int | None = None,
    batches: int | None = None,
) -> list[ExpectationResult]:
    """Return results of live batches after a time, oldest first.

    Args:
        catalog: the catalog.
        since: results must be newer.
        names: only these tables.
        of_each: only so many of the newest results per expectation and topic.
        batches: only results of so many of the newest batches.
    """
    quality = tables.load(catalog, table_names.QUALITY)
    if quality is None or quality.current_snapshot() is None:
        return []
    row_filter = And(above("batch_seq", 0), above("at", since.isoformat()))
    if names is not None and len(names) == 1:
        row_filter = And(one_of("table", names), row_filter)
    rows = quality.scan(row_filter=row_filter).to_arrow()
    if names is not None:
        rows = rows.filter(pc.is_in(rows["table"], pa.array(list(names), pa.string())))
    if of_each is not None:
        rows = take_newest(rows, ("table", "topic", *EXPECTATION_KEY), of_each)
    if batches is not None:
        ends = rows.group_by(BATCH_KEY).aggregate([("at", "max")]).sort_by([("at_max", "descending")])
        rows = rows.join(ends.slice(0, batches).select(BATCH_KEY), BATCH_KEY, join_type="left semi")
    return sorted(map(_result_from_record, rows.to_pylist()), key=_age)


def read_latest_results(catalog: Catalog, names: Iterable[str]) -> dict[str, list[ExpectationResult]]:
    """Return, per table, the results of the last checked live batch of each topic.

    If some topics of a table have results of the last day (`RECENT`), its other topics are left out.
    """
    wanted, latest = list(names), dict[str, list[ExpectationResult]]()
    quality = tables.load(catalog, table_names.QUALITY) if wanted else None
    if quality is None or quality.current_snapshot() is None:
        return latest
    # Most tables have recent results: the many older ones are read only for tables without any.
    ever = datetime.fromtimestamp(0, UTC)
    for since in (datetime.now(UTC) - RECENT, ever):
        missing = [name for name in wanted if name not in latest]
        if not missing:
            break
        row_filter = above("batch_seq", 0)
        if len(missing) <= MAX_TABLES_IN_FILTER or since == ever:
            row_filter = And(one_of("table", missing), row_filter)
        for result in _read_latest(quality, row_filter, since, missing):
            latest.setdefault(result.table, []).append(result)
    return latest


def summarize_results(results: Sequence[ExpectationResult]) -> dict[str, Any]:
    """Return how many results `held` (passed), `failed` and were `not_judged` (evaluated); and `told`, the failures."""
    failed = [r for r in results if r.success is False]
    return {
        "held": sum(r.success is True for r in results),
        "failed": len(failed),
        "not_judged": sum(r.success is None for r in results),
        "told": [f"{r.topic} batch {r.batch_seq}, {r.severity}: {r.summary}" for r in failed[:MAX_LISTED_FAILURES]],
    }


def _read_latest(
    quality: Table, row_filter: BooleanExpression, since: datetime, names: Sequence[str]
) -> list[ExpectationResult]:
    """The results of the last batch of each table and topic after a time, oldest first.

    In two scans, because each opens every file: one scan per batch took minutes with a thousand tables.
    """
    recent = And(row_filter, above("at", since.isoformat()))
    rows = quality.scan(row_filter=recent, selected_fields=("at", *BATCH_KEY)).to_arrow()
    rows = rows.filter(pc.is_in(rows["table"], pa.array(names, pa.string())))
    batches = take_newest(rows, ["table", "topic"]).select(BATCH_KEY)
    first = pc.min(rows.join(batches, BATCH_KEY, join_type="left semi")["at"]).as_py()
    if first is None:
        return []
    # Some results of a batch may be older than `since`.
    row_filter = And(row_filter, above("at", (first - MAX_EVALUATION_TIME).isoformat()))
    reader = quality.scan(row_filter=row_filter).to_arrow_batch_reader()
    parts = [pa.Table.from_batches([each]).join(batches, BATCH_KEY, join_type="left semi") for each in reader]
    ordered = pa.concat_tables(parts).sort_by([(column, "ascending") for column in ("at", *EXPECTATION_KEY)])
    return list(map(_result_from_record, ordered.to_pylist()))


def _read(quality: Table, row_filter: BooleanExpression) -> list[ExpectationResult]:
    if quality.current_snapshot() is None:
        return []
    return list(map(_result_from_record, quality.scan(row_filter=row_filter).to_arrow().to_pylist()))


def _age(result: ExpectationResult) -> tuple[datetime, int]:
    return result.at, result.batch_seq


def _result_from_record(record: dict[str, Any]) -> ExpectationResult:
    # Rows from before the column was added have no parameters.
    return ExpectationResult(**{**record, "parameters": record.get("parameters") or ""})
