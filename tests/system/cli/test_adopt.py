"""A newcomer's way: `contract init --like` an existing table, `adopt` it, `plan`, and `offsets` for the way back."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from sluice.cli import main
from sluice.contract import folder as contract_folder
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.iceberg import catalog as iceberg_catalog

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("sluice_env")]
FIELDS = (
    NestedField(1, "ID", IntegerType()),
    NestedField(2, "created_at", LongType()),
    NestedField(3, "amount", DoubleType()),
    NestedField(4, "loaded_by", StringType()),
)


def test_a_table_is_drafted_adopted_planned_and_handed_back(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, name = f"orders{uuid.uuid4().hex[:8]}", f"o{uuid.uuid4().hex[:8]}"
    table = f"shop.{name}"
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
    made.refresh()

    def sluice(*arguments: str) -> tuple[int, str]:
        code = main.main(list(arguments))
        streams = capsys.readouterr()
        return code, streams.out + streams.err

    group = ("--consumer-group", f"g-{topic}")
    assert sluice("contract", "init", "--topic", topic, "--like", table, "--owner", "me")[0] == 0
    (contract,) = contract_folder.load_contracts(tmp_path).tables.values()
    assert [(c.name, str(c.type), c.source) for c in contract.columns] == [
        ("ID", "int", "id"),
        ("created_at", "long", "created_at"),
        ("amount", "double", "amount"),
        ("loaded_by", "string", "loaded_by"),
    ]
    assert contract.partition_by == ("bucket(4, ID)",) and not contract.inputs
    text = (tmp_path / f"{name}.yaml").read_text()
    assert "no field of the sample has this name" in text and "no column for the field note" in text

    # The broker makes its topic of groups at the first question.
    while (answer := sluice("adopt", table, *group))[0] == 2:
        time.sleep(0.2)
    code, said = answer
    assert code == 3 and "has no committed offsets" in said, said
    committed = [TopicPartition(topic, p, 10) for p in (0, 1)]
    asked = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(f"g-{topic}", committed)])
    asked[f"g-{topic}"].result(30)
    code, said = sluice("adopt", table, *group)
    assert code == 0 and "partition 1 continues at 10 (5 records to read)" in said and "Nothing was changed" in said
    assert catalog.load_table(table).metadata == made.metadata
    assert sluice("adopt", table, *group, "--yes", "--why", "moves", "--watch", "0.1")[0] == 0
    assert [row["ID"] for row in catalog.load_table(table).scan().to_arrow().to_pylist()] == list(range(20))
    (at,) = sluice("offsets", table, "--as", "flink")[1].splitlines()
    assert at == "partition:0,offset:10;partition:1,offset:10"
    code, said = sluice("plan", contract.group)
    assert code == 0 and "10" in said
    code, said = sluice("adopt", table, "--offsets", json.dumps({topic: {"0": 5}}))
    assert code == 3 and "writes this table already" in said
    code, said = sluice("adopt", table, "--offsets", '{"t": {"0": -1}}')
    assert code == 64 and "does not name offsets" in said
