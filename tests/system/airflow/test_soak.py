"""An hour's runs through Airflow, accelerated, beside maintenance and backfills, while drivers are killed.

`pytest -m soak tests/system/airflow/test_soak.py`; SLUICE_SOAK_BATCHES sets the number of runs (default 12, an hour at
the default schedule).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import psutil
import pytest
from pyiceberg.table import Table

from sluice.embedded.failure import StackError
from sluice.iceberg import cursor
from sluice.ledger.maintenance_table import Action
from sluice.maintain import targets
from tests.support import table_files
from tests.support.airflow_stack import AirflowStack
from tests.support.faults import StepThread
from tests.support.lake import Lake

Answer = TypeVar("Answer")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

RUNS = int(os.environ.get("SLUICE_SOAK_BATCHES", "12"))
RECORDS = 200
KEYS = 2_000
PARTITIONS = 2
# A run takes most of a minute: were one killed in each, second tries would be most of the work, and be killed as well.
SECONDS_PER_KILL = 120
# Ingestion goes on without one; the others leave it some of two cores, and one of two slots for about half of the time.
PAUSE_S = 30
# Seconds stand for weeks: whatever may go, goes at once.
STRICT = {"snapshot_age": "5s", "staging_retention": "5s", "min_snapshots": 2, "min_input_files": 3}


def test_an_hour_of_runs_beside_maintenance_and_replays(
    stack: AirflowStack, capsys: pytest.CaptureFixture[str]
) -> None:
    hour = Hour(stack)
    began = time.monotonic()
    with stack.pool_size(2):
        hour.send_and_ingest()
        others = [StepThread(lambda step=step: hour.keep_on(step)) for step in hour.beside]
        for _ in range(RUNS - 1):
            hour.send_and_ingest()
        hour.over.set()
        for other in others:
            other.end()
            assert other.error is None, other.error
        hour.ingest()  # what killed ones may have left
        seconds = time.monotonic() - began
        hour.nothing_is_lost()
        meanwhile = dict(hour.seen)
        means = {kind: f"{fmean(each):.0f} s" for kind, each in hour.seconds.items()}
        every = hour.ranges()
        for name, ranges in every:
            assert hour.replay(name, ranges) == "success", (name, ranges)
        hour.nothing_is_lost()
    hour.clean_up()
    hour.nothing_is_lost()
    with capsys.disabled():
        print(f"\n{RUNS} runs of {RECORDS} records into 2 tables in {seconds:.0f} s, then {len(every)} replays")
        print(f"runs meanwhile: {meanwhile}, on average {means}; drivers killed: {dict(Counter(hour.kills))}")
    assert hour.kills
    # A task whose driver is killed is tried once more.
    assert sum(n for what, n in meanwhile.items() if not what.endswith("success")) <= len(hour.kills) // 2


def insist(ask: Callable[[], Answer]) -> Answer:
    """Airflow's own SQLite takes one writer at a time, and gives up on who waits too long."""
    for _ in range(20):
        with suppress(StackError):
            return ask()
        time.sleep(1)
    return ask()


class Hour:
    """A topic with a table of each mode, and all that is done with them through Airflow."""

    def __init__(self, stack: AirflowStack) -> None:
        self.stack = stack
        bootstrap, folder = stack.env["KAFKA_BOOTSTRAP_SERVERS"], Path(stack.env["SLUICE_CONTRACTS"])
        self.it = Lake(None, stack.catalog, bootstrap, folder)
        self.it.create_topic(PARTITIONS)
        self.merged = self.it.contract(mode="upsert", maintenance=STRICT)
        sort = {"strategy": "sort", "sort_by": ["id"]}
        self.appended = self.it.contract(maintenance={**STRICT, **sort}, errors={"max_ratio": 1.0})
        self.names = [s.name for s in targets.list_targets(self.it.contracts) if s.group == self.it.group]
        self.beside = [self.maintain, self.replay_any, self.kill_any]
        self.over = threading.Event()
        self.seen: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {}
        self.kills: list[str] = []
        self._pick = random.Random(4)
        self._sent = 0

    def keep_on(self, step: Callable[[], object]) -> None:
        """Do it again and again, until it is over."""
        while not self.over.is_set():
            step()

    def run(self, dag: str, tasks: set[str], **form: object) -> str:
        began, kind = time.monotonic(), dag.removesuffix(f"_{self.it.group}")
        made = insist(lambda: self.stack.trigger(dag, tasks, **form))
        state, _ = insist(lambda: self.stack.end(dag, made))
        self.seen[f"{kind} {state}"] += 1
        self.seconds.setdefault(kind, []).append(time.monotonic() - began)
        return state

    def send_and_ingest(self) -> None:
        keys = [self._pick.randrange(KEYS) for _ in range(RECORDS)]
        # A key stays in its partition; one record in twenty deletes. The append table sets tombstones aside.
        self.it.send(
            (k % PARTITIONS, f"k{k}", None if i % 20 == 0 else {"n": self._sent + i, "text": f"record {i}"})
            for i, k in enumerate(keys)
        )
        self._sent += RECORDS
        self.ingest()

    def ingest(self) -> None:
        self.run(f"ingest_{self.it.group}", {self.merged, self.appended})

    def maintain(self) -> None:
        """Each of the three, one after the other."""
        for action in Action:
            if action == Action.ORPHANS:  # those of the killed are too young for it until the end
                for table in self.tables():
                    stray = Path(table.location().removeprefix("file://"), "data", f"{time.time_ns()}.parquet")
                    stray.parent.mkdir(exist_ok=True)
                    stray.write_bytes(b"PAR1")
                    os.utime(stray, (0, 0))
            self.run(f"maintain_{action}", {"assess", f"spark_{self.it.group}"}, tables=self.names)
            self.over.wait(PAUSE_S)

    def replay(self, name: str, ranges: dict[str, tuple[int, int]]) -> str:
        tasks = {"plan", f"spark_{self.it.group}"}
        return self.run("backfill", tasks, table=name, ranges=ranges, why="the soak", dry_run=False)

    def replay_any(self) -> None:
        """Any range of what one of the tables has published."""
        name = self._pick.choice([self.merged, self.appended])
        cuts = {p: sorted(self._pick.sample(range(end + 1), 2)) for p, end in self.published(name).items() if end}
        self.replay(name, {str(p): (first, end) for p, (first, end) in cuts.items()})
        self.over.wait(PAUSE_S)

    def kill_any(self) -> None:
        """Some driver, some time."""
        self.over.wait(SECONDS_PER_KILL * 2 * self._pick.random())
        if running := self.stack.drivers():
            driver = self._pick.choice(running)
            with suppress(psutil.NoSuchProcess):
                self.kills.append(next(a for a in driver.cmdline() if a.startswith(f"sluice-{self.it.group}")))
                for process in (*driver.children(recursive=True), driver):
                    process.kill()

    def published(self, name: str) -> dict[int, int]:
        return dict(cursor.read_table_cursor(self.stack.catalog.load_table(name))[self.it.topic].next_offsets)

    def ranges(self) -> list[tuple[str, dict[str, tuple[int, int]]]]:
        """All offsets of both tables, those of each partition in three ranges, in any order."""
        found = []
        for name in (self.merged, self.appended):
            cut = {str(p): self._cut(end) for p, end in self.published(name).items()}
            found += [(name, dict(zip(cut, bounds, strict=True))) for bounds in zip(*cut.values(), strict=True)]
        self._pick.shuffle(found)
        return found

    def _cut(self, end: int) -> list[tuple[int, int]]:
        """Three ranges from 0 to the end, in any order."""
        bounds = list(pairwise([0, *sorted(self._pick.sample(range(1, end), 2)), end]))
        self._pick.shuffle(bounds)
        return bounds

    def tables(self) -> list[Table]:
        found = (self.stack.catalog.load_table(n) for n in self.names if self.stack.catalog.table_exists(n))
        return list(found)

    def nothing_is_lost(self) -> None:
        sent = self.it.sent
        deleted = [(p, o) for p, by in sent.items() for o, (_, value) in by.items() if value is None]
        self.it.assert_appended(self.appended, without=deleted)
        self.it.assert_folded(self.merged)
        for name in (self.merged, self.appended):
            assert self.published(name) == {p: max(by) + 1 for p, by in sent.items()}

    def clean_up(self) -> None:
        """All of maintenance once more, weeks later: each file that is left is one that some snapshot names."""
        for action in (Action.REWRITE, Action.EXPIRE, Action.ORPHANS):
            time.sleep(5.1)
            for table in self.tables():
                table_files.read_all_snapshots(table)
                table_files.age_files(table)
            self.stack.maintain(action, tables=self.names)
        for table in self.tables():
            assert table_files.referenced_files(table) <= table_files.files_on_disk(table)
            assert table_files.files_on_disk(table) <= table_files.referenced_files(table), "orphans are left"
            table_files.read_all_snapshots(table)
