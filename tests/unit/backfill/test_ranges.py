"""The ranges that a backfill plans and the requests that it refuses, without Kafka or a catalog."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.backfill import ranges
from sluice.backfill.ranges import RangeSources, Request, parse_time, resolve_ranges
from sluice.batch import BATCH_SEQ, NEXT_OFFSETS, Batch, PublishedOffsets
from sluice.errors import RefusedError, TopicRecreatedError
from sluice.iceberg import refs
from sluice.kafka.broker import TopicState
from sluice.ledger import slices
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange
from sluice.operate import operator_input

pytestmark = pytest.mark.unit

MARKS = {0: OffsetRange(100, 500), 1: OffsetRange(0, 300)}
EARLY, LATE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)


def batch(seq: int, **ranges: tuple[int, int]) -> Batch:
    found = {int(p[1:]): OffsetRange(*r) for p, r in ranges.items()}
    return Batch("t", "id", seq, found, {p: r.end for p, r in found.items()} if seq > 0 else {})


def sources(*staged: Batch, live_ingest_start: dict[int, int] | None = None) -> RangeSources:
    reached = {p: r.end for p, r in MARKS.items()}
    return RangeSources(TopicState("t", "id", MARKS, False, -1), staged, live_ingest_start, None, reached)


def resolved(known: RangeSources, ranges: dict[int, Any] | None = None, **more: Any) -> dict[int, OffsetRange]:
    return resolve_ranges(Request("db.t", ranges or {}, **more), known, None).ranges  # type: ignore[arg-type]


def test_ranges_are_taken_as_they_are_named() -> None:
    assert resolved(sources(), {1: [0, 300], 0: [100, 101]}) == {0: (100, 101), 1: (0, 300)}
    # Staging may hold what Kafka does not.
    assert resolved(sources(), {0: [3, 101]}, origin=Origin.STAGING) == {0: (3, 101)}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"0": [0, 10], "00": [20, 30]}, "'00' is not a partition"),
        ({"9" * 5000: [0, 10]}, "'9+…' is not a partition"),
        ({"4294967296": [0, 10]}, "is not a partition"),
        ({"0\n": [0, 10]}, "is not a partition"),
        ({"-1": [0, 10]}, "is not a partition"),
        ({"7": [0.0, 5.0]}, r"Partition 7: '\[0\.0, 5\.0\]' is not a range"),
        ({"7": "12"}, "Partition 7"),
        ({"7": [False, True]}, "Partition 7"),
        ({"7": [1]}, "Partition 7"),
        ({"7": {"1": 2, "3": 4}}, "Partition 7"),
        ({"7": [-1, 5]}, "offsets are from 0"),
        ({"7": [0, 2**63]}, "offsets are from 0"),
        ([[0, 1]], "is not a JSON object of ranges"),
    ],
)
def test_ranges_are_named_in_one_way_or_refused(given: Any, says: str) -> None:
    with pytest.raises(RefusedError, match=says) as refused:
        operator_input.parse_ranges(given)
    assert "Next step: Write it as" in str(refused.value)
    assert len(str(refused.value)) < 300
    with pytest.raises(RefusedError, match=says):
        operator_input.parse_ranges_json(json.dumps(given))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"0": [1, 5], "0": [7, 9]}', "Partition '0' is given twice"),
        ('{"0": [1.9, 5.2]}', "Partition 0"),
        ('{"0": [1, 1e999]}', "Partition 0"),
        ('{"0": [1, ' + "9" * 5000 + "]}", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("0:1-5", "is not valid JSON"),
        ("{}", "No range is given"),
    ],
)
def test_ranges_on_the_command_line_are_no_guess(text: str, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        operator_input.parse_ranges_json(text)


def test_ranges_that_are_named_well_are_taken() -> None:
    assert operator_input.parse_ranges_json('{"0": [100, 5000], "17": [0, 1]}') == {0: (100, 5000), 17: (0, 1)}
    assert operator_input.parse_ranges({}) == {}


def test_without_a_time_it_is_all_before_the_live_feed() -> None:
    assert resolved(sources(live_ingest_start={0: 200, 1: 0})) == {0: (100, 200)}
    # A partition that was added later has no history, though Kafka has records of it.
    assert resolved(sources(live_ingest_start={0: 200})) == {0: (100, 200)}
    staged = batch(-1, p0=(20, 100))
    assert resolved(sources(staged, live_ingest_start={0: 200}), origin=Origin.STAGING) == {0: (20, 200)}


@pytest.mark.parametrize(
    ("ranges", "more", "says"),
    [
        ({0: [200, 150]}, {}, "ends before it starts"),
        ({0: [200, 200]}, {}, "is empty"),
        ({7: [0, 5]}, {}, "no partition 7.*It has 0, 1"),
        ({0: [200, 501]}, {}, "after the log end offset, 500"),
        (
            {0: [90, 200]},
            {},
            r"start offset is 100.*range \[90, 200\].*Start at 100.*staging lacks \[\(90, 100\)\]",
        ),
        ({0: [200, 300]}, {"since": EARLY}, "Both ranges and a time"),
        ({}, {"since": LATE, "until": EARLY}, "before it starts"),
        ({}, {}, "The first offset of live ingest is unknown"),
        ({}, {"origin": Origin.QUARANTINE}, "quarantine holds no record"),
    ],
)
def test_what_can_not_be_is_refused_with_the_reason(ranges: dict[int, Any], more: dict[str, Any], says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        resolved(sources(), ranges, **more)


def test_it_is_told_when_staging_holds_what_kafka_has_lost() -> None:
    with pytest.raises(RefusedError, match="staging has all: use source staging"):
        resolved(sources(batch(1, p0=(80, 120))), {0: [90, 200]})


def test_nothing_before_the_live_feed_is_nothing_to_do() -> None:
    with pytest.raises(RefusedError, match="nothing in that time"):
        resolved(sources(live_ingest_start={0: 100, 1: 0}))


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31T06:00:00", "2026-01-31"])
def test_a_moment_has_a_time_zone(text: str) -> None:
    with pytest.raises(RefusedError, match=f"since is '{text}'"):
        parse_time(text, "since")
    assert parse_time(" ", "since") is None
    assert parse_time("2026-01-01T00:00:00Z", "since") == EARLY


def test_what_staging_lacks_is_exact() -> None:
    held = [batch(1, p0=(0, 50), p1=(0, 10)), batch(2, p0=(60, 80)), batch(-1, p0=(50, 55))]
    wanted = {0: OffsetRange(10, 90), 1: OffsetRange(0, 10), 2: OffsetRange(5, 6)}
    assert slices.find_missing_ranges(wanted, held) == {0: [(55, 60), (80, 90)], 2: [(5, 6)]}
    assert slices.find_missing_ranges({0: OffsetRange(10, 55)}, held) == {}


def test_a_range_lies_below_the_tables_cursor() -> None:
    through = PublishedOffsets(4, "id", {0: 50, 1: 10})
    ranges.check_below_cursor("db.t", batch(-1, p0=(0, 50), p1=(3, 10)), through)
    with pytest.raises(RefusedError, match=r"\{0: \(51, 50\), 2: \(1, 0\)\}"):
        ranges.check_below_cursor("db.t", batch(-1, p0=(0, 51), p2=(0, 1)), through)
    with pytest.raises(TopicRecreatedError):
        ranges.check_below_cursor("db.t", batch(-1, p0=(0, 5)), PublishedOffsets(4, "other", {0: 50}))
    with pytest.raises(RefusedError, match="has published nothing"):
        ranges.check_below_cursor("db.t", batch(-1, p0=(0, 5)), None)


def test_a_slice_carries_no_cursor_and_is_read_back() -> None:
    piece = batch(-3, p0=(5, 9))
    told = piece.properties()
    assert not {BATCH_SEQ, NEXT_OFFSETS} & set(told)
    assert Batch.from_properties(told) == piece
    assert str(piece) == 't backfill -3 {"0":[5,9]}'


def test_branches_of_slices_are_not_taken_for_those_of_batches() -> None:
    mine, batches = refs.new_branch_name("t", -3), refs.new_branch_name("t", 3)
    assert refs.is_finished_branch(batches, {"t": 3})
    assert not refs.is_finished_branch(mine, {"t": 9})
    assert not refs.is_finished_branch(refs.refused_branch_name("t", -3), {"t": 9})
    assert refs.is_branch_of(mine, "t", -3)
    assert not any(refs.is_branch_of(mine, *other) for other in (("t", 3), ("t", -31), ("u", -3)))
