"""The table owns its offsets: after rollbacks, expiry, a lost tag or a lost ledger, and with racing planners."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sluice.batch import CURSOR_TAG, NEXT_OFFSETS, PUBLISHED_THROUGH
from sluice.errors import PlanLostError
from sluice.iceberg import catalog as catalogs
from sluice.iceberg import cursor, refs, snapshots, table_names
from sluice.ingest import outcome, settle
from sluice.ingest.stage import stage
from sluice.ledger import offsets_table
from sluice.plan import plan
from sluice.plan.model import GroupPlan, PlanInputs
from tests.support import runbook
from tests.support.faults import StepThread
from tests.support.lake import Lake, record
from tests.support.thorough import usual


def fill(it: Lake, first: int, count: int = 20) -> None:
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(first, first + count))


def name_of(table: str | tuple[str, ...]) -> str:
    return table if isinstance(table, str) else ".".join(table)


def roll_back(it: Lake, table: str | tuple[str, ...], seq: int) -> None:
    """What an operator does, in Spark: back to the snapshot that brought this batch."""
    found = it.catalog.load_table(table)
    snapshot = next(
        s for s in snapshots.ancestors(found.metadata) if snapshots.summary(s).get("sluice.batch-seq") == str(seq)
    )
    it.spark.sql(f"CALL lake.system.rollback_to_snapshot('{name_of(table)}', {snapshot.snapshot_id})")


def maintain(it: Lake, table: str | tuple[str, ...]) -> None:
    """Idle days of maintenance: rewritten twice, so that neither head nor parent carries offsets, and expired."""
    name = name_of(table)
    it.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    it.spark.sql(f"CALL lake.system.rewrite_manifests(table => '{name}', use_caching => false)")
    it.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    it.spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )


def drop_tag(it: Lake, table: str | tuple[str, ...]) -> None:
    it.spark.sql(f"ALTER TABLE lake.{name_of(table)} DROP TAG {CURSOR_TAG}")


def lose_earlier_metadata(it: Lake, table: str | tuple[str, ...]) -> None:
    for entry in it.catalog.load_table(table).metadata.metadata_log:
        Path(entry.metadata_file.removeprefix("file:").replace("///", "/")).unlink()


def lose_ledger(it: Lake) -> None:
    it.catalog.drop_table(table_names.LEDGER)


def prepared(it: Lake, batches: int = 3) -> tuple[str, str]:
    """An appended and a merged table that hold so many batches."""
    it.create_topic(2)
    appended, merged = it.contract(), it.contract(mode="upsert")
    for number in range(batches):
        fill(it, 100 * number)
        it.run()
    return appended, merged


def check(it: Lake, appended: str, merged: str) -> None:
    """After one more batch the oracle holds, and the tag stands where the offsets are."""
    fill(it, 10_000)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)
    staging = it.catalog.load_table(table_names.staging(it.topic))
    assert staging.scan().to_arrow().num_rows == sum(len(by_offset) for by_offset in it.sent.values())
    for name in (appended, merged, table_names.staging(it.topic)):
        found = it.catalog.load_table(name)
        assert set(found.metadata.refs) == {"main", CURSOR_TAG}
        carrier = cursor.find_offset_snapshot(found, NEXT_OFFSETS)
        assert carrier is not None
        assert found.metadata.refs[CURSOR_TAG].snapshot_id == carrier.snapshot_id


def test_a_typed_table_rolled_back_is_published_again_from_staging(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it)
    for name in (appended, merged):
        roll_back(it, name, 1)
    assert len(it.rows(appended)) == 20
    planned = it.plan()
    assert not planned.topics[it.topic].to_stage
    assert [b.seq for b in planned.tables[appended].pending[it.topic]] == [2, 3]
    outcomes = it.run()
    assert outcomes[appended]["batches"] == outcomes[merged]["batches"] == {it.topic: [2, 3]}
    it.assert_appended(appended)
    it.assert_folded(merged)
    check(it, appended, merged)
    # Whoever replaces a table by its own rows takes its offsets away, and not the rows.
    it.spark.sql(f"CREATE OR REPLACE TABLE lake.{appended} USING iceberg AS SELECT DISTINCT * FROM lake.{appended}")
    outcome = it.run()[appended]
    assert outcome["batches"] == {it.topic: [1, 2, 3, 4]}, outcome
    it.assert_appended(appended)


def test_a_rollback_moves_the_tag_though_nothing_is_published(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    for number in range(2):
        fill(it, 100 * number)
        it.run()
    roll_back(it, table, 1)
    settle.settle(it.contracts.group(it.group), it.catalog, outcome.summarize_plan(it.preview_plan()), run_id="idle")
    found = it.catalog.load_table(table)
    assert found.metadata.refs[CURSOR_TAG].snapshot_id == found.metadata.current_snapshot_id
    it.drain(table)
    it.assert_appended(table)


def test_staging_rolled_back_is_staged_again_with_the_same_ranges(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it)
    staging = table_names.staging(it.topic)
    before = {seq: b for seq, (b, _) in cursor.read_staged_batches(it.catalog.load_table(staging)).items()}
    roll_back(it, staging, 1)
    fill(it, 5000)
    planned = it.plan().topics[it.topic]
    assert planned.frozen
    assert list(planned.to_stage) == [before[2], before[3]]
    it.drain(appended)
    after = {seq: b for seq, (b, _) in cursor.read_staged_batches(it.catalog.load_table(staging)).items()}
    assert {seq: after[seq] for seq in before} == before
    check(it, appended, merged)


def test_staging_and_a_typed_table_rolled_back_at_once_without_a_ledger(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it)
    roll_back(it, table_names.staging(it.topic), 1)
    roll_back(it, appended, 1)
    lose_ledger(it)
    it.drain(appended)
    check(it, appended, merged)


@pytest.mark.parametrize("moment", usual(["staged"], ["idle", "planned", "staged"]))
def test_the_ledger_is_lost(lake: Callable[..., Lake], moment: str) -> None:
    it = lake()
    appended, merged = prepared(it, 2)
    if moment != "idle":
        fill(it, 3000)
        it.plan()
    if moment == "staged":
        (batch,) = it.plan().topics[it.topic].to_stage
        stage(it.context(), batch, gaps_expected=False)
    lose_ledger(it)
    planned = it.plan()
    known = {(r.batch_seq, str(r.state)) for r in offsets_table.Ledger(it.catalog).rows({it.topic: 0})}
    assert {(1, "staged"), (2, "staged")} <= known
    assert planned.has_work == (moment != "idle")
    if planned.has_work:
        it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)
    check(it, appended, merged)


def test_expired_snapshots_leave_the_tag_then_earlier_metadata_then_a_question(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 2)
    for name in (appended, merged):
        maintain(it, name)
        found = it.catalog.load_table(name)
        chain = list(snapshots.ancestors(found.metadata))
        assert all(PUBLISHED_THROUGH not in snapshots.summary(s) for s in chain)
        assert cursor.read_table_cursor(found)[it.topic].seq == 2
    assert not it.plan().has_work
    fill(it, 1000)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)

    for name in (appended, merged):
        drop_tag(it, name)
        maintain(it, name)
    assert not it.plan().has_work
    fill(it, 2000)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)

    drop_tag(it, appended)
    maintain(it, appended)
    lose_earlier_metadata(it, appended)
    before = it.rows(appended)
    fill(it, 3000)
    outcomes = it.run()
    assert outcomes[appended]["state"] == "stopped"
    for part in ("gives the offsets that the table holds", appended, "Next step: Roll the table back"):
        assert part in outcomes[appended]["error"]
    assert sorted(r["n"] for r in it.rows(appended)) == sorted(r["n"] for r in before)
    assert outcomes[merged]["state"] == "published"
    it.assert_folded(merged)


def test_staging_compacted_and_expired_keeps_its_cursor(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 2)
    maintain(it, table_names.staging(it.topic))
    fill(it, 1000)
    it.drain(appended)
    # A table that comes later is published from what staging holds, though the snapshots that brought it are gone.
    late = it.contract()
    it.drain(late)
    it.assert_appended(late)
    maintain(it, table_names.staging(it.topic))
    check(it, appended, merged)
    # Without its tag too, earlier metadata files answer; without these, nothing does, and the topic stops.
    drop_tag(it, table_names.staging(it.topic))
    maintain(it, table_names.staging(it.topic))
    fill(it, 2000)
    it.drain(appended)
    it.assert_appended(appended)
    drop_tag(it, table_names.staging(it.topic))
    maintain(it, table_names.staging(it.topic))
    lose_earlier_metadata(it, table_names.staging(it.topic))
    fill(it, 3000)
    outcome = it.run()[appended]
    assert outcome["state"] == "stopped"
    assert "gives the offsets that the table holds" in outcome["error"]


def test_two_planners_at_once_and_one_wins(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    it.run()
    fill(it, 100)
    barrier = threading.Barrier(2, timeout=60)
    look = plan.make_plan
    first = threading.local()

    def together(*arguments: object, **named: object) -> GroupPlan:
        found = look(*arguments, **named)  # type: ignore[arg-type]
        if not getattr(first, "done", False):
            first.done = True
            barrier.wait()
        return found

    def planner(run_id: str) -> GroupPlan:
        promises = it.contracts
        return plan.write_plan(promises.group(it.group), PlanInputs(promises, catalogs.load(), it.admin), run_id=run_id)

    with monkeypatch.context() as patch:
        patch.setattr(plan, "make_plan", together)
        drivers = [StepThread(lambda n=n: planner(f"planner {n}")) for n in (1, 2)]  # type: ignore[misc]
        for each in drivers:
            each.end()
    winner, loser = sorted(drivers, key=lambda d: d.error is not None)
    assert winner.error is None
    assert isinstance(loser.error, PlanLostError), loser.error
    assert f"{it.topic} batch 2" in str(loser.error)
    again = it.plan()
    assert again.topics[it.topic].frozen
    assert again.topics[it.topic].to_stage == winner.result.topics[it.topic].to_stage
    it.drain(table)
    it.assert_appended(table)


def test_a_frozen_plan_keeps_its_ranges_though_more_arrives(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(limits={"records_per_batch": 15})
    fill(it, 0)
    frozen = it.plan().topics[it.topic].to_stage
    assert len(frozen) == 2
    fill(it, 100)
    it.add_partitions(3)
    it.send((2, f"p{n}", record(n)) for n in range(300, 310))
    # Not even a changed contract moves it.
    it.contract(table=table, limits={"records_per_batch": 1000}, start="latest")
    again = it.plan()
    assert again.topics[it.topic].frozen
    assert again.topics[it.topic].to_stage == frozen
    it.run()
    it.assert_appended(table, without=[(p, o) for p in it.sent for o in it.sent[p] if o >= 10 or p == 2])
    it.drain(table)
    it.assert_appended(table)


def test_a_table_that_comes_later_catches_up_from_staging(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it)
    late, later = it.contract(), it.contract(mode="upsert")
    assert not it.plan().topics[it.topic].to_stage
    outcomes = it.run()
    for name in (late, later):
        assert outcomes[name]["batches"] == {it.topic: [1, 2, 3]}
    it.assert_appended(late)
    it.assert_folded(later)
    check(it, appended, merged)
    it.assert_appended(late)


def test_a_step_killed_before_the_tag_is_told_by_the_ancestors(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it)
    # Between publish and the tag: the tag is one behind.
    found = it.catalog.load_table(appended)
    second = next(s for s in snapshots.ancestors(found.metadata) if snapshots.summary(s).get("sluice.batch-seq") == "2")
    refs.commit(it.catalog, found, (), (refs.set_ref(CURSOR_TAG, second.snapshot_id, tag=True),))
    assert cursor.read_table_cursor(it.catalog.load_table(appended))[it.topic].seq == 3
    assert not it.plan().has_work
    check(it, appended, merged)


def test_the_catalog_is_restored_from_a_backup_as_the_runbook_says(
    lake: Callable[..., Lake], lake_folder: Path
) -> None:
    it = lake()
    appended, merged = prepared(it, 2)
    with closing(sqlite3.connect(lake_folder / "iceberg.db")) as live, closing(sqlite3.connect(":memory:")) as kept:
        live.backup(kept)
        late = it.contract()
        for number in range(2, 4):
            fill(it, 100 * number)
            it.run()
        kept.backup(live)
    assert not it.catalog.table_exists(late)
    # One of the tables is brought back to its last state, and is ahead of staging then.
    metadata = Path(it.catalog.load_table(merged).location().removeprefix("file://")) / "metadata"
    last = max(metadata.glob("*.metadata.json"))
    runbook.run_sql(it, "DROP TABLE <table>", table=merged)
    runbook.run_sql(it, "CALL system.register_table", table=merged, file=last)
    it.assert_folded(merged)
    assert len(it.rows(appended)) == 40
    fill(it, 400)
    it.drain(appended)
    check(it, appended, merged)
    it.assert_appended(late)


def test_a_table_is_brought_back_from_a_backup_with_what_was_set_apart_and_deleted(
    lake: Callable[..., Lake], lake_folder: Path
) -> None:
    it = lake()
    it.create_topic(2)
    merged = it.contract(mode="upsert", order=["_kafka_timestamp"], errors={"max_ratio": 1.0})
    own = it.contract_of(merged)
    fill(it, 0)
    it.run()
    with closing(sqlite3.connect(lake_folder / "iceberg.db")) as live, closing(sqlite3.connect(":memory:")) as kept:
        live.backup(kept)
        fill(it, 100)
        it.send([(1, "k1", None), (0, "bad", b"{")])
        it.run()
        names = [
            table_names.typed(own),
            table_names.staging(it.topic),
            table_names.quarantine(own),
            table_names.deletes(own),
        ]
        folders = {name: it.catalog.load_table(name).location().removeprefix("file://") for name in names}
        kept.backup(live)
    made_since = [name for name in names if not it.catalog.table_exists(name)]
    assert table_names.deletes(own) in made_since
    for name, folder in folders.items():
        if name not in made_since:
            runbook.run_sql(it, "DROP TABLE <table>", table=name_of(name))
        last = max((Path(folder) / "metadata").glob("*.metadata.json"))
        runbook.run_sql(it, "CALL system.register_table", table=name_of(name), file=last)
    assert [row["key"] for row in it.quarantined(merged)] == [b"bad"]
    # Older than the delete, which nothing but the memory of deletes tells any more.
    it.send([(1, "k1", record(7))], timestamp_ms=1_600_000_000_000)
    fold = {key: value for key, value in it.fold().items() if key not in ("k1", "bad")}
    it.drain(merged)
    it.assert_folded(merged, fold)
