"""Topics by a pattern: one that appears later joins by itself and gets its table, and one that is gone is missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice import contracts, cursor, status, tables
from sluice.model import PUBLISHED_THROUGH, decode_through
from tests.support.lake import Lake


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
    told = status.look(contracts.load(it.folder))
    assert told.unavailable == []
    assert {t.table: [(x.topic, x.lag_records) for x in t.topics] for t in told.tables}[together] == [
        (name, 0) for name in sorted(names)
    ]
    # A topic that comes to the table of another stops both there, and nothing else.
    thief = Lake(it.spark, it.catalog, it.bootstrap, it.folder, topic=f"{it.topic}-eu", group=it.group)
    thief.create_topic(1)
    stops = it.look().stops
    assert list(stops) == [own[eu.topic]] and "Several contracts come to one table" in str(stops[own[eu.topic]])
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
    head = cursor.carrier(it.catalog.load_table(together), PUBLISHED_THROUGH)
    through = decode_through(cursor.summary(head)[PUBLISHED_THROUGH])
    assert sorted(through) == sorted(names)  # what it has of the others it keeps
