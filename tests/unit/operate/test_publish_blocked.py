"""A blocked batch is published once by an operator's decision; what else stops a table is not decided away."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice.batch import Batch
from sluice.contract.folder import Contracts
from sluice.errors import BlockedError, ExpectationsFailedError, RefusedError
from sluice.ledger.error_causes import error_columns
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.tolerated_batches import tolerated_numbers
from sluice.operate import publish_blocked
from sluice.operate.operator_input import Decision
from tests.unit.maintain.test_assess import batch, filled, promise

pytestmark = pytest.mark.unit

NAME = "shop.orders"
ANN = Decision("ann", "test records", "by hand")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


@pytest.fixture
def contracts(tmp_path: Path, catalog: Catalog) -> Contracts:
    """Of a table that has published batch 1."""
    known = promise(tmp_path)
    filled(catalog, known, 1)
    return known


def block(catalog: Catalog, seq: int, error: BlockedError | None = None, topic_id: str = "id") -> None:
    columns = error_columns(error or BlockedError("3 of 5 records were rejected."), NAME)
    row = LedgerRow(
        "orders",
        LedgerState.BLOCKED,
        topic_id,
        seq,
        table=NAME,
        records=5,
        rejected=3,
        **columns,  # type: ignore[arg-type]
    )
    Ledger(catalog).append([row], run_id="r")


def test_the_first_blocked_batch_is_decided_and_no_other(catalog: Catalog, contracts: Contracts) -> None:
    for seq in (3, 2, 1):  # 1 is published since
        block(catalog, seq)
    (found,) = publish_blocked.find_blocked(NAME, contracts, catalog)
    assert str(found) == "shop.orders batch 2 of orders: 3 of 5 records stay quarantined"
    publish_blocked.publish_blocked([found], catalog, ANN)
    ledger = Ledger(catalog)
    assert tolerated_numbers(ledger, NAME, [batch(2), batch(3)]) == {2}
    assert tolerated_numbers(ledger, "shop.others", [batch(2)]) == frozenset()
    assert tolerated_numbers(ledger, NAME, [Batch("orders", "created again", 2, {}, {})]) == frozenset()
    (row,) = ledger.rows({"orders": 0}, (LedgerState.TOLERATED,))
    assert (row.who, row.why, row.run_id, row.table) == ("ann", "test records", "by hand", NAME)
    with pytest.raises(RefusedError, match="It is decided already"):
        publish_blocked.find_blocked(NAME, contracts, catalog)


def test_what_is_not_blocked_by_bad_records_is_refused(catalog: Catalog, contracts: Contracts) -> None:
    with pytest.raises(RefusedError, match="No batch is blocked"):
        publish_blocked.find_blocked(NAME, contracts, catalog)
    block(catalog, 2, ExpectationsFailedError("a mean of 7"))
    with pytest.raises(RefusedError, match="An expectation of severity block failed"):
        publish_blocked.find_blocked(NAME, contracts, catalog)
    block(catalog, 2)  # by a later run, whose contract has no such expectation
    found = publish_blocked.find_blocked(NAME, contracts, catalog)
    with pytest.raises(RefusedError, match="No reason is given"):
        publish_blocked.publish_blocked(found, catalog, Decision("ann", " ", "by hand"))
    assert Ledger(catalog).rows({"orders": 0}, (LedgerState.TOLERATED,)) == []
