"""The routes of the HTML pages: tables, one table, data quality, timelines, reports. All are read-only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from sluice.dag_ids import BACKFILL, ingest_dag
from sluice.status.events import RANGES, find_range
from sluice_web import changes, ingest_runs, operations, reading
from sluice_web.answers import (
    CALM_S,
    DAY_H,
    FIRST_S,
    RENEWED_S,
    answer_no_table,
    draw_charts,
    hidden_tables,
    render_page,
)
from sluice_web.operations import ViewerDep
from sluice_web.reading import Name, Readable, RunId, Search

REPORT_MISSING = (
    "This run has no report of this table: it published and refused nothing here, has not ended yet, ended before "
    "reports were enabled, or the report is past SLUICE_REPORTS_RETENTION."
)
MAX_QUARANTINES = 5  # tables whose quarantined records the Data quality page expands
MAX_ERROR_GROUPS = 30  # combinations of error and field that a page lists
MAX_GAPS = 20  # newest accepted gaps of a topic
REPORT_WAIT_S = 2.0
router = APIRouter(include_in_schema=False)


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
    change = changes.find_last_end(reading.readable_dags(readable, known.value.tables)) if known.value else None
    if change and known.at and known.at < change:
        known = changes.read_changed_status(readable, change)
    past = reading.read_history(known.value)
    view = tables_overview.View(*chosen, *order)
    overview = tables_overview.make_overview(
        known.value.tables if known.value else (), past.value.activity if past.value else None, view
    )
    rights = viewer.rights()
    return render_page(
        request, "tables.html", known, beside=[past], here="tables", overview=overview, readable=readable,
        operations=lambda table: TableOperations(table, rights),
    )  # fmt: skip


@router.get("/tables/{name}", response_class=HTMLResponse)
def table_page(request: Request, readable: Readable, viewer: ViewerDep, name: str, hours: int = DAY_H) -> HTMLResponse:
    """One table: offsets, batches, expectations, quarantined records, contract versions, snapshots, maintenance."""
    from sluice.pages.table_operations import TableOperations
    from sluice.status import verdicts
    from sluice.status.redact import redact_effect

    known = reading.read_status(readable)
    table = reading.find_table(known.value, name)
    if table is None:
        return answer_no_table(request, known, name)
    chosen, runs = find_range(hours), operations.list_runs(table, readable)
    change = changes.find_last_end([ingest_dag(table.group)], runs)
    known, detail, past = changes.read_changed_table(readable, name, change, chosen.hours)
    table = reading.find_table(known.value, name) or table
    if operations.is_waited_for(runs):
        known = replace(known, busy=True)  # the page looks again soon
    if detail.value:
        effects = [redact_effect(each, hidden_tables(known)) for each in detail.value.effects]
        detail = replace(detail, value=replace(detail.value, effects=effects))
    review = operations.find_waiting_review(runs)
    rights = viewer.rights()
    return render_page(
        request, "table.html", known, detail, past, here="tables", table=table,
        verdicts=list(verdicts.list_verdicts(table)), detail=detail.value, runs=runs, review=review,
        readiness=reading.list_readiness(detail.value, table, rights.start), max_groups=MAX_ERROR_GROUPS,
        max_gaps=MAX_GAPS, reports=reading.has_reports(detail), readable=readable,
        operations=TableOperations(table, rights, review),
        past=past, hours=chosen.hours, ranges=RANGES,
        gone_runs=ingest_runs.find_gone_runs(each.run_id for each in detail.value.batches) if detail.value else (),
        charts=draw_charts(request, name, past.value, chosen, table.freshness_promised_seconds),
    )  # fmt: skip


@router.get("/tables/{name}/contract", response_class=HTMLResponse)
def contract_page(request: Request, readable: Readable, name: str) -> HTMLResponse:
    """What a table promises, and whether it keeps it, for those who do not operate it: there are no buttons."""
    known = reading.read_status(readable)
    table = reading.find_table(known.value, name)
    if table is None:
        return answer_no_table(request, known, name)
    detail = reading.feeds().details.get_feed(name).get(wait=reading.FIRST_WAIT_S)
    checks = reading.list_checks(detail.value, table)
    return render_page(
        request, "contract.html", known, detail, here="tables", table=table, detail=detail.value,
        checks={each.subject: each for each in checks},
    )  # fmt: skip


@router.get("/tables/{name}/record", response_class=HTMLResponse)
def record_page(request: Request, readable: Readable, name: str, at: Search = "", topic: Search = "") -> HTMLResponse:
    """What became of one record: its batch, its row or its error."""
    from sluice.status import text
    from sluice.status.redact import hide_names

    known = reading.read_status(readable)
    table = reading.find_table(known.value, name)
    if table is None:
        return answer_no_table(request, known, name)
    found = reading.read_record(name, at, topic) if at else None
    trace = found.value if found else None
    facts = (
        [(label, hide_names(words, hidden_tables(known))) for label, words in text.record_trace_facts(trace)]
        if trace
        else []
    )
    return render_page(
        request, "record.html", known, *([found] if found else []), here="tables", table=table, at=at, topic=topic,
        heading=text.record_trace_heading(trace) if trace else "", facts=facts,
    )  # fmt: skip


@router.get("/tables/{name}/report", response_class=HTMLResponse)
def report_page(request: Request, readable: Readable, name: str, run_id: RunId = None) -> HTMLResponse:
    """The report of a run and a table."""
    from sluice.pages import render
    from sluice.status.redact import hide_names

    known = reading.read_status(readable)
    if reading.find_table(known.value, name) is None:
        return answer_no_table(request, known, name)
    found = reading.feeds().reports.get_feed(json.dumps([name, run_id or ""])).get(wait=REPORT_WAIT_S)
    if found.value:
        return HTMLResponse(hide_names(found.value, hidden_tables(known)), headers=render.REPORT_HEADERS)
    message, code = (REPORT_MISSING, 404) if found.value is not None else (found.error or "Reading the report…", 200)
    page = render_page(
        request, "message.html", known, code=code, here="tables", title=f"Report of {name}", message=message
    )
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
    from sluice.pages.quality import overview as quality_overview
    from sluice.pages.table_operations import TableOperations

    known = reading.read_status(readable)
    dags = readable if run.dag_id is None else readable & {run.dag_id}
    if run.run_id and not reading.is_readable_run(run.run_id, dags):
        return render_page(
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
    return render_page(
        request, "quality.html", known, found, here="quality", shown=shown, collapsed=collapsed, total=len(every),
        beside=list(details.values()), details={name: each.value for name, each in details.items()},
        max_groups=MAX_ERROR_GROUPS, run_id=run.run_id, q=chosen.q, state=chosen.state,
        operations={t.table: TableOperations(t, rights) for t in tables if t.table in details},
        states=[(word, word, count) for word, count in sorted(Counter(t.state for t in every).items())],
        reports=bool(run.run_id) and not run.slices and reading.has_reports(found),
        run_filter={name: value for name, value in run._asdict().items() if value},
    )  # fmt: skip


@router.get("/static/{name}")
def static(name: str) -> Response:
    """The stylesheet and the script of the pages."""
    from sluice.pages import render

    found = render.read_static(name)
    if found is None:
        raise HTTPException(404)
    return Response(found[0], media_type=found[1], headers={**render.SECURITY_HEADERS, "Cache-Control": "max-age=300"})
