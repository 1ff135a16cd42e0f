"""When unread records start a run: docs/reference/groups.md, on_data."""

from __future__ import annotations

from itertools import pairwise

from sluice.plan.unread import StartCondition

HERE, THERE = {"orders": {0: 100}}, {"orders": {0: 200}}


def test_a_run_is_due_with_enough_records_or_after_the_wait():
    condition = StartCondition(min_records=50, max_wait=30)
    assert condition.is_due(50, HERE, now=5.0)
    assert not condition.is_due(49, {}, now=6.0)
    assert not condition.is_due(1, HERE, now=34.0)
    assert condition.is_due(1, HERE, now=35.0)


def test_the_wait_begins_anew_when_all_was_read():
    condition = StartCondition(min_records=50, max_wait=30)
    assert not condition.is_due(1, HERE, now=0.0)
    assert not condition.is_due(0, HERE, now=20.0)
    assert not condition.is_due(1, THERE, now=40.0)
    assert condition.is_due(1, THERE, now=70.0)


def test_a_run_that_moves_no_cursor_is_started_again_after_growing_pauses():
    condition, starts = StartCondition(min_records=1, max_wait=0), []
    for now in range(3 * 3600):
        if condition.is_due(7, HERE, now=float(now)):
            starts.append(now)
            condition.start(HERE, now=float(now))
    pauses = [after - before for before, after in pairwise(starts)]
    assert pauses == [60, 120, 240, 480, 960, *[1800] * 4]
    # A cursor has moved: it is started at once, and the pauses begin anew.
    now = float(starts[-1] + 1)
    assert condition.is_due(7, THERE, now=now)
    condition.start(THERE, now=now)
    assert not condition.is_due(7, THERE, now=now + 59)
    assert condition.is_due(7, THERE, now=now + 60)
