"""For any sequence of batches, kills, retries, rollbacks and replays the tables equal the records that were sent.

Each run tries the same few examples; `SLUICE_PROPERTY_EXAMPLES=100` tries 100 random ones.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from sluice.errors import RefusedError
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.publish import publish
from sluice.ingest.stage import stage
from sluice.ledger.offsets_table import Ledger
from sluice.operate import rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from tests.support.lake import Lake
from tests.support.thorough import THOROUGH

pytestmark = [pytest.mark.usefixtures("generated_code"), pytest.mark.timeout(0)]

EXAMPLES = int(os.environ.get("SLUICE_PROPERTY_EXAMPLES", "0"))
# A key stays in one partition, as with Kafka's own partitioner; the last two live in the one that may be added.
HOMES = {"k0": 0, "k1": 1, "k2": 0, "k3": 1, "k4": 0, "k5": 1, "late0": 2, "late1": 2}


def changes(keys: Iterable[str]) -> st.SearchStrategy[list[tuple[str, int | None]]]:
    change = st.tuples(st.sampled_from(sorted(keys)), st.one_of(st.none(), st.integers(0, 10_000)))
    return st.lists(change, min_size=1, max_size=12)


# Into all partitions, or into one: a batch need not read each. What is sent later may say that it happened earlier: how
# late, in seconds.
into = st.one_of(changes(HOMES), st.sampled_from([0, 1]).flatmap(lambda p: changes(k for k in HOMES if HOMES[k] == p)))
send = st.tuples(st.just("send"), st.integers(0, 9), into)
run = st.tuples(st.just("run"), st.integers(1, 9))
act = st.one_of(
    send,
    run,
    st.tuples(st.just("killed"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("overtaken"), st.integers(0, 5), st.integers(1, 4)),
    st.tuples(st.just("again"), st.integers(0, 20)),
    st.tuples(st.just("replay"), st.integers(0, 20)),
    st.tuples(st.just("grow")),
)


class Killed(BaseException):
    """No step may catch it, as none lives on after a kill."""


class World:
    """One topic with its tables, and the acts that may befall them.

    Attributes:
        merged: by the order of the log.
        ordered: by the time that records name; what is late loses.
        appended: all of them; tombstones are no rows.
    """

    def __init__(self, it: Lake) -> None:
        self.it = it
        it.create_topic(2)
        self.partitions, self.began_ms = 2, int(time.time() * 1000)
        self.said: dict[str, list[tuple[int, int | None]]] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        for more in (
            {"mode": "upsert"},
            {"mode": "upsert", "order": ["_kafka_timestamp"]},
            {"errors": {"max_ratio": 1.0}},
        ):
            self.settings[it.contract(**more)] = more
        self.merged, self.ordered, self.appended = self.settings

    def send(self, late: int, changes: list[tuple[str, int | None]]) -> None:
        at = self.began_ms - 1000 * late
        there = [(k, n) for k, n in changes if HOMES[k] < self.partitions]
        for key, n in there:
            self.said.setdefault(key, []).append((at, n))
        values = ((k, None if n is None else {"n": n, "text": str(n)}) for k, n in there)
        self.it.send(((HOMES[k], k, value) for k, value in values), timestamp_ms=at)

    def run(self, cap: int) -> None:
        """A run whose batches hold at most `cap` records."""
        for table, more in self.settings.items():
            self.it.contract(table=table, limits={"records_per_batch": cap, "batches_per_run": 3}, **more)
        self.it.run()

    def killed(self, number: int, after: bool) -> None:
        """A run whose driver dies at one of its commits, before it or after; nothing is tidied up."""
        calls = itertools.count()
        original = BranchWrite.fast_forward_main

        def stopped(attempt: BranchWrite) -> Any:
            if next(calls) != number:
                return original(attempt)
            if after:
                original(attempt)
            attempt._opened = False
            raise Killed

        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            patch.setattr(BranchWrite, "fast_forward_main", stopped)
            self.it.run()

    def overtaken(self, number: int, back: int) -> None:
        """A run that goes on after the tables were rolled back so many snapshots, before one of its commits."""
        calls = itertools.count()
        original = BranchWrite.fast_forward_main

        def stopped(attempt: BranchWrite) -> Any:
            if next(calls) == number:
                for table in self.settings:
                    self._roll_back(table, back)
            return original(attempt)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BranchWrite, "fast_forward_main", stopped)
            self.it.run()

    def _roll_back(self, table: str, back: int) -> None:
        line = list(snapshots.ancestors(self.it.catalog.load_table(table).metadata))
        ledger = Ledger(self.it.catalog)
        with suppress(RefusedError):  # there is nothing to go back to
            to = line[min(back, len(line) - 1)].snapshot_id if line else None
            found = rollback.preview_rollback(
                table, self.it.contracts, self.it.catalog, ledger, RestorePoint(snapshot_id=to)
            )
            assert not found.lost
            rollback.roll_back(found, self.it.catalog, ledger, Decision("ann", "to see", "by hand"))

    def again(self, which: int) -> None:
        """A retry of any earlier stage and publish: they find that it is done."""
        for batch in self._published(which):
            assert stage(self.it.context(), batch, gaps_expected=False).snapshot_id is None
            for table in self.settings:
                assert publish(self.it.context(), self.it.contract_of(table), batch).snapshot_id is None

    def replay(self, which: int) -> None:
        """An older range is applied once more, after newer ones."""
        for batch in self._published(which):
            for table in self.settings:
                publish(self.it.context(), self.it.contract_of(table), batch, replay=True)

    def grow(self) -> None:
        """A partition is added, once."""
        if self.partitions == 2:
            self.it.add_partitions(3)
            self.partitions = 3

    def _published(self, which: int) -> list[Any]:
        """One of the batches that all tables hold, if there is any."""
        found = cursor.read_staged_batches(tables.load(self.it.catalog, table_names.staging(self.it.topic)))
        loaded = [cursor.read_table_cursor(self.it.catalog.load_table(name)) for name in self.settings]
        done = min(through[self.it.topic].seq if self.it.topic in through else 0 for through in loaded)
        known = [found[seq][0] for seq in sorted(found) if seq <= done]
        return [known[which % len(known)]] if known else []

    def check(self) -> None:
        """Run until nothing is left, then ask the oracle."""
        while self.it.plan().has_work:
            self.it.run()
        self.it.assert_folded(self.merged)
        last = {
            key: max(enumerate(said), key=lambda each: (each[1][0], each[0]))[1][1] for key, said in self.said.items()
        }
        self.it.assert_folded(self.ordered, {key: {"n": n} for key, n in last.items() if n is not None})
        gone = [(p, o) for p, by in self.it.sent.items() for o, (_, value) in by.items() if value is None]
        self.it.assert_appended(self.appended, without=gone)
        assert len(self.it.quarantined(self.appended)) == len(gone)


def test_the_tables_are_the_fold_of_the_log(lake: Callable[..., Lake]) -> None:
    began = time.monotonic()

    @settings(
        max_examples=EXAMPLES or (5 if THOROUGH else 3),
        deadline=None,
        derandomize=not EXAMPLES,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.tuples(send, run, st.lists(act, min_size=2, max_size=6)))
    def prove(acts: tuple[Any, Any, list[Any]]) -> None:
        if not EXAMPLES and time.monotonic() - began > 240:
            return  # a slow machine proves fewer examples, never none: the first has run by then
        world = World(lake())
        for name, *arguments in (*acts[:2], *acts[2]):
            note(f"{name} {arguments}")
            getattr(world, name)(*arguments)
        world.check()

    prove()
