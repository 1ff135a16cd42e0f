"""At which offsets a moment lies: by Kafka's index of times, and before what that reaches by staging's rows. No JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from sluice.batch import Batch
from sluice.iceberg import tables
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
class Placed:
    """Where a moment lies.

    Attributes:
        offsets: per partition the first offset whose timestamp is at or after it; the end where there is none.
        unknown: of partitions where neither Kafka nor staging has an older record right before that offset, what both
            lack before it: records from that moment on may have been there.
    """

    offsets: dict[int, int]
    unknown: dict[int, list[OffsetRange]]


def micros(moment: datetime) -> int:
    """As Kafka's index is asked, to the millisecond."""
    return (moment - EPOCH) // timedelta(milliseconds=1) * 1_000


def place(
    moment: datetime,
    state: broker.TopicState,
    staging: Table | None,
    staged: Sequence[Batch],
    client: AdminClient | None,
) -> Placed:
    """Where a moment lies in each partition.

    Args:
        staged: what staging holds whole.
        client: None where Kafka can't be asked.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    at = first = dict.fromkeys(state.watermarks, -1)
    if client is not None:  # it is false while nothing waits in it
        at = broker.offsets_at(client, state.topic, state.watermarks, moment)
        first = broker.offsets_at(client, state.topic, state.watermarks, EPOCH)
    oldest = {p for p, held in state.watermarks.items() if at[p] == first[p] and held.start > 0}
    offsets = {p: at[p] if at[p] >= 0 else held.end for p, held in state.watermarks.items()}
    # What Kafka has deleted may be as young: it holds no older record, or compaction took what lay between.
    doubtful = offsets if state.compacted else {p: state.watermarks[p].start for p in sorted(oldest)}
    offsets |= first_rows(staging, {p: OffsetRange(0, end) for p, end in doubtful.items()}, moment)
    before = {p: OffsetRange(0, min(offsets[p], state.watermarks[p].start)) for p in sorted(oldest)}
    holes = slices.missing(before, staged)
    behind = {p: OffsetRange(each[-1].end, before[p].end) for p, each in holes.items()}
    older = first_rows(staging, behind)
    return Placed(offsets, {p: each for p, each in holes.items() if p not in older})


def first_rows(
    staging: Table | None, within: Mapping[int, OffsetRange], since: datetime | None = None
) -> dict[int, int]:
    """Per partition the least offset that staging has there, of records from a moment on; left out where it has none.

    All partitions are looked up together, and no more files are read than tell it.
    """
    sought = {p: r for p, r in within.items() if r.span > 0}
    if staging is None or not sought:
        return {}
    lowest, highest = min(r.start for r in sought.values()), max(r.end for r in sought.values())
    wanted: BooleanExpression = And(above(OFFSET, lowest - 1), at_most(OFFSET, highest - 1))
    if since:
        wanted = And(wanted, above(TIMESTAMP, micros(since) - 1))
    wanted = And(wanted, one_of(PARTITION, sought))
    columns = staging.scan(selected_fields=(PARTITION, OFFSET)).projection()

    def least(file: DataFile) -> int:
        return tables.bound(file.lower_bounds, columns.find_field(OFFSET), 0)

    keys, starts = pa.array(sought, pa.int32()), pa.array([r.start for r in sought.values()], pa.int64())
    below = {p: r.end for p, r in sought.items()}
    for task in sorted(tables.files(staging, wanted), key=lambda task: least(task.file)):
        if max(below.values()) <= least(task.file):
            break
        rows = ArrowScan(staging.metadata, staging.io, columns, wanted).to_table([task])
        at, offset = pc.index_in(rows[PARTITION], keys), rows[OFFSET]
        ends = pa.array(below.values(), pa.int64())
        lower = pc.and_(pc.greater_equal(offset, starts.take(at)), pc.less(offset, ends.take(at)))
        for found in rows.filter(lower).group_by(PARTITION).aggregate([(OFFSET, "min")]).to_pylist():
            below[found[PARTITION]] = found[f"{OFFSET}_min"]
    return {p: offset for p, offset in below.items() if offset < sought[p].end}
