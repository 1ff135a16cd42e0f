"""Which tables the rounds of a continuous group leave out after a failure."""

from __future__ import annotations

from sluice.errors import BlockedError, FencedError
from sluice.ingest.rounds import Holds


def test_a_failed_table_waits_twice_as_long_each_time() -> None:
    holds, error = Holds(), BlockedError("too many", table="db.a")
    waits = []
    now = 0.0
    for _ in range(7):
        holds.note(["db.a", "db.b"], {"db.a": error}, now)
        began = now
        while "db.a" in holds.errors(now):
            now += 1
        waits.append(now - began)
    assert waits == [60, 120, 240, 300, 300, 300, 300]
    assert holds.errors(now) == {}


def test_a_success_forgets_the_failures() -> None:
    holds = Holds()
    holds.note(["db.a"], {"db.a": ValueError("no")}, 0)
    holds.note(["db.a"], {"db.a": ValueError("no")}, 60)
    assert str(holds.errors(61)["db.a"]).startswith("ValueError: no")
    holds.note(["db.a"], {}, 180)
    assert holds.errors(181) == {}
    holds.note(["db.a"], {"db.a": ValueError("no")}, 200)
    assert "db.a" in holds.errors(259)
    assert holds.errors(260) == {}


def test_a_table_that_was_overtaken_is_tried_in_the_next_round_and_then_waits() -> None:
    holds, error = Holds(), FencedError("Main moved.", table="db.a")
    holds.note(["db.a"], {"db.a": error}, 0)
    assert holds.errors(0) == {}
    holds.note(["db.a"], {"db.a": error}, 2)
    assert "db.a" in holds.errors(61)
    assert holds.errors(62) == {}
    holds.note(["db.a"], {"db.a": error}, 62)
    assert "db.a" in holds.errors(181)
