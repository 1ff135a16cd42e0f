"""Further brokers of an embedded broker's cluster, each a process of its own that a test may kill and start again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluice.embedded import jars
from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.kafka_broker import SETTINGS, EmbeddedBroker
from sluice.embedded.ports import HOST, free_port

HEAP = "-Xmx256m"


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def _settings_of(broker: EmbeddedBroker, file: str) -> dict[str, str]:
    lines = (broker.folder / file).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


class AddedBroker:
    """A broker in the cluster of `first`, which is its controller.

    Attributes:
        node: its number in the cluster; the first broker has 1.
        process: the running process; None while it does not run.
    """

    def __init__(
        self, first: EmbeddedBroker, folder: Path, node: int, settings: Mapping[str, str] | None = None
    ) -> None:
        (folder / "data").mkdir(parents=True)
        self.node = node
        self.port = free_port({first.port})
        own = f"PLAINTEXT://{HOST}:{self.port}"
        properties = {
            **SETTINGS,
            **(settings or {}),
            "process.roles": "broker",
            "node.id": str(node),
            "listeners": own,
            "advertised.listeners": own,
            "controller.quorum.voters": _settings_of(first, "server.properties")["controller.quorum.voters"],
            "log.dirs": str(folder / "data"),
        }
        self._config = folder / "server.properties"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._log = folder / "kafka.log"
        java = find_java(cache_folder())
        self._command = [str(java.executable), HEAP, "-cp", f"{jars.ensure_jars(jars.KAFKA, java=java)}/*"]
        self._first = first
        self.process: subprocess.Popen[bytes] | None = None
        cluster = _settings_of(first, "data/meta.properties")["cluster.id"]
        command = [*self._command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._config)]
        with self._log.open("ab") as log:
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def start(self) -> Self:
        """Start the broker and wait until the cluster lists it."""
        with self._log.open("ab") as log:
            command = [*self._command, "kafka.Kafka", str(self._config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        client = AdminClient({"bootstrap.servers": self._first.bootstrap, "log_level": 0})
        until(lambda: self.node in client.list_topics(timeout=10).brokers)
        return self

    def kill(self) -> None:
        """Kill the process; its data stays."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def added_broker(
    first: EmbeddedBroker, folder: Path, node: int = 2, settings: Mapping[str, str] | None = None
) -> Iterator[AddedBroker]:
    """Start another broker in the cluster of `first`."""
    added = AddedBroker(first, folder, node, settings)
    try:
        yield added.start()
    finally:
        added.kill()


@dataclass(frozen=True)
class KafkaCluster:
    """Three brokers; the first is the only controller and must stay."""

    first: EmbeddedBroker
    added: tuple[AddedBroker, ...]

    @property
    def bootstrap(self) -> str:
        """All brokers, as `bootstrap.servers`."""
        return ",".join([self.first.bootstrap, *(each.bootstrap for each in self.added)])

    def admin(self) -> AdminClient:
        """A client of the cluster; keep it while an answer is awaited."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def node(self, number: int) -> AddedBroker:
        """One of the added brokers."""
        return next(each for each in self.added if each.node == number)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the partition's leader; -1 if it has none."""
        try:
            found = self.admin().list_topics(topic, timeout=10).topics[topic].partitions
        except KafkaException:
            return -1
        return found[partition].leader if partition in found else -1


@contextmanager
def three_brokers(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[KafkaCluster]:
    """Start a cluster of three brokers."""
    given = dict(settings or {})
    with ExitStack() as stack:
        first = stack.enter_context(EmbeddedBroker(folder / "1", settings=given))
        added = [stack.enter_context(added_broker(first, folder / str(node), node, given)) for node in (2, 3)]
        yield KafkaCluster(first, tuple(added))
