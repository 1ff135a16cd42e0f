"""The ledger on a catalog in a file: words without a batch, and a table that was made before they were known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask

from sluice import tables, words
from sluice.ledger import SCHEMA, SPEC, ConflictError, Ledger, Row, State, batches, plan_rows
from sluice.model import Batch, OffsetRange

pytestmark = pytest.mark.unit

BATCH = Batch("t", "id", 1, {0: OffsetRange(0, 5)}, {0: 5})


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


def test_each_topic_is_read_from_its_own_floor_on(catalog: Catalog, monkeypatch: pytest.MonkeyPatch):
    ledger = Ledger(catalog)
    there = {"a": range(1, 4), "b": range(1, 41), "c": range(1, 3), "d": range(-2, 2)}
    for some in (("a", "b"), ("c", "d")):
        rows = [r for t in some for seq in there[t] for r in plan_rows(replace(BATCH, topic=t, seq=seq))]
        ledger.append(rows, run_id="r")
    ledger.append(plan_rows(replace(BATCH, topic="b", seq=41), State.STAGED), run_id="r")
    opened: list[str] = []

    def read(self: Ledger, tasks: Sequence[FileScanTask], wanted: BooleanExpression) -> pa.Table:
        opened.extend(self._topic(task.file) or "any" for task in tasks)
        return original(self, tasks, wanted)

    original = Ledger._read
    monkeypatch.setattr(Ledger, "_read", read)

    def found(after: dict[str, int], states: Sequence[State] | None = None) -> list[tuple[str, int]]:
        opened.clear()
        return sorted((r.topic, r.batch_seq or 0) for r in ledger.rows(after, states))

    assert found({"a": 2, "b": 39, "d": 0, "elsewhere": 0}) == [("a", 3), ("b", 40), ("b", 41), ("d", 1)]
    assert found({"a": 3, "b": 39, "c": 2}) == [("b", 40), ("b", 41)]
    assert opened == ["b", "b"], "what has nothing above its floor is not opened"
    assert found({"b": 0}, [State.STAGED]) == [("b", 41)]
    assert found({"b": 41}) == found({}) == []

    # Partitioned otherwise by somebody, a file may hold any topic.
    with ledger.table.update_spec() as change:
        change.remove_field("topic")
    ledger.append(
        [*plan_rows(replace(BATCH, topic="a", seq=4)), *plan_rows(replace(BATCH, topic="c", seq=3))], run_id="r"
    )
    assert found({"a": 2, "c": 2}) == [("a", 3), ("a", 4), ("c", 3)]
    assert sorted(opened) == ["a", "any"]


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
