"""Maintenance loses no data and no cursor, keeps live and young files, and removes the others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from sluice.batch import CURSOR_TAG, NEXT_OFFSETS, PUBLISHED_THROUGH
from sluice.evolve.pending_change import ReviewDecision
from sluice.iceberg import compat, cursor, own_table, refs, snapshots, table_names
from sluice.ingest.branch_write import BranchWrite
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action, ActionResult
from sluice.maintain import assess, expire, expiry_plan, file_stats, maintain, procedures, targets
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.operate import review_schema
from sluice.plan import resolve_topics
from tests.support import runbook
from tests.support import table_files as support
from tests.support.faults import PausedCall, StepThread, by_run
from tests.support.lake import Lake, record
from tests.support.thorough import usual

STRICT = {"snapshot_age": "1s", "staging_retention": "1s", "min_snapshots": 1, "min_input_files": 2}


def fill(it: Lake, first: int, count: int = 20) -> None:
    it.send((n % 2, f"k{n % 30}", record(n)) for n in range(first, first + count))


def prepared(it: Lake, batches: int = 3, **maintenance: object) -> tuple[str, str]:
    """An appended and a merged table, strictly maintained, that hold so many batches."""
    it.create_topic(2)
    settings = {**STRICT, **maintenance}
    appended, merged = it.contract(maintenance=settings), it.contract(mode="upsert", maintenance=settings)
    for number in range(batches):
        fill(it, 100 * number)
        it.run()
    return appended, merged


def run(
    it: Lake, action: Action, *names: str, run_id: str = "upkeep", dry_run: bool = False
) -> dict[str, ActionResult]:
    """What the DAG does: assess, then Spark for the tables of the group that need it (or those named)."""
    needs = assess.assess_tables(AssessmentInputs(it.catalog, it.contracts), action, names=it.maintained_tables)
    assert [n.error for n in needs if n.error] == []
    due = [n.table for n in needs if n.steps] if not names else list(names)
    deadline = time.monotonic() + 600
    effects = maintain.maintain_tables(
        maintain.MaintenanceRun(it.context(run_id), it.contracts, action, dry_run=dry_run), due, deadline=deadline
    )
    return {e.table: e for e in effects}


def good(effects: dict[str, ActionResult]) -> dict[str, ActionResult]:
    assert {e.table: e.error for e in effects.values() if e.error} == {}
    return effects


def staging(it: Lake) -> str:
    return ".".join(table_names.staging(it.topic))


def staged_rows(it: Lake) -> dict[int, int]:
    """Rows of staging per batch."""
    found: dict[int, int] = {}
    for row in it.catalog.load_table(staging(it)).scan(selected_fields=("batch_seq",)).to_arrow().to_pylist():
        found[row["batch_seq"]] = found.get(row["batch_seq"], 0) + 1
    return found


def roll_back(it: Lake, table: str, snapshot_id: int) -> None:
    it.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {snapshot_id})")


def at_batch(it: Lake, table: str, seq: int) -> int:
    chain = list(snapshots.ancestors(it.catalog.load_table(table).metadata))
    if seq == 0:
        return chain[-1].snapshot_id
    return next(s.snapshot_id for s in chain if snapshots.summary(s).get("sluice.batch-seq") == str(seq))


def rewrite_all(it: Lake, table: str) -> None:
    it.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")


def check(it: Lake, appended: str, merged: str) -> None:
    """After one more batch the oracle holds, and the tags stand where the offsets are."""
    fill(it, 10_000)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)
    for name in (appended, merged, staging(it)):
        found = it.catalog.load_table(name)
        assert set(found.metadata.refs) == {"main", CURSOR_TAG}
        carrier = cursor.find_offset_snapshot(found, NEXT_OFFSETS)
        assert carrier is not None
        assert found.metadata.refs[CURSOR_TAG].snapshot_id == carrier.snapshot_id


def files(table: Table) -> set[Path]:
    folder = Path(table.location().removeprefix("file://"))
    return {path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")}


def test_small_files_become_few_and_nothing_changes(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 5)
    done = good(run(it, Action.REWRITE))
    assert done[appended].state == done[merged].state == "done"
    for name in (appended, merged):
        effect = done[name]
        assert effect.before and effect.after
        assert effect.after.data_files == 1 < effect.before.data_files
        assert effect.after.delete_files == 0
        assert effect.reason and "files" in effect.reason
    # It was kept, and once is enough.
    kept = {
        e.table: e for e in maintenance_table.read_results(it.catalog, maintenance_table.ResultFilter(run_id="upkeep"))
    }
    assert kept[appended].after == done[appended].after
    again = run(it, Action.REWRITE, appended, merged)
    assert {e.state for e in again.values()} == {"idle"}
    it.assert_appended(appended)
    it.assert_folded(merged)
    check(it, appended, merged)


def test_nothing_needed_starts_nothing(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    it.contract()
    fill(it, 0)
    it.run()
    for action in (Action.REWRITE, Action.EXPIRE):
        assert [
            n
            for n in assess.assess_tables(
                AssessmentInputs(it.catalog, it.contracts), action, names=it.maintained_tables
            )
            if n.steps
        ] == []


def test_rewrites_while_batches_come_in_lose_nothing(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 3)
    stop: list[bool] = []
    seen: list[ActionResult] = []

    def rewriting() -> None:
        while not stop:
            seen.extend(run(it, Action.REWRITE, appended, merged, staging(it)).values())

    other = StepThread(rewriting)
    for number in range(5):
        fill(it, 1000 + 100 * number)
        it.run()
    stop.append(True)
    other.end()
    assert other.error is None, other.error
    assert {e.state for e in seen} <= {"done", "idle", "left"}, [e.summary for e in seen]
    assert "done" in {e.state for e in seen}
    fill(it, 5000)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)
    good(run(it, Action.REWRITE))
    check(it, appended, merged)


def test_a_batch_that_loses_against_a_rewrite_is_tried_again(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    appended, merged = prepared(it, 3)
    fill(it, 1000)
    with monkeypatch.context() as patch:
        next_run = f"{it.group}-{it._runs + 1}"
        pause = PausedCall(
            patch, BranchWrite, "fast_forward_main", lambda a, *_: by_run(next_run)(a) and a.identifier[0] == "db"
        )
        ingest = StepThread(it.run)
        pause.reached(ingest)
        done = good(run(it, Action.REWRITE, appended, merged))
        pause.go()
        ingest.end()
    assert ingest.error is None, ingest.error
    assert {e.state for e in done.values()} == {"done"}
    assert {o["state"] for o in ingest.result.values()} == {"published"}
    it.assert_appended(appended)
    it.assert_folded(merged)
    check(it, appended, merged)


def test_after_the_strictest_expiry_the_next_run_goes_on_from_the_right_offsets(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 3)
    effects = []
    for _ in range(2):
        # Twice, so that neither the head nor its parent carries offsets, and the chain is long and old.
        for name in (appended, merged, staging(it)):
            rewrite_all(it, name)
        time.sleep(1.1)
        effects.append(good(run(it, Action.EXPIRE)))
    assert not it.plan().has_work
    assert cursor.read_table_cursor(it.catalog.load_table(appended))[it.topic].seq == 3
    assert effects[0][appended].state == "done"
    check(it, appended, merged)
    for _ in range(2):
        time.sleep(1.1)
        good(run(it, Action.EXPIRE))
    for name in (appended, merged):
        assert len(it.catalog.load_table(name).metadata.snapshots) == 1
    check(it, appended, merged)
    # The files went as well.
    found = it.catalog.load_table(appended)
    assert len([p for p in files(found) if p.suffix == ".avro"]) < 20


def test_a_main_that_was_told_to_keep_less_keeps_its_cursor(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 3)
    for name in (appended, merged):
        for _ in range(2):  # what lies between the head and the tag is what nothing else would keep
            rewrite_all(it, name)
        table = it.catalog.load_table(name)
        head = refs.set_ref(refs.MAIN, table.metadata.current_snapshot_id)
        keeping = {"max_snapshot_age_ms": 1, "min_snapshots_to_keep": 1}  # Iceberg goes by these, whatever it is given
        refs.commit(it.catalog, table, (), (head.model_copy(update=keeping),))
    time.sleep(1.1)
    effects = good(run(it, Action.EXPIRE))
    for name in (appended, merged):
        table = it.catalog.load_table(name)
        told = [PUBLISHED_THROUGH in snapshots.summary(s) for s in snapshots.ancestors(table.metadata)]
        assert told == [False, False, True]
        main = table.metadata.refs[refs.MAIN]
        assert (main.max_snapshot_age_ms, main.min_snapshots_to_keep) == (None, None)
        assert effects[name].state == "done" and "main's own retention keeps less" in effects[name].reason
    check(it, appended, merged)


def test_what_was_rolled_back_by_hand_is_published_again_though_the_chain_was_cut(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 3)
    back_to = {appended: 0, merged: 1}
    for name, seq in back_to.items():
        # The tag of what was rolled back is older than the rewrites that come now, and must not be believed.
        roll_back(it, name, at_batch(it, name, seq))
    rewritten = run(it, Action.REWRITE, appended, merged)
    for _ in range(2):
        rewrite_all(it, merged)  # the other table has no files to rewrite
    assert {e.state for e in rewritten.values()} <= {"done", "idle"}
    for _ in range(2):
        time.sleep(1.1)
        good(run(it, Action.EXPIRE))
    planned = it.plan()
    assert planned.stops == {}
    for name, seq in back_to.items():
        assert [b.seq for b in planned.tables[name].pending[it.topic]] == list(range(seq + 1, 4))
    outcome = it.run()
    assert {o["state"] for o in outcome.values()} == {"published"}
    it.assert_appended(appended)
    it.assert_folded(merged)
    check(it, appended, merged)


def test_staging_loses_what_is_published_past_its_retention_and_no_more(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 2)
    strict = it.contract(maintenance=STRICT, errors={"tolerance": "none"})
    it.run()
    it.send([(0, "bad", b"{not json")])
    it.contract(table=appended, maintenance=STRICT, errors={"max_ratio": 1.0})
    it.contract(table=merged, mode="upsert", maintenance=STRICT, errors={"max_ratio": 1.0})
    assert it.run()[strict]["state"] == "blocked"
    for number in (3, 4):
        fill(it, 100 * number)
        it.run()
    assert sorted(staged_rows(it)) == [1, 2, 3, 4, 5]
    time.sleep(1.1)
    done = good(run(it, Action.EXPIRE))[staging(it)]
    assert done.reason and "batches 1 to 2 are published" in done.reason
    assert sorted(staged_rows(it)) == [3, 4, 5]
    # Repaired, the table that held it back catches up from staging.
    it.contract(table=strict, maintenance=STRICT, errors={"max_ratio": 1.0})
    assert it.run()[strict]["batches"] == {it.topic: [3, 4, 5]}
    bad = [(0, max(o for o, (k, _) in it.sent[0].items() if k == "bad"))]
    it.assert_appended(strict, without=bad)
    raw = {p for p in files(it.catalog.load_table(staging(it))) if p.suffix == ".parquet"}
    for number in (6, 7):
        time.sleep(1.1)
        good(run(it, Action.EXPIRE))
        assert sorted(staged_rows(it)) == [number - 1]
        fill(it, 100 * number)
        assert it.run()[strict]["state"] == "published"
    time.sleep(1.1)
    good(run(it, Action.EXPIRE))
    # The files go with the snapshots that named them, once a later batch carries the cursor.
    left = {p for p in files(it.catalog.load_table(staging(it))) if p.suffix == ".parquet"}
    assert left and not raw & left
    it.assert_appended(strict, without=bad)
    it.assert_appended(appended, without=bad)
    # Who comes too late is told so; an empty table that looks complete would be silent loss.
    late = it.contract(maintenance=STRICT)
    outcome = it.run()
    assert outcome[late]["state"] == "stopped"
    assert "batches 1 to 6 were deleted from staging" in outcome[late]["error"]
    assert it.rows(late) == []
    # Whose topic nobody reads any more is dropped by hand.
    for name in (appended, merged, strict, late):
        it.contract(table=name, topic="another")
    told = f"{staging(it)} (topic {it.topic})"
    assert told in resolve_topics.find_unclaimed_staging(it.contracts, it.catalog)
    folder = Path(it.catalog.load_table(staging(it)).location().removeprefix("file://"))
    runbook.run_sql(it, "DROP TABLE <staging>", staging=staging(it))
    assert told not in resolve_topics.find_unclaimed_staging(it.contracts, it.catalog)
    assert not list(folder.rglob("*.parquet"))


def test_raw_records_stay_for_a_table_without_a_contract_until_it_is_retired(lake: Callable[..., Lake]) -> None:
    it = lake()
    kept, gone = prepared(it)
    (it.folder / f"{gone}.yaml").rename(it.folder / f"{gone}.away")
    time.sleep(1.1)
    effects = good(run(it, Action.EXPIRE))
    assert staging(it) not in effects and sorted(staged_rows(it)) == [1, 2, 3]
    # The contract returns, and nothing is missing.
    (it.folder / f"{gone}.away").rename(it.folder / f"{gone}.yaml")
    fill(it, 300)
    assert it.run()[gone]["batches"] == {it.topic: [4]}
    check(it, kept, gone)
    last = max(staged_rows(it))
    (it.folder / f"{gone}.yaml").unlink()
    names = {"TABLE": gone, "TOPIC": it.topic}
    told = runbook.run_command(it, "ledger retire-consumer TABLE TOPIC --why '…'", **names)
    assert f"up to batch {last}" in told and "Nothing was changed" in told
    time.sleep(1.1)
    good(run(it, Action.EXPIRE))
    assert sorted(staged_rows(it)) == [*range(1, last + 1)]
    runbook.run_command(it, "ledger retire-consumer TABLE TOPIC --why '…'", "--yes", **names)
    done = good(run(it, Action.EXPIRE))[staging(it)]
    assert done.reason and f"batches 1 to {last - 1} are published" in done.reason
    assert sorted(staged_rows(it)) == [last]


def test_orphans_go_and_live_and_young_files_stay(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 2)
    old = time.time() - 4 * 86_400
    orphans, young = [], []
    for name in (appended, merged, staging(it)):
        table = it.catalog.load_table(name)
        for path in files(table):
            os.utime(path, (old, old))
        folder = Path(table.location().removeprefix("file://")) / "data"
        orphan, fresh = folder / "left-by-a-killed-driver.parquet", folder / "of-an-open-batch.parquet"
        for path in (orphan, fresh):
            path.write_bytes(b"PAR1")
        os.utime(orphan, (old, old))
        orphans.append(orphan)
        young.append(fresh)
    before = {name: files(it.catalog.load_table(name)) for name in (appended, merged, staging(it))}
    shown = good(run(it, Action.ORPHANS, appended, dry_run=True))[appended]
    assert (shown.state, all(path.exists() for path in orphans)) == ("left", True)
    assert shown.reason.endswith("dry run: nothing was removed")
    done = good(run(it, Action.ORPHANS))
    assert {done[name].state for name in before} == {"done"}
    assert shown.listing == done[appended].listing
    assert any("left-by-a-killed-driver" in path for path in done[appended].listing)
    listings = [row.listing for row in runbook.run_sql(it, "SELECT table, at, listing") if row.table == appended]
    assert done[appended].listing in listings
    for name, had in before.items():
        gone = had - files(it.catalog.load_table(name))
        # Besides ours, only what metadata no longer names: old metadata files at most.
        assert {p for p in gone if p.suffix == ".parquet"} == {p for p in orphans if p in had}, name
    assert all(path.exists() for path in young)
    it.assert_appended(appended)
    it.assert_folded(merged)
    for name in (appended, merged):
        chain = snapshots.ancestors(it.catalog.load_table(name).metadata)
        for snapshot in chain:
            it.catalog.load_table(name).scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    check(it, appended, merged)
    beside_a_damaged_table(it, appended)


def test_an_upgraded_table_keeps_rows_row_ids_and_deletion_vectors_through_maintenance(
    lake: Callable[..., Lake],
) -> None:
    it = lake()
    it.create_topic(2)
    settings = {**STRICT, "min_input_files": 3, "delete_ratio": 1.0}
    table = it.contract(mode="upsert", maintenance=settings)

    def send(first: int) -> None:
        fill(it, first)
        it.drain(table)

    def ids() -> dict[str, int]:
        return {row["id"]: row["_row_id"] for row in it.spark.table(f"lake.{table}").select("id", "_row_id").collect()}

    def delete_formats() -> list[FileFormat]:
        head = it.catalog.load_table(table)
        live = [e.data_file for m in file_stats._head_manifests(head) for e in compat.read_live_entries(m, head.io)]
        vectors = [compat.referenced_data_file(f) for f in live if f.file_format == FileFormat.PUFFIN]
        assert None not in vectors and len(set(vectors)) == len(vectors), "one for each data file"
        return [f.file_format for f in live if f.content != DataFileContent.DATA]

    send(0)
    send(10)  # rewrites ten of the first rows
    assert set(delete_formats()) == {FileFormat.PARQUET}
    it.contract(table=table, mode="upsert", maintenance=settings, format_version=3)
    send(20)
    assert it.catalog.load_table(table).format_version == 2, "it waits for the review"
    decision = ReviewDecision(approve=True, who="ann", why="all readers can", run_id="by hand")
    review_schema.answer_review(it.catalog, it.contracts, table, decision)
    send(40)  # replaces position deletes by deletion vectors
    it.send((n % 2, f"k{n}", None) for n in range(4))
    it.drain(table)
    assert FileFormat.PUFFIN in delete_formats()
    it.assert_folded(table)
    before = ids()
    assert len(set(before.values())) == len(before)

    old = time.time() - 4 * 86_400
    for path in files(it.catalog.load_table(table)):
        os.utime(path, (old, old))
    vectors = {path for path in files(it.catalog.load_table(table)) if path.suffix == ".puffin"}
    for action in (Action.EXPIRE, Action.ORPHANS):
        assert good(run(it, action, table))[table].state == "done"
        it.assert_folded(table)
        assert ids() == before
    assert vectors & files(it.catalog.load_table(table))
    assert good(run(it, Action.REWRITE, table))[table].state == "done"
    assert delete_formats() == []
    it.assert_folded(table)
    assert ids() == before, "a rewrite keeps the ids of rows"
    send(50)
    it.assert_folded(table)
    same = {key: ids()[key] for key in before if key in ids()}
    assert same == {key: before[key] for key in same}, "so does an update"


def test_what_lies_where_a_property_sends_files_goes_and_what_may_be_somebody_elses_stays(
    lake: Callable[..., Lake], tmp_path: Path
) -> None:
    it = lake()
    it.create_topic(2)
    data = tmp_path / "not there yet" / "data"
    appended = it.contract(maintenance=STRICT, properties={"write.data.path": f"file://{data}"})
    fill(it, 0)
    it.run()
    table = it.catalog.load_table(appended)
    folder = Path(table.location().removeprefix("file://"))
    with table.transaction() as change:
        change.set_properties({"write.folder-storage.path": f"file://{tmp_path}/nothing"})
    ours = data / "00000-5-1b4e28ba-2fa1-11d2-883f-0016d3cca427-00001.parquet"
    killed = folder / "metadata" / "left.avro"
    strange = [data / "somebody's.csv", folder / "items" / "data" / ours.name, folder / "note.txt"]
    fresh = ours.with_name(ours.name.replace("00000-5", "00000-6"))
    for path in (ours, killed, *strange, fresh):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
    for path in [*folder.rglob("*"), *data.rglob("*")]:
        if path.is_file() and path != fresh:
            os.utime(path, (time.time() - 4 * 86_400,) * 2)
    # Another table's files there stop it, before anything is removed.
    other = it.catalog.create_table(f"db.other_{it.group}", Schema(), location=f"file://{data}/other")
    (stopped,) = run(it, Action.ORPHANS, appended, run_id="one").values()
    assert (
        stopped.failed
        and f"FolderSharedError: Files of other tables lie in this table's folder file://{data}: "
        in (stopped.error or "")
    )
    it.catalog.drop_table(other.name())
    shown = good(run(it, Action.ORPHANS, appended, run_id="two", dry_run=True))[appended]
    assert "3 files of unknown origin are left: see the log; dry run" in shown.summary
    done = good(run(it, Action.ORPHANS, appended, run_id="three"))[appended]
    assert done.state == "done" and "3 files of unknown origin are left" in done.summary
    assert shown.listing == done.listing and {ours.name, killed.name} <= {Path(each).name for each in done.listing}
    result = json.loads(done.result or "")
    assert result["listed"] == result["removed"] == len(done.listing)
    assert [path.exists() for path in (ours, killed)] == [False, False]
    assert all(path.exists() for path in (*strange, fresh))
    it.assert_appended(appended)


def beside_a_damaged_table(it: Lake, name: str) -> None:
    """A table that can't be read stops the clean-up of others where it may have files among theirs, and no further."""
    other = f"db.other_{it.group}"
    metadata = Path(it.catalog.create_table(other, Schema()).metadata_location.removeprefix("file://"))
    folder = Path(it.catalog.load_table(name).location().removeprefix("file://")) / "data"
    aged = {days: folder / f"of-{days}-days.parquet" for days in (6, 4)}
    for days, path in aged.items():
        path.write_bytes(b"PAR1")
        os.utime(path, (time.time() - days * 86_400,) * 2)
    gone = metadata.rename(metadata.with_suffix(".gone"))
    try:
        (stopped,) = run(it, Action.ORPHANS, name).values()
        assert stopped.failed and other in stopped.summary and all(path.exists() for path in aged.values())
        result = f'{{"folders": ["{metadata.parents[1]}"]}}'
        seen = ActionResult(
            other, Action.ORPHANS, maintenance_table.SEEN, result=result, at=datetime.now(UTC) - timedelta(days=5)
        )
        maintenance_table.write_results(it.catalog, [seen], run_id="before")
        (left,) = good(run(it, Action.ORPHANS, name)).values()
        assert left.state == "left" and f"they may belong to {other}, which can't be read" in left.summary
        assert [path.exists() for path in aged.values()] == [False, True]
    finally:
        gone.rename(metadata)
    (done,) = good(run(it, Action.ORPHANS, name)).values()
    assert done.state == "done" and not aged[4].exists()
    it.catalog.drop_table(other)


def test_a_table_that_fails_is_red_and_stops_no_other(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 3)
    victim = next(p for p in files(it.catalog.load_table(appended)) if p.suffix == ".parquet")
    victim.rename(victim.with_suffix(".gone"))
    done = run(it, Action.REWRITE, appended, merged)
    assert done[appended].failed
    assert done[appended].error
    assert done[merged].state == "done"
    kept = {
        e.table: e
        for e in maintenance_table.read_results(
            it.catalog, maintenance_table.ResultFilter(run_id="upkeep", action=Action.REWRITE)
        )
    }
    assert kept[appended].failed
    victim.with_suffix(".gone").rename(victim)
    assert good(run(it, Action.REWRITE, appended))[appended].state == "done"
    check(it, appended, merged)


def test_tables_that_had_no_time_come_first_in_the_next_run(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    names = [*prepared(it, 1), staging(it)]
    took, original, kills = [0.0], maintain._run_with_retries, ""

    def too_long(subject: targets.Target, *given: Any) -> ActionResult:
        took[0] += 1
        if subject.name == kills:
            raise KeyboardInterrupt
        return original(subject, *given)

    monkeypatch.setattr(maintain, "_run_with_retries", too_long)
    monkeypatch.setattr(maintain, "time", SimpleNamespace(monotonic=lambda: took[0], sleep=time.sleep))

    def turn(run: str) -> list[str]:
        context = it.context(run)
        left = maintenance_table.find_tables_without_result(it.catalog, Action.REWRITE, names, run_id=run)
        done = maintain.maintain_tables(
            maintain.MaintenanceRun(context, it.contracts, Action.REWRITE), left or names, deadline=took[0] + 0.5
        )
        assert len(maintenance_table.find_tables_without_result(it.catalog, Action.REWRITE, names, run_id=run)) == max(
            len(left) - 1, 0
        )
        return [e.table for e in done]

    order = [*sorted(names[:2]), names[2]]
    # The turns of one run, which is then cleared; and those of another.
    assert [turn("one") for _ in range(4)] == [[name] for name in (*order, order[0])]
    assert turn("two") == [order[1]]
    # A table that kills the application has had its turn as well, and comes again when the others had theirs.
    kills = order[2]
    with pytest.raises(KeyboardInterrupt):
        turn("two")
    (last,) = maintenance_table.read_results(it.catalog, maintenance_table.ResultFilter(run_id="two", tables=[kills]))
    assert (last.state, last.failed) == ("begun", False)
    assert turn("two") == [order[0]]
    kills = ""
    assert turn("two") == [order[2]]


def test_the_ledger_and_the_history_of_maintenance_are_maintained_too(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 1)
    run(it, Action.REWRITE, appended)
    own = [".".join(table_names.LEDGER), ".".join(table_names.MAINTENANCE)]
    before = it.catalog.load_table(table_names.LEDGER).scan().to_arrow().num_rows
    for name in own:
        rewrite_all(it, name)
    for action in Action:
        good(run(it, action, *own))
    assert it.catalog.load_table(table_names.LEDGER).scan().to_arrow().num_rows == before
    check(it, appended, merged)


def test_an_hourly_rewrite_expires_the_ledgers_snapshots_and_deletes_their_files(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    appended, merged = prepared(it, 4)
    before = it.catalog.load_table(table_names.LEDGER)
    lists = [Path(s.manifest_list.removeprefix("file://")) for s in before.metadata.snapshots]
    assert len(lists) > 8
    # The oldest have gone from the metadata alone, as where maintenance did not come.
    monkeypatch.setattr(own_table, "MAX_EXCESS_SNAPSHOTS", 2)
    monkeypatch.setattr(own_table, "EXPIRE_AT_ONCE", 2)
    monkeypatch.setattr(own_table, "MIN_SNAPSHOTS", 3)
    monkeypatch.setattr(own_table, "MAX_SNAPSHOT_AGE", timedelta(0))
    own_table.expire_excess_snapshots(it.catalog.load_table(table_names.LEDGER))
    own = targets.OWN_SETTINGS.model_copy(update={"snapshot_age": timedelta(0), "min_snapshots": 2})
    monkeypatch.setattr(targets, "OWN_SETTINGS", own)
    monkeypatch.setattr(assess, "MANY_SNAPSHOTS", 3)
    effect = good(run(it, Action.REWRITE, "sluice.offsets"))["sluice.offsets"]
    assert json.loads(effect.result or "{}")["expired"]["deleted_manifest_lists_count"] > 3
    after = it.catalog.load_table(table_names.LEDGER)
    assert len(after.metadata.snapshots) == 2
    assert [path.exists() for path in lists[:2]] == [True, True], "these are orphans"
    assert not any(path.exists() for path in lists[2:-2])
    assert after.scan().to_arrow().num_rows == before.scan().to_arrow().num_rows
    check(it, appended, merged)


def test_files_named_by_another_scheme_stop_the_clean_up_of_that_table(lake: Callable[..., Lake]) -> None:
    it = lake()
    appended, merged = prepared(it, 1)
    orphans = []
    for name in (appended, merged):
        folder = Path(it.catalog.load_table(name).location().removeprefix("file://")) / "data"
        orphan = folder / "left-by-a-killed-driver.parquet"
        orphan.write_bytes(b"PAR1")
        support.age_files(it.catalog.load_table(name))
        orphans.append(orphan)
    # The table names that file, by another scheme and host than the listing gives.
    table = it.catalog.load_table(appended)
    before = table.metadata.current_snapshot_id
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"hdfs://elsewhere:8020{orphans[0]}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=4,
    )
    file.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as commit:
        commit.append_data_file(file)
    had = files(table)
    done = run(it, Action.ORPHANS, appended, merged)
    assert done[appended].failed
    said = done[appended].error or ""
    assert said.startswith("AddressMismatchError")
    assert "hdfs" in said and appended in said and "Write the warehouse's address in one way" in said
    assert files(table) >= had
    # The other table of the group had its turn.
    assert done[merged].state == "done"
    assert not orphans[1].exists()
    roll_back(it, appended, before)  # type: ignore[arg-type]
    check(it, appended, merged)


def test_a_table_whose_files_must_not_be_deleted_is_red_and_not_left_for_later(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    appended = it.contract(maintenance=STRICT, properties={"gc.enabled": "false"})
    for number in range(2):
        fill(it, 100 * number)
        it.run()
    time.sleep(1.1)
    for action in (Action.EXPIRE, Action.ORPHANS):
        done = run(it, action, appended)[appended]
        assert done.failed
        assert "GC is disabled" in (done.error or "")
    it.assert_appended(appended)


@pytest.mark.parametrize(
    "when", usual(["before the raw records go"], ["after", "before expire_snapshots", "before the raw records go"])
)
def test_what_is_rolled_back_within_the_window_while_snapshots_expire_is_all_there(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    it = lake()
    appended, merged = prepared(it, 5, snapshot_age="1d", staging_retention="1d")
    target = {name: at_batch(it, name, 3) for name in (appended, merged)}
    moment = max(it.catalog.load_table(n).snapshot_by_id(s).timestamp_ms for n, s in target.items())  # type: ignore
    time.sleep(3)
    # The window begins when the third batch was the newest, however long it takes until that is looked at.
    began = datetime.now(UTC)
    window = f"{int(began.timestamp() - moment / 1000) + 1}s"

    class Began(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
            return began

    for name, mode in ((appended, "append"), (merged, "upsert")):
        it.contract(table=name, mode=mode, maintenance={**STRICT, "snapshot_age": window, "staging_retention": window})
    with monkeypatch.context() as patch:
        patch.setattr(expiry_plan, "datetime", Began)
        patch.setattr(maintain, "datetime", Began)
        if when == "before expire_snapshots":
            pause = PausedCall(
                patch, procedures, "call_procedure", lambda _c, target, *_, **__: target.name == appended
            )
        elif when == "before the raw records go":
            pause = PausedCall(patch, expire, "_delete_through")
        driver = StepThread(lambda: run(it, Action.EXPIRE, appended, merged, staging(it)))
        if when != "after":
            pause.reached(driver)
            for name, snapshot in target.items():
                roll_back(it, name, snapshot)
            pause.go()
        driver.end()
    assert driver.error is None, driver.error
    done = good(driver.result)
    assert done[appended].before and done[appended].after
    assert done[appended].after.snapshots < done[appended].before.snapshots
    if when == "after":
        for name, snapshot in target.items():
            roll_back(it, name, snapshot)
    for name in (appended, merged):
        table = it.catalog.load_table(name)
        assert table.metadata.current_snapshot_id == target[name]
        support.read_all_snapshots(table)
    outcome = it.run()
    assert {name: o["batches"] for name, o in outcome.items()} == {name: {it.topic: [4, 5]} for name in target}
    it.assert_appended(appended)
    it.assert_folded(merged)
    for name in (appended, merged):
        support.read_all_snapshots(it.catalog.load_table(name))
    check(it, appended, merged)
