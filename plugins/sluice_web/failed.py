"""Which runs failed, read from Airflow's database: in a feed's thread, as all that the pages show."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import Select, and_, case, func, literal, or_, select
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from sluice.pages.history import History

MAPPED = "table"
"""The task of `ingest.py` whose instances stand for the tables of templates; those of others have their names."""


def read(key: str) -> History:
    """Read a week of runs of some groups' DAGs that failed.

    Args:
        key: in JSON the names of the groups, and a table or null. For a table those runs are left out, before they are
            cut to the newest, in which the tasks of other tables alone failed.

    Raises:
        SluiceError: Airflow's database did not answer.
    """
    from sluice import timeline
    from sluice.errors import SluiceError, first_line
    from sluice.pages.failed import FailedRun
    from sluice.pages.history import BACK, History

    groups, table = json.loads(key)
    now = datetime.now(UTC)
    query = _query([f"ingest_{group}" for group in groups], table, now - BACK, timeline.MOST)
    try:
        with create_session() as session:
            return History(now, [FailedRun(*row).event for row in session.execute(query)])
    except SQLAlchemyError as error:
        raise SluiceError(f"Airflow's database did not tell which runs failed: {first_line(error)}") from error


def _query(dags: list[str], table: str | None, since: datetime, most: int) -> Select[Any]:
    """The runs, newest first, each with the first task that failed."""
    ti = TaskInstance
    runs = (
        select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.start_date, DagRun.end_date)
        .where(DagRun.dag_id.in_(dags), DagRun.state == DagRunState.FAILED, DagRun.end_date >= since)
        .order_by(DagRun.end_date.desc())
        .limit(None if table else most)
        .subquery()
    )
    # A task of another table comes last; the names of tables alone have dots.
    named = and_(ti.task_id.contains("."), ti.task_id != table)
    mapped = and_(ti.task_id == MAPPED, ti.rendered_map_index != table)
    another = case((or_(named, mapped), 1), else_=0) if table else literal(0)
    nth = func.row_number().over(partition_by=runs.c.id, order_by=(another, ti.end_date, ti.task_id))
    # Not by the index of states: it seems as good to SQLite as that of runs, and has all that ever failed of a DAG.
    failed = func.coalesce(ti.state, "") == TaskInstanceState.FAILED
    tasks = and_(ti.dag_id == runs.c.dag_id, ti.run_id == runs.c.run_id, failed)
    found = (
        select(runs, ti.task_id, ti.try_number, another.label("another"), nth.label("nth"))
        .outerjoin(ti, tasks)
        .subquery()
    )
    told = [found.c[name] for name in ("dag_id", "run_id", "start_date", "end_date", "task_id", "try_number")]
    first = select(*told).where(found.c.nth == 1, found.c.another == 0)
    return first.order_by(found.c.end_date.desc()).limit(most)
