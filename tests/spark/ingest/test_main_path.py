"""Ingestion without faults: append and upsert tables, several tables and batches, time transforms."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Producer

from sluice import timestamps
from sluice.batch import CURSOR_TAG, PUBLISHED_THROUGH, Batch
from sluice.cli import main
from sluice.cli.contract import sample_test
from sluice.errors import FencedError
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ingest import librdkafka_source
from sluice.ingest.publish import publish
from sluice.ingest.stage import read_from_kafka, to_staging_rows
from sluice.ingest.staged_batches import StagedBatches
from sluice.kafka import broker, java_settings
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange
from sluice.pages import quarantine_summary
from sluice.plan.risk import RiskKind
from sluice.usage import costs_table, process_cpu
from tests.support import runbook
from tests.support.faults import PausedCall, StepThread
from tests.support.lake import COLUMNS, Lake, record

pytestmark = pytest.mark.usefixtures("generated_code")


def test_appended_records_land_once_in_several_batches(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(3)
    limits = {"records_per_batch": 100}
    table = it.contract(limits=limits, doc="All 'records'")
    it.send((n % 3, f"k{n}", record(n)) for n in range(250))
    began, cpu = datetime.now(UTC), driver_cpu_seconds(it)
    first = it.run(measure=True)[table]
    cost_rows_match_what_was_done(it, table, began, driver_cpu_seconds(it) - cpu)
    assert (first["state"], first["records"], first["rejected"]) == ("published", 250, 0)
    assert first["batches"] == {it.topic: [1, 2, 3]}
    it.assert_appended(table)
    documented = [{**COLUMNS[0], "doc": "The record's key"}, *COLUMNS[1:]]
    it.contract(table=table, limits=limits, doc="All 'records' of ours", freshness="15m", columns=documented)
    it.send((n % 3, f"k{n}", record(n)) for n in range(250, 300))
    second = it.run()[table]
    assert second["batches"] == {it.topic: [4]}
    assert second["contract"]["properties"]["sluice.contract-version"] == "2"
    # Spark's readers see what the contract says.
    told = {row[0]: row for row in it.spark.sql(f"DESCRIBE TABLE EXTENDED lake.{table}").collect()}
    assert told[COLUMNS[0]["name"]]["comment"] == "The record's key"
    assert told["Comment"][1] == "All 'records' of ours"
    promised = ("sluice.contract-version=2", "sluice.deletes=none", "sluice.freshness=15m", "sluice.owner=tests")
    assert all(each in told["Table Properties"][1] for each in promised)
    it.assert_appended(table)
    assert not it.plan().has_work
    # No raw bytes stand in metadata, which outlives them.
    staging = it.catalog.load_table(table_names.staging(it.topic))
    raw = {staging.schema().find_field(name).field_id for name in ("key", "value")}
    bounds = [task.file.lower_bounds or {} for task in staging.scan().plan_files()]
    assert bounds and all(each and not raw & each.keys() for each in bounds)


def driver_cpu_seconds(it: Lake) -> float:
    """CPU seconds of the test's process and of its JVM."""
    jvm = it.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return process_cpu.own_cpu_seconds() + process_cpu.read_cpu_seconds(jvm)


def cost_rows_match_what_was_done(it: Lake, table: str, began: datetime, cpu: float) -> None:
    rows = {row.step: row for row in costs_table.read_costs(it.catalog, began)}
    assert sorted(rows) == ["application", "check", "publish", "stage"]
    stage, published = rows["stage"], rows["publish"]
    staging = it.catalog.load_table(table_names.staging(it.topic))
    batches = [s for s in snapshots.ancestors(staging.metadata) if "sluice.batch-seq" in snapshots.summary(s)]
    assert (stage.table, stage.topic, stage.times, stage.records) == (".".join(staging.name()), it.topic, 3, 250)
    assert stage.bytes_added == sum(int(snapshots.summary(s)["added-files-size"]) for s in batches) > 0
    assert (stage.commits, stage.files_added) == (3, len(staging.inspect.files()))
    ledger = Ledger(it.catalog).rows({it.topic: 0}, (LedgerState.PUBLISHED,))
    assert (published.table, published.records) == (table, sum(row.records or 0 for row in ledger))
    assert published.bytes_read and published.catalog_calls > 0 and rows["application"].tables == 2
    for row in (stage, published):
        assert (row.executor_cpu_seconds or 0) > 0 and (row.driver_cpu_seconds or 0) > 0 and row.wall_seconds > 0
    # What is counted for the steps and around them is no more than what the processes used.
    assert 0 < sum(row.cpu_seconds for row in rows.values()) <= cpu + 0.05


def test_upserts_and_tombstones_fold_the_log(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    it.send((n % 2, f"k{n}", record(n)) for n in range(100))
    it.run()
    it.assert_folded(table)
    it.send((n % 2, f"k{n}", record(n + 1000)) for n in range(0, 100, 3))
    it.send((n % 2, f"k{n}", None) for n in range(0, 100, 7))
    it.send([(0, "k14", record(14_000))])
    outcome = it.run()[table]
    assert outcome["state"] == "published"
    it.assert_folded(table)
    (commit,) = islice(snapshots.ancestors(it.catalog.load_table(table).metadata), 1)
    counts = snapshots.summary(commit)
    # 30 keys have a new version, and 14 were deleted.
    assert (counts["added-records"], snapshots.count_removed_rows(counts)) == ("30", 44)


HALVES = [base64.b64encode(each).decode() for each in (b"\x00\x01", b"\x7f\xff", b"\xff\xfe")]
KEYS: dict[str, list[str]] = {
    "uuid": [f"{first}0000000-0000-4000-8000-000000000001" for first in "07f"],
    "decimal(9, 2)": ["-1.50", "0", "1234567.89"],
    "date": ["0001-01-01", "1969-12-31", "9999-12-31"],
    "timestamptz": ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "9999-12-31T23:59:59Z"],
    "fixed[2]": HALVES,
    "binary": HALVES,
}


def test_a_key_of_any_type_is_one_row(lake: Callable[..., Lake]) -> None:
    """Also where Iceberg and Parquet order its values otherwise: a file that holds the key must be found."""
    it = lake()
    it.create_topic(1)
    made = {}
    for kind in KEYS:
        columns = [{"name": "id", "type": kind, "source": kind}, {"name": "n", "type": "long"}]
        made[kind] = it.contract(mode="upsert", columns=columns, deletes="ignore")
    for later in (0, 10):
        it.send((0, None, {**{kind: keys[n] for kind, keys in KEYS.items()}, "n": n + later}) for n in range(3))
        outcomes = it.run()
        for kind, table in made.items():
            assert (outcomes[table]["state"], outcomes[table]["rejected"]) == ("published", 0), (kind, outcomes[table])
            assert sorted(row["n"] for row in it.rows(table)) == [n + later for n in range(3)], kind


def test_keys_that_were_deleted_again_and_again_stay_deleted(lake: Callable[..., Lake]) -> None:
    """Each in a partition of its own: one that came from another would need an order."""
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    for partition in (0, 1, 0):
        for value in (record(1), None):
            it.send([(partition, f"k{partition}", value)])
            it.run()
    assert it.rows(table) == []
    staged = cursor.read_staged_batches(tables.load(it.catalog, table_names.staging(it.topic)))
    assert len(staged) == 6
    for seq in (3, 1, 5):
        publish(it.context(), it.contract_of(table), staged[seq][0], replay=True)
        assert it.rows(table) == [], seq


def test_one_read_feeds_several_tables_and_snapshots_tell_the_offsets(
    lake: Callable[..., Lake], capfd: pytest.CaptureFixture[str]
) -> None:
    it = lake()
    it.create_topic(2)
    appended, merged = it.contract(), it.contract(mode="upsert", partition_by=["bucket(4, id)"])
    it.send((n % 2, f"k{n % 10}0{n % 2}", record(n)) for n in range(60))
    it.run()
    it.assert_appended(appended)
    it.assert_folded(merged)
    staging = it.catalog.load_table(table_names.staging(it.topic))
    staged = [s for s in snapshots.ancestors(staging.metadata) if snapshots.summary(s).get("sluice.step") == "stage"]
    assert len(staged) == 1
    for name in (appended, merged):
        typed = it.catalog.load_table(name)
        head = typed.current_snapshot()
        assert head is not None
        assert PUBLISHED_THROUGH in snapshots.summary(head)
        assert cursor.read_table_cursor(typed)[it.topic].next_offsets == {0: 30, 1: 30}
        assert typed.metadata.refs[CURSOR_TAG].snapshot_id == head.snapshot_id
        assert set(typed.metadata.refs) == {"main", CURSOR_TAG}
    capfd.readouterr()
    assert main.main(["sql", f"SELECT count(*), max(_kafka_offset) FROM {appended}; SELECT 'it''s `; <b>'"]) == 0
    assert capfd.readouterr().out.splitlines()[1::2] == ["60\t29", "it's `; <b>"]
    assert main.main(["sql", "SELECT nothing"]) == 3


def test_bad_records_go_to_quarantine_and_too_many_block_the_table_alone(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(1)
    tolerant = it.contract(errors={"max_ratio": 0.5})
    strict = it.contract(errors={"tolerance": "none"})
    it.send((0, f"k{n}", record(n)) for n in range(10))
    it.send([(0, b"bad \xff", b"{not json"), (0, "worse", '{"n": "a word"}')])
    outcomes = it.run()
    assert outcomes[tolerant]["state"] == "published"
    assert outcomes[tolerant]["rejected"] == 2
    it.assert_appended(tolerant, without=[(0, 10), (0, 11)])
    found = sorted(it.quarantined(tolerant), key=lambda r: r["_kafka_offset"])
    assert [(r["_kafka_offset"], r["value"], r["field"]) for r in found] == [
        (10, b"{not json", None),
        (11, b'{"n": "a word"}', "n"),
    ]
    # The queries of the page of the table.
    for field, found_by in (("", [(10, "base64 YmFkIP8=", "{not json")]), ("n", [(11, "worse", '{"n": "a word"}')])):
        query = partial(quarantine_summary.error_query, it.contract_of(tolerant), "malformed", field)
        for batches in ({}, {it.topic: (1, 1)}):
            rows = it.spark.sql(query(batches)).collect()
            assert [(row["_kafka_offset"], row.key, row.value) for row in rows] == found_by
        assert it.spark.sql(query({it.topic: (2, 3)})).collect() == []
    assert (outcomes[strict]["state"], outcomes[strict]["quarantined"]) == ("blocked", 2)
    assert "2 of 12 records" in outcomes[strict]["error"]
    (named,) = re.findall(r"sluice_quarantine\.\w+", outcomes[strict]["error"])
    apart = runbook.run_sql(it, "SELECT error_class", quarantine=named, batch=1)
    assert [(row.field, row[-1]) for row in sorted(apart, key=str)] == [("n", 1), (None, 1)]
    assert it.rows(strict) == []
    # The producer is repaired, or the contract is: the batch is published from staging, without reading Kafka again.
    # A driver that had the old contract wakes up after that, and sets nothing apart any more.
    (batch,), behind = it.preview_plan().tables[strict].pending[it.topic], it.contract_of(strict)
    pause = PausedCall(monkeypatch, StagedBatches, "count", lambda staged, *_, **__: staged.context.run_id == "zombie")
    zombie = StepThread(lambda: publish(it.context("zombie"), behind, batch))
    pause.reached(zombie)
    it.contract(table=strict, errors={"max_ratio": 1.0})
    assert it.run()[strict]["state"] == "published"
    before = it.catalog.load_table(table_names.quarantine(behind)).metadata.current_snapshot_id
    pause.go()
    zombie.end()
    assert isinstance(zombie.error, FencedError), (zombie.result, zombie.error)
    assert it.catalog.load_table(table_names.quarantine(behind)).metadata.current_snapshot_id == before
    it.assert_appended(strict, without=[(0, 10), (0, 11)])


MICROS = 1_700_000_000_000_000
NO_TIMES = {"none": -1, "microseconds": MICROS, "before year 1": -62_135_596_800_001}


def test_kafka_timestamps_that_are_no_times_are_null_and_told(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that need one are set apart. Each reader reads all tables, and the numbers are not lost."""
    it = lake()
    it.create_topic(1, message_timestamp_after_max_ms=str(2**62), message_timestamp_before_max_ms=str(2**62))
    table = it.contract(partition_by=["day(_kafka_timestamp)"])
    ordered = it.contract(mode="upsert", order=["_kafka_timestamp"], errors={"max_ratio": 1.0})
    times = {"in time": 1_700_000_000_000, "before 1582": -20_000_000_000_000, **NO_TIMES}
    for key, millis in times.items():
        it.send([(0, key, {"n": 1})], timestamp_ms=millis)
    assert {o["state"] for o in it.run().values()} == {"published"}
    rows = {r["id"]: r["_kafka_timestamp"] for r in it.rows(table)}
    valid = {key: timestamps.utc_from_kafka(times[key]) for key in ("in time", "before 1582")}
    assert rows == valid | dict.fromkeys(NO_TIMES)
    assert {r["id"] for r in it.rows(ordered)} == valid.keys()
    apart = it.quarantined(ordered)
    assert {r["key"].decode(): r["_kafka_timestamp_ms"] for r in apart} == NO_TIMES
    assert {(r["error_class"], r["field"]) for r in apart} == {("timestamp", "_kafka_timestamp")}
    assert sum(f"{r['_kafka_timestamp_ms']} ms since 1970" in r["error"] for r in apart) == 2
    staged = it.catalog.load_table(table_names.staging(it.topic)).scan().to_arrow().to_pylist()
    assert {r["key"].decode(): r["_kafka_timestamp_ms"] for r in staged} == dict.fromkeys(valid) | NO_TIMES
    (risk,) = it.plan().warnings
    assert (risk.kind, risk.table) == (RiskKind.TIMESTAMPS, None) and "-62135596800001 ms" in risk.text
    assert broker.read_stream_clocks(it.admin, {it.topic: [0]}) == {it.topic: None}
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    sample = sample_test.read_topic(it.topic, 9, patience=5)
    found, _ = sample_test.evaluate_sample(it.contract_of(ordered), it.topic, sample, it.spark)
    assert [each.error for each in found] == [None, None, *["timestamp"] * 3]


def test_a_producer_that_stamps_records_with_nanoseconds_stops_no_table(lake: Callable[..., Lake]) -> None:
    """Spark's source ends at one, with "long overflow". What is read without it is what it would have read."""
    it = lake()
    it.create_topic(2, message_timestamp_after_max_ms=str(2**62))
    more: dict[str, Any] = {"errors": {"max_ratio": 1.0}, "transactional": True}
    table, upsert = it.contract(**more), it.contract(mode="upsert", **more)
    producer = Producer({**it.kafka, "transactional.id": it.topic})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        it.send([(1, "b", {"n": 2}), (1, None, "{}")], producer=producer, timestamp_ms=1_700_000_000_123)
        producer.produce(it.topic, b"\xff", None, 1, headers=[("h", b"\x00"), ("h", None)], timestamp=MICROS)
        producer.flush()
        end()
    it.wait_for_transactions()
    batch = Batch(it.topic, "", 1, {1: OffsetRange(1, 8)}, {})
    usual = read_from_kafka(it.spark, java_settings.spark_options(it.kafka), batch)
    other = to_staging_rows(librdkafka_source.read_batch(it.spark, it.kafka, batch), batch)
    rows = usual.orderBy("_kafka_offset").collect()
    assert [r["_kafka_offset"] for r in rows] == [1, 2] and rows[1]["headers"]
    assert (rows[1]["_kafka_timestamp"], rows[1]["_kafka_timestamp_ms"]) == (None, MICROS)
    assert other.orderBy("_kafka_offset").collect() == rows

    it.send([(0, "a", {"n": 1})])
    it.send([(0, "d", {"n": 3}), (0, "a", None)], timestamp_ms=1_700_000_000_000_000_000)
    it.send([(0, "c", {"n": 4})])
    assert {o["state"] for o in it.run().values()} == {"published"}
    for each in (table, upsert):
        rows = {(r["id"], r["n"]): r["_kafka_timestamp"] for r in it.rows(each) if r["_kafka_partition"] == 0}
        assert rows.keys() == {("d", 3), ("c", 4)} | ({("a", 1)} if each == table else set())
        assert rows["d", 3] is None and rows["c", 4] is not None
    (apart,) = (r for r in it.quarantined(table) if r["_kafka_partition"] == 0)
    told = apart["error_class"], apart["key"], apart["_kafka_timestamp"], apart["_kafka_timestamp_ms"]
    assert told == ("null_value", b"a", None, 1_700_000_000_000_000_000)
