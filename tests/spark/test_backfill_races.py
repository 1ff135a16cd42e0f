"""A backfill beside live batches, beside itself, and killed between its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice import backfill_end, slices, tables
from sluice.commit import Attempt
from sluice.ledger import Ledger, State
from sluice.model import CURSOR_TAG
from tests.spark.test_kills import driver, kill
from tests.support.backfills import asked, carry_out, cut_out, planned, told, where_it_stands
from tests.support.faults import Driver, Pause
from tests.support.lake import Lake

pytestmark = pytest.mark.timeout(600)

KILLED_AT = ["stage: written", "staged", "publish: files written", "publish: before land", "published"]


def prepared(it: Lake, mode: str = "append") -> str:
    it.create_topic(2)
    table = it.contract(mode=mode, limits={"records_per_batch": 40})
    it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(80))
    it.run()
    return table


def hold(it: Lake, table: str, mode: str) -> None:
    (it.assert_folded if mode == "upsert" else it.assert_appended)(table)
    assert set(it.catalog.load_table(table).metadata.refs) == {"main", CURSOR_TAG}
    assert set(it.catalog.load_table(tables.staging(it.topic)).metadata.refs) == {"main", CURSOR_TAG}


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


@pytest.mark.parametrize("point", KILLED_AT)
def test_a_slice_is_killed_and_goes_on_when_it_runs_again(
    lake: Callable[..., Lake], lake_folder: Path, point: str
) -> None:
    it = lake()
    mode = "append" if point == "publish: files written" else "upsert"
    table = prepared(it, mode)
    cut_out(it, table, "n BETWEEN 20 AND 70")
    found = planned(it, asked(table, {0: [0, 40]}))
    other = planned(it, asked(table, {1: [0, 40]}), "other")
    arguments = ("--table", table, "--topic", it.topic, "--slice", "-1", "--source", "kafka")
    with driver(it, lake_folder, point, "backfill.py", arguments) as process:
        kill(process)
    # The outcome tells what is true, and takes the branch of the killed attempt away.
    (outcome,) = backfill_end.outcome(it.contracts, it.catalog, found.promised())
    assert (outcome["snapshot_id"] is not None) == (point == "published")
    it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(200, 220))
    it.run()
    carry_out(it, found)
    carry_out(it, other, run_id="other")
    states = [r.state for r in slices.rows(Ledger(it.catalog), it.topic) if r.batch_seq == -1]
    assert states == [State.PLANNED, State.REPLAYED]
    hold(it, table, mode)
