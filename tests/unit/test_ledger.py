"""The ledger on a catalog in a file: words without a batch, and a table that was made before they were known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema

from sluice import catalog as catalogs
from sluice import tables, words
from sluice.ledger import SCHEMA, SPEC, ConflictError, Ledger, Row, State, batches, plan_rows
from sluice.model import Batch, OffsetRange

pytestmark = pytest.mark.unit

BATCH = Batch("t", "id", 1, {0: OffsetRange(0, 5)}, {0: 5})


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/iceberg.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}")
    return catalogs.load()


def test_words_are_kept_beside_batches(catalog: Catalog):
    ledger = Ledger(catalog)
    assert ledger.gaps(["t"]) == []
    ledger.append(plan_rows(BATCH), run_id="r")
    ledger.append(words.rows("t", "id", {0: OffsetRange(5, 8)}, who="ann", why="lost"), run_id="by hand", cas=True)
    ledger.append([Row("t", State.ROLLED_BACK, table="db.a", snapshots={"from": 2, "to": 1}, who="ann")], run_id="x")
    assert batches(ledger.rows({"t": 0})) == {("t", 1): BATCH}
    (row,) = ledger.gaps(["t", "u"])
    assert (row.partition, row.start_offset, row.end_offset, row.who, row.why) == (0, 5, 8, "ann", "lost")
    assert ledger.gaps(["u"]) == []


def test_a_ledger_of_before_gets_the_new_columns(catalog: Catalog):
    before = Schema(*(f for f in SCHEMA.fields if f.name not in ("who", "why")))
    old = Ledger(catalog, tables.ensure(catalog, tables.LEDGER, before, SPEC))
    old.append(plan_rows(BATCH), run_id="r")
    ledger = Ledger(catalog)
    assert ledger.table.schema().column_names[-2:] == ["who", "why"]
    assert batches(ledger.rows({"t": 0})) == {("t", 1): BATCH}
    ledger.append(words.rows("t", "id", {0: OffsetRange(5, 8)}, who="ann", why="lost"), run_id="by hand")
    assert [r.who for r in Ledger(catalog).gaps(["t"])] == ["ann"]


def test_many_appends_keep_the_history_and_few_files(catalog: Catalog):
    ledger = Ledger(catalog)
    with ledger.table.transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "3"})
    ledger.refresh()
    behind = Ledger(catalog)
    for seq in range(1, 26):
        ledger.append(plan_rows(replace(BATCH, seq=seq)), run_id=f"r{seq}")
    metadata = catalog.load_table(tables.LEDGER).metadata
    assert [s.summary["sluice.run-id"] for s in metadata.snapshots if s.summary] == [f"r{n}" for n in range(1, 26)]
    assert len(metadata.snapshot_log) == 25
    assert "commit.retry.num-retries" not in metadata.properties
    assert len(ledger.table.current_snapshot().manifests(ledger.table.io)) < 12
    assert sorted(seq for _, seq in batches(Ledger(catalog).rows({"t": 0}))) == list(range(1, 26))
    kept = Path(ledger.table.location().removeprefix("file://"), "metadata").glob("*.metadata.json")
    assert len(list(kept)) == 4, "the last, and three before it"
    with pytest.raises(ConflictError):
        behind.append(plan_rows(replace(BATCH, seq=26)), run_id="late", cas=True)
    assert len(behind.table.metadata.snapshots) == 25, "the view is fresh"
