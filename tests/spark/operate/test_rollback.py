"""A rollback is previewed, moves data and offsets together, and the next runs restore the table."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

from sluice.batch import CURSOR_TAG, batches_from_summary
from sluice.cli import main
from sluice.embedded.home import REPOSITORY
from sluice.errors import ContractError, FencedError, RefusedError, TerminalError
from sluice.iceberg import cursor, snapshots, table_names
from sluice.iceberg.filters import equal
from sluice.ingest import run as runs
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from sluice.ingest.publish import publish
from sluice.ledger import maintenance_table, unfinished_rollback
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import maintain, procedures, rewrite, targets
from sluice.offsets import decode_ranges
from sluice.operate import accept_gap, rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback import Rollback
from sluice.operate.rollback_target import RestorePoint
from sluice.plan.model import PlanInputs
from tests.support import runbook
from tests.support.backfills import backfill_request, run_backfill
from tests.support.faults import PausedCall, StepThread
from tests.support.lake import Lake
from tests.support.thorough import usual

WHY = "the contract parsed prices wrongly"
# The command, in a process of its own that is killed at the first call of a function, before it or after it.
KILLED = """
import importlib, os, signal, sys
module, owner, name, when, *arguments = sys.argv[1:]
owner = getattr(importlib.import_module(module), owner) if owner else importlib.import_module(module)
original = getattr(owner, name)
def killed(*given, **named):
    if when == "after":
        original(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, killed)
from sluice.cli import main
sys.exit(main.main(arguments))
"""


def fill(it: Lake, first: int, count: int = 20) -> None:
    it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(first, first + count))


def look(it: Lake, table: str, **to: Any) -> Rollback:
    return rollback.preview_rollback(table, it.contracts, it.catalog, Ledger(it.catalog), RestorePoint(**to))


def act(it: Lake, found: Rollback, **more: str) -> None:
    decision = Decision("ann", more.pop("why", WHY), "by hand")
    rollback.roll_back(found, it.catalog, Ledger(it.catalog), decision, **more)


def check_refs(it: Lake, table: str) -> None:
    """The tag stands on main's nearest ancestor that carries offsets, and nothing is left lying about."""
    found = it.catalog.load_table(table)
    carrier = cursor.find_offset_snapshot(found, "sluice.published-through")
    assert set(found.metadata.refs) == ({"main", CURSOR_TAG} if carrier else {"main"})
    if carrier:
        assert found.metadata.refs[CURSOR_TAG].snapshot_id == carrier.snapshot_id


def prepared(it: Lake, mode: str, runs: int = 4, **contract: Any) -> str:
    it.create_topic(2)
    table = it.contract(mode=mode, **contract)
    for number in range(runs):
        fill(it, 100 * number)
        it.run()
    return table


def seqs(found: Rollback, topic: str) -> list[int]:
    return [each.batch.seq for each in found.republish[topic]]


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_back_to_before_a_run_and_forth_again(lake: Callable[..., Lake], mode: str) -> None:
    it = lake()
    table = prepared(it, mode)
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    listed = [tuple(row)[2:] for row in runbook.run_sql(it, "SELECT DISTINCT snapshot_id", table=table)]
    assert [(run, seq) for run, seq in listed if seq] == [(f"{it.group}-{n}", str(n)) for n in range(1, 5)]
    shown = runbook.run_command(it, "rollback TABLE --before-run RUN_ID", TABLE=table, RUN_ID=f"{it.group}-2")
    found = look(it, table, before_run=f"{it.group}-2")
    assert "\n".join(found.lines()) in shown
    names = {"TABLE": table, "RUN_ID": f"{it.group}-2"}
    facts = json.loads(runbook.run_command(it, "rollback TABLE --before-run RUN_ID", "--json", **names))
    assert (facts["applied"], facts["republish"]) == (False, {it.topic: [2, 3, 4]})
    assert (facts["from_snapshot"], len(facts["undone"])) == (head, 3)
    assert seqs(found, it.topic) == [2, 3, 4]
    assert not found.lost
    text = "\n".join(found.lines())
    for part in (f"from snapshot {head}", "3 snapshot(s) undone", f'{it.topic} batch 2 {{"0":[10,20],"1":[10,20]}}'):
        assert part in text
    assert it.catalog.load_table(table).metadata.current_snapshot_id == head

    act(it, found)
    assert len(it.rows(table)) == 20
    assert cursor.read_table_cursor(it.catalog.load_table(table))[it.topic].seq == 1
    check_refs(it, table)
    (row,) = [r for r in it_acts(it) if r.state == LedgerState.ROLLED_BACK]
    assert (row.table, row.who, row.why) == (table, "ann", WHY)
    assert row.snapshots == {"from": head, "to": found.target.snapshot_id}

    # By itself, from staging, in as many commits as fit; Kafka is not asked again.
    planned = it.plan()
    assert not planned.topics[it.topic].to_stage
    assert [b.seq for b in planned.tables[table].pending[it.topic]] == [2, 3, 4]
    it.run()
    it.assert_published(table)
    check_refs(it, table)
    fill(it, 5000)
    it.drain(table)
    it.assert_published(table)
    # And again to one of the first snapshots, from where nothing of the second line shows.
    act(it, look(it, table, snapshot_id=found.target.snapshot_id))
    it.drain(table)
    it.assert_published(table)


def it_acts(it: Lake) -> list[Any]:
    from sluice.ledger.ledger_rows import LedgerRow

    records = Ledger(it.catalog).table.scan().to_arrow().to_pylist()
    rows = [
        LedgerRow(**{**r, "snapshots": dict(r["snapshots"] or []), "state": LedgerState(r["state"])}) for r in records
    ]
    return [r for r in rows if r.topic == it.topic and r.batch_seq is None]


def test_back_to_before_the_first_run(lake: Callable[..., Lake]) -> None:
    it = lake()
    table = prepared(it, "upsert", 2)
    act(it, look(it, table, before_run=f"{it.group}-1"))
    assert it.rows(table) == []
    check_refs(it, table)
    it.drain(table)
    it.assert_folded(table)
    check_refs(it, table)


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_back_to_before_a_commit_of_several_batches(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    it = lake()
    monkeypatch.setattr(runs, "PUBLISH_PER_STAGE", 0)
    table = prepared(it, mode, 1, limits={"records_per_batch": 12})
    first = it.catalog.load_table(table).metadata.current_snapshot_id
    fill(it, 100, 50)
    it.run()
    metadata = it.catalog.load_table(table).metadata
    assert len(batches_from_summary(snapshots.summary(metadata.current_snapshot()))) == 5  # type: ignore[arg-type]
    found = look(it, table, snapshot_id=first)
    assert seqs(found, it.topic) == [3, 4, 5, 6, 7]
    act(it, found)
    fill(it, 200, 30)
    it.drain(table)
    it.assert_published(table)


def test_what_moved_since_it_was_looked_at_is_refused(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    table = prepared(it, "append", 2)
    found = look(it, table, before_run=f"{it.group}-2")
    fill(it, 300)
    it.run()
    rows = len(it.rows(table))
    with pytest.raises(FencedError, match="nothing was rolled back"):
        act(it, found)
    assert len(it.rows(table)) == rows
    assert not it_acts(it)

    # The other way round: a publish that is about to fast-forward main when the table is rolled back is refused.
    fill(it, 400)
    pause = PausedCall(monkeypatch, BranchWrite, "fast_forward_main", lambda attempt: attempt.identifier[0] == "db")
    driver = StepThread(it.run)
    pause.reached(driver)
    found = look(it, table, before_run=f"{it.group}-2")
    assert len(found.branches) == 1
    assert "will be refused" in "\n".join(found.lines())
    act(it, found)
    pause.go()
    driver.end()
    assert driver.error is None
    assert driver.result[table]["red"]
    assert len(it.rows(table)) == 20
    it.drain(table)
    it.assert_appended(table)
    check_refs(it, table)


@pytest.mark.parametrize(("undone", "published"), usual([(0, 1), (2, 2)], [(0, 1), (2, 1), (2, 2)]))
def test_a_run_that_goes_on_after_a_rollback_leaves_out_no_batch_of_another_partition(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, undone: int, published: int
) -> None:
    it = lake()
    table = prepared(it, "append", 1)
    it.add_partitions(3)
    it.send((undone, f"k{n}", {"n": n}) for n in range(100, 110))
    it.run()
    it.send((published, f"k{n}", {"n": n}) for n in range(200, 210))
    pause = PausedCall(monkeypatch, BranchWrite, "fast_forward_main", lambda attempt: attempt.identifier[0] == "db")
    driver = StepThread(it.run)
    pause.reached(driver)
    act(it, look(it, table, before_run=f"{it.group}-2"))
    pause.go()
    driver.end()
    assert driver.error is None and "Earlier batches are not published" in driver.result[table]["error"]
    assert len(it.rows(table)) == 20
    it.drain(table)
    it.assert_appended(table)
    check_refs(it, table)


def test_rewritten_deletes_that_land_on_what_was_rolled_back_to_are_taken_back(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite of manifests stands for that of deletes: to Iceberg either may be committed on any head."""
    it = lake()
    table = prepared(it, "upsert", 3, maintenance={"min_input_files": 2})
    found = look(it, table, before_run=f"{it.group}-3")

    def overtaken(context: Context, subject: targets.Target, *_: Any) -> dict[str, Any]:
        act(it, found)
        return {"manifests": procedures.call_procedure(context, subject, "rewrite_manifests", use_caching=False)}

    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "rewrite_files", overtaken)
        effects = maintain.maintain_tables(
            maintain.MaintenanceRun(it.context("m"), it.contracts, maintenance_table.Action.REWRITE),
            [table],
            deadline=time.monotonic() + 60,
        )
    (effect,) = effects
    assert (effect.state, effect.error) == ("left", None), effect
    assert "rolled back meanwhile" in effect.reason
    now = it.catalog.load_table(table)
    assert now.metadata.current_snapshot_id == found.target.snapshot_id
    assert now.snapshots()[-1].summary.operation == Operation.REPLACE  # it was committed
    it.drain(table)
    it.assert_folded(table)


def delete_staged(it: Lake, seq: int) -> None:
    it.catalog.load_table(table_names.staging(it.topic)).delete(equal("batch_seq", seq))


def test_what_staging_no_longer_holds_is_lost_by_name_only(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    it = lake()
    table = prepared(it, "append")
    beside = it.contract()
    it.drain(beside)
    delete_staged(it, 2)
    found = look(it, table, before_run=f"{it.group}-2")
    assert [each.batch.seq for each in found.lost] == [2]
    assert "LOST" in "\n".join(found.lines())
    ranges = '{"0":[10,20],"1":[10,20]}'
    (said,) = [line for line in found.lines() if line.startswith("kafka")]
    # What is shown is tried as it stands: Kafka has all of it.
    said_words = shlex.split(said)
    command = said_words[said_words.index("sluice") + 1 : said_words.index("shows")]
    assert command == ["backfill", "plan", table, f"--topic={it.topic}", "--ranges", ranges]
    monkeypatch.setenv("SLUICE_CONTRACTS", str(it.folder))
    monkeypatch.setenv("SLUICE_KAFKA_CONFIG", json.dumps(it.kafka))
    assert main.main(command) == 0
    shown = capsys.readouterr().out
    assert "20 offsets" in shown and "kafka   holds all of it" in shown
    for word in ("", "yes", beside):
        with pytest.raises(RefusedError, match=r"2 \{.*0 of 20 rows"):
            act(it, found, accept_loss=word)
    it.assert_appended(table)
    act(it, found, accept_loss=table)
    it.drain(table)
    gone = [(p, offset) for p in (0, 1) for offset in range(10, 20)]
    it.assert_appended(table, without=gone)
    it.assert_appended(beside)
    words = [(r.table, r.partition, r.start_offset, r.end_offset, r.who) for r in Ledger(it.catalog).gaps([it.topic])]
    assert words == [(table, 0, 10, 20, "ann"), (table, 1, 10, 20, "ann")]
    fill(it, 900)
    it.drain(table)
    it.assert_appended(table, without=gone)
    it.assert_appended(beside)
    # Kafka still has them.
    run_backfill(it, backfill_request(table, decode_ranges(ranges)))
    it.assert_appended(table)


def test_a_table_never_publishes_less_than_was_staged(lake: Callable[..., Lake]) -> None:
    it = lake()
    table = prepared(it, "append", 3)
    delete_staged(it, 2)
    # A table that comes later, and one that was rolled back by other means.
    late = it.contract()
    first = look(it, table, before_run=f"{it.group}-2").target
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    it.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first.snapshot_id})")
    for _ in range(2):
        outcomes = it.run()
        for name in (table, late):
            assert outcomes[name]["state"] == "stopped", outcomes[name]
            assert "raw records of batches 2 to 2 were deleted from staging" in outcomes[name]["error"]
    assert len(it.rows(table)) == 20
    (gap,) = accept_gap.accept_gaps(
        late, None, PlanInputs(it.contracts, it.catalog, it.admin), Decision("ann", WHY, "by hand"), dry_run=False
    )
    assert gap.tables == (late,)
    outcomes = it.run()
    assert outcomes[late]["state"] == "published", outcomes[late]
    assert outcomes[table]["state"] == "stopped"
    it.assert_appended(late, without=[(p, offset) for p in (0, 1) for offset in range(10, 20)])
    # What was rolled back is put forward again by hand, its offsets with it.
    runbook.run_sql(it, "CALL system.set_current_snapshot", table=table, snapshot=head)
    fill(it, 300)
    it.drain(table)
    it.assert_appended(table)


@pytest.mark.parametrize("remembered", [True, False])
def test_deletes_that_were_undone_are_forgotten(lake: Callable[..., Lake], remembered: bool) -> None:
    it = lake()
    it.create_topic(1)
    contract = {"mode": "upsert", "order": ["_kafka_timestamp"]}
    table = it.contract(**contract)

    def run(*records: tuple[str, int | None, int]) -> None:
        for key, n, at in records:
            it.send([(0, key, None if n is None else {"n": n})], timestamp_ms=1_700_000_000_000 + at)
        it.run()

    run(("a", 1, 1), ("b", 1, 2), ("b", None, 3)) if remembered else run(("a", 1, 1))
    run(("a", 2, 10))
    run(("a", None, 20), ("c", 1, 21))
    act(it, look(it, table, before_run=f"{it.group}-2"))
    assert {r["id"]: r["n"] for r in it.rows(table)} == {"a": 1}
    memory = it.catalog.load_table(table_names.deletes(it.contract_of(table))).scan().to_arrow().to_pylist()
    assert [r["id"] for r in memory] == (["b"] if remembered else [])
    # The tombstones were not meant: without them what came before must be whole.
    it.contract(table=table, **contract, deletes="ignore")
    run(("b", 7, 2), ("d", 1, 30))
    assert {r["id"]: r["n"] for r in it.rows(table)} == {"a": 2, "c": 1, "d": 1} | ({} if remembered else {"b": 7})


def test_deletes_come_again_with_what_is_published_again(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert", order=["_kafka_timestamp"])
    for number in range(3):
        fill(it, 10 * number, 12)
        it.send([(0, "k4", None), (1, "k5", None)] if number % 2 == 0 else [(0, "k8", None)])
        it.run()
    before = sorted((r["id"], r["n"]) for r in it.rows(table))
    act(it, look(it, table, before_run=f"{it.group}-2"))
    it.drain(table)
    assert sorted((r["id"], r["n"]) for r in it.rows(table)) == before
    staged = cursor.read_staged_batches(it.catalog.load_table(table_names.staging(it.topic)))
    for _, (batch, _) in sorted(staged.items()):
        publish(it.context(), it.contract_of(table), batch, replay=True)
    assert sorted((r["id"], r["n"]) for r in it.rows(table)) == before


def test_a_quarantine_is_right_after_it(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(errors={"max_ratio": 1.0})
    for number in range(3):
        it.send([(0, f"k{number}", {"n": number}), (0, f"bad{number}", b"{")])
        it.run()
    act(it, look(it, table, before_run=f"{it.group}-2"))
    it.drain(table)
    assert sorted(r["batch_seq"] for r in it.quarantined(table)) == [1, 2, 3]
    assert sorted(r["n"] for r in it.rows(table)) == [0, 1, 2]


def test_what_was_rejected_of_a_lost_batch_stays_in_quarantine(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    monkeypatch.setattr(runs, "PUBLISH_PER_STAGE", 0)
    it.create_topic(1)
    table = it.contract(errors={"max_ratio": 1.0})
    for number in range(3):
        it.send([(0, f"k{number}", {"n": number}), (0, f"bad{number}", b"{")])
        it.run()
    delete_staged(it, 2)
    act(it, look(it, table, before_run=f"{it.group}-1"), accept_loss=table)
    it.drain(table)
    assert sorted(r["batch_seq"] for r in it.quarantined(table)) == [1, 2, 3]
    assert sorted(r["n"] for r in it.rows(table)) == [0, 2]


def test_bad_input_is_refused_with_the_way_out(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    it = lake()
    table = prepared(it, "append", 2)
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    for to, says in (
        ({}, "Name either a snapshot or the run"),
        ({"snapshot_id": 1, "before_run": "x"}, "Name either a snapshot or the run"),
        ({"snapshot_id": 42}, "not among main's ancestors"),
        ({"snapshot_id": head}, "at that snapshot already"),
        ({"before_run": "nobody"}, f"Runs that did, newest first: {it.group}-2, {it.group}-1"),
    ):
        with pytest.raises(RefusedError, match=says):
            look(it, table, **to)
    with pytest.raises(ContractError):
        look(it, "db.nothing", snapshot_id=head)
    with pytest.raises(RefusedError, match="No reason"):
        act(it, look(it, table, before_run=f"{it.group}-2"), why="")
    late = it.contract()
    with pytest.raises(RefusedError, match="The table is empty"):
        look(it, late, snapshot_id=head)

    def refuse(*_: object, **__: object) -> None:
        raise TerminalError("not now")

    # What is staged and was never published here is no part of what comes again.
    fill(it, 300)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "publish", refuse)
        it.run()
    assert seqs(look(it, table, before_run=f"{it.group}-2"), it.topic) == [2]


@pytest.mark.parametrize(
    ("point", "done"),
    usual(
        [(("sluice.iceberg.refs", "", "commit", "after"), True)],
        [
            (("sluice.iceberg.refs", "", "commit", "before"), False),
            (("sluice.iceberg.refs", "", "commit", "after"), True),
            (("sluice.ledger.restore_deletes", "", "restore_snapshot", "after"), True),
            (("sluice.ledger.offsets_table", "Ledger", "append", "after"), True),
        ],
    ),
)
def test_killed_in_the_middle(lake: Callable[..., Lake], point: tuple[str, ...], done: bool) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(mode="upsert", order=["_kafka_timestamp"])
    for number in range(3):
        it.send([(0, f"k{n}", {"n": 10 * number + n}) for n in range(6)] + [(0, f"k{number}", None)])
        it.run()
    before = sorted((r["id"], r["n"]) for r in it.rows(table))
    command = ["rollback", table, "--before-run", f"{it.group}-2", "--why", WHY, "--yes"]
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, *point, *command],
        env={**os.environ, "SLUICE_CONTRACTS": str(it.folder), "PYTHONPATH": str(REPOSITORY / "include")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    seq = cursor.read_table_cursor(it.catalog.load_table(table))[it.topic].seq
    assert seq == (1 if done else 3)
    check_refs(it, table)
    if done:
        it.plan()  # what was left to do is done, once
        told = [(r.table, r.why) for r in it_acts(it) if r.state == LedgerState.ROLLED_BACK]
        assert told == [(table, WHY)]
        assert unfinished_rollback.ROLLBACK_PROPERTY not in it.catalog.load_table(table).properties
        memory = it.catalog.load_table(table_names.deletes(it.contract_of(table))).scan().to_arrow().to_pylist()
        assert [r["id"] for r in memory] == ["k0"]
        it.drain(table)  # its first run is the fourth
    assert sorted((r["id"], r["n"]) for r in it.rows(table)) == before
    act(it, look(it, table, before_run=f"{it.group}-{4 if done else 2}"))
    it.drain(table)
    assert sorted((r["id"], r["n"]) for r in it.rows(table)) == before
    check_refs(it, table)
