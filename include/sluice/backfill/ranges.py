"""Resolves what an operator asks for, ranges or times, to exact offset ranges, or refuses it. No JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from sluice.backfill import offsets_at_time
from sluice.batch import Batch, PublishedOffsets
from sluice.errors import RefusedError, StagingTrimmedError
from sluice.iceberg import cursor, range_scan
from sluice.iceberg.filters import And, equal
from sluice.iceberg.record_times import TIMESTAMP
from sluice.kafka import broker
from sluice.ledger import backlog, slices
from sluice.ledger.ledger_rows import batches_from_rows, row_from_record
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange, Offsets, Ranges, encode_gaps, encode_ranges

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


COORDINATES = ("_kafka_partition", "_kafka_offset")
"""The columns that identify a record within its topic."""


@dataclass(frozen=True)
class Request:
    """What an operator asks for.

    Attributes:
        ranges: `{partition: [start, end)}`; or else a time by `since` and `until`.
        since: default: from the first offset that there is.
        until: default: the first offset of live ingest.
        origin: where the records are read.
        topic: one of the table's topics; may be empty where it has only one.
        why: the reason, kept in the ledger.
    """

    table: str
    ranges: Mapping[int, Sequence[int]] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    origin: Origin = Origin.KAFKA
    topic: str = ""
    why: str = ""

    @property
    def needs_kafka(self) -> bool:
        """Whether the records are read from Kafka; else it is not an error that Kafka has no answer."""
        return self.origin == Origin.KAFKA


@dataclass(frozen=True)
class RangeSources:
    """Where the records may be.

    Attributes:
        state: Kafka's answer for the topic, or a stand-in where `kafka_error` is set.
        staged: the batches and slices whose rows staging holds completely.
        live_ingest_start: per partition the first offset of live ingest; None where neither ledger nor staging has it.
        cursor: per partition the table's cursor.
        staging: the topic's raw records.
        kafka_error: why Kafka has no answer for the topic; empty where it has.
        adopted_at: per partition the first offset that Sluice read, if another writer filled the table before.
    """

    state: broker.TopicState
    staged: Sequence[Batch]
    live_ingest_start: Mapping[int, int] | None
    quarantine: Table | None
    cursor: Mapping[int, int] = field(default_factory=dict)
    staging: Table | None = None
    kafka_error: str = ""
    adopted_at: Offsets = field(default_factory=dict)


def parse_time(text: str, name: str) -> datetime | None:
    """A time from ISO 8601 text; None where it is blank.

    Args:
        text: with a time zone.
        name: the field, for the error.

    Raises:
        RefusedError: it is not a time, or has no time zone.
    """
    if not text.strip():
        return None
    try:
        given = datetime.fromisoformat(text.strip())
        found = given.astimezone(UTC) if given.tzinfo else None
    except (ValueError, OverflowError):
        found = None
    if found is None:
        raise RefusedError(
            f"{name} is {text!r}, which is not a time with a time zone.",
            next_step="Write it as 2026-01-31T06:00:00+00:00.",
        )
    return found


@dataclass(frozen=True)
class ResolvedRanges:
    """Exact ranges, none of them empty.

    Attributes:
        cut_at: per partition the requested end, where it is above the table's cursor and was cut off there.
    """

    ranges: dict[int, OffsetRange]
    cut_at: dict[int, int] = field(default_factory=dict)


def resolve_ranges(request: Request, sources: RangeSources, client: AdminClient) -> ResolvedRanges:
    """The exact offset ranges of a request.

    Raises:
        RefusedError: with the partition, the offsets and the reason.
        BrokerUnavailableError: Kafka did not answer.
    """
    if request.ranges and (request.since or request.until):
        raise RefusedError(
            "Both ranges and a time are given.", table=request.table, next_step="Give the ranges, or since and until."
        )
    if request.ranges:
        found = ResolvedRanges({p: OffsetRange(*bounds) for p, bounds in sorted(request.ranges.items())})
    else:
        if request.since and request.until and request.until <= request.since:
            text = f"The time ends ({request.until}) before it starts ({request.since})."
            raise RefusedError(text, table=request.table)
        quarantined = request.origin == Origin.QUARANTINE
        found = (
            ResolvedRanges(_quarantined_ranges(request, sources))
            if quarantined
            else _ranges_between_times(request, sources, client)
        )
    _check_ranges(request, sources, found.ranges)
    return found


def _check_ranges(request: Request, sources: RangeSources, found: Ranges) -> None:
    marks, topic = sources.state.watermarks, sources.state.topic
    for p, r in found.items():
        where = {"table": request.table, "topic": topic, "partition": p, "range": list(r)}
        if p not in marks:
            raise RefusedError(
                f"The topic has no partition {p}.", **where, next_step=f"It has {', '.join(map(str, sorted(marks)))}."
            )
        if r.start < 0 or r.end < r.start:
            raise RefusedError("The range ends before it starts.", **where, next_step="Write it as [first, end).")
        if r.span == 0:
            raise RefusedError("The range is empty.", **where, next_step="The end is the offset after the last one.")
        if r.start < (first := sources.adopted_at.get(p, 0)):
            raise RefusedError(
                f"Another writer filled the table below offset {first}; its rows do not tell their offsets, so that a "
                "backfill would add them again, or put older values in their place.",
                **where,
                next_step=f"Start at {first}, or load the history into a new table.",
            )
        if r.end > marks[p].end and not sources.kafka_error:
            raise RefusedError(
                f"The range ends after the log end offset, {marks[p].end}.",
                **where,
                next_step=f"End it at {marks[p].end} or before.",
            )
        if request.origin == Origin.KAFKA and r.start < marks[p].start:
            holes = slices.find_missing_ranges({p: OffsetRange(r.start, min(r.end, marks[p].start))}, sources.staged)
            lost = f"staging lacks {[tuple(h) for h in holes[p]]}" if holes else "staging has all: use source staging"
            raise RefusedError(
                f"Kafka no longer holds the range; the log start offset is {marks[p].start}.",
                **where,
                next_step=f"Start at {marks[p].start}; of what Kafka lacks, {lost}.",
            )


def _quarantined_ranges(request: Request, sources: RangeSources) -> dict[int, OffsetRange]:
    """Per partition the range from the first to the last quarantined record below the table's cursor.

    Records above the cursor belong to a blocked batch, which publishes them itself. A time selects by the records' own
    timestamps.
    """
    table, topic = sources.quarantine, sources.state.topic
    found: dict[int, OffsetRange] = {}
    if table is not None and table.current_snapshot():
        partition, offset = COORDINATES
        columns = (*COORDINATES, TIMESTAMP)
        rows = table.scan(row_filter=equal("_kafka_topic", topic), selected_fields=columns).to_arrow()

        def ends(which: str, since: datetime | None = None) -> dict[int, int]:
            some = rows
            if since:
                at = pc.cast(rows[TIMESTAMP], pa.int64())
                some = rows.filter(pc.greater_equal(at, offsets_at_time.kafka_micros(since)))
            found = some.group_by(partition).aggregate([(offset, which)]).to_pylist()
            return {r[partition]: r[f"{offset}_{which}"] for r in found}

        past = {p: last + 1 for p, last in ends("max").items()} | (ends("min", request.until) if request.until else {})
        found = {
            p: OffsetRange(start, min(past[p], sources.cursor.get(p, 0)))
            for p, start in sorted(ends("min", request.since).items())
        }
        found = {p: r for p, r in found.items() if r.span > 0}
    if not found:
        raise RefusedError(
            "The table's quarantine holds no record of the topic below the table's cursor"
            f"{' in that time' if request.since or request.until else ''}.",
            table=request.table,
            topic=topic,
        )
    return found


def cut_by_quarantine(whole: Batch, quarantine: Table | None, cap: int) -> list[dict[int, OffsetRange]]:
    """Cut ranges into pieces of at most `cap` quarantined records: these are few and far apart."""
    marks: dict[int, list[int]] = {}
    if quarantine is not None and quarantine.current_snapshot():
        rows = range_scan.read_slice_records(quarantine, whole, COORDINATES)
        once = rows.group_by(list(COORDINATES)).aggregate([]).sort_by([(name, "ascending") for name in COORDINATES])
        for each in once.take(pa.array(range(cap, len(once), cap), pa.int64())).to_pylist():
            marks.setdefault(each[COORDINATES[0]], []).append(each[COORDINATES[1]])
    pieces: list[dict[int, OffsetRange]] = [{}]
    for p, r in sorted(whole.ranges.items()):
        at = r.start
        for mark in marks.get(p, ()):
            if mark > at:
                pieces[-1][p] = OffsetRange(at, mark)
            pieces.append({})
            at = mark
        pieces[-1][p] = OffsetRange(at, r.end)
    return pieces


def _ranges_between_times(request: Request, sources: RangeSources, client: AdminClient) -> ResolvedRanges:
    state, ends = sources.state, dict(sources.live_ingest_start or {})

    def offsets_at(time: datetime) -> offsets_at_time.OffsetsAtTime:
        index = None if sources.kafka_error else client
        return offsets_at_time.find_offsets(time, state, sources.staging, sources.staged, index)

    if request.until:
        ends = offsets_at(request.until).offsets
    elif sources.live_ingest_start is None:
        raise RefusedError(
            "The first offset of live ingest is unknown: neither the ledger nor staging has it.",
            table=request.table,
            topic=state.topic,
            next_step="Give until, or the ranges.",
        )
    if request.since:
        found = offsets_at(request.since)
        starts, unknown = found.offsets, found.unknown
        if blind := {p: holes for p, holes in unknown.items() if holes[-1].start < ends.get(p, 0)}:
            raise RefusedError(
                f"The offset at {request.since.isoformat()} is unknown: neither Kafka nor staging has {{partition: "
                f"ranges}} {encode_gaps(blind)}, where records of that time may have been.",
                table=request.table,
                topic=state.topic,
                next_step=f"Give a later since, or none for all that there is, or ranges; the first known offsets are "
                f"{ {p: starts[p] for p in blind} }.",
            )
    else:
        starts = _earliest_offsets(request, sources)
    # What is above the table's cursor is published by the ingest DAG: a time range is cut off there.
    cut_at = {p: end for p, end in ends.items() if end > max(starts.get(p, end), sources.cursor.get(p, 0))}
    ends |= {p: sources.cursor.get(p, 0) for p in cut_at}
    # A partition that was added after live ingest began has no earlier history.
    ranges = {p: OffsetRange(s, ends.get(p, 0)) for p, s in sorted(starts.items()) if ends.get(p, 0) > s}
    if not ranges:
        raise RefusedError(
            f"There is nothing in that time: {{partition: (start, end)}} "
            f"{ {p: (s, ends.get(p, 0)) for p, s in sorted(starts.items())} }.",
            table=request.table,
            topic=state.topic,
            cursor={p: ends[p] for p in cut_at} or None,
        )
    return ResolvedRanges(ranges, cut_at)


def _earliest_offsets(request: Request, sources: RangeSources) -> dict[int, int]:
    """Per partition the first offset that the source holds."""
    staged: dict[int, int] = {}
    if request.origin == Origin.STAGING:
        for batch in sources.staged:
            for p, r in batch.ranges_to_read.items():
                staged[p] = min(staged.get(p, r.start), r.start)
    return {p: staged.get(p, r.start) for p, r in sources.state.watermarks.items()}


def find_live_ingest_start(ledger: Ledger | None, staging: Table | None, topic: str) -> dict[int, int] | None:
    """Per partition the start of the topic's first batch, by the ledger or by staging's snapshots; None if unknown."""
    first: Batch | None = None
    if ledger is not None and ledger.table.metadata.current_snapshot_id is not None:
        wanted = And(equal("topic", topic), equal("batch_seq", 1))
        rows = ledger.table.scan(row_filter=wanted).to_arrow().to_pylist()
        first = batches_from_rows(map(row_from_record, rows)).get((topic, 1))
    if first is None and 1 in (staged := cursor.read_staged_batches(staging)):
        first = staged[1][0]
    if first is None:
        return None
    return first.start_offsets


def check_below_cursor(table: str, piece: Batch, through: PublishedOffsets | None) -> None:
    """Refuse ranges above the table's cursor: the ingest DAG would publish the same records again.

    Args:
        table: its name.
        piece: the ranges.
        through: the table's cursor.

    Raises:
        RefusedError: with the partitions and the table's cursor.
        TopicRecreatedError: the slice was planned for an older topic of this name.
    """
    if through is None:
        raise RefusedError(
            f"The table has published nothing of topic {piece.topic!r} yet.",
            table=table,
            next_step="Let the ingest DAG run once: its first batch fixes where live ingest starts.",
        )
    backlog.check_same_topic(table, piece, through)
    cursor: Offsets = through.next_offsets
    if above := {p: (r.end, cursor.get(p, 0)) for p, r in sorted(piece.ranges.items()) if r.end > cursor.get(p, 0)}:
        raise RefusedError(
            f"The range ends above the table's cursor: {{partition: (requested end, cursor)}} {above}.",
            table=table,
            topic=piece.topic,
            next_step="End the range at the table's cursor: the ingest DAG publishes the rest.",
        )


def check_in_staging(table: str, piece: Batch, batches: Sequence[Batch]) -> None:
    """Refuse to read ranges from staging that it lacks, or that it holds of two topics of the same name.

    Raises:
        StagingTrimmedError: with the missing offsets.
        RefusedError: staging has records of both topics at these offsets.
    """
    others = [b for b in batches if b.topic_id != piece.topic_id]
    if other := sorted(
        b.seq
        for b in others
        if slices.find_missing_ranges(piece.ranges, [b]) != slices.find_missing_ranges(piece.ranges, [])
    ):
        raise RefusedError(
            f"Staging holds batches of another topic of that name at the same offsets: {', '.join(map(str, other))}.",
            table=table,
            topic=piece.topic,
            ranges=encode_ranges(piece.ranges),
            next_step="Give ranges outside those batches.",
        )
    if holes := slices.find_missing_ranges(piece.ranges, batches):
        text = {p: [tuple(h) for h in each] for p, each in holes.items()}
        raise StagingTrimmedError(
            f"Staging does not hold the whole range: {{partition: missing}} {text}.",
            table=table,
            topic=piece.topic,
            ranges=encode_ranges(piece.ranges),
            next_step="Give ranges that it holds (the plan shows them), or choose source kafka where Kafka "
            "still has them.",
        )
