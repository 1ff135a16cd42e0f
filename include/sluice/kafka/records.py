"""Reads records with librdkafka, in small numbers: Spark reads a topic for its tables. No consumer group is joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.errors import BrokerUnavailableError
from sluice.kafka import broker, login

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

POLL_S = 30.0


def read_to_end(client: AdminClient, topic: str, start: Mapping[int, int], group: str) -> Iterator[Message]:
    """Yield the committed records of a topic, up to the end that each partition has when this begins.

    Args:
        client: of the cluster.
        topic: the topic.
        start: per partition the first offset. Of other partitions, all records are read.
        group: the name by which Kafka's access rules know the reader.

    Raises:
        TopicMissingError, TopicForbiddenError: Kafka has no such topic for this user.
        BrokerUnavailableError: Kafka did not answer.
    """
    from confluent_kafka import KafkaError, TopicPartition

    state = broker.describe_topic(client, topic)
    first = {p: max(start.get(p, 0), marks.start) for p, marks in state.watermarks.items()}
    ends = {p: marks.end for p, marks in state.watermarks.items() if first[p] < marks.end}
    settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = login.make_consumer(client, {**settings, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, p, first[p]) for p in ends])
        while ends:
            message = consumer.poll(POLL_S)
            if message is None:
                raise BrokerUnavailableError(f"Kafka sent no record of topic {topic!r} within {POLL_S:g} s.")
            partition, offset, error = int(message.partition() or 0), int(message.offset() or 0), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise BrokerUnavailableError(f"Kafka returned an error for topic {topic!r}: {error.str()}")
            if partition in ends and error is None and offset < ends[partition]:
                yield message
            # A transaction's marker may be the last offset before the end.
            if partition in ends and (error is not None or offset >= ends[partition] - 1):
                del ends[partition]
    finally:
        consumer.close()
