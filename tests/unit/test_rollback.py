"""What a rollback finds, refuses and leaves behind, by an Iceberg catalog in a file and no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Snapshot

from sluice import retention, rollback, slices, tables
from sluice.contracts import Contracts
from sluice.errors import RefusedError
from sluice.filters import at_most
from sluice.ledger import Ledger, Row, State
from sluice.model import PUBLISHED_THROUGH, Batch, OffsetRange, Through, encode_through
from sluice.rollback import Rollback
from sluice.upkeep import Action
from tests.unit.test_assess import LATER, NOW, append, filled, needs, promise

pytestmark = pytest.mark.unit

THROUGH = {PUBLISHED_THROUGH: encode_through({"orders": Through(3, "id", {0: 3})})}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def look(catalog: Catalog, promises: Contracts, target: Snapshot) -> Rollback:
    return rollback.look("shop.orders", promises, catalog, Ledger(catalog), snapshot_id=target.snapshot_id)


def act(catalog: Catalog, found: Rollback, **more: str) -> None:
    rollback.roll_back(found, catalog, Ledger(catalog), **{"who": "ann", "why": "wrong", "run_id": "by hand", **more})


def head(catalog: Catalog) -> Snapshot:
    found = catalog.load_table("shop.orders").current_snapshot()
    assert found is not None
    return found


def bring(catalog: Catalog, seq: int, start: int, end: int, *, staged: bool) -> None:
    """A slice that was planned and has landed, from staging or quarantine; or from Kafka, by way of staging."""
    piece = Batch("orders", "id", seq, {0: OffsetRange(start, end)}, {})
    ledger = Ledger(catalog)
    ledger.append(slices.plan_rows(piece, "shop.orders", who="ann", why="a hole"), run_id="r")
    if staged:
        append(catalog.load_table(tables.staging("orders")), seq, {"sluice.step": "stage", **piece.properties()})
    append(catalog.load_table("shop.orders"), seq, {"sluice.step": "replay", **piece.properties(), **THROUGH})
    done = {"shop.orders": head(catalog).snapshot_id}
    ledger.append([Row("orders", State.REPLAYED, "id", seq, table="shop.orders", snapshots=done)], run_id="r")


def trim(catalog: Catalog, through: int) -> None:
    staging = catalog.load_table(tables.staging("orders"))
    with staging.transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: str(through)})
    staging.delete(at_most("batch_seq", through))


def test_a_slice_whose_records_are_gone_is_undone_by_name_only(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    target = head(catalog)
    # From quarantine, which holds them no more; staging still has the batches that they were in.
    bring(catalog, -1, 0, 2, staged=False)
    found = look(catalog, promises, target)
    assert [str(each) for each in found.slices] == ['backfill -1 {"0":[0,2]}: 1 rows written']
    assert not found.lost
    trim(catalog, 1)
    found = look(catalog, promises, target)
    text = "\n".join(found.lines())
    assert 'LOST    orders backfill -1 {"0":[0,2]}: 1 rows written, and staging lacks {"0":[[0,1]]}' in text
    assert "backfill plan shop.orders --topic orders --ranges '{\"0\":[0,2]}'" in text
    with pytest.raises(RefusedError, match=r"backfill -1 .*gone for good"):
        act(catalog, found)
    act(catalog, found, accept_loss="shop.orders")
    assert head(catalog) == target
    # Nothing of the live feed is given up for it.
    assert Ledger(catalog).gaps(["orders"]) == []


def test_a_slice_that_changed_nothing_is_no_loss(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    target = head(catalog)
    piece = Batch("orders", "id", -1, {0: OffsetRange(0, 2)}, {})
    typed = catalog.load_table("shop.orders")
    nothing = typed.schema().as_arrow().empty_table()
    typed.append(nothing, snapshot_properties={"sluice.step": "replay", **piece.properties()})
    trim(catalog, 1)
    assert not look(catalog, promises, target).lost


def test_raw_records_of_a_slice_stay_as_long_as_it_may_be_undone(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path, snapshot_age="2d", staging_retention="2d", min_snapshots=1)
    filled(catalog, promises, 3)
    bring(catalog, -1, 0, 2, staged=True)  # from Kafka
    bring(catalog, -2, 1, 2, staged=False)  # from staging
    inside = retention.undoable(catalog, promises, "orders", NOW + timedelta(days=1))
    assert sorted(inside) == [-2, -1]
    # All was planned and published long ago; what a slice brought that landed just now is read again if it is undone.
    staging = catalog.load_table(tables.staging("orders"))

    def going(undoable: Mapping[int, Batch]) -> retention.Trim | None:
        return retention.trim(catalog, staging, "orders", 3, undoable, timedelta(days=2), LATER)

    assert going(inside) is None
    assert going({-2: inside[-2]}) == retention.Trim(1, 1)
    assert going({}) == retention.Trim(1, 2, (-1,))
    # Once no rollback leads back to before them.
    append(catalog.load_table("shop.orders"), 9, THROUGH)
    assert retention.undoable(catalog, promises, "orders", LATER) == {}
    need = needs(promises, catalog, Action.EXPIRE, LATER)["sluice_staging.orders"]
    assert need.reason.startswith("batches 1 to 2 are published and past their retention; 1 slices of backfills")
    need = needs(promises, catalog, Action.EXPIRE, NOW + timedelta(days=1))["sluice_staging.orders"]
    assert "trim" not in need.steps
