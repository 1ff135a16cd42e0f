"""What the routes of the HTML pages share: rendering with the errors of the readings, and a table's charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse

from sluice_web import reading

if TYPE_CHECKING:
    from datetime import datetime

    from sluice.pages.charts import Charts
    from sluice.pages.feed import Reading
    from sluice.pages.history import History
    from sluice.status.events import TimeRange
    from sluice.status.model import Status

PREFIX = "/sluice"
READ_FAILED = "The status could not be read. The page retries automatically."
DAY_H = 24
# Seconds until a page refreshes: while it has nothing to show, while its data is being read again, and else.
FIRST_S, RENEWED_S, CALM_S = 2, 5, 30


def render_page(
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
    unfinished = any(_is_unfinished(each) for each in readings)
    refresh = FIRST_S if any(map(_is_unfinished, every)) else RENEWED_S if any(each.busy for each in every) else CALM_S
    errors = list(dict.fromkeys(each.error for each in every if each.error))
    errors += [str(e) for e in (known.value.errors if known.value else ())]
    unread = any(each.value is None for each in readings)
    values = {"read_at": oldest_time(every), **values, "reading": unfinished, "unread": unread, "errors": errors}
    base = request.scope.get("root_path", "").rstrip("/")
    airflow = base.removesuffix(PREFIX)
    text = render.render_page(template, base=base, airflow=airflow, refresh=refresh, **values)
    return HTMLResponse(text, code, headers=render.SECURITY_HEADERS)


def oldest_time(readings: Sequence[Reading[Any]]) -> datetime | None:
    """The time of the oldest value: what a page shows is of then or newer."""
    times = [getattr(each.value, "at", each.at) for each in readings if each.value is not None]
    return min((at for at in times if at), default=None)


def _is_unfinished(read: Reading[Any]) -> bool:
    return read.value is None and read.error is None


def hidden_tables(known: Reading[Status]) -> frozenset[str] | None:
    """The tables whose names the user may not see; None: there are none."""
    return known.value.hidden_tables if known.value else frozenset()


def answer_no_table(request: Request, known: Reading[Status], name: str) -> HTMLResponse:
    """The page of a table that the status does not have."""
    message = reading.NO_TABLE if known.value else READ_FAILED if known.error else "Reading Kafka and the catalog…"
    code = 200 if known.value is None else 404
    return render_page(request, "message.html", known, code=code, here="tables", title=name, message=message)


def draw_charts(
    request: Request, name: str, past: History | None, chosen: TimeRange, target: float | None
) -> Charts | None:
    """The charts of a table's batches and files; None before the table was read."""
    if past is None:
        return None
    from sluice.pages import charts
    from sluice.status.batch_counts import Bars

    base = request.scope.get("root_path", "").rstrip("/")

    def link(at: datetime) -> str:
        moment = quote(at.isoformat(), safe="")
        return f"{base}/tables/{quote(name, safe='')}/timeline?hours={chosen.hours}&at={moment}#then"

    window = (past.at - timedelta(hours=chosen.hours), past.at)
    return charts.make_charts(past.counts.bars.get(chosen.hours, Bars()), past.files, window, target, link)
