"""The pages: Tables, a table, data quality, timelines. None of them changes anything."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from sluice_web import reading
from sluice_web.reading import MayStart, Moment, Name, Readable, Search

if TYPE_CHECKING:
    from sluice.pages.feed import Reading
    from sluice.pages.history import History
    from sluice.status.events import Event
    from sluice.status.model import Status, TableStatus

PREFIX = "/sluice"
NO_REPORT = (
    "There is none of this run: it neither published nor refused anything here, or it has not ended yet, or it ended "
    "before reports were kept, or the report is past SLUICE_REPORTS_RETENTION."
)
UNREAD = "It could not be read; the page looks again by itself."
EVENTS_SHOWN = 200
DAY_H = 24
REJECTED_OF = 5  # tables whose rejected records the page of data quality shows; of more it names them
KINDS = 30  # of error and field, the most frequent, that a table's page shows one by one
GAPS = 20  # given up of a topic, the newest
REPORT_WAIT_S = 2.0
# When a page looks again: while it has nothing to show, while what it shows is being read anew, and else.
FIRST_S, RENEWED_S, CALM_S = 2, 5, 30

router = APIRouter(include_in_schema=False)


def _page(
    request: Request, template: str, known: Reading[Status], *more: Reading[Any], beside: Sequence[Reading[Any]] = (),
    code: int = 200, **values: Any,
) -> HTMLResponse:  # fmt: skip
    """A page of the status and what else was read: it says what did not answer, and looks again soon if it must.

    Args:
        beside: what parts of it were read; the page is one without them as well.
    """
    from sluice.pages import render

    readings, every = (known, *more), (known, *more, *beside)
    unfinished = any(_unfinished(each) for each in readings)
    again = FIRST_S if any(map(_unfinished, every)) else RENEWED_S if any(each.busy for each in every) else CALM_S
    troubles = list(dict.fromkeys(each.error for each in every if each.error))
    troubles += [str(e) for e in (known.value.errors if known.value else ())]
    unread = any(each.value is None for each in readings)
    values |= {
        "reading": unfinished,
        "unread": unread,
        "troubles": troubles,
        "read_at": known.value.at if known.value else None,
    }
    base = request.scope.get("root_path", "").rstrip("/")
    airflow = base.removesuffix(PREFIX)
    text = render.page(template, base=base, airflow=airflow, again=again, **values)
    return HTMLResponse(text, code, headers=render.SECURITY)


def _unfinished(read: Reading[Any]) -> bool:
    return read.value is None and read.error is None


def _unseen(known: Reading[Status]) -> frozenset[str] | None:
    return known.value.unseen if known.value else frozenset()


def _no_table(request: Request, known: Reading[Status], name: str) -> HTMLResponse:
    words = reading.NO_TABLE if known.value else UNREAD if known.error else "Reading Kafka and the catalog…"
    code = 200 if known.value is None else 404
    return _page(request, "message.html", known, code=code, here="tables", title=name, words=words)


@router.get("/tables", response_class=HTMLResponse)
def tables_page(request: Request, readable: Readable, q: Search = "", state: str = "") -> HTMLResponse:
    """One row per table, those that need a person first."""
    from sluice.status import verdicts

    known = reading.status(readable)
    mine = sorted(known.value.tables, key=verdicts.sort_key) if known.value else []
    judged = [(table, verdicts.of_table(table)) for table in mine]
    overall = verdicts.Overall.of(judged)
    wanted = q.casefold()
    rows = [
        (table, verdict)
        for table, verdict in judged
        if (not state or verdict.word == state)
        and any(wanted in text.casefold() for text in (table.table, table.owner, *(t.topic for t in table.topics)))
    ]
    return _page(
        request, "tables.html", known, here="tables", rows=rows, total=len(judged), q=q, state=state,
        overall=overall, words=[(word, n) for word, _, n in overall.states],
    )  # fmt: skip


@router.get("/tables/{name}", response_class=HTMLResponse)
def table_page(request: Request, readable: Readable, may_start: MayStart, name: str) -> HTMLResponse:
    """One table: offsets, a day of batches, expectations, rejected records, versions, snapshots, maintenance."""
    from sluice.pages import history
    from sluice.status import verdicts
    from sluice.status.redact import of_effect

    known = reading.status(readable)
    table = reading.table(known.value, name)
    if table is None:
        return _no_table(request, known, name)
    detail = reading.feeds().details.of(name).get(wait=reading.FIRST_WAIT_S)
    if detail.value:
        effects = [of_effect(each, _unseen(known)) for each in detail.value.effects]
        detail = replace(detail, value=replace(detail.value, effects=effects))
    past = reading.feeds().histories.of(name).get(wait=reading.FIRST_WAIT_S)
    return _page(
        request, "table.html", known, detail, past, here="tables", table=table, verdicts=list(verdicts.said(table)),
        detail=detail.value, readiness=reading.ready(detail.value, table, may_start), kinds=KINDS, gaps=GAPS,
        reports=reading.reports(detail), readable=readable,
        window=history.window(past.value, DAY_H, past.value.events) if past.value else None,
    )  # fmt: skip


@router.get("/tables/{name}/report", response_class=HTMLResponse)
def report_page(request: Request, readable: Readable, name: str, run_id: Name = None) -> HTMLResponse:
    """The report that a run left of a table, as it stands in the warehouse."""
    from sluice.pages import render
    from sluice.status.redact import without

    known = reading.status(readable)
    if reading.table(known.value, name) is None:
        return _no_table(request, known, name)
    found = reading.feeds().reports.of(json.dumps([name, run_id or ""])).get(wait=REPORT_WAIT_S)
    if found.value:
        return HTMLResponse(without(found.value, _unseen(known)), headers=render.REPORT)
    words, code = (NO_REPORT, 404) if found.value is not None else (found.error or "Reading the report…", 200)
    page = _page(request, "message.html", known, code=code, here="tables", title=f"Report of {name}", words=words)
    again = CALM_S if found.value is not None else RENEWED_S if found.error else FIRST_S
    page.headers["Refresh"] = str(again)  # by the browser itself: a report runs no script that would look for it
    return page


@router.get("/quality", response_class=HTMLResponse)
def quality_page(
    request: Request, readable: Readable, dag_id: Name = None, run_id: Name = None, task_id: Name = None,
    q: Search = "", state: str = "",
) -> HTMLResponse:  # fmt: skip
    """Every expectation of every table with its last results; of one run, or backfill, where it is named.

    Beside them what is in quarantine now, but for a backfill. The task that stands for a table has its name, and shows
    that table alone.
    """
    from sluice.pages import judged

    known = reading.status(readable)
    feed = reading.feeds().runs.of(run_id) if run_id else reading.feeds().quality
    found = feed.get(wait=reading.FIRST_WAIT_S)
    tables = known.value.tables if known.value else ()
    groups = {t.table: t.group for t in tables}
    slices, results = dag_id == "backfill", found.value or {}
    whole = not run_id or (dag_id or "").startswith("ingest_")
    apart = {t.table: t.quarantined for t in tables if t.quarantined and whole}
    names = [
        name for name in dict.fromkeys((*results, *apart))
        if name in groups and dag_id in (None, "backfill", f"ingest_{groups[name]}")
        and (task_id not in groups or task_id == name)
    ]  # fmt: skip
    every = judged.of_all(results, names, apart, slices=slices)
    chosen = [t for t in every if state in ("", t.state) and q.casefold() in t.table.casefold()]
    shown, named = judged.opened(chosen, results, q, slices=slices)
    details = reading.feeds().details
    rejected = {t.table: details.of(t.table).get(wait=0.0) for t in [t for t in shown if t.quarantined][:REJECTED_OF]}
    return _page(
        request, "quality.html", known, found, here="quality", shown=shown, named=named, total=len(every), q=q,
        beside=list(rejected.values()), rejected={name: each.value for name, each in rejected.items()}, kinds=KINDS,
        blocked={t.table for t in tables if any(each.state == "blocked" for each in t.refusals)},
        state=state, words=sorted(Counter(t.state for t in every).items()), run_id=run_id,
        reports=bool(run_id) and not slices and reading.reports(found),
        of={k: v for k, v in (("dag_id", dag_id), ("run_id", run_id), ("task_id", task_id)) if v},
    )  # fmt: skip


def _timeline(
    request: Request, readable: set[str], known: Reading[Status], past: Reading[History], failed: Reading[History],
    mine: Callable[[History], Sequence[Event]], hours: int, **values: Any,
) -> HTMLResponse:  # fmt: skip
    from sluice.pages import history
    from sluice.status import timeline
    from sluice.status.redact import of_events

    hours = hours if hours in history.HOURS else history.HOURS[-2]
    whole = history.together(past.value, failed.value)
    window = history.window(whole, hours, of_events(mine(whole), _unseen(known))) if whole else None
    tables = known.value.tables if known.value else ()
    groups = {name: t.group for t in tables for name in (t.table, *(topic.topic for topic in t.topics))}
    return _page(
        request, "timeline.html", known, past, failed, here="timeline", window=window, hours=hours,
        choices=history.HOURS, ledger=past.value is not None, missing=whole.unread if whole else (),
        shown=EVENTS_SHOWN, groups=groups, readable=readable,
        too_many=len(tables) > timeline.FILES_OF and not values["name"], **values,
    )  # fmt: skip


@router.get("/timeline", response_class=HTMLResponse)
def timeline_page(request: Request, readable: Readable, hours: int = 24) -> HTMLResponse:
    """What happened to all tables, on one axis."""
    known = reading.status(readable)
    past, failed = reading.past(known.value), reading.failed_runs(readable, known.value)
    tables = known.value.tables if known.value else ()
    return _timeline(
        request, readable, known, past, failed, lambda whole: visible(whole, readable, tables), hours, name="",
        promised=None,
    )  # fmt: skip


def visible(past: History, readable: set[str], mine: Sequence[TableStatus]) -> list[Event]:
    """Those events of all tables that are about these, and those runs that failed of DAGs that act on them."""
    names, topics = {t.table for t in mine}, {topic.topic for t in mine for topic in t.topics}
    dags = reading.dags(readable, mine)
    return [
        e for e in past.events
        if (e.table in names if e.table else e.topic in topics if e.topic else e.dag in dags)
    ]  # fmt: skip


@router.get("/tables/{name}/timeline", response_class=HTMLResponse)
def table_timeline_page(
    request: Request, readable: Readable, name: str, hours: int = 24, at: Moment = ""
) -> HTMLResponse:
    """What happened to one table, and which offsets it held at a moment."""
    from sluice.backfill.ranges import moment
    from sluice.errors import SluiceError
    from sluice.pages import history
    from sluice.status import timeline

    known = reading.status(readable)
    table = reading.table(known.value, name)
    if table is None:
        return _no_table(request, known, name)
    past = reading.feeds().histories.of(name).get(wait=reading.FIRST_WAIT_S)
    failed = reading.failed_runs(readable, known.value, table)
    asked = standing = None
    trouble = past.value.trouble if past.value else None
    try:
        asked = moment(at, "The moment")
        if past.value and past.value.table is not None:
            standing = timeline.standing(past.value.table, asked or past.value.at)
    except SluiceError as error:
        trouble = str(error)
    return _timeline(
        request, readable, known, past, failed, lambda whole: history.untold(whole.events), hours, name=name, at=at,
        asked=asked, standing=standing, trouble=trouble, promised=table.freshness_promised_seconds,
    )  # fmt: skip


@router.get("/static/{name}")
def static(name: str) -> Response:
    """The pages' own stylesheet and script."""
    from sluice.pages import render

    found = render.static(name)
    if found is None:
        raise HTTPException(404)
    return Response(found[0], media_type=found[1], headers={**render.SECURITY, "Cache-Control": "max-age=300"})
