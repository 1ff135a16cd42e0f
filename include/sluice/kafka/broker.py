"""What Kafka says of a topic: its id, its partitions' watermarks, its clean-up policy. No records pass through here.

Ends are last stable offsets: an open transaction holds everything after it back, because reading past it would wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from sluice import timestamps
from sluice.errors import (
    BrokerUnavailableError,
    ConfigError,
    SluiceError,
    TopicForbiddenError,
    TopicMissingError,
)
from sluice.kafka import login
from sluice.offsets import OffsetRange, Offsets, Ranges
from sluice.timeouts import PATIENCE_S

if TYPE_CHECKING:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S = 30.0
# A client asks the broker that it takes for the controller, which is any one that was up when it last looked at the
# cluster: by librdkafka's own default it would go on asking one that died for five minutes, whoever else is there.
DEFAULTS = {"log_level": 2, "topic.metadata.refresh.interval.ms": 10_000}


@dataclass(frozen=True)
class TopicState:
    """One topic at one moment.

    Attributes:
        watermarks: per partition `[low, last stable offset)`.
        compacted: the topic's clean-up policy includes `compact`, so that offsets may be missing.
        retention_ms: `retention.ms`, or -1 for ever; for ever as well where clean-up never deletes.
        retention_bytes: `retention.bytes` of each partition, or -1 for any number.
        delete_retention_ms: how long compaction leaves a tombstone at least, or -1 where nothing is compacted.
    """

    topic: str
    topic_id: str
    watermarks: Mapping[int, OffsetRange]
    compacted: bool
    retention_ms: int
    retention_bytes: int = -1
    delete_retention_ms: int = -1


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
    """A client for the questions below; cheap to keep, 50 ms to make.

    Raises:
        ConfigError: no cluster is configured, or librdkafka does not take the settings.
    """
    return login.client({**DEFAULTS, **client_config(config)})


def _outlives_a_broker(ask: Callable[P, R]) -> Callable[P, R]:
    """Ask once more when the broker that was asked died before it answered, as each does in a rolling restart.

    A cluster that cannot be reached at all fails otherwise, by time, and is not waited for twice.
    """

    @wraps(ask)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        from confluent_kafka import KafkaError, KafkaException

        try:
            return ask(*args, **kwargs)
        except BrokerUnavailableError as error:
            cause = error.__cause__
            if not isinstance(cause, KafkaException) or cause.args[0].code() != KafkaError._TRANSPORT:
                raise
            return ask(*args, **kwargs)

    return asked


@_outlives_a_broker
def names(client: AdminClient) -> set[str]:
    """All topics that there are, as far as the cluster shows them to this client.

    Raises:
        BrokerUnavailableError: the cluster did not answer, or does not let us in.
    """
    from confluent_kafka import KafkaException

    try:
        # The list is waited for to the end of time-outs, even by who is not let in.
        login.answer(client, client.describe_cluster(request_timeout=TIMEOUT_S))
        return set(client.list_topics(timeout=TIMEOUT_S).topics)
    except KafkaException as error:
        raise login.refusal(client) or _silence(error) from error


@_outlives_a_broker
def describe(client: AdminClient, topics: Iterable[str]) -> dict[str, TopicState | SluiceError]:
    """The state of each topic, in four requests whatever their number.

    Returns:
        Per topic its state, or why Kafka does not tell it: one topic that is missing, forbidden or without a leader
        does not hide the others.

    Raises:
        BrokerUnavailableError: the cluster did not answer, or does not let us in.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

    names = sorted(set(topics))
    if not names:
        return {}
    found: dict[str, TopicState | SluiceError] = {}

    def answers(futures: Mapping[Any, Future[Any]], topic: Callable[[Any], str]) -> dict[Any, Any]:
        """What was answered; a topic that an answer is missing of is told why."""
        out = {}
        for asked, future in futures.items():
            answer = _answer(client, future, topic(asked))
            if isinstance(answer, SluiceError):
                found.setdefault(topic(asked), answer)
            out[asked] = answer
        return out

    described = answers(_described(client, names), str)

    def offsets(spec: Any) -> dict[tuple[str, int], int]:
        asked = [TopicPartition(n, p.id) for n, d in described.items() if n not in found for p in d.partitions]
        if not asked:
            return {}
        futures = client.list_offsets(
            dict.fromkeys(asked, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
        )
        told = answers(futures, lambda tp: str(tp.topic))
        return {(tp.topic, tp.partition): int(t.offset) for tp, t in told.items() if tp.topic not in found}

    # Ends first: a record deleted in between then shows as a low watermark above the range, never as a gap.
    ends, lows = offsets(OffsetSpec.latest()), offsets(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names if name not in found]
    asked = client.describe_configs(resources, request_timeout=TIMEOUT_S) if resources else {}
    for resource, settings in answers(asked, lambda r: str(r.name)).items():
        name = resource.name
        if name in found:
            continue
        deletes, compacts = (policy in settings["cleanup.policy"].value for policy in ("delete", "compact"))
        found[name] = TopicState(
            topic=name,
            topic_id=str(described[name].topic_id),
            watermarks={
                p.id: OffsetRange(lows[name, p.id], ends[name, p.id])
                for p in sorted(described[name].partitions, key=lambda p: p.id)
            },
            compacted=compacts,
            retention_ms=int(settings["retention.ms"].value) if deletes else -1,
            retention_bytes=int(settings["retention.bytes"].value) if deletes else -1,
            delete_retention_ms=int(settings["delete.retention.ms"].value) if compacts else -1,
        )
    return found


@_outlives_a_broker
def topic_id(client: AdminClient, topic: str) -> str:
    """Kafka's id of a topic, another one when it is made again.

    Raises:
        TopicMissingError: there is no such topic.
        BrokerUnavailableError: the cluster did not answer, or does not let us in.
        TopicForbiddenError: Kafka does not let this user see it.
    """
    answer = _answer(client, _described(client, [topic])[topic], topic)
    if isinstance(answer, SluiceError):
        raise answer
    return str(answer.topic_id)


def _described(client: AdminClient, topics: list[str]) -> dict[str, Future[Any]]:
    from confluent_kafka import TopicCollection

    return client.describe_topics(TopicCollection(topics), request_timeout=TIMEOUT_S)


def _answer(client: AdminClient, future: Future[Any], topic: str) -> Any:
    """What Kafka answers about a topic, or the error that is about this topic alone.

    Raises:
        BrokerUnavailableError: the cluster did not answer, or does not let us in.
    """
    from confluent_kafka import KafkaException

    try:
        return login.answer(client, future)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() < 0:  # the client's own: nobody answered
            raise login.refusal(client) or _silence(failure) from failure
        if error.name() == "UNKNOWN_TOPIC_OR_PART":
            return TopicMissingError(f"Kafka has no topic {topic!r}.", topic=topic)
        if error.name() == "TOPIC_AUTHORIZATION_FAILED":
            return TopicForbiddenError(f"Kafka does not let this user see topic {topic!r}.", topic=topic)
        return BrokerUnavailableError(f"Kafka has no answer about topic {topic!r}: {error.str()}", topic=topic)


def offsets_at(client: AdminClient, topic: str, partitions: Iterable[int], moment: datetime) -> dict[int, int]:
    """Per partition the first offset whose timestamp is at or after `moment`; -1 where there is none yet.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    return offsets_at_each(client, topic, dict.fromkeys(partitions, moment))


@_outlives_a_broker
def offsets_at_each(client: AdminClient, topic: str, moments: Mapping[int, datetime]) -> dict[int, int]:
    """The same with a moment per partition, in one request.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    # Below zero are no moments to Kafka, but its own words: -1 is the end.
    asked = {
        TopicPartition(topic, p): OffsetSpec.for_timestamp(max(int(moment.timestamp() * 1000), 0))
        for p, moment in moments.items()
    }
    try:
        futures = client.list_offsets(asked, request_timeout=TIMEOUT_S)
        return {tp.partition: int(login.answer(client, future).offset) for tp, future in futures.items()}
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}", topic=topic) from error


def _silence(error: KafkaException) -> BrokerUnavailableError:
    return BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}")


def stream_clock(client: AdminClient, topic: str, partitions: Iterable[int]) -> datetime | None:
    """The greatest timestamp of any record that Kafka holds of the topic; None where it holds none.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    spec: Any = OffsetSpec
    asked = {TopicPartition(topic, p): spec.max_timestamp() for p in partitions}
    if not asked:
        return None
    try:
        futures = client.list_offsets(asked, request_timeout=TIMEOUT_S)
        newest = max(int(login.answer(client, future).timestamp) for future in futures.values())
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}", topic=topic) from error
    return timestamps.moment(newest * 1_000) if newest >= 0 else None


def older_unread(
    client: AdminClient, topic: str, reached: Offsets, watermarks: Ranges, promised: timedelta
) -> Mapping[int, int]:
    """Per partition how many offsets hold records older than the promise and are not in the table.

    The distance of the two clocks alone would cry wolf whenever a topic wakes after a quiet day.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    first_young = offsets_at(client, topic, watermarks, datetime.now(UTC) - promised)
    late = {}
    for partition, marks in watermarks.items():
        young = marks.end if first_young[partition] < 0 else min(first_young[partition], marks.end)
        behind = young - max(reached.get(partition, marks.start), marks.start)
        if behind > 0:
            late[partition] = behind
    return late


def open_broker(seconds: float = PATIENCE_S, settings: Mapping[str, Any] | None = None) -> AdminClient:
    """A client of the Kafka cluster, after it has answered a first question.

    Args:
        seconds: how long to wait.
        settings: librdkafka's; those of the environment when left out.

    Raises:
        BrokerUnavailableError: no broker answered in time, or let us in.
        ConfigError: no cluster is configured.
    """
    from confluent_kafka import KafkaException

    from sluice.kafka import login

    config = client_config(settings)
    client = admin(config)
    try:
        login.answer(client, client.describe_cluster(request_timeout=seconds))
    except KafkaException as error:
        raise login.refusal(client) or BrokerUnavailableError(
            f"Kafka at {config.get('bootstrap.servers', 'an unnamed address')} did not answer within {seconds:g} s: "
            f"{error.args[0].str()}."
        ) from error
    return client
