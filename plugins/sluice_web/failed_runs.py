"""Reads failed DAG runs from Airflow's database, in the background thread of a feed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, Subquery, and_, case, func, literal, or_, select
from sqlalchemy.exc import SQLAlchemyError

from sluice_web.compat import DagRun, DagRunState, TaskInstance, TaskInstanceState, create_session

if TYPE_CHECKING:
    from sluice.pages.failed_runs import FailedRun, RunScope
    from sluice.pages.history import History
    from sluice.status.model import TableStatus

TABLE_TASK = "table"
"""The mapped task whose instances are tables: those of templates in `ingest.py`, all tables in `maintain.py`. Other
tables have a task with their own name."""
FETCH_SIZE = 1_000
WEEK_D = 7


def read_failed_runs(
    dags: Sequence[str], table: str | None, known: Sequence[TableStatus], days: int = WEEK_D
) -> History:
    """Read the failed runs of the last days.

    Args:
        dags: readable DAGs of groups, and shared DAGs.
        table: only runs that concern this table; None: all runs that concern readable tables.
        known: all tables, readable or not.

    Raises:
        SluiceError: Airflow's database did not answer.
    """
    from sluice.dag_ids import MAINTENANCE_DAGS, OPERATOR_DAGS, ingest_dag
    from sluice.errors import SluiceError, first_line
    from sluice.pages.failed_runs import FailedRun, RunScope
    from sluice.pages.history import History
    from sluice.status import timeline

    now = datetime.now(UTC)
    shared = {*dags} & {*OPERATOR_DAGS, *MAINTENANCE_DAGS}
    since = now - timedelta(days=days)
    group_runs = _group_runs([*({*dags} - shared)], table, since, timeline.MAX_EVENTS)
    shared_runs = _shared_runs([*shared], since)
    scope = RunScope.from_tables(known, {table} if table else {t.table for t in known if ingest_dag(t.group) in dags})
    try:
        with create_session() as session:
            found = [FailedRun(*row) for row in session.execute(group_runs)]
            rows = session.execute(shared_runs, execution_options={"yield_per": FETCH_SIZE})
            found += islice(_visible_runs(rows, scope, strict=table is not None), timeline.MAX_EVENTS)
    except SQLAlchemyError as error:
        raise SluiceError(f"Failed runs cannot be read from Airflow's database: {first_line(error)}") from error
    found.sort(key=lambda run: run.ended, reverse=True)
    return History(now, [run.event for run in found[: timeline.MAX_EVENTS]])


def _failed_runs(dags: Sequence[str], since: datetime, most: int | None, *more: Any) -> Subquery:
    return (
        select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.start_date, DagRun.end_date, *more)
        .where(DagRun.dag_id.in_(dags), DagRun.state == DagRunState.FAILED, DagRun.end_date >= since)
        .order_by(DagRun.end_date.desc())
        .limit(most)
        .subquery()
    )


def _failed_tasks(runs: Subquery) -> Any:
    # coalesce() keeps SQLite from the index on state, which has all failed tasks of a DAG; that on runs is better.
    failed = func.coalesce(TaskInstance.state, "") == TaskInstanceState.FAILED
    return and_(TaskInstance.dag_id == runs.c.dag_id, TaskInstance.run_id == runs.c.run_id, failed)


def _group_runs(dags: Sequence[str], table: str | None, since: datetime, most: int) -> Select[Any]:
    """Select the failed runs of groups, newest first, each with its first failed task."""
    ti = TaskInstance
    runs = _failed_runs(dags, since, None if table else most)
    # Tasks of other tables come last. Only names of tables have dots.
    own_task = and_(ti.task_id.contains("."), ti.task_id != table)
    mapped = and_(ti.task_id == TABLE_TASK, ti.rendered_map_index != table)
    another = case((or_(own_task, mapped), 1), else_=0) if table else literal(0)
    nth = func.row_number().over(partition_by=runs.c.id, order_by=(another, ti.end_date, ti.task_id))
    found = (
        select(runs, ti.task_id, ti.try_number, another.label("another"), nth.label("nth"))
        .outerjoin(ti, _failed_tasks(runs))
        .subquery()
    )
    columns = [found.c[name] for name in ("dag_id", "run_id", "start_date", "end_date", "task_id", "try_number")]
    first = select(*columns).where(found.c.nth == 1, found.c.another == 0)
    return first.order_by(found.c.end_date.desc()).limit(most)


def _shared_runs(dags: Sequence[str], since: datetime) -> Select[Any]:
    """Select the failed runs of shared DAGs, newest first, with all their failed tasks."""
    ti = TaskInstance
    runs = _failed_runs(dags, since, None, DagRun.conf)
    found = select(runs, ti.task_id, ti.try_number, ti.rendered_map_index).outerjoin(ti, _failed_tasks(runs))
    return found.order_by(runs.c.end_date.desc(), runs.c.id, ti.end_date, ti.task_id)


def _visible_runs(rows: Iterable[Any], scope: RunScope, *, strict: bool) -> Iterator[FailedRun]:
    """Keep the runs that the user may see.

    Args:
        strict: whether to keep only runs that are known to concern a visible table.
    """
    from sluice.pages.failed_runs import FailedRun, tables_of_run

    for _, tasks in groupby(rows, key=lambda row: row.id):
        failed = [*tasks]
        of_tables = [t for t in failed if t.task_id == TABLE_TASK and t.rendered_map_index]
        run = failed[0]
        tables = scope.tables(tables_of_run(run.dag_id, run.conf, (t.rendered_map_index for t in of_tables)))
        if tables or (tables is not None and not strict):
            own = (t for t in of_tables if strict and scope.tables([t.rendered_map_index]))
            task = next(own, run)
            fields = (run.dag_id, run.run_id, run.start_date, run.end_date, task.task_id, task.try_number)
            yield FailedRun(*fields, tables)
