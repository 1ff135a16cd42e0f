"""The catalog knows who reads a topic: raw records stay for a table without a contract, until it is retired."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table

from sluice.batch import PUBLISHED_THROUGH, Batch, PublishedOffsets, encode_published_through
from sluice.cli import main
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.errors import NameCollisionError, RefusedError
from sluice.iceberg import catalog as catalogs
from sluice.iceberg import table_names, tables
from sluice.kafka import broker
from sluice.kafka.broker import TopicState
from sluice.ledger import consumers, ledger_rows
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import assess, targets
from sluice.maintain.expiry_plan import AssessmentInputs, TrimPlan
from sluice.offsets import OffsetRange
from sluice.operate import retire_consumer
from sluice.operate.operator_input import Decision
from sluice.plan import plan
from sluice.plan.model import PlanInputs

pytestmark = pytest.mark.unit

LATER = datetime.now(UTC) + timedelta(days=100)
MAINTENANCE = {"snapshot_age": "1d", "staging_retention": "2d", "min_snapshots": 1}
# A table without a contract has the defaults, of which the number of snapshots can't be less than ten.
BATCHES = 15


class World:
    """One topic, read by the tables `shop.orders` and `shop.pays`, each of which has published some batches."""

    def __init__(self, folder: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.catalog = folder, catalog
        folder.mkdir()
        state = TopicState("orders", "id", {0: OffsetRange(0, BATCHES)}, compacted=False, retention_ms=-1)
        monkeypatch.setattr(broker, "describe_topics", lambda _, topics: dict.fromkeys(topics, state))
        for name in ("shop.orders", "shop.pays"):
            self.write(name)

    def write(self, name: str, topic: str = "orders") -> None:
        body = {"table": name, "topic": topic, "group": "shop", "owner": "me", "maintenance": MAINTENANCE}
        text = yaml.safe_dump({**body, "columns": [{"name": "id", "type": "long"}]})
        (self.folder / f"{name}.yaml").write_text(text)

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.yaml").unlink()

    @property
    def contracts(self) -> Contracts:
        return contract_folder.load_contracts(self.folder)

    def plan(self) -> plan.GroupPlan:
        known = self.contracts
        return plan.write_plan(known.group("shop"), PlanInputs(known, self.catalog, None), run_id="r")

    def fill(self, **published: int) -> None:
        """Stage and settle all batches; publish so many of them into each table `shop.<name>`."""
        ledger = Ledger(self.catalog)
        contracts = {name: self.contracts.table(f"shop.{name}") for name in published}
        to = {name: tables.ensure_typed(self.catalog, contract) for name, contract in contracts.items()}
        for seq in range(1, BATCHES + 1):
            batch = Batch("orders", "id", seq, {0: OffsetRange(seq - 1, seq)}, {0: seq})
            _append(tables.ensure_staging(self.catalog, "orders"), {"sluice.step": "stage", **batch.properties()})
            for name, through in published.items():
                if seq <= through:
                    carried = encode_published_through({"orders": PublishedOffsets(seq, "id", {0: seq})})
                    _append(to[name], {**batch.properties(), PUBLISHED_THROUGH: carried})
            ledger.append(ledger_rows.plan_rows(batch, LedgerState.SETTLED), run_id="r")

    @property
    def staging(self) -> Table:
        return self.catalog.load_table(table_names.staging("orders"))

    def trim(self) -> tuple[TrimPlan | None, str]:
        """What the deletion would trim; and what the assessment says, which must be the same."""
        inputs = AssessmentInputs(self.catalog, self.contracts, LATER)
        (target,) = targets.list_targets(inputs.contracts, ["sluice_staging.orders"])
        found = assess.assess_table(target, assess.Action.EXPIRE, inputs, cleanups={})
        trim = assess.plan_trim(target, self.staging, inputs.refreshed())
        assert ("trim" in found.steps) is (trim is not None)
        if trim:
            assert f"batches {trim.first} to {trim.through} are published" in found.reason
        return trim, found.reason


def _append(table: Table, properties: dict[str, str]) -> None:
    # No rows: only what the snapshots say is asked for here.
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties=properties)


@pytest.fixture
def world(tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "contracts", catalog, monkeypatch)


def test_a_plan_records_who_reads_a_topic_and_commits_nothing_once_they_are_there(world) -> None:
    world.plan()
    assert consumers.read_consumers(world.staging) == {"shop.orders", "shop.pays"}
    world.write("shop.late")
    world.remove("shop.pays")
    assert world.plan().topics["orders"].unrecorded == ("shop.late",)
    known = world.staging
    assert consumers.read_consumers(known) == {"shop.orders", "shop.pays", "shop.late"}
    assert world.plan().topics["orders"].unrecorded == ()
    assert world.staging.metadata_location == known.metadata_location


def test_a_contract_that_is_absent_keeps_its_raw_records_until_it_is_retired(world) -> None:
    world.plan()
    world.fill(orders=BATCHES, pays=13)
    assert world.trim()[0] == TrimPlan(1, 13)
    # The deploy is half done: the contract is not there, the table is.
    world.remove("shop.pays")
    trim, reason = world.trim()
    assert trim == TrimPlan(1, 4)  # the rollback window: the last ten of its snapshots
    assert "raw records after batch 4 are kept for shop.pays" in reason and "retire-consumer shop.pays orders" in reason
    # One whose contract names another topic counts with its contract's settings.
    world.write("shop.pays", "others")
    assert world.trim()[0] == TrimPlan(1, 13)
    world.remove("shop.pays")
    _retire(world, "shop.pays")
    trim, reason = world.trim()
    assert trim == TrimPlan(1, BATCHES - 1) and "shop.pays" not in reason


def test_a_consumer_whose_offsets_are_unknown_keeps_everything_and_is_named(world) -> None:
    world.plan()
    world.fill(orders=BATCHES, pays=BATCHES)
    world.remove("shop.pays")
    metadata = Path(world.catalog.load_table("shop.pays").metadata_location.removeprefix("file://"))
    metadata.rename(metadata.with_suffix(".away"))
    trim, reason = world.trim()
    assert trim is None and "all raw records are kept for shop.pays, a recorded consumer" in reason
    assert "which can't be read: The metadata of shop.pays is gone" in reason
    metadata.with_suffix(".away").rename(metadata)
    world.catalog.drop_table("shop.pays")
    trim, reason = world.trim()
    assert trim is None and "all raw records are kept for shop.pays" in reason
    # Its snapshots in staging stay as well.
    assert f"0 of {BATCHES} snapshots can expire" in reason


def _retire(world: World, table: str, topic: str = "orders", why: str = "it is gone") -> None:
    found = retire_consumer.find_consumer(table, topic, world.contracts, world.catalog)
    retire_consumer.retire(found, world.catalog, Decision("ann", why, "retire"))


def test_what_can_not_be_retired_is_refused(world) -> None:
    world.plan()
    with pytest.raises(RefusedError, match="reads the topic"):
        _retire(world, "shop.orders")
    with pytest.raises(RefusedError, match=r"of the topic: shop\.orders, shop\.pays"):
        _retire(world, "shop.payss")
    with pytest.raises(RefusedError, match="Recorded consumers of the topic: none"):
        _retire(world, "shop.pays", "another")
    world.remove("shop.pays")
    with pytest.raises(RefusedError, match="No reason"):
        _retire(world, "shop.pays", why=" ")
    assert consumers.read_consumers(world.staging) == {"shop.orders", "shop.pays"}
    with world.staging.transaction() as change:
        change.set_properties({"sluice.topic": "Orders"})
    with pytest.raises(NameCollisionError, match=r"belongs to topic 'Orders'"):
        _retire(world, "shop.pays")


def test_the_command_previews_and_the_ledger_says_who_retired_it(world, monkeypatch, capsys) -> None:
    world.plan()
    world.remove("shop.pays")
    monkeypatch.setenv("SLUICE_CONTRACTS", str(world.folder))
    command = ["ledger", "retire-consumer", "shop.pays", "orders", "--why", "it is gone"]
    assert main.main(command) == 0
    told = capsys.readouterr().out
    assert "It has published nothing of it." in told and "Nothing was changed." in told
    assert "shop.pays" in consumers.read_consumers(world.staging)
    assert main.main([*command, "--yes"]) == 0
    assert consumers.read_consumers(world.staging) == {"shop.orders"}
    capsys.readouterr()
    assert main.main(["ledger", "show", "orders"]) == 0
    told = capsys.readouterr().out
    assert "retired" in told and "shop.pays" in told and "it is gone" in told
    assert main.main([*command, "--yes"]) == 3


def test_of_two_that_are_added_at_once_both_are_there(catalog, monkeypatch) -> None:
    staging = tables.ensure_staging(catalog, "orders")
    names = [f"shop.t{n}" for n in range(4)]
    together, failed = threading.Barrier(len(names)), []

    def add(name: str) -> None:
        own = catalogs.load()
        try:
            mine = own.load_table(staging.name())
            together.wait(10)
            consumers.record_consumers(own, mine, [name])
        except Exception as error:  # noqa: BLE001 - each is reported below
            failed.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and consumers.read_consumers(catalog.load_table(staging.name())) == set(names)
    # One that always loses says so, and one that loses once tries again.
    commit, lost = catalog.commit_table, []

    def losing(*given: Any) -> CommitTableResponse:
        lost.append(1)
        if len(lost) <= most:
            raise CommitFailedException("another writer")
        return commit(*given)

    monkeypatch.setattr(catalog, "commit_table", losing)
    most = 1
    consumers.record_consumers(catalog, staging, ["shop.more"])
    assert "shop.more" in consumers.read_consumers(catalog.load_table(staging.name()))
    most = 1_000
    with pytest.raises(CommitFailedException):
        consumers.record_consumers(catalog, staging, ["shop.never"])
