"""Slices of several topics, which have the same numbers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sluice.batch import Batch
from sluice.iceberg import refs
from sluice.ledger import slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange

pytestmark = pytest.mark.unit

TABLE = "shop.orders"


@pytest.mark.parametrize("other_is_replayed", [False, True])
def test_the_branch_of_a_slice_stays_whatever_becomes_of_the_slice_of_that_number_of_another_topic(
    catalog: Catalog, other_is_replayed: bool
) -> None:
    catalog.create_namespace("shop")
    table = catalog.create_table(TABLE, Schema(NestedField(1, "id", LongType())))
    table.append(table.scan().to_arrow())
    ledger, topics = Ledger(catalog), ("orders.eu", "orders.us")
    for topic in topics:
        piece = Batch(topic, "id", -1, {0: OffsetRange(0, 1)}, {})
        ledger.append(slices.slice_plan_rows(piece, TABLE, who=None, why=""), run_id=topic)
    if other_is_replayed:
        ledger.append([LedgerRow("orders.us", LedgerState.REPLAYED, "id", -1, table=TABLE)], run_id="orders.us")
    branches = {topic: refs.new_branch_name(topic, -1) for topic in topics}
    head = table.metadata.current_snapshot_id
    assert head
    refs.commit(catalog, table, (), tuple(refs.set_ref(name, head) for name in branches.values()))
    abandoned = slices.find_abandoned_branches(catalog.load_table(TABLE), ledger, topics, datetime.now(UTC))
    assert abandoned == ({branches["orders.us"]} if other_is_replayed else set())
