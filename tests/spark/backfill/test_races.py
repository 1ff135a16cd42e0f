"""A backfill is safe beside live batches, beside another backfill, and when it is killed between its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.backfill import backfill_outcome, replay
from sluice.batch import CURSOR_TAG, Batch
from sluice.errors import StagingTrimmedError
from sluice.iceberg import refs, table_names
from sluice.ingest import check
from sluice.ingest.branch_write import BranchWrite
from sluice.ledger import slices
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.rehearse.table_copy import kill_group
from tests.spark.maintain.test_maintain import STRICT, good
from tests.spark.maintain.test_maintain import run as maintained
from tests.support import table_files
from tests.support.backfills import (
    backfill_request,
    delete_rows,
    plan_backfill,
    read_checked_cursor,
    read_outcome,
    run_backfill,
    run_slices,
)
from tests.support.faults import PausedCall, StepThread
from tests.support.killable_driver import StoppingJob, stopped_driver
from tests.support.lake import Lake
from tests.support.thorough import usual

pytestmark = pytest.mark.timeout(600)

POINTS = ["stage: written", "staged", "publish: files written", "publish: before fast-forward", "published"]
KILLED_AT = usual(["publish: before fast-forward", "published"], POINTS)


def prepared(it: Lake, mode: str = "append", **contract: object) -> str:
    it.create_topic(2)
    table = it.contract(mode=mode, limits={"records_per_batch": 40}, **contract)
    it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(80))
    it.run()
    return table


def hold(it: Lake, table: str) -> None:
    it.assert_published(table)
    assert set(it.catalog.load_table(table).metadata.refs) == {"main", CURSOR_TAG}
    assert set(it.catalog.load_table(table_names.staging(it.topic)).metadata.refs) == {"main", CURSOR_TAG}


@pytest.mark.parametrize(
    ("step", "mode"),
    usual(
        [("db", "upsert")],
        [("sluice_staging", "append"), ("sluice_staging", "upsert"), ("db", "append"), ("db", "upsert")],
    ),
)
def test_live_batches_land_between_a_slices_branch_and_its_landing(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str, step: str
) -> None:
    it = lake()
    table = prepared(it, mode)
    delete_rows(it, table, "n BETWEEN 30 AND 70")
    found = plan_backfill(it, backfill_request(table, {0: [0, 40], 1: [0, 40]}))

    def slices_own(attempt: BranchWrite, **_: object) -> bool:
        return attempt.context.run_id == "by hand" and attempt.identifier[0] == step

    pause = PausedCall(monkeypatch, BranchWrite, "fast_forward_main", slices_own)
    backfill = StepThread(lambda: run_slices(it, found))
    pause.reached(backfill)
    it.send((n % 2, f"k{n % 40}", None if mode == "upsert" and n % 3 == 0 else {"n": n}) for n in range(500, 530))
    it.run()
    live = read_checked_cursor(it, table)
    pause.go()
    backfill.end()
    assert backfill.error is None
    assert all(o["snapshot_id"] for o in read_outcome(it, found))
    assert read_checked_cursor(it, table) == live
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(600, 610))
    it.run()
    hold(it, table)


def test_a_slice_lets_the_live_batch_land_that_is_at_work(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    table = prepared(it)
    delete_rows(it, table, "n BETWEEN 30 AND 70")
    found = plan_backfill(it, backfill_request(table, {0: [0, 40], 1: [0, 40]}))
    landings = []

    def of_the_live_feed(attempt: BranchWrite, **_: object) -> bool:
        if attempt.identifier[0] == "db":
            landings.append("slice" if attempt.context.run_id == "by hand" else "batch")
        return landings == ["batch"]

    it.send((n % 2, f"k{n}", {"n": n}) for n in range(500, 510))
    pause = PausedCall(monkeypatch, BranchWrite, "fast_forward_main", of_the_live_feed)
    live = StepThread(it.run)
    pause.reached(live)
    backfill = StepThread(lambda: run_slices(it, found, found.slices[0].seq))
    time.sleep(3.0)
    assert backfill.alive
    pause.go()
    for each in (live, backfill):
        each.end()
        assert each.error is None
    assert landings == ["batch", "slice"]
    # One that was killed has left its branch: nobody waits for it for ever.
    monkeypatch.setattr(replay, "BATCH_WAIT_S", 0.2)
    killed = BranchWrite(
        it.context("killed"), table_names.typed(it.contract_of(table)), Batch(it.topic, "", 99, {}, {})
    )
    killed.create_branch()
    run_slices(it, found)
    refs.drop_branches(it.catalog, killed.identifier, {killed.branch})
    hold(it, table)


def test_two_slices_side_by_side_both_land(lake: Callable[..., Lake]) -> None:
    it = lake()
    table = prepared(it)
    delete_rows(it, table, "_kafka_offset > 5")
    found = plan_backfill(it, backfill_request(table, {0: [0, 40], 1: [0, 40]}))
    drivers = [StepThread(lambda seq=s.seq: run_slices(it, found, seq)) for s in found.slices]
    for each in drivers:
        each.end()
        assert each.error is None
    hold(it, table)
    # Twice the same slice at once: one of them finds that it was replayed.
    delete_rows(it, table, "_kafka_offset > 5")
    again = plan_backfill(it, backfill_request(table, {0: [0, 40]}), "again")
    drivers = [StepThread(lambda: run_slices(it, again, run_id="again")) for _ in range(2)]
    for each in drivers:
        each.end()
        assert each.error is None
    assert len([r for r in it.rows(table) if r["_kafka_partition"] == 0]) == 40


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_all_maintenance_comes_between_a_slices_branch_and_its_landing(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    it = lake()
    table = prepared(it, mode, maintenance=STRICT)
    delete_rows(it, table, "n BETWEEN 30 AND 70")
    found = plan_backfill(it, backfill_request(table, {0: [0, 40], 1: [0, 40]}))
    pause = PausedCall(
        monkeypatch, BranchWrite, "fast_forward_main", lambda attempt, **_: attempt.identifier[0] == "db"
    )
    backfill = StepThread(lambda: run_slices(it, found))
    pause.reached(backfill)
    live = read_checked_cursor(it, table)
    time.sleep(1.1)
    for name in (table, ".".join(table_names.staging(it.topic))):
        table_files.age_files(it.catalog.load_table(name))
    done = {action: good(maintained(it, action))[table].state for action in Action}
    assert done == dict.fromkeys(Action, "done")
    pause.go()
    backfill.end()
    assert backfill.error is None
    assert all(o["snapshot_id"] for o in read_outcome(it, found))
    assert read_checked_cursor(it, table) == live
    hold(it, table)


@pytest.mark.parametrize("origin", [Origin.KAFKA, Origin.STAGING])
def test_raw_records_that_go_while_a_slice_reads_them_are_missed_before_it_lands(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, origin: Origin
) -> None:
    it = lake()
    # Where each offset has a record, the count alone tells.
    table = prepared(it, transactional=True)
    delete_rows(it, table, "n BETWEEN 30 AND 70")
    before = sorted(r["n"] for r in it.rows(table))
    found = plan_backfill(it, backfill_request(table, {0: [0, 40]}, origin=origin))
    pause = PausedCall(monkeypatch, check, "count_records")
    backfill = StepThread(lambda: run_slices(it, found))
    pause.reached(backfill)
    mine = "batch_seq < 0" if origin == Origin.KAFKA else "batch_seq > 0"
    delete_rows(it, ".".join(table_names.staging(it.topic)), f"{mine} AND _kafka_partition = 0 AND _kafka_offset = 17")
    pause.go()
    backfill.end()
    assert isinstance(backfill.error, StagingTrimmedError), backfill.error
    with pytest.raises(StagingTrimmedError):
        run_slices(it, found)
    assert [o["snapshot_id"] for o in read_outcome(it, found)] == [None]
    assert sorted(r["n"] for r in it.rows(table)) == before
    assert set(it.catalog.load_table(table).metadata.refs) == {"main", CURSOR_TAG}
    if origin == Origin.STAGING:
        with pytest.raises(StagingTrimmedError, match=r"0: \[\(10, 20\)\]"):
            plan_backfill(it, backfill_request(table, {0: [10, 40]}, origin=origin), "again")
    run_backfill(it, backfill_request(table, {0: [0, 40], 1: [0, 40]}), "from kafka")
    hold(it, table)


def test_a_plan_that_was_killed_behind_the_ledger_is_the_one_that_is_carried_out(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    table = prepared(it)
    delete_rows(it, table, "_kafka_offset > 5")
    request, append = backfill_request(table, {0: [0, 40], 1: [0, 40]}), Ledger.append

    def killed(*rows: Any, **named: Any) -> None:
        append(*rows, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            plan_backfill(it, request)
    known = slices.read_slice_rows(Ledger(it.catalog), it.topic)
    frozen = slices.planned_slices(known)
    assert len(frozen) == 2
    # The task is tried again: the same slices, though it would cut them otherwise by now.
    it.contract(table=table, limits={"records_per_batch": 7})
    again = plan_backfill(it, request)
    assert again.frozen
    assert {s.seq: s for s in again.slices} == frozen
    assert again.ranges == {0: (0, 40), 1: (0, 40)}
    assert [line for line in again.lines() if "(planned earlier)" in line] == again.lines()[1:]
    assert slices.read_slice_rows(Ledger(it.catalog), it.topic) == known
    run_slices(it, again)
    assert all(o["snapshot_id"] for o in read_outcome(it, again))
    hold(it, table)


def test_a_slice_is_killed_and_goes_on_when_it_runs_again(
    lake: Callable[..., Lake], lake_folder: Path, subtests: pytest.Subtests
) -> None:
    killed, jobs = [], []
    for point in KILLED_AT:
        it = lake()
        table = prepared(it, "append" if point == "publish: files written" else "upsert")
        delete_rows(it, table, "n BETWEEN 20 AND 70")
        found = plan_backfill(it, backfill_request(table, {0: [0, 40]}))
        other = plan_backfill(it, backfill_request(table, {1: [0, 40]}), "other")
        arguments = ("--table", table, "--topic", it.topic, "--slice", "-1", "--source", "kafka")
        jobs.append(StoppingJob(it, point, "jobs.backfill", arguments))
        killed.append((it, table, found, other))
    with stopped_driver(lake_folder, *jobs) as process:
        kill_group(process)
    for point, (it, table, found, other) in zip(KILLED_AT, killed, strict=True):
        with subtests.test(point):
            # The outcome tells what is true, and takes the branch of the killed attempt away.
            (outcome,) = backfill_outcome.collect_outcome(it.contracts, it.catalog, found.to_xcom())
            assert (outcome["snapshot_id"] is not None) == (point == "published")
            it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(200, 220))
            it.run()
            run_slices(it, found)
            run_slices(it, other, run_id="other")
            states = [r.state for r in slices.read_slice_rows(Ledger(it.catalog), it.topic) if r.batch_seq == -1]
            assert states == [LedgerState.PLANNED, LedgerState.REPLAYED]
            hold(it, table)
