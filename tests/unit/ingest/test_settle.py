"""settle writes the ledger rows of a Spark application that ended without writing them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from sluice.batch import CURSOR_TAG, PUBLISHED_THROUGH, RUN_ID, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.contract import folder as contract_folder
from sluice.iceberg import cursor, refs, table_names
from sluice.ingest import settle
from sluice.ingest.outcome import APPLICATION_ENDED
from sluice.ledger import slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, plan_rows
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange
from tests.unit.maintain.test_assess import append, batch, filled, promise

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def commit_batch(catalog: Catalog, seq: int, run_id: str, *, staging: bool = True) -> int:
    """A batch staged and published, of which the ledger is told nothing; the snapshot that published it."""
    about = {RUN_ID: run_id, **batch(seq).properties()}
    if staging:
        append(catalog.load_table(table_names.staging("orders")), seq, {STEP: "stage", **about})
    through = {PUBLISHED_THROUGH: encode_published_through({"orders": PublishedOffsets(seq, "id", {0: seq})})}
    append(catalog.load_table("shop.orders"), seq, {STEP: "publish", **about, **through})
    head = catalog.load_table("shop.orders").metadata.current_snapshot_id
    assert head
    return head


def told(catalog: Catalog) -> list[LedgerRow]:
    rows = Ledger(catalog).rows({"orders": 0}, (LedgerState.PUBLISHED, LedgerState.FAILED))
    return sorted(rows, key=lambda r: r.batch_seq or 0)


def test_what_a_killed_application_left_untold_is_told_once(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 2)
    snapshots = {s.summary["sluice.batch-seq"]: s for s in typed.metadata.snapshots}  # type: ignore[index]

    def after(run_id: str, *seqs: int) -> dict[str, Any]:
        promised = {"tables": {"shop.orders": {"orders": list(seqs)}}, "stops": {}, "warnings": {}}
        return settle.settle(promises.group("shop"), catalog, promised, run_id=run_id)["shop.orders"]

    # Batch 2 was committed when it was killed.
    assert after("a", 2)["state"] == "published"
    (row,) = told(catalog)
    assert (row.state, row.batch_seq, row.table, row.run_id) == (LedgerState.PUBLISHED, 2, "shop.orders", "a")
    assert row.snapshots == {"shop.orders": snapshots["2"].snapshot_id}
    assert int(row.at.timestamp() * 1000) == snapshots["2"].timestamp_ms
    # Nothing had: it failed, and the page that reads the ledger can know.
    for _ in range(2):
        assert after("b", 3, 4)["error"] == APPLICATION_ENDED
    assert [(r.state, r.batch_seq, r.run_id, r.error) for r in told(catalog)][1:] == [
        (LedgerState.FAILED, 3, "b", APPLICATION_ENDED)
    ]
    # What it told itself is not told again.
    ledger = Ledger(catalog)
    ledger.append([LedgerRow("orders", LedgerState.STAGED, batch_seq=4, records=1)], run_id="late")
    assert after("late", 3, 4)["state"] == "behind"  # it reported, and had no time for this table
    ledger.append([LedgerRow("orders", LedgerState.BLOCKED, batch_seq=3, table="shop.orders", error="bad")], run_id="d")
    assert after("e", 3, 4)["error"] == APPLICATION_ENDED and told(catalog)[-1].error == APPLICATION_ENDED
    ledger.append(
        [LedgerRow("orders", LedgerState.PUBLISHED, batch_seq=1, table="shop.orders", records=1, rejected=0)],
        run_id="c",
    )
    assert (after("c", 1)["records"], after("c", 1)["rejected"]) == (1, 0)
    assert (after("c", 1, 2)["records"], after("c", 1, 2)["rejected"]) == (None, None)  # of 2 nobody lived to tell
    assert len(told(catalog)) == 3  # and what was blocked is not hidden by what came after
    # What a refused batch left in quarantine is counted, though nothing of it is published.
    blocked = LedgerRow("orders", LedgerState.BLOCKED, batch_seq=3, table="shop.orders", records=7709, rejected=560)
    published = LedgerRow("orders", LedgerState.PUBLISHED, batch_seq=2, table="shop.orders", records=9, rejected=2)
    ledger.append([published, blocked], run_id="f")
    found = after("f", 2, 3)
    assert (found["state"], found["records"], found["rejected"], found["quarantined"]) == ("blocked", 9, 2, 562)
    ledger.append([replace(blocked, records=None, rejected=None)], run_id="g")  # a ledger of an older version
    assert after("g", 3)["quarantined"] is None


def test_branches_of_slices_that_nobody_goes_on_with_are_dropped(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 2)
    ledger, now = Ledger(catalog), datetime.now(UTC)

    def plan(seq: int, days: float, run_id: str) -> None:
        piece = Batch("orders", "id", seq, {0: OffsetRange(0, 1)}, {})
        rows = slices.slice_plan_rows(piece, "shop.orders", who=None, why="")
        ledger.append([replace(r, at=now - timedelta(days=days)) for r in rows], run_id=run_id)

    def tell(seq: int, state: LedgerState, days: float, run_id: str) -> None:
        at = now - timedelta(days=days)
        ledger.append([LedgerRow("orders", state, "id", seq, table="shop.orders", at=at)], run_id=run_id)

    plan(-1, 8, "silent")
    for seq in (-2, -3):
        plan(seq, 8, "at work")
    tell(-3, LedgerState.REPLAYED, 1, "at work")
    plan(-4, 6, "young")
    unfinished = slices.unfinished_slices(slices.read_slice_rows(ledger, "orders"), now)
    assert sorted(unfinished) == [-4, -2]
    # In the typed table and in staging alike.
    branches = {seq: refs.new_branch_name("orders", seq) for seq in (-1, -2, -3, -4)}
    kept = refs.refused_branch_name("orders", -1)
    names = ("shop.orders", table_names.staging("orders"))
    for name in names:
        table = catalog.load_table(name)
        head = table.metadata.current_snapshot_id
        assert head
        refs.commit(catalog, table, (), tuple(refs.set_ref(b, head) for b in (*branches.values(), kept)))
    promised = {"tables": {"shop.orders": {"orders": [2]}}, "stops": {}, "warnings": {}}
    settle.settle(promises.group("shop"), catalog, promised, run_id="next")
    for name in names:
        left = {n for n in catalog.load_table(name).metadata.refs if n not in ("main", CURSOR_TAG)}
        assert left == {branches[-2], branches[-4], kept}


def test_what_runs_left_open_that_never_settled_is_closed_by_the_next(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 1)
    ledger = Ledger(catalog)
    # Batches 2 to 4 were published, by runs that were marked a success by hand before they could tell.
    for seq in (2, 3, 4):
        commit_batch(catalog, seq, f"run {seq}")
        ledger.append(plan_rows(batch(seq)), run_id=f"run {seq}")
    promised = {"tables": {"shop.orders": {"orders": [4]}}, "stops": {}, "warnings": {}}
    for _ in range(2):
        outcome = settle.settle(promises.group("shop"), catalog, promised, run_id="run 4")["shop.orders"]
        assert (outcome["state"], outcome["batches"]) == ("published", {"orders": [4]})
    places = {
        seq: s.snapshot_id for seq, (_, s) in cursor.read_staged_batches(catalog.load_table("shop.orders")).items()
    }
    assert [(r.batch_seq, r.run_id, r.snapshots) for r in told(catalog)] == [
        (seq, f"run {seq}", {"shop.orders": places[seq]}) for seq in (2, 3, 4)
    ]
    settled = Ledger(catalog).rows({"orders": 0}, (LedgerState.SETTLED,))
    assert [r.batch_seq for r in settled] == [1, 2, 3, 4]
    assert [(r.snapshots or {})["shop.orders"] for r in settled[1:]] == [places[seq] for seq in (2, 3, 4)]
    # What is published again after a rollback by hand stands in another snapshot, and the ledger tells of that.
    typed = catalog.load_table("shop.orders")
    typed.manage_snapshots().set_current_snapshot(places[3]).commit()
    again = commit_batch(catalog, 4, "run 5", staging=False)
    settle.settle(promises.group("shop"), catalog, promised, run_id="run 5")
    assert [(r.run_id, r.snapshots) for r in told(catalog)][3:] == [("run 5", {"shop.orders": again})]
    *before, last = Ledger(catalog).rows({"orders": 0}, (LedgerState.SETTLED,))
    assert before == settled and (last.batch_seq, (last.snapshots or {})["shop.orders"]) == (4, again)


@pytest.mark.parametrize("edit", ["group: away", "group: [shop"])
def test_a_contract_that_leaves_the_group_while_a_run_is_under_way(tmp_path: Path, catalog: Catalog, edit: str) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 1)
    commit_batch(catalog, 2, "a")
    Ledger(catalog).append(plan_rows(batch(2)), run_id="a")
    folder = tmp_path / "contracts"
    mine = folder / "shop.orders.yaml"
    text = mine.read_text()
    (folder / "shop.other.yaml").write_text(text.replace("shop.orders", "shop.other").replace("topic: ", "topic: o"))
    mine.write_text(text.replace("group: shop", edit))
    promised = {"tables": {"shop.orders": {"orders": [2]}, "shop.other": {"oorders": []}}, "stops": {}, "warnings": {}}
    group = contract_folder.load_contracts(folder, strict=False).group("shop")
    assert settle.settle(group, catalog, promised, run_id="a")["shop.other"]["state"] == "idle"
    # Nobody asked whether the table holds the batch: whoever has the contract next closes it.
    assert [r.batch_seq for r in Ledger(catalog).rows({"orders": 0}, (LedgerState.SETTLED,))] == [1]
    mine.write_text(text)
    commit_batch(catalog, 3, "b")
    Ledger(catalog).append(plan_rows(batch(3)), run_id="b")
    promised["tables"] = {"shop.orders": {"orders": [3]}}
    settle.settle(promises.group("shop"), catalog, promised, run_id="b")
    assert [r.batch_seq for r in Ledger(catalog).rows({"orders": 0}, (LedgerState.SETTLED,))] == [1, 2, 3]


def test_each_table_is_loaded_once(tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata is megabytes to parse, and a group may have hundreds of tables."""
    promises = promise(tmp_path)
    typed, staging = filled(catalog, promises, 2)
    for table in (typed, staging):
        refs.repair_cursor_tag(catalog, table)
    loads: Counter[str] = Counter()
    load = catalog.load_table
    monkeypatch.setattr(catalog, "load_table", lambda name: loads.update([str(name)]) or load(name))
    promised = {"tables": {"shop.orders": {"orders": [1, 2]}}, "stops": {}, "warnings": {}}
    found = settle.settle(promises.group("shop"), catalog, promised, run_id="r")["shop.orders"]
    assert (found["state"], found["snapshot_id"]) == ("published", typed.metadata.current_snapshot_id)
    assert [loads[str(name)] for name in (("shop", "orders"), table_names.staging("orders"))] == [1, 1]


def test_a_round_loads_the_tables_of_topics_with_work(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = promise(tmp_path)
    for table in filled(catalog, promises, 2):
        refs.repair_cursor_tag(catalog, table)
    Ledger(catalog).append(plan_rows(batch(3)), run_id="r")
    commit_batch(catalog, 3, "r")
    mine = tmp_path / "contracts" / "shop.orders.yaml"
    (mine.parent / "shop.other.yaml").write_text(mine.read_text().replace("orders", "other"))
    group = contract_folder.load_contracts(mine.parent).group("shop")
    loads: Counter[str] = Counter()
    load = catalog.load_table
    monkeypatch.setattr(catalog, "load_table", lambda name: loads.update([str(name)]) or load(name))
    promised = {"tables": {"shop.orders": {"orders": [3]}, "shop.other": {"other": []}}}
    settle.settle_round(group, catalog, promised, run_id="r")
    assert {name for name in loads if "sluice'," not in name} == {
        str(("shop", "orders")),
        str(table_names.staging("orders")),
    }
    assert [r.batch_seq for r in told(catalog)] == [3]
    assert [r.batch_seq for r in Ledger(catalog).rows({"orders": 2}, (LedgerState.SETTLED,))] == [3]


def test_a_tag_is_not_healed_by_a_table_that_has_moved_on(tmp_path: Path, catalog: Catalog) -> None:
    seen, _ = filled(catalog, promise(tmp_path), 2)
    append(catalog.load_table("shop.orders"), 3, {STEP: "publish", **batch(3).properties()})
    with pytest.raises(CommitFailedException):
        refs.repair_cursor_tag(catalog, seen)
    assert CURSOR_TAG not in catalog.load_table("shop.orders").metadata.refs
