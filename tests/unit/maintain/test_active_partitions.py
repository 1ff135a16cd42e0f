"""A rewrite leaves out partitions that are still written to, on real metadata without a JVM."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.iceberg import tables
from sluice.ledger.maintenance_table import Action
from sluice.maintain import active_partitions, assess, file_stats
from sluice.maintain.active_partitions import TimePartitionField
from sluice.maintain.assess import Assessment
from sluice.maintain.expiry_plan import AssessmentInputs

pytestmark = pytest.mark.unit

NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=2)
TYPES = {"date": DateType(), "timestamp": TimestampType(), "timestamptz": TimestamptzType()}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def promise(tmp_path: Path, kind: str = "timestamptz", partition: str = "day(at)", **maintenance: object) -> Contracts:
    folder = tmp_path / "contracts"
    folder.mkdir(exist_ok=True)
    settings = {"min_input_files": 3, **maintenance}
    (folder / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\n"
        f"columns: [{{name: id, type: long}}, {{name: at, type: {kind}}}]\npartition_by: ['{partition}']\n"
        f"maintenance: {{{', '.join(f'{k}: {v}' for k, v in settings.items())}}}\n"
    )
    return contract_folder.load_contracts(folder)


def append(table: Table, at: date | None, files: int = 1) -> None:
    """Files of the partition that holds a moment, each by a commit of its own; nobody reads them."""
    (field,) = table.spec().fields
    source = table.schema().find_field(field.source_id)
    if at is None or source.name != "at":
        raw = None if at is None else 1
    elif isinstance(at, datetime):
        raw = (at.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    else:
        raw = (at - date(1970, 1, 1)).days
    value = field.transform.transform(source.field_type)(raw)
    for _ in range(files):
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{table.location()}/data/{uuid.uuid4()}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(value),
            record_count=1,
            file_size_in_bytes=1000,
        )
        file.spec_id = table.spec().spec_id
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as commit:
            commit.append_data_file(file)


def need(promises: Contracts, catalog: Catalog, now: datetime) -> Assessment:
    found = assess.assess_tables(AssessmentInputs(catalog, promises, now), Action.REWRITE)
    return next(n for n in found if n.table == "shop.orders")


def test_a_partition_waits_until_nothing_was_written_into_it_for_a_while(tmp_path, catalog):
    promises = promise(tmp_path)
    table = tables.ensure_typed(catalog, promises.table("shop.orders"))
    append(table, datetime(2024, 3, 1, 23, 59, tzinfo=UTC), 4)
    found = need(promises, catalog, NOW)
    assert found.steps == ()
    assert found.reason.endswith("1 partition skipped: still written to")
    found = need(promises, catalog, LATER)
    assert (found.steps, found.where) == (("files",), None)


def test_what_is_still_written_to_is_left_out_of_the_filter(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path)
    table = tables.ensure_typed(catalog, promises.table("shop.orders"))
    for day in (1, 2, 5):
        append(table, datetime(2024, 3, day, tzinfo=UTC), 3)
    append(table, None, 3)
    old = {s.snapshot_id for s in catalog.load_table("shop.orders").metadata.snapshots}
    append(table, datetime(2024, 3, 6, tzinfo=UTC), 3)
    # What came last is younger by two hours.
    read = file_stats.read_files

    def aged(found: Table, **named: object) -> file_stats.TableFiles:
        snapshots = [
            s if s.snapshot_id not in old else s.model_copy(update={"timestamp_ms": s.timestamp_ms - 7_200_000})
            for s in found.metadata.snapshots
        ]
        metadata = found.metadata.model_copy(update={"snapshots": snapshots})
        return read(Table(found.name(), metadata, found.metadata_location, found.io, catalog), **named)  # type: ignore

    monkeypatch.setattr(file_stats, "read_files", aged)
    found = need(promises, catalog, NOW)
    assert found.steps == ("files",)
    assert found.reason.startswith("12 small files of ")
    assert "in 4 partitions; 1 partition skipped: still written to" in found.reason
    assert found.where == (
        "(`at` >= TIMESTAMP_LTZ'2024-03-01 00:00:00+00:00' AND `at` < TIMESTAMP_LTZ'2024-03-03 00:00:00+00:00') OR "
        "(`at` >= TIMESTAMP_LTZ'2024-03-05 00:00:00+00:00' AND `at` < TIMESTAMP_LTZ'2024-03-06 00:00:00+00:00') OR "
        "`at` IS NULL"
    )


def test_a_partition_that_is_never_left_alone_is_rewritten_once_it_is_overfull(tmp_path, catalog):
    promises = promise(tmp_path, min_input_files=2)
    table = tables.ensure_typed(catalog, promises.table("shop.orders"))
    day = datetime(2024, 3, 1, tzinfo=UTC)
    append(table, day, 2 * active_partitions.OVERFULL - 1)
    assert need(promises, catalog, NOW).steps == ()
    append(table, day)
    assert "files" in need(promises, catalog, NOW).steps


def test_many_partitions_are_taken_a_hundred_at_a_time_the_fullest_first(tmp_path, catalog, monkeypatch):
    promises = promise(tmp_path, min_input_files=2)
    monkeypatch.setattr(active_partitions, "MAX_VALUES", 2)
    table = tables.ensure_typed(catalog, promises.table("shop.orders"))
    for day, files in ((1, 2), (2, 4), (3, 3)):
        append(table, datetime(2024, 3, day, tzinfo=UTC), files)
    found = need(promises, catalog, LATER)
    assert found.reason.startswith("7 small files of ")
    assert found.where
    assert "2024-03-02" in found.where
    assert "2024-03-01" not in found.where


@pytest.mark.parametrize("partition", ["id", "bucket(4, id)"])
def test_tables_that_are_not_partitioned_by_time_are_rewritten_as_a_whole(tmp_path, catalog, partition):
    promises = promise(tmp_path, partition=partition)
    append(tables.ensure_typed(catalog, promises.table("shop.orders")), NOW, 3)
    found = need(promises, catalog, NOW)
    assert (found.steps, found.where) == (("files",), None)


@pytest.mark.parametrize(
    ("kind", "partition", "at", "says"),
    [
        ("date", "at", date(2024, 2, 29), "(`at` >= DATE'2024-02-29' AND `at` < DATE'2024-03-01')"),
        ("date", "day(at)", date(1969, 12, 31), "(`at` >= DATE'1969-12-31' AND `at` < DATE'1970-01-01')"),
        ("date", "month(at)", date(1969, 12, 31), "(`at` >= DATE'1969-12-01' AND `at` < DATE'1970-01-01')"),
        (
            "timestamp",
            "year(at)",
            datetime(1968, 5, 5),  # noqa: DTZ001
            "(`at` >= TIMESTAMP_NTZ'1968-01-01 00:00:00' AND `at` < TIMESTAMP_NTZ'1969-01-01 00:00:00')",
        ),
        (
            "timestamptz",
            "hour(at)",
            datetime(2024, 2, 29, 23, 30, tzinfo=UTC),
            "(`at` >= TIMESTAMP_LTZ'2024-02-29 23:00:00+00:00' AND `at` < TIMESTAMP_LTZ'2024-03-01 00:00:00+00:00')",
        ),
        # The last day of all has no end that a literal can say.
        ("date", "year(at)", date(9999, 12, 31), "(`at` >= DATE'9999-01-01')"),
    ],
)
def test_a_value_of_the_partition_becomes_a_range_of_its_column(tmp_path, catalog, kind, partition, at, says):
    promises = promise(tmp_path, kind, partition)
    table = tables.ensure_typed(catalog, promises.table("shop.orders"))
    append(table, at)
    table = catalog.load_table("shop.orders")
    clock = active_partitions.find_time_field(table)
    (key,) = file_stats.read_files(table, target=1 << 27, delete_ratio=0.3).partitions
    assert clock
    assert active_partitions.build_filter(clock, [active_partitions._period(key, clock)]) == says


@pytest.mark.parametrize("unit", ["year", "month", "day", "hour"])
@pytest.mark.parametrize("value", [10**9, -(10**9)])
def test_a_time_beyond_all_literals_selects_too_much_and_never_fails(unit, value):
    assert (
        active_partitions.build_filter(TimePartitionField(0, "a`b", unit, TYPES["timestamptz"]), [value])
        == "(`a``b` IS NOT NULL)"
    )
