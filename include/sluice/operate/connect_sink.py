"""Finds where a connector of Iceberg's sink for Kafka Connect stopped. In: its name. Out: a `PreviousWriter`. No JVM.

Its tasks write data files. In one transaction of Kafka each commits its offsets to the connector's consumer group, and
announces its files as events in the control topic. A coordinator then commits announced files to the table. The
snapshot records how far it had read the control topic. If the connector stops in between, files of records whose
offsets are committed are not in the table: such events must not be left.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from sluice.errors import BrokerUnavailableError, RefusedError, SluiceError
from sluice.iceberg import snapshots
from sluice.kafka import broker, login
from sluice.operate.previous_writer import PreviousWriter, read_consumer_group

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

OFFSETS_PROPERTY = "kafka.connect.offsets"
"""Summary property, followed by the names of control topic and group: the control topic's offsets after the commit."""
DATA_WRITTEN = 1
AVRO_HEADER = b"\xc2\x01"
POLL_S = 30.0


def read_connector(client: AdminClient, table: Table, name: str, control_topic: str) -> PreviousWriter:
    """The offsets of a connector that is stopped, all of whose files are in the table.

    Args:
        client: of the cluster of the connector.
        table: the table that it wrote.
        name: the connector's name; its consumer group is `connect-<name>`.
        control_topic: `iceberg.control.topic` of the connector.

    Raises:
        RefusedError: it runs, has no offsets, or announced files that are not in the table.
        BrokerUnavailableError: Kafka did not answer.
    """
    group = f"connect-{name}"
    found = read_consumer_group(client, group)
    identifier, prefix = ".".join(table.name()), f"{OFFSETS_PROPERTY}.{control_topic}.{group}"
    recorded = (snapshots.summary(s).get(prefix) for s in snapshots.ancestors(table.metadata))
    text = next(filter(None, recorded), None)
    if text is None:
        raise RefusedError(
            f"No snapshot of the table has the property {prefix}.",
            table=identifier,
            next_step="Name the connector, and with --control-topic its control topic. If its snapshots have expired: "
            "let it commit once more.",
        )
    start = {int(p): int(offset) for p, offset in json.loads(text).items()}
    for partition, offset, event in _read_events(client, control_topic, start):
        if event["type"] == DATA_WRITTEN and event["group_id"] == group:
            payload = event["payload"]
            written = payload["table_reference"]
            files = [*(payload["data_files"] or ()), *(payload["delete_files"] or ())]
            if files and [*written["namespace"], written["name"]] == list(table.name()):
                raise RefusedError(
                    f"The connector wrote {len(files)} files that are not in the table yet: their event is at offset "
                    f"{offset} of partition {partition} of {control_topic}.",
                    table=identifier,
                    next_step="Start the connector, let it commit (iceberg.control.commit.interval-ms), pause its "
                    "topic's producers or stop it right after a commit, and run this again.",
                )
    return PreviousWriter(f"connector {name}", found.offsets)


def _read_events(
    client: AdminClient, topic: str, start: Mapping[int, int]
) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Partition, offset and content of each event from these offsets to the end of the control topic."""
    from confluent_kafka import TopicPartition

    state = broker.describe_topics(client, [topic])[topic]
    if isinstance(state, SluiceError):
        raise state
    unread = {p for p, m in state.watermarks.items() if start.get(p, m.start) < m.end}
    settings = {"group.id": "sluice-adopt", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = login.make_consumer(client, {**settings, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, p, start.get(p, state.watermarks[p].start)) for p in unread])
        yield from _poll(consumer, unread)
    finally:
        consumer.close()


def _poll(consumer: Consumer, unread: set[int]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    from confluent_kafka import KafkaError

    while unread:
        message = consumer.poll(POLL_S)
        if message is None:
            raise BrokerUnavailableError(f"Kafka sent no record of the control topic within {POLL_S:g} s.")
        if (error := message.error()) is None:
            yield int(message.partition() or 0), int(message.offset() or 0), _decode(message.value() or b"")
        elif error.code() == KafkaError._PARTITION_EOF:
            unread.discard(int(message.partition() or 0))
        else:
            raise BrokerUnavailableError(f"Kafka returned an error for the control topic: {error.str()}")


def _decode(value: bytes) -> Mapping[str, Any]:
    """An event, as Iceberg's AvroEncoderUtil writes it: two bytes, the schema as Java's UTF, and the record in Avro."""
    import fastavro

    if not value.startswith(AVRO_HEADER):
        raise RefusedError("A record of the control topic is not an event of Iceberg's sink for Kafka Connect.")
    length = int.from_bytes(value[2:4], "big")
    schema = fastavro.parse_schema(_without_namespaces(json.loads(value[4 : 4 + length])))
    return dict(fastavro.schemaless_reader(io.BytesIO(value[4 + length :]), schema))  # type: ignore[arg-type]


def _without_namespaces(schema: Any) -> Any:
    """The schema with plain names: Java writes names of no namespace inside a namespace, where fastavro adds it."""
    if isinstance(schema, str):
        return schema.rpartition(".")[2]
    if isinstance(schema, list):
        return [_without_namespaces(each) for each in schema]
    if isinstance(schema, dict):
        names = ("name", "type", "items", "values", "fields")
        return {k: _without_namespaces(v) if k in names else v for k, v in schema.items() if k != "namespace"}
    return schema
