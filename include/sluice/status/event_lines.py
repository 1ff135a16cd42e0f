"""The lines of a list of events: those of one batch in one run are one line, and a page shows some of the lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sluice.status.events import Event, Lane, batch_name, count_published

LINES_SHOWN = 50
_OF_BATCHES = (Lane.PUBLISHED, Lane.REFUSED, Lane.CATALOG, Lane.REGISTRY, Lane.STAGED, Lane.QUALITY, Lane.FILES)
"""Lanes with events of batches; the first that a line has is its kind."""

_Key = tuple[str, str, int, str]


@dataclass(frozen=True)
class EventLine:
    """An event, or the events of a batch in one run.

    Attributes:
        main: the event that gives the line its kind, duration and run.
        failures: the lanes of its failures.
    """

    main: Event
    told: str
    failures: Sequence[Lane]
    snapshot_id: int | None

    @property
    def at(self) -> datetime:
        """When the main event happened."""
        return self.main.at


class LinePage(NamedTuple):
    """Some of the lines.

    Attributes:
        first: the number of the first, counted from 1.
        total: how many lines there are.
        newer, older: show the page of the lines before this time; None: there is no such page, or it is the newest.
    """

    lines: Sequence[EventLine]
    first: int
    total: int
    newer: datetime | None
    older: datetime | None


def merge_lines(events: Sequence[Event], name: str = "") -> list[EventLine]:
    """The lines of these events, newest first.

    Args:
        events: newest first.
        name: the table whose events these are; without it, each batch line names its topic.
    """
    commits: dict[tuple[str | None, int | None], _Key] = {
        (e.table, e.snapshot_id): _key(e, name) for e in events if e.lane == Lane.PUBLISHED and e.snapshot_id
    }
    with_table = {_key(e, "")[1:] for e in events if e.table and e.lane in _OF_BATCHES and e.batch is not None}
    topics = {e.topic for e in events if e.topic}
    alone = bool(name) and len(topics) < 2
    found: dict[_Key | int, list[Event]] = {}
    for n, event in enumerate(events):
        key: _Key | int = n
        if event.lane == Lane.FILES:
            key = commits.get((event.table, event.snapshot_id)) or n
        elif event.lane in _OF_BATCHES and event.batch is not None:
            key = _key(event, name)
            if not key[0] and key[1:] in with_table:  # its tables' lines show that the batch was staged
                continue
        found.setdefault(key, []).append(event)
    lines = [_line(each, alone=alone) for each in found.values()]
    return sorted(lines, key=lambda line: line.at, reverse=True)


def _key(event: Event, name: str) -> _Key:
    return name or event.table or "", event.topic or "", event.batch or 0, event.run_id or ""


def _line(events: Sequence[Event], *, alone: bool) -> EventLine:
    main = min(events, key=lambda e: _OF_BATCHES.index(e.lane) if e.lane in _OF_BATCHES else 0)
    failures = list(dict.fromkeys(e.lane for e in events if e.bad))
    snapshot_id = next((e.snapshot_id for e in events if e.snapshot_id), None)
    if main.batch is None or main.lane not in _OF_BATCHES:
        return EventLine(main, main.told, failures, snapshot_id)
    batch = batch_name(main.batch) if alone else f"{main.topic}, {batch_name(main.batch)}"
    by_lane = sorted(events, key=lambda e: _OF_BATCHES.index(e.lane))
    parts = [part for event in by_lane for part in _parts(event, among={e.lane for e in events})]
    return EventLine(main, f"{batch}: {', '.join(parts)}", failures, snapshot_id)


def _parts(event: Event, among: Iterable[Lane]) -> Iterator[str]:
    """What an event adds to the line of a batch."""
    if event.lane == Lane.PUBLISHED:
        records = count_published(event.records, event.rejected)
        yield "published" if records is None else f"{_count(records)} published"
        if event.rejected:
            yield f"{event.rejected:,} quarantined"
    elif event.lane == Lane.STAGED:
        if not {Lane.PUBLISHED, Lane.REFUSED} & {*among}:
            yield "staged" if event.records is None else f"{_count(event.records)} staged"
    elif event.lane == Lane.FILES:
        yield event.told.partition(": ")[2]
    elif event.lane != Lane.QUALITY or event.bad or {*among} == {Lane.QUALITY}:
        batch = f"{event.topic}, {batch_name(event.batch or 0)}"
        yield event.told.replace(f", {batch}", "", 1).removeprefix(f"{batch}: ")


def _count(records: int) -> str:
    return f"{records:,} record{'' if records == 1 else 's'}"


def select_page(lines: Sequence[EventLine], before: datetime | None, size: int = LINES_SHOWN) -> LinePage:
    """The newest lines before a time. Lines of the same time are on the same page.

    Args:
        lines: newest first.
        before: None: the newest page.
    """
    first = 0 if before is None else sum(line.at >= before for line in lines)
    end = min(first + size, len(lines))
    while 0 < end < len(lines) and lines[end].at == lines[end - 1].at:
        end += 1
    newer = lines[first - size - 1].at if first > size else None
    older = lines[end - 1].at if first < end < len(lines) else None
    return LinePage(lines[first:end], first + 1, len(lines), newer, older)
