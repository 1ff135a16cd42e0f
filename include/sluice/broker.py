"""What Kafka says of a topic: its id, its partitions' watermarks, its clean-up policy. No records pass through here.

Ends are last stable offsets: an open transaction holds everything after it back, because reading past it would wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sluice.errors import BrokerUnavailableError, ConfigError, TopicMissingError
from sluice.model import OffsetRange

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class TopicState:
    """One topic at one moment.

    Attributes:
        watermarks: per partition `[low, last stable offset)`.
        compacted: the topic's clean-up policy includes `compact`, so that offsets may be missing.
        retention_ms: `retention.ms`, or -1 for ever; for ever as well where clean-up never deletes.
        retention_bytes: `retention.bytes` of each partition, or -1 for any number.
    """

    topic: str
    topic_id: str
    watermarks: Mapping[int, OffsetRange]
    compacted: bool
    retention_ms: int
    retention_bytes: int = -1


def client_config(config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Librdkafka settings: those given, else `SLUICE_KAFKA_CONFIG` (JSON), else `KAFKA_BOOTSTRAP_SERVERS`.

    Raises:
        ConfigError: none of them is set.
    """
    if config:
        return dict(config)
    if text := os.environ.get("SLUICE_KAFKA_CONFIG"):
        try:
            return dict(json.loads(text))
        except ValueError as error:  # never print the value: it may hold a password
            raise ConfigError("SLUICE_KAFKA_CONFIG is not a JSON object of librdkafka settings.") from error
    if servers := os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        return {"bootstrap.servers": servers}
    raise ConfigError(
        "No Kafka cluster is configured.",
        way_out="Set the Airflow connection sluice_kafka, or KAFKA_BOOTSTRAP_SERVERS for the command line.",
    )


def admin(config: Mapping[str, Any] | None = None) -> AdminClient:
    """A client for the questions below; cheap to keep, 50 ms to make."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"log_level": 2, **client_config(config)})


def names(client: AdminClient) -> set[str]:
    """All topics that there are, as far as the cluster shows them to this client.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import KafkaException

    try:
        return set(client.list_topics(timeout=TIMEOUT_S).topics)
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}") from error


def describe(client: AdminClient, topics: Iterable[str]) -> dict[str, TopicState | TopicMissingError]:
    """The state of each topic, in four requests whatever their number.

    Returns:
        Per topic its state, or the error that it does not exist, so that one missing topic does not hide the others.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

    names = sorted(set(topics))
    if not names:
        return {}
    found: dict[str, TopicState | TopicMissingError] = {}
    described = {}
    for name, answer in _described(client, names).items():
        if isinstance(answer, TopicMissingError):
            found[name] = answer
        else:
            described[name] = answer
    if not described:
        return found
    try:
        partitions = [TopicPartition(name, p.id) for name, d in described.items() for p in d.partitions]

        def offsets(spec: Any) -> dict[tuple[str, int], int]:
            futures = client.list_offsets(
                dict.fromkeys(partitions, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=TIMEOUT_S,
            )
            return {(tp.topic, tp.partition): int(future.result().offset) for tp, future in futures.items()}

        # Ends first: a record deleted in between then shows as a low watermark above the range, never as a gap.
        ends, lows = offsets(OffsetSpec.latest()), offsets(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in described]
        configs = {r.name: f.result() for r, f in client.describe_configs(resources, request_timeout=TIMEOUT_S).items()}
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}") from error
    for name, description in described.items():
        settings = configs[name]
        deletes = "delete" in settings["cleanup.policy"].value
        found[name] = TopicState(
            topic=name,
            topic_id=str(description.topic_id),
            watermarks={
                p.id: OffsetRange(lows[name, p.id], ends[name, p.id])
                for p in sorted(description.partitions, key=lambda p: p.id)
            },
            compacted="compact" in settings["cleanup.policy"].value,
            retention_ms=int(settings["retention.ms"].value) if deletes else -1,
            retention_bytes=int(settings["retention.bytes"].value) if deletes else -1,
        )
    return found


def topic_id(client: AdminClient, topic: str) -> str:
    """Kafka's id of a topic, another one when it is made again.

    Raises:
        TopicMissingError: there is no such topic.
        BrokerUnavailableError: the cluster did not answer.
    """
    (answer,) = _described(client, [topic]).values()
    if isinstance(answer, TopicMissingError):
        raise answer
    return str(answer.topic_id)


def _described(client: AdminClient, topics: list[str]) -> dict[str, Any]:
    """What Kafka tells of each topic, or the error that there is none.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import KafkaException, TopicCollection

    found: dict[str, Any] = {}
    try:
        for name, future in client.describe_topics(TopicCollection(topics), request_timeout=TIMEOUT_S).items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
                found[name] = TopicMissingError(f"Kafka has no topic {name!r}.", topic=name)
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}") from error
    return found


def offsets_at(client: AdminClient, topic: str, partitions: Iterable[int], moment: datetime) -> dict[int, int]:
    """Per partition the first offset whose timestamp is at or after `moment`; -1 where there is none yet.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    return offsets_at_each(client, topic, dict.fromkeys(partitions, moment))


def offsets_at_each(client: AdminClient, topic: str, moments: Mapping[int, datetime]) -> dict[int, int]:
    """The same with a moment per partition, in one request.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    asked = {
        TopicPartition(topic, p): OffsetSpec.for_timestamp(int(moment.timestamp() * 1000))
        for p, moment in moments.items()
    }
    try:
        futures = client.list_offsets(asked, request_timeout=TIMEOUT_S)
        return {tp.partition: int(future.result().offset) for tp, future in futures.items()}
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}", topic=topic) from error


def spark_options(config: Mapping[str, Any]) -> dict[str, str]:
    """Librdkafka's settings in the Java client's words, as options of Spark's Kafka source.

    Only the security and connection settings that a reader needs are translated; others of librdkafka have no
    counterpart and are left out.
    """
    passed = {"bootstrap.servers", "security.protocol", "client.id", "client.rack", "request.timeout.ms"}
    options = {f"kafka.{k}": str(v) for k, v in config.items() if k in passed}
    mechanism = config.get("sasl.mechanism") or config.get("sasl.mechanisms")
    if mechanism:
        options["kafka.sasl.mechanism"] = str(mechanism)
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        user, password = (_jaas(str(config.get(f"sasl.{name}", ""))) for name in ("username", "password"))
        options["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={user} password={password};"
        )
    if ca := config.get("ssl.ca.location"):
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(ca)}
    if config.get("ssl.endpoint.identification.algorithm") == "none":
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    return options


def _jaas(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
