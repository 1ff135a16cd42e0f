"""Which runs failed, read from Airflow's database: in a feed's thread, as all that the pages show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import Select, Subquery, and_, case, func, literal, or_, select
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from sluice.pages.failed import Concern, FailedRun
    from sluice.pages.history import History
    from sluice.status.model import TableStatus

MAPPED = "table"
"""The task of `ingest.py` whose instances stand for the tables of templates, and that of `maintain.py` for all; the
tasks of other tables have their names."""
AT_ONCE = 1_000


def read(dags: Sequence[str], table: str | None, known: Sequence[TableStatus]) -> History:
    """Read a week of runs that failed.

    Args:
        dags: those of groups, whose tables may be told of, and others that act on tables.
        table: those runs are left out, before they are cut to the newest, in which the tasks of other tables alone
            failed; and those of DAGs that are no group's, unless it is known that they were about it.
        known: all tables, whoever may read them.

    Raises:
        SluiceError: Airflow's database did not answer.
    """
    from sluice.errors import SluiceError, first_line
    from sluice.pages.failed import Concern, FailedRun
    from sluice.pages.history import BACK, History
    from sluice.status import timeline
    from sluice.status.events import BY_HAND, MAINTAIN

    now = datetime.now(UTC)
    others = {*dags} & {*BY_HAND, *MAINTAIN}
    of_groups = _of_groups([*({*dags} - others)], table, now - BACK, timeline.MOST)
    of_others = _of_others([*others], now - BACK)
    concern = Concern.of(known, {table} if table else {t.table for t in known if f"ingest_{t.group}" in dags})
    try:
        with create_session() as session:
            found = [FailedRun(*row) for row in session.execute(of_groups)]
            rows = session.execute(of_others, execution_options={"yield_per": AT_ONCE})
            found += islice(_concerned(rows, concern, alone=table is not None), timeline.MOST)
    except SQLAlchemyError as error:
        raise SluiceError(f"Airflow's database did not tell which runs failed: {first_line(error)}") from error
    found.sort(key=lambda run: run.ended, reverse=True)
    return History(now, [run.event for run in found[: timeline.MOST]])


def _runs(dags: Sequence[str], since: datetime, most: int | None, *more: Any) -> Subquery:
    return (
        select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.start_date, DagRun.end_date, *more)
        .where(DagRun.dag_id.in_(dags), DagRun.state == DagRunState.FAILED, DagRun.end_date >= since)
        .order_by(DagRun.end_date.desc())
        .limit(most)
        .subquery()
    )


def _failed_tasks(runs: Subquery) -> Any:
    # Not by the index of states: it seems as good to SQLite as that of runs, and has all that ever failed of a DAG.
    failed = func.coalesce(TaskInstance.state, "") == TaskInstanceState.FAILED
    return and_(TaskInstance.dag_id == runs.c.dag_id, TaskInstance.run_id == runs.c.run_id, failed)


def _of_groups(dags: Sequence[str], table: str | None, since: datetime, most: int) -> Select[Any]:
    """The runs of groups, newest first, each with the first task that failed."""
    ti = TaskInstance
    runs = _runs(dags, since, None if table else most)
    # A task of another table comes last; the names of tables alone have dots.
    named = and_(ti.task_id.contains("."), ti.task_id != table)
    mapped = and_(ti.task_id == MAPPED, ti.rendered_map_index != table)
    another = case((or_(named, mapped), 1), else_=0) if table else literal(0)
    nth = func.row_number().over(partition_by=runs.c.id, order_by=(another, ti.end_date, ti.task_id))
    found = (
        select(runs, ti.task_id, ti.try_number, another.label("another"), nth.label("nth"))
        .outerjoin(ti, _failed_tasks(runs))
        .subquery()
    )
    told = [found.c[name] for name in ("dag_id", "run_id", "start_date", "end_date", "task_id", "try_number")]
    first = select(*told).where(found.c.nth == 1, found.c.another == 0)
    return first.order_by(found.c.end_date.desc()).limit(most)


def _of_others(dags: Sequence[str], since: datetime) -> Select[Any]:
    """The runs of other DAGs, newest first, with each of their tasks that failed: which tables they were about."""
    ti = TaskInstance
    runs = _runs(dags, since, None, DagRun.conf)
    found = select(runs, ti.task_id, ti.try_number, ti.rendered_map_index).outerjoin(ti, _failed_tasks(runs))
    return found.order_by(runs.c.end_date.desc(), runs.c.id, ti.end_date, ti.task_id)


def _concerned(rows: Iterable[Any], concern: Concern, *, alone: bool) -> Iterator[FailedRun]:
    """The runs that may be told of.

    Args:
        alone: whether it must be known that they were about a table that may be told of.
    """
    from sluice.pages.failed import FailedRun, names

    for _, tasks in groupby(rows, key=lambda row: row.id):
        failed = [*tasks]
        of_tables = [t for t in failed if t.task_id == MAPPED and t.rendered_map_index]
        run = failed[0]
        tables = concern.tables(names(run.dag_id, run.conf, (t.rendered_map_index for t in of_tables)))
        if tables or (tables is not None and not alone):
            own = (t for t in of_tables if alone and concern.tables([t.rendered_map_index]))
            task = next(own, run)
            told = (run.dag_id, run.run_id, run.start_date, run.end_date, task.task_id, task.try_number)
            yield FailedRun(*told, tables)
