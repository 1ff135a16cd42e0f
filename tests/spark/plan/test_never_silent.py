"""Lost records and other faults stop their table with an error that names the exact offsets; other tables go on."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sluice.errors import OffsetsBeyondEndError, PlanLostError, TopicMissingError, TopicRecreatedError
from sluice.iceberg import table_names
from sluice.ingest import merge_batch, staged_batches
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.merge_batch import MergeInput
from sluice.ingest.publish import publish
from sluice.ingest.stage import stage
from sluice.kafka import broker as brokers
from sluice.ledger.ledger_rows import plan_rows
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.rebuild import rebuild
from sluice.offsets import OffsetRange
from sluice.operate import accept_gap
from sluice.operate.operator_input import Decision
from sluice.plan.batches import TopicProgress, plan_topic
from sluice.plan.model import PlanInputs
from sluice.status import status
from tests.support import runbook
from tests.support.backfills import delete_by_equality, delete_rows, run_sql
from tests.support.lake import Lake, record
from tests.support.thorough import usual


def beside(it: Lake) -> tuple[Lake, str]:
    """Another topic and table of the same group, which must not suffer."""
    other = Lake(it.spark, it.catalog, it.bootstrap, it.folder, group=it.group)
    other.create_topic(1)
    return other, other.contract()


def pair(lake: Callable[..., Lake]) -> tuple[Lake, str, Lake, str]:
    """A topic of two partitions with its table, and another beside it."""
    it = lake()
    it.create_topic(2)
    table = it.contract()
    return it, table, *beside(it)


def fill(it: Lake, first: int, count: int = 20, partitions: int = 2) -> None:
    it.send((n % partitions, f"k{n}", record(n)) for n in range(first, first + count))


def stopped(outcome: dict[str, Any], *parts: str) -> None:
    """The table is red, and the error says all of this."""
    assert outcome["red"], outcome
    for part in parts:
        assert part in outcome["error"], outcome["error"]


def test_retention_overtakes_the_cursor(lake: Callable[..., Lake]) -> None:
    it, table, other, unharmed = pair(lake)
    fill(it, 0)
    fill(other, 0, partitions=1)
    it.run()
    before = it.rows(table)
    fill(it, 100)
    fill(other, 100, partitions=1)
    it.delete_records({0: 13})
    for _ in range(2):  # it does not wear off
        outcomes = it.run()
        stopped(outcomes[table], table, it.topic, "{0: (10, 13)}", "no longer holds", "Next step")
        assert it.rows(table) == before
    assert outcomes[unharmed]["state"] == "idle"
    other.assert_appended(unharmed)
    assert it.catalog.load_table(table_names.staging(it.topic)).scan().to_arrow().num_rows == 20


def test_retention_overtakes_a_plan_that_is_frozen(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(limits={"records_per_batch": 22})
    fill(it, 0, 40)
    assert [b.ranges[0] for b in it.plan().topics[it.topic].to_stage] == [(0, 10), (10, 20)]
    it.delete_records({0: 15, 1: 3})
    stopped(it.run()[table], table, "{0: (0, 15), 1: (0, 3)}")
    assert it.rows(table) == []


def test_a_log_cut_short_below_a_frozen_plan(lake: Callable[..., Lake]) -> None:
    """An unclean leader election does that; the broker's answer is made up, as one broker can't be made to do it."""
    it = lake()
    it.create_topic(1)
    it.contract()
    fill(it, 0, 20, partitions=1)
    (batch,) = it.plan().topics[it.topic].to_stage
    settings = it.contracts.topics[it.topic]
    told = brokers.describe_topics(it.admin, [it.topic])[it.topic]
    assert isinstance(told, brokers.TopicState)
    cut_short = replace(told, watermarks={0: OffsetRange(0, 12)})
    for last, known in ((None, {1: batch}), (batch, {})):
        with pytest.raises(OffsetsBeyondEndError, match=r"\(20, 12\)"):
            plan_topic(TopicProgress(settings, cut_short, last, known, [], {}), it.admin, extend=True)


def test_what_is_staged_is_published_though_kafka_has_lost_the_rest(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(errors={"tolerance": "none"})
    fill(it, 0, 9, partitions=1)
    it.send([(0, "bad", b"{")])
    assert it.run()[table]["state"] == "blocked"
    fill(it, 100, 20, partitions=1)
    it.delete_records({0: 25})
    it.contract(table=table, errors={"max_ratio": 1.0})
    stopped(it.run()[table], "{0: (10, 25)}")
    it.assert_appended(table, without=[(0, 9), *((0, o) for o in range(10, 30))])


@pytest.mark.parametrize("count", usual([60], [6, 60]))
def test_the_topic_is_deleted_and_created_again(lake: Callable[..., Lake], count: int) -> None:
    it, table, other, unharmed = pair(lake)
    fill(it, 0)
    it.run()
    before = it.rows(table)
    it.delete_topic()
    it.create_topic(2)
    it.send([(n % 2, f"k{n}", record(n)) for n in range(500, 500 + count)], topic=it.topic)
    fill(other, 0, partitions=1)
    outcomes = it.run()
    stopped(outcomes[table], table, "deleted and created again after batch 1", "{0: 10, 1: 10}")
    assert outcomes[unharmed]["state"] == "published"
    assert it.rows(table) == before
    it.assert_appended(table)
    other.assert_appended(unharmed)
    if count < 10:
        return
    # Who drops what is staged and planned of the old topic has the new one staged; the table knows what it has.
    it.catalog.drop_table(table_names.staging(it.topic))
    it.catalog.drop_table(table_names.LEDGER)
    for state in ("failed", "stopped"):
        outcome = it.run()[table]
        assert outcome["state"] == state and "not the one that the table was filled from" in outcome["error"], outcome
    assert it.rows(table) == before


def test_the_topic_is_created_again_after_it_was_planned(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract()
    fill(it, 0, 10, partitions=1)
    it.plan()
    it.delete_topic()
    it.create_topic(1)
    it.send([(0, "x", record(1))] * 20, topic=it.topic)
    stopped(it.run()[table], "deleted and created again")
    assert it.rows(table) == []


def test_the_topic_is_created_again_after_the_application_looked(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    it.contract()
    fill(it, 0, 10, partitions=1)
    (batch,) = it.plan().topics[it.topic].to_stage
    it.delete_topic()
    with pytest.raises(TopicMissingError):
        brokers.fetch_topic_id(it.admin, it.topic)
    it.create_topic(1)
    it.send([(0, "x", record(1))] * 20, topic=it.topic)
    with pytest.raises(TopicRecreatedError, match="while it was read"):
        stage(it.context(), batch, gaps_expected=False)
    staging = it.catalog.load_table(table_names.staging(it.topic))
    assert staging.current_snapshot() is None or staging.scan().count() == 0


def test_a_topic_is_missing(lake: Callable[..., Lake]) -> None:
    it = lake()
    table = it.contract()
    other, unharmed = beside(it)
    fill(other, 0, partitions=1)
    outcomes = it.run()
    stopped(outcomes[table], table, f"no topic '{it.topic}'")
    assert outcomes[unharmed]["state"] == "published"
    other.assert_appended(unharmed)
    it.create_topic(1)
    fill(it, 0, partitions=1)
    it.drain(table)
    it.assert_appended(table)


@pytest.mark.parametrize(
    ("whose", "what", "left"),
    usual(
        [("the typed table", "metadata", None), ("staging", "metadata", 0.9), ("staging", "manifest", None)],
        [
            ("the typed table", "metadata", None),
            ("staging", "metadata", None),
            ("staging", "metadata", 0.9),
            ("staging", "manifest", None),
            ("staging", "manifest", 0.5),
        ],
    ),
)
def test_a_table_whose_metadata_is_gone_or_damaged_stops_nothing_else(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, whose: str, what: str, left: float | None
) -> None:
    it, table, other, unharmed = pair(lake)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    fill(it, 0)
    fill(other, 0, partitions=1)
    it.run()
    fill(it, 100)
    stage(it.context(), it.plan().topics[it.topic].to_stage[0], gaps_expected=False)
    named = it.catalog.load_table(table if whose == "the typed table" else table_names.staging(it.topic))
    snapshot = named.current_snapshot()
    location = named.metadata_location if what == "metadata" else snapshot.manifests(named.io)[0].manifest_path
    path = Path(location.removeprefix("file:"))
    path.rename(path.with_suffix(".away"))
    if left is not None:
        content = path.with_suffix(".away").read_bytes()
        path.write_bytes(content[: int(len(content) * left)])
    fill(other, 100, partitions=1)
    outcomes = it.run()
    name = path.name if left is None else ".".join(named.name())
    stopped(outcomes[table], table, name, "Restore the file")
    assert outcomes[unharmed]["state"] == "published", outcomes
    other.assert_appended(unharmed)
    told = {entry.table: entry for entry in status.read_status(it.contracts).tables}
    assert any(name in problem for problem in told[table].problems), told[table].problems
    assert not told[unharmed].problems
    if what == "metadata":
        assert any(name in line for line in rebuild(it.contracts, it.catalog, run_id="operator"))
    path.with_suffix(".away").rename(path)
    it.drain(table)
    it.assert_appended(table)


def test_a_ledger_that_contradicts_itself_about_a_topic(lake: Callable[..., Lake]) -> None:
    it, table, other, unharmed = pair(lake)
    fill(it, 0)
    fill(other, 0, partitions=1)
    (batch,) = it.plan().topics[it.topic].to_stage
    otherwise = replace(batch, ranges={0: OffsetRange(0, 5)}, next_offsets={0: 5, 1: 0})
    ledger = Ledger(it.catalog)
    ledger.append(plan_rows(otherwise), run_id="nobody")
    outcomes = it.run()
    stopped(outcomes[table], table, "two different ranges", it.topic, "ledger rebuild")
    assert outcomes[unharmed]["state"] == "published", outcomes
    other.assert_appended(unharmed)
    assert (
        f"Dropped, because their rows contradict each other and no snapshot has them: {it.topic} batch 1."
        in rebuild(it.contracts, it.catalog, run_id="operator")
    )
    it.drain(table)
    it.assert_appended(table)


def test_a_number_that_another_plan_gave_out_is_not_taken_for_this_one(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)
    (longer,) = it.plan().topics[it.topic].to_stage
    shorter = replace(longer, ranges={0: OffsetRange(0, 4)}, next_offsets={0: 4, 1: 0})
    # What a driver does that was at work when its plan was lost together with the ledger.
    assert stage(it.context(), shorter, gaps_expected=False).records == 4
    assert stage(it.context(), shorter, gaps_expected=False).snapshot_id is None
    with pytest.raises(PlanLostError, match="which another plan gave the same number"):
        stage(it.context(), longer, gaps_expected=False)
    it.catalog.drop_table(table_names.LEDGER)
    it.drain(table)
    it.assert_appended(table)


def test_an_append_that_brings_fewer_rows_than_there_are_good_records(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0)

    def losing(write: BranchWrite, given: MergeInput) -> None:
        monkeypatch.undo()
        merge_batch.merge_batch(write, replace(given, observed=given.observed.where("_kafka_offset <> 3")))

    monkeypatch.setattr(merge_batch, "merge_batch", losing)
    stopped(it.run()[table], table, "18 rows were added for 20 good records")
    assert it.rows(table) == []
    it.drain(table)
    it.assert_appended(table)


@pytest.mark.parametrize("way", usual(["merge-on-read"], ["copy-on-write", "merge-on-read"]))
def test_raw_records_that_somebody_deletes_by_hand_are_missed(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    it = lake()
    it.create_topic(2)
    # Where offsets may lack a record, only the number that was staged tells.
    table = it.contract(transactional=True, limits={"records_per_batch": 20})
    fill(it, 0)
    it.run()
    staging, going_on = ".".join(table_names.staging(it.topic)), staged_batches.load_untrimmed
    run_sql(it, staging, f"ALTER TABLE {{}} SET TBLPROPERTIES ('write.delete.mode'='{way}')")

    def meanwhile(*arguments: Any) -> Any:
        if it.catalog.load_table(staging).current_snapshot().summary["sluice.batch-seq"] == "3":
            monkeypatch.undo()
            delete_rows(it, staging, "batch_seq = 3 AND _kafka_partition = 1 AND _kafka_offset = 25")
        return going_on(*arguments)

    monkeypatch.setattr(staged_batches, "load_untrimmed", meanwhile)
    fill(it, 20, 40)
    told = "batches 3 to 3 were deleted from staging"
    # By the reading, and afterwards by the files.
    for _ in range(2):
        stopped(it.run()[table], table, told)
        assert {r["n"] for r in it.rows(table)} <= set(range(40))
    accept_gap.accept_gaps(
        table, None, PlanInputs(it.contracts, it.catalog, it.admin), Decision("ann", "lost", "by hand"), dry_run=False
    )
    it.drain(table)
    it.assert_appended(table, without=[(1, 25)])


def test_raw_records_deleted_by_their_values_stop_the_table_by_name(lake: Callable[..., Lake]) -> None:
    it, table, other, unharmed = pair(lake)
    fill(it, 0)
    fill(other, 0, partitions=1)
    it.run()
    fill(it, 20)
    stage(it.context(), it.plan().topics[it.topic].to_stage[0], gaps_expected=False)
    staging = ".".join(table_names.staging(it.topic))
    delete_by_equality(it, staging, "k25", partition="batch_seq=2")
    fill(other, 100, partitions=1)
    outcomes = it.run()
    stopped(outcomes[table], table, staging, "equality deletes", "rewrite_data_files")
    assert outcomes[unharmed]["state"] == "published", outcomes
    # The way out that the error names; the record is missed then, as one that was deleted by Spark.
    runbook.run_sql(it, "CALL system.rewrite_data_files", table=staging)
    stopped(it.run()[table], table, "batches 2 to 2 were deleted from staging")
    accept_gap.accept_gaps(
        table, None, PlanInputs(it.contracts, it.catalog, it.admin), Decision("ann", "lost", "by hand"), dry_run=False
    )
    it.drain(table)
    it.assert_appended(table, without=[(1, 12)])


def test_new_partitions_are_read_from_their_beginning(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    appended, merged = it.contract(), it.contract(mode="upsert")
    fill(it, 0, 10, partitions=1)
    it.run()
    it.add_partitions(3)
    it.send((n % 3, f"p{n}", record(n)) for n in range(100, 130))
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)


def transaction(it: Lake) -> Producer:
    producer = Producer({**it.kafka, "transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": 60000})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def test_transactions_committed_aborted_and_open(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    appended, merged = it.contract(transactional=True), it.contract(mode="upsert", transactional=True)
    fill(it, 0, 10)
    first = transaction(it)
    it.send(((n % 2, f"k{n}", record(n)) for n in range(10, 30)), producer=first)
    first.commit_transaction(30)
    aborted = transaction(it)
    it.send(((n % 2, f"k{n}", record(-n)) for n in range(16)), topic=it.topic, producer=aborted)
    aborted.abort_transaction(30)
    it.wait_for_transactions()
    # Nothing but the marks of transactions at the end of partition 1.
    fill(it, 30, 1)
    still_open = transaction(it)
    it.send([(0, "open", record(7))], topic=it.topic, producer=still_open)
    it.send([(0, "after", record(8))], topic=it.topic)
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)
    # 5 plain, 10 committed and a mark, 8 aborted and a mark, 1 plain: up to the open transaction, and no further.
    assert it.plan().topics[it.topic].last.next_offsets == {0: 26, 1: 25}  # type: ignore[union-attr]
    still_open.commit_transaction(30)
    it.wait_for_transactions()
    it.sent[0] |= {26: ("open", record(7)), 27: ("after", record(8))}
    it.drain(appended)
    it.assert_appended(appended)
    it.assert_folded(merged)


def test_a_batch_of_nothing_but_an_aborted_transaction_moves_the_cursor(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    appended, merged = it.contract(transactional=True), it.contract(mode="upsert", transactional=True)
    fill(it, 0, 5, partitions=1)
    it.run()
    aborted = transaction(it)
    it.send(((0, f"k{n}", record(-n)) for n in range(5)), topic=it.topic, producer=aborted)
    aborted.abort_transaction(30)
    it.wait_for_transactions()
    outcomes = it.run()
    assert (outcomes[appended]["state"], outcomes[merged]["state"]) == ("published", "published"), outcomes
    assert not it.plan().has_work
    it.assert_appended(appended)
    it.assert_folded(merged)


def test_offsets_missing_where_nobody_promised_gaps(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    fill(it, 0, 20)
    one = transaction(it)
    it.send(((0, f"t{n}", record(n)) for n in range(5)), producer=one)
    one.commit_transaction(30)
    aborted = transaction(it)
    it.send(((0, f"t{n}", record(n)) for n in range(3)), topic=it.topic, producer=aborted)
    aborted.abort_transaction(30)
    it.send([(0, "last", record(99))])
    it.wait_for_transactions()
    for _ in range(2):
        # The broker may write the marker of the end of a transaction after the record that was sent when it had ended.
        stopped(it.run()[table], table, "5 offsets are missing: partition 0 [15, ", "transactional: true")
        assert it.rows(table) == []
        staging = it.catalog.load_table(table_names.staging(it.topic))
        assert staging.scan().to_arrow().num_rows == 0
        assert set(staging.metadata.refs) <= {"main"}
    it.contract(table=table, transactional=True)
    it.drain(table)
    it.assert_appended(table)


def held(it: Lake) -> set[int]:
    """Which offsets of partition 0 Kafka gives, asked by another client."""
    consumer = Consumer({**it.kafka, "group.id": uuid.uuid4().hex, "enable.partition.eof": True})
    consumer.assign([TopicPartition(it.topic, 0, 0)])
    found = set()
    while (message := consumer.poll(10)) is not None:
        if message.error():
            break
        found.add(message.offset())
    consumer.close()
    return found


def test_gaps_of_a_compacted_topic_are_no_loss(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(
        1,
        cleanup_policy="compact",
        segment_ms="200",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="100",
        max_compaction_lag_ms="300",
    )
    appended, merged = it.contract(), it.contract(mode="upsert")
    it.send((0, f"k{n % 10}", record(n)) for n in range(100))
    time.sleep(0.3)
    it.send([(0, "k3", None)])
    it.contract(table=appended, errors={"max_ratio": 1.0})
    until = time.monotonic() + 30
    while len(held(it)) > 30:
        assert time.monotonic() < until, "the broker never compacted the topic"
        time.sleep(0.3)
        it.send([(0, "roll", record(1))])
    it.drain(appended)
    it.assert_folded(merged)
    offsets = [r["_kafka_offset"] for r in it.rows(appended)]
    assert len(offsets) == len(set(offsets))
    last = {key: offset for offset, (key, value) in sorted(it.sent[0].items()) if value is not None}
    assert set(last.values()) - {last["k3"]} <= set(offsets) <= set(it.sent[0])
    it.send((0, f"k{n % 10}", record(n)) for n in range(200, 220))
    it.drain(appended)
    it.assert_folded(merged)


def test_a_start_at_the_latest_is_pinned_by_the_first_run(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(start="latest")
    fill(it, 0)
    it.run()
    assert it.rows(table) == []
    it.plan()
    fill(it, 100)
    it.drain(table)
    it.assert_appended(table, without=[(p, o) for p in (0, 1) for o in range(10)])


def test_starts_at_a_moment_and_at_offsets(lake: Callable[..., Lake]) -> None:
    it, other = lake(), lake()
    for each in (it, other):
        each.create_topic(2)
    now = int(time.time() * 1000)
    it.send(((n % 2, f"k{n}", record(n)) for n in range(20)), timestamp_ms=now - 60_000)
    it.send([(0, "later", record(1))], timestamp_ms=now)
    moment = datetime.fromtimestamp((now - 30_000) / 1000, UTC).isoformat()
    table = it.contract(start=moment)
    it.drain(table)
    # Partition 1 has no record from then on: it begins at its end.
    it.assert_appended(table, without=[(p, o) for p in (0, 1) for o in range(10)])
    fill(it, 200)
    it.drain(table)
    it.assert_appended(table, without=[(p, o) for p in (0, 1) for o in range(10)])
    fill(other, 0)
    by_offset = other.contract(start={0: 4})
    other.drain(by_offset)
    other.assert_appended(by_offset, without=[(0, o) for o in range(4)])


def test_a_start_that_kafka_does_not_hold(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    table = it.contract(start={0: 3})
    fill(it, 0, 10, partitions=1)
    it.delete_records({0: 8})
    stopped(it.run()[table], table, "{0: (3, 8)}")
    it.contract(table=table, start={0: 30})
    stopped(it.run()[table], table, "{0: (30, 10)}")
    it.contract(table=table, start={0: 8, 1: 4})
    stopped(it.run()[table], table, "partitions that topic", "does not have: [1]", "Correct `start`")
    it.contract(table=table)
    it.drain(table)
    it.assert_appended(table, without=[(0, o) for o in range(8)])


def test_a_change_of_the_contract_that_its_policy_refuses(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table, unharmed = it.contract(), it.contract()
    fill(it, 0)
    it.run()
    it.contract(
        table=table,
        columns=[{"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "string"}],
        schema_policy={"change_type": "refuse"},
    )
    fill(it, 100)
    outcomes = it.run()
    stopped(outcomes[table], table, "refuses this change", "column n: long to string")
    assert outcomes[unharmed]["state"] == "published"
    it.assert_appended(unharmed)
    assert len(it.rows(table)) == 20
    it.contract(table=table)
    fill(it, 200)
    it.drain(table)
    it.assert_appended(table)
    it.assert_appended(unharmed)


def go_on_by_order(it: Lake, within: str, across: str) -> None:
    """An order is named for one of two stopped tables: that one goes on from staging."""
    it.contract(table=across, mode="upsert", order=["_kafka_timestamp"])
    outcomes = it.run()
    assert outcomes[across]["state"] == "published"
    stopped(outcomes[within], "met in two partitions")


def test_a_key_in_two_partitions_needs_an_order(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    within, across = it.contract(mode="upsert"), it.contract(mode="upsert")
    it.send([(0, "a", record(1)), (1, "b", record(2))])
    it.run()
    it.assert_folded(within)
    before = it.rows(within)
    # Against the table: key a lived in partition 0.
    it.send([(1, "a", record(3))])
    for _ in range(2):
        outcomes = it.run()
        for name in (within, across):
            places = f"{it.topic} partition 0 offset 0 and {it.topic} partition 1 offset 1"
            stopped(outcomes[name], name, "met in two partitions", places, "Set `order:`")
            assert it.rows(name) == before
    go_on_by_order(it, within, across)
    it.assert_folded(across, {"a": record(3), "b": record(2)})


def test_a_key_in_two_partitions_of_one_batch_needs_an_order(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    other, unharmed = beside(it)
    it.send([(0, "a", record(1)), (1, "a", record(2)), (0, "b", record(3))])
    fill(other, 0, partitions=1)
    outcomes = it.run()
    places = f"{it.topic} partition 0 offset 0 and {it.topic} partition 1 offset 0"
    stopped(outcomes[table], table, "met in two partitions", places)
    assert it.rows(table) == []
    assert outcomes[unharmed]["state"] == "published"
    other.assert_appended(unharmed)


def test_a_key_that_was_deleted_in_another_partition_needs_an_order(lake: Callable[..., Lake]) -> None:
    """Nothing stands in its way: which of the two came last only an order can say."""
    it = lake()
    it.create_topic(2)
    within, across = it.contract(mode="upsert"), it.contract(mode="upsert")
    it.send([(1, "a", record(1)), (1, "a", None), (1, "b", record(2)), (0, "c", None)])
    it.run()
    for table in (within, across):
        it.assert_folded(table, {"b": record(2)})
    # In its own partition a key may come again.
    it.send([(0, "c", record(3))])
    it.drain(within)
    it.assert_folded(within, {"b": record(2), "c": record(3)})
    before = it.rows(within)
    for value in (record(4), None):
        it.send([(0, "a", value)])
        outcomes = it.run()
        places = f"{it.topic} partition 0 offset 2 and {it.topic} partition 1 offset 1"
        for name in (within, across):
            stopped(outcomes[name], name, "met in two partitions", places, "Set `order:`")
            assert it.rows(name) == before
    go_on_by_order(it, within, across)
    it.assert_folded(across, {"b": record(2), "c": record(3)})


def test_an_order_across_partitions_and_deletes_that_stay_deleted(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert", order=["_kafka_timestamp"])
    start = int(time.time() * 1000) - 100_000
    batches = []

    def run(*records: tuple[int, int, str, Any]) -> None:
        for at, partition, key, value in records:
            it.send([(partition, key, value)], timestamp_ms=start + at)
        batches.extend(it.plan().topics[it.topic].to_stage)
        it.drain(table)

    run((2000, 1, "a", record(2)), (1000, 0, "a", record(1)), (1000, 0, "b", record(10)), (1500, 1, "c", record(20)))
    it.assert_folded(table, {"a": record(2), "b": record(10), "c": record(20)})
    # Deleted in the other partition; an older version arrives late, in the same batch and in the next one.
    run((3000, 0, "a", None), (2500, 1, "a", record(3)), (500, 1, "b", record(9)), (1000, 0, "c", None))
    it.assert_folded(table, {"b": record(10), "c": record(20)})
    run((2900, 1, "a", record(4)), (2000, 0, "c", record(21)))
    it.assert_folded(table, {"b": record(10), "c": record(21)})
    for batch in reversed(batches):
        publish(it.context(), it.contract_of(table), batch, replay=True)
        it.assert_folded(table, {"b": record(10), "c": record(21)})
    run((4000, 1, "a", record(5)))
    it.assert_folded(table, {"a": record(5), "b": record(10), "c": record(21)})
    for batch in batches:
        publish(it.context(), it.contract_of(table), batch, replay=True)
    it.assert_folded(table, {"a": record(5), "b": record(10), "c": record(21)})


def test_replays_of_an_upsert_never_bring_a_deleted_row_back(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    batches = []
    for first, value in ((0, 1), (1, None), (2, 2)):
        keys = [n for n in range(12) if n % 3 >= first]
        it.send((n % 2, f"k{n}", None if value is None else record(n * 10 + value)) for n in keys)
        batches += it.plan().topics[it.topic].to_stage
        it.drain(table)
        it.assert_folded(table)
    for batch in (*reversed(batches), *batches):
        publish(it.context(), it.contract_of(table), batch, replay=True)
        it.assert_folded(table)
    it.send((n % 2, f"k{n}", record(n)) for n in range(12))
    it.drain(table)
    it.assert_folded(table)
