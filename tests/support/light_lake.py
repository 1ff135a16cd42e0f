"""A topic and its table on a real broker and catalog without Spark: PyIceberg commits what Spark would commit."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyiceberg.catalog import Catalog

from sluice.batch import PUBLISHED_THROUGH, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.contract import folder as contract_folder
from sluice.iceberg import cursor, table_names, tables
from sluice.kafka import broker as brokers
from sluice.ledger.offsets_table import Ledger
from sluice.plan import model, plan
from sluice.status import status
from sluice.status.model import TableStatus


@dataclass
class LightLake:
    """A topic and a table, with methods that do the work of the steps and write the same snapshot summaries."""

    folder: Path
    bootstrap: str
    catalog: Catalog
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:8]}")
    timestamps: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admin = brokers.make_admin_client({"bootstrap.servers": self.bootstrap})
        self.create_topic()
        self.contract()

    def create_topic(self) -> None:
        self.admin.create_topics([NewTopic(self.topic, num_partitions=2)])[self.topic].result(30)

    def contract(self, **changes: Any) -> None:
        body = {
            "table": "db.events",
            "topic": self.topic,
            "group": "events",
            "owner": "tests",
            "columns": [{"name": "n", "type": "long"}],
            "limits": {"records_per_batch": 1000},
            "freshness": "15m",
            **changes,
        }
        (self.folder / f"{body['table']}.yaml").write_text(yaml.safe_dump(body))

    @property
    def contracts(self) -> contract_folder.Contracts:
        return contract_folder.load_contracts(self.folder)

    def send(self, partition: int, count: int, *, age_s: float = 0.0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        at = int((time.time() - age_s) * 1000)

        def delivered(error: Any, message: Any) -> None:
            assert error is None
            self.timestamps[message.partition(), message.offset()] = at

        for n in range(count):
            producer.produce(self.topic, json.dumps({"n": n}), partition=partition, timestamp=at, on_delivery=delivered)
        assert producer.flush(30) == 0

    def plan(self) -> model.GroupPlan:
        contracts = self.contracts
        return plan.write_plan(
            contracts.group("events"), model.PlanInputs(contracts, self.catalog, self.admin), run_id="test"
        )

    def preview_plan(self) -> model.GroupPlan:
        contracts = self.contracts
        found = tables.load(self.catalog, table_names.LEDGER)
        ledger = Ledger(self.catalog, found) if found else None
        return plan.make_plan(contracts.group("events"), model.PlanInputs(contracts, self.catalog, self.admin, ledger))

    def _records(self, batch: Batch) -> list[dict[str, Any]]:
        return [
            {
                "batch_seq": batch.seq,
                "_kafka_topic": batch.topic,
                "_kafka_partition": p,
                "_kafka_offset": o,
                "_kafka_timestamp": datetime.fromtimestamp(self.timestamps[p, o] / 1000, UTC),
                "n": o,
            }
            for p, r in batch.ranges.items()
            for o in range(r.start, r.end)
        ]

    def stage(self, batch: Batch) -> None:
        self._commit(tables.ensure_staging(self.catalog, self.topic), batch, {STEP: "stage", **batch.properties()})

    def publish(self, batch: Batch, table: str = "db.events") -> int:
        target = tables.ensure_typed(self.catalog, self.contracts.table(table))
        through = {
            **cursor.read_table_cursor(target),
            batch.topic: PublishedOffsets(batch.seq, batch.topic_id, batch.next_offsets),
        }
        carried = {STEP: "publish", **batch.properties(), PUBLISHED_THROUGH: encode_published_through(through)}
        return self._commit(target, batch, carried)

    def _commit(self, table: Any, batch: Batch, properties: dict[str, str]) -> int:
        schema = table.schema().as_arrow()
        names = set(schema.names)
        rows = [{k: v for k, v in r.items() if k in names} for r in self._records(batch)]
        table.append(pa.Table.from_pylist(rows, schema=schema), snapshot_properties=properties)
        return int(table.current_snapshot().snapshot_id)

    def status(self) -> TableStatus:
        return status.read_status(self.contracts, ["db.events"]).tables[0]


def only_batch(found: model.GroupPlan, topic: str) -> Batch:
    (batch,) = found.topics[topic].to_stage
    return batch
