"""What is known of the tables, and to whom it is told.

A table is told of to those who may read the DAG of its group. The API server does not wait for Kafka or the catalog:
they are read in threads of their own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Query

from sluice.kafka import connections
from sluice.status.events import BY_HAND, MAINTAIN

if TYPE_CHECKING:
    from sluice.pages.detail import Detail
    from sluice.pages.feed import Reading
    from sluice.pages.history import History
    from sluice.pages.trends import Trend
    from sluice.status.model import Status, TableStatus
    from sluice.status.readiness import Line

FIRST_WAIT_S = 0.2  # the very first visitor after a start is not kept longer
SOON_S = 8.0  # who asks for JSON or metrics does not look again, as the pages do; Prometheus waits for ten seconds
NO_TABLE = "There is no such table, or you may not read its DAG."


def _read_status() -> Status:
    from sluice.contract import folder as contract_folder
    from sluice.pages import known
    from sluice.status import status as status_status

    if registry := _connection(connections.REGISTRY):
        os.environ["SLUICE_REGISTRY_CONFIG"] = json.dumps(connections.registry_settings(registry))
    found = status_status.look(contract_folder.load(strict=False), kafka=_kafka())
    return known.beside(found, feeds().status.last)


def _read_detail(name: str) -> Detail:
    from sluice.pages import detail

    return detail.read(name, _kafka())


def _read_failed(key: str) -> History:
    from sluice_web import failed  # models of Airflow's database, which no other process loads for this plugin

    dags, table = json.loads(key)
    last = feeds().status.last
    return failed.read(dags, table, last.tables if last else ())


def _kafka() -> dict[str, Any] | None:
    found = _connection(connections.KAFKA)
    return connections.kafka_settings(found) if found else None


def _reader(module: str, name: str) -> Callable[..., Any]:
    """A function of `sluice.pages`, imported where it is called: in a feed's thread, and no visitor waits for it."""

    def read(*given: str) -> Any:
        return getattr(import_module(f"sluice.pages.{module}"), name)(*given)

    return read


def _connection(name: str) -> Connection | None:
    try:
        return Connection.get_connection_from_secrets(name)
    except AirflowNotFoundException:
        return None


class _Feeds:
    """What was read; made at the first request, so that loading the plugin costs nothing."""

    def __init__(self) -> None:
        from sluice.pages.feed import Feed, Feeds, Slots

        self.status: Feed[Status] = Feed(_read_status)
        self.details: Feeds[Detail] = Feeds(_read_detail)
        self.quality: Feed[dict[str, list[Trend]]] = Feed(_reader("trends", "of_all"))
        self.runs: Feeds[dict[str, list[Trend]]] = Feeds(_reader("trends", "of_run"))
        self.histories: Feeds[History] = Feeds(_reader("history", "read"))
        self.groups: Feeds[History] = Feeds(_reader("history", "read_groups"))
        self.reports: Feeds[str] = Feeds(_reader("report", "read"))
        # It is while the catalog hangs that somebody looks at them.
        self.failed: Feeds[History] = Feeds(_read_failed, slots=Slots())


@cache
def feeds() -> _Feeds:
    """The readings of this process."""
    return _Feeds()


def _readable(user: GetUserDep) -> set[str]:
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def _may_start(user: GetUserDep) -> Callable[[str], bool]:
    def may(dag: str) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=_details(dag), user=user
        )

    return may


def _details(dag: str) -> DagDetails:
    """What is asked about, as Airflow asks it: where it has teams, a DAG that names none is everybody's."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return DagDetails(id=dag)
    return DagDetails(id=dag, team_name=DagModel.get_team_name(dag))


Readable = Annotated[set[str], Depends(_readable)]
MayStart = Annotated[Callable[[str], bool], Depends(_may_start)]
Hours = Annotated[int, Query(ge=1, le=168, description="How far back, at most a week.")]
Name = Annotated[str | None, Query(max_length=250)]
Search = Annotated[str, Query(max_length=250)]
Moment = Annotated[str, Query(max_length=64, description="ISO 8601 with a time zone; none: now.")]


def soon() -> float:
    """Until when an answer that nobody asks for again waits for what is due, all of its readings together."""
    return time.monotonic() + SOON_S


def status(readable: set[str], until: float | None = None) -> Reading[Status]:
    """What is known of the tables that somebody may read."""
    known = feeds().status.get(wait=FIRST_WAIT_S, until=until)
    mine = known.value.readable(lambda group: f"ingest_{group}" in readable) if known.value else None
    return replace(known, value=mine)


def sees_all(readable: set[str]) -> bool:
    """Whether somebody may read the DAGs of all groups, so that what is counted over all of them may be told."""
    known = feeds().status.get().value
    groups = {t.group for t in known.tables} | {group for group, _ in known.stopped} if known else set()
    return known is not None and all(f"ingest_{group}" in readable for group in groups)


def past(known: Status | None, until: float | None = None) -> Reading[History]:
    """What happened to the tables that somebody may read; a reading of its own for each set of groups."""
    from sluice.pages.feed import Reading

    if known is None:
        return Reading()
    groups = json.dumps(sorted({t.group for t in known.tables}))
    return feeds().groups.of(groups).get(wait=FIRST_WAIT_S, until=until)


def dags(readable: set[str], tables: Sequence[TableStatus]) -> set[str]:
    """The DAGs that act on these tables and that somebody may read."""
    return ({f"ingest_{t.group}" for t in tables} | {*BY_HAND, *MAINTAIN}) & readable


def failed_runs(
    readable: set[str], known: Status | None, of: TableStatus | None = None, until: float | None = None
) -> Reading[History]:
    """The runs that failed of the DAGs that somebody may read; or those that may be about one table."""
    from sluice.pages.feed import Reading

    if known is None:
        return Reading()
    mine = sorted(dags(readable, [of] if of else known.tables))
    return feeds().failed.of(json.dumps([mine, of and of.table])).get(wait=FIRST_WAIT_S, until=until)


def reports(read: Reading[Any]) -> bool:
    """Whether runs leave reports; no before anything was read, as to say more takes imports that nobody waits for."""
    return read.value is not None and bool(_reader("report", "wanted")())


def table(known: Status | None, name: str) -> TableStatus | None:
    """One of the tables that are known."""
    return next((t for t in known.tables if t.table == name), None) if known else None


def value(known: Reading[Any]) -> Any:
    """What was read.

    Raises:
        HTTPException: 503, there is nothing yet.
    """
    if known.value is None:
        raise HTTPException(503, known.error or "It is being read; ask again.", headers={"Retry-After": "2"})
    return known.value


def whole(*known: Reading[History]) -> tuple[History, list[str]]:
    """What several tell together, and why not all is told.

    Raises:
        HTTPException: 503, one of them is being read for the first time, or none could be.
    """
    from sluice.pages import history

    for each in known:
        if each.error is None:
            value(each)
    told = history.together(*(each.value for each in known))
    found = told or value(known[0])
    return found, [*(each.error for each in known if each.error), *found.unread]


def known_status(readable: set[str], until: float | None = None) -> Status:
    """What is known of the tables that somebody may read; 503 where nothing is.

    Where the reading hangs or failed since, or is old, all of it is marked as of when it was read.
    """
    from sluice.pages import known

    told = status(readable, until)
    found: Status = value(told)
    return known.unanswered(found, told.error) if told.error else found


def known_table(known: Status, name: str) -> TableStatus:
    """One table; 404 where there is none that somebody may read."""
    found = table(known, name)
    if found is None:
        raise HTTPException(404, NO_TABLE)
    return found


def ready(detail: Detail | None, table: TableStatus, may_start: Callable[[str], bool]) -> Sequence[Line]:
    """The scorecard of a table; empty until it was read."""
    if detail is None:
        return ()
    readiness = import_module("sluice.status.readiness")
    # Without a login each visitor is an administrator: only this one of Airflow's auth managers can be so.
    anybody = conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False)
    asked = {dag: may_start(dag) for dag in (f"ingest_{table.group}", *BY_HAND)}
    access = readiness.access(table.group, type(get_auth_manager()).__name__, asked, anybody=anybody)
    return [*readiness.standing(detail.readiness, table), access]
