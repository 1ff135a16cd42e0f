"""A one-node Kafka broker (KRaft) on loopback: for the embedded stack, the tests and the benchmarks."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice import jvm
from sluice.embedded import class_archive, jars
from sluice.embedded.caller_env import inherited_env
from sluice.embedded.failure import StackError, last_lines
from sluice.embedded.home import cache_folder
from sluice.embedded.java import LOG4J_TO_CONSOLE, Java, JavaServiceConfig, find_java
from sluice.embedded.ports import HOST, accepts_connections, free_port
from sluice.embedded.process import MARK_VARIABLE, Service, start_and_wait, stop_service

LOG4J = f"""\
{LOG4J_TO_CONSOLE}logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # A misspelt topic name must fail, not create a topic.
    "auto.create.topics.enable": "false",
    # One node holds one replica, and few partitions of the internal topics make the start fast.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker can only register again when its old session has timed out.
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
    # No no-op records in the metadata log: by default two a second, a third of the idle broker's work.
    "metadata.max.idle.interval.ms": "0",
    # Records are kept without a time limit, whatever their timestamps, unless a topic sets one.
    "log.retention.ms": "-1",
    "num.network.threads": "2",
    "num.io.threads": "4",
}


@dataclass(frozen=True)
class BrokerPorts:
    """The ports of a broker.

    Attributes:
        clients: For clients (PLAINTEXT).
        controller: For its own controller.
        listeners: Further listeners for clients by name; their protocols are in the broker's settings.
    """

    clients: int
    controller: int
    listeners: Mapping[str, int] = field(default_factory=dict)


def broker_service(
    config: JavaServiceConfig, jar_folder: Path, ports: BrokerPorts, settings: Mapping[str, str] | None = None
) -> Service:
    """Write a broker's configuration, format its data folder if it is new, and return the service.

    Args:
        config: Its folder, log, Java and mark.
        jar_folder: Kafka's jars.
        ports: Its ports.
        settings: Broker settings, added to `SETTINGS`.
    """
    folder = config.folder
    (folder / "data").mkdir(parents=True, exist_ok=True)
    properties_file = folder / "server.properties"
    properties_file.write_text(_properties(folder, ports, settings or {}), encoding="ascii")
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J, encoding="utf-8")
    java = str(config.java.executable)
    options = [
        "-Xms128m",
        "-Xmx512m",
        *jvm.SERVICE_OPTIONS,
        f"-Dlog4j2.configurationFile={log4j}",
        "-cp",
        f"{jar_folder}/*",
    ]
    env = {**inherited_env(), "JAVA_HOME": str(config.java.home), MARK_VARIABLE: config.mark}
    archive = class_archive.archive_for_jars(jar_folder)
    # `format` may use the archive but not create it: it loads few classes, and the broker needs many more.
    format_options = class_archive.archive_options(archive, make=False) if archive.exists() else []
    cluster = _format_storage(config, [java, *format_options, *options], env)
    start_options = [*class_archive.archive_options(archive), *options]
    return Service(
        name="kafka",
        argv=[java, *start_options, "kafka.Kafka", str(properties_file)],
        env=env,
        cwd=folder,
        log=config.log,
        ready=lambda: broker_is_ready(ports.clients, cluster),
        patience=90,
    )


def _properties(folder: Path, ports: BrokerPorts, settings: Mapping[str, str]) -> str:
    advertised = ",".join(
        f"{name}://{HOST}:{port}" for name, port in {"PLAINTEXT": ports.clients, **ports.listeners}.items()
    )
    properties = {
        **SETTINGS,
        **settings,
        "listeners": f"{advertised},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": advertised,
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "log.dirs": str(folder / "data"),
    }
    # Java reads properties files as Latin-1 with \\u escapes, and JSON's escapes are the same.
    return "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in sorted(properties.items()))


def _format_storage(config: JavaServiceConfig, java: list[str], env: Mapping[str, str]) -> str:
    """Format the data folder if it is new; return its cluster id."""
    folder, log = config.folder, config.log
    meta = folder / "data" / "meta.properties"
    if not meta.is_file():
        log.parent.mkdir(parents=True, exist_ok=True)
        properties = str(folder / "server.properties")
        command = [*java, "kafka.tools.StorageTool", "format", "-t", _new_cluster_id(), "-c", properties]
        with log.open("ab") as stream:
            done = subprocess.run(command, env=env, stdout=stream, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise StackError(f"could not format {folder / 'data'} for Kafka; the end of {log}:\n{last_lines(log)}")
    for line in meta.read_text(encoding="utf-8").splitlines():
        if line.startswith("cluster.id="):
            return line.removeprefix("cluster.id=")
    raise StackError(f"{meta} has no cluster.id", next_step=f"remove {folder} to start with an empty broker")


def _new_cluster_id() -> str:
    """Return a random id in Kafka's form, without a leading hyphen, which the format command reads as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def broker_is_ready(port: int, cluster: str | None = None) -> bool:
    """Whether a broker answers on the port and, if `cluster` is given, belongs to that cluster."""
    if not accepts_connections(port):
        return False
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    config: dict[str, Any] = {"bootstrap.servers": f"{HOST}:{port}", "log_level": 0, "error_cb": lambda _: None}
    admin = AdminClient(config)
    try:
        metadata = admin.list_topics(timeout=3)
    except KafkaException:
        return False
    return bool(metadata.brokers) and cluster in (None, metadata.cluster_id)


class EmbeddedBroker:
    """A broker on a free port, started by a `with` block or `start` and stopped at the block's end or by `stop`.

    Attributes:
        folder: Its data, configuration and log; they stay after `stop`, and `start` uses them again.
        port: The port for clients.
        log: The file with its output.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        java: Java | None = None,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, int] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.port = port or free_port()
        self.log = self.folder / "kafka.log"
        further = dict(listeners or {})
        self._ports = BrokerPorts(self.port, free_port({self.port, *further.values()}), further)
        self._java = java
        self._settings = dict(settings or {})
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> Self:
        """Start the broker and wait until it answers; does nothing if it runs.

        Raises:
            StackError: The broker ended or does not answer; the message has the end of its log.
        """
        if self.pid:
            return self
        java = self._java or find_java(cache_folder())
        service = broker_service(
            JavaServiceConfig(self.folder, self.log, java, self._mark),
            jars.ensure_jars(jars.KAFKA, java=java),
            self._ports,
            self._settings,
        )
        self._process = start_and_wait(service)
        return self

    def stop(self, *, grace: float = 20) -> None:
        """Stop the broker and wait until its process has ended; its data stays.

        Args:
            grace: Seconds for an orderly shutdown; 0 kills it.
        """
        if self._process is None:
            return
        if grace <= 0:
            self._process.kill()
        stop_service(self._process, self._mark, grace=grace)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
