"""Consumer groups of other systems, asked of Kafka's admin API. Sluice has none of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.errors import BrokerUnavailableError
from sluice.kafka import login
from sluice.kafka.broker import TIMEOUT_S
from sluice.offsets import Offsets

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True)
class ConsumerGroup:
    """A consumer group at one time.

    Attributes:
        members: the client ids of its active members.
        offsets: per topic and partition the committed offset.
    """

    name: str
    members: tuple[str, ...] = ()
    offsets: Mapping[str, Offsets] = field(default_factory=dict)


def describe_group(client: AdminClient, name: str) -> ConsumerGroup:
    """Return a group's members and committed offsets; both are empty if Kafka does not know it.

    Raises:
        BrokerUnavailableError: Kafka did not answer, or this user may not see the group.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

    try:
        described = client.describe_consumer_groups([name], request_timeout=TIMEOUT_S)[name]
        members = tuple(sorted(each.client_id for each in login.await_result(client, described).members))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise _no_answer(client, name, error) from error
        return ConsumerGroup(name)
    try:
        asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], request_timeout=TIMEOUT_S)
        found: dict[str, dict[int, int]] = {}
        for each in login.await_result(client, asked[name]).topic_partitions:
            if each.offset >= 0:
                found.setdefault(each.topic, {})[each.partition] = each.offset
    except KafkaException as error:
        raise _no_answer(client, name, error) from error
    return ConsumerGroup(name, members, found)


def _no_answer(client: AdminClient, name: str, error: Exception) -> BrokerUnavailableError:
    return login.login_error(client) or BrokerUnavailableError(
        f"Kafka returned an error for consumer group {name!r}: {error.args[0].str()}"
    )
