"""Finds the offsets at a time: by Kafka's time index, and by staging for what Kafka no longer holds. No JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from sluice.batch import Batch
from sluice.iceberg import scan, tables
from sluice.iceberg.filters import And, BooleanExpression, above, at_most, one_of
from sluice.iceberg.record_times import TIMESTAMP
from sluice.kafka import broker
from sluice.ledger import slices
from sluice.offsets import OffsetRange
from sluice.timestamps import EPOCH

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PARTITION, OFFSET = "_kafka_partition", "_kafka_offset"


@dataclass(frozen=True)
class OffsetsAtTime:
    """The offsets at a time.

    Attributes:
        offsets: per partition the first offset whose timestamp is at or after it; the log end offset where none is.
        unknown: per partition the offsets before that one that neither Kafka nor staging has, if no older record is
            known right before it: records of that time or later may have been there.
    """

    offsets: dict[int, int]
    unknown: dict[int, list[OffsetRange]]


def kafka_micros(time: datetime) -> int:
    """Microseconds since the epoch, rounded down to the millisecond, as Kafka's index has them."""
    return (time - EPOCH) // timedelta(milliseconds=1) * 1_000


def find_offsets(
    time: datetime,
    state: broker.TopicState,
    staging: Table | None,
    staged: Sequence[Batch],
    client: AdminClient | None,
) -> OffsetsAtTime:
    """The offsets at a time, in each partition.

    Args:
        time: to the millisecond.
        state: Kafka's answer for the topic.
        staging: the topic's raw records.
        staged: the batches and slices whose rows staging holds completely.
        client: None where Kafka has no answer for the topic.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    at = first = dict.fromkeys(state.watermarks, -1)
    if client is not None:  # not by truth: an idle admin client is falsy
        at = broker.offsets_for_time(client, state.topic, state.watermarks, time)
        first = broker.offsets_for_time(client, state.topic, state.watermarks, EPOCH)
    oldest = {p for p, marks in state.watermarks.items() if at[p] == first[p] and marks.start > 0}
    offsets = {p: at[p] if at[p] >= 0 else marks.end for p, marks in state.watermarks.items()}
    # An earlier record of that time may be gone: Kafka holds no older one, or compaction removed it.
    doubtful = offsets if state.compacted else {p: state.watermarks[p].start for p in sorted(oldest)}
    offsets |= find_first_offsets(staging, {p: OffsetRange(0, end) for p, end in doubtful.items()}, time)
    before = {p: OffsetRange(0, min(offsets[p], state.watermarks[p].start)) for p in sorted(oldest)}
    holes = slices.find_missing_ranges(before, staged)
    behind = {p: OffsetRange(each[-1].end, before[p].end) for p, each in holes.items()}
    older = find_first_offsets(staging, behind)
    return OffsetsAtTime(offsets, {p: each for p, each in holes.items() if p not in older})


def find_first_offsets(
    staging: Table | None, within: Mapping[int, OffsetRange], since: datetime | None = None
) -> dict[int, int]:
    """Per partition the lowest offset in staging within a range, of records since a time; without those that have none.

    All partitions are searched together, in the order of the files' lowest offsets, and only as far as needed.
    """
    sought = {p: r for p, r in within.items() if r.span > 0}
    if staging is None or not sought:
        return {}
    lowest, highest = min(r.start for r in sought.values()), max(r.end for r in sought.values())
    wanted: BooleanExpression = And(above(OFFSET, lowest - 1), at_most(OFFSET, highest - 1))
    if since:
        wanted = And(wanted, above(TIMESTAMP, kafka_micros(since) - 1))
    wanted = And(wanted, one_of(PARTITION, sought))
    offset_field = staging.schema().find_field(OFFSET)

    def lowest_offset(file: DataFile) -> int:
        return tables.decode_bound(file.lower_bounds, offset_field, 0)

    keys, starts = pa.array(sought, pa.int32()), pa.array([r.start for r in sought.values()], pa.int64())
    below = {p: r.end for p, r in sought.items()}
    for task in sorted(tables.plan_files(staging, wanted), key=lambda task: lowest_offset(task.file)):
        if max(below.values()) <= lowest_offset(task.file):
            break
        rows = scan.read_files(staging, [task], wanted, (PARTITION, OFFSET))
        at, offset = pc.index_in(rows[PARTITION], keys), rows[OFFSET]
        ends = pa.array(below.values(), pa.int64())
        lower = pc.and_(pc.greater_equal(offset, starts.take(at)), pc.less(offset, ends.take(at)))
        for found in rows.filter(lower).group_by(PARTITION).aggregate([(OFFSET, "min")]).to_pylist():
            below[found[PARTITION]] = found[f"{OFFSET}_min"]
    return {p: offset for p, offset in below.items() if offset < sought[p].end}
