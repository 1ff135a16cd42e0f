"""The routes of the HTML pages: tables, one table, data quality, timelines, reports. All are read-only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from sluice.dag_ids import BACKFILL, ingest_dag
from sluice_web import operations, reading
from sluice_web.operations import ViewerDep
from sluice_web.reading import Moment, Name, Readable, RunId, Search

if TYPE_CHECKING:
    from datetime import datetime

    from sluice.pages.charts import Charts
    from sluice.pages.feed import Reading
    from sluice.pages.history import History, TimelineWindow
    from sluice.status.events import Event
    from sluice.status.model import Status, TableStatus

PREFIX = "/sluice"
REPORT_MISSING = (
    "This run has no report of this table: it published and refused nothing here, has not ended yet, ended before "
    "reports were enabled, or the report is past SLUICE_REPORTS_RETENTION."
)
READ_FAILED = "The status could not be read. The page retries automatically."
EVENTS_SHOWN = 200
DAY_H = 24
MAX_QUARANTINES = 5  # tables whose quarantined records the Data quality page expands
MAX_ERROR_GROUPS = 30  # combinations of error and field that a page lists
MAX_GAPS = 20  # newest accepted gaps of a topic
REPORT_WAIT_S = 2.0
# Seconds until a page refreshes: while it has nothing to show, while its data is being read again, and else.
FIRST_S, RENEWED_S, CALM_S = 2, 5, 30

router = APIRouter(include_in_schema=False)


def _page(
    request: Request, template: str, known: Reading[Status], *more: Reading[Any], beside: Sequence[Reading[Any]] = (),
    code: int = 200, **values: Any,
) -> HTMLResponse:  # fmt: skip
    """Render a page with the errors of its readings, and the time until it refreshes.

    Args:
        known: the status.
        more: readings that the page cannot do without.
        beside: readings of optional parts.
    """
    from sluice.pages import render

    readings, every = (known, *more), (known, *more, *beside)
    unfinished = any(_unfinished(each) for each in readings)
    refresh = FIRST_S if any(map(_unfinished, every)) else RENEWED_S if any(each.busy for each in every) else CALM_S
    errors = list(dict.fromkeys(each.error for each in every if each.error))
    errors += [str(e) for e in (known.value.errors if known.value else ())]
    unread = any(each.value is None for each in readings)
    values = {"read_at": _oldest(every), **values, "reading": unfinished, "unread": unread, "errors": errors}
    base = request.scope.get("root_path", "").rstrip("/")
    airflow = base.removesuffix(PREFIX)
    text = render.render_page(template, base=base, airflow=airflow, refresh=refresh, **values)
    return HTMLResponse(text, code, headers=render.SECURITY_HEADERS)


def _oldest(readings: Sequence[Reading[Any]]) -> datetime | None:
    """The time of the oldest value: what a page shows is of then or newer."""
    times = [getattr(each.value, "at", each.at) for each in readings if each.value is not None]
    return min((at for at in times if at), default=None)


def _unfinished(read: Reading[Any]) -> bool:
    return read.value is None and read.error is None


def _hidden_tables(known: Reading[Status]) -> frozenset[str] | None:
    return known.value.hidden_tables if known.value else frozenset()


def _no_table(request: Request, known: Reading[Status], name: str) -> HTMLResponse:
    message = reading.NO_TABLE if known.value else READ_FAILED if known.error else "Reading Kafka and the catalog…"
    code = 200 if known.value is None else 404
    return _page(request, "message.html", known, code=code, here="tables", title=name, message=message)


class TableFilter(NamedTuple):
    """The search and the state that a visitor chose; empty: all."""

    q: str
    state: str


def _table_filter(q: Search = "", state: Search = "") -> TableFilter:
    return TableFilter(q, state)


ChosenTables = Annotated[TableFilter, Depends(_table_filter)]


class TableOrder(NamedTuple):
    """The DAG, card, order and groups that a visitor chose on the page of all tables."""

    dag_id: str
    show: str
    sort: str
    order: str
    by: str


def _table_order(
    dag_id: Search = "", show: Search = "", sort: Search = "", order: Search = "", by: Search = ""
) -> TableOrder:
    return TableOrder(dag_id, show, sort, order, by)


@router.get("/tables", response_class=HTMLResponse)
def tables_page(
    request: Request, readable: Readable, viewer: ViewerDep, chosen: ChosenTables,
    order: Annotated[TableOrder, Depends(_table_order)],
) -> HTMLResponse:  # fmt: skip
    """One row per table; tables that need attention come first."""
    from sluice.pages import tables_overview
    from sluice.pages.table_operations import TableOperations

    known = reading.read_status(readable)
    past = reading.read_history(known.value)
    view = tables_overview.View(*chosen, *order)
    overview = tables_overview.make_overview(
        known.value.tables if known.value else (), past.value.activity if past.value else None, view
    )
    rights = viewer.rights()
    return _page(
        request, "tables.html", known, beside=[past], here="tables", overview=overview,
        operations=lambda table: TableOperations(table, rights),
    )  # fmt: skip


@router.get("/tables/{name}", response_class=HTMLResponse)
def table_page(request: Request, readable: Readable, viewer: ViewerDep, name: str) -> HTMLResponse:
    """One table: offsets, batches, expectations, quarantined records, contract versions, snapshots, maintenance."""
    from sluice.pages import history
    from sluice.pages.table_operations import TableOperations
    from sluice.status import verdicts
    from sluice.status.redact import redact_effect

    known = reading.read_status(readable)
    table = reading.find_table(known.value, name)
    if table is None:
        return _no_table(request, known, name)
    detail = reading.feeds().details.get_feed(name).get(wait=reading.FIRST_WAIT_S)
    if detail.value:
        effects = [redact_effect(each, _hidden_tables(known)) for each in detail.value.effects]
        detail = replace(detail, value=replace(detail.value, effects=effects))
    past = reading.feeds().histories.get_feed(name).get(wait=reading.FIRST_WAIT_S)
    runs = operations.list_runs(table, readable)
    review = operations.find_waiting_review(runs)
    window = history.select_hours(past.value, DAY_H, past.value.events) if past.value else None
    rights = viewer.rights()
    return _page(
        request, "table.html", known, detail, past, here="tables", table=table,
        verdicts=list(verdicts.list_verdicts(table)), detail=detail.value, runs=runs, review=review,
        readiness=reading.list_readiness(detail.value, table, rights.start), max_groups=MAX_ERROR_GROUPS,
        max_gaps=MAX_GAPS, reports=reading.has_reports(detail), readable=readable,
        operations=TableOperations(table, rights, review),
        window=window, charts=_charts(request, name, window, table.freshness_promised_seconds, DAY_H),
    )  # fmt: skip


@router.get("/tables/{name}/report", response_class=HTMLResponse)
def report_page(request: Request, readable: Readable, name: str, run_id: RunId = None) -> HTMLResponse:
    """The report of a run and a table."""
    from sluice.pages import render
    from sluice.status.redact import hide_names

    known = reading.read_status(readable)
    if reading.find_table(known.value, name) is None:
        return _no_table(request, known, name)
    found = reading.feeds().reports.get_feed(json.dumps([name, run_id or ""])).get(wait=REPORT_WAIT_S)
    if found.value:
        return HTMLResponse(hide_names(found.value, _hidden_tables(known)), headers=render.REPORT_HEADERS)
    message, code = (REPORT_MISSING, 404) if found.value is not None else (found.error or "Reading the report…", 200)
    page = _page(request, "message.html", known, code=code, here="tables", title=f"Report of {name}", message=message)
    refresh = CALM_S if found.value is not None else RENEWED_S if found.error else FIRST_S
    page.headers["Refresh"] = str(refresh)  # by the browser: a report has no script that refreshes
    return page


class RunFilter(NamedTuple):
    """The run or task that a page of Airflow links from; all None: no filter."""

    dag_id: str | None
    run_id: str | None
    task_id: str | None

    @property
    def slices(self) -> bool:
        """Whether it is a run of a backfill, whose results are those of slices."""
        return self.dag_id == BACKFILL

    def includes(self, table: str, groups: Mapping[str, str]) -> bool:
        """Whether a table belongs to the DAG, and to the task if that is named after a table."""
        of_dag = self.dag_id in (None, BACKFILL, ingest_dag(groups[table]))
        return of_dag and (self.task_id not in groups or self.task_id == table)


def _run_filter(dag_id: Name = None, run_id: RunId = None, task_id: Name = None) -> RunFilter:
    return RunFilter(dag_id, run_id, task_id)


@router.get("/quality", response_class=HTMLResponse)
def quality_page(
    request: Request, readable: Readable, viewer: ViewerDep, run: Annotated[RunFilter, Depends(_run_filter)],
    chosen: ChosenTables,
) -> HTMLResponse:  # fmt: skip
    """Expectations with their last results and quarantined records, of all tables or of one run."""
    from sluice.pages import quality_overview
    from sluice.pages.table_operations import TableOperations

    known = reading.read_status(readable)
    dags = readable if run.dag_id is None else readable & {run.dag_id}
    if run.run_id and not reading.is_readable_run(run.run_id, dags):
        return _page(
            request, "message.html", known, code=404, here="quality", title="Data quality", message=reading.NO_RUN
        )
    feed = reading.feeds().runs.get_feed(run.run_id) if run.run_id else reading.feeds().quality
    found = feed.get(wait=reading.FIRST_WAIT_S)
    tables = known.value.tables if known.value else ()
    groups = {t.table: t.group for t in tables}
    results = found.value or {}
    with_quarantine = not run.run_id or (run.dag_id or "").startswith(ingest_dag(""))
    quarantined = {t.table: t.quarantined for t in tables if t.quarantined and with_quarantine}
    names = [n for n in dict.fromkeys((*results, *quarantined)) if n in groups and run.includes(n, groups)]
    every = quality_overview.summarize_tables(results, names, quarantined, slices=run.slices)
    found_tables = [t for t in every if chosen.state in ("", t.state) and chosen.q.casefold() in t.table.casefold()]
    shown, collapsed = quality_overview.split_expanded(found_tables, results, chosen.q, slices=run.slices)
    feeds = reading.feeds().details
    details = {
        t.table: feeds.get_feed(t.table).get(wait=0.0) for t in [t for t in shown if t.quarantined][:MAX_QUARANTINES]
    }
    rights = viewer.rights()
    return _page(
        request, "quality.html", known, found, here="quality", shown=shown, collapsed=collapsed, total=len(every),
        beside=list(details.values()), details={name: each.value for name, each in details.items()},
        max_groups=MAX_ERROR_GROUPS, run_id=run.run_id, q=chosen.q, state=chosen.state,
        operations={t.table: TableOperations(t, rights) for t in tables if t.table in details},
        states=[(word, word, count) for word, count in sorted(Counter(t.state for t in every).items())],
        reports=bool(run.run_id) and not run.slices and reading.has_reports(found),
        run_filter={name: value for name, value in run._asdict().items() if value},
    )  # fmt: skip


def _charts(
    request: Request, name: str, window: TimelineWindow | None, target: float | None, hours: int
) -> Charts | None:
    """The charts of a table's batches; None without a batch."""
    from sluice.pages import charts

    if not window or not window.batches:
        return None
    base = request.scope.get("root_path", "").rstrip("/")

    def link(batch: Event) -> str:
        at = quote(batch.at.isoformat(), safe="")
        return f"{base}/tables/{quote(name or batch.table or '', safe='')}/timeline?hours={hours}&at={at}#then"

    return charts.make_charts(window.batches, (window.start, window.end), target, link)


class TimelineReadings(NamedTuple):
    """What a timeline shows: the status, the events of the ledger and tables, and Airflow's failed runs."""

    status: Reading[Status]
    history: Reading[History]
    failed_runs: Reading[History]


def _timeline(
    request: Request, readable: set[str], readings: TimelineReadings,
    select_events: Callable[[History], Sequence[Event]], **values: Any,
) -> HTMLResponse:  # fmt: skip
    from sluice.pages import history
    from sluice.status import timeline
    from sluice.status.redact import redact_events

    status = readings.status.value
    hours = values["hours"] if values["hours"] in history.HOUR_CHOICES else history.HOUR_CHOICES[-2]
    merged = history.merge_histories(readings.history.value, readings.failed_runs.value)
    hidden = _hidden_tables(readings.status)
    window = history.select_hours(merged, hours, redact_events(select_events(merged), hidden)) if merged else None
    tables = status.tables if status else ()
    groups = {name: t.group for t in tables for name in (t.table, *(topic.topic for topic in t.topics))}
    values["charts"] = _charts(request, values["name"], window, values["target"], hours)
    values |= {"hours": hours, "window": window, "groups": groups, "readable": readable, "shown": EVENTS_SHOWN}
    return _page(
        request, "timeline.html", *readings, here="timeline", choices=history.HOUR_CHOICES,
        ledger=readings.history.value is not None, missing=merged.unread if merged else (),
        too_many=len(tables) > timeline.MAX_TABLES_WITH_FILES and not values["name"],
        read_at=_oldest((readings.history, readings.failed_runs)),  # of the status it shows nothing
        **values,
    )  # fmt: skip


@router.get("/timeline", response_class=HTMLResponse)
def timeline_page(request: Request, readable: Readable, hours: int = 24) -> HTMLResponse:
    """The events of all tables, on one axis."""
    known = reading.read_status(readable)
    readings = TimelineReadings(
        known, reading.read_history(known.value), reading.read_failed_runs(readable, known.value)
    )
    tables = known.value.tables if known.value else ()
    return _timeline(
        request, readable, readings, lambda merged: visible_events(merged, readable, tables), hours=hours, name="",
        target=None,
    )  # fmt: skip


def visible_events(past: History, readable: set[str], tables: Sequence[TableStatus]) -> list[Event]:
    """Select the events of these tables and of their topics, and the failed runs of readable DAGs."""
    names, topics = {t.table for t in tables}, {topic.topic for t in tables for topic in t.topics}
    dags = reading.readable_dags(readable, tables)
    return [
        e for e in past.events
        if (e.table in names if e.table else e.topic in topics if e.topic else e.dag in dags)
    ]  # fmt: skip


@router.get("/tables/{name}/timeline", response_class=HTMLResponse)
def table_timeline_page(
    request: Request, readable: Readable, name: str, hours: int = 24, at: Moment = ""
) -> HTMLResponse:
    """The events of one table, and the table as readers saw it at a time."""
    from sluice.backfill.ranges import parse_time
    from sluice.errors import SluiceError
    from sluice.pages import history
    from sluice.status import timeline

    known = reading.read_status(readable)
    table = reading.find_table(known.value, name)
    if table is None:
        return _no_table(request, known, name)
    past = reading.feeds().histories.get_feed(name).get(wait=reading.FIRST_WAIT_S)
    readings = TimelineReadings(known, past, reading.read_failed_runs(readable, known.value, table))
    asked = as_of = None
    error = past.value.trouble if past.value else None
    try:
        asked = parse_time(at, "at")
        if past.value and past.value.table is not None:
            as_of = timeline.find_table_as_of(past.value.table, asked or past.value.at)
    except SluiceError as raised:
        error = str(raised)
    return _timeline(
        request, readable, readings, lambda merged: history.drop_explained_runs(merged.events), hours=hours,
        name=name, at=at, asked=asked, as_of=as_of, error=error, target=table.freshness_promised_seconds,
    )  # fmt: skip


@router.get("/static/{name}")
def static(name: str) -> Response:
    """The stylesheet and the script of the pages."""
    from sluice.pages import render

    found = render.read_static(name)
    if found is None:
        raise HTTPException(404)
    return Response(found[0], media_type=found[1], headers={**render.SECURITY_HEADERS, "Cache-Control": "max-age=300"})
