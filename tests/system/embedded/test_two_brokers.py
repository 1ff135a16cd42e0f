"""A cluster that loses a broker: topics on the other brokers go on, and clients reconnect to another broker."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded import jars
from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.kafka_broker import SETTINGS, EmbeddedBroker
from sluice.embedded.ports import HOST, free_port
from sluice.errors import BrokerUnavailableError, SluiceError
from sluice.kafka import broker as brokers

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def settings_of(broker: EmbeddedBroker, file: str) -> dict[str, str]:
    lines = (broker.folder / file).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@contextmanager
def second(first: EmbeddedBroker, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another broker of the first one's cluster."""
    (folder / "data").mkdir(parents=True)
    own = f"PLAINTEXT://{HOST}:{free_port({first.port})}"
    settings = {
        **SETTINGS,
        "process.roles": "broker",
        "node.id": "2",
        "listeners": own,
        "advertised.listeners": own,
        "controller.quorum.voters": settings_of(first, "server.properties")["controller.quorum.voters"],
        "log.dirs": str(folder / "data"),
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = find_java(cache_folder())
    command = [str(java.executable), "-Xmx256m", "-cp", f"{jars.ensure_jars(jars.KAFKA, java=java)}/*"]
    cluster = settings_of(first, "data/meta.properties")["cluster.id"]
    with (folder / "kafka.log").open("wb") as log:
        told = {"stdout": log, "stderr": subprocess.STDOUT}
        making = [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        subprocess.run(making, check=True, **told)  # type: ignore[call-overload]
        running = subprocess.Popen([*command, "kafka.Kafka", str(config)], **told)  # type: ignore[call-overload]
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def look(client: AdminClient) -> dict[str, brokers.TopicState | SluiceError]:
    return brokers.describe_topics(client, ["half", "whole"])


def test_a_broker_dies_and_only_what_it_alone_held_is_unavailable(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "one") as first, second(first, tmp_path / "two") as other:
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
