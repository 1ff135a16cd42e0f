"""Batches as bars and counts, and events as lines, from rows and events alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from sluice.ledger.ledger_rows import SCHEMA, LedgerRow, LedgerState, rows_to_arrow
from sluice.status import batch_counts
from sluice.status.batch_counts import Bar
from sluice.status.event_lines import merge_lines, select_page
from sluice.status.events import INGEST, RANGES, Event, Lane, find_range

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 6, 10, tzinfo=UTC)
DAY, WEEK = find_range(24), find_range(168)


def ledger(*rows: LedgerRow) -> pa.Table:
    return rows_to_arrow(rows, SCHEMA.as_arrow(), "r").sort_by([("at", "descending")])


def test_a_range_that_does_not_exist_is_a_day() -> None:
    assert find_range(720) == RANGES[-1] and find_range(-5) == find_range(48) == DAY
    assert all(each.hours * 3600 / each.bar_s <= batch_counts.MAX_BARS for each in RANGES)


def test_few_batches_are_a_bar_each_with_what_was_known_when_they_were_staged() -> None:
    at = NOW - timedelta(minutes=5)
    figures: dict[str, Any] = {"records": 9, "rejected": 1, "seconds": 2.5, "commit_seconds": 0.5}
    rows = ledger(
        LedgerRow("t", LedgerState.STAGED, "id", 4, oldest=at - timedelta(seconds=60), unread=30, at=at),
        LedgerRow("t", LedgerState.PUBLISHED, "id", 4, table="db.t", at=at, **figures),
        LedgerRow("t", LedgerState.PUBLISHED, "id", 3, table="db.t", at=at - timedelta(days=2)),
        LedgerRow("t", LedgerState.BLOCKED, "id", 5, table="db.t", at=at),
    )
    batches = batch_counts.list_batches(rows)
    assert [bar.at for bar in batches] == [at - timedelta(days=2), at]
    found = batch_counts.make_bars(batches, DAY, NOW)
    assert (found.bars, found.seconds) == ([Bar(at, 1, 9, 1, 60.0, 30, 2.5, 0.5)], None)
    older = rows.drop_columns(["commit_seconds"])
    assert batch_counts.list_batches(older)[-1].commit_seconds is None
    assert [len(batch_counts.make_bars(batches, each, NOW).bars) for each in RANGES] == [1, 1, 1, 2, 2]


def test_many_batches_are_summed_up_in_bars_of_equal_length() -> None:
    def batch(n: int) -> Bar:
        return Bar(NOW - timedelta(minutes=n), 1, 10, n % 2, float(n), n, float(n % 30), n % 30 / 2)

    batches = [batch(n) for n in range(batch_counts.MAX_BARS, -1, -1)]
    found = batch_counts.make_bars(batches, WEEK, NOW)
    assert found.seconds == WEEK.bar_s == 1800
    assert sum(bar.batches for bar in found.bars) == len(batches) and len(found.bars) == 14
    newest, before = found.bars[-1], found.bars[-2]
    assert newest == Bar(NOW, 11, 110, 5, 10.0, 10, 10.0, 5.0)  # 06:00 to 06:10
    assert (before.at, before.batches, before.delay, before.unread) == (NOW - timedelta(minutes=11), 30, 40.0, 40)
    assert (before.seconds, before.commit_seconds) == (29.0, 14.5)
    unknown = batch_counts.make_bars([Bar(NOW)] * (batch_counts.MAX_BARS + 1), DAY, NOW).bars
    assert unknown == [Bar(NOW, batch_counts.MAX_BARS + 1)]


def test_batches_are_counted_by_table_and_staged_ones_by_topic_in_whatever_parts_they_come() -> None:
    staged = [LedgerRow("t", LedgerState.STAGED, "id", 7, p, at=NOW) for p in range(3)]  # of an older version
    published = [
        LedgerRow("t", LedgerState.PUBLISHED, "id", n, table=name, at=NOW - timedelta(minutes=age))
        for n, (name, age) in enumerate([("db.t", 0), ("db.t", 9), ("db.t", 20), ("db.u", 25), ("db.u", 60 * 30)])
    ]
    blocked = LedgerRow("t", LedgerState.BLOCKED, "id", 9, table="db.t", at=NOW)
    parts = [ledger(*staged, *published[:2], blocked), ledger(*published[2:])]
    day, week = (batch_counts.count_batches(parts, (DAY, WEEK), NOW)[each.hours] for each in (DAY, WEEK))
    assert day.first == int((NOW - timedelta(days=1)).timestamp()) // 900
    counted = {key: [n for n in numbers if n] for key, numbers in day.counts.items()}
    assert counted == {(Lane.STAGED, "t"): [1], (Lane.PUBLISHED, "db.t"): [1, 2], (Lane.PUBLISHED, "db.u"): [1]}
    assert [*day.counts[Lane.PUBLISHED, "db.t"]][-2:] == [1, 2]
    assert sum(week.counts[Lane.PUBLISHED, "db.u"]) == 2


def of_batch(lane: Lane, told: str, seconds: int = 0, seq: int = 71, **more: Any) -> Event:
    about = {"table": None if lane == Lane.STAGED else "db.t", "topic": "t", "run_id": "r", "dag": INGEST, **more}
    return Event(NOW - timedelta(seconds=seconds), lane, told, **about, batch=None if lane == Lane.FILES else seq)


BATCH = [
    of_batch(Lane.QUALITY, "t, batch 71: 1 of 2 expectations failed: warn: expect_a(id): 2 of 10 rows fail", bad=True),
    of_batch(Lane.PUBLISHED, "published, t, batch 71, 5,012 records", 1, records=5012, rejected=12, snapshot_id=7),
    of_batch(Lane.FILES, "publish: 2 data files created, 8.0 kB", 2, snapshot_id=7),
    of_batch(Lane.STAGED, "staged, t, batch 71, 5,012 records", 3, records=5012),
    of_batch(Lane.CATALOG, "retried, t, batch 71, CommitStateUnknownException: no answer", 4, bad=True),
]


def test_the_events_of_a_batch_in_one_run_are_one_line() -> None:
    (line,) = merge_lines(BATCH, "db.t")
    assert line.told == (
        "batch 71: 5,000 records published, 12 quarantined, retried, CommitStateUnknownException: no answer, "
        "1 of 2 expectations failed: warn: expect_a(id): 2 of 10 rows fail, 2 data files created, 8.0 kB"
    )
    assert (line.main, line.snapshot_id) == (BATCH[1], 7) and line.failures == [Lane.QUALITY, Lane.CATALOG]
    (everywhere,) = merge_lines(BATCH)  # among all tables: the staging of the topic is in its table's line
    assert everywhere.told == f"t, {line.told}" and everywhere.main.table == "db.t"
    refused = of_batch(Lane.REFUSED, "blocked, t, batch 72, too many bad records", 5, 72, bad=True, run_id="q")
    again = of_batch(Lane.REFUSED, "blocked, t, batch 72, too many bad records", 9, 72, bad=True, run_id="p")
    waits = of_batch(Lane.STAGED, "staged, t, batch 72, 9 records", 6, 72, records=9, run_id="q")
    lines = merge_lines([*BATCH, refused, waits, again], "db.t")
    assert [each.told for each in lines[1:]] == ["batch 72: blocked, too many bad records"] * 2
    alone = [
        of_batch(Lane.STAGED, "staged, u, batch -1", 1, -1, records=1, topic="u"),
        of_batch(Lane.QUALITY, "t, batch 70: 4 expectations, none failed", 2, 70),
        of_batch(Lane.FILES, "append: 1 data file created, 8.0 kB", 3, snapshot_id=8),
        Event(NOW - timedelta(minutes=1), Lane.OPERATOR, "gap, t, batch 0, ann: lost", "db.t", "t", batch=0),
    ]
    assert [each.told for each in merge_lines(alone, "db.t")] == [
        "u, slice -1: 1 record staged", "t, batch 70: 4 expectations, none failed", alone[2].told, alone[3].told,
    ]  # fmt: skip


def test_lines_of_the_same_time_are_on_one_page() -> None:
    events = [Event(NOW - timedelta(seconds=n // 3), Lane.MAINTENANCE, str(n), "db.t") for n in range(10)]
    lines = merge_lines(events)
    pages, before = [], None
    while True:
        page = select_page(lines, before, 4)
        pages.append([line.told for line in page.lines])
        if page.older is None:
            break
        before = page.older
    assert pages == [["0", "1", "2", "3", "4", "5"], ["6", "7", "8", "9"]]
    assert select_page(lines, NOW - timedelta(hours=1)) == ([], 11, 10, None, None)
