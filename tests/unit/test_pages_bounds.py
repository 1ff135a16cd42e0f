"""What the pages keep, and how much of it they show, has an end; and what failed is not left so for long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sluice.errors import CatalogUnavailableError
from sluice.model import OffsetRange
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
    assert time.monotonic() - failed < 0.3 * feed.REST / 2


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
        raise CatalogUnavailableError(text, way_out="")

    mine = Feed(read)
    while not mine.get().error:
        time.sleep(0.005)
    assert mine.get().error == told


def test_of_too_many_names_the_longest_idle_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST", 2)
    mine = feed.Feeds(lambda name: name, fresh=3600.0)
    first, second = mine.of("a"), mine.of("b")
    assert mine.of("a") is first
    mine.of("c")
    assert mine.of("a") is first and mine.of("b") is not second


def test_the_offsets_of_a_thousand_partitions_are_cut() -> None:
    of = {p: OffsetRange(0, p) for p in range(1000)}
    assert render.ranges({p: of[p] for p in (2, 1)}) == "1: [0, 1)  2: [0, 2)"
    assert render.ranges(of).endswith("49: [0, 49)  and 950 partitions more")
