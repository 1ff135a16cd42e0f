"""A backfill restores missing rows exactly, changes nothing when repeated, and never moves a cursor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.backfill import backfill_outcome, backfill_plan, slice_run
from sluice.backfill.ranges import Request
from sluice.backfill.slice_run import SliceTask
from sluice.backfill.source import SliceSource
from sluice.batch import CURSOR_TAG, Batch
from sluice.errors import BlockedError, InvalidReplayError, OrderUnknownError, StagingTrimmedError
from sluice.iceberg import cursor, table_names, tables
from sluice.ingest import stage
from sluice.ledger import rebuild, slices
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.operate import rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.plan.model import PlanInputs
from sluice.usage.costs_table import Cost
from tests.support import runbook
from tests.support.backfills import (
    backfill_request,
    delete_rows,
    plan_backfill,
    read_checked_cursor,
    read_outcome,
    run_backfill,
    run_slices,
    run_sql,
)
from tests.support.lake import COLUMNS, TEXT_REQUIRED, Lake
from tests.support.thorough import usual

HOUR_MS = 3_600_000


def prepared(it: Lake, mode: str = "append", **contract: object) -> str:
    it.create_topic(2)
    table = it.contract(mode=mode, limits={"records_per_batch": 40}, **contract)
    for number in range(2):
        it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(100 * number, 100 * number + 60))
        it.run()
    return table


def test_slices_share_an_application_and_a_blocked_one_stops_no_other(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(limits={"records_per_batch": 10}, errors={"max_count": 100, "max_ratio": 1.0})
    it.send([(0, f"k{n}", {"n": "no number" if n == 15 else n}) for n in range(40)])
    it.run()
    delete_rows(it, table, "true")
    it.contract(table=table, limits={"records_per_batch": 10})  # no record may be quarantined from here on
    found = plan_backfill(it, backfill_request(table, {0: [0, 40]}))
    tasks = [SliceTask(table, it.topic, seq, found.origin) for seq in found.to_xcom()["slices"]]
    assert len(tasks) == 4
    asked = table, it.topic, [task.seq for task in tasks]

    def progress() -> tuple[list[int], list[int]]:
        return tuple(backfill_outcome.read_progress(it.contracts, it.catalog, asked, "by hand"))  # type: ignore[return-value]

    # Without time, an application tries one slice all the same, and the next one goes on.
    for left in ([-2, -3, -4], [-3, -4]):
        run_slices_of(it, tasks, seconds=0)
        assert progress() == (left, [-2] if -2 not in left else [])
    run_slices_of(it, tasks, seconds=0)
    assert progress() == ([-4], [-2])
    with pytest.raises(BlockedError):  # the last untried one, and then those that failed
        run_slices_of(it, tasks, seconds=0)
    assert progress() == ([], [-2])
    assert {row["n"] for row in it.rows(table)} == {*range(10), *range(20, 40)}

    it.contract(table=table, limits={"records_per_batch": 10}, errors={"max_count": 100, "max_ratio": 1.0})
    costs = {row.step: row for row in run_slices_of(it, tasks, seconds=0)}
    assert progress() == ([], [])
    it.assert_appended(table, without=[(0, 15)])
    assert (costs["backfill"].table, costs["backfill"].records, costs["backfill"].commits) == (table, 10, 1)
    assert costs["backfill"].cpu_seconds > 0 and costs["backfill"].bytes_added > 0


def run_slices_of(it: Lake, tasks: list[SliceTask], *, seconds: float) -> list[Cost]:
    """Run slices; returns what they cost."""
    context = it.context("by hand")
    slice_run.run_slices(context, it.contracts, it.admin, tasks, seconds=seconds)
    return context.meter.take_costs()


def shown(it: Lake, request: Request) -> str:
    return "\n".join(
        backfill_plan.plan_backfill(request, PlanInputs(it.contracts, it.catalog, it.admin, Ledger(it.catalog))).lines()
    )


@pytest.mark.parametrize("origin", usual([Origin.KAFKA], [Origin.KAFKA, Origin.STAGING]))
def test_a_hole_is_filled_and_nothing_else(lake: Callable[..., Lake], origin: Origin) -> None:
    it = lake()
    table = prepared(it)
    before = read_checked_cursor(it, table)
    delete_rows(it, table, "_kafka_partition = 0 AND _kafka_offset BETWEEN 10 AND 34")
    delete_rows(it, table, "_kafka_partition = 1 AND _kafka_offset = 3")
    assert len(it.rows(table)) == 120 - 26
    first, *snapshots = sorted(runbook.run_sql(it, "SELECT * FROM <table>.snapshots", table=table))
    assert first.parent_id is None and "sluice.batch-seq" not in first.summary
    others = [row.operation for row in snapshots if "sluice.batch-seq" not in row.summary]
    assert len(others) == 2 and "replace" not in others
    told = runbook.run_command(it, """backfill plan TABLE --ranges '{"0": [5, 50], "1": [0, 5]}'""", TABLE=table)
    assert "50 offsets" in told and "24 rows of the range" in told
    # Wider than the hole: what is there stays as it is, once.
    request = backfill_request(table, {0: [5, 50], 1: [0, 5]}, origin=origin)
    text = shown(it, request)
    for part in (
        '{"0":[5,50],"1":[0,5]}: 50 offsets',
        "records 50\n",
        "kafka   holds all of it",
        "staging holds all of it",
        "24 rows of the range",
        "time    about",
        "backfill -1 ",
    ):
        assert part in text, text
    assert not slices.read_slice_rows(Ledger(it.catalog), it.topic)
    outcomes = run_backfill(it, request)
    assert [o["slice"] for o in outcomes] == [-1, -2]
    assert all(o["snapshot_id"] and o["rejected"] == 0 for o in outcomes)
    assert sum(o["records"] for o in outcomes) == 50
    it.assert_appended(table)
    assert read_checked_cursor(it, table) == before
    # Any of it again, in any order, changes nothing.
    rows = sorted(it.rows(table), key=str)
    for ranges in ({0: [0, 60], 1: [0, 60]}, {0: [20, 30]}):
        run_backfill(it, backfill_request(table, ranges, origin=origin), f"again {ranges}")
    assert sorted(it.rows(table), key=str) == rows
    assert read_checked_cursor(it, table) == before
    # A slice that was replayed is found, not brought again; a task that is tried again takes its own slices.
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    again = plan_backfill(it, request)
    assert again.frozen
    assert [s.seq for s in again.slices] == [-1, -2]
    run_slices(it, again)
    assert it.catalog.load_table(table).metadata.current_snapshot_id == head
    # The live feed goes on, numbered as if nothing had been.
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(500, 520))
    assert it.run()[table]["batches"] == {it.topic: [5]}
    it.assert_appended(table)
    assert set(it.catalog.load_table(table).metadata.refs) == {"main", CURSOR_TAG}


def test_a_key_that_was_deleted_in_another_partition_since_needs_an_order(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    it.send([(0, "k", {"n": 1}), (0, "other", {"n": 2})])
    table = it.contract(mode="upsert", start="latest")
    it.run()
    it.send([(1, "k", {"n": 3}), (1, "k", None)])
    it.drain(table)
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    with pytest.raises(OrderUnknownError, match=r"partition 0 offset 0 and .* partition 1 offset 1"):
        run_backfill(it, backfill_request(table, {0: [0, 2]}))
    assert it.catalog.load_table(table).metadata.current_snapshot_id == head
    it.contract(table=table, mode="upsert", start="latest", order=["_kafka_timestamp"])
    run_backfill(it, backfill_request(table, {0: [0, 2]}), "ordered")
    it.assert_folded(table, {"other": {"n": 2}})


def test_upserts_and_deletes_that_are_older_change_nothing(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert", limits={"records_per_batch": 30})
    it.send((n % 2, f"k{n % 20}", {"n": n}) for n in range(60))
    it.run()
    it.send((n % 2, f"k{n}", None) for n in range(0, 20, 3))
    it.run()
    it.send((n % 2, f"k{n}", {"n": 1000 + n}) for n in range(0, 20, 6))
    it.run()
    it.assert_folded(table)
    before = read_checked_cursor(it, table)
    # Rows that were lost: the backfill brings them back where they are the newest, and nothing else.
    delete_rows(it, table, "n IN (41, 47, 1006)")
    parts = [{0: [20, 37], 1: [0, 33]}, {0: [0, 10]}, {1: [10, 33], 0: [30, 36]}, {0: [0, 37]}]
    for number, ranges in enumerate(parts):
        origin = (Origin.KAFKA, Origin.STAGING)[number % 2]
        outcomes = run_backfill(it, backfill_request(table, ranges, origin=origin), f"part {number}")
        assert all(o["snapshot_id"] for o in outcomes), outcomes
    it.assert_folded(table)
    assert read_checked_cursor(it, table) == before
    it.send((n % 2, f"k{n}", {"n": 2000 + n}) for n in range(25))
    it.run()
    it.assert_folded(table)


@pytest.mark.parametrize("mode", usual(["upsert"], ["append", "upsert"]))
def test_history_before_the_live_feed_is_backfilled(lake: Callable[..., Lake], mode: str) -> None:
    it = lake()
    it.create_topic(2)
    now = int(datetime.now(UTC).timestamp() * 1000)
    it.send(((n % 2, f"k{n % 24}", {"n": n}) for n in range(80)), timestamp_ms=now - 3 * HOUR_MS)
    if mode == "upsert":
        it.send(((n % 2, f"k{n}", None) for n in range(5)), timestamp_ms=now - 2 * HOUR_MS)
    start = datetime.fromtimestamp((now - HOUR_MS) / 1000, UTC)
    table = it.contract(mode=mode, start=start.isoformat(), limits={"records_per_batch": 30})
    it.send(((n % 2, f"k{n % 10 + 8}", {"n": n}) for n in range(100, 120)), timestamp_ms=now)
    if mode == "upsert":
        it.send(((n % 2, f"k{n}", None) for n in range(20, 24)), timestamp_ms=now)
    it.run()
    live = read_checked_cursor(it, table)
    # Up to the start of live ingest, in slices, which are committed in whatever order.
    found = plan_backfill(it, backfill_request(table))
    assert len(found.slices) == 3
    assert found.ranges == ({0: (0, 43), 1: (0, 42)} if mode == "upsert" else {0: (0, 40), 1: (0, 40)})
    run_slices(it, found, *sorted(s.seq for s in found.slices))
    assert all(o["snapshot_id"] for o in read_outcome(it, found))
    it.assert_published(table)
    assert read_checked_cursor(it, table) == live
    it.send((n % 2, f"k{n % 30}", {"n": n}) for n in range(200, 240))
    it.drain(table)
    it.assert_published(table)
    # A part of it by time, again; to Kafka a millisecond before its time begins would be the end.
    since, until = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), start - timedelta(hours=1, minutes=30)
    outcomes = run_backfill(it, backfill_request(table, since=since, until=until), "by time")
    assert sum(o["records"] for o in outcomes) == 80
    it.assert_published(table)


def test_quarantine_is_replayed_when_the_contract_was_repaired(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(columns=TEXT_REQUIRED, errors={"max_ratio": 1.0})
    it.send((n % 2, f"k{n}", {"n": n, **({"text": "x"} if n % 4 else {})}) for n in range(40))
    it.send([(0, "broken", b"{not json")])
    it.run()
    assert len(it.quarantined(table)) == 11
    assert len(it.rows(table)) == 30
    it.contract(table=table, errors={"max_ratio": 0.0})
    # A selection, then all of it.
    (first,) = run_backfill(it, backfill_request(table, {0: [0, 5]}, origin=Origin.QUARANTINE), "a part")
    assert (first["records"], first["rejected"]) == (3, 0)
    assert len(it.quarantined(table)) == 8
    assert "records 8\n" in shown(it, backfill_request(table, origin=Origin.QUARANTINE))
    # What another attempt, by an older contract, sets apart meanwhile did not come in with it: there it stays.
    quarantine = ".".join(table_names.quarantine(it.contracts.table(table)))
    taken_out = SliceSource.remove_passing_from_quarantine

    def late(source: SliceSource) -> None:
        raw = it.spark.table(".".join(("lake", *table_names.staging(it.topic))))
        why = {"_kafka_topic": it.topic, "error_class": "null_value", "error": "", "field": "text"}
        row = raw.where("_kafka_partition = 0 AND _kafka_offset = 7").withColumns({k: F.lit(v) for k, v in why.items()})
        columns = it.catalog.load_table(quarantine).schema().column_names
        row = row.withColumn("quarantined_at", F.current_timestamp())
        row.select(*[c for c in columns if "." not in c]).writeTo(f"lake.{quarantine}").append()
        taken_out(source)

    delete_rows(it, table, "_kafka_partition = 0 AND _kafka_offset = 7")
    with monkeypatch.context() as patch:
        patch.setattr(SliceSource, "remove_passing_from_quarantine", late)
        (rest,) = run_backfill(it, backfill_request(table, origin=Origin.QUARANTINE), "the rest")
    assert (rest["records"], rest["rejected"]) == (8, 1)
    assert sorted(r["_kafka_offset"] for r in it.quarantined(table)) == [7, 20]
    run_backfill(it, backfill_request(table, {0: [7, 8]}, origin=Origin.QUARANTINE), "and what came meanwhile")
    (left,) = it.quarantined(table)
    assert left["value"] == b"{not json"
    it.assert_appended(table, without=[(0, 20)])
    # What a blocked batch has set aside is that batch's to bring.
    it.send([(0, "late", b"{not json either")])
    assert it.run()[table]["state"] == "blocked"
    assert len(it.quarantined(table)) == 2
    run_backfill(
        it, backfill_request(table, since=datetime(2020, 1, 1, tzinfo=UTC), origin=Origin.QUARANTINE), "once more"
    )
    it.assert_appended(table, without=[(0, 20), (0, 21)])
    assert len(it.quarantined(table)) == 2


def test_rejected_records_of_a_backfill_are_quarantined_once_and_come_in_when_they_pass(
    lake: Callable[..., Lake],
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(columns=TEXT_REQUIRED, errors={"max_ratio": 0.5})
    others = {3: {"n": 3}, 8: {"n": 8}, 13: {"n": 13}} | dict.fromkeys(range(0, 20, 5), b'{"n": "a word"}')
    it.send((0, f"k{n}", others.get(n, {"n": n, "text": "x"})) for n in range(20))
    it.run()
    assert sorted(r["_kafka_offset"] for r in it.quarantined(table)) == sorted(others)
    delete_rows(it, table, "_kafka_offset < 18")
    requests = [backfill_request(table, {0: [0, 12]}), backfill_request(table, {0: [12, 18]}, origin=Origin.STAGING)]
    pieces = [plan_backfill(it, request, f"from {request.origin}") for request in requests]
    for found, counts in zip(pieces, [(12, 5), (6, 2)], strict=True):
        run_slices(it, found)
        (outcome,) = read_outcome(it, found)
        assert (outcome["records"], outcome["rejected"]) == counts
        assert sorted(r["_kafka_offset"] for r in it.quarantined(table)) == sorted(others)
    # Run again after the contract was repaired, slices that were replayed bring what they set apart, and nothing else.
    delete_rows(it, table, "_kafka_offset IN (4, 14)")
    it.contract(table=table, errors={"max_ratio": 0.0})
    it.plan()  # which brings the change into force
    for found, left in zip(pieces, [{0, 5, 10, 13, 15}, {0, 5, 10, 15}], strict=True):
        for _ in range(2):
            run_slices(it, found)
            assert {r["_kafka_offset"] for r in it.quarantined(table)} == left
            assert {r["_kafka_offset"] for r in it.rows(table)} == {*range(20)} - left - {4, 14}
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    for found in pieces:
        run_slices(it, found)
    assert it.catalog.load_table(table).metadata.current_snapshot_id == head
    # Too many bad ones: refused, and what was written stays to be looked at.
    it.contract(table=table, errors={"max_ratio": 0.1})
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    request = plan_backfill(it, backfill_request(table, {0: [0, 12]}), "too many")
    with pytest.raises(BlockedError, match=r"kept refused_backfill_.*DROP BRANCH"):
        run_slices(it, request)
    found = it.catalog.load_table(table).metadata
    assert found.current_snapshot_id == head
    assert [n for n in found.refs if n.startswith("refused_backfill_")]
    (row,) = [r for r in slices.read_slice_rows(Ledger(it.catalog), it.topic) if r.state == LedgerState.BLOCKED]
    assert row.table == table


@pytest.mark.parametrize("strict", [True, False])
def test_what_a_slice_set_apart_is_decided_anew_when_its_batch_comes_again(
    lake: Callable[..., Lake], strict: bool
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(errors={"max_ratio": 0.5})
    for first in (0, 10):
        it.send((0, f"k{n}", {"n": n}) for n in range(first, first + 10))
        it.run()
    few = {"type": "expect_column_values_to_be_between", "column": "n", "max_value": 12, "severity": "quarantine_rows"}
    it.contract(table=table, errors={"max_ratio": 1.0}, expectations=[few])
    delete_rows(it, table, "_kafka_offset >= 5")
    run_backfill(it, backfill_request(table, {0: [5, 15]}))
    apart = sorted((r["_kafka_offset"], r["batch_seq"] < 0) for r in it.quarantined(table))
    assert apart == [(13, True), (14, True)]
    # Published again, the batch says what becomes of its records; of those of a batch before it nothing is decided.
    found = rollback.preview_rollback(
        table, it.contracts, it.catalog, Ledger(it.catalog), RestorePoint(before_run=f"{it.group}-2")
    )
    rollback.roll_back(found, it.catalog, Ledger(it.catalog), Decision("ann", "to try", "by hand"))
    if not strict:
        it.contract(table=table, errors={"max_ratio": 1.0})
    it.run()
    held = range(20) if not strict else range(13)
    assert sorted(r["_kafka_offset"] for r in it.rows(table)) == [*held]
    assert sorted(r["_kafka_offset"] for r in it.quarantined(table)) == [n for n in range(20) if n not in held]
    assert all(r["batch_seq"] == 2 for r in it.quarantined(table))


def test_rows_that_exist_stay_as_they_were_read_until_the_table_is_rolled_back(lake: Callable[..., Lake]) -> None:
    """A column that was added later is filled by a rollback, not by a backfill."""
    it = lake()
    it.create_topic(1)
    ends = {"name": "until", "type": "timestamptz", "source": "$valid_to"}
    keyed = {"identifier": ["id"], "deletes": "ignore"}
    modes: list[dict[str, Any]] = [{}, {"mode": "upsert", **keyed}, {"mode": "history", **keyed}]
    bodies = [{**more, "columns": [*COLUMNS[:2], *([ends] if more.get("mode") == "history" else [])]} for more in modes]
    names = [it.contract(**body) for body in bodies]
    it.send((0, f"k{n}", {"n": n, "text": f"text {n}"}) for n in range(3))
    it.run()
    for name, body in zip(names, bodies, strict=True):
        it.contract(**{**body, "table": name, "columns": [*body["columns"], COLUMNS[2]]})
    it.send([(0, "k3", {"n": 3, "text": "text 3"})])
    it.run()
    for name in names:
        (outcome,) = run_backfill(it, backfill_request(name, {0: [0, 3]}), f"of {name}")
        assert (outcome["records"], outcome["rejected"]) == (3, 0)
        texts = {row["n"]: row["text"] for row in it.rows(name)}
        assert texts == {0: None, 1: None, 2: None, 3: "text 3"}
        before = RestorePoint(before_run=f"{it.group}-1")
        found = rollback.preview_rollback(name, it.contracts, it.catalog, Ledger(it.catalog), before)
        rollback.roll_back(found, it.catalog, Ledger(it.catalog), Decision("ann", "to fill it", f"undo {name}"))
    it.run()
    for name in names:
        assert {row["n"]: row["text"] for row in it.rows(name)} == {n: f"text {n}" for n in range(4)}


def test_what_does_not_stand_the_look_at_it_stays_on_a_branch(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    table = prepared(it)
    run_sql(it, table, "INSERT INTO {0} SELECT * FROM {0} WHERE _kafka_partition = 1 AND _kafka_offset = 7")
    delete_rows(it, table, "_kafka_partition = 0 AND _kafka_offset < 10")
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    found = plan_backfill(it, backfill_request(table, {0: [0, 10], 1: [0, 10]}, origin=Origin.STAGING))
    with pytest.raises(InvalidReplayError, match="1 rows of the range are duplicates"):
        run_slices(it, found)
    short = plan_backfill(it, backfill_request(table, {0: [0, 10]}, origin=Origin.STAGING), "short")
    read = SliceSource.decoded
    with monkeypatch.context() as patch:
        patch.setattr(SliceSource, "decoded", lambda *arguments: read(*arguments).where("_kafka_offset <> 3"))
        with pytest.raises(InvalidReplayError, match="9 records were read where the range spans 10"):
            run_slices(it, short, run_id="short")
    delete_rows(it, ".".join(table_names.staging(it.topic)), "_kafka_partition = 0 AND _kafka_offset = 3")
    with pytest.raises(StagingTrimmedError, match=r"missing\} \{0: \[\(0, 10\)\]\}"):
        plan_backfill(it, backfill_request(table, {0: [0, 10]}, origin=Origin.STAGING), "no longer")
    metadata = it.catalog.load_table(table).metadata
    assert metadata.current_snapshot_id == head
    kept = {n for n in metadata.refs if n.startswith("refused_backfill_")}
    assert len(kept) == 2
    assert set(metadata.refs) == {"main", CURSOR_TAG, *kept}
    (outcome,) = read_outcome(it, short)
    assert outcome["snapshot_id"] is None
    assert "spans 10" in outcome["told"]
    # Later runs leave the branches; from Kafka the range is whole.
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(500, 520))
    it.run()
    run_backfill(it, backfill_request(table, {0: [0, 10]}), "from kafka")
    assert kept <= set(it.catalog.load_table(table).metadata.refs)
    delete_rows(it, table, "_kafka_partition = 1 AND _kafka_offset = 7")
    run_backfill(it, backfill_request(table, {1: [7, 8]}), "the doubled one")
    it.assert_appended(table)
    for branch in sorted(kept):
        assert runbook.run_sql(it, "SELECT * FROM <table> VERSION AS OF", table=table, branch=branch)
        runbook.run_sql(it, "ALTER TABLE <table> DROP BRANCH", table=table, branch=branch)
    assert set(it.catalog.load_table(table).metadata.refs) == {"main", CURSOR_TAG}


def test_a_key_that_stands_a_second_time_at_another_place_is_told(lake: Callable[..., Lake]) -> None:
    it = lake()
    table = prepared(it, "upsert")
    # Behind the range, where no row of the range stands twice, and newer than what the range has of the key.
    again = "id, n, text, _kafka_topic, _kafka_partition, _kafka_offset + 1000, _kafka_timestamp"
    run_sql(it, table, f"INSERT INTO {{0}} SELECT {again} FROM {{0}} WHERE id = 'k4'")
    run_backfill(it, backfill_request(table, {0: [0, 2]}), "other keys")
    with pytest.raises(InvalidReplayError, match=r"1 keys occur more than once; .* \(0, 2\)"):
        run_backfill(it, backfill_request(table, {0: [0, 10]}))
    delete_rows(it, table, "_kafka_offset >= 1000")
    run_backfill(it, backfill_request(table, {0: [0, 10]}), "mended")
    it.assert_folded(table)


def test_a_log_that_was_cut_short_is_brought_again_as_the_runbook_says(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged of the last four offsets is made up: it stands for the records that Kafka has lost."""
    it = lake()
    it.create_topic(1)
    appended = it.contract(errors={"max_ratio": 1.0})
    merged = it.contract(mode="upsert"), it.contract(mode="upsert", order=["_kafka_timestamp"])
    it.send((0, f"k{n}", {"n": n}) for n in range(6))
    it.send([(0, "k3", {"n": 6}), (0, "k4", {"n": 7}), (0, "k0", {"n": 8}), (0, "new", {"n": 9})])
    lost = {6: ("k0", '{"n": -1}'), 7: ("k1", None), 8: ("strange", '{"n": -2}'), 9: ("k2", '{"n": -3}')}

    def before(source: DataFrame, batch: Batch, rows: Callable[..., DataFrame] = stage.to_staging_rows) -> DataFrame:
        told = {name: F.col(name) for name in ("key", "value")}
        for offset, record in lost.items():
            for name, value in zip(told, record, strict=True):
                there = F.col("_kafka_offset") == offset
                told[name] = F.when(there, F.lit(value).cast("binary")).otherwise(told[name])
        return rows(source, batch).withColumns(told)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "to_staging_rows", before)
        it.run()
    assert {r["n"] for r in it.rows(merged[0])} == {-1, -3, -2, 3, 4, 5}
    assert [r["_kafka_offset"] for r in it.quarantined(appended)] == [7]
    for table in (appended, *merged):
        own = it.contract_of(table)
        kept = [tables.load(it.catalog, name) for name in (table_names.quarantine(own), table_names.deletes(own))]
        for name in [table, *(".".join(f"`{part}`" for part in each.name()) for each in kept if each)]:
            runbook.run_sql(it, "DELETE FROM <table>", table=name, topic=it.topic, partition=0, first=6, end=10)
        run_backfill(it, backfill_request(table, {0: [6 if table == appended else 0, 10]}), f"heal {table}")
    it.assert_appended(appended)
    assert not it.quarantined(appended)
    for table in merged:
        it.assert_folded(table)


def test_offsets_without_records_are_expected_where_the_topic_is_written_in_transactions(
    lake: Callable[..., Lake],
) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(transactional=True)
    producer = Producer({**it.kafka, "transactional.id": it.topic})
    producer.init_transactions(30)
    for number in range(3):
        producer.begin_transaction()
        it.send(((0, f"k{n}", {"n": n}) for n in range(10 * number, 10 * number + 10)), producer=producer)
        producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(it.topic, b'{"n": 99}', key="aborted", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    it.wait_for_transactions()
    it.run()
    (end,) = cursor.read_table_cursor(it.catalog.load_table(table))[it.topic].next_offsets.values()
    assert end > 31
    delete_rows(it, table, "_kafka_offset BETWEEN 4 AND 25")
    for origin, says in ((Origin.KAFKA, "records at most 30"), (Origin.STAGING, "records 30")):
        request = backfill_request(table, {0: [0, end]}, origin=origin)
        assert says in shown(it, request)
        (found,) = run_backfill(it, request, f"from {origin}")
        assert found["records"] == 30
        it.assert_appended(table)
    with it.catalog.load_table(table_names.staging(it.topic)).transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: "1"})
    # Without the slice, only the ledger tells that 30 of the offsets held a record.
    delete_rows(it, ".".join(table_names.staging(it.topic)), "batch_seq < 0")
    assert f"records about {round(20 * 30 / end)}: " in shown(it, backfill_request(table, {0: [0, 20]}))


def test_a_rollback_tells_which_backfills_it_undoes_and_a_lost_ledger_is_told_of_them(
    lake: Callable[..., Lake],
) -> None:
    it = lake()
    table = prepared(it)
    target = it.catalog.load_table(table).metadata.current_snapshot_id
    delete_rows(it, table, "_kafka_offset < 10")
    run_backfill(it, backfill_request(table, {0: [0, 10], 1: [0, 10]}))
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(500, 520))
    it.run()
    found = rollback.preview_rollback(
        table, it.contracts, it.catalog, Ledger(it.catalog), RestorePoint(snapshot_id=target)
    )
    assert f'undone    {it.topic} backfill -1 {{"0":[0,10],"1":[0,10]}}' in "\n".join(found.lines())
    before = slices.read_slice_rows(Ledger(it.catalog), it.topic)
    assert [r.state for r in before] == [LedgerState.PLANNED, LedgerState.PLANNED, LedgerState.REPLAYED]
    assert {(r.who, r.why) for r in before[:2]} == {("ann", "a hole was found")}
    rebuild.rebuild(it.contracts, it.catalog, run_id="rebuild")
    assert [r.state for r in slices.read_slice_rows(Ledger(it.catalog), it.topic)] == [r.state for r in before]
    it.catalog.drop_table(table_names.LEDGER)
    rebuild.rebuild(it.contracts, it.catalog, run_id="rebuild")
    after = slices.read_slice_rows(Ledger(it.catalog), it.topic)
    assert {(r.state, r.partition, r.start_offset, r.end_offset, r.table) for r in after} == {
        (r.state, r.partition, r.start_offset, r.end_offset, r.table) for r in before
    }
    # Numbers go on below; the cursor is as it was.
    assert [s.seq for s in plan_backfill(it, backfill_request(table, {0: [3, 9]}), "next").slices] == [-2]
    assert cursor.read_table_cursor(it.catalog.load_table(table))[it.topic].seq == 5
    assert not it.plan().has_work
