"""The newest results of expectations are read, however many there are."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from sluice.iceberg import compat, own_table, table_names, tables
from sluice.ledger import quality_table
from sluice.ledger.quality_table import ExpectationResult

pytestmark = pytest.mark.unit

NOW = datetime.now(UTC)
RESULT = ExpectationResult("db.a", "t", 1, "expect", "id", "warn", True, 10)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")


def judged(table: str, seq: int, hours_ago: float, *columns: str, topic: str = "t") -> list[ExpectationResult]:
    at = NOW - timedelta(hours=hours_ago)
    # Those of one batch are made one after the other.
    return [
        replace(RESULT, table=table, topic=topic, batch_seq=seq, column=c, at=at + timedelta(seconds=i))
        for i, c in enumerate(columns)
    ]


def told(results: list[ExpectationResult]) -> list[tuple[str, str, int, str]]:
    return [(r.table, r.topic, r.batch_seq, r.column) for r in results]


@pytest.mark.parametrize("few", [0, 20])
def test_the_last_batch_is_found_however_long_ago_it_was(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(quality_table, "MAX_TABLES_IN_FILTER", few)
    assert quality_table.read_latest_results(catalog, ["db.a"]) == {}
    everything = [
        judged("db.a", 1, 2, "id"),
        judged("db.a", 2, 1, "id", "n"),
        judged("db.b", 7, 24 * 400, "id"),
        judged("db.b", 8, 24 * 300, "id"),
        # Another topic, whose batches have lesser numbers.
        judged("db.b", 1, 24 * 200, "id", "n", topic="u"),
        judged("db.a", -5, 0.5, "id"),
    ]
    for results in everything:
        quality_table.write_results(catalog, results, run_id="r")
    for results in (judged("db.c", 9, 2, "id"), judged("db.c", 1, 1, "id", topic="u")):
        quality_table.write_results(catalog, results, run_id="r")
    scans, scan = [], Table.scan
    monkeypatch.setattr(Table, "scan", lambda *args, **given: scans.append(given) or scan(*args, **given))
    found = quality_table.read_latest_results(catalog, ["db.a", "db.b", "db.c", "db.none"])
    assert len(scans) == 4  # of a day two and of all time two, however many batches that are
    assert {name: sorted(told(results)) for name, results in found.items()} == {
        "db.a": [("db.a", "t", 2, "id"), ("db.a", "t", 2, "n")],
        "db.b": [("db.b", "t", 8, "id"), ("db.b", "u", 1, "id"), ("db.b", "u", 1, "n")],
        "db.c": [("db.c", "t", 9, "id"), ("db.c", "u", 1, "id")],
    }


def test_only_the_newest_are_read_where_no_more_are_asked_for(catalog: Catalog) -> None:
    for seq in range(1, 6):
        quality_table.write_results(catalog, judged("db.a", seq, 10 - seq, "id", "n"), run_id="r")
    quality_table.write_results(catalog, judged("db.b", 1, 9.5, "id"), run_id="r")
    since = NOW - timedelta(hours=8.5)
    everything = quality_table.read_results_since(catalog, since)
    assert told(everything) == [("db.a", "t", seq, c) for seq in (2, 3, 4, 5) for c in ("id", "n")]
    assert quality_table.read_results_since(catalog, since, of_each=2) == everything[-4:]
    assert (
        quality_table.read_results_since(catalog, since, of_each=99)
        == everything
        == quality_table.read_results_since(catalog, since, batches=99)
    )
    assert quality_table.read_results_since(catalog, since, batches=3) == everything[2:]
    early = NOW - timedelta(days=1)
    assert told(quality_table.read_results_since(catalog, early, of_each=1)) == [
        ("db.b", "t", 1, "id"), ("db.a", "t", 5, "id"), ("db.a", "t", 5, "n")
    ]  # fmt: skip
    assert quality_table.read_results_since(catalog, early, ["db.b"], of_each=1) == quality_table.read_results_since(
        catalog, early, ["db.b"], batches=1
    )
    assert quality_table.read_results_since(catalog, NOW, of_each=1, batches=1) == []


def test_a_table_made_before_a_column_was_thought_of_learns_it_with_the_next_batch(catalog: Catalog) -> None:
    older = Schema(*(f for f in quality_table.SCHEMA.fields if f.name != "too_long"))
    tables.ensure_table(catalog, table_names.QUALITY, older).append(
        pa.Table.from_pylist([{k: v for k, v in asdict(RESULT).items() if k != "too_long"}], schema=older.as_arrow())
    )
    (there,) = quality_table.read_run_results(catalog, "db.a", "")
    assert (there.too_long, there.summary) == (None, "expect(id): passed")
    new = replace(RESULT, batch_seq=2, success=False, unexpected=3, too_long=1, at=datetime.now(UTC))
    quality_table.write_results(catalog, [new], run_id="r")
    (found,) = quality_table.read_run_results(catalog, "db.a", "r")
    assert (found.too_long, found.summary) == (
        1, "expect(id): 3 of 10 rows fail, 1 of them as their text is too long for the regex"
    )  # fmt: skip
    assert [r.too_long for r in quality_table.read_latest_results(catalog, ["db.a"])["db.a"]] == [1]
    assert [r.too_long for r in quality_table.read_results_since(catalog, NOW - timedelta(days=1))] == [None, 1]


def test_of_two_attempts_at_one_batch_the_results_stand_once(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry and a zombie both find nothing of the batch, and write."""
    quality_table.write_results(catalog, [replace(RESULT, table="db.other")], run_id="other")
    original, meanwhile = compat.with_current_snapshot_only, [RESULT]

    def between(table: Table) -> Table:
        if meanwhile:
            quality_table.write_results(catalog, [meanwhile.pop()], run_id="zombie")
        return original(table)

    monkeypatch.setattr(compat, "with_current_snapshot_only", between)
    quality_table.write_results(catalog, [RESULT], run_id="retry")
    rows = catalog.load_table(table_names.QUALITY).scan().to_arrow().to_pylist()
    assert [r["run_id"] for r in rows if r["table"] == "db.a"] == ["retry"]


def test_results_are_kept_in_few_snapshots(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_table, "MAX_EXCESS_SNAPSHOTS", 10)
    monkeypatch.setattr(own_table, "EXPIRE_AT_ONCE", 10)
    monkeypatch.setattr(own_table, "MIN_SNAPSHOTS", 5)
    monkeypatch.setattr(own_table, "MAX_SNAPSHOT_AGE", timedelta(0))
    for seq in (*range(1, 21), 20):
        quality_table.write_results(catalog, judged("db.a", seq, 1, "id"), run_id="r")
    assert len(catalog.load_table(table_names.QUALITY).metadata.snapshots) < 15
    assert len(quality_table.read_results_since(catalog, NOW - timedelta(days=1))) == 20
