"""Two drivers on a batch, outdated drivers, lost commit answers and a lost catalog: no record is lost or duplicated."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import SetSnapshotRefUpdate

from sluice.batch import CURSOR_TAG, Batch
from sluice.errors import FencedError
from sluice.iceberg import catalog as catalogs
from sluice.iceberg import refs, snapshots, table_names, tables
from sluice.ingest import merge_batch
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from sluice.ingest.publish import publish
from sluice.ingest.stage import stage
from sluice.ledger import error_causes
from sluice.ledger.error_causes import Cause
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from tests.support.faults import PausedCall, StepThread, by_run, catalog_away, lose_commit
from tests.support.lake import Lake, record
from tests.support.thorough import usual

# How long the catalog stays away; a minute and more passes as well, but takes that long.
AWAY_S = float(os.environ.get("SLUICE_TEST_AWAY_S", "5"))
# The fence is the same in both of Iceberg's format versions.
KINDS = [(mode, version) for mode in ("append", "upsert") for version in (2, 3)]


def driver(it: Lake, run_id: str) -> Context:
    """A driver with a catalog connection of its own."""
    return Context(it.spark, catalogs.load(), table_names.catalog_name(), it.kafka, run_id)


def fill(it: Lake, first: int, count: int = 40) -> None:
    it.send((n % 2, f"k{n % 20}", record(n)) for n in range(first, first + count))


def planned(it: Lake) -> Batch:
    """The one batch that a new plan freezes."""
    (batch,) = it.plan().topics[it.topic].to_stage
    return batch


def check(it: Lake, table: str) -> None:
    """Whatever happened: further runs find their way, the oracle holds, and nothing is left lying about."""
    fill(it, 1000)
    it.drain(table)
    it.assert_published(table)
    staging = it.catalog.load_table(table_names.staging(it.topic))
    rows = staging.scan(selected_fields=("_kafka_partition", "_kafka_offset")).to_arrow().to_pylist()
    assert sorted((r["_kafka_partition"], r["_kafka_offset"]) for r in rows) == sorted(
        (p, o) for p, by_offset in it.sent.items() for o in by_offset
    )
    for found in (staging, it.catalog.load_table(table)):
        assert set(found.metadata.refs) == {"main", CURSOR_TAG}
        assert found.metadata.refs[CURSOR_TAG].snapshot_id == found.metadata.current_snapshot_id


@pytest.mark.parametrize(
    ("fresh", "point"),
    usual(
        [(True, "create_branch"), (False, "fast_forward_main")],
        [(fresh, point) for fresh in (True, False) for point in ("create_branch", "fast_forward_main")],
    ),
)
def test_two_drivers_stage_one_batch(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, point: str, fresh: bool
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    if not fresh:
        fill(it, 0)
        it.run()
    fill(it, 100)
    batch = planned(it)
    pause = PausedCall(monkeypatch, BranchWrite, point, by_run("late"))
    late = StepThread(lambda: stage(driver(it, "late"), batch, gaps_expected=False))
    pause.reached(late)
    assert stage(driver(it, "early"), batch, gaps_expected=False).records == 40
    pause.go()
    late.end()
    assert isinstance(late.error, FencedError), (late.result, late.error)
    assert stage(driver(it, "late"), batch, gaps_expected=False).snapshot_id is None
    check(it, table)


@pytest.mark.parametrize(
    ("fresh", "point", "mode", "version"),
    usual(
        [(True, "create_branch", "append", 3), (False, "fast_forward_main", "upsert", 2)],
        [
            (fresh, point, *kind)
            for fresh in (True, False)
            for point in ("create_branch", "fast_forward_main")
            for kind in KINDS
        ],
    ),
)
def test_two_drivers_publish_one_batch(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, point: str, fresh: bool, mode: str, version: int
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode=mode, format_version=version)
    if not fresh:
        fill(it, 0)
        it.run()
    fill(it, 100)
    batch = planned(it)
    stage(it.context(), batch, gaps_expected=False)
    pause = PausedCall(monkeypatch, BranchWrite, point, by_run("late"))
    late = StepThread(lambda: publish(driver(it, "late"), it.contract_of(table), batch))
    pause.reached(late)
    done = publish(driver(it, "early"), it.contract_of(table), batch)
    pause.go()
    late.end()
    assert isinstance(late.error, FencedError), (late.result, late.error)
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    assert head == done.snapshot_id
    assert publish(driver(it, "late"), it.contract_of(table), batch).snapshot_id is None
    check(it, table)


@pytest.mark.parametrize(("mode", "version"), usual([("upsert", 3)], KINDS))
def test_both_land_in_the_same_moment_and_one_wins(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str, version: int
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode=mode, format_version=version)
    fill(it, 0)
    it.run()  # or one may see the other make the first, empty snapshot, and stop before it fast-forwards main
    fill(it, 100)
    batch = planned(it)
    barrier = threading.Barrier(2, timeout=60)
    original = BranchWrite.fast_forward_main

    def together(attempt: BranchWrite) -> Any:
        barrier.wait()
        return original(attempt)

    with monkeypatch.context() as patch:
        patch.setattr(BranchWrite, "fast_forward_main", together)
        contexts = [driver(it, "a"), driver(it, "b")]
        staged = [StepThread(lambda c=c: stage(c, batch, gaps_expected=False)) for c in contexts]  # type: ignore[misc]
        for each in staged:
            each.end()
        assert sorted(type(d.error).__name__ for d in staged) == ["FencedError", "NoneType"], [d.error for d in staged]
        published = [StepThread(lambda c=c: publish(c, it.contract_of(table), batch)) for c in contexts]  # type: ignore[misc]
        for each in published:
            each.end()
        errors = sorted(type(d.error).__name__ for d in published)
        assert errors == ["FencedError", "NoneType"], [d.error for d in published]
    check(it, table)


@pytest.mark.parametrize(("mode", "version"), usual([("upsert", 2)], KINDS))
def test_a_zombie_wakes_up_after_its_successor_has_gone_on(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, mode: str, version: int
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode=mode, format_version=version)
    fill(it, 0)
    batch = planned(it)
    at_stage = PausedCall(monkeypatch, BranchWrite, "fast_forward_main", by_run("zombie stage"))
    at_publish = PausedCall(monkeypatch, BranchWrite, "fast_forward_main", by_run("zombie publish"))
    stager = StepThread(lambda: stage(driver(it, "zombie stage"), batch, gaps_expected=False))
    at_stage.reached(stager)
    stage(it.context(), batch, gaps_expected=False)
    publisher = StepThread(lambda: publish(driver(it, "zombie publish"), it.contract_of(table), batch))
    at_publish.reached(publisher)
    it.run()
    it.send((n % 2, f"k{n % 20}", None if mode == "upsert" and n % 4 == 0 else record(n)) for n in range(100, 120))
    it.run()
    before = it.rows(table)
    at_stage.go()
    at_publish.go()
    for zombie in (stager, publisher):
        zombie.end()
        assert isinstance(zombie.error, FencedError), (zombie.result, zombie.error)
    assert it.rows(table) == before
    check(it, table)


def test_old_steps_after_newer_ones_change_nothing(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    batches = []
    for first in (0, 100):
        fill(it, first)
        batches += it.plan().topics[it.topic].to_stage
        it.run()
    heads = [it.catalog.load_table(t).metadata.current_snapshot_id for t in (table, table_names.staging(it.topic))]
    for batch in reversed(batches):
        assert stage(driver(it, "old"), batch, gaps_expected=False).snapshot_id is None
        assert publish(driver(it, "old"), it.contract_of(table), batch).snapshot_id is None
    assert heads == [
        it.catalog.load_table(t).metadata.current_snapshot_id for t in (table, table_names.staging(it.topic))
    ]
    check(it, table)


@pytest.mark.parametrize("step", ["stage", "publish"])
def test_the_branch_is_dropped_under_its_feet(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    batch = planned(it)
    if step == "publish":
        stage(it.context(), batch, gaps_expected=False)
    pause = PausedCall(monkeypatch, BranchWrite, "fast_forward_main", by_run("a"))
    a = StepThread(
        lambda: (
            stage(driver(it, "a"), batch, gaps_expected=False)
            if step == "stage"
            else publish(driver(it, "a"), it.contract_of(table), batch)
        )
    )
    pause.reached(a)
    identifier = table_names.staging(it.topic) if step == "stage" else table_names.typed(it.contract_of(table))
    names = {
        n for n in it.catalog.load_table(identifier).metadata.refs if n.startswith("sluice_") and n != "sluice_cursor"
    }
    assert len(names) == 1
    refs.drop_branches(it.catalog, identifier, names)
    pause.go()
    a.end()
    assert isinstance(a.error, FencedError), (a.result, a.error)
    check(it, table)


def moves_main(updates: Any) -> bool:
    return any(isinstance(u, SetSnapshotRefUpdate) and u.ref_name == refs.MAIN for u in updates)


@pytest.mark.parametrize(("applied", "mode", "version"), [(True, "append", 3), (False, "upsert", 2)])
def test_the_answer_to_a_landing_is_lost(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, applied: bool, mode: str, version: int
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode=mode, format_version=version)
    fill(it, 0)
    batch = planned(it)
    unlucky = driver(it, "unlucky")
    broken = lose_commit(
        monkeypatch,
        unlucky.catalog,
        applied=applied,
        times=1 if applied else 3,
        when=lambda _, u: moves_main(u) and len(u) == 3,
    )
    done = stage(unlucky, batch, gaps_expected=False)
    broken.clear()
    out = publish(unlucky, it.contract_of(table), batch)
    assert broken
    for name, snapshot in ((table_names.staging(it.topic), done.snapshot_id), (table, out.snapshot_id)):
        metadata = it.catalog.load_table(name).metadata
        assert metadata.current_snapshot_id == snapshot
        assert sum("sluice.batch-seq" in snapshots.summary(s) for s in metadata.snapshots) == 1
    check(it, table)


@pytest.mark.parametrize(
    ("moment", "applied"),
    usual(
        [("plan", False), ("end of run", False), ("settle", True)],
        [(moment, applied) for moment in ("plan", "end of run", "settle") for applied in (True, False)],
    ),
)
def test_the_answer_to_a_ledger_commit_is_lost(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, applied: bool, moment: str
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    seen: list[int] = []
    skip = {"plan": 0, "end of run": 1, "settle": 2}[moment]

    def is_ledger(table: tuple[str, ...], updates: Any) -> bool:
        # PyIceberg's appends add a snapshot; the moves of branches and tags don't.
        if table == table_names.LEDGER and any(u.action == "add-snapshot" for u in updates):
            seen.append(1)
            return len(seen) == skip + 1
        return False

    with monkeypatch.context() as patch:
        broken = lose_commit(patch, it.catalog, applied=applied, when=is_ledger)
        with pytest.raises(ConnectionError):
            it.run()
        assert broken
    if moment == "plan":
        assert it.plan().topics[it.topic].frozen == applied
    check(it, table)


def test_a_tables_first_snapshot_is_tried_again_when_others_commit(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    contract = it.contract_of(it.contract())
    tables.ensure_typed(it.catalog, contract)
    commit, refused = it.catalog.commit_table, []

    def busy(*arguments: Any) -> Any:
        if len(refused) < 2:
            refused.append(arguments)
            raise CommitFailedException("Table has been updated by another process")
        return commit(*arguments)

    monkeypatch.setattr(it.catalog, "commit_table", busy)
    attempt = BranchWrite(it.context(), table_names.typed(contract), Batch(it.topic, "", 1, {}, {}))
    (made,) = attempt.base.metadata.snapshots
    assert (attempt.head, snapshots.read_totals(made)["records"], len(refused)) == (made.snapshot_id, 0, 2)


def test_a_catalog_that_keeps_no_branches_is_told_of(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    original = it.catalog.commit_table

    def as_nessie_does(known: Any, requirements: Any, updates: Any) -> Any:
        """Branches are dropped, and the answer is that all is well: Nessie 0.99, by its REST protocol."""
        kept = [u for u in updates if not (isinstance(u, SetSnapshotRefUpdate) and u.ref_name != refs.MAIN)]
        return original(known, requirements, tuple(kept))

    with monkeypatch.context() as patch:
        patch.setattr(it.catalog, "commit_table", as_nessie_does)
        outcome = it.run()[table]
    assert outcome["state"] == "failed" and "The catalog keeps no branches" in outcome["error"]
    check(it, table)


@pytest.mark.parametrize(
    "point",
    usual(
        ["publish merge", "publish fast_forward_main"],
        ["stage create_branch", "publish merge", "publish fast_forward_main"],
    ),
)
def test_the_catalog_is_away_for_a_while(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, lake_folder: Path, point: str
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    fill(it, 0)
    it.run()
    fill(it, 100)
    step, name = point.split()
    if name == "merge":
        pause = PausedCall(monkeypatch, merge_batch, "merge_batch")
    else:
        wanted = table_names.staging(it.topic) if step == "stage" else table_names.typed(it.contract_of(table))
        pause = PausedCall(monkeypatch, BranchWrite, name, lambda attempt: attempt.identifier == wanted)
    running = StepThread(it.run)
    pause.reached(running)
    with catalog_away(lake_folder / "iceberg.db"):
        pause.go()
        time.sleep(AWAY_S)
        assert running.alive
    running.end()
    assert running.error is None
    assert running.result[table]["state"] == "published"
    check(it, table)
    # An attempt that was made again is told of; where the fast-forward waits by itself, its commit's seconds tell.
    told = Ledger(it.catalog).rows({it.topic: 0}, (LedgerState.RETRIED,))
    assert bool(told) == (name != "fast_forward_main") and {error_causes.classify(r.exception) for r in told} <= {
        Cause.CATALOG
    }, told
    assert {r.table for r in told} <= ({None} if step == "stage" else {table})
