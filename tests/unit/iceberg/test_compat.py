"""The workarounds for PyIceberg are still needed. A test that fails here says which one can go."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, Table
from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION, TableMetadataV2
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetPropertiesUpdate, UpgradeFormatVersionUpdate
from pyiceberg.types import LongType, NestedField

from sluice.errors import TableUnavailableError
from sluice.iceberg import compat, own_table, refs, tables

pytestmark = pytest.mark.unit

# Written by Iceberg 1.12 in Spark 4.1: deletion vectors, statistics, references, defaults and types of version 3.
BY_JAVA = json.loads((Path(__file__).parents[2] / "data" / "iceberg" / "v3.metadata.json").read_text("utf-8"))
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


def register(catalog: Catalog, folder: Path, metadata: dict[str, Any]) -> Table:
    path = folder / "00001-by-java.metadata.json"
    path.write_text(json.dumps({**metadata, "location": str(folder / "t")}))
    catalog.create_namespace("ns")
    return catalog.register_table(("ns", "t"), str(path))


def test_pyiceberg_does_not_write_version_3_by_itself(catalog: Catalog, tmp_path: Path) -> None:
    table = register(catalog, tmp_path, BY_JAVA)
    with pytest.raises(NotImplementedError, match="iceberg-python/issues/1551"):
        refs.commit(catalog, table, (), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert SUPPORTED_TABLE_FORMAT_VERSION == 2, "needed: it refuses to upgrade"
    with pytest.raises(ValueError, match="Cannot write manifest list for table version: 3"):
        write_manifest_list(3, table.io.new_output(f"{tmp_path}/list.avro"), 1, None, 1, "null")
    added = len(DATA_FILE_TYPE[3].fields) - len(DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields)
    assert added == 4, "needed: it leaves fields out of what it reads of a manifest"


def test_a_commit_keeps_each_field_that_java_wrote_in_version_3(catalog: Catalog, tmp_path: Path) -> None:
    compat.with_version_3(catalog)
    table = register(catalog, tmp_path, BY_JAVA)
    before = json.loads(Path(table.metadata_location).read_text("utf-8"))
    drop = RemoveSnapshotRefUpdate(ref_name="tg")
    refs.commit(catalog, table, (), (SetPropertiesUpdate(updates={"a": "b"}), drop))
    after = json.loads(Path(catalog.load_table(("ns", "t")).metadata_location).read_text("utf-8"))
    assert after.pop("last-updated-ms") > before.pop("last-updated-ms")
    assert after.pop("metadata-log")[:-1] == before.pop("metadata-log")
    del before["refs"]["tg"]
    before["properties"]["a"] = "b"
    for schema in before["schemas"]:
        schema["identifier-field-ids"] = []
    assert after == before


@pytest.mark.parametrize(
    ("at", "field"),
    [
        ((), "encryption-keys"),
        (("snapshots", 0), "key-id"),
        (("schemas", 0, "fields", 0), "later"),
        (("statistics", 0), "later"),
    ],
)
def test_a_commit_that_would_lose_a_field_is_refused(
    catalog: Catalog, tmp_path: Path, at: tuple[str | int, ...], field: str
) -> None:
    compat.with_version_3(catalog)
    metadata = json.loads(json.dumps(BY_JAVA))
    place = metadata
    for step in at:
        place = place[step]
    place[field] = [{"key-id": "k"}] if field == "encryption-keys" else "k"
    table = register(catalog, tmp_path, metadata)
    path = ".".join([*(step for step in at if isinstance(step, str)), field])
    with pytest.raises(TableUnavailableError, match=f"PyIceberg would drop these fields .*: {path}"):
        refs.commit(catalog, table, (), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert catalog.load_table(("ns", "t")).metadata_location == table.metadata_location


def test_an_upgraded_table_keeps_its_rows_and_gives_them_ids(catalog: Catalog) -> None:
    compat.with_version_3(catalog)
    make_table(catalog).append(ROWS)
    table = catalog.load_table(("ns", "t"))
    refs.commit(catalog, table, (), (UpgradeFormatVersionUpdate(format_version=3),))
    ids = []
    for _ in range(2):
        table = catalog.load_table(("ns", "t"))
        head = table.metadata.current_snapshot_id
        with table.transaction() as transaction:
            compat.add_empty_snapshot(transaction, {"why": "test"})
        now = catalog.load_table(("ns", "t"))
        made = now.current_snapshot()
        assert made is not None and made.summary is not None
        ids.append((made.first_row_id, made.added_rows, now.metadata.next_row_id))  # type: ignore[union-attr]
        assert (made.parent_snapshot_id, made.summary["why"]) == (head, "test")
        assert made.summary["total-records"] == "1"
        assert now.scan().to_arrow().to_pylist() == [{"n": 1}]
    assert (now.format_version, ids) == (3, [(0, 1, 1), (1, 0, 1)])


def test_pyicebergs_hive_catalog_has_one_connection_and_does_not_compare() -> None:
    package = importlib.util.find_spec("pyiceberg")
    assert package and package.origin
    # Read, not imported: that needs Thrift.
    source = (Path(package.origin).parent / "catalog" / "hive.py").read_text("utf-8")
    assert "self._client = self._create_hive_client(properties)" in source
    assert "open_client.alter_table_with_environment_context(" in source
    assert "expected_parameter" not in source, "needed: commits rely on the lock alone"
    assert "lock-enabled" not in source
