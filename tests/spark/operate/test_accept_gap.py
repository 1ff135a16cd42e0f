"""After an operator accepts a gap, exactly its offsets are missing and all other records are there once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sluice.batch import GAPS, batches_from_summary
from sluice.dag_ids import ACCEPT_GAP
from sluice.errors import RefusedError, TerminalError
from sluice.iceberg import snapshots, table_names
from sluice.ingest import run as runs
from sluice.ledger import rebuild
from sluice.ledger.offsets_table import Ledger
from sluice.operate import accept_gap, dry_run
from sluice.operate.accept_gap import Gap
from sluice.operate.operator_input import Decision
from sluice.plan.model import PlanInputs
from sluice.status import status
from sluice.status import text as status_text
from tests.support import runbook
from tests.support.backfills import backfill_request, run_backfill
from tests.support.lake import Lake
from tests.support.thorough import usual

WHY = "the disk was full over the weekend"


def fill(it: Lake, first: int, count: int = 20) -> None:
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(first, first + count))


def accept(it: Lake, name: str, named: dict[int, list[int]] | None = None, *, dry_run: bool = False) -> list[Gap]:
    return accept_gap.accept_gaps(
        name, named, PlanInputs(it.contracts, it.catalog, it.admin), Decision("ann", WHY, "by hand"), dry_run=dry_run
    )


def missing(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(p, offset) for p, start, end in ranges for offset in range(start, end)]


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_exactly_what_was_accepted_is_missing(lake: Callable[..., Lake], mode: str) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode=mode)
    fill(it, 0)
    it.run()
    fill(it, 100)
    it.delete_records({0: 13, 1: 12})
    assert it.run()[table]["state"] == "stopped"

    # Looking changes nothing; what is named must be what is lost; and a reason must be given.
    (gap,) = accept(it, table, dry_run=True)
    assert gap.ranges == {0: (10, 13), 1: (10, 12)}
    shown = dry_run.dry_run(ACCEPT_GAP, {"name": table}, PlanInputs(it.contracts, it.catalog, it.admin))
    assert shown.lines == [f"skipped permanently: {gap}"]
    assert shown.pinned == {"ranges": {"0": [10, 13], "1": [10, 12]}}  # a gap that grows meanwhile is not accepted
    for named in ({0: [10, 14]}, {0: [10, 12]}, {0: [0, 13]}, {5: [0, 1]}):
        with pytest.raises(RefusedError, match="has not lost exactly"):
            accept(it, table, named)
    with pytest.raises(RefusedError, match="No reason"):
        accept_gap.accept_gaps(
            table, None, PlanInputs(it.contracts, it.catalog, it.admin), Decision("ann", " ", "x"), dry_run=False
        )
    assert it.run()[table]["state"] == "stopped"

    # One partition of the two is not enough.
    accept(it, it.topic, {0: [10, 13]})
    outcome = it.run()[table]
    assert outcome["state"] == "stopped"
    assert "{1: (10, 12)}" in outcome["error"]
    accept(it, table)
    it.drain(table)
    gone = missing((0, 10, 13), (1, 10, 12))
    if mode == "append":
        it.assert_appended(table, without=gone)
    else:
        assert {r["n"] for r in it.rows(table)} == {
            v["n"] for p, by in it.sent.items() for o, (_, v) in by.items() if (p, o) not in gone
        }
    for name in (table, table_names.staging(it.topic)):
        head = it.catalog.load_table(name).current_snapshot()
        assert head is not None
        assert snapshots.summary(head)[GAPS] == '{"0":[[10,13]],"1":[[10,12]]}'
    with pytest.raises(RefusedError, match=r"that .* still needs are lost"):
        accept(it, table)
    # What comes later is as if nothing had been.
    fill(it, 200)
    it.drain(table)
    assert GAPS not in snapshots.summary(it.catalog.load_table(table).current_snapshot())  # type: ignore[arg-type]
    if mode == "append":
        it.assert_appended(table, without=gone)


def test_ledger_and_status_tell_and_a_rebuild_keeps_it(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    it.run()
    fill(it, 100)
    it.delete_records({0: 13, 1: 12})
    accept(it, table)
    it.drain(table)
    told = [(r.partition, r.start_offset, r.end_offset, r.who, r.why) for r in Ledger(it.catalog).gaps([it.topic])]
    assert told == [(0, 10, 13, "ann", WHY), (1, 10, 12, "ann", WHY)]
    text = runbook.run_command(it, "status TABLE", TABLE=table)
    assert "skipped     0: [10, 13) by ann" in text
    assert WHY in text
    assert '"why":' in json.dumps(status_text.as_json(status.read_status(it.contracts, [table]))).replace(" ", "")
    for shown in (
        runbook.run_command(it, "ledger show"),
        runbook.run_command(it, "ledger show TOPIC", TOPIC=it.topic),
    ):
        assert WHY in shown
    assert "nothing to do" in runbook.run_command(it, "plan GROUP", GROUP=it.group)
    assert it.topic in runbook.run_command(it, "at TABLE TIME", TABLE=table, TIME=datetime.now(UTC).isoformat())
    runbook.run_command(it, "ledger rebuild")
    again = [(r.partition, r.start_offset, r.end_offset, r.who, r.why) for r in Ledger(it.catalog).gaps([it.topic])]
    assert again == told
    it.catalog.drop_table(table_names.LEDGER)
    rebuild.rebuild(it.contracts, it.catalog, run_id="rebuild")
    rows = Ledger(it.catalog).gaps([it.topic])
    assert sorted((r.partition, r.start_offset, r.end_offset) for r in rows) == [(0, 10, 13), (1, 10, 12)]
    it.catalog.drop_table(table_names.LEDGER)
    it.plan()
    assert len(Ledger(it.catalog).gaps([it.topic])) == 2


def test_a_gap_that_has_grown_since_needs_a_new_word(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    it.run()
    fill(it, 100)
    it.delete_records({0: 13})
    accept(it, table)
    # Before the next plan, and again after it.
    it.delete_records({0: 15})
    outcome = it.run()[table]
    assert outcome["state"] == "stopped"
    assert "{0: (13, 15)}" in outcome["error"]
    accept(it, table, {0: [13, 15]})
    assert it.plan().topics[it.topic].to_stage
    it.delete_records({0: 16})
    outcome = it.run()[table]
    assert outcome["state"] == "stopped"
    assert "{0: (15, 16)}" in outcome["error"]
    accept(it, table)
    it.drain(table)
    it.assert_appended(table, without=missing((0, 10, 16)))


def test_everything_unread_is_lost(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    fill(it, 0)
    it.run()
    before = it.rows(table)
    fill(it, 100)
    it.delete_records({0: 20, 1: 20})
    assert ": 20 offsets, missing in" in runbook.run_command(it, "gap accept TABLE", TABLE=table)
    facts = json.loads(runbook.run_command(it, "gap accept TABLE", "--json", TABLE=table))
    assert facts["gaps"][0] | {"topic_id": ""} == {
        "topic": it.topic,
        "topic_id": "",
        "tables": [table],
        "table": None,
        "replaced": False,
        "ranges": {"0": [10, 20], "1": [10, 20]},
    }
    assert not Ledger(it.catalog).gaps([it.topic])
    runbook.run_command(it, "gap accept TABLE --why '…' --yes", TABLE=table)
    outcome = it.run()[table]
    assert (outcome["state"], outcome["gaps"]) == ("published", {it.topic: ['{"0":[[10,20]],"1":[[10,20]]}']})
    assert it.rows(table) == before
    assert not it.plan().has_work
    fill(it, 200)
    it.drain(table)
    assert len(it.rows(table)) == 40


@pytest.mark.parametrize("together", usual([True], [True, False]))
def test_a_gap_in_plans_that_are_frozen(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    it = lake()
    monkeypatch.setattr(runs, "PUBLISH_PER_STAGE", 0)
    it.create_topic(2)
    table = it.contract(limits={"records_per_batch": 12, "batches_per_commit": 10 if together else 1})
    fill(it, 0, 10)
    it.run()
    fill(it, 100, 50)
    frozen = it.plan().topics[it.topic].to_stage
    assert len(frozen) == 5
    # The first batch is lost whole, the next in part; of the other partition a part of the first.
    second = frozen[1].ranges[0]
    it.delete_records({0: second.start + 2, 1: 7})
    assert it.run()[table]["state"] == "stopped"
    (gap,) = accept(it, table)
    assert gap.ranges == {0: (5, second.start + 2), 1: (5, 7)}
    planned = it.plan().topics[it.topic]
    assert planned.frozen
    assert [b.ranges for b in planned.to_stage] == [b.ranges for b in frozen]
    it.drain(table)
    gone = missing((0, 5, second.start + 2), (1, 5, 7))
    it.assert_appended(table, without=gone)
    brought = [
        b
        for s in it.catalog.load_table(table).metadata.snapshots
        if snapshots.summary(s).get("sluice.step") == "publish"
        for b in batches_from_summary(snapshots.summary(s))
    ]
    assert {b.seq: dict(b.gaps) for b in brought if b.gaps} == {
        2: {0: (frozen[0].ranges[0],), 1: ((5, 7),)},
        3: {0: ((second.start, second.start + 2),)},
    }
    assert rebuild.rebuild(it.contracts, it.catalog, run_id="rebuild")

    # Two more, in batches that wait: one commit of several then holds gaps that lie apart.
    def refuse(*_: object, **__: object) -> None:
        raise TerminalError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "publish", refuse)
        fill(it, 250, 2)  # the first that waits is published alone, to measure by
        it.run()
        for start in (300, 400):
            fill(it, start, 4)
            it.delete_records({0: max(it.sent[0])})
            accept(it, table)
            it.run()
    it.drain(table)
    it.assert_appended(table, without=[*gone, (0, 31), (0, 33)])
    if together:
        head = it.catalog.load_table(table).current_snapshot()
        assert head is not None
        assert snapshots.summary(head)[GAPS] == '{"0":[[31,32],[33,34]]}'


def test_a_new_table_on_a_topic_whose_beginning_nothing_tells_of(lake: Callable[..., Lake]) -> None:
    """The ledger was lost, and the snapshots that staged the first batches have expired."""
    it = lake()
    it.create_topic(2)
    old = it.contract()
    for first in (0, 100, 200):
        fill(it, first)
        it.run()
    staging = it.catalog.load_table(table_names.staging(it.topic))
    head = staging.metadata.current_snapshot_id
    for snapshot in staging.metadata.snapshots:
        if snapshot.snapshot_id != head:
            it.catalog.load_table(table_names.staging(it.topic)).maintenance.expire_snapshots().by_id(
                snapshot.snapshot_id
            ).commit()
    it.catalog.drop_table(table_names.LEDGER)
    new = it.contract()
    for _ in range(2):
        outcomes = it.run()
        assert outcomes[old]["state"] == "idle"
        assert "The batches before" in outcomes[new]["error"], outcomes[new]
        assert "ledger rebuild" in outcomes[new]["error"] and not it.rows(new)
    (gap,) = accept(it, new)
    assert (gap.ranges, gap.tables) == ({0: (0, 20), 1: (0, 20)}, (new,))
    fill(it, 300)
    assert it.run()[new]["batches"] == {it.topic: [3, 4]}
    it.assert_appended(new, without=missing((0, 0, 20), (1, 0, 20)))
    it.assert_appended(old)
    rebuild.rebuild(it.contracts, it.catalog, run_id="by hand")
    run_backfill(it, backfill_request(new, {0: [0, 20], 1: [0, 20]}))
    it.assert_appended(new)
    assert it.run()[new]["state"] == "idle"


def test_a_topic_that_was_created_again_has_no_gap_accepted(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract()
    it.send((0, f"k{n}", {"n": n}) for n in range(10))
    it.run()
    it.send((0, f"k{n}", {"n": n}) for n in range(10, 20))
    it.delete_records({0: 15})
    accept(it, table)
    it.delete_topic()
    it.create_topic(1)
    with pytest.raises(RefusedError, match=r"that .* still needs are lost"):
        accept(it, table)
    assert "created again" in it.run()[table]["error"]
