"""Which offsets a backfill is about: named as ranges, or between two moments, and refused with the reason. No JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from sluice.backfill import offsets_at_time
from sluice.batch import Batch, Through
from sluice.errors import RefusedError, StagingTrimmedError
from sluice.iceberg import cursor, range_scan
from sluice.iceberg.filters import And, equal
from sluice.iceberg.record_times import TIMESTAMP
from sluice.kafka import broker
from sluice.ledger import backlog, slices
from sluice.ledger.offsets_table import Ledger, batches, row_of
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange, Offsets, Ranges, encode_gaps, encode_ranges

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


PLACE = ("_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class Request:
    """What an operator asks for.

    Attributes:
        ranges: `{partition: [start, end)}`; or else a time:
        since: from this moment; left out, from the beginning.
        until: to this moment; left out, to where the topic's live feed began (the cutover).
        origin: where the records are read.
        topic: which of the table's topics; may be left out where it has one.
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
        """Whether Kafka has to be asked: what is read elsewhere was staged, and its topic is known by that."""
        return self.origin == Origin.KAFKA


@dataclass(frozen=True)
class Sources:
    """What is known of where the records may be.

    Attributes:
        state: what Kafka says of the topic.
        staged: the batches and slices that staging holds whole.
        cutover: per partition where the live feed began; None where nobody knows any more.
        reached: per partition the table's cursor.
        staging: the topic's raw records.
        away: why Kafka can't be asked, and `state` is none of its; empty where it can.
    """

    state: broker.TopicState
    staged: Sequence[Batch]
    cutover: Mapping[int, int] | None
    quarantine: Table | None
    reached: Mapping[int, int] = field(default_factory=dict)
    staging: Table | None = None
    away: str = ""


def moment(text: str, name: str) -> datetime | None:
    """A moment with its time zone, from ISO 8601 text; None where it is blank.

    Raises:
        RefusedError: it is none, or says no time zone.
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
            f"{name} is {text!r}, which is no moment with a time zone.",
            way_out="Write it as 2026-01-31T06:00:00+00:00.",
        )
    return found


@dataclass(frozen=True)
class Resolved:
    """The exact ranges that are asked for, none of them empty.

    Attributes:
        beyond: partitions whose part behind the table's cursor was cut off, with where that part ends.
    """

    ranges: dict[int, OffsetRange]
    beyond: dict[int, int] = field(default_factory=dict)


def resolve(request: Request, sources: Sources, client: AdminClient) -> Resolved:
    """The ranges that are asked for.

    Raises:
        RefusedError: with the partition, the offsets and the reason.
        BrokerUnavailableError: Kafka did not answer.
    """
    if request.ranges and (request.since or request.until):
        raise RefusedError(
            "Both ranges and a time are given.", table=request.table, way_out="Give the ranges, or since and until."
        )
    if request.ranges:
        found = Resolved({p: OffsetRange(*bounds) for p, bounds in sorted(request.ranges.items())})
    else:
        if request.since and request.until and request.until <= request.since:
            text = f"The time ends ({request.until}) before it starts ({request.since})."
            raise RefusedError(text, table=request.table)
        quarantined = request.origin == Origin.QUARANTINE
        found = Resolved(_quarantined(request, sources)) if quarantined else _between(request, sources, client)
    _check(request, sources, found.ranges)
    return found


def _check(request: Request, sources: Sources, found: Ranges) -> None:
    marks, topic = sources.state.watermarks, sources.state.topic
    for p, r in found.items():
        where = {"table": request.table, "topic": topic, "partition": p, "range": list(r)}
        if p not in marks:
            raise RefusedError(
                f"The topic has no partition {p}.", **where, way_out=f"It has {', '.join(map(str, sorted(marks)))}."
            )
        if r.start < 0 or r.end < r.start:
            raise RefusedError("The range ends before it starts.", **where, way_out="Write it as [first, end).")
        if r.span == 0:
            raise RefusedError("The range is empty.", **where, way_out="The end is the offset after the last one.")
        if r.end > marks[p].end and not sources.away:
            raise RefusedError(
                f"The range ends beyond the partition's end, {marks[p].end}.",
                **where,
                way_out=f"End it at {marks[p].end}, or before.",
            )
        if request.origin == Origin.KAFKA and r.start < marks[p].start:
            holes = slices.missing({p: OffsetRange(r.start, min(r.end, marks[p].start))}, sources.staged)
            lost = f"staging lacks {[tuple(h) for h in holes[p]]}" if holes else "staging has all: source staging"
            raise RefusedError(
                f"Kafka no longer holds the range; it begins at {marks[p].start}.",
                **where,
                way_out=f"Start at {marks[p].start}; of what Kafka lacks, {lost}.",
            )


def _quarantined(request: Request, sources: Sources) -> dict[int, OffsetRange]:
    """Per partition from the first to the last of the topic's records in quarantine, below the table's cursor.

    Above it lie those of a batch that is blocked: it brings them itself. A time is told by their own timestamps.
    """
    table, topic = sources.quarantine, sources.state.topic
    found: dict[int, OffsetRange] = {}
    if table is not None and table.current_snapshot():
        partition, offset = PLACE
        columns = (*PLACE, TIMESTAMP)
        rows = table.scan(row_filter=equal("_kafka_topic", topic), selected_fields=columns).to_arrow()

        def ends(which: str, since: datetime | None = None) -> dict[int, int]:
            some = rows
            if since:
                at = pc.cast(rows[TIMESTAMP], pa.int64())
                some = rows.filter(pc.greater_equal(at, offsets_at_time.micros(since)))
            told = some.group_by(partition).aggregate([(offset, which)]).to_pylist()
            return {r[partition]: r[f"{offset}_{which}"] for r in told}

        past = {p: last + 1 for p, last in ends("max").items()} | (ends("min", request.until) if request.until else {})
        found = {
            p: OffsetRange(start, min(past[p], sources.reached.get(p, 0)))
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


def cut_rejected(whole: Batch, quarantine: Table | None, most: int) -> list[dict[int, OffsetRange]]:
    """The ranges cut where so many of their records lie in quarantine: few do, and far apart."""
    marks: dict[int, list[int]] = {}
    if quarantine is not None and quarantine.current_snapshot():
        rows = range_scan.rows(quarantine, whole, PLACE)
        once = rows.group_by(list(PLACE)).aggregate([]).sort_by([(name, "ascending") for name in PLACE])
        for each in once.take(pa.array(range(most, len(once), most), pa.int64())).to_pylist():
            marks.setdefault(each[PLACE[0]], []).append(each[PLACE[1]])
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


def _between(request: Request, sources: Sources, client: AdminClient) -> Resolved:
    state, ends = sources.state, dict(sources.cutover or {})

    def placed(moment: datetime) -> offsets_at_time.Placed:
        index = None if sources.away else client
        return offsets_at_time.place(moment, state, sources.staging, sources.staged, index)

    if request.until:
        ends = placed(request.until).offsets
    elif sources.cutover is None:
        raise RefusedError(
            "Nobody knows any more where the table's live feed began.",
            table=request.table,
            topic=state.topic,
            way_out="Name until, or the ranges.",
        )
    if request.since:
        found = placed(request.since)
        starts, unknown = found.offsets, found.unknown
        if blind := {p: holes for p, holes in unknown.items() if holes[-1].start < ends.get(p, 0)}:
            raise RefusedError(
                f"Where {request.since.isoformat()} lies can't be told: neither Kafka nor staging has {{partition: "
                f"ranges}} {encode_gaps(blind)}, and records from then on may have been there.",
                table=request.table,
                topic=state.topic,
                way_out=f"Name a later since, or none for all that is there, or ranges; what is there begins at "
                f"{ {p: starts[p] for p in blind} }.",
            )
    else:
        starts = _earliest(request, sources)
    # A time can't say where the cursor stands: what lies behind it the live feed brings by itself.
    beyond = {p: end for p, end in ends.items() if end > max(starts.get(p, end), sources.reached.get(p, 0))}
    ends |= {p: sources.reached.get(p, 0) for p in beyond}
    # A partition that was added after the live feed began has no history before it.
    ranges = {p: OffsetRange(s, ends.get(p, 0)) for p, s in sorted(starts.items()) if ends.get(p, 0) > s}
    if not ranges:
        raise RefusedError(
            f"There is nothing in that time: {{partition: (start, end)}} "
            f"{ {p: (s, ends.get(p, 0)) for p, s in sorted(starts.items())} }.",
            table=request.table,
            topic=state.topic,
            cursor={p: ends[p] for p in beyond} or None,
        )
    return Resolved(ranges, beyond)


def _earliest(request: Request, sources: Sources) -> dict[int, int]:
    """Per partition where the source begins."""
    staged: dict[int, int] = {}
    if request.origin == Origin.STAGING:
        for batch in sources.staged:
            for p, r in batch.to_read.items():
                staged[p] = min(staged.get(p, r.start), r.start)
    return {p: staged.get(p, r.start) for p, r in sources.state.watermarks.items()}


def cutover(ledger: Ledger | None, staging: Table | None, topic: str) -> dict[int, int] | None:
    """Per partition where the topic's first batch began, by the ledger or by staging's snapshots."""
    first: Batch | None = None
    if ledger is not None and ledger.table.metadata.current_snapshot_id is not None:
        wanted = And(equal("topic", topic), equal("batch_seq", 1))
        told = ledger.table.scan(row_filter=wanted).to_arrow().to_pylist()
        first = batches(map(row_of, told)).get((topic, 1))
    if first is None and 1 in (told_by := cursor.staged_batches(staging)):
        first = told_by[1][0]
    if first is None:
        return None
    return first.starts


def check_below(table: str, piece: Batch, through: Through | None) -> None:
    """Refuse what lies beyond the table's own cursor: live publishing would bring the same records again.

    Raises:
        RefusedError: with the partitions, and how far the table has come.
        TopicRecreatedError: the slice was planned for another topic of this name.
    """
    if through is None:
        raise RefusedError(
            f"The table has not begun to take topic {piece.topic!r}, so that nothing of it is history yet.",
            table=table,
            way_out="Let the ingest DAG run once; its first batch fixes where the live feed begins.",
        )
    backlog.check_same_topic(table, piece, through)
    at: Offsets = through.next_offsets
    if beyond := {p: (r.end, at.get(p, 0)) for p, r in sorted(piece.ranges.items()) if r.end > at.get(p, 0)}:
        raise RefusedError(
            "The range reaches beyond what the table has taken from its live feed: "
            f"{{partition: (end asked for, table's cursor)}} {beyond}.",
            table=table,
            topic=piece.topic,
            way_out="End the range at the table's cursor; the ingest DAG brings the rest by itself.",
        )


def check_held(table: str, piece: Batch, batches: Sequence[Batch]) -> None:
    """Refuse to read from staging what it does not hold, or what is not told apart from another topic of that name.

    Raises:
        StagingTrimmedError: with the offsets.
        RefusedError: staging has records of both under these offsets.
    """
    others = [b for b in batches if b.topic_id != piece.topic_id]
    if other := sorted(b.seq for b in others if slices.missing(piece.ranges, [b]) != slices.missing(piece.ranges, [])):
        raise RefusedError(
            "Staging holds batches of another topic of that name under the same offsets: "
            f"{', '.join(map(str, other))}.",
            table=table,
            topic=piece.topic,
            ranges=encode_ranges(piece.ranges),
            way_out="Name ranges that none of them spans.",
        )
    if holes := slices.missing(piece.ranges, batches):
        text = {p: [tuple(h) for h in each] for p, each in holes.items()}
        raise StagingTrimmedError(
            f"Staging does not hold all of the range; missing are {text}.",
            table=table,
            topic=piece.topic,
            ranges=encode_ranges(piece.ranges),
            way_out="Name ranges that it holds (the plan shows them), or source kafka where Kafka still has the rest.",
        )
