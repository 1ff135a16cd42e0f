"""The two clocks of a table: its newest record in Kafka, and the newest record in its last durable snapshot.

Neither reads a record. Kafka tells its newest timestamp by ListOffsets; Iceberg keeps the upper bound of each
column with each data file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import TimestamptzType

from sluice import broker, login, tables
from sluice.errors import BrokerUnavailableError
from sluice.filters import equal
from sluice.model import Offsets, Ranges

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMESTAMP = "_kafka_timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ENDS = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
"""What is beyond is told as these: in no time zone are they other years."""


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
        futures = client.list_offsets(asked, request_timeout=broker.TIMEOUT_S)
        newest = max(int(login.answer(client, future).timestamp) for future in futures.values())
    except KafkaException as error:
        raise BrokerUnavailableError(f"Kafka did not answer: {error.args[0].str()}", topic=topic) from error
    return moment(newest * 1_000) if newest >= 0 else None


def table_clock(staging: Table | None, seq: int, typed: Table | None, snapshot: Snapshot | None) -> datetime | None:
    """The greatest record timestamp of a batch, from the column bounds of its data files.

    Args:
        staging: asked first, because it has every record of the batch, tombstones and bad ones among them.
        seq: the batch's number.
        typed: asked when staging no longer has the batch.
        snapshot: the typed table's snapshot that published the batch.
    """
    if staging is not None:
        files = [task.file for task in tables.files(staging, equal("batch_seq", seq))]
        if found := _between(staging, files):
            return found[1]
    if typed is not None and snapshot is not None and (found := span(typed, snapshot)):
        return found[1]
    return None


def span(table: Table, snapshot: Snapshot) -> tuple[datetime, datetime] | None:
    """The least and the greatest record timestamp of what a snapshot added; None where it added no record."""
    return _between(table, _added(table, snapshot))


def _added(table: Table, snapshot: Snapshot) -> list[DataFile]:
    """The data files that one snapshot added."""
    found: list[DataFile] = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
            found += [
                entry.data_file
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
            ]
    return found


def _between(table: Table, files: Iterable[DataFile]) -> tuple[datetime, datetime] | None:
    field_id = table.schema().find_field(TIMESTAMP).field_id
    told = [(file.lower_bounds or {}, file.upper_bounds or {}) for file in files]
    bounds = [each[field_id] for pair in told for each in pair if field_id in each]
    moments = [moment(int(from_bytes(TimestamptzType(), bound))) for bound in bounds]
    return (min(moments), max(moments)) if moments else None


def moment(micros: int) -> datetime:
    """Epoch microseconds as a time within `ENDS`.

    A producer may stamp records with any number, such as microseconds for milliseconds, and Python's years end.
    """
    first, last = ((end - EPOCH) // timedelta(microseconds=1) for end in ENDS)
    return EPOCH + timedelta(microseconds=min(max(micros, first), last))


def older_unread(
    client: AdminClient, topic: str, reached: Offsets, watermarks: Ranges, promised: timedelta
) -> Mapping[int, int]:
    """Per partition how many offsets hold records older than the promise and are not in the table.

    The distance of the two clocks alone would cry wolf whenever a topic wakes after a quiet day.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    first_young = broker.offsets_at(client, topic, watermarks, datetime.now(UTC) - promised)
    late = {}
    for partition, marks in watermarks.items():
        young = marks.end if first_young[partition] < 0 else min(first_young[partition], marks.end)
        behind = young - max(reached.get(partition, marks.start), marks.start)
        if behind > 0:
            late[partition] = behind
    return late
