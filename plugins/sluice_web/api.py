"""The same facts as JSON, and as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from sluice_web import reading
from sluice_web.pages import visible
from sluice_web.reading import Hours, MayStart, Moment, Readable

if TYPE_CHECKING:
    from sluice.pages.detail import Detail
    from sluice.pages.history import History
    from sluice.pages.trends import Trend
    from sluice.status.events import Event

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(readable: Readable) -> Response:
    """The tables that the caller may see, in Prometheus' text format; 503 until they were read once.

    What is not of now is left out: `sluice_unavailable` says whose word is missing.
    """
    from sluice.pages import metrics as pages_metrics
    from sluice.pages import render
    from sluice.status.model import CATALOG

    until = reading.soon()
    status = reading.known_status(readable, until)
    past = reading.past(status, until)
    if past.error:  # what it told last is not of now
        status = replace(status, unasked=[*{*status.unasked, CATALOG}])
    text = pages_metrics.text(status, None if past.error else past.value, whole=reading.sees_all(readable))
    return Response(text, media_type=pages_metrics.CONTENT_TYPE, headers=render.SECURITY)


@router.get("/api/tables", response_class=JSONResponse)
def api_tables(readable: Readable) -> JSONResponse:
    """Where every table stands, as `python -m sluice status --json` tells it; 503 until it was read once."""
    from sluice.status import text

    # As a response: what is JSON already would be gone through once more.
    return JSONResponse(text.as_json(reading.known_status(readable, reading.soon())))


@router.get("/api/tables/{name}", response_class=JSONResponse)
def api_table(readable: Readable, name: str) -> dict[str, Any]:
    """Where one table stands; 404 where there is none of that name that the caller may read."""
    from sluice.status import text

    status = reading.known_status(readable, reading.soon())
    (told,) = text.as_json(replace(status, tables=[reading.known_table(status, name)]))["tables"]
    return dict(told)


@router.get("/api/timeline", response_class=JSONResponse)
def api_timeline(readable: Readable, hours: Hours = 24) -> dict[str, Any]:
    """What happened to all tables, newest first; 503 until it was read once.

    `unavailable` says what could not be read: its events are missing, or older than `at`.
    """
    until = reading.soon()
    status = reading.known_status(readable, until)
    failed = reading.failed_runs(readable, status, until=until)
    past, unavailable = reading.whole(reading.past(status, until), failed)
    return _events(past, visible(past, readable, status.tables), hours, unavailable, status.unseen)


@router.get("/api/tables/{name}/timeline", response_class=JSONResponse)
def api_table_timeline(readable: Readable, name: str, hours: Hours = 24, at: Moment = "") -> dict[str, Any]:
    """What happened to one table, newest first, and the snapshot and offsets that readers saw at a moment, or now.

    `standing` is null where the table's own history does not reach back so far, or `trouble` says why it is not known.
    """
    from sluice.backfill.ranges import moment
    from sluice.errors import RefusedError, SluiceError
    from sluice.pages import history
    from sluice.status import text, timeline

    until = reading.soon()
    status = reading.known_status(readable, until)
    of = reading.known_table(status, name)
    known = reading.feeds().histories.of(name).get(wait=reading.FIRST_WAIT_S, until=until)
    past, unavailable = reading.whole(known, reading.failed_runs(readable, status, of, until))
    told = _events(past, history.untold(past.events), hours, unavailable, status.unseen)
    told |= {"standing": None, "trouble": known.value.trouble if known.value else known.error}
    try:
        asked, table = moment(at, "The moment"), known.value and known.value.table
        standing = timeline.standing(table, asked or known.value.at) if table is not None else None
        told["standing"] = text.plain(standing)
    except RefusedError as error:
        raise HTTPException(400, str(error)) from error
    except SluiceError as error:
        told["trouble"] = str(error)
    return told


@router.get("/api/tables/{name}/readiness", response_class=JSONResponse)
def api_readiness(readable: Readable, may_start: MayStart, name: str) -> list[dict[str, Any]]:
    """The scorecard of one table: `ready` is null where the facts that would tell are not there yet.

    `unavailable` says why there is no newer one, where the last reading failed or hangs.
    """
    until = reading.soon()
    table = reading.known_table(reading.known_status(readable, until), name)
    known = reading.feeds().details.of(name).get(wait=reading.FIRST_WAIT_S, until=until)
    found: Detail = reading.value(known)
    why = known.error or found.missing.get("readiness")
    return [asdict(line) | {"unavailable": why} for line in reading.ready(found, table, may_start)]


@router.get("/api/quality", response_class=JSONResponse)
def api_quality(readable: Readable) -> dict[str, list[dict[str, Any]]]:
    """Per table every expectation judged within a week, with the results of its last batches, the oldest first.

    `unavailable` says why there are no newer ones, where the last reading failed or hangs.
    """
    from sluice.status import text

    until = reading.soon()
    known = reading.feeds().quality.get(wait=reading.FIRST_WAIT_S, until=until)
    found: dict[str, list[Trend]] = reading.value(known)
    names = {t.table for t in reading.known_status(readable, until).tables}
    told = {n: [text.plain(t) for t in trends] for n, trends in sorted(found.items()) if n in names}
    for trend in (t for trends in told.values() for t in trends):
        trend["unavailable"] = known.error
        for result in trend["results"]:
            del result["values"]  # of records, which are shown nowhere
    return told


def _events(
    past: History, events: Sequence[Event], hours: int, unavailable: Sequence[str], unseen: frozenset[str] | None
) -> dict[str, Any]:
    from sluice.pages import history
    from sluice.status import text
    from sluice.status.redact import of_events

    shown = history.window(past, hours, of_events(events, unseen))
    whole = {
        "at": past.at, "start": shown.start, "cut": shown.cut, "unavailable": unavailable, "events": shown.events,
    }  # fmt: skip
    found: dict[str, Any] = text.plain(whole)
    return found
