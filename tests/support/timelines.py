"""What `timeline.html` shows of events, as the routes prepare it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sluice.pages import swimlanes
from sluice.pages.history import History, select_hours
from sluice.status import event_lines
from sluice.status.events import RANGES, find_range


def timeline_values(
    known: History | None,
    name: str = "",
    *,
    hours: int = 24,
    tables: Iterable[str] = (),
    before: datetime | None = None,
) -> dict[str, Any]:
    """The values of the template that depend on the events."""
    chosen = find_range(hours)
    values: dict[str, Any] = {"chosen": chosen, "ranges": RANGES, "name": name, "at": "", "asked": None, "as_of": None}
    if known is None:
        return {**values, "window": None}
    window = select_hours(known, hours, known.events)
    axis, counts = swimlanes.Axis.of(window.start, window.end, chosen), known.counts.cells.get(hours)
    lanes, more = swimlanes.lanes_by_table(window.events, counts, axis, tables)
    if name:
        lanes, more = swimlanes.lanes_by_kind(window.events, counts, axis), 0
    page = event_lines.select_page(event_lines.merge_lines(window.events, name), before)
    return {**values, "window": window, "lanes": lanes, "more": more, "page": page}
