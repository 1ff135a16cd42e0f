"""Topics' metadata, asked of Kafka's admin API: id, watermarks, retention, offsets by time. Planning starts from these.

End offsets are last stable offsets: a reader would wait at an open transaction.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
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
from sluice.kafka import airflow_connections, login
from sluice.offsets import OffsetRange, Offsets, Ranges
from sluice.timeouts import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S = 30.0
# librdkafka sends admin requests to a broker that was up at its last metadata refresh. By default it refreshes every
# five minutes, and keeps asking a broker that died until then.
CLIENT_DEFAULTS = {"log_level": 2, "topic.metadata.refresh.interval.ms": 10_000}


@dataclass(frozen=True)
class TopicState:
    """A topic's metadata at one time.

    Attributes:
        watermarks: per partition `[low, last stable offset)`.
        compacted: `cleanup.policy` includes `compact`, so that offsets may be missing.
        retention_ms: `retention.ms`; -1 if unlimited, or if `cleanup.policy` never deletes.
        retention_bytes: `retention.bytes` of each partition; -1 if unlimited.
        delete_retention_ms: `delete.retention.ms`; -1 if the topic is not compacted.
        leader_epochs: per partition the epoch of its leader, one higher after each election; without partitions whose
            broker does not report it.
    """

    topic: str
    topic_id: str
    watermarks: Mapping[int, OffsetRange]
    compacted: bool
    retention_ms: int
    retention_bytes: int = -1
    delete_retention_ms: int = -1
    leader_epochs: Mapping[int, int] = field(default_factory=dict)


def librdkafka_config(config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return librdkafka settings: `config`, else `SLUICE_KAFKA_CONFIG` (JSON), else `KAFKA_BOOTSTRAP_SERVERS`.

    Without any of them, a command takes those of Airflow's connection, if Airflow is configured.

    Raises:
        ConfigError: none of them is set, or the JSON is not an object.
        RetryableError: Airflow did not answer in time.
    """
    if config:
        return dict(config)
    airflow_connections.export(airflow_connections.KAFKA)
    if text := os.environ.get("SLUICE_KAFKA_CONFIG"):
        try:
            return dict(json.loads(text))
        except ValueError as error:  # never print the value: it may hold a password
            raise ConfigError("SLUICE_KAFKA_CONFIG is not a JSON object of librdkafka settings.") from error
    if servers := os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        return {"bootstrap.servers": servers}
    raise ConfigError(
        "No Kafka cluster is configured.",
        next_step="Set the Airflow connection sluice_kafka, or KAFKA_BOOTSTRAP_SERVERS for the command line.",
    )


def make_admin_client(config: Mapping[str, Any] | None = None) -> AdminClient:
    """Return a client for the functions below; making one takes 50 ms (AWS_MSK_IAM: 1 s), keeping it costs little.

    Raises:
        BrokerRefusedError: there are no AWS credentials for AWS_MSK_IAM.
        ConfigError: no cluster is configured, or librdkafka rejects the settings.
    """
    return login.make_client({**CLIENT_DEFAULTS, **librdkafka_config(config)})


def _retry_when_broker_dies(ask: Callable[P, R]) -> Callable[P, R]:
    """Ask once more if the broker disconnects before it answers, as in a rolling restart.

    A cluster that can't be reached ends in a timeout, which is not retried.
    """

    @wraps(ask)
    def retrying(*args: P.args, **kwargs: P.kwargs) -> R:
        from confluent_kafka import KafkaError, KafkaException

        try:
            return ask(*args, **kwargs)
        except BrokerUnavailableError as error:
            cause = error.__cause__
            if not isinstance(cause, KafkaException) or cause.args[0].code() != KafkaError._TRANSPORT:
                raise
            return ask(*args, **kwargs)

    return retrying


@_retry_when_broker_dies
def list_topic_names(client: AdminClient) -> set[str]:
    """Return the names of all topics that this client may see.

    Raises:
        BrokerUnavailableError: the cluster did not answer, or rejected the login.
    """
    from confluent_kafka import KafkaException

    try:
        # list_topics waits for its whole timeout when the login is rejected; this request fails at once.
        login.await_result(client, client.describe_cluster(request_timeout=TIMEOUT_S))
        return set(client.list_topics(timeout=TIMEOUT_S).topics)
    except KafkaException as error:
        raise login.login_error(client) or _no_answer(error) from error


@_retry_when_broker_dies
def describe_topics(client: AdminClient, topics: Iterable[str]) -> dict[str, TopicState | SluiceError]:
    """Return the state of each topic, in four requests whatever the number of topics.

    Returns:
        Per topic its state, or the error of a topic that is missing, forbidden or without a leader.

    Raises:
        BrokerUnavailableError: the cluster did not answer, or rejected the login.
    """
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    names = sorted(set(topics))
    if not names:
        return {}
    queries = _TopicQueries(client)
    described = queries.await_all(_request_descriptions(client, names), str)
    # Ends first: a record deleted in between then shows as a low watermark above the range, never as a gap.
    ends = queries.list_offsets(described, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    lows = queries.list_offsets(described, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    settings = queries.describe_settings(described)
    found: dict[str, TopicState | SluiceError] = {**queries.errors}
    for name in described.keys() - queries.errors.keys():
        partitions = sorted(p.id for p in described[name].partitions)
        marks = {p: OffsetRange(int(lows[name, p].offset), int(ends[name, p].offset)) for p in partitions}
        epochs = {p: int(epoch) for p in partitions if (epoch := ends[name, p].leader_epoch) is not None}
        state = _topic_state(name, str(described[name].topic_id), marks, settings[name])
        found[name] = replace(state, leader_epochs=epochs)
    return found


def describe_topic(client: AdminClient, topic: str) -> TopicState:
    """Return the state of one topic.

    Raises:
        TopicMissingError, TopicForbiddenError: Kafka has no such topic for this user.
        BrokerUnavailableError: Kafka did not answer.
    """
    state = describe_topics(client, [topic])[topic]
    if isinstance(state, SluiceError):
        raise state
    return state


@_retry_when_broker_dies
def read_end_offsets(client: AdminClient, topics: Iterable[str]) -> dict[str, Offsets]:
    """Return the last stable offsets by topic and partition, in two requests; topics with an error are left out.

    Raises:
        BrokerUnavailableError: the cluster did not answer, or rejected the login.
    """
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    queries, ends = _TopicQueries(client), dict[str, dict[int, int]]()
    if names := sorted(set(topics)):
        described = queries.await_all(_request_descriptions(client, names), str)
        for (topic, partition), found in queries.list_offsets(described, OffsetSpec.latest()).items():  # type: ignore[no-untyped-call]
            ends.setdefault(topic, {})[partition] = int(found.offset)
    return {topic: offsets for topic, offsets in ends.items() if topic not in queries.errors}


class _TopicQueries:
    """Requests about several topics. A topic that one fails for gets its error in `errors`, and no further request."""

    def __init__(self, client: AdminClient) -> None:
        self.client = client
        self.errors: dict[str, SluiceError] = {}

    def await_all(self, futures: Mapping[Any, Future[Any]], topic_of: Callable[[Any], str]) -> dict[Any, Any]:
        """Return the results by what was asked for; failed ones are left out."""
        results = {}
        for asked, future in futures.items():
            result = _await_topic_result(self.client, future, topic_of(asked))
            if isinstance(result, SluiceError):
                self.errors.setdefault(topic_of(asked), result)
            else:
                results[asked] = result
        return results

    def list_offsets(self, described: Mapping[str, Any], spec: Any) -> dict[tuple[str, int], Any]:
        """Return the offset of each partition, up to the last stable offset, with the epoch of its leader."""
        from confluent_kafka import IsolationLevel, TopicPartition

        asked = [TopicPartition(n, p.id) for n, d in described.items() if n not in self.errors for p in d.partitions]
        if not asked:
            return {}
        futures = self.client.list_offsets(
            dict.fromkeys(asked, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
        )
        results = self.await_all(futures, lambda tp: str(tp.topic))
        return {(tp.topic, tp.partition): result for tp, result in results.items()}

    def describe_settings(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the settings of each topic."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names if name not in self.errors]
        futures = self.client.describe_configs(resources, request_timeout=TIMEOUT_S) if resources else {}
        return {str(r.name): result for r, result in self.await_all(futures, lambda r: str(r.name)).items()}


def _topic_state(name: str, topic_id: str, watermarks: Mapping[int, OffsetRange], settings: Any) -> TopicState:
    deletes, compacts = (policy in settings["cleanup.policy"].value for policy in ("delete", "compact"))
    return TopicState(
        topic=name,
        topic_id=topic_id,
        watermarks=watermarks,
        compacted=compacts,
        retention_ms=int(settings["retention.ms"].value) if deletes else -1,
        retention_bytes=int(settings["retention.bytes"].value) if deletes else -1,
        delete_retention_ms=int(settings["delete.retention.ms"].value) if compacts else -1,
    )


@_retry_when_broker_dies
def fetch_topic_id(client: AdminClient, topic: str) -> str:
    """Return Kafka's id of a topic; it changes when the topic is deleted and created again.

    Raises:
        TopicMissingError: the topic does not exist.
        BrokerUnavailableError: the cluster did not answer, or rejected the login.
        TopicForbiddenError: this user may not see the topic.
    """
    answer = _await_topic_result(client, _request_descriptions(client, [topic])[topic], topic)
    if isinstance(answer, SluiceError):
        raise answer
    return str(answer.topic_id)


def _request_descriptions(client: AdminClient, topics: list[str]) -> dict[str, Future[Any]]:
    from confluent_kafka import TopicCollection

    return client.describe_topics(TopicCollection(topics), request_timeout=TIMEOUT_S)


def _await_topic_result(client: AdminClient, future: Future[Any], topic: str) -> Any:
    """Return Kafka's answer about a topic, or the error that concerns this topic only.

    Raises:
        BrokerUnavailableError: the cluster did not answer, or rejected the login.
    """
    from confluent_kafka import KafkaException

    try:
        return login.await_result(client, future)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() < 0:  # librdkafka's own errors: no broker answered
            raise login.login_error(client) or _no_answer(failure) from failure
        if error.name() == "UNKNOWN_TOPIC_OR_PART":
            return TopicMissingError(f"Kafka has no topic {topic!r}.", topic=topic)
        if error.name() == "TOPIC_AUTHORIZATION_FAILED":
            return TopicForbiddenError(f"This Kafka user may not see topic {topic!r}.", topic=topic)
        return BrokerUnavailableError(f"Kafka returned an error for topic {topic!r}: {error.str()}", topic=topic)


def offsets_for_time(client: AdminClient, topic: str, partitions: Iterable[int], time: datetime) -> dict[int, int]:
    """Return, per partition, the first offset with a timestamp at or after `time`; -1 if there is none.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    return offsets_for_times(client, topic, dict.fromkeys(partitions, time))


@_retry_when_broker_dies
def offsets_for_times(client: AdminClient, topic: str, times: Mapping[int, datetime]) -> dict[int, int]:
    """Return the same with a time per partition, in one request.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    # Negative timestamps are codes to Kafka: -1 means the log end offset.
    asked = {
        TopicPartition(topic, p): OffsetSpec.for_timestamp(max(int(time.timestamp() * 1000), 0))
        for p, time in times.items()
    }
    try:
        futures = client.list_offsets(asked, request_timeout=TIMEOUT_S)
        return {tp.partition: int(login.await_result(client, future).offset) for tp, future in futures.items()}
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}", topic=topic) from error


def _no_answer(error: KafkaException) -> BrokerUnavailableError:
    return BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}")


def read_stream_clocks(client: AdminClient, partitions: Mapping[str, Iterable[int]]) -> dict[str, datetime | None]:
    """Return, by topic, the greatest timestamp of its records, in one request; None if Kafka holds none.

    A partition whose greatest one is beyond the year 9999 does not count: its newest record is not known.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    spec: Any = OffsetSpec
    asked = {TopicPartition(t, p): spec.max_timestamp() for t, numbers in partitions.items() for p in numbers}
    newest: dict[str, list[int]] = {topic: [] for topic in partitions}
    for at, future in (client.list_offsets(asked, request_timeout=TIMEOUT_S) if asked else {}).items():
        try:
            newest[at.topic].append(int(login.await_result(client, future).timestamp))
        except KafkaException as error:
            raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}", topic=at.topic) from error
    return {t: max(filter(None, map(timestamps.utc_from_kafka, each)), default=None) for t, each in newest.items()}


def count_overdue_offsets(
    client: AdminClient, topic: str, committed: Offsets, watermarks: Ranges, target: timedelta
) -> Mapping[int, int]:
    """Return, per partition, how many unread offsets hold records older than the freshness target.

    Comparing the newest records of Kafka and table would raise a false alarm when a topic resumes after a quiet day.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    first_recent = offsets_for_time(client, topic, watermarks, datetime.now(UTC) - target)
    overdue = {}
    for partition, marks in watermarks.items():
        end = marks.end if first_recent[partition] < 0 else min(first_recent[partition], marks.end)
        unread = end - max(committed.get(partition, marks.start), marks.start)
        if unread > 0:
            overdue[partition] = unread
    return overdue


def connect(seconds: float = DEFAULT_TIMEOUT_S, settings: Mapping[str, Any] | None = None) -> AdminClient:
    """Return a client of the Kafka cluster after it answered a first request.

    Args:
        seconds: how long to wait.
        settings: librdkafka's; by default those of the environment.

    Raises:
        BrokerUnavailableError: no broker answered in time, or the login was rejected.
        ConfigError: no cluster is configured.
    """
    from confluent_kafka import KafkaException

    config = librdkafka_config(settings)
    client = make_admin_client(config)
    try:
        login.await_result(client, client.describe_cluster(request_timeout=seconds))
    except KafkaException as error:
        raise login.login_error(client) or BrokerUnavailableError(
            f"Kafka at {config.get('bootstrap.servers', 'an unnamed address')} did not answer within {seconds:g} s: "
            f"{error.args[0].str()}."
        ) from error
    return client
