"""Topics by pattern: a new topic gets its table without a contract change, and a missing topic is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.batch import PUBLISHED_THROUGH, decode_published_through
from sluice.contract import folder as contract_folder
from sluice.evolve import evolve
from sluice.evolve.pending_change import ReviewDecision
from sluice.iceberg import cursor, snapshots, table_names, tables
from sluice.ledger.offsets_table import Ledger
from sluice.operate import rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.plan.risk import RiskKind, RiskStatus
from sluice.status import status, verdicts
from tests.support.backfills import WHY, backfill_request, delete_rows, read_checked_cursor, run_backfill
from tests.support.lake import Lake

ID, N = {"name": "id", "type": "string", "source": "$key"}, {"name": "n", "type": "long"}


def fill(it: Lake, first: int) -> None:
    it.send((n % 2, f"k{n}", {"n": n, "text": it.topic}) for n in range(first, first + 20))


def test_a_topic_joins_later_and_one_that_is_gone_is_missed(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    pattern = f"{it.topic}[._-](eu|us|late)"
    eu, us, late = (
        Lake(it.spark, it.catalog, it.bootstrap, it.folder, topic=it.topic + end, group=it.group)
        for end in (".eu", "-us", ".late")
    )
    names = [eu.topic, us.topic, late.topic]
    own = {each.topic: f"db.{it.group}_{each.topic.replace('.', '_').replace('-', '_')}" for each in (eu, us, late)}
    together = it.contract(table=f"db.{it.group}_all", topic={"pattern": pattern})
    template = it.contract(table=f"db.{it.group}_{{topic}}", topic={"pattern": pattern, "omit": [us.topic]})
    # Before there is any topic both say so, and make nothing.
    stops = it.plan().stops
    assert sorted(stops) == [together, template]
    assert all("No topic matches" in str(stop) for stop in stops.values())
    for each in (eu, us):
        each.create_topic(2)
        fill(each, 0)
    outcomes = it.run()
    assert {name: each["state"] for name, each in outcomes.items()} == {
        together: "published",
        own[eu.topic]: "published",
    }
    late.create_topic(2)
    for each in (eu, late):
        fill(each, 100)
    outcomes = it.run()
    assert outcomes[together]["batches"] == {late.topic: [1], eu.topic: [2]}
    assert outcomes[own[late.topic]]["records"] == 20
    for each in (eu, us, late):
        each.assert_appended(together, beside=names)
    eu.assert_appended(own[eu.topic])
    late.assert_appended(own[late.topic])
    assert tables.load(it.catalog, tuple(own[us.topic].split("."))) is None
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    told = status.read_status(contract_folder.load_contracts(it.folder))
    assert told.unavailable == []
    assert {t.table: [(x.topic, x.lag_records) for x in t.topics] for t in told.tables}[together] == [
        (name, 0) for name in sorted(names)
    ]
    # A topic that comes to the table of another stops both there, and nothing else.
    thief = Lake(it.spark, it.catalog, it.bootstrap, it.folder, topic=f"{it.topic}-eu", group=it.group)
    thief.create_topic(1)
    stops = it.preview_plan().stops
    assert list(stops) == [own[eu.topic]] and "Several contracts write to one table" in str(stops[own[eu.topic]])
    thief.delete_topic()
    # A topic that was read and is gone is no topic less: the table says so, until it is left out by name.
    us.delete_topic()
    fill(eu, 200)
    outcomes = it.run()
    assert outcomes[together]["red"] and f"Kafka has no topic '{us.topic}'" in outcomes[together]["error"]
    assert outcomes[own[eu.topic]]["state"] == "published"
    it.contract(table=together, topic={"pattern": pattern, "omit": [us.topic]})
    assert it.plan().stops == {}
    eu.assert_appended(together, beside=names)
    head = cursor.find_offset_snapshot(it.catalog.load_table(together), PUBLISHED_THROUGH)
    through = decode_published_through(snapshots.summary(head)[PUBLISHED_THROUGH])
    assert sorted(through) == sorted(names)  # what it has of the others it keeps


def test_a_table_of_a_template_is_one_like_any_other(lake: Callable[..., Lake]) -> None:
    """A hole is filled, a rollback comes again, and a change is reviewed for each table by itself."""
    it = lake()
    eu, us = (
        Lake(it.spark, it.catalog, it.bootstrap, it.folder, topic=it.topic + end, group=it.group)
        for end in (".eu", "-us")
    )
    mine, other = (f"db.{it.group}_{each.topic.replace('.', '_').replace('-', '_')}" for each in (eu, us))
    template = f"db.{it.group}_{{topic}}"
    topic = {"pattern": f"{it.topic}[.-](eu|us)"}
    it.contract(table=template, topic=topic)
    for each in (eu, us):
        each.create_topic(2)
        fill(each, 0)
    it.run()
    stands = read_checked_cursor(it, mine)
    delete_rows(it, mine, "_kafka_partition = 0 AND _kafka_offset < 5")
    with pytest.raises(AssertionError, match="lost"):
        eu.assert_appended(mine)
    (outcome,) = run_backfill(it, backfill_request(mine, {0: [0, 10]}))
    assert outcome["snapshot_id"], outcome
    eu.assert_appended(mine)
    assert read_checked_cursor(it, mine) == stands

    fill(eu, 100)
    it.run()
    ledger = Ledger(it.catalog)
    found = rollback.preview_rollback(mine, it.contracts, it.catalog, ledger, RestorePoint(before_run=f"{it.group}-2"))
    rollback.roll_back(found, it.catalog, ledger, Decision("ann", WHY, "by hand"))
    assert len(it.rows(mine)) == 20
    it.drain(mine)
    eu.assert_appended(mine)

    it.contract(table=template, topic=topic, columns=[ID, N])
    for each in (eu, us):
        fill(each, 200)
    it.drain(mine)
    assert {name: "text" in it.rows(name)[0] for name in (mine, other)} == {mine: True, other: True}
    evolve.decide(it.catalog, it.contract_of(mine), ReviewDecision(approve=True, who="ann", why=WHY, run_id="by hand"))
    it.run()
    assert {name: "text" in it.rows(name)[0] for name in (mine, other)} == {mine: False, other: True}
    eu.assert_appended(mine)
    us.assert_appended(other)


def test_what_a_table_had_yet_to_publish_when_its_topic_was_renamed_is_told_until_it_is_published(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(errors={"tolerance": "none"})
    fill(it, 0)
    it.run()
    fill(it, 100)
    it.send([(0, "bad", b"{")])
    assert it.run()[table]["state"] == "blocked"
    old, new = it.topic, f"{it.topic}-new"
    it.create_topic(2, name=new)
    it.contract(table=table, topic=new)
    (risk,) = it.plan().warnings
    assert (risk.kind, risk.topic, risk.table) == (RiskKind.LEFT_BEHIND, old, table)
    assert '21 staged records, offsets {"0":[10,21],"1":[10,20]}, were not published' in risk.text
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    (told,) = status.read_status(contract_folder.load_contracts(it.folder)).tables
    assert told.risks == [RiskStatus("left behind", old, str(risk))]
    assert (
        verdict := verdicts.worst_verdict(told)
    ).word == "at risk" and "Add the topic to the contract again" in verdict.todo
    # Where another table goes on with the topic, what comes of it is not meant for this one.
    beside = it.contract(table=f"{table}_beside")
    assert it.plan().warnings == ()
    (it.folder / f"{beside}.yaml").unlink()
    it.contract(table=table, topic=[old, new], errors={"max_ratio": 1.0})
    assert it.run()[table]["state"] == "published"
    it.contract(table=table, topic=new)
    assert it.plan().warnings == ()
    it.assert_appended(table, without=[(0, 20)])


def test_no_warning_is_given_of_what_staging_no_longer_holds(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(errors={"tolerance": "none"})
    fill(it, 0)
    it.run()
    it.send([(0, "bad", b"{")])
    it.run()
    new = f"{it.topic}-new"
    it.create_topic(2, name=new)
    it.contract(table=table, topic=new)
    assert [r.kind for r in it.plan().warnings] == [RiskKind.LEFT_BEHIND]
    it.spark.sql(f"DELETE FROM lake.{'.'.join(table_names.staging(it.topic))} WHERE batch_seq = 2")
    assert it.plan().warnings == ()
