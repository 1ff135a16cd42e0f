"""Whose files lie in whose folder, by an Iceberg catalog in a file and no JVM."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema

from sluice import folders, maintain, tables
from sluice.commit import Context
from sluice.errors import FolderSharedError
from sluice.upkeep import Action
from tests.unit.test_assess import filled, promise

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def clean_up(tmp_path: Path, catalog: Catalog) -> str:
    """What the clean-up of `shop.orders` says; where it does not stop before, it misses Spark."""
    context = Context(None, catalog, "lake", {}, "r")  # type: ignore[arg-type]
    (effect,) = maintain.run(
        context, Action.ORPHANS, ["shop.orders"], promise(tmp_path), deadline=time.monotonic() + 60
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
    assert f"shop.orders.items in {folder}/items" in said and "folder of its own" in said
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


def test_a_table_that_can_not_be_read_may_lie_anywhere(tmp_path: Path, catalog: Catalog) -> None:
    filled(catalog, promise(tmp_path), 1)
    staging = catalog.load_table(tables.staging("orders"))
    Path(staging.metadata_location.removeprefix("file://")).unlink()
    assert clean_up(tmp_path, catalog).startswith("TableDamagedError")


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
    found = {"a": (inner,), "b": (outer,)}
    if within:
        with pytest.raises(FolderSharedError, match=r"a in .*\[table b\]"):
            folders.check_own("b", outer, found)
    else:
        folders.check_own("b", outer, found)
