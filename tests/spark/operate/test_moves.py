"""Topics and tables that move: no record is lost or doubled, and all that Sluice keeps for them moves along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from sluice.errors import RefusedError
from sluice.iceberg import catalog as catalogs
from sluice.iceberg import table_names, tables
from sluice.kafka import records
from sluice.ledger import consumers
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.operate import moved_topic, register_tables, rename_table
from sluice.operate.operator_input import Decision
from sluice.plan import plan
from sluice.plan.model import PlanInputs
from sluice.status import status
from tests.support import runbook
from tests.support.backfills import backfill_request, run_backfill
from tests.support.lake import COLUMNS, TEXT_REQUIRED, Lake, record

ORDERED = {
    "mode": "upsert",
    "deletes": "ignore",
    "order": ["n"],
    "columns": [COLUMNS[0], {**COLUMNS[1], "required": True}],
}


def fill(it: Lake, first: int, count: int = 20, topic: str | None = None) -> None:
    it.send(((n % 2, f"k{n % 6}", record(n)) for n in range(first, first + count)), topic=topic)


def read_all(it: Lake, topic: str) -> list[Any]:
    return list(records.read_to_end(it.admin, topic, {}, "test"))


def copy(it: Lake, messages: list[Any], to: str) -> None:
    """Copy records as a mirror does: with their partitions and times."""
    producer = Producer({**it.kafka, "linger.ms": 5})
    for each in messages:
        time = each.timestamp()[1]
        producer.produce(to, each.value(), key=each.key(), partition=each.partition(), timestamp=time)
    assert producer.flush(60) == 0


def test_a_topic_goes_on_under_another_name(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    log, state = it.contract(), it.contract(**ORDERED)
    fill(it, 0)
    mirror = f"{it.topic}-mirror"
    it.create_topic(3, mirror)  # with a partition more
    with pytest.raises(RefusedError, match="Nothing of the topic was read yet"):
        moved_topic.find_offsets(log, it.contracts, it.catalog, it.admin, mirror)
    it.run()
    copied = read_all(it, it.topic)
    copy(it, [copied[0]] * 3 + copied[2:-1], mirror)  # its offsets differ, and the last record is not there yet
    with pytest.raises(RefusedError, match=r"does not have the last 5 records .* in partition"):
        moved_topic.find_offsets(log, it.contracts, it.catalog, it.admin, mirror)
    copy(it, [copied[-1]], mirror)
    fill(it, 100, 6, topic=mirror)
    found = yaml.safe_load(runbook.run_command(it, "offsets TABLE --in-topic NEW_TOPIC", TABLE=log, NEW_TOPIC=mirror))
    assert found["topic"] == mirror and set(found["start"]) == {0, 1, 2}
    it.contract(table=log, **found)
    it.contract(table=state, **ORDERED, **found)
    outcomes = it.run()
    assert {each["state"] for each in outcomes.values()} == {"published"}, outcomes
    everything = [*range(20), *range(100, 106)]
    assert sorted(row["n"] for row in it.rows(log)) == everything
    assert {row["id"]: row["n"] for row in it.rows(state)} == {f"k{n % 6}": n for n in everything}


def test_a_topic_goes_on_on_another_cluster_with_its_offsets(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    it.run()
    with pytest.raises(RefusedError, match="This is the topic that was read"):
        moved_topic.compare_offsets(it.topic, it.catalog, it.admin)
    originals = read_all(it, it.topic)
    it.delete_topic()
    it.create_topic(2)
    copy(it, originals[::-1], it.topic)  # the same records in another order
    with pytest.raises(RefusedError, match=r"Partition 0 has other records at offsets 5 to 9"):
        moved_topic.compare_offsets(it.topic, it.catalog, it.admin)
    it.delete_topic()
    it.create_topic(2)
    copy(it, originals, it.topic)
    fill(it, 100)
    assert it.run()[table]["state"] == "stopped"
    shown = runbook.run_command(it, "topic moved TOPIC", TOPIC=it.topic)
    assert "partition 0: 5 records up to offset 9 are the same" in shown and "Nothing was changed" in shown
    assert it.run()[table]["state"] == "stopped"
    runbook.run_command(it, "topic moved TOPIC --why '…' --yes", TOPIC=it.topic)
    it.drain(table)
    it.assert_appended(table)
    # What compares Kafka's id with that of snapshots and slices knows of it: status, backfills, and the next move.
    (now,) = status.read_status(it.contracts, [table]).tables
    assert now.last_error is None and now.lag_records == 0
    request = backfill_request(table, {0: (0, 15), 1: (0, 15)}, origin=Origin.KAFKA)
    run_backfill(it, request)
    it.assert_appended(table)
    with pytest.raises(RefusedError, match="This is the topic that was read"):
        moved_topic.compare_offsets(it.topic, it.catalog, it.admin)


def test_a_table_is_renamed_with_all_that_belongs_to_it(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    kept = {"mode": "upsert", "columns": TEXT_REQUIRED, "errors": {"max_count": 9}}
    old = it.contract(**kept)
    fill(it, 0)
    it.send([(0, "k0", None), (0, "bad", {"n": 1})])
    it.run()
    assert len(it.quarantined(old)) == 1
    new = f"{old}_renamed"
    with pytest.raises(RefusedError, match="exists already"):
        rename_table.preview_renaming(old, old, it.contracts, it.catalog)
    assert f"rename    {old} to {new}" in runbook.run_command(it, "rename TABLE NEW_NAME", TABLE=old, NEW_NAME=new)
    runbook.run_command(it, "rename TABLE NEW_NAME --why '…' --yes", TABLE=old, NEW_NAME=new)
    assert f"renamed to {new}" in it.run()[old]["error"] and not it.catalog.table_exists(old)
    (it.folder / f"{old}.yaml").unlink()
    it.contract(table=new, **kept)
    assert it.catalog.table_exists(new) and not it.catalog.table_exists(old)
    assert consumers.read_consumers(tables.load_staging(it.catalog, it.topic)) == {new}
    assert len(it.quarantined(new)) == 1
    deletes = tables.load_deletes(it.catalog, it.contract_of(new))
    assert deletes is not None and deletes.scan().count() == 1
    fill(it, 103, 5)
    it.drain(new)
    run_backfill(it, backfill_request(new, {0: (0, 10), 1: (0, 10)}))
    found = {row["id"]: row["n"] for row in it.rows(new)}
    assert {found[f"k{n % 6}"] for n in range(103, 108)} == set(range(103, 108))
    assert "k0" not in found  # its delete is newer than the replayed records
    assert not it.catalog.table_exists((table_names.DELETES, table_names.safe_identifier(old)))
    # And back to the first name.
    rename_table.rename(
        rename_table.preview_renaming(new, old, it.contracts, it.catalog),
        it.catalog,
        Decision("ann", "back", "by hand"),
    )
    (it.folder / f"{new}.yaml").unlink()
    it.contract(table=old, **kept)
    fill(it, 203, 1)
    it.drain(old)
    assert 203 in {row["n"] for row in it.rows(old)}
    assert consumers.read_consumers(tables.load_staging(it.catalog, it.topic)) == {old}


def test_tables_are_registered_in_another_catalog(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    it.run()
    for name, value in (("TYPE", "sql"), ("URI", f"sqlite:///{tmp_path}/new.db"), ("WAREHOUSE", str(tmp_path))):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__NEW__{name}", value)
    staging = ".".join(table_names.staging(it.topic))
    shown = runbook.run_command(it, "catalog register --to NEW_CATALOG", NEW_CATALOG="new")
    assert f"register  {table}" in shown and f"register  {staging}" in shown and "sluice.offsets" in shown
    with catalogs.load("new") as other:
        assert other.list_namespaces() == []
        runbook.run_command(it, "catalog register --to NEW_CATALOG --why '…' --yes", NEW_CATALOG="new")
        for each in (table, staging, "sluice.offsets"):
            assert other.load_table(each).metadata_location == it.catalog.load_table(each).metadata_location
        planned = plan.make_plan(it.contracts.group(it.group), PlanInputs(it.contracts, other, it.admin, Ledger(other)))
        assert not planned.has_work and not planned.stops
        assert r'"why": "\u2026"' in other.load_namespace_properties("sluice")[register_tables.REGISTERED]
        # A second time there is nothing to do, and a table that differs is not replaced.
        again = register_tables.find_tables(it.contracts, it.catalog, other)
        assert not again.missing and not again.differing
        fill(it, 100)
        it.run()
        again = register_tables.find_tables(it.contracts, it.catalog, other)
        assert table in {".".join(each) for each in again.differing}
        with pytest.raises(RefusedError, match="another state"):
            register_tables.register(again, it.catalog, other, Decision("ann", "new server", "by hand"))
