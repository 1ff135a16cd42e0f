"""Whether another try of a slice would help, as the ledger says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice.backfill.backfill_outcome import needs_action
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger

pytestmark = pytest.mark.unit

WORK = {"table": "shop.orders", "topic": "orders", "slices": [-1, -3], "run_id": "r"}
NOW = datetime.now(UTC)
FAILED = LedgerRow("orders", LedgerState.FAILED, batch_seq=-1, table="shop.orders", run_id="r", at=NOW)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (replace(FAILED, exception="sluice.errors.ContractError"), True),
        (replace(FAILED, exception="sluice.errors.BrokerUnavailableError"), False),
        (replace(FAILED, exception="sluice.errors.NoSuchError"), False),
        (replace(FAILED, exception="py4j.protocol.Py4JJavaError"), False),
        (replace(FAILED, state=LedgerState.BLOCKED), True),
        (replace(FAILED, state=LedgerState.REPLAYED), False),
        (replace(FAILED, state=LedgerState.RETRIED, exception="sluice.errors.ContractError"), False),
        (replace(FAILED, state=LedgerState.BLOCKED, run_id="another"), False),
        (replace(FAILED, state=LedgerState.BLOCKED, batch_seq=-2), False),
        (replace(FAILED, state=LedgerState.BLOCKED, at=NOW - timedelta(hours=1)), False),
        (None, False),
    ],
)
def test_the_last_result_of_this_try_decides(tmp_path: Path, row: LedgerRow | None, expected: bool) -> None:
    with SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}") as catalog:
        if row:
            Ledger(catalog).append([row], run_id="r")
        assert needs_action(catalog, WORK, NOW - timedelta(minutes=1)) is expected


def test_a_slice_that_a_retry_may_cure_is_retried_beside_a_blocked_one(tmp_path: Path) -> None:
    unavailable = replace(FAILED, batch_seq=-3, exception="sluice.errors.BrokerUnavailableError")
    with SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}") as catalog:
        Ledger(catalog).append([replace(FAILED, state=LedgerState.BLOCKED), unavailable], run_id="r")
        assert needs_action(catalog, WORK, NOW - timedelta(minutes=1)) is False
