"""Finds where another writer of a table stopped: by its consumer group, its checkpoint, or by offsets given by hand.

In: the table, and where its writer keeps offsets. Out: per topic and partition the first offset that it has not
written. A writer that still runs, or whose last batch may or may not be in the table, is refused. No JVM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from sluice.errors import RefusedError
from sluice.iceberg import snapshots
from sluice.kafka import consumer_group
from sluice.offsets import Offsets

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

QUERY_ID, EPOCH_ID = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
"""Summary properties of a snapshot that Iceberg's sink for Structured Streaming wrote."""


@dataclass(frozen=True)
class PreviousWriter:
    """The writer that has filled a table.

    Attributes:
        name: what it is, for texts.
        offsets: per topic and partition the first offset that it has not written.
    """

    name: str
    offsets: Mapping[str, Offsets]


def read_consumer_group(client: AdminClient, name: str) -> PreviousWriter:
    """The committed offsets of a consumer group without members.

    Raises:
        RefusedError: it has members, or no offsets.
        BrokerUnavailableError: Kafka did not answer.
    """
    group = consumer_group.describe_group(client, name)
    if group.members:
        raise RefusedError(
            f"Consumer group {name!r} has members: {', '.join(group.members)}. The previous writer still runs.",
            next_step="Stop it, and wait until the group is empty (session.timeout.ms).",
        )
    if not group.offsets:
        raise RefusedError(
            f"Consumer group {name!r} has no committed offsets.",
            next_step="List the groups of the cluster: kafka-consumer-groups.sh --list.",
        )
    return PreviousWriter(f"consumer group {name}", group.offsets)


def read_checkpoint(table: Table, path: str, properties: Mapping[str, str]) -> PreviousWriter:
    """The offsets of a Structured Streaming query, by its checkpoint and the table's snapshots.

    Spark writes `offsets/N` before batch N, and `commits/N` after it. A query that was killed in between may have
    committed batch N to the table. Iceberg's sink records its last batch in the snapshots; another sink does not.

    Args:
        table: the table that the query wrote.
        path: the checkpoint's folder, as the query has it.
        properties: the catalog's, for access to the folder.

    Raises:
        RefusedError: it is no checkpoint of a query that reads Kafka, or its last batch may or may not be in the table.
    """
    folder = Folder(path, properties)
    planned, done = folder.numbers("offsets"), folder.numbers("commits")
    if not planned:
        raise RefusedError(f"{path} is not a checkpoint: it has no folder `offsets` with files.")
    query = json.loads(folder.read("metadata"))["id"]
    ours = (snapshots.summary(s) for s in snapshots.ancestors(table.metadata))
    in_table = next((int(s[EPOCH_ID]) for s in ours if s.get(QUERY_ID) == query), None)
    last = max(-1 if in_table is None else in_table, *done, -1)
    if in_table is None and planned[-1] > last:
        raise RefusedError(
            f"Batch {planned[-1]} of the query has no file in {path}/commits: it may be in the table or not.",
            table=".".join(table.name()),
            next_step="Start the query once more, and stop it between two batches: with trigger(availableNow=True) it "
            "ends by itself.",
        )
    if last not in planned:
        raise RefusedError(f"The checkpoint {path} has no file offsets/{last}.", table=".".join(table.name()))
    return PreviousWriter(f"streaming query {query}, after its batch {last}", _kafka_offsets(path, folder, last))


def _kafka_offsets(path: str, folder: Folder, number: int) -> dict[str, dict[int, int]]:
    # The first line is the version of the format, the second the query's settings, then one line for each source.
    sources = [json.loads(line) for line in folder.read(f"offsets/{number}").splitlines()[2:] if line != "-"]
    found: dict[str, dict[int, int]] = {}
    for source in sources:
        if not isinstance(source, dict) or not all(isinstance(each, dict) for each in source.values()):
            raise RefusedError(f"The query of checkpoint {path} has a source other than Kafka.")
        for topic, offsets in source.items():
            found.setdefault(topic, {}).update({int(p): int(o) for p, o in offsets.items()})
    return found


def read_stopped(read: Callable[[], PreviousWriter], seconds: float) -> PreviousWriter:
    """The writer's offsets, after they stood still for some seconds.

    Raises:
        RefusedError: they moved.
    """
    before = read()
    time.sleep(seconds)
    after = read()
    if before != after:
        raise RefusedError(
            f"The offsets of the previous writer ({after.name}) moved within {seconds:g} s: it still runs.",
            next_step="Stop it.",
        )
    return after


class Folder:
    """Reads small files of a folder in any storage that the catalog's settings give access to."""

    def __init__(self, path: str, properties: Mapping[str, str]) -> None:
        io = PyArrowFileIO(dict(properties))
        scheme, place, self.path = io.parse_location(path.rstrip("/"), dict(properties))
        self.files: Any = io.fs_by_scheme(scheme, place)

    def list_files(self, name: str = "") -> list[pyarrow.fs.FileInfo]:
        """The files in it, or in a folder in it; none if there is no such folder."""
        chosen = pyarrow.fs.FileSelector(f"{self.path}/{name}".rstrip("/"), allow_not_found=True)
        return list(self.files.get_file_info(chosen))

    def numbers(self, name: str) -> list[int]:
        """The numbers that are names of files, in order."""
        return sorted(int(f.base_name) for f in self.list_files(name) if f.base_name.isdecimal())

    def read(self, name: str) -> str:
        """The text of a file."""
        return self.read_bytes(name).decode()

    def read_bytes(self, name: str) -> bytes:
        """The content of a file."""
        try:
            with self.files.open_input_stream(f"{self.path}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError as error:
            raise RefusedError(f"{self.path} is not a complete checkpoint: it has no file {name}.") from error
