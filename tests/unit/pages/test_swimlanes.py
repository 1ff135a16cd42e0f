"""The lanes of a timeline, from events and counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.pages import swimlanes
from sluice.status.batch_counts import CellCounts
from sluice.status.events import Event, Lane, find_range

pytestmark = pytest.mark.unit

END = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
HOUR = find_range(1)  # marks of a minute
AXIS = swimlanes.Axis.of(END - timedelta(hours=1), END, HOUR)
FIRST = AXIS.cell(AXIS.start)


def event(minutes: int, lane: Lane, table: str | None = "db.t", *, bad: bool = False, told: str = "did") -> Event:
    return Event(END - timedelta(minutes=minutes), lane, told, table, "t", bad)


def counts(**published: int) -> CellCounts:
    """A batch a minute, of each table as many as given, oldest first."""
    numbers = {(Lane.PUBLISHED, f"db.{name}"): [1] * n + [0] * (61 - n) for name, n in published.items()}
    return CellCounts(FIRST, HOUR.cell_s, numbers)


def test_a_lane_counts_all_batches_though_only_the_newest_events_are_there() -> None:
    few = [event(0, Lane.PUBLISHED), event(2, Lane.QUALITY, bad=True)]
    published, quality = swimlanes.lanes_by_kind(few, counts(t=60), AXIS)
    assert (published.label, published.events, len(published.marks)) == ("published", 60, 60)
    assert (quality.label, quality.events, quality.failed, quality.marks[0].tone) == ("quality", 1, 1, "bad")
    first = published.marks[0]
    assert (first.start, first.tone, first.at) == (0.0, "done", AXIS.start + timedelta(minutes=1))
    assert first.told == "2026-11-22 05:00:00 UTC to 2026-11-22 05:01:00 UTC: 1 batch published"
    assert [lane.events for lane in swimlanes.lanes_by_kind(few, None, AXIS)] == [1, 1]  # the ledger was not read


def test_each_table_has_a_lane_and_failures_come_first() -> None:
    happened = [
        event(5, Lane.OPERATOR, "db.b"),
        event(10, Lane.REFUSED, "db.b", bad=True, told="blocked, t, batch 3"),
        event(12, Lane.RUNS, None, bad=True),
        event(20, Lane.CATALOG, "db.a", bad=True, told="retried, t, batch 2"),
        event(30, Lane.FILES, "db.c"),
        event(30, Lane.MAINTENANCE, "db.hidden"),
    ]
    lanes, more = swimlanes.lanes_by_table(happened, counts(a=60, b=40), AXIS, ["db.a", "db.b", "db.c"])
    assert [(lane.label, lane.events, lane.failed) for lane in lanes] == [
        ("operator actions", 1, 0), ("topics and DAGs", 1, 1), ("db.a", 61, 1), ("db.b", 42, 1),
    ]  # fmt: skip
    assert more == 0
    tones = {lane.label: {mark.tone for mark in lane.marks} for lane in lanes}
    assert tones["db.a"] == {"done", "bad"}  # it published on
    assert tones["db.b"] == {"done", "bad", "act", "open"}
    (nothing,) = [mark for mark in lanes[3].marks if mark.tone == "open"]
    assert nothing.told == "2026-11-22 05:50:00 UTC: a batch failed; none was published until 2026-11-22 06:00:00 UTC"
    assert nothing.start == pytest.approx(100 * 50 / 60, abs=0.1) and nothing.start + nothing.width == 100


def test_of_very_many_tables_the_first_have_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swimlanes, "MAX_LANES", 2)
    calm = [event(n, Lane.MAINTENANCE, f"db.t{n}") for n in range(4)]
    failed = event(9, Lane.QUALITY, "db.t3", bad=True)
    lanes, more = swimlanes.lanes_by_table([*calm, failed], None, AXIS, [f"db.t{n}" for n in range(4)])
    assert ([lane.label for lane in lanes], more) == (["db.t3", "db.t0"], 2)


def test_a_mark_tells_its_failures_first_and_how_many_more_there_are() -> None:
    many = [event(3, Lane.QUALITY, told=f"event {n}", bad=n == 4) for n in range(5)]
    (lane,) = swimlanes.lanes_by_kind(many, None, AXIS)
    (mark,) = lane.marks
    assert mark.told.startswith("2026-11-22 05:57:00 UTC to 2026-11-22 05:58:00 UTC: 2026-11-22 05:57:00 UTC event 4; ")
    assert mark.told.endswith("; and 2 more")
