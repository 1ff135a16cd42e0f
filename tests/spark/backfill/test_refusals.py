"""Requests that a backfill refuses, replays from staging and quarantine, and how long staging keeps their records."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from sluice.backfill import backfill_plan
from sluice.cli import main
from sluice.errors import ContractError, RefusedError, StagingTrimmedError, TopicMissingError, TopicRecreatedError
from sluice.iceberg import table_names
from sluice.kafka import broker
from sluice.ledger import slices
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.maintain import assess, maintain
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.plan.model import PlanInputs
from tests.support.backfills import (
    backfill_request,
    delete_rows,
    plan_backfill,
    read_checked_cursor,
    read_outcome,
    run_backfill,
    run_slices,
)
from tests.support.lake import TEXT_REQUIRED, Lake

STRICT = {"snapshot_age": "1s", "staging_retention": "1s", "min_snapshots": 1}


def fill(it: Lake, first: int, count: int = 20) -> None:
    it.send((n % 2, f"k{n}", {"n": n}) for n in range(first, first + count))


def refused(
    it: Lake, says: str, table: str, ranges: Any = None, kind: type[Exception] = RefusedError, **more: Any
) -> None:
    inputs = PlanInputs(it.contracts, it.catalog, it.admin, Ledger(it.catalog))
    with pytest.raises(kind, match=says):
        backfill_plan.plan_backfill(backfill_request(table, ranges, **more), inputs)


def expire(it: Lake) -> dict[str, str | None]:
    time.sleep(1.1)
    due = [
        n.table
        for n in assess.assess_tables(
            AssessmentInputs(it.catalog, it.contracts), Action.EXPIRE, names=it.maintained_tables
        )
        if n.steps
    ]
    done = maintain.maintain_tables(
        maintain.MaintenanceRun(it.context("upkeep"), it.contracts, Action.EXPIRE), due, deadline=time.monotonic() + 600
    )
    return {e.table: e.error for e in done if e.error}


def staged(it: Lake) -> set[int]:
    rows = it.catalog.load_table(table_names.staging(it.topic)).scan(selected_fields=("batch_seq",)).to_arrow()
    return set(rows["batch_seq"].to_pylist())


def test_what_can_not_be_is_refused_and_nothing_is_written(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    refused(it, "has published nothing of topic", table, {0: [0, 1]})
    it.run()
    refused(it, "no contract", "db.none", {0: [0, 1]}, ContractError)
    refused(it, "does not feed the table", table, {0: [0, 1]}, topic="other")
    refused(it, "nothing in that time", table)
    refused(it, "nothing in that time", table, since=datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(RefusedError, match="No reason"):
        plan_backfill(it, backfill_request(table, {0: [0, 5]}, why=" "))
    # Not planned yet: the live feed's. Planned and not published: a batch's.
    fill(it, 100)
    refused(it, r"ends above the table's cursor.*\{0: \(12, 10\)\}", table, {0: [0, 12]})
    it.plan("open")
    refused(it, "overlaps batches that are planned and not published yet: 2", table, {0: [0, 12]})
    refused(it, "after the log end offset", table, {0: [0, 21]})
    assert not slices.read_slice_rows(Ledger(it.catalog), it.topic)
    it.drain(table)
    it.delete_topic()
    it.create_topic(2)
    fill(it, 0)
    refused(it, "is not the one that the table was filled from", table, {0: [0, 1]}, TopicRecreatedError)


def test_a_topic_that_kafka_no_longer_has_is_backfilled_from_what_was_staged(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(columns=TEXT_REQUIRED, errors={"max_ratio": 0.5})
    it.send((n % 2, f"k{n}", {"n": n, **({"text": "x"} if n % 8 else {})}) for n in range(40))
    it.run()
    bad = [(0, n) for n in range(0, 20, 4)]
    before = read_checked_cursor(it, table)
    delete_rows(it, table, "_kafka_offset BETWEEN 3 AND 7")
    it.delete_topic()
    refused(it, "Kafka has no topic", table, {0: [3, 8]}, TopicMissingError)
    found = plan_backfill(it, backfill_request(table, {0: [3, 8], 1: [3, 8]}, origin=Origin.STAGING), "gone")
    assert any(line.endswith(f"no answer: Kafka has no topic {it.topic!r}.") for line in found.lines())
    run_slices(it, found, run_id="gone")
    (outcome,) = read_outcome(it, found)
    assert (outcome["records"], outcome["rejected"]) == (10, 1)
    it.assert_appended(table, without=bad)
    # A topic that was made anew has other records under the same offsets: none of them comes in.
    it.create_topic(2)
    it.send(((0, "new", {"n": -1, "text": "x"}) for _ in range(60)), topic=it.topic)
    refused(it, "is not the one that the table was filled from", table, {0: [0, 1]}, TopicRecreatedError)
    delete_rows(it, table, "_kafka_partition = 1")
    since = datetime(2020, 1, 1, tzinfo=UTC)
    found = plan_backfill(
        it, backfill_request(table, since=since, until=datetime.now(UTC), origin=Origin.STAGING), "anew"
    )
    with monkeypatch.context() as patch:  # nor is a broker needed
        patch.setattr(broker, "TIMEOUT_S", 1.0)
        patch.setattr(it, "admin", AdminClient({"bootstrap.servers": "127.0.0.1:1"}))
        run_slices(it, found, run_id="anew")
    (outcome,) = read_outcome(it, found)
    assert (outcome["records"], outcome["rejected"]) == (40, 5)
    it.assert_appended(table, without=bad)
    # What was set apart, once the contract is repaired.
    it.contract(table=table)
    (outcome,) = run_backfill(it, backfill_request(table, since=since, origin=Origin.QUARANTINE), "repaired")
    assert (outcome["records"], outcome["rejected"]) == (5, 0)
    it.assert_appended(table)
    assert not it.quarantined(table)
    assert read_checked_cursor(it, table) == before


def test_two_topics_need_a_name(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    it.create_topic(1, f"{it.topic}-b")
    table = it.contract(topic=[it.topic, f"{it.topic}-b"])
    it.send((0, f"k{n}", {"n": n}) for n in range(10))
    it.send(((0, f"k{n}", {"n": n}) for n in range(10)), topic=f"{it.topic}-b")
    it.run()
    before = read_checked_cursor(it, table)
    refused(it, "Several topics", table, {0: [0, 1]})
    delete_rows(it, table, "_kafka_offset < 5")
    run_backfill(it, backfill_request(table, {0: [0, 5]}, topic=f"{it.topic}-b"))
    assert len(it.rows(table)) == 15
    run_backfill(it, backfill_request(table, {0: [0, 5]}, topic=it.topic), "the other")
    assert len(it.rows(table)) == 20
    assert read_checked_cursor(it, table) == before


def test_what_kafka_has_lost_staging_gives_until_it_is_trimmed(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lake_folder: Path
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(maintenance=STRICT, limits={"records_per_batch": 30})
    moments = []
    for number in range(3):
        fill(it, 100 * number)
        it.run()
        moments.append(datetime.now(UTC))
        time.sleep(0.01)
    it.delete_records({0: 25, 1: 25})
    refused(it, "log start offset is 25.*staging has all: use source staging", table, {0: [3, 30]})
    # So where it is a time: what Kafka's index no longer reaches staging tells.
    long_ago, ledger = datetime(2020, 1, 1, tzinfo=UTC), Ledger(it.catalog)
    refused(it, "log start offset is 25.*staging has all: use source staging", table, since=long_ago, until=moments[2])
    for since, until, offsets in ((None, 0, (0, 10)), (long_ago, 1, (0, 20)), (moments[0], 2, (10, 30))):
        request = backfill_request(table, since=since, until=moments[until], origin=Origin.STAGING)
        found = backfill_plan.plan_backfill(request, PlanInputs(it.contracts, it.catalog, it.admin, ledger))
        assert found.ranges == {0: offsets, 1: offsets}
    delete_rows(it, table, "_kafka_offset BETWEEN 3 AND 27")
    monkeypatch.setenv("SLUICE_CONTRACTS", str(it.folder))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    command = ["backfill", "plan", table, "--ranges", '{"0": [3, 30]}']
    assert main.main(command) == 3
    assert "log start offset is 25" in capsys.readouterr().err
    assert main.main([*command, "--source", "staging"]) == 0
    shown = capsys.readouterr().out
    for part in ('(staging) {"0":[3,30]}: 27 offsets', 'kafka   holds all but {"0":[[3,25]]}', "2 rows of the range"):
        assert part in shown, shown
    run_backfill(it, backfill_request(table, {0: [3, 30], 1: [3, 28]}, origin=Origin.STAGING))
    it.assert_appended(table)
    # Slices read from Kafka leave staging by their own age, live batches by theirs.
    run_backfill(it, backfill_request(table, {0: [26, 30]}), "from kafka")
    assert staged(it) == {1, 2, 3, -3}
    # What a slice that is not replayed may still read stays, but not for ever: batches and other slices.
    late = plan_backfill(it, backfill_request(table, {0: [13, 30]}, origin=Origin.STAGING), "late")
    assert expire(it) == {}
    assert staged(it) == {2, 3, -3}
    run_slices(it, late, run_id="late")
    late = plan_backfill(it, backfill_request(table, {0: [13, 30]}, origin=Origin.STAGING), "never")
    monkeypatch.setattr(slices, "GRACE_PERIOD", timedelta(0))
    assert expire(it) == {}
    assert staged(it) == {3}
    assert not it.plan().has_work
    refused(it, r"missing\} \{0: \[\(3, 20\)\]\}", table, {0: [3, 30]}, StagingTrimmedError, origin=Origin.STAGING)
    head = it.catalog.load_table(table).metadata.current_snapshot_id
    with pytest.raises(StagingTrimmedError):
        run_slices(it, late, run_id="never")
    assert it.catalog.load_table(table).metadata.current_snapshot_id == head
    assert "does not hold the whole range" in read_outcome(it, late)[0]["told"]
    fill(it, 500)
    it.drain(table)
    it.assert_appended(table)
