"""The pages keep and show a bounded amount of data, and retry failed readings soon."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sluice import timeouts
from sluice.errors import CatalogUnavailableError
from sluice.offsets import OffsetRange
from sluice.pages import feed, render
from sluice.pages.feed import Feed

pytestmark = pytest.mark.unit


def test_what_failed_at_once_is_tried_again_soon_however_long_it_takes_when_it_goes_well() -> None:
    answers: list[Any] = [0.3, CatalogUnavailableError("It is away."), 0.0]

    def read() -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        time.sleep(answer)
        return float(answer)

    mine = Feed(read, fresh=0.0)
    assert mine.get(wait=10).value == 0.3
    while "away" not in (mine.get().error or ""):
        time.sleep(0.005)
    failed = time.monotonic()
    while mine.get().error:
        time.sleep(0.005)
    assert time.monotonic() - failed < 0.3 * feed.REST_FACTOR / 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "OSError: key 'w/q/table=db.other/0.parquet' in bucket 'b': SLOW_DOWN",
            "OSError: key '…' in bucket 'b': SLOW_DOWN",
        ),
        ("ConnectionError: (url: https://c/v1/ns/db/tables/other) and/or else", "ConnectionError: (url: … and/or else"),
        ("Kafka at b:9092/1, c:9092 did not answer.", "Kafka at b:9092/1, c:9092 did not answer."),
    ],
)
def test_an_error_that_all_may_see_names_no_files(text: str, told: str) -> None:
    def read() -> None:
        raise CatalogUnavailableError(text, next_step="")

    mine = Feed(read)
    while not mine.get().error:
        time.sleep(0.005)
    assert mine.get().error == told


def test_a_catalog_that_never_answers_takes_few_threads_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), list[int]()

    def ask() -> bool:
        begun.append(1)
        return gate.wait(60)

    for _ in range(50):
        with pytest.raises(TimeoutError):
            timeouts.call_with_timeout(0.01, ask)
    assert len(begun) == 1
    monkeypatch.setattr(timeouts, "RETRY_INTERVAL_S", 0.2)
    until = time.monotonic() + 1.5  # a second one after 0.2 s, the next after 0.4, 0.6
    while time.monotonic() < until:
        with pytest.raises(TimeoutError):
            timeouts.call_with_timeout(0.01, ask)
    assert 2 <= len(begun) <= 4
    gate.set()
    while any(thread.is_alive() for thread, _ in timeouts._unanswered):
        time.sleep(0.005)
    assert timeouts.call_with_timeout(5, lambda: 1) == 1


def test_a_reading_that_hangs_for_days_is_tried_again_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given up three times and then never again, though the catalog was long back."""
    monkeypatch.setattr(feed, "GIVEN_UP_S", 0.05)
    gate, begun = threading.Event(), list[float]()

    def read() -> int:
        begun.append(time.monotonic())
        return len(begun) if len(begun) > 6 else gate.wait(60)

    mine = Feed(read, fresh=0.0)
    while mine.get().value is None:
        time.sleep(0.002)
    gate.set()
    assert begun[6] - begun[0] > 0.9 * 0.05 * (1 + 2 + 3 + 4 + 5 + 6)


def test_who_does_not_look_again_gets_no_old_value_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON and metrics told what the caller before them had caused to be read, an hour ago perhaps."""
    gate, begun = threading.Event(), list[int]()

    def read() -> int:
        begun.append(1)
        gate.wait(60 if len(begun) == 3 else 0.02)
        return len(begun)

    mine = Feed(read, fresh=0.5)
    first = mine.get(until=0.0)
    assert (first.value, first.error) == (None, None)
    assert mine.get(wait=10).value == 1
    time.sleep(0.6)
    began = time.monotonic()
    assert mine.get(until=began + 60).value == 2 and time.monotonic() - began < 30
    assert mine.get(until=began + 60).value == 2 and len(begun) == 2  # of now: there is nothing to wait for
    time.sleep(0.6)
    slow = mine.get(until=time.monotonic() + 0.01)
    assert (slow.value, slow.error) == (2, None)  # as old as it may be where reading takes longer than anybody waits
    monkeypatch.setattr(feed, "HANGS_S", 0.1)
    monkeypatch.setattr(feed, "SLOW_FACTOR", 3000)  # nothing hangs yet
    time.sleep(0.5)
    assert mine.get().error is None  # a page says of when it is, and looks again
    old = mine.get(until=time.monotonic() + 0.01)
    assert old.value == 2 and old.error is not None and " old and being read again" in old.error
    gate.set()
    while mine.get().value == 2:
        time.sleep(0.005)
    assert mine.get(until=time.monotonic() + 60).error is None


def test_what_takes_long_because_there_is_much_to_read_is_not_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 120 s on it was told as hanging, each time anew, and its slot was given away after 600 s."""
    monkeypatch.setattr(feed, "REST_FACTOR", 0)
    monkeypatch.setattr(feed, "MAX_CONCURRENT", 1)
    gate, begun, slots = threading.Event(), list[float](), feed.Slots()

    def read() -> int:
        begun.append(time.monotonic())
        if len(begun) < 3:
            time.sleep(0.3)
        else:
            gate.wait(60)
        return len(begun)

    mine, other = Feed(read, fresh=0.0, slots=slots), Feed(lambda: 0, slots=slots)
    assert mine.get(wait=60).value == 1  # before that nobody knows how long it takes
    monkeypatch.setattr(feed, "HANGS_S", 0.02)
    monkeypatch.setattr(feed, "GIVEN_UP_S", 0.04)
    while (found := mine.get()).value == 1:
        assert found.error is None and len(begun) == 2
        assert not found.busy or other.get().value is None
        time.sleep(0.005)
    while not (late := mine.get()).error:
        time.sleep(0.005)
    assert len(begun) == 3 and time.monotonic() - begun[2] >= 0.3 * feed.SLOW_FACTOR
    assert late.value == 2 and "No answer for" in late.error
    gate.set()


def test_what_waits_for_others_that_hang_is_not_shown_as_if_it_were_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hang = threading.Event(), list[str]()

    def read(name: str) -> str:
        if name != "mine":
            hang.append(name)
            gate.wait(60)
        return name

    mine = feed.Feeds(read, fresh=0.0, slots=feed.Slots())
    try:
        assert mine.get_feed("mine").get(wait=10).value == "mine"
        while len(hang) < feed.MAX_CONCURRENT:
            for n in range(feed.MAX_CONCURRENT):
                mine.get_feed(f"other {n}").get()
        assert mine.get_feed("mine").get().error is None
        monkeypatch.setattr(feed, "HANGS_S", 0.05)
        while not (late := mine.get_feed("mine").get()).error:
            time.sleep(0.005)
        assert late.value == "mine" and "earlier readings do not answer" in late.error
    finally:
        gate.set()
    while mine.get_feed("mine").get().error:
        time.sleep(0.005)


def test_of_too_many_names_the_longest_idle_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_FEEDS", 2)
    mine = feed.Feeds(lambda name: name, fresh=3600.0)
    first, second = mine.get_feed("a"), mine.get_feed("b")
    assert mine.get_feed("a") is first
    mine.get_feed("c")
    assert mine.get_feed("a") is first and mine.get_feed("b") is not second


def test_the_offsets_of_a_thousand_partitions_are_cut() -> None:
    of = {p: OffsetRange(0, p) for p in range(1000)}
    assert render.format_ranges({p: of[p] for p in (2, 1)}) == "partition 1: 0, partition 2: 0 to 1"
    assert render.format_ranges(of).endswith("partition 49: 0 to 48, and 950 more partitions")
