"""An hour's batches, accelerated, beside all maintenance actions at the same time, lose and duplicate nothing.

`pytest -m soak tests/spark/ingest/test_soak.py`; SLUICE_SOAK_BATCHES sets the number of batches (default 60), and
SLUICE_SOAK_MINUTES how long the application of a continuous group is killed again and again (default 15).
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyiceberg.table import Table

from sluice.iceberg import tables
from sluice.ledger.maintenance_table import Action, ActionResult
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import assess, file_stats, maintain, targets
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.maintain.targets import TableKind
from tests.support import table_files
from tests.support.faults import StepThread
from tests.support.killable_driver import StoppingJob, running_driver
from tests.support.lake import Lake

MINUTES = float(os.environ.get("SLUICE_SOAK_MINUTES", "15"))
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600 + 60 * MINUTES)]

BATCHES = int(os.environ.get("SLUICE_SOAK_BATCHES", "60"))
RECORDS = 200
KEYS = 2_000
# Seconds stand for weeks: whatever may go, goes at once.
STRICT = {"snapshot_age": "5s", "staging_retention": "5s", "min_snapshots": 2, "min_input_files": 3}
WORK = 1_800


def test_an_hour_of_batches_against_all_of_maintenance(
    lake: Callable[..., Lake], capsys: pytest.CaptureFixture[str]
) -> None:
    it = lake()
    it.create_topic(3)
    by_file = it.contract(mode="upsert", maintenance=STRICT)
    by_partition = it.contract(mode="upsert", maintenance=STRICT, properties={"write.delete.granularity": "partition"})
    sort = {"strategy": "sort", "sort_by": ["id"]}
    appended = it.contract(maintenance={**STRICT, **sort}, errors={"max_ratio": 1.0})
    # All that belongs to the topic. Sluice's own two are maintained with it, and keep their snapshots for days.
    names = [s.name for s in targets.list_targets(it.contracts) if s.kind != TableKind.OWN]
    stop: list[bool] = []
    seen: list[ActionResult] = []
    pick = random.Random(4)
    began = time.monotonic()
    others = [
        StepThread(lambda: _keep_up(it, stop, seen, Action.REWRITE)),
        StepThread(lambda: _keep_up(it, stop, seen, Action.EXPIRE, Action.ORPHANS)),
    ]
    outcomes: Counter[str] = Counter()
    for number in range(BATCHES):
        keys = [pick.randrange(KEYS) for _ in range(RECORDS)]
        # A key stays in its partition; one record in twenty deletes. The append table sets tombstones aside.
        it.send(
            (k % 3, f"k{k}", None if i % 20 == 0 else {"n": number * RECORDS + i, "text": f"record {i}"})
            for i, k in enumerate(keys)
        )
        outcomes.update(f"{name}: {o['state']}" for name, o in it.run().items())
    for _ in range(5):
        if not it.preview_plan().has_work and not it.plan().has_work:
            break
        it.run()
    seconds = time.monotonic() - began
    stop.append(True)
    for other in others:
        other.end()
        assert other.error is None, other.error
    assert {e.state for e in seen} <= {"done", "idle", "left"}, [e.summary for e in seen if e.failed]
    assert {(a, "done") for a in Action} <= {(e.action, e.state) for e in seen}
    _nothing_lost(it, appended, by_file, by_partition)

    sizes = {}
    for action in (Action.REWRITE, Action.EXPIRE, Action.ORPHANS):
        time.sleep(5.1)
        for table in _tables(it, names):
            table_files.read_all_snapshots(table)
            table_files.age_files(table)
        # By hand on every table, needed or not: the assessment would see that orphans were looked for already.
        done = maintain.maintain_tables(
            maintain.MaintenanceRun(it.context("last"), it.contracts, action), names, deadline=time.monotonic() + WORK
        )
        assert {e.table: e.error for e in done if e.error} == {}
    for table in _tables(it, names):
        assert table_files.referenced_files(table) <= table_files.files_on_disk(table)
        assert table_files.files_on_disk(table) <= table_files.referenced_files(table), "orphans are left"
        table_files.read_all_snapshots(table)
        sizes[".".join(table.name())] = file_stats.measure_head(table)
    _nothing_lost(it, appended, by_file, by_partition)
    with capsys.disabled():
        print(f"\n{BATCHES} batches of {RECORDS} records into 3 tables in {seconds:.0f} s: {dict(outcomes)}")
        print(f"maintenance meanwhile: {dict(Counter(f'{e.action} {e.state}' for e in seen))}")
        print(f"left behind: {sizes}")


def test_a_continuous_group_whose_driver_is_killed_at_random(
    lake: Callable[..., Lake], lake_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = lake()
    it.create_topic(3)
    merged = it.contract(mode="upsert", maintenance=STRICT)
    appended = it.contract(maintenance=STRICT, errors={"max_ratio": 1.0})
    (it.folder / "groups.yaml").write_text(f"{it.group}: {{schedule: continuous, continuous: {{every: 2s}}}}\n")
    it.plan()  # maintenance needs tables
    stop: list[bool] = []
    seen: list[ActionResult] = []
    pick = random.Random(5)
    number = 0

    def produce() -> None:
        nonlocal number
        while not stop:
            keys = [pick.randrange(KEYS) for _ in range(RECORDS)]
            it.send(
                (k % 3, f"k{k}", None if i % 20 == 0 else {"n": number * RECORDS + i, "text": f"record {i}"})
                for i, k in enumerate(keys)
            )
            number += 1
            time.sleep(0.5)

    others = [StepThread(produce), StepThread(lambda: _keep_up(it, stop, seen, Action.REWRITE, Action.EXPIRE))]
    ends = time.monotonic() + 60 * MINUTES
    kills = 0
    while time.monotonic() < ends:
        job = StoppingJob(it, "", arguments=("--group", it.group, "--stay", "3600"))
        with running_driver(lake_folder, job) as (process, out):
            with suppress(subprocess.TimeoutExpired):
                process.wait(pick.uniform(30, 120))  # a start takes 15 s
                raise AssertionError(f"the application has ended by itself:\n{out.read_text()[-6000:]}")
            kills += 1
    stop.append(True)
    for other in others:
        other.end()
        assert other.error is None, other.error
    batches = len(Ledger(it.catalog).planned_batches("killed").get(it.topic, ()))
    it.drain(merged)
    _nothing_lost(it, appended, merged)
    with capsys.disabled():
        print(f"\n{kills} kills in {MINUTES:.0f} min, {number * RECORDS} records, {batches} batches by rounds")
        print(f"maintenance meanwhile: {dict(Counter(f'{e.action} {e.state}' for e in seen))}")


def _keep_up(it: Lake, stop: list[bool], seen: list[ActionResult], *actions: Action) -> None:
    """Assess and act, again and again, until it is stopped."""
    for number in range(WORK):
        for action in actions:
            if stop:
                return
            # Looking for orphans reads all there is; more often would only slow the others down.
            if action == Action.ORPHANS and number % 10:
                continue
            run, promises = f"{'-'.join(actions)}-{number}", it.contracts
            due = [n.table for n in assess.assess_tables(AssessmentInputs(it.catalog, promises), action) if n.steps]
            if not due:
                time.sleep(0.5)
                continue
            seen.extend(
                maintain.maintain_tables(
                    maintain.MaintenanceRun(it.context(run), promises, action), due, deadline=time.monotonic() + WORK
                )
            )


def _tables(it: Lake, names: list[str]) -> list[Table]:
    found = (tables.load(it.catalog, tuple(name.split("."))) for name in names)
    return [table for table in found if table is not None]


def _nothing_lost(it: Lake, appended: str, *merged: str) -> None:
    deleted = [(p, o) for p, by in it.sent.items() for o, (_, value) in by.items() if value is None]
    it.assert_appended(appended, without=deleted)
    for name in merged:
        it.assert_folded(name)
