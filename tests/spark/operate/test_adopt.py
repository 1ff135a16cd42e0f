"""A table that another writer has filled is continued by Sluice at the writer's offsets, and handed back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from pyspark.sql import functions as F

from sluice.backfill import backfill_plan
from sluice.backfill.ranges import Request
from sluice.errors import FencedError, RefusedError, SchemaChangeError
from sluice.ledger.offsets_table import Ledger
from sluice.operate import adopt, hand_over, previous_writer
from sluice.operate.operator_input import Decision
from sluice.operate.previous_writer import PreviousWriter
from sluice.plan.model import PlanInputs
from tests.support import runbook
from tests.support.lake import Lake, record

DECISION = Decision("ann", "moves to Sluice", "adopt by ann")


def _stream(it: Lake, table: str, checkpoint: Path, **options: str) -> None:
    """A Structured Streaming query by hand: it reads all that is there, and ends."""
    source = it.spark.readStream.format("kafka").option("kafka.bootstrap.servers", it.bootstrap)
    source = source.option("subscribe", it.topic).options(**{"startingOffsets": "earliest", **options})
    parsed = F.from_json(F.col("value").cast("string"), "n long, text string").alias("v")
    rows = source.load().select(F.col("key").cast("string").alias("id"), parsed).select("id", "v.*")
    query = rows.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.toTable(f"lake.{table}").awaitTermination()


def _create(it: Lake, table: str, key: str = "string") -> None:
    it.spark.sql(f"CREATE TABLE lake.{table} (id {key}, n bigint, text string) USING iceberg")


def _preview(it: Lake, table: str, writer: PreviousWriter) -> adopt.Adoption:
    return adopt.preview_adoption(table, PlanInputs(it.contracts, it.catalog, it.admin), writer)


def _send(it: Lake, first: int, end: int) -> None:
    it.send((n % 2, f"k{n}", record(n)) for n in range(first, end))


def _numbers(it: Lake, table: str) -> list[int]:
    return sorted(row["n"] for row in it.rows(table))


def test_a_streaming_query_is_continued_and_goes_on_again(lake: Callable[..., Lake], tmp_path: Path) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    _create(it, table)
    checkpoint = tmp_path / "checkpoint"
    for first in (0, 60):
        _send(it, first, first + 60)
        _stream(it, table, checkpoint)
    # The state that a kill leaves after the commit to the table, and before the one to the checkpoint.
    (checkpoint / "commits" / "1").unlink()
    _send(it, 120, 160)
    assert isinstance(it.preview_plan().stops[table], SchemaChangeError)

    def read() -> PreviousWriter:
        return previous_writer.read_checkpoint(it.catalog.load_table(table), str(checkpoint), it.catalog.properties)

    names = {"TABLE": table, "FOLDER": str(checkpoint)}
    told = runbook.run_command(it, "adopt TABLE --checkpoint FOLDER", **names)
    assert "partition 0 continues at 60 (20 records to read)" in told and "Nothing was changed" in told
    facts = runbook.run_command(it, "adopt TABLE --checkpoint FOLDER", "--json", **names)
    assert json.loads(facts)["offsets"] == {it.topic: {"0": 60, "1": 60}}
    adopt.adopt(_preview(it, table, read()), it.catalog, DECISION)
    assert it.catalog.load_table(table).properties["sluice.contract-version"] == "1"
    it.drain(table)
    assert _numbers(it, table) == list(range(160))
    assert Counter(row["_kafka_offset"] is None for row in it.rows(table)) == {True: 120, False: 40}

    with pytest.raises(RefusedError, match="writes this table already"):
        _preview(it, table, read())
    inputs = PlanInputs(it.contracts, it.catalog, it.admin, Ledger(it.catalog))
    with pytest.raises(RefusedError, match="Another writer filled the table below offset 60"):
        backfill_plan.plan_backfill(Request(table, ranges={0: (10, 70)}), inputs)

    offsets = {form: runbook.run_command(it, f"offsets TABLE --as {form}", TABLE=table) for form in hand_over.FORMS}
    assert offsets["group"] == f"{it.topic},0,80\n{it.topic},1,80\n"
    assert [each["offset"] for each in json.loads(offsets["connect"])["offsets"]] == [{"kafka_offset": 80}] * 2
    assert offsets["flink"] == "partition:0,offset:80;partition:1,offset:80\n"
    _send(it, 160, 170)
    _stream(it, table, tmp_path / "back", startingOffsets=offsets["spark"])
    assert _numbers(it, table) == list(range(170))
    # Sluice would add the same records once more.
    stopped = it.run()[table]
    assert "OtherWriterError" in str(stopped) or "was adopted" in stopped["error"], stopped
    assert _numbers(it, table) == list(range(170))


def test_a_consumer_group_is_continued_by_key(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert", deletes="tombstone")
    _create(it, table)
    _send(it, 0, 40)
    base = it.catalog.load_table(table)
    reader = Consumer({**it.kafka, "group.id": f"job-{it.topic}", "auto.offset.reset": "earliest"})
    reader.subscribe([it.topic])
    rows: list[dict[str, Any]] = []
    while len(rows) < 40:
        if (message := reader.poll(10)) is not None:
            assert not message.error()
            rows.append({"id": message.key().decode(), **json.loads(message.value())})
    base.append(pa.Table.from_pylist(rows, schema=base.schema().as_arrow()))
    reader.commit(asynchronous=False)

    def read() -> PreviousWriter:
        return previous_writer.read_consumer_group(it.admin, f"job-{it.topic}")

    with pytest.raises(RefusedError, match="has members"):
        read()
    reader.close()
    found = _preview(it, table, read())
    assert "column  identifies rows by id" in found.lines()

    twice = it.catalog.load_table(table)
    twice.append(twice.scan(limit=1).to_arrow())
    with pytest.raises(FencedError):  # the writer has written since
        adopt.adopt(found, it.catalog, DECISION)
    with pytest.raises(RefusedError, match="1 rows have a key that another row has"):
        _preview(it, table, read())
    it.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {found.staged.table.metadata.current_snapshot_id})")
    names = {"TABLE": table, "GROUP": f"job-{it.topic}"}
    assert "identifies rows by id" in runbook.run_command(it, "adopt TABLE --consumer-group GROUP", **names)
    told = runbook.run_command(it, "adopt TABLE --consumer-group GROUP --why '…' --yes", "--watch", "0.1", **names)
    assert "Adopted" in told

    it.send([(0, "k0", None), (1, "k1", record(1001)), (1, "k41", record(41))])
    it.drain(table)
    it.assert_folded(table)
    assert len(it.rows(table)) == 40
    # Another engine writes to the table.
    it.spark.sql(f"INSERT INTO lake.{table} (id, n, text) VALUES ('other', 1, 'x')")
    it.send([(0, "k2", record(1002))])
    (warning,) = it.plan().warnings
    assert "added-records 1; engine-name spark" in str(warning)
    for policy, state in (("stop", "failed"), ("allow", "published")):
        it.contract(table=table, mode="upsert", deletes="tombstone", other_writers=policy)
        assert it.run()[table]["state"] == state
    it.assert_folded(table, {**it.fold(), "other": {"n": 1}})
    # Offsets that staging does not know as a batch's end can't be adopted for a second table of the topic.
    other = it.contract()
    _create(it, other)
    with pytest.raises(RefusedError, match="no staged batch ends at"):
        _preview(it, other, PreviousWriter("hand", {it.topic: {0: 5, 1: 5}}))
    ends = {p: max(by) + 1 for p, by in it.sent.items()}
    found = _preview(it, other, PreviousWriter("hand", {it.topic: ends}))
    assert all("(0 records to read)" in line for line in found.lines() if line.startswith("offset"))
