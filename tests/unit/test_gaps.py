"""What is given up, as values: in batches, in snapshot summaries, in words of the ledger; and the schedule's pauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice import words
from sluice.ahead import _given_up, _without
from sluice.broker import TopicState
from sluice.errors import OffsetsLostError
from sluice.kafka_retention import interval
from sluice.ledger import Row, State, batches, plan_rows
from sluice.model import GAPS, Batch, OffsetRange, batches_of, joined, publish_properties

pytestmark = pytest.mark.unit

R = OffsetRange


def batch(seq: int, start: int, end: int, **gaps: tuple[int, int]) -> Batch:
    given_up = {int(p[1:]): (R(*g),) for p, g in gaps.items()}
    return Batch("t", "id", seq, {0: R(start, end)}, {0: end}, given_up)


def word(start: int, end: int, *, topic_id: str = "id", table: str | None = None) -> Row:
    return Row(
        "t", State.GAP, topic_id, partition=0, start_offset=start, end_offset=end, table=table, who="ann", why="w"
    )


def test_a_summary_carries_each_batchs_gaps_and_the_whole():
    several = [batch(1, 0, 10, p0=(0, 10)), batch(2, 10, 20, p0=(10, 13)), batch(3, 20, 30), batch(4, 30, 40)]
    several.append(batch(5, 40, 50, p0=(40, 41)))
    properties = publish_properties(several)
    assert properties[GAPS] == '{"0":[[0,10],[10,13],[40,41]]}'
    told = batches_of(properties)
    assert told == several
    assert [b.gaps for b in told] == [b.gaps for b in several]
    assert joined(several).span == 50 - 14
    assert joined(several).ranges == {0: (0, 50)}
    assert [b.to_read for b in several[:2]] == [{}, {0: (13, 20)}]
    assert batches_of(publish_properties(several[2:3]))[0].gaps == {}
    assert GAPS not in publish_properties(several[2:4])


@pytest.mark.parametrize(
    ("accepted", "low", "expected"),
    [
        ([], 10, {}),
        ([(10, 13)], 13, {0: R(10, 13)}),
        ([(10, 13), (13, 15)], 15, {0: R(10, 15)}),
        ([(0, 99)], 12, {0: R(10, 12)}),  # what Kafka holds is read, whatever was said
        ([(0, 99)], 80, {0: R(10, 40)}),
    ],
)
def test_no_more_is_passed_over_than_is_lost(accepted, low, expected):
    state = TopicState("t", "id", {0: R(low, 90)}, compacted=False, retention_ms=-1)
    assert _given_up("t", {0: R(10, 40)}, state, {0: [R(*a) for a in accepted]}) == expected


@pytest.mark.parametrize(
    ("accepted", "low", "rest"),
    [
        ([], 13, (10, 13)),
        ([(10, 13)], 14, (13, 14)),
        ([(11, 14)], 14, (10, 14)),
        ([(10, 12), (13, 14)], 14, (12, 14)),
        ([(0, 10), (14, 99)], 14, (10, 14)),
        ([(10, 40)], 99, None),
    ],
)
def test_what_nobody_accepted_is_named(accepted, low, rest):
    state = TopicState("t", "id", {0: R(low, 99)}, compacted=False, retention_ms=-1)
    ranges, said = {0: R(10, 40)}, {0: [R(*a) for a in accepted]}
    if rest is None:
        assert _given_up("t", ranges, state, said) == {0: R(10, 40)}
        return
    with pytest.raises(OffsetsLostError) as stop:
        _given_up("t", ranges, state, said)
    assert stop.value.fields["lost"] == {0: rest}


def test_each_frozen_batch_gets_its_share():
    lost = {0: R(0, 15)}
    shares = [_without(b, lost).gaps for b in (batch(1, 0, 10), batch(2, 10, 20), batch(3, 20, 30))]
    assert shares == [{0: (R(0, 10),)}, {0: (R(10, 15),)}, {}]


def test_words_are_of_one_topic_and_of_one_table():
    said = [word(5, 8), word(0, 5), word(7, 9), word(20, 30, topic_id="older"), word(40, 50, table="db.a")]
    assert words.accepted(said, "t", "id") == {0: [R(0, 9)]}
    assert words.accepted(said, "t", "id", "db.a") == {0: [R(40, 50)]}
    assert words.with_gaps(batch(3, 8, 60), said).gaps == {0: (R(8, 9),)}
    assert words.covers(said, batch(3, 41, 50), "db.a")
    assert not words.covers(said, batch(3, 41, 51), "db.a")
    assert not words.covers(said, batch(3, 0, 9), "db.a")
    assert words.untold(batch(1, 0, 20, p0=(0, 9)), said) == []
    (row,) = words.untold(batch(1, 0, 20, p0=(0, 10)), said)
    assert (row.start_offset, row.end_offset, row.who) == (0, 10, None)
    # A word is no batch.
    assert batches([*plan_rows(batch(1, 0, 10)), *said]) == {("t", 1): batch(1, 0, 10)}


@pytest.mark.parametrize(
    ("schedule", "pause"),
    [
        ("*/5 * * * *", timedelta(minutes=5)),
        ("0 6 * * 1-5", timedelta(days=3)),
        ("@hourly", timedelta(hours=1)),
        ("@quarterly", timedelta(days=92)),
        ("@continuous", timedelta(0)),
        ("@once", None),
        (None, None),
        ("1 2 3 4 99", None),
    ],
)
def test_the_longest_pause_of_a_schedule(schedule, pause):
    assert interval(schedule, datetime(2026, 1, 1, tzinfo=UTC)) == pause
