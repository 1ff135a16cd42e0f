"""The ledger in a local catalog: rows without a batch, and tables of earlier versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from sluice.batch import Batch
from sluice.iceberg import own_table, refs, scan, table_names, tables
from sluice.ledger import accepted_gaps
from sluice.ledger.ledger_rows import SCHEMA, SPEC, LedgerRow, LedgerState, batches_from_rows, plan_rows
from sluice.ledger.offsets_table import ConflictError, Ledger
from sluice.offsets import OffsetRange

pytestmark = pytest.mark.unit

NOW = datetime.now(UTC)
BATCH = Batch("t", "id", 1, {0: OffsetRange(0, 5)}, {0: 5})
BATCH_ROW = replace(plan_rows(BATCH, LedgerState.SETTLED)[0], at=NOW)


def test_words_are_kept_beside_batches(catalog: Catalog):
    ledger = Ledger(catalog)
    assert ledger.gaps(["t"]) == []
    ledger.append(plan_rows(BATCH), run_id="r")
    ledger.append(
        accepted_gaps.gap_rows(accepted_gaps.LostRanges("t", "id", {0: OffsetRange(5, 8)}), who="ann", why="lost"),
        run_id="by hand",
        if_unchanged=True,
    )
    ledger.append(
        [LedgerRow("t", LedgerState.ROLLED_BACK, table="db.a", snapshots={"from": 2, "to": 1}, who="ann")], run_id="x"
    )
    assert batches_from_rows(ledger.rows({"t": 0})) == {("t", 1): BATCH}
    (row,) = ledger.gaps(["t", "u"])
    assert (row.partition, row.start_offset, row.end_offset, row.who, row.why) == (0, 5, 8, "ann", "lost")
    assert ledger.gaps(["u"]) == []


def test_each_topic_is_read_from_its_own_floor_on(catalog: Catalog, monkeypatch: pytest.MonkeyPatch):
    ledger = Ledger(catalog)
    there = {"a": range(1, 4), "b": range(1, 41), "c": range(1, 3), "d": range(-2, 2)}
    for some in (("a", "b"), ("c", "d")):
        rows = [r for t in some for seq in there[t] for r in plan_rows(replace(BATCH, topic=t, seq=seq))]
        ledger.append(rows, run_id="r")
    ledger.append(plan_rows(replace(BATCH, topic="b", seq=41), LedgerState.STAGED), run_id="r")
    opened: list[str] = []

    def read(table: Table, tasks: Sequence[FileScanTask], *more: Any) -> pa.Table:
        opened.extend(ledger._topic(task.file) or "any" for task in tasks)
        return original(table, tasks, *more)

    original = scan.read_own_files
    monkeypatch.setattr(scan, "read_own_files", read)

    def found(after: dict[str, int], states: Sequence[LedgerState] | None = None) -> list[tuple[str, int]]:
        opened.clear()
        return sorted((r.topic, r.batch_seq or 0) for r in ledger.rows(after, states))

    assert found({"a": 2, "b": 39, "d": 0, "elsewhere": 0}) == [("a", 3), ("b", 40), ("b", 41), ("d", 1)]
    assert found({"a": 3, "b": 39, "c": 2}) == [("b", 40), ("b", 41)]
    assert opened == ["b", "b"], "what has nothing above its floor is not opened"
    assert found({"b": 0}, [LedgerState.STAGED]) == [("b", 41)]
    assert found({"b": 41}) == found({}) == []

    def batches(after: dict[str, int]) -> list[tuple[str, int]]:
        opened.clear()
        assert not ledger.batches(after)[1]
        return sorted(ledger.batches(after)[0])

    assert (batches({"a": 2, "b": 39}), sorted(opened)) == ([("a", 3), ("b", 40), ("b", 41)], ["a", "b", "b"])
    assert (batches({"a": 2, "b": 40, "c": 1}), opened) == ([("a", 3), ("b", 41), ("c", 2)], ["c"])
    ledger.append(plan_rows(replace(BATCH, topic="b", seq=42)), run_id="r")
    assert (batches({"b": 41}), opened) == ([("b", 42)], ["b"]), "a changed ledger is read again"

    # Partitioned otherwise by somebody, a file may hold any topic.
    with ledger.table.update_spec() as change:
        change.remove_field("topic")
    ledger.append(
        [*plan_rows(replace(BATCH, topic="a", seq=4)), *plan_rows(replace(BATCH, topic="c", seq=3))], run_id="r"
    )
    assert found({"a": 2, "c": 2}) == [("a", 3), ("a", 4), ("c", 3)]
    assert sorted(opened) == ["a", "any"]


def test_what_was_settled_by_then_is_read_from_the_files_that_may_tell(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
):
    ledger, days = Ledger(catalog), [NOW - timedelta(days=n) for n in range(4, 0, -1)]
    assert ledger.settled_before("t", NOW) == 0
    for seq, at in enumerate(days, 1):
        of_both = [replace(BATCH, topic=topic, seq=seq) for topic in ("t", "u")]
        rows = [replace(r, at=at) for each in of_both for r in plan_rows(each, LedgerState.SETTLED)]
        ledger.append([*rows, replace(rows[0], batch_seq=seq + 10, state=LedgerState.STAGED)], run_id="r")
    opened: list[int] = []

    def read(table: Table, tasks: Sequence[FileScanTask], *more: Any) -> pa.Table:
        opened.append(len(tasks))
        return original(table, tasks, *more)

    original = scan.read_files
    monkeypatch.setattr(scan, "read_files", read)
    assert [ledger.settled_before("t", at) for at in (days[0] - timedelta(seconds=1), *days)] == [0, 1, 2, 3, 4]
    assert ledger.settled_before("u", days[2], 1) == 3
    assert ledger.settled_before("u", days[2], 3) == 0
    assert ledger.settled_before("elsewhere", NOW) == 0
    assert opened == [1, 2, 3, 4, 2], "neither what is younger, nor what is known to be gone"
    ledger.append([replace(BATCH_ROW, batch_seq=5)], run_id="r")
    assert ledger.settled_before("t", NOW) == 5

    # Partitioned otherwise by somebody, a file may hold any topic.
    with ledger.table.update_spec() as change:
        change.remove_field("topic")
    ledger.append([replace(BATCH_ROW, batch_seq=6), replace(BATCH_ROW, topic="u", batch_seq=7)], run_id="r")
    assert [ledger.settled_before(topic, NOW) for topic in ("t", "u")] == [6, 7]


def test_a_ledger_of_before_gets_the_new_columns(catalog: Catalog):
    before = Schema(*(f for f in SCHEMA.fields if f.name not in ("who", "why")))
    old = Ledger(catalog, tables.ensure_table(catalog, table_names.LEDGER, before, SPEC))
    old.append(plan_rows(BATCH), run_id="r")
    ledger = Ledger(catalog)
    assert ledger.table.schema().column_names[-2:] == ["who", "why"]
    assert batches_from_rows(ledger.rows({"t": 0})) == {("t", 1): BATCH}
    ledger.append(
        accepted_gaps.gap_rows(accepted_gaps.LostRanges("t", "id", {0: OffsetRange(5, 8)}), who="ann", why="lost"),
        run_id="by hand",
    )
    assert [r.who for r in Ledger(catalog).gaps(["t"])] == ["ann"]


def test_many_appends_keep_the_history_and_few_files(catalog: Catalog):
    ledger = Ledger(catalog)
    with ledger.table.transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "3"})
    ledger.refresh()
    behind = Ledger(catalog)
    for seq in range(1, 26):
        ledger.append(plan_rows(replace(BATCH, seq=seq)), run_id=f"r{seq}")
    metadata = catalog.load_table(table_names.LEDGER).metadata
    assert [s.summary["sluice.run-id"] for s in metadata.snapshots if s.summary] == [f"r{n}" for n in range(1, 26)]
    assert len(metadata.snapshot_log) == 25
    assert "commit.retry.num-retries" not in metadata.properties
    assert len(ledger.table.current_snapshot().manifests(ledger.table.io)) < 12
    assert sorted(seq for _, seq in batches_from_rows(Ledger(catalog).rows({"t": 0}))) == list(range(1, 26))
    kept = Path(ledger.table.location().removeprefix("file://"), "metadata").glob("*.metadata.json")
    assert len(list(kept)) == 4, "the last, and three before it"
    with pytest.raises(ConflictError):
        behind.append(plan_rows(replace(BATCH, seq=26)), run_id="late", if_unchanged=True)
    assert len(behind.table.metadata.snapshots) == 25, "the view is fresh"


def test_the_ledger_drops_snapshots_that_maintenance_did_not_come_to(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_table, "MAX_EXCESS_SNAPSHOTS", 10)
    monkeypatch.setattr(own_table, "EXPIRE_AT_ONCE", 10)
    monkeypatch.setattr(own_table, "MIN_SNAPSHOTS", 5)
    ledger, behind = Ledger(catalog), Ledger(catalog)

    def append(*seqs: int) -> int:
        for seq in seqs:
            ledger.append(plan_rows(replace(BATCH, seq=seq)), run_id="r")
        return len(catalog.load_table(table_names.LEDGER).metadata.snapshots)

    assert append(*range(1, 21)) == 20, "none is old"
    monkeypatch.setattr(own_table, "MAX_SNAPSHOT_AGE", timedelta(0))
    behind.refresh()
    head = behind.table.metadata.current_snapshot_id
    # An expiry that comes between a planner's look and its commit is no other planner.
    own_table.expire_excess_snapshots(catalog.load_table(table_names.LEDGER))
    behind.append(plan_rows(replace(BATCH, seq=21)), run_id="behind", if_unchanged=True)
    metadata = catalog.load_table(table_names.LEDGER).metadata
    assert [len(metadata.snapshots), metadata.snapshots[-1].parent_snapshot_id] == [11, head]
    assert append(*range(22, 26)) == 5, "ten more went"
    assert sorted(seq for _, seq in batches_from_rows(Ledger(catalog).rows({"t": 0}))) == list(range(1, 26))
    # It fails nothing: what was written is written.
    monkeypatch.setattr(refs, "commit", fails)
    assert append(*range(26, 40)) == 19
    assert len(batches_from_rows(Ledger(catalog).rows({"t": 0}))) == 39


def fails(*_: object) -> None:
    raise CommitFailedException("another writer came first")


def test_a_commit_that_adds_no_rows_loses_no_plan(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(catalog)
    ledger.append(plan_rows(BATCH), run_id="r")
    append, expired = Table.append, list[int]()

    def beaten(self: Table, *args: Any, **properties: Any) -> None:
        if not expired:
            expired.append(1)
            raise CommitFailedException("Table has been updated by another process")
        append(self, *args, **properties)

    monkeypatch.setattr(Table, "append", beaten)
    ledger.append(plan_rows(replace(BATCH, seq=2)), run_id="r", if_unchanged=True)
    assert sorted(seq for _, seq in batches_from_rows(Ledger(catalog).rows({"t": 0}))) == [1, 2]
    other = Ledger(catalog)
    ledger.append(plan_rows(replace(BATCH, seq=3)), run_id="r")
    with pytest.raises(ConflictError):
        other.append(plan_rows(replace(BATCH, seq=3)), run_id="late", if_unchanged=True)
