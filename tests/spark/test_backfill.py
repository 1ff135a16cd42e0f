"""Backfill: a hole is filled exactly, any range again changes nothing, the cursor stays, and live batches go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from sluice import backfill, backfill_end, backfill_run, cursor, tables
from sluice.backfill import Backfill
from sluice.backfill_ranges import Request
from sluice.model import CURSOR_TAG
from sluice.slices import Origin
from tests.support.lake import Lake

WHY = "a hole was found"


def asked(table: str, ranges: Mapping[int, Sequence[int]] | None = None, **more: Any) -> Request:
    return Request(table, ranges or {}, **{"why": WHY, **more})


def planned(it: Lake, request: Request, run_id: str = "by hand") -> Backfill:
    return backfill.write(request, it.contracts, it.catalog, it.admin, who="ann", run_id=run_id)


def carry_out(it: Lake, found: Backfill, run_id: str = "by hand", *numbers: int) -> None:
    for seq in numbers or found.promised()["slices"]:
        backfill_run.run(
            it.context(run_id), it.contracts, it.admin,
            table=found.table, topic=found.topic, seq=seq, origin=found.origin,
        )  # fmt: skip


def fill_in(it: Lake, request: Request, run_id: str = "by hand") -> list[dict[str, Any]]:
    """Plan, carry out, and tell."""
    found = planned(it, request, run_id)
    carry_out(it, found, run_id)
    return backfill_end.outcome(it.contracts, it.catalog, found.promised())


def cut_out(it: Lake, table: str, where: str) -> None:
    name = tables.spark_name(it.context().catalog_name, tuple(table.split(".")))
    it.spark.sql(f"DELETE FROM {name} WHERE {where}")


def standing(it: Lake, table: str) -> Any:
    found = it.catalog.load_table(table)
    return cursor.published(found), found.metadata.refs[CURSOR_TAG]


def prepared(it: Lake, mode: str = "append", **contract: Any) -> str:
    it.create_topic(2)
    table = it.contract(mode=mode, limits={"records_per_batch": 40}, **contract)
    for number in range(2):
        it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(100 * number, 100 * number + 60))
        it.run()
    return table


@pytest.mark.parametrize("origin", [Origin.KAFKA, Origin.STAGING])
def test_a_hole_is_filled_and_nothing_else(lake: Callable[..., Lake], origin: Origin) -> None:
    it = lake()
    table = prepared(it)
    before = standing(it, table)
    cut_out(it, table, "_kafka_partition = 0 AND _kafka_offset BETWEEN 10 AND 34")
    cut_out(it, table, "_kafka_partition = 1 AND _kafka_offset = 3")
    assert len(it.rows(table)) == 120 - 26
    # Wider than the hole: what is there stays as it is, once.
    outcomes = fill_in(it, asked(table, {0: [5, 50], 1: [0, 5]}, origin=origin))
    assert [o["slice"] for o in outcomes] == [-1, -2]
    assert all(o["snapshot_id"] and o["rejected"] == 0 for o in outcomes)
    assert sum(o["records"] for o in outcomes) == 50
    it.assert_appended(table)
    assert standing(it, table)[0] == before[0]
    # Any of it again, in any order, changes nothing.
    rows = sorted(it.rows(table), key=str)
    for ranges in ({1: [3, 4]}, {0: [0, 60], 1: [0, 60]}, {0: [20, 30]}):
        fill_in(it, asked(table, ranges, origin=origin), f"again {ranges}")
    assert sorted(it.rows(table), key=str) == rows
    assert standing(it, table)[0] == before[0]
    # The live feed goes on, numbered as if nothing had been.
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(500, 520))
    assert it.run()[table]["batches"] == {it.topic: [5]}
    it.assert_appended(table)
    refs = it.catalog.load_table(table).metadata.refs
    assert set(refs) == {"main", CURSOR_TAG}
