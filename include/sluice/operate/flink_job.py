"""Finds where a Flink job stopped, by the savepoint that it was stopped with. Out: a `PreviousWriter`. No JVM.

With each checkpoint, Iceberg's sink for Flink writes a manifest of the new data files. When the checkpoint is complete,
the sink commits these files to the table and deletes the manifest. Apart from that, the Kafka source commits its
offsets to the consumer group. Flink does not wait for this, and can drop the commit of a source that ends, even if the
job is stopped with a savepoint. So the group can be before or after the table. The savepoint has the offsets.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Snapshot

from sluice.errors import RefusedError
from sluice.iceberg import snapshots
from sluice.operate.previous_writer import Folder, PreviousWriter

JOB_ID, LAST_CHECKPOINT = "flink.job-id", "flink.max-committed-checkpoint-id"
"""Summary properties of a snapshot that Iceberg's sink for Flink wrote."""
METADATA = "_metadata"
_MANIFEST = re.compile(r"(?P<job>[0-9a-f]{32})-.+-\d+-\d+-(?P<checkpoint>\d+)-\d+\.avro")
"""A manifest's name, by Iceberg's ManifestOutputFileFactory: job, operator, subtask, attempt, checkpoint, number."""
_HEADER = struct.Struct(">Iiq")
"""The beginning of `_metadata`: Flink's magic number, the version of the format, the number of the checkpoint."""
_MAGIC, _VERSIONS = 0x4960672D, range(3, 7)
_SPLIT = re.compile(rb"(?=\0{6}(..)(..)([A-Za-z0-9._-]{1,249}))", re.DOTALL)
"""A partition in a Kafka source's state, by Flink's KafkaPartitionSplitSerializer: version 0 and the length of the rest
in four bytes each, the length of the topic in two bytes, the topic, and `_PARTITION`."""
_PARTITION = struct.Struct(">iqq")
"""The partition, the next offset, and the offset to stop at."""


def check_not_flink(table: Table) -> None:
    """Check that a table's last writer is not Flink, whose consumer group does not say what is in the table.

    Raises:
        RefusedError: it is.
    """
    if job := snapshots.last_of_other_writer(table).get(JOB_ID):
        raise RefusedError(
            f"Flink job {job} wrote the table. Flink does not wait for its commits to the consumer group, so the "
            "group's offsets can differ from what is in the table.",
            table=".".join(table.name()),
            next_step="Stop the job with a savepoint (flink stop), and name the savepoint's folder with --checkpoint.",
        )


def is_savepoint(path: str, properties: Mapping[str, str]) -> bool:
    """Whether a folder is a savepoint or a checkpoint of Flink."""
    return any(file.base_name == METADATA for file in Folder(path, properties).list_files())


def read_savepoint(table: Table, path: str, properties: Mapping[str, str]) -> PreviousWriter:
    """The offsets in a savepoint (or a checkpoint that was kept) of a Flink job, all of whose files are in the table.

    Args:
        table: the table that the job wrote.
        path: the savepoint's folder, which has the file `_metadata`.
        properties: the catalog's, for access to the folder and the table's.

    Raises:
        RefusedError: it can't be read, is not the job's last one, or files of the job are not in the table.
    """
    name = ".".join(table.name())
    folder = Folder(path, properties)
    if len(folder.list_files()) > 1:
        raise RefusedError(
            f"{path} has files beside {METADATA}: the job's state is too large to be read.",
            table=name,
            next_step="Set execution.checkpointing.data-inline-threshold to 1 mb, and stop the job once more.",
        )
    data = folder.read_bytes(METADATA)
    magic, version, checkpoint = _HEADER.unpack_from(data.ljust(_HEADER.size, b"\0"))
    if magic != _MAGIC or version not in _VERSIONS:
        raise RefusedError(f"{path}/{METADATA} is not of a version of Flink that Sluice can read.", table=name)
    last = next((s for s in snapshots.ancestors(table.metadata) if JOB_ID in snapshots.summary(s)), None)
    committed = int(snapshots.summary(last).get(LAST_CHECKPOINT, -1)) if last else -1
    if committed > checkpoint:
        raise RefusedError(
            f"The table has the files of checkpoint {committed}, and {path} is checkpoint {checkpoint}.",
            table=name,
            next_step="Name the savepoint that the job was stopped with.",
        )
    _check_files(table, last, properties)
    offsets: dict[str, dict[int, int]] = {}
    for topic, partition, offset in _splits(data):
        if offset < 0 or offsets.setdefault(topic, {}).setdefault(partition, offset) != offset:
            raise RefusedError(f"{path} has no single offset of partition {partition} of {topic}.", table=name)
    if not offsets:
        raise RefusedError(f"{path} has no offsets of a Kafka source.", table=name)
    return PreviousWriter(f"Flink job, after its checkpoint {checkpoint}", offsets)


def _splits(data: bytes) -> Iterator[tuple[str, int, int]]:
    for match in _SPLIT.finditer(data):
        length, of_topic = (int.from_bytes(match[group], "big") for group in (1, 2))
        end = match.start(3) + of_topic
        if length == 2 + of_topic + _PARTITION.size and end <= match.end(3) and end + _PARTITION.size <= len(data):
            partition, offset, _ = _PARTITION.unpack_from(data, end)
            yield data[match.start(3) : end].decode("ascii"), partition, offset


def _check_files(table: Table, last: Snapshot | None, properties: Mapping[str, str]) -> None:
    # A job that is started from the checkpoint of a killed one commits under a new id, after what the killed one left.
    found = snapshots.summary(last) if last else {}
    metadata = load_location_provider(table.location(), table.properties).new_metadata_location("")
    folder = Folder(table.properties.get("flink.manifests.location", metadata), properties)
    for file in folder.list_files():
        if (match := _MANIFEST.fullmatch(file.base_name)) is None:
            continue
        if match["job"] == found.get(JOB_ID):
            is_left = int(match["checkpoint"]) > int(found.get(LAST_CHECKPOINT, -1))
        else:
            is_left = last is None or file.mtime.timestamp() * 1000 > last.timestamp_ms
        if is_left:
            raise RefusedError(
                f"Flink job {match['job']} wrote files for its checkpoint {match['checkpoint']} that are not in the "
                f"table: {file.path}.",
                table=".".join(table.name()),
                next_step="Start the job from its last checkpoint, wait until it commits to the table, and stop it "
                "with a savepoint (flink stop).",
            )
