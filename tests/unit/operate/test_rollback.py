"""The preview of a rollback, what it refuses, and what it leaves, on a local catalog without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import (
    PUBLISHED_THROUGH,
    RUN_ID,
    Batch,
    PublishedOffsets,
    deletes_properties,
    encode_published_through,
    publish_properties,
)
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.errors import CatalogUnavailableError, FencedError, RefusedError, StagingTrimmedError
from sluice.iceberg import cursor, deletes_table, refs, snapshots, table_names, tables
from sluice.iceberg.filters import at_most, one_of
from sluice.ingest import settle
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from sluice.ledger import backlog, restore_deletes, slices, unfinished_rollback
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, plan_rows
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import expiry_plan
from sluice.maintain.expiry_plan import AssessmentInputs, RollbackNeeds
from sluice.offsets import OffsetRange
from sluice.operate import rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback import Rollback
from sluice.operate.rollback_target import RestorePoint
from tests.unit.maintain.test_assess import LATER, NOW, append, batch, filled, needs, promise

pytestmark = pytest.mark.unit

THROUGH = {PUBLISHED_THROUGH: encode_published_through({"orders": PublishedOffsets(3, "id", {0: 3})})}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def look(catalog: Catalog, promises: Contracts, target: Snapshot) -> Rollback:
    return rollback.preview_rollback(
        "shop.orders", promises, catalog, Ledger(catalog), RestorePoint(snapshot_id=target.snapshot_id)
    )


def act(catalog: Catalog, found: Rollback, **more: str) -> None:
    decision = Decision("ann", more.pop("why", "wrong"), "by hand")
    rollback.roll_back(found, catalog, Ledger(catalog), decision, **more)


def head(catalog: Catalog) -> Snapshot:
    found = catalog.load_table("shop.orders").current_snapshot()
    assert found is not None
    return found


def bring(catalog: Catalog, seq: int, start: int, end: int, *, staged: bool) -> None:
    """A slice that was planned and replayed, from staging or quarantine; or from Kafka, by way of staging."""
    piece = Batch("orders", "id", seq, {0: OffsetRange(start, end)}, {})
    ledger = Ledger(catalog)
    ledger.append(slices.slice_plan_rows(piece, "shop.orders", who="ann", why="a hole"), run_id="r")
    if staged:
        append(catalog.load_table(table_names.staging("orders")), seq, {"sluice.step": "stage", **piece.properties()})
    append(catalog.load_table("shop.orders"), seq, {"sluice.step": "replay", **piece.properties(), **THROUGH})
    done = {"shop.orders": head(catalog).snapshot_id}
    ledger.append(
        [LedgerRow("orders", LedgerState.REPLAYED, "id", seq, table="shop.orders", snapshots=done)], run_id="r"
    )


def trim(catalog: Catalog, through: int) -> None:
    staging = catalog.load_table(table_names.staging("orders"))
    with staging.transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: str(through)})
    staging.delete(at_most("batch_seq", through))


def test_a_slice_whose_records_are_gone_is_undone_by_name_only(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    target = head(catalog)
    # From quarantine, which holds them no more; staging still has the batches that they were in.
    bring(catalog, -1, 0, 2, staged=False)
    found = look(catalog, promises, target)
    assert [str(each) for each in found.slices] == ['backfill -1 {"0":[0,2]}: 1 rows written']
    assert not found.lost
    trim(catalog, 1)
    found = look(catalog, promises, target)
    text = "\n".join(found.lines())
    assert 'LOST      orders backfill -1 {"0":[0,2]}: 1 rows written, and staging lacks {"0":[[0,1]]}' in text
    assert "backfill plan shop.orders --topic=orders --ranges '{\"0\":[0,2]}'" in text
    with pytest.raises(RefusedError, match=r"backfill -1 .*the table would lose them"):
        act(catalog, found)
    act(catalog, found, accept_loss="shop.orders")
    assert head(catalog) == target
    # Nothing of the live feed is given up for it.
    assert Ledger(catalog).gaps(["orders"]) == []


def test_what_was_given_up_before_is_lost_once(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    old, (target, *_) = head(catalog), catalog.load_table("shop.orders").snapshots()
    trim(catalog, 2)
    act(catalog, look(catalog, promises, target), accept_loss="shop.orders")
    # The next run passes over the second batch, and publishes the third.
    ledger, staging = Ledger(catalog), catalog.load_table(table_names.staging("orders"))
    waiting = (batch(2), batch(3))
    through = {PUBLISHED_THROUGH: encode_published_through({"orders": PublishedOffsets(3, "id", {0: 3})})}
    brought = backlog.check_rows_staged("shop.orders", staging, waiting, ledger, ledger.gaps(["orders"]))
    append(catalog.load_table("shop.orders"), 3, {"sluice.step": "publish", **publish_properties(brought), **through})
    found = look(catalog, promises, target)
    assert (found.lost, [each.batch for each in found.republish["orders"]]) == ([], [batch(3)])
    assert 'skipped   orders batch 2 {"0":[1,2]}: an accepted gap of this table, and skipped again' in found.lines()
    act(catalog, found)
    assert sorted(kinds(catalog)) == [("gap", "ann", "wrong")] + [("rolled_back", "ann", "wrong")] * 2
    # Put forward by hand to where its rows are, the table has them to lose.
    refs.commit(catalog, catalog.load_table("shop.orders"), (), (refs.set_ref(refs.MAIN, old.snapshot_id),))
    assert [str(each.batch) for each in look(catalog, promises, target).lost] == ['orders batch 2 {"0":[1,2]}']


def test_a_table_is_put_forward_again_by_the_sql_that_the_error_names(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    typed, staging = filled(catalog, promises, 3)
    old, (target, *_) = head(catalog), typed.snapshots()
    trim(catalog, 2)
    ledger, known = Ledger(catalog), {seq: batch(seq) for seq in (1, 2, 3)}

    def put(snapshot: Snapshot) -> tuple[Batch, ...]:
        """What `set_current_snapshot` does, which is not of Sluice; and what the table then has yet to publish."""
        refs.commit(catalog, typed, (), (refs.set_ref(refs.MAIN, snapshot.snapshot_id),))
        at = cursor.read_table_cursor(catalog.load_table("shop.orders"))["orders"]
        pending = backlog.find_pending_batches("shop.orders", known, batch(3), at)
        return backlog.check_rows_staged("shop.orders", catalog.load_table(staging.name()), pending, ledger, [])

    with pytest.raises(StagingTrimmedError, match=r"move it forward with Spark SQL: CALL .*set_current_snapshot"):
        put(target)
    # As the error says, no rollback of Sluice's does it.
    with pytest.raises(RefusedError, match="not among main's ancestors"):
        look(catalog, promises, old)
    assert put(old) == ()


@pytest.mark.parametrize("written", ["before", "after"])
def test_an_attempt_that_began_where_a_table_is_taken_back_to_does_not_land_there(
    tmp_path: Path, catalog: Catalog, written: str
) -> None:
    """By a contract, perhaps, that is no longer in force."""
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 1)
    target = head(catalog)
    with typed.manage_snapshots() as change:
        change.create_tag(target.snapshot_id, "sluice_audited")
    context = Context(None, catalog, "lake", {}, "zombie")  # type: ignore[arg-type]

    def write(branch: str) -> None:
        append(catalog.load_table("shop.orders"), 2, {"sluice.step": "publish", **batch(2).properties()}, branch)

    with BranchWrite(context, ("shop", "orders"), batch(2)) as attempt:
        if written == "before":
            write(attempt.branch)
            attempt.written_snapshot()  # it has looked, and is about to fast-forward main
        append(catalog.load_table("shop.orders"), 2, {"sluice.step": "publish", **batch(2).properties(), **THROUGH})
        found = look(catalog, promises, target)
        assert found.branches == (attempt.branch,)
        act(catalog, found)
        if written == "after":
            write(attempt.branch)
        # Its branch is dropped by the rollback, so what it writes afterwards stands on nothing.
        refusal = "Main moved away and back" if written == "before" else "The branch does not hold exactly one commit"
        with pytest.raises(FencedError, match=refusal):
            attempt.fast_forward_main()
    assert head(catalog) == target
    assert "sluice_audited" in catalog.load_table("shop.orders").metadata.refs


def test_a_write_that_was_paused_right_before_its_commit_does_not_land_after_a_rollback(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Main moves away and back while the driver stands between its last look and its commit: the catalog refuses it."""
    promises = promise(tmp_path)
    filled(catalog, promises, 1)
    target = head(catalog)
    context = Context(None, catalog, "lake", {}, "zombie")  # type: ignore[arg-type]
    properties = {"sluice.step": "publish", **batch(2).properties()}
    with BranchWrite(context, ("shop", "orders"), batch(2)) as write:
        append(catalog.load_table("shop.orders"), 2, properties, write.branch)
        write.written_snapshot()
        append(catalog.load_table("shop.orders"), 2, {**properties, **THROUGH})
        act(catalog, look(catalog, promises, target))
        monkeypatch.setattr(write, "check_main_unmoved", lambda: None)  # it had looked before all that
        with pytest.raises(FencedError):
            write.fast_forward_main()
    assert head(catalog) == target


@pytest.mark.parametrize(("step", "forgotten"), [("contract", True), ("rewrite_data_files", True), ("publish", False)])
def test_whoever_finishes_a_rollback_takes_the_memory_back_unless_something_was_published_since(
    tmp_path: Path, catalog: Catalog, step: str, forgotten: bool
) -> None:
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\nmode: upsert\nidentifier: [id]\n"
        "order: [_kafka_timestamp]\ncolumns: [{name: id, type: long}]\n"
    )
    promises = contract_folder.load_contracts(folder)
    own = promises.table("shop.orders")
    typed, staging = tables.ensure_typed(catalog, own), tables.ensure_staging(catalog, "orders")
    ledger = Ledger(catalog)
    for seq in (1, 2):
        append(deletes_table.ensure_deletes_table(catalog, own), seq, deletes_properties([batch(seq)], None))
        append(staging, seq, {"sluice.step": "stage", **batch(seq).properties()})
        through = {PUBLISHED_THROUGH: encode_published_through({"orders": PublishedOffsets(seq, "id", {0: seq})})}
        append(typed, seq, {"sluice.step": "publish", **batch(seq).properties(), **through})
        ledger.append(plan_rows(batch(seq), LedgerState.SETTLED), run_id="r")
    target = list(snapshots.ancestors(catalog.load_table("shop.orders").metadata))[1]
    found = rollback.preview_rollback(
        "shop.orders", promises, catalog, ledger, RestorePoint(snapshot_id=target.snapshot_id)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unfinished_rollback, "finish_rollback", lambda *_: None)  # killed
        act(catalog, found)
    append(catalog.load_table("shop.orders"), 2, {"sluice.step": step})
    unfinished_rollback.finish_pending_rollback(catalog, Ledger(catalog), own, catalog.load_table("shop.orders"))
    memory = catalog.load_table(table_names.deletes(own)).metadata.current_snapshot_id
    assert found.deletes_table is not None and found.deletes_snapshot_id
    assert (memory == found.deletes_snapshot_id) is forgotten


def deletes_of(seq: int, base: Snapshot | None) -> dict[str, str]:
    """What a commit on the deletes table carries."""
    return deletes_properties([batch(seq)], base.snapshot_id if base else None)


@pytest.mark.parametrize("between", [False, True], ids=["publish", "maintenance in between"])
@pytest.mark.parametrize("behind_ms", [0, 5_000], ids=["one clock", "the typed table's clock is behind"])
def test_a_rollback_restores_the_deletes_table_by_what_its_commits_name(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, between: bool, behind_ms: int
) -> None:
    """No clock decides: that of a catalog's server may be behind that of a driver."""
    typed, _ = filled(catalog, promise(tmp_path), 1)
    deletes = catalog.create_table("shop.deletes", typed.schema())
    append(deletes, 2, deletes_of(2, head(catalog)))
    kept = catalog.load_table("shop.deletes").current_snapshot()
    assert kept is not None
    append(typed, 2, {"sluice.step": "publish", **batch(2).properties(), **THROUGH})
    append(deletes, 3, deletes_of(3, head(catalog)))  # of an attempt at batch 3 that was killed
    if between:
        append(typed, 9, {"sluice.step": "rewrite_data_files"})
    target = head(catalog)
    append(deletes, 3, deletes_of(3, target))  # of the one that was replayed
    append(typed, 3, {"sluice.step": "publish", **batch(3).properties(), **THROUGH})
    log = [e.model_copy(update={"timestamp_ms": e.timestamp_ms - behind_ms}) for e in typed.metadata.snapshot_log]
    monkeypatch.setattr(typed, "metadata", typed.metadata.model_copy(update={"snapshot_log": log}))
    found = restore_deletes.find_restore_point(
        catalog.load_table("shop.deletes"), published_through(2), {target.snapshot_id, head(catalog).snapshot_id}
    )
    assert found == kept.snapshot_id


def published_through(seq: int) -> dict[str, PublishedOffsets]:
    return {"orders": PublishedOffsets(seq, "id", {0: seq})}


def test_deletes_stay_where_it_is_in_doubt_whose_they_are(tmp_path: Path, catalog: Catalog) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 2)
    target = head(catalog)
    piece = Batch("orders", "id", -1, {0: OffsetRange(0, 1)}, {})
    slice_below = deletes_properties([piece], 7)
    slice_above = deletes_properties([piece], target.snapshot_id)

    def restored(*commits: dict[str, str]) -> int | None:
        deletes = catalog.create_table(f"shop.deletes_{len(catalog.list_tables('shop'))}", typed.schema())
        for each in commits:
            append(deletes, 1, each)
        deletes = catalog.load_table(deletes.name())
        found = restore_deletes.find_restore_point(deletes, published_through(2), {target.snapshot_id})
        chain = [s.snapshot_id for s in snapshots.ancestors(deletes.metadata)][::-1]
        return found if found in (None, restore_deletes.EMPTY) else chain.index(found) + 1

    assert restored() is None
    assert restored(deletes_of(3, target)) == restore_deletes.EMPTY
    assert restored(deletes_of(2, target)) is None
    assert restored(deletes_of(2, None), deletes_of(3, target), deletes_of(4, target)) == 1
    # One that lies on them is of a batch or slice that the table keeps, or names nothing: another engine's.
    assert restored(deletes_of(3, target), deletes_of(2, None)) is None
    assert restored(deletes_of(3, target), {}) is None
    assert restored(deletes_of(3, target), slice_below) is None
    # A slice from above the target is undone, one from below it is not.
    assert restored(deletes_of(2, None), slice_above) == 1
    assert restored(deletes_of(2, None), slice_below) is None
    # Batches of another topic of that name have numbers of their own.
    assert restored({**deletes_of(3, target), "sluice.topic-id": "another"}) is None


def test_a_line_that_pyicebergs_expiry_has_cut_is_not_taken_for_a_whole_one(tmp_path: Path, catalog: Catalog) -> None:
    """It takes the parent's id away with the parent: what is left looks as if the table had begun there."""
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 2)
    gone = [s.snapshot_id for s in typed.snapshots()]
    append(typed, 9, {})
    target = head(catalog)
    append(typed, 3, {"sluice.step": "publish", **batch(3).properties(), **THROUGH})
    deletes = catalog.create_table("shop.deletes", typed.schema())
    for seq in (1, 2):
        append(deletes, seq, deletes_of(seq, target))
    assert restore_deletes.find_restore_point(deletes, {}, set()) == restore_deletes.EMPTY
    deletes.maintenance.expire_snapshots().by_id(deletes.snapshots()[0].snapshot_id).commit()
    typed = catalog.load_table("shop.orders")
    typed.maintenance.expire_snapshots().by_ids(gone).commit()
    # Of what the table held then, and of what a memory knew, nobody can tell any more: not nothing.
    with pytest.raises(RefusedError, match="carried the table's offsets at that time have expired"):
        look(catalog, promises, target)
    assert restore_deletes.find_restore_point(catalog.load_table("shop.deletes"), {}, set()) is None


def test_an_undone_slice_is_replayed_again_though_the_ledgers_clock_was_ahead_of_the_rollbacks(
    tmp_path: Path, catalog: Catalog
) -> None:
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 3)
    target, piece = head(catalog), Batch("orders", "id", -1, {0: OffsetRange(0, 2)}, {})
    bring(catalog, -1, 0, 2, staged=True)
    undone = {"shop.orders": head(catalog).snapshot_id}
    ahead = datetime.now(UTC) + timedelta(hours=1, microseconds=1)
    row = LedgerRow("orders", LedgerState.REPLAYED, "id", -1, table="shop.orders", snapshots=undone, at=ahead)
    Ledger(catalog).append([row], run_id="r")
    act(catalog, look(catalog, promises, target))
    # Of a snapshot that was undone and has expired, only the ledger tells.
    gone = [*undone.values(), *(s.snapshot_id for s in typed.snapshots()[:2])]
    catalog.load_table("shop.orders").maintenance.expire_snapshots().by_ids(gone).commit()
    rows = slices.read_slice_rows(Ledger(catalog), "orders")
    assert slices.find_replay_snapshot_id(catalog.load_table("shop.orders"), "shop.orders", piece, rows) is None


def test_a_slice_that_changed_nothing_is_no_loss(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    target = head(catalog)
    piece = Batch("orders", "id", -1, {0: OffsetRange(0, 2)}, {})
    typed = catalog.load_table("shop.orders")
    nothing = typed.schema().as_arrow().empty_table()
    typed.append(nothing, snapshot_properties={"sluice.step": "replay", **piece.properties()})
    trim(catalog, 1)
    assert not look(catalog, promises, target).lost


def test_raw_records_of_a_slice_stay_as_long_as_it_may_be_undone(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path, snapshot_age="2d", staging_retention="2d", min_snapshots=1)
    filled(catalog, promises, 3)
    bring(catalog, -1, 0, 2, staged=True)  # from Kafka
    bring(catalog, -2, 1, 2, staged=False)  # from staging
    inside = AssessmentInputs(catalog, promises, NOW + timedelta(days=1)).rollback_needs("orders", ()).slices
    assert sorted(inside) == [-2, -1]
    # All was planned and published long ago; the rows of a slice replayed just now are read again if it is undone.
    staging = catalog.load_table(table_names.staging("orders"))

    def going(undoable: Mapping[int, Batch]) -> expiry_plan.TrimPlan | None:
        return expiry_plan.plan_trim(
            AssessmentInputs(catalog, promises, LATER),
            staging,
            RollbackNeeds("orders", 3, undoable),
            timedelta(days=2),
        )

    assert going(inside) is None
    assert going({-2: inside[-2]}) == expiry_plan.TrimPlan(1, 1)
    assert going({}) == expiry_plan.TrimPlan(1, 2, (-1,))
    # Once no rollback leads back to before them.
    append(catalog.load_table("shop.orders"), 9, THROUGH)
    assert AssessmentInputs(catalog, promises, LATER).rollback_needs("orders", ()).slices == {}
    need = needs(promises, catalog, Action.EXPIRE, LATER)["sluice_staging.orders"]
    assert need.reason.startswith("batches 1 to 2 are published and past their retention; 1 backfill slices")
    need = needs(promises, catalog, Action.EXPIRE, NOW + timedelta(days=1))["sluice_staging.orders"]
    assert "trim" not in need.steps


def kinds(catalog: Catalog) -> list[tuple[str, str | None, str | None]]:
    """What the ledger tells of acts by hand."""
    rows = (
        Ledger(catalog)
        .table.scan(row_filter=one_of("state", [LedgerState.GAP, LedgerState.ROLLED_BACK]))
        .to_arrow()
        .to_pylist()
    )
    return [(r["state"], r["who"], r["why"]) for r in rows]


def settled(catalog: Catalog, promises: Contracts) -> None:
    nothing = {"tables": {"shop.orders": {}}, "stops": {}, "warnings": {}}
    settle.settle(promises.group("shop"), catalog, nothing, run_id="next")


def test_what_a_killed_rollback_left_to_do_is_done_once(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    (target, *_) = catalog.load_table("shop.orders").snapshots()
    trim(catalog, 2)
    found = look(catalog, promises, target)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            act(catalog, found, accept_loss="shop.orders")
    assert head(catalog) == target
    assert kinds(catalog) == []
    for _ in range(2):
        settled(catalog, promises)
        assert sorted(kinds(catalog)) == [("gap", "ann", "wrong"), ("rolled_back", "ann", "wrong")]
    (row,) = [r for r in Ledger(catalog).table.scan().to_arrow().to_pylist() if r["state"] == "rolled_back"]
    assert (row["run_id"], dict(row["snapshots"])) == (
        "by hand",
        {"from": found.undone[0].snapshot_id, "to": target.snapshot_id},
    )
    assert unfinished_rollback.ROLLBACK_PROPERTY not in catalog.load_table("shop.orders").properties


def test_a_rollback_whose_answer_was_lost_has_taken_effect(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    (first, second, _) = catalog.load_table("shop.orders").snapshots()
    real, calls = catalog.commit_table, []

    def lost(*given: Any) -> Any:
        calls.append(given)
        answer = real(*given)
        if len(calls) == 1:
            raise ConnectionError("reset by peer")
        return answer

    monkeypatch.setattr(catalog, "commit_table", lost)
    act(catalog, look(catalog, promises, second))
    assert (head(catalog), len(kinds(catalog))) == (second, 1)
    # Not one that never came: it is asked again.
    calls.clear()
    monkeypatch.setattr(catalog, "commit_table", lambda *given: real(*given) if calls or calls.append(1) else 1 / 0)
    act(catalog, look(catalog, promises, first))
    assert (head(catalog), len(kinds(catalog))) == (first, 2)
    # Nor one that another commit came before, however it ends.
    monkeypatch.undo()
    append(catalog.load_table("shop.orders"), 8, THROUGH)
    found = look(catalog, promises, first)
    append(catalog.load_table("shop.orders"), 9, THROUGH)
    with pytest.raises(FencedError, match="nothing was rolled back"):
        act(catalog, found)
    assert len(kinds(catalog)) == 2


def test_whether_it_was_rolled_back_is_said_to_be_unknown_while_it_is(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 2)
    found = look(catalog, promises, catalog.load_table("shop.orders").snapshots()[0])
    ledger = Ledger(catalog)

    def away(*_: object) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(unfinished_rollback, "WAIT_S", 0.1)
    monkeypatch.setattr(catalog, "commit_table", away)
    monkeypatch.setattr(catalog, "load_table", away)
    with pytest.raises(CatalogUnavailableError, match=r"not known whether .* group.s next run finishes the rollback"):
        rollback.roll_back(found, catalog, ledger, Decision("ann", "wrong", "r"))


def test_a_snapshot_that_expires_after_the_look_is_refused(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    first, *_ = catalog.load_table("shop.orders").snapshots()
    found = look(catalog, promises, first)
    catalog.load_table("shop.orders").maintenance.expire_snapshots().by_ids([first.snapshot_id]).commit()
    with pytest.raises(RefusedError, match=r"has expired since .* choose a newer snapshot"):
        act(catalog, found)
    assert kinds(catalog) == []


def test_what_lies_between_the_commits_of_a_run_is_told(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 1)
    for number, run_id in enumerate(("a", "b", "a", "a", "c")):
        append(catalog.load_table("shop.orders"), number, {**THROUGH, RUN_ID: run_id})

    def told(run_id: str) -> list[str]:
        found = rollback.preview_rollback(
            "shop.orders", promises, catalog, Ledger(catalog), RestorePoint(before_run=run_id)
        )
        return [line for line in found.lines() if line.startswith("others")]

    assert told("a") == ["others    1 of them are commits of other runs: b"]
    assert told("b") == told("c") == []
