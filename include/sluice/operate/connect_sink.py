"""Finds where a connector of Iceberg's sink for Kafka Connect stopped. In: its name. Out: a `PreviousWriter`. No JVM.

Its tasks write data files. In one transaction of Kafka each commits its offsets to the connector's consumer group, and
announces its files as events in the control topic. A coordinator then commits announced files to the table. The
snapshot records how far it had read the control topic. If the connector stops in between, files of records whose
offsets are committed are not in the table: such events must not be left.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from sluice.errors import RefusedError
from sluice.iceberg import snapshots
from sluice.kafka import records
from sluice.operate.previous_writer import PreviousWriter, read_consumer_group

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

OFFSETS_PROPERTY = "kafka.connect.offsets"
"""Summary property, followed by the names of control topic and group: the control topic's offsets after the commit."""
DATA_WRITTEN = 1
AVRO_HEADER = b"\xc2\x01"


def check_not_connect(table: Table) -> None:
    """Check that a table's last writer is not Connect's sink: its consumer group can be ahead of what is in the table.

    Raises:
        RefusedError: it is.
    """
    if any(name.startswith(f"{OFFSETS_PROPERTY}.") for name in snapshots.last_of_other_writer(table)):
        raise RefusedError(
            "Iceberg's sink for Kafka Connect wrote the table. Its consumer group can be ahead of the table, by files "
            "that it has announced and not committed.",
            table=".".join(table.name()),
            next_step="Name the connector with --connector, which checks that too.",
        )


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
    for message in records.read_to_end(client, control_topic, start, "sluice-adopt"):
        event = _decode(message.value() or b"")
        if event["type"] == DATA_WRITTEN and event["group_id"] == group:
            payload = event["payload"]
            written = payload["table_reference"]
            files = [*(payload["data_files"] or ()), *(payload["delete_files"] or ())]
            if files and [*written["namespace"], written["name"]] == list(table.name()):
                raise RefusedError(
                    f"The connector wrote {len(files)} files that are not in the table yet: their event is at offset "
                    f"{message.offset()} of partition {message.partition()} of {control_topic}.",
                    table=identifier,
                    next_step="Start the connector, let it commit (iceberg.control.commit.interval-ms), pause its "
                    "topic's producers or stop it right after a commit, and run this again.",
                )
    return PreviousWriter(f"connector {name}", found.offsets)


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
