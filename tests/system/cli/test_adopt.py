"""A newcomer's way: `contract init --like` an existing table, `adopt` it, `plan`, and `offsets` for the way back."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from sluice.cli import main
from sluice.contract import folder as contract_folder
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import refs

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("sluice_env")]
FIELDS = (
    NestedField(1, "ID", IntegerType()),
    NestedField(2, "created_at", LongType()),
    NestedField(3, "amount", DoubleType()),
    NestedField(4, "loaded_by", StringType()),
)


@dataclass
class Place:
    """A topic with 15 records in each of two partitions; another writer has put the first 20 into a table."""

    admin: AdminClient
    topic: str
    table: str
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def sluice(self, *arguments: str) -> tuple[int, str]:
        code = main.main(list(arguments))
        streams = self.capsys.readouterr()
        return code, streams.out + streams.err

    def load(self) -> Table:
        return iceberg_catalog.load().load_table(self.table)

    def draft(self) -> str:
        """Draft the contract; return its text."""
        code, said = self.sluice("contract", "init", "--topic", self.topic, "--like", self.table, "--owner", "me")
        assert code == 0, said
        (file,) = self.folder.glob("*.yaml")
        return file.read_text()

    def commit_offsets(self, offset: int) -> str:
        """Commit this offset of each partition for a consumer group; return the group's name."""
        committed = [TopicPartition(self.topic, p, offset) for p in (0, 1)]
        group = f"g-{self.topic}"
        self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, committed)])[group].result(30)
        return group

    def move_main(self, snapshot_id: int) -> None:
        refs.commit(iceberg_catalog.load(), self.load(), (), (refs.set_ref("main", snapshot_id),))


@pytest.fixture
def place(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    topic, table = f"orders{uuid.uuid4().hex[:8]}", f"shop.o{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(30):
        value = {"id": n, "created_at": 1_700_000_000_000 + n, "amount": 1.5, "note": "x"}
        producer.produce(topic, json.dumps(value), partition=n % 2)
    assert producer.flush(30) == 0
    catalog = iceberg_catalog.load()
    catalog.create_namespace_if_not_exists("shop")
    made = catalog.create_table(table, Schema(*FIELDS))
    rows = [{"ID": n, "created_at": n, "amount": 1.5, "loaded_by": "job"} for n in range(20)]
    made.append(pa.Table.from_pylist(rows, schema=made.schema().as_arrow()))
    made.update_spec().add_field("ID", BucketTransform(4)).commit()
    return Place(admin, topic, table, tmp_path, capsys)


def test_a_contract_is_drafted_like_a_table_that_exists(place: Place) -> None:
    text = place.draft()
    (contract,) = contract_folder.load_contracts(place.folder).tables.values()
    assert [(c.name, str(c.type), c.source) for c in contract.columns] == [
        ("ID", "int", "id"),
        ("created_at", "long", "created_at"),
        ("amount", "double", "amount"),
        ("loaded_by", "string", "loaded_by"),
    ]
    assert contract.partition_by == ("bucket(4, ID)",) and not contract.inputs
    assert "no field of the sample has this name" in text and "no column for the field note" in text


def test_the_group_of_a_connector_is_refused(place: Place) -> None:
    place.draft()
    made, group = place.load(), place.commit_offsets(10)
    note = {"kafka.connect.offsets.control-iceberg.connect-orders": '{"0": 7}'}
    made.append(made.schema().as_arrow().empty_table(), snapshot_properties=note)
    code, said = place.sluice("adopt", place.table, "--consumer-group", group)
    assert code == 3 and "can be ahead of the table" in said and "--connector" in said


def test_a_table_is_adopted_planned_and_handed_back(place: Place) -> None:
    place.draft()
    table, before = place.table, place.load().metadata
    code, said = place.sluice("plan", "shop")
    # Nothing is staged: where the table's records begin is not known.
    assert code == 3 and "`sluice adopt`" in said and "stage " not in said
    # The broker makes its topic of groups at the first question.
    while (answer := place.sluice("adopt", table, "--consumer-group", "none"))[0] == 2:
        time.sleep(0.2)
    code, said = answer
    assert code == 3 and "has no committed offsets" in said, said

    by_group = ("adopt", table, "--consumer-group", place.commit_offsets(10))
    code, said = place.sluice(*by_group)
    assert code == 0 and "partition 1 continues at 10 (5 records to read)" in said and "Nothing was changed" in said
    assert place.load().metadata == before
    assert place.sluice(*by_group, "--yes", "--why", "moves", "--watch", "0.1")[0] == 0
    assert [row["ID"] for row in place.load().scan().to_arrow().to_pylist()] == list(range(20))
    assert place.sluice("offsets", table, "--as", "flink") == (0, "partition:0,offset:10;partition:1,offset:10\n")
    code, said = place.sluice("plan", "shop")
    assert code == 0 and '"0":[10,15]' in said
    code, said = place.sluice("adopt", table, "--offsets", json.dumps({place.topic: {"0": 5}}))
    assert code == 3 and "writes this table already" in said
    code, said = place.sluice("adopt", table, "--offsets", '{"t": {"0": -1}}')
    assert code == 64 and "does not name offsets" in said

    # Nothing of before the adoption can be published again.
    old, adopted = before.current_snapshot_id, place.load().metadata.current_snapshot_id
    assert old and adopted
    code, said = place.sluice("rollback", table, "--to-snapshot", str(old))
    assert code == 3 and "older than the table's adoption" in said
    place.move_main(old)
    code, said = place.sluice("plan", "shop")
    assert code == 3 and "rolled back to before it was adopted" in said and "stage " not in said
    place.move_main(adopted)
