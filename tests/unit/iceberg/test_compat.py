"""The workarounds for PyIceberg are still needed. A test that fails here says which one can go."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.types import LongType, NestedField

from sluice.iceberg import compat, own_table, tables

pytestmark = pytest.mark.unit

ROWS = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")


def make_table(catalog: Catalog) -> Table:
    return tables.ensure_table(catalog, ("ns", "t"), Schema(NestedField(1, "n", LongType())))


def test_pyiceberg_moves_a_commit_onto_a_new_snapshot_unless_its_retries_are_switched_off(catalog: Catalog) -> None:
    behind = make_table(catalog)
    catalog.load_table(("ns", "t")).append(ROWS)
    behind.append(ROWS)  # needed: it succeeds
    behind = catalog.load_table(("ns", "t"))
    catalog.load_table(("ns", "t")).append(ROWS)
    with pytest.raises(CommitFailedException):
        compat.without_commit_retries(behind).append(ROWS)
    assert "commit.retry.num-retries" not in catalog.load_table(("ns", "t")).properties
    assert len(catalog.load_table(("ns", "t")).metadata.snapshots) == 3


def test_pyiceberg_copies_all_snapshots_many_times_per_append(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(catalog)
    for _ in range(5):
        table.append(ROWS)
    copied: list[int] = []
    model_copy = TableMetadataV2.model_copy

    def counted(self: TableMetadataV2, *, deep: bool = False, **more: Any) -> TableMetadataV2:
        if deep:
            copied.append(len(self.snapshots))
        return model_copy(self, deep=deep, **more)

    monkeypatch.setattr(TableMetadataV2, "model_copy", counted)
    table.append(ROWS)
    plain = sum(copied)
    copied.clear()
    own_table.append(table, ROWS)
    assert plain > 30, "needed: each copy is of all snapshots"
    assert sum(copied) < plain / 2
    assert len(catalog.load_table(("ns", "t")).metadata.snapshots) == 7
    assert len(table.metadata.snapshots) == 6, "the caller's table stays as it was"


def test_pyiceberg_has_no_way_to_read_chosen_files_of_a_scan() -> None:
    readers = {name for name in dir(DataScan) if name.startswith(("to_", "read", "execute"))}
    assert readers == {"to_arrow", "to_arrow_batch_reader", "to_duckdb", "to_pandas", "to_polars", "to_ray"}


def test_pyicebergs_hive_catalog_has_one_connection_and_does_not_compare() -> None:
    package = importlib.util.find_spec("pyiceberg")
    assert package and package.origin
    # Read, not imported: that needs Thrift.
    source = (Path(package.origin).parent / "catalog" / "hive.py").read_text("utf-8")
    assert "self._client = self._create_hive_client(properties)" in source
    assert "open_client.alter_table_with_environment_context(" in source
    assert "expected_parameter" not in source, "needed: commits rely on the lock alone"
    assert "lock-enabled" not in source
