"""The routes of what a table costs: the page, and its JSON. Both are read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse

from sluice_web import reading
from sluice_web.answers import answer_no_table, render_page
from sluice_web.reading import Readable

if TYPE_CHECKING:
    from sluice.pages.cost import CostReading

router = APIRouter()


@router.get("/tables/{name}/cost", response_class=HTMLResponse, include_in_schema=False)
def cost_page(request: Request, readable: Readable, name: str) -> HTMLResponse:
    """What one table cost per day, and what it holds in storage."""
    from sluice.pages import cost

    known = reading.read_status(readable)
    table = reading.find_table(known.value, name)
    if table is None:
        return answer_no_table(request, known, name)
    found = reading.feeds().costs.get_feed(name).get(wait=reading.FIRST_WAIT_S)
    facts = found.value.facts if found.value else None
    return render_page(
        request, "cost.html", known, found, here="tables", table=table, found=found.value,
        prices=found.value.prices if found.value else None, charts=cost.make_charts(facts) if facts else None,
    )  # fmt: skip


@router.get("/api/tables/{name}/cost", response_class=JSONResponse)
def api_cost(readable: Readable, name: str) -> dict[str, Any]:
    """What one table cost per day of the last 30, and what it holds, as `sluice cost TABLE --json` prints it.

    Amounts are null without a price file.
    """
    from sluice.status import text

    until = reading.answer_deadline()
    reading.require_table(reading.require_status(readable, until), name)
    known = reading.feeds().costs.get_feed(name).get(wait=reading.FIRST_WAIT_S, until=until)
    found: CostReading = reading.require_value(known)
    if found.facts is None:
        raise HTTPException(404, reading.NO_TABLE)
    return dict(text.to_json_types(found.facts))
