"""Continues a topic that goes on elsewhere: under another name, or on another cluster. No JVM.

In: the raw records that staging has of the end of the topic that was read. Out: per partition the offset after the same
record in the topic that continues it; or, where all offsets are the same, a decision that it is the same topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

from sluice.batch import Batch
from sluice.contract.folder import Contracts
from sluice.errors import FencedError, RefusedError
from sluice.iceberg import cursor, refs, table_names, tables
from sluice.iceberg.filters import And, above, equal
from sluice.kafka import broker, records
from sluice.offsets import OffsetRange, Offsets
from sluice.operate.operator_input import Decision

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

COMPARED = 5
"""So many records in a row must be the same: a single one may have been sent several times."""
LOOK_BACK = 1000
"""Offsets before the cursor in which they are looked for. A compacted or transactional topic lacks some."""


class Content(NamedTuple):
    """What a copy of a record has in common with it. Its offset may differ, and its time by the topic's settings."""

    key: bytes | None
    value: bytes | None


class RawRecord(NamedTuple):
    """A record as staging has it.

    Attributes:
        offset: its offset.
        content: its key and value.
        time: its Kafka timestamp.
    """

    offset: int
    content: Content
    time: datetime | None


@dataclass(frozen=True)
class SameOffsets:
    """A topic that has another id than the one that was read, and the same records at the same offsets.

    Attributes:
        staging: the topic's staging table.
        last: the last batch in it.
        topic_id: Kafka's id of the topic that continues it.
        compared: per partition the offsets of the records that were compared.
    """

    staging: Table
    last: Batch
    topic_id: str
    compared: Mapping[int, list[int]]

    def lines(self) -> list[str]:
        """What was found, as text."""
        named = self.last.topic
        return [
            *(
                f"{named} partition {p}: {len(each)} records up to offset {each[-1]} are the same"
                if each
                else f"{named} partition {p}: nothing was read yet"
                for p, each in sorted(self.compared.items())
            ),
            f"{named}: id {self.topic_id} continues {self.last.topic_id} after batch {self.last.seq}",
        ]


def find_offsets(table: str, contracts: Contracts, catalog: Catalog, client: AdminClient, topic: str) -> Offsets:
    """Find where a table's topic goes on in another topic, by its last records: per partition the offset after them.

    Args:
        table: a table of one topic.
        contracts: those with the topic that was read.
        catalog: where the tables are.
        client: of the cluster that holds `topic`.
        topic: the one that has copies of the records, each in the partition of the same number.

    Raises:
        ContractError: no contract names the table.
        RefusedError: with the partition, and why its place is not known.
        TopicMissingError, BrokerUnavailableError: Kafka has no such topic, or did not answer.
    """
    contract = contracts.table(table)
    if len(contract.topics) != 1:
        raise RefusedError(
            "Several topics feed the table: `start` takes no offsets then.",
            table=table,
            next_step="Give the new topic `start` as a time before the move; in mode append, that doubles records.",
        )
    (read,) = contract.topics
    staging, last = _load_staging(catalog, read)
    published = cursor.read_table_cursor(tables.load(catalog, table_names.typed(contract))).get(read)
    if published is None or published.seq < last.seq:
        raise RefusedError(
            f"Batch {last.seq} of topic {read!r} is staged and not published.",
            table=table,
            next_step="Let the group run until `sluice status` shows no open batch: a contract with another topic no "
            "longer publishes batches of this one.",
        )
    marks = broker.describe_topic(client, topic).watermarks
    tails = _read_tails(staging, last, marks, topic)
    found = {p: m.start for p, m in marks.items() if not tails.get(p)}
    found |= _find_copies(client, topic, {p: tail for p, tail in tails.items() if tail}, marks)
    if missing := sorted(set(marks) - set(found)):
        p = missing[0]
        raise RefusedError(
            f"Topic {topic!r} does not have the last {len(tails[p])} records that were read of {read!r}, up to offset "
            f"{tails[p][-1].offset}, in partition {p}; or it has them in several places.",
            table=table,
            partitions=missing,
            next_step="Wait until the copy has caught up. If it never has these records: give `start` as a time.",
        )
    return dict(sorted(found.items()))


def compare_offsets(topic: str, catalog: Catalog, client: AdminClient) -> SameOffsets:
    """Compare a topic that has another id than the one that was read: are its last records at the same offsets?

    Args:
        topic: its name.
        catalog: where the tables are.
        client: of the cluster that holds the topic now.

    Raises:
        RefusedError: it is the same topic, or one with other records, or nothing is known of some partition.
        TopicMissingError, BrokerUnavailableError: Kafka has no such topic, or did not answer.
    """
    staging, last = _load_staging(catalog, topic)
    state = broker.describe_topic(client, topic)
    if cursor.known_topic_id(staging, state.topic_id) == last.topic_id:
        raise RefusedError("This is the topic that was read.", topic=topic, next_step="No action.")
    tails = _read_tails(staging, last, state.watermarks, topic)
    ends = {p: m.end for p, m in state.watermarks.items()}
    begin = {p: tail[0].offset for p, tail in tails.items() if tail}
    there: dict[int, list[tuple[int, Content]]] = {p: [] for p in tails}
    for message in records.read_to_end(client, topic, {**ends, **begin}, "sluice-move"):
        p, offset = int(message.partition() or 0), int(message.offset() or 0)
        if offset < last.next_offsets[p]:
            there[p].append((offset, _content(message)))
    for p, tail in sorted(tails.items()):
        if there[p] != [(each.offset, each.content) for each in tail]:
            raise RefusedError(
                f"Partition {p} has other records at offsets {tail[0].offset} to {tail[-1].offset} than those that "
                "were read.",
                topic=topic,
                next_step="Its offsets were not kept. Mirror it under a new name, and see `sluice offsets --in-topic`; "
                "or it was created again.",
            )
    return SameOffsets(staging, last, state.topic_id, {p: [r.offset for r in tail] for p, tail in tails.items()})


def continue_topic(found: SameOffsets, catalog: Catalog, decision: Decision) -> None:
    """Record that a topic continues the one that was read. The next plan goes on at the same offsets.

    Raises:
        FencedError: another commit came first; nothing was changed.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    move = cursor.Move(found.last.topic_id, found.last.seq, decision.who, decision.why, now)
    update = SetPropertiesUpdate(updates=cursor.encode_move(found.staging, found.topic_id, move))
    unmoved = AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=found.staging.metadata.current_snapshot_id)
    try:
        refs.commit(catalog, found.staging, (unmoved,), (update,))
    except CommitFailedException as error:
        raise FencedError(
            "Another commit changed the staging table meanwhile; nothing was changed.",
            topic=found.last.topic,
            next_step="Run the command again.",
        ) from error


def _load_staging(catalog: Catalog, topic: str) -> tuple[Table, Batch]:
    staging = tables.load_staging(catalog, topic)
    last = cursor.read_staging_cursor(staging)
    if staging is None or last is None:
        raise RefusedError("Nothing of the topic was read yet.", topic=topic, next_step="No action: set `start`.")
    return staging, last


def _read_tails(
    staging: Table, last: Batch, marks: Mapping[int, OffsetRange], topic: str
) -> dict[int, list[RawRecord]]:
    """Per partition that was read its last raw records, in order; none where nothing was read.

    Raises:
        RefusedError: the other topic lacks a partition, or staging has no raw records of one.
    """
    if lacking := sorted(set(last.next_offsets) - set(marks)):
        raise RefusedError(f"Topic {topic!r} has no partition {lacking[0]}.", partitions=lacking)
    tails = {p: _read_tail(staging, p, end) for p, end in sorted(last.next_offsets.items())}
    if unknown := sorted(p for p, tail in tails.items() if not tail and last.next_offsets[p] > 0):
        raise RefusedError(
            f"Staging has no raw records of partition {unknown[0]} that could be compared.",
            topic=last.topic,
            partitions=unknown,
            next_step="Use a new name for the topic, with `start` as a time.",
        )
    return tails


def _read_tail(staging: Table, partition: int, end: int) -> list[RawRecord]:
    newest = And(equal("_kafka_partition", partition), above("_kafka_offset", end - 1 - LOOK_BACK))
    columns = ("_kafka_offset", "key", "value", "_kafka_timestamp")
    scan = staging.scan(row_filter=And(above("batch_seq", 0), newest), selected_fields=columns)
    rows = sorted(scan.to_arrow().to_pylist(), key=lambda row: int(row["_kafka_offset"]))
    return [
        RawRecord(row["_kafka_offset"], Content(row["key"], row["value"]), row["_kafka_timestamp"])
        for row in rows[-COMPARED:]
    ]


def _find_copies(
    client: AdminClient, topic: str, tails: Mapping[int, list[RawRecord]], marks: Mapping[int, OffsetRange]
) -> dict[int, int]:
    """Per partition the offset after the copies of its last records, where there is one such place.

    A copy usually has the time of its original; a topic with `message.timestamp.type=LogAppendTime` sets its own.
    """
    begin = {**{p: m.end for p, m in marks.items()}, **_times_to_offsets(client, topic, tails, marks)}
    wanted = {p: [each.content for each in tail] for p, tail in tails.items()}
    windows: dict[int, deque[Message]] = {p: deque(maxlen=len(tail)) for p, tail in tails.items()}
    at_same_time: dict[int, int] = {}
    at_other_time: dict[int, list[int]] = {}
    for message in records.read_to_end(client, topic, begin, "sluice-move"):
        p, following = int(message.partition() or 0), int(message.offset() or 0) + 1
        windows[p].append(message)
        if [_content(each) for each in windows[p]] == wanted[p]:
            if _same_time(message, tails[p][-1]):
                at_same_time.setdefault(p, following)
            else:
                at_other_time.setdefault(p, []).append(following)
        if at_same_time.keys() == tails.keys():
            break  # a copy may have hours of later records
    return {p: places[0] for p, places in at_other_time.items() if len(places) == 1} | at_same_time


def _times_to_offsets(
    client: AdminClient, topic: str, tails: Mapping[int, list[RawRecord]], marks: Mapping[int, OffsetRange]
) -> dict[int, int]:
    """Per partition where to begin to look for its last records: at the time of the first of them."""
    times = {p: tail[0].time for p, tail in tails.items()}
    known = {p: time for p, time in times.items() if time is not None}
    found = broker.offsets_for_times(client, topic, known) if known else {}
    return {p: (found[p] if found[p] >= 0 else marks[p].end) if p in found else marks[p].start for p in times}


def _content(message: Message) -> Content:
    key, value = message.key(), message.value()
    return Content(*(each.encode() if isinstance(each, str) else each for each in (key, value)))


def _same_time(message: Message, record: RawRecord) -> bool:
    return record.time is not None and message.timestamp()[1] == round(record.time.timestamp() * 1000)
