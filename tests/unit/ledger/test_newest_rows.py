"""The newest rows of a table are the same for any layout of files, and only the needed files are read."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask

from sluice.iceberg import table_names
from sluice.ledger import maintenance_table, newest_rows
from sluice.ledger.maintenance_table import Action, ActionResult, FileCounts
from sluice.ledger.newest_rows import read_last_rows, read_newest

pytestmark = pytest.mark.unit

NOW = datetime.now(UTC)
BY = ("table", "action")
SIZE = FileCounts(1, 2, 3, 4, 5)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many rows, of how many columns, are read at once."""
    found: list[tuple[int, int]] = []
    read = ArrowScan.to_table

    def to_table(self: ArrowScan, tasks: Iterable[FileScanTask]) -> pa.Table:
        rows = read(self, tasks)
        found.append((sum(t.file.record_count for t in tasks), rows.num_columns))
        return rows

    monkeypatch.setattr(ArrowScan, "to_table", to_table)
    monkeypatch.setattr(newest_rows, "MAX_ROWS_AT_ONCE", 10)
    return found


def done(name: str, minutes_ago: float, action: Action = Action.REWRITE, **more: Any) -> ActionResult:
    at = NOW - timedelta(minutes=minutes_ago)
    return ActionResult(name, action, "done", f"{minutes_ago} ago", SIZE, SIZE, 1.5, at=at, **more)


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_of_each_group_is_found_in_whatever_files(
    catalog: Catalog, opened: list[tuple[int, int]], seed: int
) -> None:
    some = random.Random(seed)
    minutes = iter(some.sample(range(10_000), 60))
    for count in (1, 9, 30, 4, 16):
        effects = [done(some.choice("abcde"), next(minutes), some.choice([*Action])) for _ in range(count)]
        maintenance_table.write_results(catalog, effects, run_id="r")
    scan = catalog.load_table(table_names.MAINTENANCE).scan()
    everything = scan.to_arrow()
    keys = list(zip(*(everything[name].to_pylist() for name in BY), strict=True))
    for groups, short in ((None, ()), (keys, ()), ([("a", "rewrite_data_files")], ["state"]), ([("f", "never")], ())):
        opened.clear()
        found = read_newest(scan, BY, groups, short).to_pylist()
        whole = newest_rows.take_newest(everything, BY).to_pylist()
        asked = [r for r in whole if groups is None or (r["table"], r["action"]) in groups]
        assert [r for r in found if r in asked] == asked
        assert max(rows for rows, _ in opened) == 30, "a file, or ten rows"
        assert {columns for _, columns in opened} == {3 + len(short), len(everything.schema)}
    for most in (1, 15, 100):
        assert read_last_rows(scan, most).to_pylist() == everything.sort_by("at").to_pylist()[-most:]
    nothing = scan.filter("table = 'none'")
    assert (read_newest(nothing, BY).num_rows, read_last_rows(nothing, 5).num_rows) == (0, 0)


def test_old_files_stay_closed_once_all_that_was_asked_for_is_found(
    catalog: Catalog, opened: list[tuple[int, int]]
) -> None:
    for day in range(10, 0, -1):
        maintenance_table.write_results(
            catalog, [done(name, day * 1440 + n) for n, name in enumerate("abcdefgh")], run_id=f"day {day}"
        )
    maintenance_table.write_results(
        catalog, [done("a", 30, Action.EXPIRE), done("a", 20, Action.ORPHANS)], run_id="day 0"
    )
    opened.clear()
    found = maintenance_table.last_results(catalog, ["a"])
    assert {action: e.run_id for (_, action), e in found.items()} == {
        "rewrite_data_files": "day 1",
        "expire_snapshots": "day 0",
        "remove_orphan_files": "day 0",
    }
    assert found["a", "rewrite_data_files"].summary == done("a", 1440).summary
    assert opened == [(10, 4), (10, len(maintenance_table.SUMMARY_COLUMNS))], "the newest files, and none of ten days"
    opened.clear()
    kept = maintenance_table.read_results(
        catalog, maintenance_table.ResultFilter(tables=["b"]), columns=maintenance_table.SUMMARY_COLUMNS, limit=2
    )
    assert [e.run_id for e in kept] == ["day 2", "day 1"]
    assert sum(rows for rows, _ in opened) < 30


def test_the_history_of_maintenance_takes_no_more_memory_than_what_is_asked_of_it(
    catalog: Catalog, opened: list[tuple[int, int]]
) -> None:
    for day in range(9, 0, -1):
        effects = [done(name, day * 1440, a, listing=["x"] * 9) for name in "abc" for a in Action]
        maintenance_table.write_results(
            catalog, [*effects, ActionResult("a", Action.EXPIRE, maintenance_table.BEGUN, at=NOW)], run_id="r"
        )
    opened.clear()
    assert len(maintenance_table.last_results(catalog)) == 9
    assert set(maintenance_table.last_attempts(catalog, Action.REWRITE)) == {"a", "b", "c"}
    assert maintenance_table.read_last_cleanups(catalog)["a"].at == done("a", 1440).at
    assert max(rows for rows, _ in opened) == 10
    assert sum(1 for _, columns in opened if columns > 4) == 1, "the rest is told by few columns"
