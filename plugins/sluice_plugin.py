"""Sluice's pages in Airflow: Tables and Data quality in the navigation, what a run judged as a tab beside it.

Every route asks for Airflow's own login; a table is shown to those who may read the DAG of its group. Nothing here
changes anything. The API server does not wait for Kafka or the catalog: they are read in threads of their own.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from sluice import connections

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluice.pages.detail import Detail, Trend
    from sluice.pages.feed import Reading
    from sluice.pages.history import History
    from sluice.readiness import Line
    from sluice.status_model import Status, TableStatus
    from sluice.timeline import Event

PREFIX = "/sluice"
FIRST_WAIT_S = 0.2  # the very first visitor after a start is not kept longer
UNREAD = "It could not be read; the page looks again by itself."
NO_TABLE = "There is no such table, or you may not read its DAG."
EVENTS_SHOWN = 200
DAY_H = 24
KINDS = 30  # of error and field, the most frequent, that a table's page shows one by one
# When a page looks again: while it has nothing to show, while what it shows is being read anew, and else.
FIRST_S, RENEWED_S, CALM_S = 2, 5, 30


def _read_status() -> Status:
    from sluice import contracts, status

    if registry := _connection(connections.REGISTRY):
        os.environ["SLUICE_REGISTRY_CONFIG"] = json.dumps(connections.registry_settings(registry))
    return status.look(contracts.load(strict=False), kafka=_kafka())


def _read_detail(name: str) -> Detail:
    from sluice.pages import detail

    return detail.read(name, _kafka())


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
        from sluice.pages.feed import Feed, Feeds

        self.status: Feed[Status] = Feed(_read_status)
        self.details: Feeds[Detail] = Feeds(_read_detail)
        self.quality: Feed[dict[str, list[Trend]]] = Feed(_reader("detail", "trends_of_all"))
        self.runs: Feeds[dict[str, list[Trend]]] = Feeds(_reader("detail", "trends_of_run"))
        self.histories: Feeds[History] = Feeds(_reader("history", "read"))
        self.history: Feed[History] = Feed(_reader("history", "read"))


@cache
def feeds() -> _Feeds:
    """The readings of this process."""
    return _Feeds()


app = FastAPI(
    title="Sluice",
    description="Where every table stands: the facts behind the pages.",
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)


def _readable(user: GetUserDep) -> set[str]:
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


Readable = Annotated[set[str], Depends(_readable)]
Hours = Annotated[int, Query(ge=1, le=168, description="How far back, at most a week.")]
Name = Annotated[str | None, Query(max_length=250)]
Moment = Annotated[str, Query(max_length=64, description="ISO 8601 with a time zone; none: now.")]


def _status(readable: set[str]) -> Reading[Status]:
    """What is known of the tables that somebody may read."""
    known = feeds().status.get(wait=FIRST_WAIT_S)
    mine = known.value.readable(lambda group: f"ingest_{group}" in readable) if known.value else None
    return replace(known, value=mine)


def _page(
    request: Request, template: str, known: Reading[Status], *more: Reading[Any], code: int = 200, **values: Any
) -> HTMLResponse:
    """A page of the status and what else was read: it says what did not answer, and looks again soon if it must."""
    from sluice.pages import render

    readings = (known, *more)
    reading = any(each.value is None and each.error is None for each in readings)
    again = FIRST_S if reading else RENEWED_S if any(each.busy for each in readings) else CALM_S
    troubles = [each.error for each in readings if each.error]
    troubles += [str(e) for e in (known.value.errors if known.value else ())]
    unread = any(each.value is None for each in readings)
    values |= {
        "reading": reading,
        "unread": unread,
        "troubles": troubles,
        "read_at": known.value.at if known.value else None,
    }
    base = request.scope.get("root_path", "").rstrip("/")
    airflow = base.removesuffix(PREFIX)
    text = render.page(template, base=base, airflow=airflow, again=again, **values)
    return HTMLResponse(text, code, headers=render.SECURITY)


def _table(known: Reading[Status], name: str) -> TableStatus | None:
    return next((t for t in known.value.tables if t.table == name), None) if known.value else None


def _no_table(request: Request, known: Reading[Status], name: str) -> HTMLResponse:
    words = NO_TABLE if known.value else UNREAD if known.error else "Reading Kafka and the catalog…"
    code = 200 if known.value is None else 404
    return _page(request, "message.html", known, code=code, here="tables", title=name, words=words)


def _value(known: Reading[Any]) -> Any:
    if known.value is None:
        raise HTTPException(503, known.error or "It is being read; ask again.", headers={"Retry-After": "2"})
    return known.value


def _known_status(readable: set[str]) -> Status:
    known: Status = _value(_status(readable))
    return known


def _known_table(readable: set[str], name: str) -> TableStatus:
    known = _status(readable)
    _value(known)
    found = _table(known, name)
    if found is None:
        raise HTTPException(404, NO_TABLE)
    return found


@app.get("/tables", response_class=HTMLResponse, include_in_schema=False)
def tables_page(
    request: Request, readable: Readable, q: Annotated[str, Query(max_length=200)] = "", state: str = ""
) -> HTMLResponse:
    """One row per table, those that need a person first."""
    from sluice import verdicts

    known = _status(readable)
    mine = sorted(known.value.tables, key=verdicts.sort_key) if known.value else []
    judged = [(table, verdicts.of_table(table)) for table in mine]
    wanted = q.casefold()
    rows = [
        (table, verdict)
        for table, verdict in judged
        if (not state or verdict.word == state)
        and any(wanted in text.casefold() for text in (table.table, table.owner, *(t.topic for t in table.topics)))
    ]
    return _page(
        request, "tables.html", known, here="tables", rows=rows, total=len(judged), q=q, state=state,
        words=sorted(Counter(v.word for _, v in judged).items()),
    )  # fmt: skip


@app.get("/tables/{name}", response_class=HTMLResponse, include_in_schema=False)
def table_page(request: Request, readable: Readable, name: str) -> HTMLResponse:
    """One table: offsets, a day of batches, expectations, rejected records, versions, snapshots, maintenance."""
    from sluice import verdicts
    from sluice.pages import history

    known = _status(readable)
    table = _table(known, name)
    if table is None:
        return _no_table(request, known, name)
    detail = feeds().details.of(name).get(wait=FIRST_WAIT_S)
    past = feeds().histories.of(name).get(wait=FIRST_WAIT_S)
    return _page(
        request, "table.html", known, detail, past, here="tables", table=table, verdict=verdicts.of_table(table),
        detail=detail.value, readiness=_ready(detail.value, table), kinds=KINDS,
        window=history.window(past.value, DAY_H, past.value.events) if past.value else None,
    )  # fmt: skip


def _ready(detail: Detail | None, table: TableStatus) -> Sequence[Line]:
    lines: Sequence[Line] = import_module("sluice.readiness").standing(detail.readiness, table) if detail else ()
    return lines


@app.get("/quality", response_class=HTMLResponse, include_in_schema=False)
def quality_page(
    request: Request, readable: Readable, dag_id: Name = None, run_id: Name = None, task_id: Name = None
) -> HTMLResponse:
    """Every expectation of every table with its last results; of one run, or backfill, where it is named.

    The task that stands for a table has its name, and shows that table alone.
    """
    known = _status(readable)
    found = feeds().runs.of(run_id).get(wait=FIRST_WAIT_S) if run_id else feeds().quality.get(wait=FIRST_WAIT_S)
    groups = {t.table: t.group for t in known.value.tables} if known.value else {}
    rows = []
    for name, trends in sorted((found.value or {}).items()):
        mine = [t.of_slices(dag_id == "backfill") for t in trends]
        mine = [t for t in mine if t.results]
        of_dag = name in groups and dag_id in (None, "backfill", f"ingest_{groups[name]}")
        if mine and of_dag and (task_id not in groups or task_id == name):
            rows.append((name, mine, sum(t.last.success is False for t in mine)))
    rows.sort(key=lambda row: (-row[2], row[0]))
    return _page(request, "quality.html", known, found, here="quality", rows=rows, run_id=run_id)


def _timeline(
    request: Request, known: Reading[Status], past: Reading[History], mine: list[Event], hours: int, **values: Any
) -> HTMLResponse:
    from sluice.pages import history

    hours = hours if hours in history.HOURS else history.HOURS[-2]
    window = history.window(past.value, hours, mine) if past.value else None
    tables = known.value.tables if known.value else ()
    groups = {name: t.group for t in tables for name in (t.table, *(topic.topic for topic in t.topics))}
    return _page(
        request, "timeline.html", known, past, here="timeline", window=window, hours=hours, choices=history.HOURS,
        shown=EVENTS_SHOWN, groups=groups, **values,
    )  # fmt: skip


@app.get("/timeline", response_class=HTMLResponse, include_in_schema=False)
def timeline_page(request: Request, readable: Readable, hours: int = 24) -> HTMLResponse:
    """What happened to all tables, on one axis."""
    known = _status(readable)
    past = feeds().history.get(wait=FIRST_WAIT_S)
    mine = _visible(past.value, known.value.tables) if past.value and known.value else []
    return _timeline(request, known, past, mine, hours, name="", promised=None)


def _visible(past: History, mine: Sequence[TableStatus]) -> list[Event]:
    """Those events of all tables that are about these."""
    names, topics = {t.table for t in mine}, {topic.topic for t in mine for topic in t.topics}
    return [e for e in past.events if (e.table in names if e.table else e.topic in topics)]


@app.get("/tables/{name}/timeline", response_class=HTMLResponse, include_in_schema=False)
def table_timeline_page(
    request: Request, readable: Readable, name: str, hours: int = 24, at: Moment = ""
) -> HTMLResponse:
    """What happened to one table, and which offsets it held at a moment."""
    from sluice import timeline
    from sluice.backfill_ranges import moment
    from sluice.errors import SluiceError

    known = _status(readable)
    table = _table(known, name)
    if table is None:
        return _no_table(request, known, name)
    past = feeds().histories.of(name).get(wait=FIRST_WAIT_S)
    asked = standing = trouble = None
    try:
        asked = moment(at, "The moment")
        if past.value and past.value.table is not None:
            standing = timeline.standing(past.value.table, asked or past.value.at)
    except SluiceError as error:
        trouble = str(error)
    return _timeline(
        request, known, past, list(past.value.events) if past.value else [], hours, name=name, at=at, asked=asked,
        standing=standing, trouble=trouble, promised=table.freshness_promised_seconds,
    )  # fmt: skip


@app.get("/metrics", include_in_schema=False)
def metrics(readable: Readable) -> Response:
    """The tables that the caller may see, for Prometheus; 503 until they were read once."""
    from sluice.pages import metrics, render

    status = _known_status(readable)
    known = feeds().history.get(wait=FIRST_WAIT_S).value
    text = metrics.text(status.tables, known)
    return Response(text, media_type=metrics.CONTENT_TYPE, headers=render.SECURITY)


@app.get("/static/{name}", include_in_schema=False)
def static(name: str) -> Response:
    """The pages' own stylesheet and script."""
    from sluice.pages import render

    found = render.static(name)
    if found is None:
        raise HTTPException(404)
    return Response(found[0], media_type=found[1], headers={**render.SECURITY, "Cache-Control": "max-age=300"})


@app.get("/api/tables", response_class=JSONResponse)
def api_tables(readable: Readable) -> dict[str, Any]:
    """Where every table stands, as `python -m sluice status --json` tells it; 503 until it was read once."""
    from sluice import status_text

    return status_text.as_json(_known_status(readable))


@app.get("/api/tables/{name}", response_class=JSONResponse)
def api_table(readable: Readable, name: str) -> dict[str, Any]:
    """Where one table stands; 404 where there is none of that name that the caller may read."""
    from sluice import status_text

    (told,) = status_text.as_json(replace(_known_status(readable), tables=[_known_table(readable, name)]))["tables"]
    return dict(told)


@app.get("/api/timeline", response_class=JSONResponse)
def api_timeline(readable: Readable, hours: Hours = 24) -> dict[str, Any]:
    """What happened to all tables, newest first; 503 until it was read once."""
    past: History = _value(feeds().history.get(wait=FIRST_WAIT_S))
    return _events(past, _visible(past, _known_status(readable).tables), hours)


@app.get("/api/tables/{name}/timeline", response_class=JSONResponse)
def api_table_timeline(readable: Readable, name: str, hours: Hours = 24, at: Moment = "") -> dict[str, Any]:
    """What happened to one table, newest first, and the snapshot and offsets that readers saw at a moment, or now.

    `standing` is null where the table's own history does not reach back so far, or `trouble` says why it is not known.
    """
    from sluice import status_text, timeline
    from sluice.backfill_ranges import moment
    from sluice.errors import RefusedError, SluiceError

    _known_table(readable, name)
    past: History = _value(feeds().histories.of(name).get(wait=FIRST_WAIT_S))
    told = _events(past, past.events, hours) | {"standing": None, "trouble": None}
    try:
        asked = moment(at, "The moment") or past.at
        standing = timeline.standing(past.table, asked) if past.table is not None else None
        told["standing"] = status_text.plain(asdict(standing)) if standing else None
    except RefusedError as error:
        raise HTTPException(400, str(error)) from error
    except SluiceError as error:
        told["trouble"] = str(error)
    return told


@app.get("/api/tables/{name}/readiness", response_class=JSONResponse)
def api_readiness(readable: Readable, name: str) -> list[dict[str, Any]]:
    """The scorecard of one table: `ready` is null where the facts that would tell are not there yet."""
    table = _known_table(readable, name)
    found: Detail = _value(feeds().details.of(name).get(wait=FIRST_WAIT_S))
    return [asdict(line) for line in _ready(found, table)]


@app.get("/api/quality", response_class=JSONResponse)
def api_quality(readable: Readable) -> dict[str, list[dict[str, Any]]]:
    """Per table every expectation judged within a week, with the results of its last batches, the oldest first."""
    from sluice import status_text

    found: dict[str, list[Trend]] = _value(feeds().quality.get(wait=FIRST_WAIT_S))
    names = {t.table for t in _known_status(readable).tables}
    return {n: status_text.plain([asdict(t) for t in trends]) for n, trends in sorted(found.items()) if n in names}


def _events(past: History, events: Sequence[Event], hours: int) -> dict[str, Any]:
    from sluice import status_text
    from sluice.pages import history

    shown = history.window(past, hours, events)
    told = [asdict(e) for e in shown.events]
    found: dict[str, Any] = status_text.plain({"at": past.at, "start": shown.start, "cut": shown.cut, "events": told})
    return found


@app.get("/api/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """What the API answers, and where it is."""
    from sluice.pages import answers

    return {
        **answers.described(app.openapi()),
        "servers": [{"url": request.scope.get("root_path", "").rstrip("/") or "/"}],
    }


class SluicePlugin(AirflowPlugin):
    """The pages and where Airflow shows them."""

    name = "sluice"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "Sluice"}]  # noqa: RUF012 - Airflow's own shape
    external_views = [  # noqa: RUF012
        {
            "name": "Tables",
            "href": f"{PREFIX}/tables",
            "destination": "nav",
            "url_route": "sluice-tables",
            "nav_top_level": True,
        },
        {"name": "Data quality", "href": f"{PREFIX}/quality", "destination": "nav", "url_route": "sluice-quality"},
        {"name": "Timeline", "href": f"{PREFIX}/timeline", "destination": "nav", "url_route": "sluice-timeline"},
        {
            "name": "Data quality",
            "href": f"{PREFIX}/quality?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "sluice-run-quality",
        },
        {
            "name": "Data quality",
            "href": f"{PREFIX}/quality?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}",
            "destination": "task_instance",
            "url_route": "sluice-task-quality",
        },
    ]
