"""`sluice.quality`: what each batch's expectations came to, in counts. No JVM is needed for any of it.

A batch's results are written before its publish lands, and overwritten when it is judged again: they are no proof that
it was published.
"""

from __future__ import annotations

import time
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

from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, above, at_most, equal, one_of
from sluice.ledger.newest_rows import newest

TRIES = 30
TOLD = 20
LATELY = timedelta(days=1)
JUDGING = timedelta(hours=1)
"""No batch is judged for longer."""
FEW = 20
BATCH = ["table", "topic", "batch_seq"]
EXPECTATION = ("expectation", "column", "severity", "parameters")
"""What tells one expectation of a table from another."""

SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="when the batch was judged"),
    NestedField(2, "run_id", StringType(), required=True, doc="the Airflow run"),
    NestedField(3, "table", StringType(), required=True),
    NestedField(4, "topic", StringType(), required=True),
    NestedField(5, "batch_seq", LongType(), required=True, doc="below zero: a slice of a backfill"),
    NestedField(6, "expectation", StringType(), required=True, doc="its type, as Great Expectations names it"),
    NestedField(7, "column", StringType(), required=True, doc="columns, with commas; empty for the whole table"),
    NestedField(8, "severity", StringType(), required=True, doc="warn, quarantine_rows, block"),
    NestedField(9, "success", BooleanType(), doc="null where there was nothing to judge, or to compare with"),
    NestedField(10, "records", LongType(), required=True, doc="rows that were looked at"),
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
class Result:
    """What one expectation found in one batch; the fields are the table's columns."""

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
        """What tells the expectation from others of the table."""
        return self.expectation, self.column, self.severity, self.parameters

    @property
    def told(self) -> str:
        """The result in one line, without a value of any record that the contract does not show."""
        what = f"{self.expectation}({self.column})"
        if self.error:
            return f"{what}: could not be evaluated, {self.error}"
        if self.success is None:
            seen = "" if self.observed is None else f" by yet, observed {self.observed:,.6g}"
            return f"{what}: nothing to judge{seen}"
        parts = []
        if self.unexpected is not None:
            long = f", {self.too_long:,} of them as their text is too long for the regex" if self.too_long else ""
            parts.append(f"{self.unexpected:,} of {self.records:,} rows fail{long}")
        if self.observed is not None:
            parts.append(f"observed {self.observed:,.6g}")
        if self.low is not None and self.high is not None:
            parts.append(f"expected {self.low:,.6g} to {self.high:,.6g}")
        return f"{what}: {', '.join(parts) or ('holds' if self.success else 'fails')}"


def keep(catalog: Catalog, results: Sequence[Result], *, run_id: str) -> None:
    """Write the results of one table and topic in one commit, in place of what is there of their batches.

    Raises:
        CommitFailedException, ValidationException: somebody else committed first, each of many times; the step may be
            run again.
    """
    if not results:
        return
    mine = And(
        equal("table", results[0].table),
        And(equal("topic", results[0].topic), one_of("batch_seq", {r.batch_seq for r in results})),
    )
    records = [asdict(r) | {"run_id": run_id} for r in results]
    for attempt in range(TRIES):
        table = own_table.widened(tables.ensure(catalog, table_names.QUALITY, SCHEMA, _BY_TABLE), SCHEMA)
        data = pa.Table.from_pylist(records, schema=table.schema().as_arrow())
        own_table.commit_once(table)  # of two that find nothing of a batch, one looks again
        try:
            if tables.files(table, mine):
                table.overwrite(data, overwrite_filter=mine)
                own_table.drop_spare(table)
            else:
                own_table.append(table, data)
            return
        except (CommitFailedException, ValidationException):  # the latter where a rewrite took files away meanwhile
            if attempt == TRIES - 1:
                raise
            time.sleep(0.1 * min(attempt + 1, 10))


def observed_before(catalog: Catalog, table: str, topic: str, seq: int, batches: int) -> list[Result]:
    """The statistics that the batches before this one had, so many of them. All of them were published."""
    found = tables.load(catalog, table_names.QUALITY)
    if found is None:
        return []
    these = And(at_most("batch_seq", seq - 1), above("batch_seq", max(seq - 1 - batches, 0)))
    where = And(equal("table", table), And(equal("topic", topic), these))
    return [r for r in _results(found, where) if r.observed is not None]


def of_run(catalog: Catalog, table: str | None, run_id: str) -> list[Result]:
    """What a run found for a table, or for all, oldest first. Runs of several DAGs may have the same id."""
    found = tables.load(catalog, table_names.QUALITY)
    where = equal("run_id", run_id) if table is None else And(equal("table", table), equal("run_id", run_id))
    mine = _results(found, where) if found else []
    return sorted(mine, key=_age)


def since(
    catalog: Catalog,
    moment: datetime,
    names: Collection[str] | None = None,
    *,
    of_each: int | None = None,
    batches: int | None = None,
) -> list[Result]:
    """What was found from a moment on, for all tables or these, oldest first, slices of backfills left aside.

    Args:
        of_each: of each expectation and topic the newest alone, so many.
        batches: of the newest batches alone, so many.
    """
    found = tables.load(catalog, table_names.QUALITY)
    if found is None or found.current_snapshot() is None:
        return []
    where = And(above("batch_seq", 0), above("at", moment.isoformat()))
    if names is not None and len(names) == 1:
        where = And(one_of("table", names), where)
    rows = found.scan(row_filter=where).to_arrow()
    if names is not None:
        rows = rows.filter(pc.is_in(rows["table"], pa.array(list(names), pa.string())))
    if of_each is not None:
        rows = newest(rows, ("table", "topic", *EXPECTATION), of_each)
    if batches is not None:
        ends = rows.group_by(BATCH).aggregate([("at", "max")]).sort_by([("at_max", "descending")])
        rows = rows.join(ends.slice(0, batches).select(BATCH), BATCH, join_type="left semi")
    return sorted(map(_result, rows.to_pylist()), key=_age)


def _age(result: Result) -> tuple[datetime, int]:
    return result.at, result.batch_seq


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """How many expectations `held`, `failed` and were `not_judged`, over all batches; and `told`, which ones failed."""
    failed = [r for r in results if r.success is False]
    return {
        "held": sum(r.success is True for r in results),
        "failed": len(failed),
        "not_judged": sum(r.success is None for r in results),
        "told": [f"{r.topic} batch {r.batch_seq}, {r.severity}: {r.told}" for r in failed[:TOLD]],
    }


def last(catalog: Catalog, names: Iterable[str]) -> dict[str, list[Result]]:
    """Per table the results of the batch of each topic that was judged last, slices of backfills left aside.

    Of a topic of which nothing was judged within a day only where that is so of all topics of the table.
    """
    wanted, latest = list(names), dict[str, list[Result]]()
    found = tables.load(catalog, table_names.QUALITY) if wanted else None
    if found is None or found.current_snapshot() is None:
        return latest
    # Only the newest batch of each table is wanted, and a year of results is long: most tables were judged lately.
    ever = datetime.fromtimestamp(0, UTC)
    for moment in (datetime.now(UTC) - LATELY, ever):
        missing = [name for name in wanted if name not in latest]
        if not missing:
            break
        where = above("batch_seq", 0)
        if len(missing) <= FEW or moment == ever:  # PyIceberg goes through the names for each file
            where = And(one_of("table", missing), where)
        for result in _last(found, where, moment, missing):
            latest.setdefault(result.table, []).append(result)
    return latest


def _last(table: Table, where: BooleanExpression, moment: datetime, names: Sequence[str]) -> list[Result]:
    """The results of the batch of each topic that was judged last, after a moment, in the order they were found in.

    In two scans, as each opens every file anew: of a batch each, a thousand tables took minutes.
    """
    lately = And(where, above("at", moment.isoformat()))
    rows = table.scan(row_filter=lately, selected_fields=("at", *BATCH)).to_arrow()
    rows = rows.filter(pc.is_in(rows["table"], pa.array(names, pa.string())))
    batches = newest(rows, ["table", "topic"]).select(BATCH)
    first = pc.min(rows.join(batches, BATCH, join_type="left semi")["at"]).as_py()
    if first is None:
        return []
    whole = And(where, above("at", (first - JUDGING).isoformat()))  # a batch may have been judged around the moment
    reader = table.scan(row_filter=whole).to_arrow_batch_reader()
    theirs = [pa.Table.from_batches([each]).join(batches, BATCH, join_type="left semi") for each in reader]
    ordered = pa.concat_tables(theirs).sort_by([(each, "ascending") for each in ("at", *EXPECTATION)])
    return list(map(_result, ordered.to_pylist()))


def _results(table: Table, where: BooleanExpression) -> list[Result]:
    if table.current_snapshot() is None:
        return []
    return list(map(_result, table.scan(row_filter=where).to_arrow().to_pylist()))


def _result(record: dict[str, Any]) -> Result:
    """A record of the table; one that is older than the column has no parameters."""
    return Result(**{**record, "parameters": record.get("parameters") or ""})
