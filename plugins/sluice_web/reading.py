"""What is known of the tables, and what each user may see of it.

Users see the tables of the groups whose DAG they may read. Kafka and the catalog are read in background threads: the
API server never waits for them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import Depends, HTTPException, Query
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from sluice.dag_ids import MAINTENANCE_DAGS, OPERATOR_DAGS, ingest_dag
from sluice.kafka import connections
from sluice.status.events import WEEK_RANGES
from sluice_web import ingest_runs
from sluice_web.compat import (
    DagModel,
    DagRun,
    Pool,
    TaskInstance,
    TaskInstanceState,
    create_session,
    get_connection,
)

if TYPE_CHECKING:
    from sluice.contract.folder import Contracts
    from sluice.errors import SluiceError
    from sluice.operate.dry_run import DryRun
    from sluice.pages.cost import CostReading
    from sluice.pages.detail import TableDetail
    from sluice.pages.feed import Reading
    from sluice.pages.history import History
    from sluice.pages.quality.trends import Trend
    from sluice.status.model import Status, TableStatus
    from sluice.status.readiness import ReadinessCheck
    from sluice.status.record_trace import RecordTrace
    from sluice.usage.overview import DayFacts

FIRST_WAIT_S = 0.2  # limit for the very first page after a start
RECORD_WAIT_S = 3.0
ANSWER_WAIT_S = (
    8.0  # who asks for JSON or metrics does not look again, as the pages do; Prometheus waits for ten seconds
)
MONTH_FRESH_S = 300.0
WEEK_H = WEEK_RANGES[-1].hours
NO_RUN = "This run does not exist, or you may not read its DAG."
NO_TABLE = "This table does not exist, or you may not read its DAG."


def _read_status(only: str | None = None) -> Status:
    from sluice.contract import folder as contract_folder
    from sluice.pages import last_known
    from sluice.status import status as status_status

    export_registry_config()
    contracts = contract_folder.load_contracts(strict=False)
    found = status_status.read_status(contracts, only and [only], kafka=kafka_settings())
    found.stopped += find_missing_pools(contracts)
    return last_known.fill_from_last(found, feeds().status.last)


def find_missing_pools(contracts: Contracts) -> list[tuple[str, SluiceError]]:
    """An error, with its group, for each pool that a group names and Airflow does not have.

    A task whose pool is missing waits for ever, and Airflow says so in the scheduler's log only.
    """
    from sluice.errors import ConfigError

    wanted = [(group.name, pool) for group in contracts.groups.values() for pool in sorted(group.settings.pools)]
    try:
        with create_session() as session:
            known = set(session.scalars(select(Pool.pool)))
    except SQLAlchemyError:
        return []  # without its database, Airflow starts no task
    advice = "Create it: sluice airflow setup."
    return [
        (group, ConfigError(f"Airflow has no pool {pool!r}: tasks of group {group} wait for it.", next_step=advice))
        for group, pool in wanted
        if pool not in known
    ]


def _read_detail(name: str) -> TableDetail:
    from sluice.pages import detail

    return detail.read_detail(name, kafka_settings(), read_paused(MAINTENANCE_DAGS))


def _read_trace(key: str) -> RecordTrace:
    from sluice.status import record_trace

    name, at, topic = json.loads(key)
    return record_trace.read_trace(name, at, topic or None, kafka_settings())


def read_paused(dags: Sequence[str]) -> dict[str, bool]:
    """Whether each of these DAGs is paused; without those that Airflow does not know, and if it does not answer."""
    wanted = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(dags), ~DagModel.is_stale)
    try:
        with create_session() as session:
            return dict(session.execute(wanted).tuples().all())
    except SQLAlchemyError:
        return {}


def read_full_pools(dags: Sequence[str]) -> dict[str, str]:
    """By DAG, the pool without a free slot that a task of a run waits for; none if Airflow does not answer."""
    waits = (TaskInstance.dag_id.in_(dags), TaskInstance.state == TaskInstanceState.SCHEDULED)
    try:
        with create_session() as session:
            waiting = session.execute(select(TaskInstance.dag_id, TaskInstance.pool).where(*waits).distinct()).all()
            stats = Pool.slots_stats(session=session) if waiting else {}
    except SQLAlchemyError:
        return {}
    return {dag: pool for dag, pool in waiting if pool in stats and stats[pool]["open"] <= 0}


def _read_failed(key: str) -> History:
    from sluice_web import failed_runs

    dags, table, days = json.loads(key)
    last = feeds().status.last
    return failed_runs.read_failed_runs(dags, table, last.tables if last else (), days)


def _read_dry_run(key: str) -> DryRun:
    from sluice_web import operations

    return operations.read_dry_run(key)


def export_registry_config() -> None:
    """Set the registry of the connection for this process; contracts with `columns: auto` need it."""
    if registry := get_connection(connections.REGISTRY_CONN_ID):
        os.environ["SLUICE_REGISTRY_CONFIG"] = json.dumps(connections.registry_settings(registry))


def kafka_settings() -> dict[str, Any] | None:
    """The librdkafka settings of the connection; None without one: the environment decides."""
    found = get_connection(connections.KAFKA_CONN_ID)
    return connections.kafka_settings(found) if found else None


def _lazy_reader(module: str, name: str) -> Callable[..., Any]:
    """A function of `sluice.pages` that is imported on its first call, in the thread of a feed."""

    def read(*args: str) -> Any:
        return getattr(import_module(f"sluice.pages.{module}"), name)(*args)

    return read


class ReadingFeeds:
    """The feeds of this process; made at the first request, so that loading the plugin is cheap."""

    def __init__(self) -> None:
        from sluice.pages.feed import Feed, Feeds, Slots

        self.status: Feed[Status] = Feed(_read_status)
        # Of one table, read when a run has changed it: the status of a thousand takes long.
        self.tables: Feeds[Status] = Feeds(_read_status)
        self.details: Feeds[TableDetail] = Feeds(_read_detail)
        self.quality: Feed[dict[str, list[Trend]]] = Feed(_lazy_reader("quality.trends", "read_all_trends"))
        # Own slots: there are more runs than tables, and their readings must not keep the other pages waiting.
        self.runs: Feeds[dict[str, list[Trend]]] = Feeds(
            _lazy_reader("quality.trends", "read_run_trends"), slots=Slots()
        )
        self.costs: Feeds[CostReading] = Feeds(_lazy_reader("cost", "read_cost"), fresh=MONTH_FRESH_S, slots=Slots())
        self.last_day: Feed[Mapping[str, DayFacts]] = Feed(_lazy_reader("cost", "read_last_day"), fresh=MONTH_FRESH_S)
        self.histories: Feeds[History] = Feeds(_lazy_reader("history", "read_history"))
        self.groups: Feeds[History] = Feeds(_lazy_reader("history", "read_group_history"))
        # Read for those who ask for 30 days only, and seldom: the ledger of many tables takes a minute.
        months = {"fresh": MONTH_FRESH_S, "slots": Slots()}
        self.months: Feeds[History] = Feeds(_lazy_reader("history", "read_month"), **months)
        self.group_months: Feeds[History] = Feeds(_lazy_reader("history", "read_group_month"), **months)
        self.reports: Feeds[str] = Feeds(_lazy_reader("report", "read_report"), slots=Slots())
        # Own slots: failed runs must be readable while the catalog hangs.
        self.failed: Feeds[History] = Feeds(_read_failed, slots=Slots())
        self.records: Feeds[RecordTrace] = Feeds(_read_trace, slots=Slots())
        # Read anew for each look, because an operator acts on it.
        self.dry_runs: Feeds[DryRun] = Feeds(_read_dry_run, fresh=1.0, slots=Slots())


@cache
def feeds() -> ReadingFeeds:
    """The feeds of this process."""
    return ReadingFeeds()


def _readable_dags(user: GetUserDep) -> set[str]:
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


Readable = Annotated[set[str], Depends(_readable_dags)]
Hours = Annotated[int, Query(ge=1, le=168, description="Hours back, at most a week.")]
Name = Annotated[str | None, Query(max_length=250)]
# Airflow's own run ids, and what its setting `allowed_run_id_pattern` may reasonably add.
RunId = Annotated[str | None, Query(max_length=250, pattern=r"^[\w.,~:+@= -]*$")]
Search = Annotated[str, Query(max_length=250)]
Moment = Annotated[str, Query(max_length=64, description="ISO 8601 with a time zone; default: now.")]


def answer_deadline() -> float:
    """The monotonic time until which an answer waits for all of its readings."""
    return time.monotonic() + ANSWER_WAIT_S


def read_status(readable: set[str], until: float | None = None) -> Reading[Status]:
    """Read the status of the readable tables."""
    return select_readable(feeds().status.get(wait=FIRST_WAIT_S, until=until), readable)


def select_readable(known: Reading[Status], readable: set[str]) -> Reading[Status]:
    """Reduce a status to the readable tables, with what Airflow knows of their DAGs."""
    visible = known.value.filter_groups(lambda group: ingest_dag(group) in readable) if known.value else None
    return replace(known, value=visible and _add_dag_states(visible))


def _add_dag_states(status: Status) -> Status:
    """Add what Airflow knows of the DAGs. Asked for each page, so that it shows at once what somebody did."""
    dags = {t.group: ingest_dag(t.group) for t in status.tables}
    names = sorted({*dags.values()})
    paused, pools, runs = read_paused(names), read_full_pools(names), ingest_runs.read_last_runs(names)
    unscheduled = ingest_runs.read_unscheduled(names)
    changes: dict[str, dict[str, Any]] = {}
    for group, dag in dags.items():
        found = {
            "paused": paused.get(dag),
            "waits_for_pool": pools.get(dag),
            "run": runs.going_on.get(dag),
            "failed_run": runs.failed.get(dag),
        }
        changes[group] = {name: value for name, value in found.items() if value}
        changes[group] |= {"scheduled": False} if dag in unscheduled else {}
    tables = [replace(t, **changes[t.group]) if changes[t.group] else t for t in status.tables]
    return replace(status, tables=tables)


def sees_all(readable: set[str]) -> bool:
    """Whether the user may read the DAGs of all groups."""
    known = feeds().status.get().value
    groups = {t.group for t in known.tables} | {group for group, _ in known.stopped} if known else set()
    return known is not None and all(ingest_dag(group) in readable for group in groups)


def read_history(status: Status | None, until: float | None = None, hours: int = WEEK_H) -> Reading[History]:
    """Read the events of the readable tables; each set of groups has its own feed, and so have 30 days."""
    from sluice.pages.feed import Reading

    if status is None:
        return Reading()
    groups = json.dumps(sorted({t.group for t in status.tables}))
    own = feeds().groups if hours <= WEEK_H else feeds().group_months
    return own.get_feed(groups).get(wait=FIRST_WAIT_S, until=until)


def read_table_history(name: str, until: float | None = None, hours: int = WEEK_H) -> Reading[History]:
    """Read the events of one table."""
    own = feeds().histories if hours <= WEEK_H else feeds().months
    return own.get_feed(name).get(wait=FIRST_WAIT_S, until=until)


def read_record(name: str, at: str, topic: str, until: float | None = None) -> Reading[RecordTrace]:
    """Read what became of a record, by its PARTITION:OFFSET; the topic is empty if only one feeds the table."""
    return feeds().records.get_feed(json.dumps([name, at, topic])).get(wait=RECORD_WAIT_S, until=until)


def readable_dags(readable: set[str], tables: Sequence[TableStatus]) -> set[str]:
    """The readable DAGs that act on these tables."""
    return ({ingest_dag(t.group) for t in tables} | {*OPERATOR_DAGS, *MAINTENANCE_DAGS}) & readable


def read_failed_runs(
    readable: set[str], status: Status | None, table: TableStatus | None = None, until: float | None = None,
    hours: int = WEEK_H,
) -> Reading[History]:  # fmt: skip
    """Read the failed runs of the readable DAGs, or those that may concern one table."""
    from sluice.pages.feed import Reading

    if status is None:
        return Reading()
    dags = sorted(readable_dags(readable, [table] if table else status.tables))
    key = json.dumps([dags, table and table.table, max(hours, WEEK_H) // 24])
    return feeds().failed.get_feed(key).get(wait=FIRST_WAIT_S, until=until)


def is_readable_run(run_id: str, dags: set[str]) -> bool:
    """Whether one of these DAGs has a run of this id. Asked before a run's results are read from the catalog.

    Raises:
        HTTPException: 503: Airflow's database did not answer.
    """
    wanted = select(DagRun.id).where(DagRun.run_id == run_id, DagRun.dag_id.in_(dags)).limit(1)
    try:
        with create_session() as session:
            return bool(dags) and session.scalar(wanted) is not None
    except SQLAlchemyError as error:
        raise HTTPException(503, "Airflow's database did not answer. Retry.", headers={"Retry-After": "2"}) from error


def has_reports(read: Reading[Any]) -> bool:
    """Whether runs write reports; False before the first reading, because the check takes slow imports."""
    return read.value is not None and bool(_lazy_reader("report", "is_enabled")())


def find_table(status: Status | None, name: str) -> TableStatus | None:
    """Find a table in a status."""
    return next((t for t in status.tables if t.table == name), None) if status else None


def require_value(reading: Reading[Any]) -> Any:
    """The value of a reading.

    Raises:
        HTTPException: 503: there is no value yet.
    """
    if reading.value is None:
        raise HTTPException(
            503, reading.error or "The first reading is under way. Retry.", headers={"Retry-After": "2"}
        )
    return reading.value


def require_history(*readings: Reading[History]) -> tuple[History, list[str]]:
    """Merge histories, and list the errors of those that could not be read.

    Raises:
        HTTPException: 503: one is being read for the first time, or none could be read.
    """
    from sluice.pages import history

    for each in readings:
        if each.error is None:
            require_value(each)
    merged = history.merge_histories(*(each.value for each in readings))
    found = merged or require_value(readings[0])
    return found, [*(each.error for each in readings if each.error), *found.unread]


def require_status(readable: set[str], until: float | None = None) -> Status:
    """The status of the readable tables, marked as stale if it is old, or reading a newer one hangs or failed.

    Raises:
        HTTPException: 503: there is no status yet.
    """
    from sluice.pages import last_known

    reading = read_status(readable, until)
    found: Status = require_value(reading)
    return last_known.mark_stale(found, reading.error) if reading.error else found


def require_table(status: Status, name: str) -> TableStatus:
    """Find a table in a status.

    Raises:
        HTTPException: 404: there is no such table, or the user may not read it.
    """
    found = find_table(status, name)
    if found is None:
        raise HTTPException(404, NO_TABLE)
    return found


def list_readiness(
    detail: TableDetail | None, table: TableStatus, may_start: Callable[[str], bool]
) -> Sequence[ReadinessCheck]:
    """The readiness checks of a table, with who may see it; empty until they were read."""
    if detail is None:
        return ()
    readiness = import_module("sluice.status.readiness")
    # Only Airflow's simple auth manager can make every visitor an administrator.
    anybody = conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False)
    permissions = {dag: may_start(dag) for dag in (ingest_dag(table.group), *OPERATOR_DAGS)}
    access = readiness.check_access(table.group, type(get_auth_manager()).__name__, permissions, anybody=anybody)
    return [*list_checks(detail, table), access]


def list_checks(detail: TableDetail | None, table: TableStatus) -> Sequence[ReadinessCheck]:
    """The readiness checks of a table as they are now; empty until they were read."""
    if detail is None:
        return ()
    found: Sequence[ReadinessCheck] = import_module("sluice.status.readiness").with_current_freshness(
        detail.readiness, table
    )
    return found
