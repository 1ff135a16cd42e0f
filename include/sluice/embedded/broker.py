"""A real one-node Kafka broker (KRaft) on loopback: for the embedded stack, the tests and the measurements."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice import jvm
from sluice.embedded import archive, jars
from sluice.embedded.failure import StackError, last_lines
from sluice.embedded.home import cache_folder
from sluice.embedded.inherited import inherited
from sluice.embedded.java import Java, find_java
from sluice.embedded.ports import HOST, answers, free_port
from sluice.embedded.process import MARK, Service, end_alone, start_alone

LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %m (%c{1})%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # A misspelt topic should be an error, not a new topic.
    "auto.create.topics.enable": "false",
    # One node can hold one replica; and few partitions of the internal topics make a quick start.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker may come back only when its former self has timed out.
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
    # Twice a second it would write down that nothing has changed, for other nodes to know: a third of its idle work.
    "metadata.max.idle.interval.ms": "0",
    # What was sent stays, whatever its timestamps say, unless a topic asks for less.
    "log.retention.ms": "-1",
    "num.network.threads": "2",
    "num.io.threads": "4",
}


def broker_service(
    folder: Path,
    log: Path,
    *,
    port: int,
    controller_port: int,
    java: Java,
    jar_folder: Path,
    mark: str,
    settings: Mapping[str, str] | None = None,
    listeners: Mapping[str, int] | None = None,
) -> Service:
    """A broker whose data lies in a folder, formatted if it is new.

    Args:
        folder: Its data and configuration.
        log: What it says.
        port: For clients.
        controller_port: For its own controller.
        java: What it runs on.
        jar_folder: Kafka's jars.
        mark: The mark of the stack that it belongs to.
        settings: Broker settings that replace or join `SETTINGS`.
        listeners: Further listeners for clients, each with its port; `settings` say what they are.
    """
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    offered = ",".join(f"{name}://{HOST}:{at}" for name, at in {"PLAINTEXT": port, **(listeners or {})}.items())
    properties = {
        **SETTINGS,
        **(settings or {}),
        "listeners": f"{offered},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": offered,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "log.dirs": str(data),
    }
    config = folder / "server.properties"
    # JSON escapes as these files have it, which are not UTF-8 to Java: "é" is "\\u00e9".
    lines = (f"{key}={json.dumps(value)[1:-1]}\n" for key, value in sorted(properties.items()))
    config.write_text("".join(lines), encoding="ascii")
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J, encoding="utf-8")
    options = ["-Xms128m", "-Xmx512m", *jvm.SERVICE, f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{jar_folder}/*"]
    env = {**inherited(), "JAVA_HOME": str(java.home), MARK: mark}
    classes = archive.beside(jar_folder)
    # To format takes few classes: an archive of those alone would be no help to the broker.
    quick = archive.using(classes, make=False) if classes.exists() else []
    cluster = _format(folder, config, [str(java.executable), *quick, *options], env, log)
    return Service(
        name="kafka",
        argv=[str(java.executable), *archive.using(classes), *options, "kafka.Kafka", str(config)],
        env=env,
        cwd=folder,
        log=log,
        ready=lambda: is_ready(port, cluster),
        patience=90,
    )


def _format(folder: Path, config: Path, java: list[str], env: Mapping[str, str], log: Path) -> str:
    """Give a new folder its cluster id; returns the id."""
    meta = folder / "data" / "meta.properties"
    if not meta.is_file():
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [*java, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(config)]
        with log.open("ab") as stream:
            done = subprocess.run(command, env=env, stdout=stream, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise StackError(f"could not format {folder / 'data'} for Kafka; the end of {log}:\n{last_lines(log)}")
    for line in meta.read_text(encoding="utf-8").splitlines():
        if line.startswith("cluster.id="):
            return line.removeprefix("cluster.id=")
    raise StackError(f"{meta} names no cluster", way_out=f"remove {folder} to start with an empty broker")


def _cluster_id() -> str:
    """A new id, as Kafka writes it; never with a hyphen first, which the format command takes for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def is_ready(port: int, cluster: str | None = None) -> bool:
    """Whether a broker answers on the port; and, if a cluster is named, whether it is that one's."""
    if not answers(port):
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


class Broker:
    """A broker of one's own, on a free port, for as long as a `with` block or until `stop`.

    Attributes:
        folder: Its data, configuration and log; keeps its content after `stop`, and `start` finds it again.
        port: For clients.
        log: What it says.
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
        self._controller_port = free_port({self.port, *(listeners or {}).values()})
        self._java = java
        self._settings = dict(settings or {})
        self._listeners = dict(listeners or {})
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> Self:
        """Start it and wait until it answers; a second call changes nothing.

        Raises:
            StackError: If it ends or does not answer; with the end of its log.
        """
        if self.pid:
            return self
        java = self._java or find_java(cache_folder())
        service = broker_service(
            self.folder,
            self.log,
            port=self.port,
            controller_port=self._controller_port,
            java=java,
            jar_folder=jars.ensure(jars.KAFKA, java=java),
            mark=self._mark,
            settings=self._settings,
            listeners=self._listeners,
        )
        self._process = start_alone(service)
        return self

    def stop(self, *, grace: float = 20) -> None:
        """Stop it and wait until it is gone; its data stays.

        Args:
            grace: Seconds for an orderly shutdown; 0 pulls the plug.
        """
        if self._process is None:
            return
        if grace <= 0:
            self._process.kill()
        end_alone(self._process, self._mark, grace=grace)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
