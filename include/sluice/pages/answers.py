"""The shapes of the API's answers, for its description: told by the very classes that the answers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from sluice.pages.trends import Trend
from sluice.status.events import Event, Lane
from sluice.status.model import TableStatus
from sluice.status.readiness import Line
from sluice.status.timeline import Standing

BESIDE = {
    "lag_records": {"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "Lag Records"},
    "warnings": {"items": {"type": "string"}, "type": "array", "title": "Warnings"},
}
"""Over all topics, and of all kinds: in the answer, and no fields of the class."""


@dataclass
class Tables:
    """Every table that may be seen; `unavailable` and `broken` say why not all is told."""

    at: datetime
    tables: list[TableStatus]
    unavailable: list[str]
    broken: list[str]


@dataclass
class Happened:
    """Events from `start` to `at`; of the lanes in `cut` only the newest. `unavailable` says what could not be read."""

    at: datetime
    start: datetime
    cut: list[Lane]
    unavailable: list[str]
    events: list[Event]


@dataclass
class HappenedToTable(Happened):
    """And what readers saw; `trouble` says why that is not known."""

    standing: Standing | None
    trouble: str | None


@dataclass(frozen=True, kw_only=True)
class ReadinessLine(Line):
    """A line of the scorecard; `unavailable` says why there is no newer one."""

    unavailable: str | None


@dataclass(frozen=True, kw_only=True)
class Judged(Trend):
    """An expectation; `unavailable` says why there are no newer results."""

    unavailable: str | None


ANSWERS: Mapping[str, Any] = {
    "/api/tables": Tables,
    "/api/tables/{name}": TableStatus,
    "/api/timeline": Happened,
    "/api/tables/{name}/timeline": HappenedToTable,
    "/api/tables/{name}/readiness": list[ReadinessLine],
    "/api/quality": dict[str, list[Judged]],
}


REFUSALS = {
    401: "Nobody is logged in, or the token has expired.",
    403: "The caller may not see plugins.",
    404: "There is no such table, or the caller may not read its DAG.",
    400: "The moment is none that can be read.",
    503: "Nothing was read yet, and maybe nothing could be: ask again.",
}


@dataclass
class Refusal:
    """Why there is no answer."""

    detail: str


def _refusals(path: str) -> list[int]:
    """With what an address may answer besides."""
    moment = [400] if path == "/api/tables/{name}/timeline" else []
    return [*moment, 401, 403, *([404] if "{name}" in path else []), 503]


def described(openapi: Mapping[str, Any]) -> dict[str, Any]:
    """A description of the API with the fields of its answers, and with what it answers where it has none."""
    adapters = [(path, "serialization", TypeAdapter(kind)) for path, kind in ANSWERS.items()]
    shapes, definitions = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    told = deepcopy(dict(openapi))
    known = told.setdefault("components", {}).setdefault("schemas", {})
    known |= definitions["$defs"]
    known["TableStatus"]["properties"] |= BESIDE
    for (path, _), shape in shapes.items():
        told["paths"][path]["get"]["responses"]["200"]["content"] = {"application/json": {"schema": shape}}
    known["Refusal"] = TypeAdapter(Refusal).json_schema()
    refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    wait = {"Retry-After": {"description": "In how many seconds.", "schema": {"type": "integer"}}}
    for path, methods in told["paths"].items():
        responses = methods["get"]["responses"]
        for code in _refusals(path):
            responses[str(code)] = {"description": REFUSALS[code], "content": refusal}
        responses["503"]["headers"] = wait
    return told
