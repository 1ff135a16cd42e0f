"""Finds logs that an unclean leader election truncated below an offset that was read, by leader epochs (KIP-320).

In: offsets, each with the leader epoch in which the records before it were read. Out: from which offset on other
records are in the log. A broker answers from its history of epochs, so that retention and compaction change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from sluice.errors import BrokerUnavailableError
from sluice.kafka import compat, login
from sluice.kafka.broker import TIMEOUT_S

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_SETTINGS = {
    "group.id": "sluice-plan",  # never joined, nothing is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # an open transaction must not delay the answer
    # What is fetched is not used.
    "fetch.message.max.bytes": 1024,
    "queued.max.messages.kbytes": 1024,
    "log_level": 2,
}


class ReadUpTo(NamedTuple):
    """The next offset to read, and the leader epoch in which the records before it were read."""

    offset: int
    epoch: int


def find_truncated(client: AdminClient, read: Mapping[tuple[str, int], ReadUpTo]) -> dict[tuple[str, int], int]:
    """Return, by topic and partition, the first offset that another record took; without those that are as they were.

    Args:
        client: made by `login.make_client`.
        read: by topic and partition; all of them in one consumer, which costs some 50 ms.

    Raises:
        BrokerUnavailableError: Kafka did not answer about a partition.
    """
    from confluent_kafka import KafkaError, TopicPartition

    if not read:
        return {}
    found: dict[tuple[str, int], int] = {}
    waiting, last_error = set(read), ""
    consumer = login.make_consumer(client, _SETTINGS)
    try:
        consumer.assign([TopicPartition(t, p, at.offset, leader_epoch=at.epoch) for (t, p), at in read.items()])
        until = time.monotonic() + TIMEOUT_S
        while waiting and time.monotonic() < until:
            for message in consumer.consume(1000, 0.1):
                error, where = message.error(), (str(message.topic()), int(message.partition() or 0))
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(where)
                elif (first := compat.truncated_at(error.str())) is not None:
                    found[where] = first
                    waiting.discard(where)
                else:
                    last_error = error.str()
    finally:
        consumer.close()
    if waiting:
        topic, partition = min(waiting)
        raise BrokerUnavailableError(
            f"Kafka did not say whether its log was truncated. {last_error}".strip(), topic=topic, partition=partition
        )
    return found
