"""Planning warns before Kafka deletes unread records, by age and by size at the measured rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from sluice.kafka import broker
from sluice.plan import retention_warnings
from sluice.status import status, text
from tests.support.lake import Lake

HOUR_MS = 3_600_000


def send(it: Lake, count: int, minutes_ago: int, partition: int = 0) -> None:
    at = int(time.time() * 1000) - minutes_ago * 60_000
    it.send(((partition, f"k{n}", {"n": n}) for n in range(count)), timestamp_ms=at)


def test_by_age(lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    it = lake()
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    it.create_topic(2, retention_ms=str(HOUR_MS))
    table = it.contract()
    send(it, 5, minutes_ago=55)
    send(it, 7, minutes_ago=40)
    send(it, 3, minutes_ago=5, partition=1)
    (warning,) = map(str, it.plan().warnings)  # every five minutes is the default: twice that are ten
    for part in (it.topic, "within 0:10:00", "{0: 5}", f"retention.ms {HOUR_MS}"):
        assert part in warning
    assert f"! {table}: at risk: {it.topic}" in text.as_text(status.read_status(it.contracts), details=False)
    it.drain(table)
    send(it, 4, minutes_ago=30)
    planned = it.plan()
    assert planned.has_work
    assert planned.warnings == ()
    # Once an hour is too seldom for this topic: whatever is unread may be gone before the second run from now.
    (it.folder / "groups.yaml").write_text(yaml.safe_dump({it.group: {"schedule": "@hourly"}}))
    assert "within 2:00:00" in str(it.plan().warnings[0])
    (it.folder / "groups.yaml").write_text(yaml.safe_dump({it.group: {"schedule": None}}))
    assert it.plan().warnings == ()


def test_how_long_the_first_unread_record_is_kept(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(5, retention_ms="-1")  # an hour is only asked for below: by it the broker would delete meanwhile
    for minutes, partition in ((55, 0), (40, 0), (20, 1), (10, 1), (50, 2), (70, 3)):
        send(it, 3, minutes_ago=minutes, partition=partition)
    client = broker.make_admin_client(it.kafka)
    state = broker.describe_topics(client, [it.topic])[it.topic]
    assert isinstance(state, broker.TopicState)
    assert retention_warnings.retention_seconds_left(client, state, {}) == {}
    state = replace(state, retention_ms=HOUR_MS)
    # Of the first partition the older half is read, of the third all; the fourth is older than Kafka keeps anything.
    found = retention_warnings.retention_seconds_left(client, state, {0: 3, 2: 3})
    assert set(found) == {0, 1, 3}
    for partition, minutes in ((0, 20), (1, 40), (3, 0)):
        assert minutes * 60 - 120 < found[partition] <= minutes * 60, found


def test_by_size(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1, retention_ms="-1", retention_bytes=str(1 << 30))
    table = it.contract()
    send(it, 10, minutes_ago=30)
    it.drain(table)
    send(it, 10, minutes_ago=30)
    send(it, 4, minutes_ago=1)
    assert it.plan().warnings == ()  # its beginning is still there: the size is not reached
    it.delete_records({0: 8})
    # Four records in ten minutes: the next four that Kafka deletes are 8 to 11, of which 10 and 11 are unread.
    assert "{0: 2}" in str(it.plan().warnings[0])
    it.drain(table)
    assert it.plan().warnings == ()


def test_when_stagings_copy_is_the_last(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2, retention_ms=str(HOUR_MS))
    table, beside = it.contract(errors={"tolerance": "none"}), it.contract(errors={"max_ratio": 1.0})
    send(it, 3, minutes_ago=58)
    it.drain(beside)
    send(it, 4, minutes_ago=55)
    it.send([(0, "bad", b"{")], timestamp_ms=int(time.time() * 1000) - 52 * 60_000)
    send(it, 2, minutes_ago=10)
    send(it, 2, minutes_ago=10, partition=1)
    outcomes = it.run()
    assert outcomes[table]["state"] == "blocked", outcomes[table]
    (warning,) = it.plan().warnings
    assert warning.table == table
    # The first three are published; the last two of the partition are young.
    assert "{0: (3, 8)}" in str(warning)
    assert "the only copy" in str(warning)
    outcomes = it.run()
    assert outcomes[table]["warnings"] == [str(warning)]
    assert outcomes[beside]["warnings"] == []
    it.delete_records({0: 9})
    (warning,) = it.plan().warnings
    assert "{0: (3, 9)}" in str(warning)


def test_what_is_kept_for_ever_is_never_warned_of(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1, cleanup_policy="compact", retention_ms="60000")
    it.contract()
    send(it, 5, minutes_ago=55)
    assert it.plan().warnings == ()


def test_tombstones_that_compaction_may_remove_before_they_are_read(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2, cleanup_policy="compact", delete_retention_ms=str(HOUR_MS))
    appended, merged = it.contract(errors={"max_ratio": 1.0}), it.contract(mode="upsert")
    send(it, 5, minutes_ago=200)
    assert it.plan().warnings == ()  # nothing was read: there is no row whose delete could be missed
    it.drain(appended)
    it.send([(0, "k1", None), (0, "k2", None)], timestamp_ms=int(time.time() * 1000) - 52 * 60_000)
    it.send([(0, "k3", None)], timestamp_ms=int(time.time() * 1000) - 5 * 60_000)
    (warning,) = it.plan().warnings
    assert "may remove within 0:10:00 (twice the schedule) unread tombstones" in str(warning)
    assert f"{{0: (5, 7)}} (delete.retention.ms {HOUR_MS})" in str(warning)
    (it.folder / "groups.yaml").write_text(yaml.safe_dump({it.group: {"schedule": "* * * * *"}}))
    assert it.plan().warnings == ()
    it.send([(1, "z", None)], timestamp_ms=int(time.time() * 1000) - 61 * 60_000)
    (warning,) = it.plan().warnings
    assert "may already have removed" in str(warning)
    assert "{1: (0, 1)}" in str(warning)
    assert it.run()[merged]["warnings"] == [str(warning)]  # told with the run that passes them
    it.drain(merged)
    assert it.plan().warnings == ()
    it.contract(table=merged, mode="upsert", deletes="ignore")
    it.send([(1, "z", None)], timestamp_ms=int(time.time() * 1000) - 61 * 60_000)
    assert it.plan().warnings == ()
