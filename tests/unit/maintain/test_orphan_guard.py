"""Orphan clean-up never touches files of another table, on a local catalog without a JVM."""

from __future__ import annotations

import gzip
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.types import LongType, NestedField

from sluice.errors import FolderSharedError, TableDamagedError
from sluice.iceberg import table_names, tables
from sluice.ingest.context import Context
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action, ActionResult, KnownFolders
from sluice.maintain import maintain, orphan_guard, table_locations
from sluice.maintain.table_locations import TableFolders
from tests.unit.maintain.test_assess import append, filled, promise

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def clean_up(tmp_path: Path, catalog: Catalog, run_id: str | None = None) -> str:
    """What the clean-up of `shop.orders` says; where it does not stop before, it misses Spark."""
    context = Context(None, catalog, "lake", {}, run_id or str(uuid4()))  # type: ignore[arg-type]
    (effect,) = maintain.maintain_tables(
        maintain.MaintenanceRun(context, promise(tmp_path), Action.ORPHANS),
        ["shop.orders"],
        deadline=time.monotonic() + 60,
    )
    assert effect.error
    return effect.error


def test_a_folder_that_holds_another_tables_files_is_not_cleaned_up(tmp_path: Path, catalog: Catalog) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 1)
    folder = typed.location()
    assert "NoneType" in clean_up(tmp_path, catalog)

    def make(name: tuple[str, ...], **more: Any) -> None:
        for depth in range(1, len(name)):
            catalog.create_namespace_if_not_exists(name[:depth])
        catalog.create_table(name, Schema(), **more)

    # One that no contract names, as a catalog lays it out: warehouse/namespace/table.
    make(("shop", "orders", "items"), location=f"{folder}/items")
    said = clean_up(tmp_path, catalog)
    assert said.startswith("FolderSharedError")
    assert f"shop.orders.items in {folder}/items" in said and "Give each table its own folder" in said
    catalog.drop_table(("shop", "orders", "items"))
    # One whose data go there by a property; and one that was made with the same location.
    make(("shop", "pays"), properties={"write.data.path": f"{folder}/pays"})
    assert f"shop.pays in {folder}/pays" in clean_up(tmp_path, catalog)
    catalog.drop_table("shop.pays")
    make(("shop", "same"), location=folder)
    assert "FolderSharedError" in clean_up(tmp_path, catalog)
    catalog.drop_table("shop.same")
    make(("shop", "orders_too"), location=f"{folder}_too")
    assert "NoneType" in clean_up(tmp_path, catalog)


ONE = pa.table({"x": pa.array([1], pa.int64())})


def holding(catalog: Catalog, name: tuple[str, ...], **more: Any) -> Table:
    """A table with a row."""
    catalog.create_namespace_if_not_exists(name[:-1])
    table = catalog.create_table(name, Schema(NestedField(1, "x", LongType())), **more)
    table.append(ONE)
    return table


def moved(catalog: Catalog, table: Table, where: str) -> Table:
    """As ALTER TABLE … SET LOCATION does it."""
    catalog.commit_table(table, (), (SetLocationUpdate(location=where),))
    return catalog.load_table(table.name())


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("how", ["location", "write.data.path"])
def test_files_stay_where_they_were_written_before_their_table_was_sent_elsewhere(
    tmp_path: Path, catalog: Catalog, how: str, seen: bool
) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 1)
    inside, elsewhere = f"{typed.location()}/data/pays", f"file://{tmp_path}/warehouse/elsewhere"
    where: dict[str, Any] = {"location": inside} if how == "location" else {"properties": {how: inside}}
    pays = holding(catalog, ("shop", "pays"), **where)
    if seen:
        assert "shop.pays in" in clean_up(tmp_path, catalog)
    if how == "location":
        moved(catalog, pays, elsewhere)
    else:
        with pays.transaction() as change:
            change.set_properties({how: elsewhere})
    (live,) = catalog.load_table("shop.pays").scan().plan_files()
    assert live.file.file_path.startswith(inside)
    for _ in range(2):
        said = clean_up(tmp_path, catalog)
        assert said.startswith("FolderSharedError") and f"shop.pays in {inside}" in said, said
    # Under another name it is the same table; one that is made anew under the old one has no files there.
    catalog.rename_table("shop.pays", "shop.paid")
    assert f"shop.paid in {inside}" in clean_up(tmp_path, catalog)
    catalog.drop_table("shop.paid")
    holding(catalog, ("shop", "pays"), location=f"{elsewhere}/anew")
    holding(catalog, ("shop", "paid"), location=f"{elsewhere}/too")
    assert "NoneType" in clean_up(tmp_path, catalog)


def test_tables_of_all_namespaces_are_known(tmp_path: Path, catalog: Catalog) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 1)
    catalog.create_namespace("analytics")
    holding(catalog, ("analytics", "copies", "orders"), location=f"{typed.location()}/data/copy")
    assert f"analytics.copies.orders in {typed.location()}/data/copy" in clean_up(tmp_path, catalog)


def test_a_table_that_is_registered_twice_shares_its_folder(tmp_path: Path, catalog: Catalog) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 1)
    catalog.create_namespace("sandbox")
    append(catalog.register_table(("sandbox", "orders"), typed.metadata_location), 77, {})
    said = clean_up(tmp_path, catalog)
    assert said.startswith("FolderSharedError") and f"sandbox.orders in {typed.location()}" in said, said
    assert "without PURGE" in FolderSharedError.advice
    catalog.drop_table("sandbox.orders")
    assert "NoneType" in clean_up(tmp_path, catalog)


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_another_tables_files_in_a_folder_that_a_property_names_stop_as_well(
    tmp_path: Path, catalog: Catalog, name: str
) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 1)
    own = f"file://{tmp_path}/warehouse/own"
    with typed.transaction() as change:
        change.set_properties({name: own})
    assert "NoneType" in clean_up(tmp_path, catalog)
    holding(catalog, ("else", "where"), location=f"{own}/it")
    assert f"this table's folder {own}: else.where in {own}/it" in clean_up(tmp_path, catalog)


@pytest.mark.parametrize("how", ["renamed", "registered anew"])
def test_a_folder_in_which_a_table_lies_that_had_the_name_once_is_not_cleaned_up(
    tmp_path: Path, catalog: Catalog, how: str
) -> None:
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 1)
    told = json.dumps({"id": str(typed.metadata.table_uuid)})
    maintenance_table.write_results(
        catalog, [ActionResult("shop.orders", Action.REWRITE, "done", result=told)], run_id="r"
    )
    catalog.create_namespace("archive")
    catalog.create_namespace(("archive", "old"))
    if how == "renamed":
        catalog.rename_table("shop.orders", ("archive", "old", "orders"))
    else:
        catalog.drop_table("shop.orders")
        catalog.register_table(("archive", "old", "orders"), typed.metadata_location)
    made = tables.ensure_typed(catalog, promises.table("shop.orders"))
    append(made, 2, {})
    said = clean_up(tmp_path, catalog)
    assert said.startswith("FolderSharedError") and f"archive.old.orders in {typed.location()}" in said, said
    # One that is gone for good leaves orphans.
    catalog.drop_table(("archive", "old", "orders"))
    assert "NoneType" in clean_up(tmp_path, catalog)


def test_a_folder_to_which_a_table_of_another_catalog_writes_is_not_cleaned_up(
    tmp_path: Path, catalog: Catalog
) -> None:
    promises = promise(tmp_path)
    typed, _ = filled(catalog, promises, 1)
    folder = Path(typed.location().removeprefix("file://"), "metadata")
    (folder / "00001-torn.metadata.json").write_text('{"table-')
    (folder / "00001-torn.gz.metadata.json").write_bytes(gzip.compress(b'{"table-')[:-9])
    (folder / "00001-none.gz.metadata.json").write_text("{}")
    # Two at once make a table: the second leaves a file, and no table.
    other = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/other.db", warehouse=f"file://{tmp_path}/warehouse")
    empty = tables.ensure_typed(other, promises.table("shop.orders"))
    assert "NoneType" in clean_up(tmp_path, catalog)
    other.drop_table("shop.orders")
    theirs, _ = filled(other, promises, 1)
    assert (theirs.location(), empty.location()) == (typed.location(),) * 2
    said = clean_up(tmp_path, catalog)
    assert said.startswith(f"FolderSharedError: Another table, {theirs.metadata.table_uuid}, writes to this table's")
    assert ".metadata.json. [table shop.orders] Next step: Nothing was removed." in said
    # As Java writes it where that is asked for.
    (file,) = (f for f in folder.glob("*.json") if f.name == Path(theirs.metadata_location).name)
    for each in theirs.metadata.metadata_log:
        Path(each.metadata_file.removeprefix("file://")).unlink()
    file.with_name("00001-theirs.gz.metadata.json").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    assert "/00001-theirs.gz.metadata.json. [" in clean_up(tmp_path, catalog)
    # What the catalog itself had under that name is gone when it is made anew.
    result = json.dumps({"folders": [typed.location()], "id": str(theirs.metadata.table_uuid)})
    maintenance_table.write_results(
        catalog, [ActionResult("shop.orders", Action.ORPHANS, "done", result=result)], run_id="r"
    )
    assert "NoneType" in clean_up(tmp_path, catalog)


@pytest.mark.parametrize("name", [table_names.staging("orders"), ("shop", "foreign")])
def test_a_table_that_can_not_be_read_is_where_it_was_seen_last(
    tmp_path: Path, catalog: Catalog, name: tuple[str, str]
) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 1)
    damaged = catalog.create_table_if_not_exists(name, Schema())
    Path(damaged.metadata_location.removeprefix("file://")).unlink()
    # Never seen, it may lie anywhere.
    said = clean_up(tmp_path, catalog)
    assert said.startswith("TableDamagedError") and ".".join(name) in said and "Nothing was removed" in said

    def remember(*where: str, state: str = "done") -> None:
        told = json.dumps({"folders": where, "id": where[0]})  # each of a table that was made anew
        kept = ActionResult(".".join(name), Action.ORPHANS, state, seconds=60, result=told)
        maintenance_table.write_results(catalog, [kept], run_id="r")

    remember(f"{typed.location()}/data/other")
    assert "FolderSharedError" in clean_up(tmp_path, catalog)
    remember(damaged.location(), state=maintenance_table.SEEN)
    maintenance_table.write_results(
        catalog, [ActionResult(".".join(name), Action.ORPHANS, "failed")], run_id="r"
    )  # as it does from then on
    assert "NoneType" in clean_up(tmp_path, catalog)
    seen = table_locations.find_folders(promise(tmp_path), catalog, "later").unreadable
    assert [(at, each and each.folders) for at, each in seen.items()] == [(".".join(name), (damaged.location(),))]
    assert datetime.now(UTC) - seen[".".join(name)].at > timedelta(seconds=60)  # type: ignore[union-attr]


def test_tables_of_others_are_remembered_as_they_are_read(tmp_path: Path, catalog: Catalog) -> None:
    filled(catalog, promise(tmp_path), 1)
    other = catalog.create_table(("shop", "foreign"), Schema(), properties={"write.data.path": "s3://else/where"})
    before = datetime.now(UTC)
    clean_up(tmp_path, catalog, "one")
    seen = maintenance_table.read_known_folders(catalog)["shop.foreign"]
    identity = str(other.metadata.table_uuid)
    assert seen == KnownFolders((other.location(), "s3://else/where"), seen.at, identity, "one")
    assert maintenance_table.read_known_folders(catalog)[identity] == seen
    assert before < seen.at < datetime.now(UTC)
    assert "shop.foreign" not in maintenance_table.last_attempts(catalog, Action.ORPHANS)


def test_files_that_are_younger_than_what_is_known_of_a_table_may_be_its_own() -> None:
    now = datetime.now(UTC)
    damaged = {n: KnownFolders((f"s3://lake/{n}",), now - timedelta(days=days)) for n, days in (("b", 9), ("c", 2))}
    assert (
        orphan_guard.check_other_tables("a", "s3://lake/a", TableFolders({"a": ("s3://lake/a",)}, unreadable=damaged))
        == damaged["b"].at
    )
    assert orphan_guard.check_other_tables("b", "s3://lake/b", TableFolders({}, unreadable=damaged)) == damaged["c"].at
    with pytest.raises(TableDamagedError, match=r"no recorded folders .*: d\. \[table a\]"):
        orphan_guard.check_other_tables("a", "s3://lake/a", TableFolders({}, unreadable={**damaged, "d": None}))
    # A catalog may lay out `warehouse/namespace/table`.
    unread = TableFolders({}, unknown=frozenset({"shop.orders.items"}))
    assert orphan_guard.check_other_tables("shop.order", "s3://lake/shop/order", unread) is None
    with pytest.raises(FolderSharedError, match=r"shop\.orders\.items in s3://lake/shop/orders, perhaps"):
        orphan_guard.check_other_tables("shop.orders", "s3://lake/shop/orders", unread)


def fails(error: Exception) -> Table:
    raise error


def test_a_catalog_that_shows_only_some_of_its_tables(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Sluice's user may not see keeps no clean-up from its turn; what was seen before is remembered."""
    typed, _ = filled(catalog, promise(tmp_path), 1)
    holding(catalog, ("hr", "pay"))
    holding(catalog, ("lab", "it"), location=f"{typed.location()}/it")
    assert "lab.it in" in clean_up(tmp_path, catalog)
    load, tables_of = catalog.load_table, catalog.list_tables

    def refused(identifier: tuple[str, ...]) -> Table:
        if identifier[0] in ("hr", "lab"):
            raise ForbiddenError("not yours")
        return load(identifier)

    holding(catalog, ("hr", "new"))
    monkeypatch.setattr(catalog, "load_table", refused)
    found = table_locations.find_folders(promise(tmp_path), catalog, "r")
    assert (sorted(found.unreadable), found.unknown) == (["hr.pay", "lab.it"], frozenset({"hr.new"}))
    assert "lab.it in" in clean_up(tmp_path, catalog)

    # Where it only was not answered this time, it may lie anywhere.
    for error, unknown in ((OSError("AWS Error ACCESS_DENIED"), True), (OSError("away"), False), (TypeError(), True)):
        monkeypatch.setattr(catalog, "load_table", lambda name, e=error: fails(e) if name[-1] == "new" else load(name))
        assert ("hr.new" in table_locations.find_folders(promise(tmp_path), catalog, str(error)).unknown) is unknown
        assert ("no recorded folders may lie" in clean_up(tmp_path, catalog)) is not unknown
    monkeypatch.setattr(catalog, "load_table", refused)

    def lists(error: Exception, *without: str) -> None:
        def listed(namespace: Any) -> Any:
            if namespace[0] in without:
                raise error
            return tables_of(namespace)

        monkeypatch.setattr(catalog, "list_tables", listed)

    lists(ForbiddenError("not yours"), "hr")
    assert "hr.new" not in table_locations.find_folders(promise(tmp_path), catalog, "s").unknown
    # Of its own namespaces it has to know; and what went wrong otherwise may hide anything.
    lists(ForbiddenError("not yours"), "shop")
    assert "ForbiddenError" in clean_up(tmp_path, catalog)
    lists(ConnectionError("away"), "hr")
    assert "ConnectionError" in clean_up(tmp_path, catalog)


def test_tables_of_others_are_loaded_once_in_a_run_and_read_once_for_all(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(catalog, promise(tmp_path), 1)
    many = [holding(catalog, ("many", f"t{n}")) for n in range(5)]
    monkeypatch.setattr(table_locations, "CHUNK", 2)
    loaded: list[str] = []
    looked: list[str] = []
    load, files = catalog.load_table, table_locations._all_files

    def loading(identifier: tuple[str, ...]) -> Table:
        loaded.append(".".join(identifier))
        return load(identifier)

    def looking(table: Table) -> Any:
        looked.append(".".join(table.name()))
        return files(table)

    monkeypatch.setattr(catalog, "load_table", loading)
    monkeypatch.setattr(table_locations, "_all_files", looking)

    def loads(run_id: str) -> list[str]:
        loaded.clear()
        found = table_locations.find_folders(promise(tmp_path), catalog, run_id)
        assert found.readable["many.t0"] == (many[0].location(),)
        return [name for name in loaded if name.startswith("many.")]

    assert len(loads("one")) == 5 and loads("one") == []
    assert len(loads("two")) == 5
    assert [name for name in looked if name.startswith("many.")] == [f"many.t{n}" for n in range(5)]
    with many[0].transaction() as change:
        change.set_properties({"write.data.path": "s3://else/where"})
    looked.clear()
    table_locations.find_folders(promise(tmp_path), catalog, "three")
    assert looked.count("many.t0") == 1 and "many.t1" not in looked


def test_a_table_whose_manifests_can_not_be_read_is_where_its_metadata_says(tmp_path: Path, catalog: Catalog) -> None:
    typed, _ = filled(catalog, promise(tmp_path), 1)
    other = holding(catalog, ("lab", "it"), location=f"{typed.location()}/it")
    (manifest,) = other.current_snapshot().manifests(other.io)  # type: ignore[union-attr]
    Path(manifest.manifest_path.removeprefix("file://")).unlink()
    for _ in range(2):
        assert "lab.it in" in clean_up(tmp_path, catalog)
        # Without its id: so each run tries again to read all of it.
        assert maintenance_table.read_known_folders(catalog)["lab.it"].id is None


def test_whose_a_file_may_be(tmp_path: Path, catalog: Catalog) -> None:
    lake, elsewhere = f"file://{tmp_path}/lake", f"file://{tmp_path}/else"
    where = {"write.data.path": f"{elsewhere}/data/", "write.metadata.path": f"{lake}/t/meta"}
    table = holding(catalog, ("shop", "t"), location=f"{lake}/t", properties=where)
    assert orphan_guard.folders_to_list(table) == (f"{lake}/t", f"{elsewhere}/data/")
    written = "00000-5-1b4e28ba-2fa1-11d2-883f-0016d3cca427-00001.parquet"
    ours = ("lake/t/data/x", "lake/t/metadata/x", f"else/data/p=1/{written}", f"lake/t/meta/{written}")
    others = (
        "lake/t/x",
        f"lake/t/items/data/{written}",
        "else/data/x.csv",
        f"else/data_too/{written}",
        "lake/t/meta/x",
    )
    judged = [orphan_guard.may_belong_to(f"file:{tmp_path}/{path}", table) for path in (*ours, *others)]
    assert judged == [True] * 4 + [False] * 5
    # A folder in which the table's own lies is listed in its place.
    with table.transaction() as change:
        change.set_properties({"write.data.path": lake})
    assert orphan_guard.folders_to_list(table) == (lake,)


@pytest.mark.parametrize(
    ("inner", "outer", "within"),
    [
        ("s3a://lake/shop/orders/items", "s3://lake/shop/orders/", True),
        ("s3://lake/shop/orders", "s3://lake/shop/orders", True),
        ("s3://lake/shop/orders_too", "s3://lake/shop/orders", False),
        ("s3://lake/shop", "s3://lake/shop/orders", False),
        ("s3://other/shop/orders/items", "s3://lake/shop/orders", False),
        ("file:/lake/a/../b/c", "file:///lake/b", True),
        ("/lake/b#1/c", "file:///lake/b", False),
        ("hdfs:///lake/b/c", "hdfs://name:8020/lake/b", True),
        ("s3://lake/shop", "s3://lake", True),
    ],
)
def test_addresses_of_one_place(inner: str, outer: str, within: bool) -> None:
    found = TableFolders({"a": (inner,), "b": (outer,)})
    if within:
        with pytest.raises(FolderSharedError, match=r"a in .*\[table b\]"):
            orphan_guard.check_other_tables("b", outer, found)
    else:
        orphan_guard.check_other_tables("b", outer, found)
