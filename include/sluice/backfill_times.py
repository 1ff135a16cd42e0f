"""At which offsets a moment lies: by Kafka's index of times, and before what that reaches by staging's rows. No JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import LongType

from sluice import broker, slices, tables
from sluice.clocks import EPOCH, TIMESTAMP
from sluice.filters import And, above
from sluice.model import Batch, OffsetRange

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

OFFSET = "_kafka_offset"


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
    placed = Placed({}, {})
    for p, held in state.watermarks.items():
        found = at[p] if at[p] >= 0 else held.end
        oldest = at[p] == first[p] and held.start > 0
        if oldest or state.compacted:
            # What Kafka has deleted may be as young: it holds no older record, or compaction took what lay between.
            earlier = first_row(staging, p, OffsetRange(0, found if state.compacted else held.start), moment)
            found = found if earlier is None else earlier
        if oldest:
            before = OffsetRange(0, min(found, held.start))
            holes = slices.missing({p: before}, staged).get(p)
            if holes and first_row(staging, p, OffsetRange(holes[-1].end, before.end)) is None:
                placed.unknown[p] = holes
        placed.offsets[p] = found
    return placed


def first_row(staging: Table | None, partition: int, within: OffsetRange, since: datetime | None = None) -> int | None:
    """The least offset that staging has there, of records from a moment on; no more files are read than tell it."""
    if staging is None or within.span <= 0:
        return None
    wanted = slices.spanned(Batch("", "", -1, {partition: within}, {}))
    if since:
        wanted = And(wanted, above(TIMESTAMP, micros(since) - 1))
    columns = staging.scan(selected_fields=(OFFSET,)).projection()
    field = columns.find_field(OFFSET).field_id

    def least(file: DataFile) -> int:
        bound = (file.lower_bounds or {}).get(field)
        return 0 if bound is None else int(from_bytes(LongType(), bound))

    found: int | None = None
    for task in sorted(tables.files(staging, wanted), key=lambda task: least(task.file)):
        if found is not None and least(task.file) >= found:
            break
        rows = ArrowScan(staging.metadata, staging.io, columns, wanted).to_table([task])
        here = pc.min(rows[OFFSET]).as_py()
        found = here if found is None else min(found, here if here is not None else found)
    return found
