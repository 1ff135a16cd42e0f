"""Maintenance assesses tables and backfills find their state, on real metadata without a JVM."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from sluice.backfill import backfill_outcome, slice_run
from sluice.backfill.ranges import cut_by_quarantine
from sluice.backfill.replay import ReplayResult
from sluice.batch import CURSOR_TAG, PUBLISHED_THROUGH, Batch, PublishedOffsets, encode_published_through
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.errors import CatalogUnavailableError, ConfigError, StagingTrimmedError
from sluice.iceberg import active_contract, refs, snapshots, table_names, tables
from sluice.iceberg.filters import at_most, equal
from sluice.ingest.context import Context
from sluice.ledger import backlog, ledger_rows, maintenance_table, slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.maintenance_table import Action, ActionResult, FileCounts
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import assess, expiry_plan, file_stats, maintain, procedures, targets
from sluice.maintain.expiry_plan import AssessmentInputs, RollbackNeeds
from sluice.offsets import OffsetRange
from sluice.operate import rollback
from sluice.operate.accept_gap import Gap
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.status import sources
from sluice.status.model import Status
from sluice.status.sources import StatusSources

pytestmark = pytest.mark.unit

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=100)

MASKED = "columns: [{name: mail, type: string, mask: redact}]"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def promise(tmp_path: Path, **maintenance: object) -> Contracts:
    folder = tmp_path / "contracts"
    folder.mkdir(exist_ok=True)
    lines = "".join(f"\n  {name}: {value}" for name, value in maintenance.items())
    (folder / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
        + (f"maintenance:{lines}\n" if lines else "")
    )
    return contract_folder.load_contracts(folder)


def batch(seq: int) -> Batch:
    return Batch("orders", "id", seq, {0: OffsetRange(seq - 1, seq)}, {0: seq})


def append(table: Table, n: int, properties: dict[str, str], branch: str = refs.MAIN) -> None:
    fields = table.schema().as_arrow()
    values = {f.name: [n] if pa.types.is_integer(f.type) else [None] for f in fields}
    values |= {f.name: [NOW] for f in fields if f.name == "_kafka_timestamp"}
    values |= {f.name: ["orders"] for f in fields if f.name == "_kafka_topic"}
    table.append(pa.Table.from_pydict(values, schema=fields), snapshot_properties=properties, branch=branch)


def filled(catalog: Catalog, promises: Contracts, batches: int) -> tuple[Table, Table]:
    """The typed table and staging, with so many batches, published and settled."""
    contract = promises.table("shop.orders")
    typed, staging = tables.ensure_typed(catalog, contract), tables.ensure_staging(catalog, "orders")
    ledger = Ledger(catalog)
    for seq in range(1, batches + 1):
        told = batch(seq).properties()
        append(staging, seq, {"sluice.step": "stage", **told})
        through = {PUBLISHED_THROUGH: encode_published_through({"orders": PublishedOffsets(seq, "id", {0: seq})})}
        append(typed, seq, {"sluice.step": "publish", **told, **through})
        ledger.append(ledger_rows.plan_rows(batch(seq), LedgerState.SETTLED), run_id="r")
    return catalog.load_table("shop.orders"), catalog.load_table(table_names.staging("orders"))


def needs(promises: Contracts, catalog: Catalog, action: Action, now: datetime = NOW) -> dict[str, assess.Assessment]:
    return {n.table: n for n in assess.assess_tables(AssessmentInputs(catalog, promises, now), action)}


def test_every_table_has_its_turn_and_staging_comes_after_typed(tmp_path, catalog):
    found = targets.list_targets(promise(tmp_path))
    assert [(s.name, str(s.kind), s.group) for s in found] == [
        ("shop.orders", "typed", "shop"),
        ("sluice_quarantine.shop_orders_" + found[1].name[-6:], "quarantine", "shop"),
        ("sluice_staging.orders", "staging", "shop"),
        ("sluice.costs", "own", None),
        ("sluice.maintenance", "own", None),
        ("sluice.offsets", "own", None),
        ("sluice.pilot", "own", None),
        ("sluice.quality", "own", None),
        ("sluice.schemas", "own", None),
        ("sluice.writer_schemas", "own", None),
    ]


def test_some_tables_are_assessed_by_name(tmp_path, catalog):
    promises = promise(tmp_path)
    names = ["sluice.offsets", "shop.orders"]
    assert [
        n.table for n in assess.assess_tables(AssessmentInputs(catalog, promises), Action.EXPIRE, names=names)
    ] == names[::-1]
    with pytest.raises(ConfigError, match=r"No contract defines shop\.order \(did you mean 'shop\.orders'\?\)"):
        assess.assess_tables(AssessmentInputs(catalog, promises), Action.EXPIRE, names=["shop.orders", "shop.order"])


def test_tables_that_are_missing_or_empty_need_nothing(tmp_path, catalog):
    promises = promise(tmp_path)
    tables.ensure_typed(catalog, promises.table("shop.orders"))
    for action in Action:
        found = needs(promises, catalog, action).values()
        assert all((n.steps, n.reason, n.error) == ((), "the table is empty", None) for n in found)


def test_small_files_are_told_by_number_and_size(tmp_path, catalog):
    promises = promise(tmp_path, min_input_files=4)
    typed, _ = filled(catalog, promises, 3)
    found = needs(promises, catalog, Action.REWRITE)["shop.orders"]
    assert found.steps == ()
    assert found.reason.startswith("3 data files, at most 3 small ones in a partition, 0 delete files, 3 manifests")
    append(typed, 4, {})
    found = needs(promises, catalog, Action.REWRITE)
    assert found["shop.orders"].steps == ("files",)
    assert found["shop.orders"].reason.startswith("4 small files of ")
    # Each batch is a partition of staging: there is nothing to put together.
    assert found["sluice_staging.orders"].steps == ()


def test_many_small_manifests_are_a_need_of_their_own(tmp_path, catalog):
    promises = promise(tmp_path, min_input_files=1000)
    filled(catalog, promises, assess.MANY_MANIFESTS)
    found = needs(promises, catalog, Action.REWRITE)["sluice_staging.orders"]
    assert (found.steps, found.reason) == (("manifests",), "20 small manifests")


def test_what_takes_too_long_is_read_in_part_and_says_so(tmp_path, catalog):
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 3)
    found = file_stats.read_files(typed, target=1 << 27, delete_ratio=0.3, budget=-1.0)
    assert not found.complete
    assert found.counts.data_files == 3


def test_what_found_nothing_in_its_time_is_looked_at_once_more(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path, min_input_files=2)
    filled(catalog, promises, 3)
    read, budgets = file_stats.read_files, []

    def short(table: Table, *, budget: float = -1.0, **named: float) -> file_stats.TableFiles:
        budgets.append((table.name()[-1], budget))
        return read(table, budget=budget, **named)

    monkeypatch.setattr(file_stats, "read_files", short)
    found = needs(promises, catalog, Action.REWRITE)
    assert found["shop.orders"].steps == ("files",)
    assert [budget for name, budget in budgets if name == "orders"] == [
        -1.0,
        file_stats.SECOND_BUDGET_S,
    ]  # staging: none
    monkeypatch.setattr(assess, "SECOND_PASS_S", 0.0)
    found = needs(promises, catalog, Action.REWRITE)["shop.orders"]
    assert (found.steps, found.reason.split("; ")[-1]) == ((), "counts are lower bounds: out of time")


def test_small_manifests_wait_for_storage_together(tmp_path, catalog, monkeypatch):
    typed, _ = filled(catalog, promise(tmp_path), 8)
    fetch, together = ManifestFile.fetch_manifest_entry, Barrier(8)

    def waiting(manifest: ManifestFile, io: Any, discard_deleted: bool = True) -> Any:
        together.wait(10)  # until all eight are asked for
        return fetch(manifest, io, discard_deleted)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", waiting)
    (part,) = file_stats.read_files(typed, target=1 << 27, delete_ratio=0.3).partitions.values()
    assert part.small == 8
    sizes = [9, 9, file_stats.CONCURRENT_BYTES, file_stats.CONCURRENT_BYTES + 1, *[9] * 9]
    manifests: list[Any] = [SimpleNamespace(manifest_length=size) for size in sizes]
    assert [len(some) for some in file_stats._chunks(manifests)] == [2, 1, 1, 8, 1]
    assert [each for some in file_stats._chunks(manifests) for each in some] == manifests
    assert list(file_stats._chunks([])) == []


def test_of_staging_no_manifest_is_read_to_see_what_a_rewrite_would_find(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    monkeypatch.delattr(ManifestFile, "fetch_manifest_entry")
    (need,) = assess.assess_tables(AssessmentInputs(catalog, promises), Action.REWRITE, names=["sluice_staging.orders"])
    assert (need.error, need.steps) == (None, ())
    assert need.reason.startswith("3 data files, at most 0 small ones in a partition, 0 delete files, 3 manifests")


def test_what_is_asked_of_other_tables_is_read_once_for_all_topics(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path, snapshot_age="1d", staging_retention="2d", min_snapshots=1)
    filled(catalog, promises, 3)
    text = (promises.folder / "shop.orders.yaml").read_text()
    (promises.folder / "shop.pays.yaml").write_text(text.replace("shop.orders", "shop.pays").replace("orders", "pays"))
    promises = contract_folder.load_contracts(promises.folder)
    pays = tables.ensure_staging(catalog, "pays")
    other = replace(batch(1), topic="pays")
    append(pays, 1, {"sluice.step": "stage", **other.properties()})
    both = [row for each in (other, batch(3)) for row in ledger_rows.plan_rows(each, LedgerState.SETTLED)]
    Ledger(catalog).append(both, run_id="r")  # in one manifest
    tables.ensure_typed(catalog, promises.table("shop.pays"))
    load, fetch = catalog.load_table, ManifestFile.fetch_manifest_entry
    loaded: Counter[str] = Counter()
    read: Counter[str] = Counter()

    def counted(identifier: Any) -> Table:
        loaded[".".join(identifier)] += 1
        return load(identifier)

    def listed(manifest: ManifestFile, *given: Any, **named: Any) -> Any:
        read[manifest.manifest_path] += 1
        return fetch(manifest, *given, **named)

    monkeypatch.setattr(catalog, "load_table", counted)
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", listed)
    found = needs(promises, catalog, Action.EXPIRE, LATER)
    assert found["sluice_staging.orders"].reason.startswith("batches 1 to 2 are published")
    assert {loaded[name] for name in ("shop.orders", "sluice_staging.orders", "sluice_staging.pays")} == {1}
    assert loaded["shop.pays"] == 2  # for itself, which holds nothing, and for its topic
    assert loaded["sluice.offsets"] == 2  # for itself, and for all topics
    ledger = Ledger(catalog).table
    # Once for what was settled, once for slices of backfills, however many topics there are.
    assert {read[m.manifest_path] for m in ledger.current_snapshot().manifests(ledger.io)} == {2}


def test_of_manifests_that_were_written_at_once_the_newest_partitions_are_read_first(catalog):
    catalog.create_namespace("db")
    fields = Schema(NestedField(1, "at", LongType()), NestedField(2, "kind", StringType()))
    by = (PartitionField(1, 1000, IdentityTransform(), "at"), PartitionField(2, 1001, IdentityTransform(), "kind"))
    table = catalog.create_table("db.t", fields, partition_spec=PartitionSpec(*by))
    places = [(300, "a"), (5, "b"), (None, "c"), (40_000, "a"), (40_000, "b")]
    for at, kind in places:
        table.append(pa.Table.from_pylist([{"at": at, "kind": kind}], schema=fields.as_arrow()))
    manifests = table.current_snapshot().manifests(table.io)

    def order() -> list[tuple[Any, ...]]:
        return [
            tuple(entry.data_file.partition[i] for i in range(2))
            for manifest in file_stats._newest_first(table, manifests)
            for entry in manifest.fetch_manifest_entry(table.io)
        ]

    assert order() == places[::-1]
    for manifest in manifests:
        manifest.sequence_number = 9  # as rewrite_manifests leaves them
    assert order() == [(40_000, "b"), (40_000, "a"), (300, "a"), (5, "b"), (None, "c")]


def test_what_maintenance_did_is_told_for_as_long_as_its_history(tmp_path, catalog):
    promises = promise(tmp_path)
    filled(catalog, promises, 1)

    def need(table: str, days: int = 0) -> assess.Assessment:
        return needs(promises, catalog, Action.EXPIRE, NOW + timedelta(days=days))[table]

    maintenance_table.write_results(catalog, [ActionResult("a.b", "expire_snapshots", "done", at=NOW)], run_id="r")
    assert "history" not in need("sluice.maintenance", 98).steps  # by a tenth longer, or one row a day would go
    found = need("sluice.maintenance", 100)
    assert found.steps[0] == "history"
    assert found.reason.startswith(
        f"rows from before {NOW + timedelta(days=10):%Y-%m-%d} are past their history of 90 d; "
    )
    assert "history" not in need("sluice.offsets", 100).steps
    (tmp_path / "contracts" / "groups.yaml").write_text("maintenance: {history: null}\n")
    promises = promise(tmp_path)
    assert "history" not in need("sluice.maintenance", 100).steps


def test_planning_stays_under_a_second(tmp_path, catalog):
    promises = promise(tmp_path, min_input_files=1000)
    filled(catalog, promises, 60)
    needs(promises, catalog, Action.REWRITE)
    for action in Action:
        began = time.monotonic()
        found = needs(promises, catalog, action)
        seconds = time.monotonic() - began
        print(f"{action}: {len(found)} tables in {seconds:.2f} s")
        assert seconds < len(found)


def test_the_rollback_window_keeps_its_first_head_and_a_snapshot_with_offsets(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1d", staging_retention="1d", min_snapshots=1)
    typed, _ = filled(catalog, promises, 3)
    settings = promises.table("shop.orders").maintenance
    # All within the window: nothing goes.
    assert expiry_plan.plan_expiry(typed, settings, NOW, expiry_plan.carries_published).expired == ()
    # All before it: the head was the table when the window began, and stays.
    found = expiry_plan.plan_expiry(typed, settings, LATER, expiry_plan.carries_published)
    assert [s.snapshot_id for s in found.kept] == [typed.current_snapshot().snapshot_id]
    assert len(found.expired) == 2
    # A head without offsets, as a rewrite leaves it, keeps its carrier however old that is.
    append(typed, 9, {})
    append(typed, 9, {})
    found = expiry_plan.plan_expiry(typed, settings, LATER, expiry_plan.carries_published)
    assert len(found.kept) == 3
    assert PUBLISHED_THROUGH in found.kept[-1].summary.additional_properties
    assert {s.snapshot_id for s in found.expired}.isdisjoint(s.snapshot_id for s in found.kept)


def test_the_rollback_window_counts_from_when_main_moved(tmp_path, catalog):
    """A batch is written to its branch first: until main moves onto it, readers see the snapshot before it."""
    promises = promise(tmp_path, snapshot_age="1h", staging_retention="1h", min_snapshots=1)
    typed, _ = filled(catalog, promises, 1)
    first = typed.current_snapshot().snapshot_id
    refs.commit(catalog, typed, (), (refs.set_ref("sluice_x", first),))
    typed = catalog.load_table("shop.orders")
    through = {PUBLISHED_THROUGH: encode_published_through({"orders": PublishedOffsets(2, "id", {0: 2})})}
    append(typed, 2, through, "sluice_x")
    written = datetime.now(UTC)
    time.sleep(0.02)
    refs.commit(catalog, typed, (), (refs.set_ref(refs.MAIN, typed.metadata.refs["sluice_x"].snapshot_id),))
    typed, settings = catalog.load_table("shop.orders"), promises.table("shop.orders").maintenance

    def looked(began: datetime) -> tuple[int, list[int], int]:
        now = began + timedelta(hours=1)
        found = expiry_plan.plan_expiry(typed, settings, now, expiry_plan.carries_published)
        doomed = [s.snapshot_id for s in found.expired]
        return (
            len(found.kept),
            doomed,
            AssessmentInputs(catalog, promises, now).rollback_needs("orders", ()).published_through,
        )

    assert looked(written) == (2, [], 1)  # the first was the table when the window began
    assert looked(datetime.now(UTC) + timedelta(seconds=1)) == (1, [first], 2)


def test_a_table_that_was_told_to_keep_more_keeps_more(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1d", staging_retention="1d", min_snapshots=1)
    typed, _ = filled(catalog, promises, 4)
    settings = promises.table("shop.orders").maintenance

    def doomed(**told: object) -> int:
        with typed.transaction() as transaction:
            transaction.set_properties({f"history.expire.{k.replace('_', '-')}": str(v) for k, v in told.items()})
        found = expiry_plan.plan_expiry(typed, settings, LATER, expiry_plan.carries_published)
        # What Iceberg is given keeps as much, whatever the table says.
        assert found.retain_last == max(1, told.get("min_snapshots_to_keep", 1)) and len(found.kept) == 4 - len(
            found.expired
        )
        assert expiry_plan.AssessmentInputs(catalog, promises, LATER).rollback_needs(
            "orders", ()
        ).published_through == 1 + len(found.expired)
        return len(found.expired)

    assert doomed(max_snapshot_age_ms=1000, min_snapshots_to_keep=1) == 3  # less than the contract's
    assert doomed(min_snapshots_to_keep=3) == 1
    # Each by itself; the longest that there is means for ever.
    assert [doomed(min_snapshots_to_keep=1, max_snapshot_age_ms=ms) for ms in (3_000 * 86_400_000, 2**63 - 1)] == [0, 0]


@pytest.mark.parametrize(
    ("own", "short", "doomed"),
    [
        ((1, 1), True, [0, 1]),  # Iceberg would leave the head alone: main is cut as if it had none of its own
        ((None, 1), False, [0, 1]),  # what is young stays by the age that Iceberg is given
        ((86_400_000, 2), True, [0, 1]),
        ((86_400_000, 4), False, [0]),
        ((365 * 86_400_000, 1), False, []),  # it keeps more than the contract does
    ],
)
def test_what_main_was_told_to_keep_by_itself_cuts_no_cursor_off(tmp_path, catalog, own, short, doomed) -> None:
    promises = promise(tmp_path, snapshot_age="1d", staging_retention="1d", min_snapshots=1)
    typed, _ = filled(catalog, promises, 3)
    append(typed, 9, {})
    append(typed, 9, {})
    ids = [s.snapshot_id for s in sorted(typed.metadata.snapshots, key=lambda s: s.sequence_number)]
    here = refs.set_ref(refs.MAIN, ids[-1])
    keeping = {"max_snapshot_age_ms": own[0], "min_snapshots_to_keep": own[1]}
    refs.commit(catalog, typed, (), (here.model_copy(update=keeping),))
    typed, settings = catalog.load_table("shop.orders"), promises.table("shop.orders").maintenance
    found = expiry_plan.plan_expiry(typed, settings, LATER, expiry_plan.carries_published)
    assert [s.snapshot_id for s in found.kept] == ids[:1:-1]  # to the carrier
    assert (found.reset_main_retention, sorted(ids.index(s.snapshot_id) for s in found.expired)) == (short, doomed)


def test_a_chain_without_offsets_is_never_cut(tmp_path, catalog):
    """After a rollback to before the first batch: cut, the tag of what was rolled back would be believed."""
    promises = promise(tmp_path, snapshot_age="1s", staging_retention="1s", min_snapshots=1)
    typed = tables.ensure_typed(catalog, promises.table("shop.orders"))
    for n in range(3):
        append(typed, n, {})
    found = expiry_plan.plan_expiry(
        typed, promises.table("shop.orders").maintenance, LATER, expiry_plan.carries_published
    )
    assert (len(found.kept), found.expired) == (3, ())


def test_branches_tags_and_the_least_number_stay(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1s", staging_retention="1s", min_snapshots=2)
    typed, _ = filled(catalog, promises, 6)
    ids = [s.snapshot_id for s in sorted(typed.metadata.snapshots, key=lambda s: s.sequence_number)]
    refs.commit(catalog, typed, (), (refs.set_ref("mine", ids[0], tag=True), refs.set_ref("sluice_abcdef_1", ids[2])))
    typed = catalog.load_table("shop.orders")
    found = expiry_plan.plan_expiry(
        typed, promises.table("shop.orders").maintenance, LATER, expiry_plan.carries_published
    )
    # A branch keeps as many of its own as main does.
    assert [ids.index(s.snapshot_id) for s in found.expired] == [3]


@pytest.mark.parametrize(
    ("first", "second", "days"),
    [
        ("", "", 30),
        ("", "errors: {raw: drop}", 14),
        ("", MASKED, 14),
        ("maintenance: {snapshot_age: 20d}", MASKED, 20),
        ("maintenance: {snapshot_age: 40d}", "", 40),
        ("maintenance: {staging_retention: 21d}", MASKED, 21),
        ("maintenance: {staging_retention: 6d}", f"{MASKED}\nmaintenance: {{staging_retention: 7d}}", 7),
        ("maintenance: {staging_retention: 6d}", f"{MASKED}\nerrors: {{raw: keep}}", 14),
    ],
)
def test_staging_is_kept_shorter_where_a_table_hides_what_it_holds_and_never_too_short_for_a_rollback(
    tmp_path, first, second, days
):
    promises = promise(tmp_path)
    for name, more in (("orders", first), ("hidden", second)):
        columns = "" if more.startswith("columns") else "columns: [{name: id, type: long}]\n"
        text = f"table: shop.{name}\ntopic: orders\ngroup: shop\nowner: me\n{columns}{more}\n"
        (promises.folder / f"shop.{name}.yaml").write_text(text)
    assert targets.staging_retention(contract_folder.load_contracts(promises.folder), "orders") == timedelta(days=days)


def test_staging_is_trimmed_when_published_past_retention_and_out_of_a_rollbacks_reach(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1d", staging_retention="2d", min_snapshots=1)
    typed, _ = filled(catalog, promises, 4)

    def found(now: datetime) -> str:
        return needs(promises, catalog, Action.EXPIRE, now)["sluice_staging.orders"].reason

    assert found(NOW + timedelta(hours=1)).startswith("0 of 4 snapshots can expire")
    # Out of the rollback window, but not past the retention.
    assert found(NOW + timedelta(days=1, hours=1)).startswith("3 of 4 snapshots")
    # The newest batch stays, whatever its age.
    assert found(LATER).startswith("batches 1 to 3 are published and past their retention; ")
    # Rolled back by hand to batch 2: what is published again stays.
    second = next(s for s in typed.metadata.snapshots if s.sequence_number == 2)
    refs.commit(catalog, typed, (), (refs.set_ref("main", second.snapshot_id),))
    assert found(LATER).startswith("batches 1 to 2 are published")
    # A table of the topic that has published nothing holds everything back, and staging's snapshots with it.
    (promises.folder / "shop.new.yaml").write_text(
        "table: shop.new\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
        "maintenance: {snapshot_age: 1s, staging_retention: 1s, min_snapshots: 1}\n"
    )
    promises = contract_folder.load_contracts(promises.folder)
    assert found(LATER).startswith("0 of 4 snapshots")
    # So does one whose contract can't be read any more, whatever is known of it.
    with (promises.folder / "shop.new.yaml").open("a") as file:
        file.write("colour: red\n")
    promises = contract_folder.load_contracts(promises.folder, strict=False)
    broken = needs(promises, catalog, Action.EXPIRE, LATER)
    assert broken["sluice_staging.orders"].steps == ()
    assert "skipped while a contract is broken" in broken["sluice_staging.orders"].reason
    assert "colour" in broken["sluice_staging.orders"].reason
    assert broken["shop.orders"].steps == ("snapshots",)


def test_a_trim_that_did_not_come_to_its_end_is_done_again(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1d", staging_retention="2d", min_snapshots=1)
    _, staging = filled(catalog, promises, 4)
    # Said what goes, and lost against another writer before it went. Nothing more was sent since.
    with staging.transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: "3"})
    need = needs(promises, catalog, Action.EXPIRE, NOW + timedelta(hours=1))["sluice_staging.orders"]
    assert need.steps == ("trim",)
    assert need.reason.startswith("an earlier trim left rows of batches up to 3; ")
    staging = catalog.load_table(table_names.staging("orders"))
    staging.delete(at_most("batch_seq", 3))
    assert "trim" not in needs(promises, catalog, Action.EXPIRE, LATER)["sluice_staging.orders"].steps


def test_raw_records_of_old_slices_stay_while_a_running_one_may_read_them(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1d", staging_retention="2d", min_snapshots=1)
    _, staging = filled(catalog, promises, 2)
    ledger = Ledger(catalog)

    def plan(seq: int, end: int, days: int) -> None:
        piece = Batch("orders", "id", seq, {0: OffsetRange(end - 5, end)}, {})
        rows = [
            replace(r, at=NOW - timedelta(days=days))
            for r in slices.slice_plan_rows(piece, "shop.orders", who=None, why="")
        ]
        ledger.append(rows, run_id=f"r{seq}")

    for seq, end in ((-1, 10), (-2, 20)):
        plan(seq, end, 9)
        append(staging, seq, {"sluice.step": "stage"})
    plan(-3, 8, 0)
    staging = catalog.load_table(table_names.staging("orders"))
    found = expiry_plan.plan_trim(
        AssessmentInputs(catalog, promises, NOW), staging, RollbackNeeds("orders", 0, {}), timedelta(days=2)
    )
    assert found is not None and found.slices == (-2,)
    ended = LedgerRow("orders", LedgerState.REPLAYED, "id", -3, table="shop.orders", snapshots={"shop.orders": 1})
    ledger.append([ended], run_id="r")
    found = expiry_plan.plan_trim(
        AssessmentInputs(catalog, promises, NOW), staging, RollbackNeeds("orders", 0, {}), timedelta(days=2)
    )
    assert found is not None and found.slices == (-2, -1)


def test_an_event_tells_of_the_slices_that_changed_the_table(tmp_path, catalog):
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 2)
    ledger, records = Ledger(catalog), {-1: 4, -2: 5, -3: 6, -4: 7}
    for seq, count in records.items():
        piece = Batch("orders", "id", seq, {0: OffsetRange(-10 * seq, 10 - 10 * seq)}, {})
        ledger.append(slices.slice_plan_rows(piece, "shop.orders", who=None, why=""), run_id="r")
        if seq == -4:  # it was never replayed
            continue
        typed = catalog.load_table("shop.orders")
        told = {"sluice.step": "replay", **piece.properties()}
        if seq == -3:  # all of it was there
            typed.append(typed.schema().as_arrow().empty_table(), snapshot_properties=told)
        else:
            append(typed, 9, told)
        ended = LedgerRow(
            "orders", LedgerState.REPLAYED, "id", seq, table="shop.orders", records=count, rejected=1, why="rows"
        )
        ledger.append([ended], run_id="r")
    first, second = catalog.load_table("shop.orders").snapshots()[-3:-1]

    def news(*numbers: int) -> dict[str, object] | None:
        promised = {"table": "shop.orders", "topic": "orders", "slices": list(numbers)}
        return backfill_outcome.asset_event(
            promises, catalog, promised, backfill_outcome.collect_outcome(promises, catalog, promised)
        )

    found = news(-1, -2, -3, -4) or {}
    assert found.pop("contract") == active_contract.describe_promise(typed, promises.table("shop.orders"))
    assert found == {
        "table": "shop.orders", "location": typed.location(), "backfill": True, "batches": {"orders": [-1, -2]},
        "ranges": {"orders": ['{"0":[10,20]}', '{"0":[20,30]}']}, "gaps": {}, "snapshot_id": second.snapshot_id,
        "snapshot_ids": [first.snapshot_id, second.snapshot_id], "records": 9, "rejected": 2,
    }  # fmt: skip
    assert news(-3) is news(-4) is None


def test_a_slice_that_landed_is_in_the_table_though_its_snapshot_expired(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1s", min_snapshots=1)
    typed, _ = filled(catalog, promises, 2)
    ledger = Ledger(catalog)
    piece = Batch("orders", "id", -1, {0: OffsetRange(0, 1)}, {})
    ledger.append(slices.slice_plan_rows(piece, "shop.orders", who=None, why=""), run_id="r")
    promised = {"table": "shop.orders", "topic": "orders", "slices": [-1]}

    def outcome() -> int | None:
        (found,) = backfill_outcome.collect_outcome(promises, catalog, promised)
        return found["snapshot_id"]

    def replay_slice() -> Snapshot:
        append(catalog.load_table("shop.orders"), 9, {"sluice.step": "replay", **piece.properties()})
        snapshot = catalog.load_table("shop.orders").current_snapshot()
        assert snapshot is not None
        return snapshot

    def tell(replayed: Snapshot) -> None:
        done = ReplayResult(replayed.snapshot_id, snapshots.committed_at(replayed))
        ledger.append([slice_run.replayed_row(piece, "shop.orders", done)], run_id="r")

    def expire(*gone: Snapshot) -> None:
        append(catalog.load_table("shop.orders"), 10, {})
        catalog.load_table("shop.orders").maintenance.expire_snapshots().by_ids([s.snapshot_id for s in gone]).commit()

    first, before = typed.snapshots()
    assert outcome() is None
    undone = replay_slice()
    assert outcome() == undone.snapshot_id
    found = rollback.preview_rollback(
        "shop.orders", promises, catalog, ledger, RestorePoint(snapshot_id=before.snapshot_id)
    )
    rollback.roll_back(found, catalog, ledger, Decision("ann", "wrong", "by hand"))
    # It is there and no ancestor of main. Then it is gone, and the table alone tells that it was undone: the task told
    # what it had done only after that, and the ledger may have missed the rollback.
    assert outcome() is None
    tell(undone)
    ledger.table.delete(equal("state", str(LedgerState.ROLLED_BACK)))
    expire(first, undone)
    assert outcome() is None
    replayed = replay_slice()
    tell(replayed)
    expire(replayed)
    assert outcome() == replayed.snapshot_id
    catalog.drop_table("shop.orders")
    again, _ = filled(catalog, promises, 2)
    expire(again.snapshots()[0])
    assert outcome() is None


def test_a_column_to_sort_by_that_is_still_under_review_stops_no_rewrite(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path, strategy="sort", sort_by="[id]")
    filled(catalog, promises, 6)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(procedures, "call_procedure", lambda *_, **given: asked.append(given) or {})

    def rewrite(promises: Contracts) -> ActionResult:
        context = Context(None, catalog, "lake", {}, "r")  # type: ignore[arg-type]
        (effect,) = maintain.maintain_tables(
            maintain.MaintenanceRun(context, promises, Action.REWRITE), ["shop.orders"], deadline=time.monotonic() + 60
        )
        assert effect.state == "done", effect.error
        return effect

    assert "sort" not in rewrite(promises).summary
    assert (asked[-1]["strategy"], asked[-1]["sort_order"]) == ("sort", "`id`")
    # The file asks for a column that the table does not have, and is not to get before somebody says so.
    file = promises.folder / "shop.orders.yaml"
    text = file.read_text().replace("{name: id, type: long}", "{name: id, type: long}, {name: at, type: long}")
    file.write_text(text.replace("[id]", "[at, id]"))
    assert "6 small files" in (told := rewrite(contract_folder.load_contracts(promises.folder)).summary)
    assert "; not sorted: the table has no column at yet" in told
    assert asked[-1]["strategy"] == "binpack" and "sort_order" not in asked[-1]


def test_records_in_quarantine_are_replayed_in_slices_of_so_many(tmp_path, catalog):
    contract = promise(tmp_path).table("shop.orders")
    table = tables.ensure_quarantine(catalog, contract)
    fields = table.schema().as_arrow()
    places = [(0, 5), (0, 900), (0, 900), (1, 7), (1, 8), (1, 90_000), (2, 1)]
    same = {
        "batch_seq": 1,
        "_kafka_topic": "orders",
        "_kafka_timestamp": NOW,
        "error_class": "x",
        "quarantined_at": NOW,
    }
    rows = [{**same, "_kafka_partition": p, "_kafka_offset": at} for p, at in places]
    table.append(pa.Table.from_pylist(rows, schema=fields))
    whole = Batch("orders", "id", -1, {0: OffsetRange(0, 1000), 1: OffsetRange(8, 100_000)}, {})
    assert cut_by_quarantine(whole, catalog.load_table(table_names.quarantine(contract)), 2) == [
        {0: (0, 1000)},
        {1: (8, 100_000)},
    ]
    assert cut_by_quarantine(whole, catalog.load_table(table_names.quarantine(contract)), 1) == [
        {0: (0, 900)},
        {0: (900, 1000)},
        {1: (8, 90_000)},
        {1: (90_000, 100_000)},
    ]
    whole = Batch("orders", "id", -1, {0: OffsetRange(800, 1000), 1: OffsetRange(0, 100_000)}, {})
    assert cut_by_quarantine(whole, catalog.load_table(table_names.quarantine(contract)), 3) == [
        {0: (800, 1000), 1: (0, 90_000)},
        {1: (90_000, 100_000)},
    ]
    assert cut_by_quarantine(whole, None, 3) == [dict(whole.ranges)]


def test_trimmed_batches_are_refused_and_not_read_as_empty(tmp_path, catalog):
    promises = promise(tmp_path)
    _, staging = filled(catalog, promises, 3)
    contract = promises.table("shop.orders")
    with staging.transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: "2"})
    staging = catalog.load_table(table_names.staging("orders"))
    backlog.check_not_trimmed(staging, contract, [batch(3)])
    pin = Batch("orders", "id", 1, {}, {0: 0})
    backlog.check_not_trimmed(staging, contract, [pin])
    with pytest.raises(StagingTrimmedError, match="batches 1 to 2 were deleted from staging") as error:
        backlog.check_not_trimmed(staging, contract, [batch(1), batch(2), batch(3)])
    assert "shop.orders" in str(error.value)


def test_batches_that_are_gone_stop_the_table_until_they_are_given_up_for_it(tmp_path, catalog):
    promises = promise(tmp_path)
    _, staging = filled(catalog, promises, 4)
    ledger, waiting = Ledger(catalog), tuple(batch(seq) for seq in range(1, 5))

    def whole(table: str = "shop.orders") -> tuple[Batch, ...]:
        return backlog.check_rows_staged(table, staging, waiting, ledger, ledger.gaps(["orders"]))

    def give_up(gap: Gap) -> None:
        ledger.append(gap.ledger_rows(Decision("ann", "old", "r")), run_id="r", if_unchanged=True)

    assert whole() == waiting
    # Said, and not deleted yet: gone all the same.
    with staging.transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: "2"})
    with pytest.raises(StagingTrimmedError, match="batches 1 to 2 were deleted from staging") as stop:
        whole()
    assert "accept_gap" in str(stop.value)
    give_up(Gap.from_error(stop.value, ("shop.orders",), "shop.orders"))
    assert [b.span for b in whole()] == [0, 0, 1, 1]
    backlog.check_not_trimmed(staging, promises.table("shop.orders"), whole())
    # By hand, and without a word of it.
    staging.delete(equal("batch_seq", 4))
    with pytest.raises(StagingTrimmedError, match="batches 4 to 4") as stop:
        whole()
    assert stop.value.fields["lost"] == {0: (3, 4)}
    give_up(Gap.from_error(stop.value, ("shop.orders",), "shop.orders"))
    assert [b.span for b in whole()] == [0, 0, 1, 0]
    with pytest.raises(StagingTrimmedError, match="batches 1 to 2"):
        whole("shop.later")


def test_orphans_are_looked_for_only_where_something_was_written_since(tmp_path, catalog):
    promises = promise(tmp_path)
    filled(catalog, promises, 1)
    found = needs(promises, catalog, Action.ORPHANS, NOW)["shop.orders"]
    assert found.steps == ("orphans",)
    assert found.reason.startswith("never checked")
    cleaned = ActionResult("shop.orders", Action.ORPHANS, "done", at=NOW + timedelta(days=10))
    maintenance_table.write_results(catalog, [cleaned], run_id="r1")
    # A failed one does not count.
    maintenance_table.write_results(
        catalog, [ActionResult("shop.orders", Action.ORPHANS, "failed", at=NOW + timedelta(days=40))], run_id="r2"
    )
    found = needs(promises, catalog, Action.ORPHANS, NOW + timedelta(days=50))["shop.orders"]
    assert found.steps == ()
    assert found.reason.startswith("last checked for orphan files 40 d ago, metadata last written ")
    # A rewrite that is killed leaves its files, and the table as it was.
    begun = [ActionResult("shop.orders", a, maintenance_table.BEGUN, at=NOW + timedelta(days=11)) for a in Action]
    maintenance_table.write_results(catalog, begun[2:], run_id="r3")
    assert needs(promises, catalog, Action.ORPHANS, NOW + timedelta(days=50))["shop.orders"].steps == ()
    maintenance_table.write_results(catalog, begun[:1], run_id="r3")
    assert needs(promises, catalog, Action.ORPHANS, NOW + timedelta(days=50))["shop.orders"].steps == ("orphans",)


def test_snapshots_of_sluices_own_tables_go_with_an_hourly_rewrite(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path)
    filled(catalog, promises, 20)
    monkeypatch.setattr(assess, "MANY_SNAPSHOTS", 8)
    monkeypatch.setattr(targets, "OWN_SETTINGS", targets.OWN_SETTINGS.model_copy(update={"min_snapshots": 10}))

    def found(later: timedelta) -> assess.Assessment:
        return needs(promises, catalog, Action.REWRITE, NOW + later)["sluice.offsets"]

    assert found(timedelta(minutes=50)).steps == (), "somebody may be reading"
    assert found(timedelta(hours=2)).steps == ("snapshots",)
    assert found(timedelta(hours=2)).reason.endswith("; 10 snapshots can expire")
    assert "snapshots" not in needs(promises, catalog, Action.REWRITE, NOW + timedelta(days=9))["shop.orders"].steps
    # By the day it takes fewer.
    monkeypatch.setattr(assess, "MANY_SNAPSHOTS", 11)
    assert found(timedelta(hours=2)).steps == ()
    expire = needs(promises, catalog, Action.EXPIRE, NOW + timedelta(hours=2))["sluice.offsets"]
    assert (expire.steps, expire.reason[:31]) == (("snapshots",), "10 of 20 snapshots can expire, ")


def test_no_setting_makes_a_young_file_an_orphan(tmp_path):
    promises = promise(tmp_path, orphan_age="1d")
    (subject, *_) = targets.list_targets(promises)
    assert assess.min_orphan_age(subject, promises) == timedelta(days=1)
    # Sluice's own tables, too; and never below what one application may take.
    (tmp_path / "contracts" / "groups.yaml").write_text("shop: {timeout: 4d}\n")
    promises = contract_folder.load_contracts(tmp_path / "contracts")
    assert {assess.min_orphan_age(s, promises) for s in targets.list_targets(promises)} == {timedelta(days=4)}


def test_effects_are_kept_and_read_back(catalog):
    before, after = FileCounts(9, 1, 900, 4, 7), FileCounts(1, 0, 800, 1, 8)
    effect = ActionResult(
        "a.b", Action.REWRITE, "done", "9 small files", before, after, 1.5, '{"listed":1}', ["f"], run_id="r1"
    )
    maintenance_table.write_results(
        catalog, [effect, ActionResult("a.c", Action.EXPIRE, "failed", error="disk full")], run_id="r1"
    )
    maintenance_table.write_results(catalog, [ActionResult("a.b", Action.ORPHANS, "idle")], run_id="r2")
    one, other = maintenance_table.read_results(catalog, maintenance_table.ResultFilter(run_id="r1"))
    assert one == effect
    assert (other.state, other.error, other.before, other.failed) == ("failed", "disk full", None, True)
    assert [
        e.run_id for e in maintenance_table.read_results(catalog, maintenance_table.ResultFilter(action=Action.ORPHANS))
    ] == ["r2"]
    assert {key: e.state for key, e in maintenance_table.last_results(catalog).items()} == {
        ("a.b", "rewrite_data_files"): "done",
        ("a.c", "expire_snapshots"): "failed",
    }
    # Whoever asks for one table reads that table, and none of the thousand names of files.
    assert {key: e.summary for key, e in maintenance_table.last_results(catalog, ["a.b"]).items()} == {
        ("a.b", "rewrite_data_files"): one.summary
    }
    assert maintenance_table.last_results(catalog, ["a.b"])["a.b", "rewrite_data_files"].listing == []
    assert maintenance_table.last_results(catalog, []) == {}
    assert one.summary == (
        "done, 9 small files, data files 9 → 1, delete files 1 → 0, bytes 900 → 800, manifests 4 → 1, "
        "snapshots 7 → 8, 1 orphan files, 1.5 s"
    )


def test_a_status_tells_what_was_done_to_the_tables_that_belong_to_one(tmp_path, catalog):
    promises = promise(tmp_path)
    quarantine = ".".join(table_names.quarantine(promises.table("shop.orders")))
    for name in ("shop.orders", quarantine, "sluice_staging.orders", "sluice_staging.others"):
        maintenance_table.write_results(catalog, [ActionResult(name, Action.EXPIRE, "done")], run_id="r")
    maintenance_table.write_results(catalog, [ActionResult("shop.orders", Action.REWRITE, "failed")], run_id="r")
    world, status = StatusSources(catalog), Status(NOW, [])
    sources.read_sources(promises, [promises.table("shop.orders")], world, status)
    assert status.unavailable == []
    assert [(m.of, m.action, m.state) for m in world.maintained["shop.orders"]] == [
        ("", "expire_snapshots", "done"),
        ("", "rewrite_data_files", "failed"),
        (quarantine, "expire_snapshots", "done"),
        ("sluice_staging.orders", "expire_snapshots", "done"),
    ]


def test_a_table_that_can_not_be_read_stops_no_other(tmp_path, catalog):
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 2)
    Path(typed.metadata_location.removeprefix("file://")).unlink()
    found = needs(promises, catalog, Action.REWRITE)
    assert "shop.orders" not in {n.table for n in found.values() if n.error is None}
    assert str(found["shop.orders"].error).startswith("TableDamagedError: The metadata of shop.orders is gone")
    assert found["sluice_staging.orders"].error is None


def test_storage_that_fails_for_one_table_is_told_in_words_and_a_catalog_that_went_away_ends_it(tmp_path, catalog):
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 2)
    manifest = Path(typed.current_snapshot().manifest_list.removeprefix("file://"))
    manifest.unlink()
    manifest.mkdir()
    found = needs(promises, catalog, Action.REWRITE)
    assert str(found["shop.orders"].error).startswith("CatalogUnavailableError: The Iceberg catalog did not answer: ")
    assert "Next step: " in str(found["shop.orders"].error)
    assert found["sluice_staging.orders"].error is None
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE iceberg_tables")
    with pytest.raises(CatalogUnavailableError, match="did not answer: OperationalError"):
        needs(promises, catalog, Action.REWRITE)


def test_tables_that_no_time_was_left_for_come_first_the_next_time(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path)
    filled(catalog, promises, 1)
    took, look = [0.0], assess.assess_table

    def slow(*subject: Any, **named: Any) -> assess.Assessment:
        took[0] += 1
        return look(*subject, **named)

    monkeypatch.setattr(assess, "assess_table", slow)
    monkeypatch.setattr(assess, "time", SimpleNamespace(monotonic=lambda: took[0]))

    def looked(action: Action = Action.REWRITE) -> list[str]:
        found = assess.assess_tables(AssessmentInputs(catalog, promises), action, deadline=took[0] + 3.5, run_id="r")
        assert sorted(n.table for n in found) == sorted(names)
        left = [n for n in found if n.reason == assess.NOT_ASSESSED]
        assert all((n.steps, n.error) == ((), None) for n in left)
        assert found[len(found) - len(left) :] == left
        return [n.table for n in found if n not in left]

    names = [s.name for s in targets.list_targets(promises)]
    assert len(names) == 10
    assert [looked(), looked(), looked()] == [names[:4], names[4:8], [*names[8:], *names[:2]]]
    assert looked(Action.EXPIRE) == names[:4]  # each action has turns of its own
    # What waits is no effect, and has had no turn.
    assert (maintenance_table.last_attempts(catalog, Action.REWRITE), maintenance_table.last_results(catalog)) == (
        {},
        {},
    )
    waits = maintenance_table.read_results(catalog, maintenance_table.ResultFilter(action=Action.REWRITE))
    assert [(e.table, e.state, e.run_id) for e in waits] == [(names[n], "waits", "r") for n in (4, 8, 2)]
    # Where that table is gone: with the one that waited before it.
    subjects = [s for s in targets.list_targets(promises) if s.name != names[2]]
    assert targets.order_by_turn(subjects, catalog, Action.REWRITE)[0].name == names[8]


def test_a_contract_that_went_while_a_run_is_under_way_leaves_the_others_their_turn(tmp_path, catalog):
    filled(catalog, promise(tmp_path), 1)
    other = tmp_path / "contracts" / "shop.pays.yaml"

    def told() -> dict[str, tuple[str, str | None]]:
        promises = contract_folder.load_contracts(other.parent, strict=False)  # as each application reads them anew
        context = Context(None, catalog, "lake", {}, "r")
        names, past = ["shop.pays", "shop.orders"], time.monotonic() - 1
        found = maintain.maintain_tables(
            maintain.MaintenanceRun(context, promises, Action.REWRITE), names, deadline=past
        )
        assert maintenance_table.find_tables_without_result(catalog, Action.REWRITE, names, run_id="r") == []
        return {e.table: (e.state, e.reason) for e in found}

    gone = told()
    assert gone["shop.orders"][0] == "idle"  # though the time is used up: it is the first that had a turn
    assert gone["shop.pays"] == ("left", "no contract defines it any more")
    other.write_text("table: shop.pays\ntopic: pays\ngroup: shop\nowner: me\ncolums: []\n")
    broken = told()
    assert broken["shop.orders"][0] == "idle"
    assert broken["shop.pays"] == ("left", f"a contract is broken: {other}:1: columns: is required")


def test_tag_of_a_table_is_no_snapshot_to_expire(tmp_path, catalog):
    promises = promise(tmp_path, snapshot_age="1s", staging_retention="1s", min_snapshots=1)
    typed, _ = filled(catalog, promises, 2)
    refs.repair_cursor_tag(catalog, catalog.load_table("shop.orders"))
    typed = catalog.load_table("shop.orders")
    found = expiry_plan.plan_expiry(
        typed, promises.table("shop.orders").maintenance, LATER, expiry_plan.carries_published
    )
    assert typed.metadata.refs[CURSOR_TAG].snapshot_id not in {s.snapshot_id for s in found.expired}
