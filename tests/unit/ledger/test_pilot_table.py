"""What a pilot leaves behind: comparisons, rehearsals, decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice.iceberg import table_names, tables
from sluice.ledger import pilot_table
from sluice.ledger.pilot_table import PilotRow, Stage

pytestmark = pytest.mark.unit
AT = datetime(2026, 11, 29, 12, tzinfo=UTC)


def test_rows_come_back_by_table_with_the_oldest_first(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")
    pilot_table.record(catalog)
    assert tables.load(catalog, table_names.PILOT) is None, "nothing is made where there is nothing to record"
    assert pilot_table.read(catalog, "shop.orders") == []
    yes = PilotRow("shop.orders", Stage.DECIDED, True, "yes", who="eve", why="equal for a week", run_id="r2", at=AT)
    compared = PilotRow(
        "shop.orders", Stage.COMPARED, False, "different", {"rows": 3}, run_id="r1", at=AT - timedelta(days=1)
    )
    pilot_table.record(catalog, yes, replace(yes, table="shop.returns"))
    pilot_table.record(catalog, compared)
    assert pilot_table.read(catalog, "shop.orders") == [compared, yes]
