"""Rehearsals without services: which scenarios are played, what is dropped afterwards, and what the oracle finds."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.contract import Contract
from sluice.errors import ContractError, RefusedError
from sluice.rehearse import namespaces, oracle, rehearse
from sluice.rehearse.scenarios import SCENARIOS
from sluice.rehearse.table_copy import CopySource, TableCopy

pytestmark = pytest.mark.unit

BODY: dict[str, Any] = {
    "table": "shop.orders",
    "topic": ["orders", "returns"],
    "group": "shop",
    "owner": "tests",
    "columns": [{"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "long"}],
    "properties": {"write.data.path": "s3://shared/orders", "write.parquet.compression-codec": "gzip"},
}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    found = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/iceberg.db", warehouse=f"file://{tmp_path}/warehouse")
    yield found
    found.close()


def test_scenarios_are_played_in_their_order() -> None:
    assert rehearse.choose_scenarios([]) == list(SCENARIOS)
    assert rehearse.choose_scenarios(["expire", "rollback"]) == ["rollback", "expire"]
    with pytest.raises(RefusedError, match="No scenario is named earthquake") as error:
        rehearse.choose_scenarios(["earthquake", "replay"])
    assert "kill-after-stage" in str(error.value.next_step)


def fill(catalog: SqlCatalog, *identifier: str) -> str:
    data = pa.table({"n": [1]})
    for depth in range(1, len(identifier)):
        catalog.create_namespace_if_not_exists(identifier[:depth])
    table = catalog.create_table(identifier, schema=data.schema)
    table.append(data)
    return table.location().removeprefix("file://")


def test_only_what_belongs_to_the_rehearsal_is_dropped(catalog: SqlCatalog, tmp_path: Path) -> None:
    prefix, other = namespaces.prefix_of("shop.orders"), namespaces.prefix_of("shop.people")
    mine = [
        fill(catalog, f"{prefix}copy_shop", "orders"),
        fill(catalog, f"{prefix}twin_sluice", "offsets"),
        fill(catalog, f"{prefix}copy_eu", "shop", "orders"),
        fill(catalog, f"{prefix}copy_shop", "returns"),
        fill(catalog, f"{prefix}lost_shop", "orders"),
    ]
    shutil.rmtree(mine[-1])  # its drop was interrupted
    kept = [
        fill(catalog, "shop", "orders"),
        fill(catalog, "rehearsal", "orders"),
        fill(catalog, f"{other}copy_shop", "people"),
    ]
    namespaces.drop(catalog, prefix)
    assert namespaces.find(catalog, prefix) == [] and not any(Path(each).exists() for each in mine)
    assert all(list(Path(each, "data").iterdir()) for each in kept)
    assert len(catalog.list_namespaces()) == len(kept)
    for wrong in ("", "rehearsal_", "shop", f"x{prefix}"):
        with pytest.raises(ValueError, match="does not belong to a rehearsal"):
            namespaces.drop(catalog, wrong)
    with pytest.raises(ValueError, match=r"'shop[.]orders' does not belong"):
        namespaces.check(prefix, ("shop", "orders"))


def test_a_rehearsal_does_not_use_what_another_left(catalog: SqlCatalog) -> None:
    prefix = namespaces.prefix_of("shop.orders")
    fill(catalog, f"{prefix}copy_shop", "orders")
    first, again = rehearse.Request("shop.orders"), rehearse.Request("shop.orders", drop_left=True)
    with (
        pytest.raises(RefusedError, match="was not cleaned up") as error,
        rehearse._namespaces(catalog, prefix, first),
    ):
        pytest.fail("it began")
    assert "--drop-left" in str(error.value.next_step) and namespaces.find(catalog, prefix)

    def interrupt() -> None:
        with rehearse._namespaces(catalog, prefix, again):
            assert namespaces.find(catalog, prefix) == []
            fill(catalog, f"{prefix}copy_shop", "orders")
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        interrupt()
    assert namespaces.find(catalog, prefix) == []


def rows(*changes: tuple[int, int, Any]) -> oracle.Rows:
    names = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "n")
    return oracle.read_rows(pa.Table.from_pylist([dict(zip(names, ("t", *each), strict=True)) for each in changes]))


def test_the_oracle_finds_each_kind_of_difference() -> None:
    right = rows((0, 1, 10), (0, 2, 20), (1, 1, 30))
    assert oracle.compare_rows(rows((1, 1, 30), (0, 1, 10), (0, 2, 20)), right) == ""
    assert oracle.compare_rows(rows((0, 1, 10), (1, 1, 30)), right) == "1 missing (partition 0 offset 2)"
    assert oracle.compare_rows(rows((0, 1, 10), (0, 2, 20), (1, 1, 30), (1, 1, 30)), right) == (
        "1 doubled (partition 1 offset 1)"
    )
    assert oracle.compare_rows(rows((0, 1, 10), (0, 2, 21), (1, 1, 30)), right) == "1 changed (partition 0 offset 2)"
    assert oracle.compare_rows(rows((0, 1, 10), (0, 2, 20), (1, 1, 30), (1, 7, 0)), right) == (
        "1 not expected (partition 1 offset 7)"
    )
    assert oracle.compare_rows(rows((0, 1, 10), (0, 2, None), (1, 1, 30)), right) != ""
    assert oracle.checksum(right) == oracle.checksum(rows((1, 1, 30), (0, 2, 20), (0, 1, 10)))
    assert oracle.checksum(right) != oracle.checksum(rows((1, 1, 30), (0, 2, 20), (0, 1, 11)))


def test_the_oracle_finds_records_that_are_missing_or_twice_in_staging() -> None:
    want = [(0, 1), (0, 2), (1, 1)]
    assert oracle.compare_coordinates(want[::-1], want, "staging") == ""
    assert oracle.compare_coordinates(want[:2], want, "staging") == "1 missing in staging (partition 1 offset 1)"
    assert oracle.compare_coordinates([*want, (0, 1)], want, "staging") == "1 doubled in staging (partition 0 offset 1)"
    found = oracle.read_coordinates(pa.table({"_kafka_partition": [0, 0, 1], "_kafka_offset": [4, 5, 4]}), {0: 5})
    assert found == [(0, 4)]


def test_the_copy_has_its_table_alone_and_no_folder_of_another(catalog: SqlCatalog, tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "a.yaml").write_text(yaml.safe_dump({**BODY, "table": "shop.people", "topic": "people"}))
    columns = [*BODY["columns"], {"name": "at", "type": "timestamptz"}]
    whole = {**BODY, "columns": columns, "retention": {"column": "at", "keep": "9d"}}
    (folder / "b.yaml").write_text(yaml.safe_dump(whole))
    (folder / "defaults.yaml").write_text("freshness: 15m\n")
    settings = {"shop": {"pool": "big", "spark": {"driver_memory": "1g"}}, "alerts": {}}
    (folder / "groups.yaml").write_text(yaml.safe_dump(settings))
    source = CopySource(Contract.model_validate(BODY), "returns", folder, {})
    copy = TableCopy(source, catalog, "rehearsal_00000000_copy_", tmp_path / "copy")
    contract = copy.write_contract(start={0: 5}, limits={"records_per_batch": 7})
    assert (copy.table, contract.table) == ("rehearsal_00000000_copy_shop.orders", "shop.orders")
    assert (contract.topics, contract.start, contract.limits.records_per_batch) == (("returns",), {0: 5}, 7)
    assert contract.retention is None and [each.name for each in contract.columns] == ["id", "n", "at"]
    assert dict(contract.properties) == {"write.parquet.compression-codec": "gzip"}
    written = yaml.safe_load((tmp_path / "copy" / "contracts" / "groups.yaml").read_text())
    assert written == {"shop": {"spark": {"driver_memory": "1g"}}}
    assert copy.write_contract(columns=BODY["columns"][:1]).start == {0: 5}  # the limits of the copy stay
    with pytest.raises(ContractError, match="columns"):
        copy.write_contract(columns=[])
    missing = CopySource(Contract.model_validate({**BODY, "table": "shop.else"}), "returns", folder, {})
    with pytest.raises(ContractError, match=r"defines the table 'shop\.else'"):
        missing.read_contract()
