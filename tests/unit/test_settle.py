"""What settle tells the ledger of an application that could not tell itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice import refs, settle, slices, tables
from sluice.ledger import Ledger, Row, State
from sluice.model import CURSOR_TAG, Batch, OffsetRange
from sluice.settle import ENDED
from tests.unit.test_assess import filled, promise

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def told(catalog: Catalog) -> list[Row]:
    rows = Ledger(catalog).rows({"orders": 0}, (State.PUBLISHED, State.FAILED))
    return sorted(rows, key=lambda r: r.batch_seq or 0)


def test_what_a_killed_application_left_untold_is_told_once(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 2)
    snapshots = {s.summary["sluice.batch-seq"]: s for s in typed.metadata.snapshots}  # type: ignore[index]

    def after(run_id: str, *seqs: int) -> dict[str, Any]:
        promised = {"tables": {"shop.orders": {"orders": list(seqs)}}, "stops": {}, "warnings": {}}
        return settle.settle(promises.group("shop"), catalog, promised, run_id=run_id)["shop.orders"]

    # Batch 2 had landed when it was killed.
    assert after("a", 2)["state"] == "published"
    (row,) = told(catalog)
    assert (row.state, row.batch_seq, row.table, row.run_id) == (State.PUBLISHED, 2, "shop.orders", "a")
    assert row.snapshots == {"shop.orders": snapshots["2"].snapshot_id}
    assert int(row.at.timestamp() * 1000) == snapshots["2"].timestamp_ms
    # Nothing had: it failed, and the page that reads the ledger can know.
    for _ in range(2):
        assert after("b", 3, 4)["error"] == ENDED
    assert [(r.state, r.batch_seq, r.run_id, r.error) for r in told(catalog)][1:] == [(State.FAILED, 3, "b", ENDED)]
    # What it told itself is not told again.
    ledger = Ledger(catalog)
    ledger.append([Row("orders", State.STAGED, batch_seq=4, records=1)], run_id="late")
    assert after("late", 3, 4)["state"] == "behind"  # it reported, and had no time for this table
    ledger.append([Row("orders", State.BLOCKED, batch_seq=3, table="shop.orders", error="bad")], run_id="d")
    assert after("e", 3, 4)["error"] == ENDED and told(catalog)[-1].error == ENDED
    ledger.append([Row("orders", State.PUBLISHED, batch_seq=1, table="shop.orders", records=1)], run_id="c")
    assert after("c", 1, 2)["records"] == 1
    assert len(told(catalog)) == 3  # and what was blocked is not hidden by what came after


def test_branches_of_slices_that_nobody_goes_on_with_are_dropped(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 2)
    ledger, now = Ledger(catalog), datetime.now(UTC)

    def plan(seq: int, days: float, run_id: str) -> None:
        piece = Batch("orders", "id", seq, {0: OffsetRange(0, 1)}, {})
        rows = slices.plan_rows(piece, "shop.orders", who=None, why="")
        ledger.append([replace(r, at=now - timedelta(days=days)) for r in rows], run_id=run_id)

    def tell(seq: int, state: State, days: float, run_id: str) -> None:
        at = now - timedelta(days=days)
        ledger.append([Row("orders", state, "id", seq, table="shop.orders", at=at)], run_id=run_id)

    plan(-1, 8, "silent")
    for seq in (-2, -3):
        plan(seq, 8, "at work")
    tell(-3, State.REPLAYED, 1, "at work")
    plan(-4, 6, "young")
    unfinished = slices.unfinished(slices.rows(ledger, "orders"), now)
    assert sorted(unfinished) == [-4, -2]
    # In the typed table and in staging alike.
    branches = {seq: refs.new_branch("orders", seq) for seq in (-1, -2, -3, -4)}
    kept = refs.kept_branch("orders", -1)
    names = ("shop.orders", tables.staging("orders"))
    for name in names:
        table = catalog.load_table(name)
        head = table.metadata.current_snapshot_id
        assert head
        refs.commit(catalog, table, (), tuple(refs.point(b, head) for b in (*branches.values(), kept)))
    promised = {"tables": {"shop.orders": {"orders": [2]}}, "stops": {}, "warnings": {}}
    settle.settle(promises.group("shop"), catalog, promised, run_id="next")
    for name in names:
        left = {n for n in catalog.load_table(name).metadata.refs if n not in ("main", CURSOR_TAG)}
        assert left == {branches[-2], branches[-4], kept}
