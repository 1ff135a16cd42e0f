"""Table `sluice.costs`: what each step of a Spark application used. In: `Cost` rows. Out: rows since a time. No JVM.

An application appends its rows once, at its end; that of a continuous group once a minute.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType, TimestamptzType
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_incrementing

from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, Or, above, equal, one_of

APPLICATION, STAGE = "application", "stage"
"""Steps that no typed table has alone: what an application used outside its steps, and the read of a topic."""

SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="the end of what is counted"),
    NestedField(2, "since", TimestamptzType(), required=True, doc="its begin"),
    NestedField(3, "run_id", StringType(), required=True, doc="the Airflow run"),
    NestedField(4, "application", StringType(), required=True, doc="the name of the Spark application"),
    NestedField(
        5,
        "step",
        StringType(),
        required=True,
        doc="stage, check, publish, backfill, a maintenance action; application: what it used outside its steps",
    ),
    NestedField(6, "table", StringType(), doc="the table; step stage: the staging table; step application: null"),
    NestedField(7, "topic", StringType(), doc="the topic, where the step has one"),
    NestedField(8, "times", LongType(), required=True, doc="how often the step ran; application: runs or rounds"),
    NestedField(9, "records", LongType(), doc="records staged, published or replayed"),
    NestedField(10, "wall_seconds", DoubleType(), required=True, doc="elapsed time"),
    NestedField(
        11,
        "driver_cpu_seconds",
        DoubleType(),
        doc="CPU time of the driver's Python process and JVM, without tasks; null: unknown",
    ),
    NestedField(
        12, "executor_cpu_seconds", DoubleType(), doc="CPU time of the tasks' threads in executors; null: unknown"
    ),
    NestedField(
        13,
        "is_split",
        BooleanType(),
        required=True,
        doc="whether steps overlapped, so that the driver's CPU time was split among them by elapsed time",
    ),
    NestedField(14, "bytes_read", LongType(), doc="bytes that tasks read from files, as Spark reports it"),
    NestedField(15, "bytes_added", LongType(), required=True, doc="bytes of the files that its commits added"),
    NestedField(16, "files_added", LongType(), required=True, doc="data and delete files that its commits added"),
    NestedField(17, "bytes_removed", LongType(), required=True, doc="bytes of the files that they removed"),
    NestedField(18, "files_removed", LongType(), required=True, doc="data and delete files that they removed"),
    NestedField(19, "commits", LongType(), required=True, doc="snapshots that it made visible in the table"),
    NestedField(20, "catalog_calls", LongType(), required=True, doc="calls of the catalog by PyIceberg in the driver"),
    NestedField(21, "tables", LongType(), doc="step application: how many tables its other rows are about"),
)


@dataclass(frozen=True)
class Cost:
    """One row; the fields are the table's columns."""

    at: datetime
    since: datetime
    run_id: str
    application: str
    step: str
    table: str | None
    topic: str | None
    times: int
    records: int | None
    wall_seconds: float
    driver_cpu_seconds: float | None
    executor_cpu_seconds: float | None
    is_split: bool = False
    bytes_read: int | None = None
    bytes_added: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    files_removed: int = 0
    commits: int = 0
    catalog_calls: int = 0
    tables: int | None = None

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of driver and executors, as far as they are known."""
        return (self.driver_cpu_seconds or 0.0) + (self.executor_cpu_seconds or 0.0)


@retry(
    retry=retry_if_exception_type(CommitFailedException),
    stop=stop_after_attempt(5),
    wait=wait_incrementing(0.1, 0.2),
    reraise=True,
)
def write_costs(catalog: Catalog, costs: Sequence[Cost]) -> None:
    """Append rows in one commit.

    Raises:
        CommitFailedException: other writers came first, at each attempt.
    """
    if records := [asdict(cost) for cost in costs]:
        table = tables.ensure_table(catalog, table_names.COSTS, SCHEMA)
        own_table.append(table, pa.Table.from_pylist(records, schema=table.schema().as_arrow()))


def read_costs(catalog: Catalog, since: datetime, names: Collection[str] | None = None) -> list[Cost]:
    """Return the rows that were written after a time, oldest first.

    Args:
        names: only these tables, and what applications used outside their steps; None: all rows.
    """
    table = tables.load(catalog, table_names.COSTS)
    if table is None or table.current_snapshot() is None:
        return []
    wanted: BooleanExpression = above("at", since.isoformat())
    if names is not None:
        wanted = And(wanted, Or(equal("step", APPLICATION), one_of("table", names)))
    columns = tuple(each.name for each in fields(Cost))
    rows = table.scan(row_filter=wanted, selected_fields=columns).to_arrow()
    if names is not None:  # of the applications, those that worked on these tables
        runs = rows.filter(pc.is_valid(rows["table"]))["run_id"]
        rows = rows.filter(pc.is_in(rows["run_id"], runs))
    return [Cost(**record) for record in rows.sort_by([("at", "ascending")]).to_pylist()]
