"""Whatever is sent, however it is cut into batches, retried and replayed: the table equals the fold of the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from sluice import cursor, tables
from sluice.publish import publish
from sluice.stage import stage
from tests.support.lake import Lake

pytestmark = pytest.mark.usefixtures("generated_code")

KEYS = [f"k{n}" for n in range(6)]
change = st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 10_000)))
send = st.tuples(st.just("send"), st.lists(change, min_size=1, max_size=12))
act = st.one_of(
    send,
    st.tuples(st.just("run"), st.integers(1, 9)),
    st.tuples(st.just("again"), st.integers(0, 20)),
    st.tuples(st.just("replay"), st.integers(0, 20)),
)


def home(key: str) -> int:
    """A key stays in one partition, as with Kafka's own partitioner."""
    return KEYS.index(key) % 2


class World:
    """One topic with an upsert table and an append table, and the acts that may befall them."""

    def __init__(self, it: Lake) -> None:
        self.it = it
        it.create_topic(2)
        self.merged, self.appended = it.contract(mode="upsert"), it.contract(errors={"max_ratio": 1.0})

    def send(self, changes: list[tuple[str, int | None]]) -> None:
        self.it.send((home(k), k, None if n is None else {"n": n, "text": str(n)}) for k, n in changes)

    def run(self, cap: int) -> None:
        """A run whose batches hold at most `cap` records."""
        for table, more in ((self.merged, {"mode": "upsert"}), (self.appended, {"errors": {"max_ratio": 1.0}})):
            self.it.contract(table=table, limits={"records_per_batch": cap, "batches_per_run": 3}, **more)
        self.it.run()

    def again(self, which: int) -> None:
        """A retry of any earlier stage and publish: they find that it is done."""
        batches = self._batches()
        if batches:
            batch = batches[which % len(batches)]
            assert stage(self.it.context(), batch, gaps_expected=False).snapshot_id is None
            for table in (self.merged, self.appended):
                assert publish(self.it.context(), self.it.loaded(table), batch).snapshot_id is None

    def replay(self, which: int) -> None:
        """An older range is applied once more, after newer ones."""
        batches = self._batches()
        if batches:
            for table in (self.merged, self.appended):
                publish(self.it.context(), self.it.loaded(table), batches[which % len(batches)], replay=True)

    def _batches(self) -> list[Any]:
        staging = tables.load(self.it.catalog, tables.staging(self.it.topic))
        found = cursor.staged_batches(staging)
        return [found[seq][0] for seq in sorted(found)]

    def check(self) -> None:
        """Run until nothing is left, then ask the oracle."""
        while self.it.plan().has_work:
            self.it.run()
        self.it.assert_folded(self.merged)
        gone = [(p, o) for p, by in self.it.sent.items() for o, (_, value) in by.items() if value is None]
        self.it.assert_appended(self.appended, without=gone)
        assert len(self.it.quarantined(self.appended)) == len(gone)


def test_the_table_is_the_fold_of_the_log(lake: Callable[..., Lake]) -> None:
    began = time.monotonic()

    @settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.tuples(send, st.tuples(st.just("run"), st.integers(1, 9)), st.lists(act, min_size=2, max_size=5)))
    def prove(acts: tuple[Any, Any, list[Any]]) -> None:
        if time.monotonic() - began > 240:
            return  # a slow machine proves fewer examples, never none: the first has run by then
        world = World(lake())
        for name, argument in (*acts[:2], *acts[2]):
            note(f"{name} {argument}")
            getattr(world, name)(argument)
        world.check()

    prove()
