"""Runs Sluice's real steps on a topic with Spark, and compares the tables with every record that was sent."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.iceberg import table_names, tables
from sluice.ingest import outcome, run, settle
from sluice.ingest.context import Context
from sluice.kafka import broker as brokers
from sluice.maintain import targets
from sluice.plan import plan, resolve_topics
from sluice.plan.model import GroupPlan, PlanInputs

COLUMNS = [
    {"name": "id", "type": "string", "source": "$key"},
    {"name": "n", "type": "long"},
    {"name": "text", "type": "string"},
]
"""The columns of a contract that names none."""
FORMAT_VERSION = {"format_version": int(v)} if (v := os.environ.get("SLUICE_TEST_FORMAT_VERSION")) else {}
"""What contracts say of the format version, unless a test does: nothing, or what the environment says."""
TEXT_REQUIRED = [*COLUMNS[:2], {**COLUMNS[2], "required": True}]
"""The same, but a record without a text is quarantined."""


def record(n: int) -> dict[str, object]:
    """A record that has a value for each column."""
    return {"n": n, "text": f"record {n}"}


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@dataclass
class Lake:
    """A topic with one or more tables, on the test run's broker, catalog and Spark session."""

    spark: SparkSession
    catalog: Catalog
    bootstrap: str
    folder: Path
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:10]}")
    group: str = field(default_factory=lambda: f"g_{uuid.uuid4().hex[:8]}")
    sent: dict[int, dict[int, tuple[str | None, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admin: AdminClient = brokers.make_admin_client(self.kafka)
        self._runs = 0

    @property
    def kafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap}

    def create_topic(self, partitions: int = 2, name: str | None = None, **config: str) -> None:
        settings = {k.replace("_", "."): v for k, v in config.items()}
        topic = NewTopic(name or self.topic, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([topic])[topic.topic].result(30)
        # Kafka's controller answers before the broker has the topic.
        _wait_until(lambda: topic.topic in self.admin.list_topics(timeout=10).topics)

    def delete_topic(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(30)
        _wait_until(lambda: self.topic not in self.admin.list_topics(timeout=10).topics)

    def add_partitions(self, total: int) -> None:
        self.admin.create_partitions([NewPartitions(self.topic, total)])[self.topic].result(30)

    def delete_records(self, before: Mapping[int, int]) -> None:
        """Do what retention does: delete all records below these offsets, by partition."""
        wanted = [TopicPartition(self.topic, p, offset) for p, offset in before.items()]
        for future in self.admin.delete_records(wanted).values():
            future.result(30)

    def send(
        self,
        records: Iterable[tuple[int, str | None, Any]],
        *,
        topic: str | None = None,
        producer: Producer | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Send and remember (partition, key, value) records: a dict as JSON, None as tombstone, str and bytes as is."""
        own = producer or Producer({**self.kafka, "linger.ms": 5})
        when = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        errors: list[Any] = []

        def remember(key: str | None, value: Any) -> Any:
            def delivered(error: Any, message: Any) -> None:
                if error:
                    errors.append(error)
                elif topic is None:
                    self.sent.setdefault(message.partition(), {})[message.offset()] = (key, value)

            return delivered

        for partition, key, value in records:
            payload = json.dumps(value) if isinstance(value, dict) else value
            while True:
                try:
                    own.produce(
                        topic or self.topic,
                        payload,
                        key=key,
                        partition=partition,
                        on_delivery=remember(key, value),
                        **when,
                    )
                    break
                except BufferError:
                    own.poll(0.1)
        own.flush(60)
        assert not errors, errors

    def contract(self, **changes: Any) -> str:
        """Write a contract into the folder; return the table's name."""
        table = changes.pop("table", f"db.{self.group}_{len(list(self.folder.glob('*.yaml')))}")
        body = {
            "table": table,
            "topic": self.topic,
            "group": self.group,
            "owner": "tests",
            "mode": "append",
            "columns": COLUMNS,
            **FORMAT_VERSION,
            **changes,
        }
        # A single bad record of a test's few is too many, unless the test says otherwise.
        body["errors"] = {"max_count": 0, **body.get("errors", {})}
        if body["mode"] == "upsert":
            body.setdefault("identifier", ["id"])
        (self.folder / f"{table}.yaml").write_text(yaml.safe_dump(body))
        return table

    @property
    def contracts(self) -> contract_folder.Contracts:
        """The contracts with their patterns resolved to the existing topics, as a plan reads them."""
        return resolve_topics.resolve(contract_folder.load_contracts(self.folder), self.catalog, self.admin)

    @property
    def maintained_tables(self) -> list[str]:
        """The tables of the contracts that maintenance covers, without Sluice's own tables."""
        return [target.name for target in targets.list_targets(self.contracts) if target.group]

    def contract_of(self, table: str) -> Contract:
        return self.contracts.table(table)

    def plan(self, run_id: str = "test") -> GroupPlan:
        promises = self.contracts
        return plan.write_plan(
            promises.group(self.group), PlanInputs(promises, self.catalog, self.admin), run_id=run_id
        )

    def preview_plan(self) -> GroupPlan:
        promises = self.contracts
        return plan.make_plan(promises.group(self.group), PlanInputs(promises, self.catalog, self.admin), extend=False)

    def context(self, run_id: str = "test") -> Context:
        return Context(self.spark, self.catalog, table_names.catalog_name(), self.kafka, run_id)

    def run(self, *, seconds: float = 600.0, measure: bool = False) -> dict[str, dict[str, Any]]:
        """Run the group once (plan, stage, check, publish, settle); return settle's outcomes by table.

        Args:
            seconds: The time that the run has.
            measure: Write what it costs, as an application does at its end.
        """
        self._runs += 1
        run_id = f"{self.group}-{self._runs}"
        planned = self.plan(run_id)
        # Without Kafka, as the driver and settle resolve them.
        promises = resolve_topics.resolve(contract_folder.load_contracts(self.folder), self.catalog, None)
        group = promises.group(self.group)
        if planned.has_work:
            context = self.context(run_id)
            if measure:
                context.meter.count_catalog_calls(self.catalog)
            run.run(context, group, promises, self.admin, deadline=time.monotonic() + seconds)
            if measure:
                context.meter.write(self.catalog)
        return settle.settle(group, self.catalog, outcome.summarize_plan(planned), run_id=run_id)

    def wait_for_transactions(self) -> None:
        """Wait for the markers of all transactions: Kafka answers a commit earlier, and plans end before open ones."""
        until = time.monotonic() + 60
        while True:
            partitions = {
                TopicPartition(self.topic, p): OffsetSpec.latest()
                for p in self.admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions
            }
            ends = [
                {
                    each.partition: future.result().offset
                    for each, future in self.admin.list_offsets(partitions, isolation_level=level).items()
                }
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            ]
            if ends[0] == ends[1]:
                return
            assert time.monotonic() < until, ends
            time.sleep(0.1)

    def drain(self, table: str) -> None:
        """Run until nothing is left to do; the first run may only finish batches that are already planned or staged."""
        for _ in range(3):
            outcome = self.run()[table]
            assert outcome["state"] == "published", outcome
            if not self.preview_plan().has_work and not self.plan().has_work:
                return
        raise AssertionError("work is left after three runs")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of the typed table."""
        return self.catalog.load_table(table).scan().to_arrow().to_pylist()

    def quarantined(self, table: str) -> list[dict[str, Any]]:
        found = tables.load(self.catalog, table_names.quarantine(self.contract_of(table)))
        return found.scan().to_arrow().to_pylist() if found else []

    def assert_appended(
        self, table: str, *, without: Iterable[tuple[int, int]] = (), beside: Iterable[str] = ()
    ) -> None:
        """Assert that the table has every record that was sent exactly once, with its values.

        Args:
            table: The table.
            without: Records (partition, offset) that must not be in it.
            beside: Other topics whose records may be in it.
        """
        left_out = set(without)
        expected = {
            (p, o): (key, value)
            for p, by in self.sent.items()
            for o, (key, value) in by.items()
            if (p, o) not in left_out
        }
        rows = [row for row in self.rows(table) if row["_kafka_topic"] not in set(beside) - {self.topic}]
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for row in rows:
            at = (row["_kafka_partition"], row["_kafka_offset"])
            assert at not in found, f"doubled: {at}"
            found[at] = row
        lost, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        assert not lost and not extra, f"lost {lost[:5]} ({len(lost)}), never sent {extra[:5]} ({len(extra)})"
        for at, (key, value) in expected.items():
            assert found[at]["id"] == key and found[at]["n"] == value.get("n"), (at, found[at], value)

    def assert_published(self, table: str) -> None:
        """Assert that the table has what its mode, append or upsert, makes of all records that were sent."""
        (self.assert_folded if self.contract_of(table).upsert else self.assert_appended)(table)

    def assert_folded(self, table: str, fold: Mapping[str, Any] | None = None) -> None:
        """Assert that the table has the last value of each key that is not deleted."""
        expected = dict(fold) if fold is not None else self.fold()
        rows = {row["id"]: row["n"] for row in self.rows(table)}
        assert len(rows) == len(self.rows(table)), "a key stands twice"
        assert rows == {k: v["n"] for k, v in expected.items()}

    def fold(self) -> dict[str, Any]:
        """Return the last value by key, in offset order within a partition; deleted keys are left out."""
        state: dict[str, Any] = {}
        for by_offset in self.sent.values():
            for _, (key, value) in sorted(by_offset.items()):
                assert key is not None
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        return state
