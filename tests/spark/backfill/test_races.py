"""A backfill beside live batches, beside itself, and killed between its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.backfill import outcome as backfill_outcome
from sluice.backfill import replay
from sluice.batch import CURSOR_TAG, Batch
from sluice.errors import StagingTrimmedError
from sluice.iceberg import refs, table_names
from sluice.ingest import check
from sluice.ingest.landing import Attempt
from sluice.ledger import slices
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger, State
from sluice.ledger.slices import Origin
from tests.spark.maintain.test_maintain import STRICT, good
from tests.spark.maintain.test_maintain import run as maintained
from tests.support import files
from tests.support.backfills import asked, carry_out, cut_out, fill_in, planned, told, where_it_stands
from tests.support.faults import Driver, Pause
from tests.support.killed import Stopped, driver, kill
from tests.support.lake import Lake

pytestmark = pytest.mark.timeout(600)

KILLED_AT = ["stage: written", "staged", "publish: files written", "publish: before land", "published"]


def prepared(it: Lake, mode: str = "append", **contract: object) -> str:
    it.create_topic(2)
    table = it.contract(mode=mode, limits={"records_per_batch": 40}, **contract)
    it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(80))
    it.run()
    return table


def hold(it: Lake, table: str, mode: str) -> None:
    (it.assert_folded if mode == "upsert" else it.assert_appended)(table)
    assert set(it.catalog.load_table(table).metadata.refs) == {"main", CURSOR_TAG}
    assert set(it.catalog.load_table(table_names.staging(it.topic)).metadata.refs) == {"main", CURSOR_TAG}


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("step", ["sluice_staging", "db"])
def test_live_batches_land_between_a_slices_branch_and_its_landing(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str, step: str
) -> None:
    it = lake()
    table = prepared(it, mode)
    cut_out(it, table, "n BETWEEN 30 AND 70")
    found = planned(it, asked(table, {0: [0, 40], 1: [0, 40]}))

    def slices_own(attempt: Attempt, **_: object) -> bool:
        return attempt._context.run_id == "by hand" and attempt.identifier[0] == step

    pause = Pause(monkeypatch, Attempt, "land", slices_own)
    backfill = Driver(lambda: carry_out(it, found))
    pause.reached(backfill)
    it.send((n % 2, f"k{n % 40}", None if mode == "upsert" and n % 3 == 0 else {"n": n}) for n in range(500, 530))
    it.run()
    live = where_it_stands(it, table)
    pause.go()
    backfill.end()
    assert backfill.error is None
    assert all(o["snapshot_id"] for o in told(it, found))
    assert where_it_stands(it, table) == live
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(600, 610))
    it.run()
    hold(it, table, mode)


def test_a_slice_lets_the_live_batch_land_that_is_at_work(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    table = prepared(it)
    cut_out(it, table, "n BETWEEN 30 AND 70")
    found = planned(it, asked(table, {0: [0, 40], 1: [0, 40]}))
    landings = []

    def of_the_live_feed(attempt: Attempt, **_: object) -> bool:
        if attempt.identifier[0] == "db":
            landings.append("slice" if attempt._context.run_id == "by hand" else "batch")
        return landings == ["batch"]

    it.send((n % 2, f"k{n}", {"n": n}) for n in range(500, 510))
    pause = Pause(monkeypatch, Attempt, "land", of_the_live_feed)
    live = Driver(it.run)
    pause.reached(live)
    backfill = Driver(lambda: carry_out(it, found, found.slices[0].seq))
    time.sleep(3.0)
    assert backfill.alive
    pause.go()
    for each in (live, backfill):
        each.end()
        assert each.error is None
    assert landings == ["batch", "slice"]
    # One that was killed has left its branch: nobody waits for it for ever.
    monkeypatch.setattr(replay, "GIVE_WAY_S", 0.2)
    killed = Attempt(it.context("killed"), table_names.typed(it.loaded(table)), Batch(it.topic, "", 99, {}, {}))
    killed.open()
    carry_out(it, found)
    refs.drop_branches(it.catalog, killed.identifier, {killed.branch})
    hold(it, table, "append")


def test_two_slices_side_by_side_both_land(lake: Callable[..., Lake]) -> None:
    it = lake()
    table = prepared(it)
    cut_out(it, table, "_kafka_offset > 5")
    found = planned(it, asked(table, {0: [0, 40], 1: [0, 40]}))
    drivers = [Driver(lambda seq=s.seq: carry_out(it, found, seq)) for s in found.slices]
    for each in drivers:
        each.end()
        assert each.error is None
    hold(it, table, "append")
    # Twice the same slice at once: one of them finds that it has landed.
    cut_out(it, table, "_kafka_offset > 5")
    again = planned(it, asked(table, {0: [0, 40]}), "again")
    drivers = [Driver(lambda: carry_out(it, again, run_id="again")) for _ in range(2)]
    for each in drivers:
        each.end()
        assert each.error is None
    assert len([r for r in it.rows(table) if r["_kafka_partition"] == 0]) == 40


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_all_maintenance_comes_between_a_slices_branch_and_its_landing(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    it = lake()
    table = prepared(it, mode, maintenance=STRICT)
    cut_out(it, table, "n BETWEEN 30 AND 70")
    found = planned(it, asked(table, {0: [0, 40], 1: [0, 40]}))
    pause = Pause(monkeypatch, Attempt, "land", lambda attempt, **_: attempt.identifier[0] == "db")
    backfill = Driver(lambda: carry_out(it, found))
    pause.reached(backfill)
    live = where_it_stands(it, table)
    time.sleep(1.1)
    for name in (table, ".".join(table_names.staging(it.topic))):
        files.make_old(it.catalog.load_table(name))
    done = {action: good(maintained(it, action))[table].state for action in Action}
    assert done == dict.fromkeys(Action, "done")
    pause.go()
    backfill.end()
    assert backfill.error is None
    assert all(o["snapshot_id"] for o in told(it, found))
    assert where_it_stands(it, table) == live
    hold(it, table, mode)


@pytest.mark.parametrize("origin", [Origin.KAFKA, Origin.STAGING])
def test_raw_records_that_go_while_a_slice_reads_them_are_missed_before_it_lands(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, origin: Origin
) -> None:
    it = lake()
    # Where each offset has a record, the count alone tells.
    table = prepared(it, transactional=True)
    cut_out(it, table, "n BETWEEN 30 AND 70")
    before = sorted(r["n"] for r in it.rows(table))
    found = planned(it, asked(table, {0: [0, 40]}, origin=origin))
    pause = Pause(monkeypatch, check, "counted")
    backfill = Driver(lambda: carry_out(it, found))
    pause.reached(backfill)
    mine = "batch_seq < 0" if origin == Origin.KAFKA else "batch_seq > 0"
    cut_out(it, ".".join(table_names.staging(it.topic)), f"{mine} AND _kafka_partition = 0 AND _kafka_offset = 17")
    pause.go()
    backfill.end()
    assert isinstance(backfill.error, StagingTrimmedError), backfill.error
    with pytest.raises(StagingTrimmedError):
        carry_out(it, found)
    assert [o["snapshot_id"] for o in told(it, found)] == [None]
    assert sorted(r["n"] for r in it.rows(table)) == before
    assert set(it.catalog.load_table(table).metadata.refs) == {"main", CURSOR_TAG}
    if origin == Origin.STAGING:
        with pytest.raises(StagingTrimmedError, match=r"0: \[\(10, 20\)\]"):
            planned(it, asked(table, {0: [10, 40]}, origin=origin), "again")
    fill_in(it, asked(table, {0: [0, 40], 1: [0, 40]}), "from kafka")
    hold(it, table, "append")


def test_a_plan_that_was_killed_behind_the_ledger_is_the_one_that_is_carried_out(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    table = prepared(it)
    cut_out(it, table, "_kafka_offset > 5")
    request, append = asked(table, {0: [0, 40], 1: [0, 40]}), Ledger.append

    def killed(*rows: Any, **named: Any) -> None:
        append(*rows, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            planned(it, request)
    known = slices.rows(Ledger(it.catalog), it.topic)
    frozen = slices.planned(known)
    assert len(frozen) == 2
    # The task is tried again: the same slices, though it would cut them otherwise by now.
    it.contract(table=table, limits={"records_per_batch": 7})
    again = planned(it, request)
    assert again.frozen
    assert {s.seq: s for s in again.slices} == frozen
    assert again.ranges == {0: (0, 40), 1: (0, 40)}
    assert [line for line in again.lines() if "(planned earlier)" in line] == again.lines()[1:]
    assert slices.rows(Ledger(it.catalog), it.topic) == known
    carry_out(it, again)
    assert all(o["snapshot_id"] for o in told(it, again))
    hold(it, table, "append")


def test_a_slice_is_killed_and_goes_on_when_it_runs_again(
    lake: Callable[..., Lake], lake_folder: Path, subtests: pytest.Subtests
) -> None:
    killed, jobs = [], []
    for point in KILLED_AT:
        it = lake()
        mode = "append" if point == "publish: files written" else "upsert"
        table = prepared(it, mode)
        cut_out(it, table, "n BETWEEN 20 AND 70")
        found = planned(it, asked(table, {0: [0, 40]}))
        other = planned(it, asked(table, {1: [0, 40]}), "other")
        arguments = ("--table", table, "--topic", it.topic, "--slice", "-1", "--source", "kafka")
        jobs.append(Stopped(it, point, "jobs.backfill", arguments))
        killed.append((it, mode, table, found, other))
    with driver(lake_folder, *jobs) as process:
        kill(process)
    for point, (it, mode, table, found, other) in zip(KILLED_AT, killed, strict=True):
        with subtests.test(point):
            # The outcome tells what is true, and takes the branch of the killed attempt away.
            (outcome,) = backfill_outcome.outcome(it.contracts, it.catalog, found.promised())
            assert (outcome["snapshot_id"] is not None) == (point == "published")
            it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(200, 220))
            it.run()
            carry_out(it, found)
            carry_out(it, other, run_id="other")
            states = [r.state for r in slices.rows(Ledger(it.catalog), it.topic) if r.batch_seq == -1]
            assert states == [State.PLANNED, State.REPLAYED]
            hold(it, table, mode)
