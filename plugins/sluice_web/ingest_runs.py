"""The runs of the groups' DAGs in Airflow: the one under way, and the last one if it failed for all of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, func, or_, select
from sqlalchemy.exc import SQLAlchemyError

from sluice_web.compat import DagModel, DagRun, DagRunState, TaskInstance, TaskInstanceState, create_session

if TYPE_CHECKING:
    from sqlalchemy import Select

    from sluice.status.open_work import IngestRun

NEWEST_RUNS = 10_000  # of all DAGs of this Airflow: a DAG may have many thousands, and its last one has no index
GOING_ON = (DagRunState.QUEUED, DagRunState.RUNNING)
NO_SCHEDULE = "None"  # the summary of Airflow's NullTimetable
SHARED_TASKS = ("plan", "ingest", "settle")


class LastRuns(NamedTuple):
    """Runs by DAG.

    Attributes:
        going_on: the newest run that has not ended.
        failed: the last run that ended, if it failed in a task that all tables share, so that no table has an outcome.
    """

    going_on: dict[str, IngestRun]
    failed: dict[str, IngestRun]


def read_last_runs(dags: Sequence[str]) -> LastRuns:
    """Read them; none if Airflow's database does not answer."""
    from sluice.status.open_work import IngestRun

    found = LastRuns({}, {})
    try:
        with create_session() as session:
            rows = session.execute(_last_runs(dags)).all()
            failed_ids = [row.id for row in rows if row.state == DagRunState.FAILED]
            tasks = session.execute(_shared_tasks(failed_ids)).all() if failed_ids else ()
    except SQLAlchemyError:
        return found
    for row in rows:
        if row.state in GOING_ON:
            since = row.start_date or row.queued_at
            found.going_on[row.dag_id] = IngestRun(row.run_id, str(row.state), since)
        elif row.state == DagRunState.FAILED and (first := _first_failed(t for t in tasks if t.id == row.id)):
            found.failed[row.dag_id] = IngestRun(
                row.run_id, str(row.state), row.start_date, row.end_date, first.task_id, first.try_number
            )
    return found


def read_unscheduled(dags: Sequence[str]) -> set[str]:
    """Those of these DAGs that have no schedule; none if Airflow's database does not answer."""
    wanted = select(DagModel.dag_id).where(DagModel.dag_id.in_(dags), DagModel.timetable_summary == NO_SCHEDULE)
    try:
        with create_session() as session:
            return set(session.scalars(wanted))
    except SQLAlchemyError:
        return set()


def find_gone_runs(runs: Iterable[str | None]) -> set[str]:
    """Those of these runs that Airflow does not have: it deleted them, or a command started them.

    None if Airflow's database does not answer.
    """
    asked = {run for run in runs if run}
    try:
        with create_session() as session:
            return asked - set(session.scalars(select(DagRun.run_id).where(DagRun.run_id.in_(asked))))
    except SQLAlchemyError:
        return set()


def _last_runs(dags: Sequence[str]) -> Select[Any]:
    newest = select(DagRun.id, DagRun.dag_id, DagRun.state).order_by(DagRun.id.desc()).limit(NEWEST_RUNS).subquery().c
    last = select(func.max(newest.id)).where(newest.dag_id.in_(dags)).group_by(newest.dag_id)
    ended = last.where(newest.state.in_((DagRunState.SUCCESS, DagRunState.FAILED)))
    going_on = last.where(newest.state.in_(GOING_ON))
    columns = (DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.queued_at)
    return select(*columns, DagRun.end_date).where(or_(DagRun.id.in_(ended), DagRun.id.in_(going_on)))


def _shared_tasks(runs: Sequence[int]) -> Select[Any]:
    ti = TaskInstance
    of_run = and_(ti.dag_id == DagRun.dag_id, ti.run_id == DagRun.run_id, ti.task_id.in_(SHARED_TASKS))
    columns = (DagRun.id, ti.task_id, ti.state, ti.try_number)
    return select(*columns).join(ti, of_run).where(DagRun.id.in_(runs)).order_by(ti.end_date, ti.task_id)


def _first_failed(tasks: Iterable[Any]) -> Any:
    """The first shared task that failed; None if `settle` succeeded, since each table has its outcome then."""
    known = [*tasks]
    if any(t.task_id == "settle" and t.state == TaskInstanceState.SUCCESS for t in known):
        return None
    return next((t for t in known if t.state == TaskInstanceState.FAILED), None)
