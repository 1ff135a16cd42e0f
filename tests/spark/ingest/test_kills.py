"""A driver that is killed (kill -9) or frozen at any point loses and duplicates no record.

spark-submit starts the driver as Airflow does. It stops at named points (tests/support/driver_program.py); then the
process group with its JVM is killed, or frozen and resumed later. One driver runs a job, with its own tables, for
each point.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.typedef import Identifier

from sluice.batch import CURSOR_TAG
from sluice.iceberg import compat, refs, snapshots, table_names, tables
from sluice.ingest import outcome, run, settle
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import maintain
from sluice.rehearse.table_copy import kill_group
from sluice.usage import costs_table
from tests.spark.maintain.test_maintain import STRICT
from tests.support import table_files
from tests.support.killable_driver import SETTLE, StoppingJob, stopped_driver
from tests.support.lake import Lake, record
from tests.support.thorough import only_thorough, usual

pytestmark = pytest.mark.timeout(600)

POINTS = [
    "planned",
    "stage: branch made",
    "stage: files written",
    "stage: written",
    "staged",
    "publish: branch made",
    "publish: files written",
    "publish: merged",
    "publish: before fast-forward",
    "published",
    "before the ledger",
    "after the ledger",
]
# Files without a commit, a branch that main lacks, half of the tables, and all but the ledger.
KILLED_AT = usual(["stage: files written", "publish: before fast-forward", "published", "before the ledger"], POINTS)
# In the second round of a continuous group: its plan is not in the ledger or is, and so on until it is closed.
ROUND_POINTS = [
    "before the ledger",
    "after the ledger",
    "stage: written",
    "staged",
    "publish: before fast-forward",
    "published",
    "before settle",
    "settle: tidied",
]
KILLED_IN_ROUND_AT = usual(["after the ledger", "publish: before fast-forward", "settle: tidied"], ROUND_POINTS)
STOPPED_AT = usual(["publish: before fast-forward"], ["stage: written", "publish: before fast-forward"])


def prepared(it: Lake) -> tuple[str, str]:
    """A topic with an appended and a merged table that hold a batch, and a frozen plan for the next."""
    it.create_topic(2)
    appended, merged = it.contract(errors={"max_ratio": 0.5}), it.contract(mode="upsert")
    it.send((n % 2, f"k{n % 20}", record(n)) for n in range(30))
    it.run(measure=True)
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(100, 180))
    # They delete rows of the one table, and are no rows for the other, which sets them apart.
    it.send((n % 2, f"k{n}", None) for n in range(3, 9))
    assert len(it.plan("killed").topics[it.topic].to_stage) == 1
    return appended, merged


def check(it: Lake, appended: str, merged: str) -> None:
    """The oracle, and that nothing is left lying about and no file is read twice."""
    deletes = sorted((p, o) for p, by in it.sent.items() for o, (_, value) in by.items() if value is None)
    it.assert_appended(appended, without=deletes)
    apart = [(row["_kafka_partition"], row["_kafka_offset"]) for row in it.quarantined(appended)]
    assert sorted(apart) == deletes, "a record was set apart twice, or not at all"
    it.assert_folded(merged)
    for name in (appended, merged, table_names.staging(it.topic)):
        found = it.catalog.load_table(name)
        assert set(found.metadata.refs) == {"main", CURSOR_TAG}
        assert found.metadata.refs[CURSOR_TAG].snapshot_id == found.metadata.current_snapshot_id
        paths = [task.file.file_path for task in found.scan().plan_files()]
        assert len(paths) == len(set(paths))
        seqs = [snapshots.summary(s).get("sluice.batch-seq") for s in snapshots.ancestors(found.metadata)]
        carried = [int(s) for s in seqs if s]
        assert carried == sorted(set(carried), reverse=True), "a batch stands in main's history twice or out of order"


@pytest.mark.timeout(1200)
def test_the_driver_is_killed_and_the_next_run_goes_on(
    lake: Callable[..., Lake], lake_folder: Path, subtests: pytest.Subtests
) -> None:
    lakes = {point: lake() for point in KILLED_AT}
    in_rounds = {f"{point} in the second round": lake() for point in KILLED_IN_ROUND_AT}
    names = {point: prepared(it) for point, it in (lakes | in_rounds).items()}
    jobs = [StoppingJob(it, point) for point, it in lakes.items()]
    for point, it in zip(KILLED_IN_ROUND_AT, in_rounds.values(), strict=True):
        it.send((n % 2, f"k{n % 30}", record(n)) for n in range(200, 220))  # after the frozen plan, so for round two
        jobs.append(StoppingJob(it, point, arguments=("--group", it.group, "--stay", "600"), rounds=1))
    with stopped_driver(lake_folder, *jobs) as process:
        it = lakes["stage: files written"]
        uncommitted(it, table_names.staging(it.topic))
        if (point := "publish: files written") in lakes:
            uncommitted(lakes[point], names[point][0])
        kill_group(process)
    for point, it in (lakes | in_rounds).items():
        with subtests.test(point):
            if point in ("planned", "published", "before the ledger", "after the ledger") or point in in_rounds:
                # The records that came meanwhile wait for the plan that is frozen, or for one if all is published.
                it.send((n % 2, f"k{n % 30}", record(n)) for n in range(220, 240))
            it.drain(names[point][0])
            check(it, *names[point])
    # A killed application loses what it cost, and nothing of another's.
    costs = costs_table.read_costs(it.catalog, datetime.now(UTC) - timedelta(days=1))
    assert {each.topic for each in lakes.values()} <= {row.topic for row in costs if row.run_id != "killed"}
    assert not {each.topic for each in lakes.values()} & {row.topic for row in costs if row.run_id == "killed"}


def test_settle_is_killed_and_tried_again_or_given_up(
    lake: Callable[..., Lake], lake_folder: Path, subtests: pytest.Subtests
) -> None:
    given_up = "before the ledger", False
    points = usual(["before the ledger"], ["before the ledger", "settle: tidied", "after the ledger"])
    tried_again = [(point, True) for point in points]
    cases = {case: lake() for case in (*tried_again, given_up)}
    names, promised = {}, {}
    for case, it in cases.items():
        names[case] = prepared(it)
        promises = it.contracts
        planned = it.plan("killed")
        run.run(it.context("killed"), promises.group(it.group), promises, it.admin, deadline=time.monotonic() + 600)
        # Branches that a driver left, which settle drops, and a tag that is behind, which it moves.
        for name in names[case]:
            table = it.catalog.load_table(name)
            first = table.metadata.snapshots[0].snapshot_id
            table.manage_snapshots().create_branch(first, refs.new_branch_name(it.topic, 1)).create_tag(
                first, CURSOR_TAG
            ).commit()
        promised[case] = outcome.summarize_plan(planned)
    jobs = [
        StoppingJob(it, case[0], SETTLE, ("--group", it.group, "--promised", json.dumps(promised[case])))
        for case, it in cases.items()
    ]
    with stopped_driver(lake_folder, *jobs) as process:
        kill_group(process)
    for case, it in cases.items():
        with subtests.test(str(case)):
            if case != given_up:
                group = it.contracts.group(it.group)
                outcomes = settle.settle(group, it.catalog, promised[case], run_id="killed")
                states = {name: each["state"] for name, each in outcomes.items()}
                assert states == dict.fromkeys(names[case], "published")
                check(it, *names[case])
                settled = [r for r in Ledger(it.catalog).rows({it.topic: 1}) if r.state == LedgerState.SETTLED]
                assert {r.batch_seq for r in settled} == {2}
            if case not in (given_up, tried_again[0]):
                continue
            it.send((n % 2, f"k{n % 30}", record(n)) for n in range(200, 220))
            it.drain(names[case][0])
            check(it, *names[case])


def test_maintenance_is_killed_and_the_next_run_of_it_goes_on(
    lake: Callable[..., Lake], lake_folder: Path, subtests: pytest.Subtests
) -> None:
    every = {
        "rewrite: files written": Action.REWRITE,
        "expire: marked": Action.EXPIRE,
        "expire: deleted": Action.EXPIRE,
        "before it is kept": Action.ORPHANS,
    }
    actions = {point: every[point] for point in usual(["rewrite: files written", "expire: deleted"], [*every])}
    lakes = {point: lake() for point in actions}
    names, jobs = {}, []
    for point, it in lakes.items():
        it.create_topic(2)
        appended, merged = it.contract(maintenance=STRICT), it.contract(mode="upsert", maintenance=STRICT)
        for number in range(3):
            it.send((n % 2, f"k{n % 20}", record(n)) for n in range(100 * number, 100 * number + 30))
            it.run()
        names[point] = [appended, merged, ".".join(table_names.staging(it.topic))]
        arguments = ("--action", str(actions[point]), "--tables", json.dumps(names[point]))
        jobs.append(StoppingJob(it, point, "jobs.maintain", arguments))
    time.sleep(1.1)
    with stopped_driver(lake_folder, *jobs) as process:
        uncommitted(lakes["rewrite: files written"], names["rewrite: files written"][0])
        kill_group(process)
    for point, it in lakes.items():
        with subtests.test(point):
            appended, merged, _ = names[point]
            assert not it.plan().has_work
            it.send((n % 2, f"k{n % 30}", record(n)) for n in range(1000, 1020))
            it.drain(appended)
            done = maintain.maintain_tables(
                maintain.MaintenanceRun(it.context("again"), it.contracts, actions[point]),
                names[point],
                deadline=time.monotonic() + 600,
            )
            assert {e.table: e.error for e in done if e.error} == {}
            if actions[point] == Action.EXPIRE:  # what was marked went, wherever the first try had come to
                staging = it.catalog.load_table(names[point][2])
                left = staging.scan(selected_fields=("batch_seq",)).to_arrow()["batch_seq"].to_pylist()
                assert 2 <= tables.trimmed_through(staging) < min(left)
            it.assert_appended(appended)
            it.assert_folded(merged)


@only_thorough("test_maintenance_is_killed_and_the_next_run_of_it_goes_on")
@pytest.mark.parametrize(
    ("action", "point"),
    [
        ("expire_snapshots", "expire: half of the files gone"),
        ("remove_orphan_files", "orphans: half of the files gone"),
    ],
)
def test_a_kill_half_way_through_removing_files_costs_no_file_that_is_needed(
    lake: Callable[..., Lake], lake_folder: Path, action: str, point: str
) -> None:
    it = lake()
    it.create_topic(2)
    appended, merged = it.contract(maintenance=STRICT), it.contract(mode="upsert", maintenance=STRICT)
    it.send((n % 2, f"k{n % 20}", record(n)) for n in range(30))
    it.run()
    table = it.catalog.load_table(appended)
    if action == "expire_snapshots":
        # Commits that add nothing, so that removing their files takes long enough to be killed in.
        for _ in range(200):
            table = compat.with_current_snapshot_only(table)
            table.append(table.schema().as_arrow().empty_table())
    orphans = [Path(table.location().removeprefix("file://"), "data", f"orphan-{n}.parquet") for n in range(2000)]
    if action == "remove_orphan_files":
        for path in orphans:
            path.write_bytes(b"PAR1")
        table_files.age_files(table)
    it.send((n % 2, f"k{n % 20}", record(n)) for n in range(100, 130))
    it.run()
    time.sleep(1.1)
    there = table_files.files_on_disk(it.catalog.load_table(appended))
    arguments = ("--action", action, "--tables", json.dumps([appended]))
    with stopped_driver(lake_folder, StoppingJob(it, point, "jobs.maintain", arguments)) as process:
        kill_group(process)
    table = it.catalog.load_table(appended)
    left = table_files.files_on_disk(table) - table_files.referenced_files(table)
    assert left, "everything was removed before the driver was killed"
    assert there - table_files.files_on_disk(table), "nothing was removed before the driver was killed"
    if action == "expire_snapshots":
        assert len(table.metadata.snapshots) < 10
    else:
        assert len([path for path in orphans if path.exists()]) < len(orphans)
    names = [appended, merged, ".".join(table_names.staging(it.topic))]

    def whole() -> None:
        it.assert_appended(appended)
        it.assert_folded(merged)
        for name in names:
            found = it.catalog.load_table(name)
            assert not table_files.referenced_files(found) - table_files.files_on_disk(found)
            table_files.read_all_snapshots(found)

    whole()
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(1000, 1020))
    it.drain(appended)
    for each in (Action(action), Action.ORPHANS):
        for name in names:
            table_files.age_files(it.catalog.load_table(name))
        done = maintain.maintain_tables(
            maintain.MaintenanceRun(it.context("again"), it.contracts, each), names, deadline=time.monotonic() + 600
        )
        assert {e.table: e.error for e in done if e.error} == {}
    for name in names:
        found = it.catalog.load_table(name)
        assert table_files.files_on_disk(found) == table_files.referenced_files(found)
    whole()


def uncommitted(it: Lake, name: str | Identifier) -> None:
    """There are data files below the table that no snapshot names."""
    table = it.catalog.load_table(name)
    on_disk = {str(f) for f in Path(table.location().removeprefix("file://")).glob("data/**/*.parquet")}
    named = {
        task.file.file_path.removeprefix("file://")
        for s in table.metadata.snapshots
        for task in table.scan(snapshot_id=s.snapshot_id).plan_files()
    }
    assert on_disk - named, "the driver was killed before it had written a file"


def test_a_frozen_driver_wakes_up_after_its_successor_and_changes_nothing(
    lake: Callable[..., Lake], lake_folder: Path
) -> None:
    lakes = {point: lake() for point in STOPPED_AT}
    names = {point: prepared(it) for point, it in lakes.items()}
    jobs = [StoppingJob(it, point) for point, it in lakes.items()]
    with stopped_driver(lake_folder, *jobs) as process:
        os.killpg(process.pid, signal.SIGSTOP)
        heads = {}
        for point, it in lakes.items():
            it.send((n % 2, f"k{n % 30}", record(n)) for n in range(200, 220))
            it.drain(names[point][0])
            check(it, *names[point])
            for name in (*names[point], table_names.staging(it.topic)):
                heads[name] = it.catalog.load_table(name).metadata.current_snapshot_id
        for job in jobs:
            job.mark.unlink()
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(120) in (0, 2)
        assert heads == {name: it.catalog.load_table(name).metadata.current_snapshot_id for name in heads}
    for point, it in lakes.items():
        it.send((n % 2, f"k{n % 30}", record(n)) for n in range(300, 320))
        it.drain(names[point][0])
        check(it, *names[point])
