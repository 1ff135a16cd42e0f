"""The lanes of a timeline: marks of equal length on one time axis, per kind of event or per table.

In: events, and counts of all batches. Out: a lane per kind or table. A mark stands for all that happened in its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from sluice.ledger.ledger_rows import LedgerState
from sluice.pages.render import percent_between
from sluice.status.events import Event, Lane, TimeRange, group_by_lane
from sluice.status.text import utc_text

if TYPE_CHECKING:
    from sluice.status.batch_counts import CellCounts

MAX_LANES = 40
MAX_TOLD = 3
MIN_WIDTH = 0.4  # percent
_STOPS = (Lane.REFUSED, Lane.CATALOG, Lane.REGISTRY)
_COUNTED = (Lane.STAGED, Lane.PUBLISHED)


class Mark(NamedTuple):
    """What happened in a length of time.

    Attributes:
        start, width: in percent of the axis.
        tone: `bad`: a failure; `act`: an operator's action; `done`: other events; `open`: after a failure nothing was
            published.
        at: the time to show the table at.
    """

    start: float
    width: float
    tone: str
    told: str
    at: datetime


@dataclass(frozen=True)
class Swimlane:
    """A line of marks.

    Attributes:
        table: the table that it is about; empty: several, or none.
        events: how many events or batches.
        failed: how many of them are failures.
    """

    label: str
    table: str
    events: int
    failed: int
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Axis:
    """A time axis, divided into cells that begin at full multiples of their length."""

    start: datetime
    end: datetime
    cell_s: int

    @classmethod
    def of(cls, start: datetime, end: datetime, each: TimeRange) -> Axis:
        """The axis of a range."""
        return cls(start, end, each.cell_s)

    def cell(self, at: datetime) -> int:
        """The number of the cell that a time is in."""
        return int(at.timestamp()) // self.cell_s

    def place(self, first: int, after: int) -> tuple[float, float]:
        """Start and width of some cells, in percent."""
        low, high = self.start.timestamp(), self.end.timestamp()
        one, other = (percent_between(cell * self.cell_s, low, high) for cell in (first, after))
        width = max(other - one, MIN_WIDTH)
        return min(one, 100 - width), width

    def span(self, cell: int) -> str:
        """The time of a cell in words."""
        start, end = (datetime.fromtimestamp(each * self.cell_s, UTC) for each in (cell, cell + 1))
        return f"{utc_text(start)} to {utc_text(end)}"


@dataclass
class _Cell:
    events: list[Event] = field(default_factory=list)
    batches: int = 0


def lanes_by_kind(events: Sequence[Event], counts: CellCounts | None, axis: Axis) -> list[Swimlane]:
    """A lane per kind of event, of one table.

    Args:
        events: those on the axis, newest first.
        counts: all staged and published batches of the table; None: there are only the events.
    """
    by_lane = dict(group_by_lane(events))
    found = []
    for lane in Lane:
        names = [name for of_lane, name in counts.counts if of_lane == lane] if counts and lane in _COUNTED else []
        counted = _count(counts, lane, names) if counts else {}
        cells = _fill(() if counted else by_lane.get(lane, ()), counted, axis)
        if cells:
            found.append(_lane(lane.replace("_", " "), "", cells, axis, lane.value))
    return found


def lanes_by_table(
    events: Sequence[Event], counts: CellCounts | None, axis: Axis, tables: Iterable[str]
) -> tuple[list[Swimlane], int]:
    """A lane for what operators did, one for what concerns no single table, and one per table; failures come first.

    Args:
        events: those on the axis, newest first.
        counts: all published batches of the tables; None: there are only the events.
        tables: the visible tables.

    Returns:
        the lanes, and how many tables with events have none, because there are too many.
    """
    acts = [e for e in events if e.lane == Lane.OPERATOR]
    shared = [e for e in events if not e.table and e.lane not in (*_COUNTED, Lane.OPERATOR)]
    above = [
        _lane(label, "", _fill(each, {}, axis), axis)
        for label, each in (("operator actions", acts), ("topics and DAGs", shared))
        if each
    ]
    by_table: dict[str, list[Event]] = {name: [] for name in tables}
    for event in events:
        if event.table in by_table and event.lane not in (Lane.STAGED, Lane.FILES):
            by_table[event.table].append(event)
    found = []
    for name, own in by_table.items():
        counted = _count(counts, Lane.PUBLISHED, [name]) if counts else {}
        cells = _fill([e for e in own if not counted or e.lane != Lane.PUBLISHED], counted, axis)
        if cells:
            found.append(_lane(name, name, cells, axis))
    found.sort(key=lambda lane: (-lane.failed, lane.label))
    return [*above, *found[:MAX_LANES]], max(len(found) - MAX_LANES, 0)


def _count(counts: CellCounts, lane: Lane, names: Iterable[str]) -> dict[int, int]:
    """The batches of some tables or topics, by number of the cell."""
    found: dict[int, int] = {}
    for name in names:
        for n, number in enumerate(counts.counts.get((lane, name), ())):
            if number:
                found[counts.first + n] = found.get(counts.first + n, 0) + number
    return found


def _fill(events: Iterable[Event], counted: dict[int, int], axis: Axis) -> dict[int, _Cell]:
    cells: dict[int, _Cell] = {}
    for event in events:
        cells.setdefault(axis.cell(event.at), _Cell()).events.append(event)
    for number, batches in counted.items():
        cells.setdefault(number, _Cell()).batches = batches
    return cells


def _lane(label: str, table: str, cells: dict[int, _Cell], axis: Axis, state: str = "published") -> Swimlane:
    marks = [*_open_marks(cells, axis)] if table else []
    events = failed = 0
    for number, cell in sorted(cells.items()):
        bad = [e for e in cell.events if e.bad]
        events, failed = events + len(cell.events) + cell.batches, failed + len(bad)
        acts = any(e.lane == Lane.OPERATOR for e in cell.events)
        tone = "bad" if any(e.lane != Lane.OPERATOR for e in bad) or (bad and not table) else "act" if acts else "done"
        at = cell.events[0].at if cell.events else datetime.fromtimestamp((number + 1) * axis.cell_s, UTC)
        marks.append(Mark(*axis.place(number, number + 1), tone, _tell(cell, number, axis, state), min(at, axis.end)))
    return Swimlane(label, table, events, failed, marks)


def _tell(cell: _Cell, number: int, axis: Axis, state: str) -> str:
    worst = sorted(cell.events, key=lambda e: not e.bad)
    lines = [
        f"{'' if len(worst) == 1 and not cell.batches else f'{utc_text(e.at)} '}{e.told}" for e in worst[:MAX_TOLD]
    ]
    if more := len(worst) - MAX_TOLD:
        lines += [f"and {more:,} more"] if more > 0 else []
    if cell.batches:
        lines.append(f"{cell.batches:,} batch{'' if cell.batches == 1 else 'es'} {state}")
    if len(worst) == 1 and not cell.batches:
        event = worst[0]
        return f"{utc_text(event.at)}, {event.table or event.topic or event.dag}: {lines[0]}"
    return f"{axis.span(number)}: {'; '.join(lines)}"


def _open_marks(cells: dict[int, _Cell], axis: Axis) -> Iterator[Mark]:
    """From each failure of a batch on, until a batch was published."""
    since: int | None = None
    end = axis.cell(axis.end) + 1
    for number, cell in [*sorted(cells.items()), (end, _Cell(batches=1))]:
        published = cell.batches or any(e.lane == Lane.PUBLISHED for e in cell.events)
        if since is not None and published:
            told = f"{utc_text(datetime.fromtimestamp(since * axis.cell_s, UTC))}: a batch failed; none was published"
            until = axis.end if number == end else datetime.fromtimestamp(number * axis.cell_s, UTC)
            yield Mark(*axis.place(since, number), "open", f"{told} until {utc_text(until)}", until)
            since = None
        stops = any(e.bad and e.lane in _STOPS and not e.told.startswith(LedgerState.RETRIED) for e in cell.events)
        if stops and not published and since is None and number != end:
            since = number
