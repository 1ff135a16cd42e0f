"""A cluster that loses a broker: topics on the other brokers go on, and clients reconnect to another broker."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.errors import BrokerUnavailableError, SluiceError
from sluice.kafka import broker as brokers
from tests.support.services.kafka_cluster import added_broker, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def look(client: AdminClient) -> dict[str, brokers.TopicState | SluiceError]:
    return brokers.describe_topics(client, ["half", "whole"])


def test_a_broker_dies_and_only_what_it_alone_held_is_unavailable(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "one") as first, added_broker(first, tmp_path / "two") as second:
        other = second.process
        assert other
        client = brokers.make_admin_client({"bootstrap.servers": first.bootstrap})
        until(lambda: len(client.list_topics(timeout=10).brokers) == 2)
        placed = [
            NewTopic("whole", 2, replica_assignment=[[1], [1]]),
            NewTopic("half", 2, replica_assignment=[[1], [2]]),
        ]
        for future in client.create_topics(placed).values():
            future.result(30)
        # A topic's offsets are told once its leaders know that they are.
        until(
            lambda: all(
                isinstance(s, brokers.TopicState) for s in brokers.describe_topics(client, ["half", "whole"]).values()
            )
        )
        # In KRaft each answer names any broker as the controller: the client shall hold the one that dies for it.
        until(lambda: client.list_topics(timeout=10).controller_id == 2)
        # It dies with our question in its hands: it is stopped, asked, and killed before it can answer.
        other.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(look, client)
            with pytest.raises(TimeoutError):
                asked.result(2)
            other.kill()
            other.wait()
            assert isinstance(asked.result(60)["whole"], brokers.TopicState)
        until(lambda: isinstance(look(client)["half"], BrokerUnavailableError), brokers.TIMEOUT_S)
        found = look(client)
        assert isinstance(found["whole"], brokers.TopicState)
        assert "half" in str(found["half"]) and "Leader not available" in str(found["half"])
