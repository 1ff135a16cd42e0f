"""The schemas of the JSON API's answers and errors, for its OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from sluice.pages.quality.trends import Trend
from sluice.status.events import Event, Lane
from sluice.status.model import TableStatus
from sluice.status.readiness import ReadinessCheck
from sluice.status.record_trace import RecordTrace
from sluice.status.timeline import TableAsOf
from sluice.usage.overview import CostFacts

COMPUTED_FIELDS = {
    "lag_records": {"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "Lag Records"},
    "warnings": {"items": {"type": "string"}, "type": "array", "title": "Warnings"},
}
"""Properties of `TableStatus` that the answer has beside its fields."""


@dataclass
class TablesAnswer:
    """All tables that the caller may see. `unavailable` and `broken` say what is missing, and why."""

    at: datetime
    tables: list[TableStatus]
    unavailable: list[str]
    broken: list[str]


@dataclass
class TimelineAnswer:
    """Events from `start` to `at`. Lanes in `cut` have only their newest; `unavailable` says what could not be read."""

    at: datetime
    start: datetime
    cut: list[Lane]
    unavailable: list[str]
    events: list[Event]


@dataclass
class TableTimelineAnswer(TimelineAnswer):
    """The same with the snapshot that readers saw, or with the reason in `trouble` why it is not known."""

    standing: TableAsOf | None
    trouble: str | None


@dataclass(frozen=True, kw_only=True)
class ReadinessAnswer(ReadinessCheck):
    """A readiness check; `unavailable` says why there is no newer result."""

    unavailable: str | None


@dataclass(frozen=True, kw_only=True)
class ExpectationAnswer(Trend):
    """An expectation with its results; `unavailable` says why there are no newer ones."""

    unavailable: str | None


@dataclass
class DryRunAnswer:
    """What a run would do, in lines, or the `error` why it cannot be done.

    Attributes:
        at: when it was found out.
        lines: a line of text each, in the order in which to read them.
        pinned: values for the `conf` of the run, so that it does what was shown and nothing that came later.
    """

    at: datetime | None
    lines: list[str]
    pinned: dict[str, Any]
    error: str | None


ANSWERS: Mapping[str, Any] = {
    "/api/tables": TablesAnswer,
    "/api/tables/{name}": TableStatus,
    "/api/timeline": TimelineAnswer,
    "/api/tables/{name}/timeline": TableTimelineAnswer,
    "/api/tables/{name}/readiness": list[ReadinessAnswer],
    "/api/tables/{name}/record": RecordTrace,
    "/api/tables/{name}/cost": CostFacts,
    "/api/tables/{name}/dry-run": DryRunAnswer,
    "/api/quality": dict[str, list[ExpectationAnswer]],
}


ERRORS = {
    401: "Nobody is logged in, or the token has expired.",
    403: "The caller may not see plugins, or may not trigger the DAG.",
    404: "There is no such table, or the caller may not read its DAG.",
    400: "The time in `at`, or the JSON in `form`, cannot be parsed.",
    503: "The first reading is under way, or has failed. Retry.",
}


@dataclass
class ErrorAnswer:
    """The reason of an error."""

    detail: str


def _error_codes(path: str) -> list[int]:
    bad_request = [400] if path.endswith(("/{name}/timeline", "/dry-run")) else []
    return [*bad_request, 401, 403, *([404] if "{name}" in path else []), 503]


def add_answer_schemas(openapi: Mapping[str, Any]) -> dict[str, Any]:
    """Add the schemas of answers and errors to FastAPI's OpenAPI description."""
    adapters = [(path, "serialization", TypeAdapter(kind)) for path, kind in ANSWERS.items()]
    shapes, definitions = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    described = deepcopy(dict(openapi))
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas |= definitions["$defs"]
    schemas["TableStatus"]["properties"] |= COMPUTED_FIELDS
    for (path, _), shape in shapes.items():
        described["paths"][path]["get"]["responses"]["200"]["content"] = {"application/json": {"schema": shape}}
    schemas["ErrorAnswer"] = TypeAdapter(ErrorAnswer).json_schema()
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
    wait = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    for path, methods in described["paths"].items():
        responses = methods["get"]["responses"]
        for code in _error_codes(path):
            responses[str(code)] = {"description": ERRORS[code], "content": error}
        responses["503"]["headers"] = wait
    return described
