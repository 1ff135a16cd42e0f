"""The routes of the timelines: of all tables, and of one table. Both are read-only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from sluice.status.events import RANGES, find_range
from sluice_web import reading
from sluice_web.answers import DAY_H, answer_no_table, draw_charts, hidden_tables, oldest_time, render_page
from sluice_web.reading import Moment, Readable

if TYPE_CHECKING:
    from datetime import datetime

    from sluice.pages.feed import Reading
    from sluice.pages.history import History
    from sluice.status.events import Event
    from sluice.status.model import Status, TableStatus

router = APIRouter(include_in_schema=False)


class TimelineView(NamedTuple):
    """What a visitor chose: the hours back, the time to show the table at, and the time that ends the list."""

    hours: int
    at: str
    before: str


def _view(hours: int = DAY_H, at: Moment = "", before: Moment = "") -> TimelineView:
    return TimelineView(find_range(hours).hours, at, before)


ChosenView = Annotated[TimelineView, Depends(_view)]


class TimelineReadings(NamedTuple):
    """What a timeline shows: the status, the events of the ledger and tables, and Airflow's failed runs."""

    status: Reading[Status]
    history: Reading[History]
    failed_runs: Reading[History]


def _timeline(
    request: Request, view: TimelineView, readings: TimelineReadings,
    select_events: Callable[[History], Sequence[Event]], **values: Any,
) -> HTMLResponse:  # fmt: skip
    from sluice.pages import history, swimlanes
    from sluice.status import event_lines, timeline
    from sluice.status.redact import redact_events

    status, past, name = readings.status.value, readings.history.value, values["name"]
    chosen = find_range(view.hours)
    merged = history.merge_histories(past, readings.failed_runs.value)
    tables = status.tables if status else ()
    drawn: dict[str, Any] = {"window": None, "lanes": (), "more": 0, "page": None}
    if merged:
        events = redact_events(select_events(merged), hidden_tables(readings.status))
        window = history.select_hours(merged, view.hours, events)
        axis = swimlanes.Axis.of(window.start, window.end, chosen)
        counts = past.counts.cells.get(view.hours) if past else None
        lanes, more = (
            (swimlanes.lanes_by_kind(window.events, counts, axis), 0)
            if name
            else swimlanes.lanes_by_table(window.events, counts, axis, [t.table for t in tables])
        )
        page = event_lines.select_page(event_lines.merge_lines(window.events, name), _time_or_none(view.before))
        drawn = {"window": window, "lanes": lanes, "more": more, "page": page}
    groups = {each: t.group for t in tables for each in (t.table, *(topic.topic for topic in t.topics))}
    return render_page(
        request, "timeline.html", *readings, here="timeline", ranges=RANGES, chosen=chosen, at=view.at,
        ledger=past is not None, missing=merged.unread if merged else (), groups=groups,
        too_many=len(tables) > timeline.MAX_TABLES_WITH_FILES and not name,
        charts=draw_charts(request, name, past, chosen, values["target"]) if name else None,
        read_at=oldest_time((readings.history, readings.failed_runs)),  # of the status it shows nothing
        **drawn, **values,
    )  # fmt: skip


def _time_or_none(text: str) -> datetime | None:
    """The time that a link of the page names; a changed one is ignored."""
    from sluice.backfill.ranges import parse_time
    from sluice.errors import SluiceError

    try:
        return parse_time(text, "before")
    except SluiceError:
        return None


@router.get("/timeline", response_class=HTMLResponse)
def timeline_page(request: Request, readable: Readable, view: ChosenView) -> HTMLResponse:
    """The events of all tables, on one axis."""
    known = reading.read_status(readable)
    readings = TimelineReadings(
        known,
        reading.read_history(known.value, hours=view.hours),
        reading.read_failed_runs(readable, known.value, hours=view.hours),
    )
    tables = known.value.tables if known.value else ()
    return _timeline(
        request, view, readings, lambda merged: visible_events(merged, readable, tables), name="", target=None,
        readable=readable,
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
def table_timeline_page(request: Request, readable: Readable, name: str, view: ChosenView) -> HTMLResponse:
    """The events of one table, and the table as readers saw it at a time."""
    from sluice.backfill.ranges import parse_time
    from sluice.errors import SluiceError
    from sluice.pages import history
    from sluice.status import timeline

    known = reading.read_status(readable)
    table = reading.find_table(known.value, name)
    if table is None:
        return answer_no_table(request, known, name)
    past = reading.read_table_history(name, hours=view.hours)
    failed = reading.read_failed_runs(readable, known.value, table, hours=view.hours)
    readings = TimelineReadings(known, past, failed)
    asked = as_of = None
    error = past.value.trouble if past.value else None
    try:
        asked = parse_time(view.at, "at")
        if past.value and past.value.table is not None:
            as_of = timeline.find_table_as_of(past.value.table, asked or past.value.at)
    except SluiceError as raised:
        error = str(raised)
    return _timeline(
        request, view, readings, lambda merged: history.drop_explained_runs(merged.events), name=name, asked=asked,
        as_of=as_of, error=error, target=table.freshness_promised_seconds, readable=readable,
    )  # fmt: skip
