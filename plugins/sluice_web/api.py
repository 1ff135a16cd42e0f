"""The routes of the JSON API and of the Prometheus metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from sluice.dag_ids import BACKFILL, OPERATOR_DAGS
from sluice_web import reading
from sluice_web.operations import ViewerDep
from sluice_web.reading import Hours, Moment, Readable, Search
from sluice_web.timelines import visible_events

if TYPE_CHECKING:
    from sluice.pages.detail import TableDetail
    from sluice.pages.history import History
    from sluice.pages.quality.trends import Trend
    from sluice.status.events import Event
    from sluice.status.record_trace import RecordTrace

router = APIRouter()

RecordAt = Annotated[str, Query(pattern=r"^\d{1,10}:\d{1,18}$", description="PARTITION:OFFSET of the record.")]
Dag = Annotated[str, Query(max_length=250, description="The id of an operator's DAG.")]
Form = Annotated[str, Query(max_length=10_000, description="The `conf` of the run as JSON, without the table.")]


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(readable: Readable) -> Response:
    """The readable tables in Prometheus' text format; 503 until they were read once.

    Values that are not current are left out; `sluice_unavailable` shows the source that did not answer.
    """
    from sluice.pages import metrics as pages_metrics
    from sluice.pages import render
    from sluice.status.model import CATALOG

    until = reading.answer_deadline()
    status = reading.require_status(readable, until)
    past = reading.read_history(status, until)
    if past.error:  # its last value is not current
        status = replace(status, unasked=[*{*status.unasked, CATALOG}])
    costs = reading.feeds().last_day.get(wait=reading.FIRST_WAIT_S)
    text = pages_metrics.metrics_text(
        status, None if past.error else past.value, None if costs.error else costs.value,
        all_tables=reading.sees_all(readable),
    )  # fmt: skip
    return Response(text, media_type=pages_metrics.CONTENT_TYPE, headers=render.SECURITY_HEADERS)


@router.get("/api/tables", response_class=JSONResponse)
def api_tables(readable: Readable) -> JSONResponse:
    """The status of the readable tables; 503 until it was read once.

    It is what `sluice status --json` prints, without `unclaimed`.
    """
    from sluice.status import text

    # A response: FastAPI would convert the values a second time.
    return JSONResponse(text.as_json(reading.require_status(readable, reading.answer_deadline())))


@router.get("/api/tables/{name}", response_class=JSONResponse)
def api_table(readable: Readable, name: str) -> dict[str, Any]:
    """The status of one table; 404 if it does not exist, or the caller may not read it."""
    from sluice.status import text

    status = reading.require_status(readable, reading.answer_deadline())
    (table,) = text.as_json(replace(status, tables=[reading.require_table(status, name)]))["tables"]
    return dict(table)


@router.get("/api/timeline", response_class=JSONResponse)
def api_timeline(readable: Readable, hours: Hours = 24) -> dict[str, Any]:
    """The events of the readable tables, newest first; 503 until they were read once.

    `unavailable` lists errors of sources whose events are missing, or older than `at`.
    """
    until = reading.answer_deadline()
    status = reading.require_status(readable, until)
    failed = reading.read_failed_runs(readable, status, until=until)
    past, unavailable = reading.require_history(reading.read_history(status, until), failed)
    return _events(past, visible_events(past, readable, status.tables), hours, unavailable, status.hidden_tables)


@router.get("/api/tables/{name}/timeline", response_class=JSONResponse)
def api_table_timeline(readable: Readable, name: str, hours: Hours = 24, at: Moment = "") -> dict[str, Any]:
    """The events of one table, newest first, and the snapshot and offsets that readers saw at a time, or now.

    `standing` is null if the snapshot log does not reach back that far, or for the reason in `trouble`.
    """
    from sluice.backfill.ranges import parse_time
    from sluice.errors import RefusedError, SluiceError
    from sluice.pages import history
    from sluice.status import text, timeline

    until = reading.answer_deadline()
    status = reading.require_status(readable, until)
    table = reading.require_table(status, name)
    known = reading.read_table_history(name, until)
    past, unavailable = reading.require_history(known, reading.read_failed_runs(readable, status, table, until))
    answer = _events(past, history.drop_explained_runs(past.events), hours, unavailable, status.hidden_tables)
    answer |= {"standing": None, "trouble": known.value.trouble if known.value else known.error}
    try:
        asked, snapshots = parse_time(at, "at"), known.value and known.value.table
        as_of = timeline.find_table_as_of(snapshots, asked or known.value.at) if snapshots is not None else None
        answer["standing"] = text.to_json_types(as_of)
    except RefusedError as error:
        raise HTTPException(400, str(error)) from error
    except SluiceError as error:
        answer["trouble"] = str(error)
    return answer


@router.get("/api/tables/{name}/record", response_class=JSONResponse)
def api_record(readable: Readable, name: str, at: RecordAt, topic: Search = "") -> dict[str, Any]:
    """What became of one record, as `sluice find --json` prints it.

    422 if several topics feed the table, and `topic` is none of them.
    """
    from sluice.status import text
    from sluice.status.redact import hide_names

    until = reading.answer_deadline()
    status = reading.require_status(readable, until)
    table = reading.require_table(status, name)
    topics = [each.topic for each in table.topics]
    if topic not in (topics if len(topics) > 1 else ["", *topics]):
        raise HTTPException(422, f"Name the record's topic, one of: {', '.join(topics)}.")
    found: RecordTrace = reading.require_value(reading.read_record(name, at, topic, until))
    error = found.error and hide_names(found.error, status.hidden_tables)
    return dict(text.to_json_types(replace(found, error=error)))


@router.get("/api/tables/{name}/readiness", response_class=JSONResponse)
def api_readiness(readable: Readable, viewer: ViewerDep, name: str) -> list[dict[str, Any]]:
    """The readiness checks of one table; `ready` is null if the facts are not there yet.

    `unavailable` is the error, if reading newer ones failed or hangs.
    """
    until = reading.answer_deadline()
    table = reading.require_table(reading.require_status(readable, until), name)
    known = reading.feeds().details.get_feed(name).get(wait=reading.FIRST_WAIT_S, until=until)
    found: TableDetail = reading.require_value(known)
    why = known.error or found.missing.get("readiness")
    return [asdict(line) | {"unavailable": why} for line in reading.list_readiness(found, table, viewer.may_start)]


@router.get("/api/tables/{name}/dry-run", response_class=JSONResponse)
def api_dry_run(
    readable: Readable, viewer: ViewerDep, name: str, dag: Dag = BACKFILL, form: Form = "{}"
) -> dict[str, Any]:
    """What a run of an operator's DAG would do to one table. Changes nothing.

    The DAG is one that an operator triggers, such as `backfill`. 403 if the caller may not trigger it.
    """
    from sluice.status import text
    from sluice.status.redact import hide_names

    status = reading.require_status(readable, reading.answer_deadline())
    reading.require_table(status, name)
    if dag not in OPERATOR_DAGS or not viewer.may_look(dag):
        raise HTTPException(403, f"You may not trigger DAG {dag}.")
    try:
        given = json.loads(form)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "form is not valid JSON.") from error
    if not isinstance(given, dict):
        raise HTTPException(400, "form is not a JSON object.")
    asked = {**given, "table": name, "name": name}
    feed = reading.feeds().dry_runs.get_feed(json.dumps([dag, asked], sort_keys=True))
    found = feed.get(wait=reading.ANSWER_WAIT_S, until=reading.answer_deadline())
    hidden = status.hidden_tables
    if found.error:
        return {"at": None, "lines": [], "pinned": {}, "error": hide_names(found.error, hidden)}
    done = reading.require_value(found)
    lines = [hide_names(line, hidden) for line in done.lines]
    return {"at": text.to_json_types(found.at), "lines": lines, "pinned": done.pinned, "error": None}


@router.get("/api/quality", response_class=JSONResponse)
def api_quality(readable: Readable) -> dict[str, list[dict[str, Any]]]:
    """The expectations evaluated within a week by table, with the results of their last batches, oldest first.

    `unavailable` is the error, if reading newer ones failed or hangs.
    """
    from sluice.status import text

    until = reading.answer_deadline()
    known = reading.feeds().quality.get(wait=reading.FIRST_WAIT_S, until=until)
    found: dict[str, list[Trend]] = reading.require_value(known)
    names = {t.table for t in reading.require_status(readable, until).tables}
    answer = {n: [text.to_json_types(t) for t in trends] for n, trends in sorted(found.items()) if n in names}
    for trend in (t for trends in answer.values() for t in trends):
        trend["unavailable"] = known.error
        for result in trend["results"]:
            del result["values"]  # values of records are never shown
    return answer


def _events(
    past: History, events: Sequence[Event], hours: int, unavailable: Sequence[str], hidden: frozenset[str] | None
) -> dict[str, Any]:
    from sluice.pages import history
    from sluice.status import text
    from sluice.status.redact import redact_events

    shown = history.select_hours(past, hours, redact_events(events, hidden))
    answer = {
        "at": past.at, "start": shown.start, "cut": shown.cut, "unavailable": unavailable, "events": shown.events,
    }  # fmt: skip
    found: dict[str, Any] = text.to_json_types(answer)
    return found
