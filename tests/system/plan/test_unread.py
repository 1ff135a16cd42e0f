"""What is unread by staging's cursors, on a real broker and catalog, for groups with `schedule: on_data`."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewTopic

from sluice.kafka import broker
from sluice.plan.unread import UnreadReader
from tests.support.light_lake import LightLake, only_batch

pytestmark = pytest.mark.system


def read(lake: LightLake, reader: UnreadReader) -> dict[str, int]:
    return dict(reader.read(broker.read_end_offsets(lake.admin, [lake.topic, "no-such-topic"])))


def test_unread_offsets_are_counted_from_stagings_cursor(light_lake):
    it, reader = light_lake, UnreadReader(light_lake.admin, light_lake.catalog)
    assert read(it, reader) == {}
    it.send(0, 3)
    it.send(1, 2)
    assert read(it, reader) == {it.topic: 5}
    it.stage(only_batch(it.plan(), it.topic))
    assert read(it, reader) == {}
    assert reader.position([it.topic]) == {it.topic: {0: 3, 1: 2}}
    it.send(1, 4)
    assert read(it, reader) == {it.topic: 4}


def test_a_topic_that_was_recreated_counts_as_unread(light_lake):
    """Only a run finds that out, and says what to do."""
    it, reader = light_lake, UnreadReader(light_lake.admin, light_lake.catalog)
    it.send(0, 3)
    it.stage(only_batch(it.plan(), it.topic))
    it.admin.delete_topics([it.topic])[it.topic].result(30)
    while it.topic in broker.list_topic_names(it.admin):
        pass
    it.admin.create_topics([NewTopic(it.topic, num_partitions=2)])[it.topic].result(30)
    it.send(0, 1)
    assert read(it, reader) == {it.topic: 2}
