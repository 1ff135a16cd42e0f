"""What a viewer may start on a table, the dry runs that dialogs show, and the operators' runs of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import Depends
from sqlalchemy import and_, case, or_, select
from sqlalchemy.exc import SQLAlchemyError

from sluice.dag_ids import MAINTENANCE_DAGS, OPERATOR_DAGS, REVIEW_SCHEMA, ingest_dag
from sluice_web import reading
from sluice_web.compat import DagRun, DagRunState, DagRunType, create_session, get_team

if TYPE_CHECKING:
    from sluice.operate.dry_run import DryRun
    from sluice.pages.operations import Rights
    from sluice.status.model import TableStatus

ENDED_SHOWN = timedelta(days=1)
MAX_RUNS_SHOWN = 10
MAX_RUNS_READ = 500  # of all tables, of which those of one are shown
GOING_ON = (DagRunState.QUEUED, DagRunState.RUNNING)


class Viewer:
    """What the user who sends a request may do in Airflow."""

    def __init__(self, user: GetUserDep) -> None:
        self._user = user

    def may_start(self, dag: str) -> bool:
        """Whether the user may trigger runs of a DAG."""
        return get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=_dag_details(dag), user=self._user
        )

    def may_edit(self, dag: str) -> bool:
        """Whether the user may pause and unpause a DAG."""
        return get_auth_manager().is_authorized_dag(method="PUT", details=_dag_details(dag), user=self._user)

    def may_answer(self, dag: str) -> bool:
        """Whether the user may answer tasks of a DAG that wait for a person."""
        return get_auth_manager().is_authorized_dag(
            method="PUT", access_entity=DagAccessEntity.HITL_DETAIL, details=_dag_details(dag), user=self._user
        )

    def may_look(self, dag: str) -> bool:
        """Whether the user may see what a run of an operator's DAG would do."""
        return self.may_start(dag) or (dag == REVIEW_SCHEMA and self.may_answer(dag))

    def rights(self) -> Rights:
        """The user's rights, and which DAGs of operators and of maintenance are paused."""
        from sluice.pages.operations import Rights

        paused = reading.read_paused([*OPERATOR_DAGS, *MAINTENANCE_DAGS])
        return Rights(cache(self.may_start), cache(self.may_edit), cache(self.may_answer), paused)


ViewerDep = Annotated[Viewer, Depends()]


def _dag_details(dag: str) -> DagDetails:
    """The DAG as Airflow's auth manager expects it: with its team, if Airflow has teams."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return DagDetails(id=dag)
    return DagDetails(id=dag, team_name=get_team(dag))


def read_dry_run(key: str) -> DryRun:
    """Find out what a run would do.

    Args:
        key: the DAG and the `conf` of the run, as JSON.
    """
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import availability
    from sluice.iceberg import catalog as catalogs
    from sluice.kafka import broker
    from sluice.operate import dry_run
    from sluice.plan.model import PlanInputs

    dag, form = json.loads(key)
    reading.export_registry_config()
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        client = broker.make_admin_client(reading.kafka_settings())
        return dry_run.dry_run(dag, form, PlanInputs(contract_folder.load_contracts(strict=False), catalog, client))


@dataclass(frozen=True)
class OperatorRun:
    """A run that somebody started and that is about a table.

    Attributes:
        state: that of Airflow, such as `queued`.
        since: when it began, or was triggered if it has not begun.
        who: who triggered it; None if nobody did.
        dry_run: whether it only shows what it would do.
        ended: when it ended; None if it has not.
    """

    dag: str
    run_id: str
    state: str
    since: datetime | None
    who: str | None
    dry_run: bool
    ended: datetime | None = None


def list_runs(table: TableStatus, readable: set[str]) -> Sequence[OperatorRun]:
    """The runs about a table that have not ended, then those that ended within a day; none if Airflow can't say.

    Runs of maintenance count only if somebody named the table; those of its group that somebody started until they end.
    """
    from sluice.pages.failed_runs import RunScope, tables_of_run

    scope = RunScope.from_tables([table], [table.table])
    recent = DagRun.end_date >= datetime.now(UTC) - ENDED_SHOWN
    columns = (DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.queued_at)
    ingest = ingest_dag(table.group)
    started = (DagRun.dag_id.in_({ingest} & readable), DagRun.run_type == DagRunType.MANUAL)
    wanted = (
        select(*columns, DagRun.triggering_user_name, DagRun.conf, DagRun.end_date)
        .where(
            or_(
                and_(
                    DagRun.dag_id.in_({*OPERATOR_DAGS, *MAINTENANCE_DAGS} & readable),
                    or_(DagRun.state.in_(GOING_ON), recent),
                ),
                and_(*started, DagRun.state.in_(GOING_ON)),
            )
        )
        .order_by(case((DagRun.state.in_(GOING_ON), 0), else_=1), DagRun.id.desc())
        .limit(MAX_RUNS_READ)
    )
    try:
        with create_session() as session:
            rows = session.execute(wanted).all()
    except SQLAlchemyError:
        return ()
    found = []
    for dag, run_id, state, began, queued, who, form, ended in rows:
        names = tables_of_run(dag, form, ())
        if dag == ingest or any(table.table in scope.tables_by_name.get(name, ()) for name in names):
            # All forms with this field have a dry run as the default.
            only_shows = bool((form or {}).get("dry_run", dag not in (*MAINTENANCE_DAGS, REVIEW_SCHEMA, ingest)))
            found.append(OperatorRun(dag, run_id, str(state), began or queued, who, only_shows, ended))
    return found[:MAX_RUNS_SHOWN]


def find_waiting_review(runs: Sequence[OperatorRun]) -> str | None:
    """The newest run of `review_schema` that has not ended."""
    return next((run.run_id for run in runs if run.dag == REVIEW_SCHEMA and run.state in GOING_ON), None)


def is_waited_for(runs: Sequence[OperatorRun]) -> bool:
    """Whether a run has not ended that ends by itself, other than a review."""
    return any(run.state in GOING_ON and run.dag != REVIEW_SCHEMA for run in runs)
