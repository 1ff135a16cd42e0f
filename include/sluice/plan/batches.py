"""Plans one topic: which offsets are unread, which of them Kafka still holds, and how they are cut into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from confluent_kafka.admin import AdminClient

from sluice import offsets
from sluice.batch import Batch, PublishedOffsets, merge_ranges
from sluice.contract.folder import TopicSettings
from sluice.errors import (
    ContractError,
    OffsetsBeyondEndError,
    OffsetsLostError,
    PartitionsGoneError,
    TopicRecreatedError,
)
from sluice.kafka import broker
from sluice.offsets import OffsetRange, Offsets
from sluice.plan.model import TopicPlan


@dataclass(frozen=True)
class TopicProgress:
    """How far a topic has come in Kafka, in staging, in the ledger and in its tables.

    Attributes:
        last: the last batch in staging.
        known: batches by number, among them those that are planned and not staged.
        published: how far each of its tables has published. If staging and the ledger are lost, planning continues
            from there; and a batch number is never given twice.
        accepted: accepted gaps per partition; any other lost offset is an error.
        ends: per partition the first offset that is not to be planned, where the log has more.
    """

    settings: TopicSettings
    state: broker.TopicState
    last: Batch | None
    known: Mapping[int, Batch]
    published: Sequence[PublishedOffsets]
    accepted: Mapping[int, Sequence[OffsetRange]]
    ends: Offsets = field(default_factory=dict)


def plan_topic(progress: TopicProgress, client: AdminClient, *, extend: bool) -> TopicPlan:
    """The batches of a topic to stage: those that are frozen already, else new ones.

    Args:
        progress: how far the topic has come.
        client: for the offsets at the time at which the contract starts.
        extend: whether new batches may be planned.

    Raises:
        SluiceError: the topic was deleted and created again, or Kafka does not hold the next offsets.
    """
    state, last = progress.state, progress.last
    open_batches = tuple(progress.known[seq] for seq in sorted(progress.known) if seq > (last.seq if last else 0))
    for before in filter(None, (last, *open_batches)):
        if before.topic_id != state.topic_id:
            raise TopicRecreatedError(
                f"Topic {state.topic!r} was deleted and created again after batch {before.seq}.",
                topic=state.topic,
                next_offsets=dict(before.next_offsets),
                was=before.topic_id,
                now=state.topic_id,
            )
    if open_batches:
        return TopicPlan(state.topic, last, _frozen_batches(progress, open_batches), frozen=True, state=state)
    return TopicPlan(state.topic, last, _new_batches(progress, client) if extend else (), state=state)


def _frozen_batches(progress: TopicProgress, planned: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """The planned batches without their accepted gaps.

    Raises:
        OffsetsLostError: Kafka no longer holds some of their offsets.
        OffsetsBeyondEndError: Kafka does not hold some of their offsets any more, as the log was truncated.
    """
    state = progress.state
    ranges = merge_ranges(planned)
    lost = accepted_losses(ranges, state, progress.accepted)
    ends = {p: marks.end for p, marks in state.watermarks.items()}
    if beyond := {p: (r.end, ends[p]) for p, r in sorted(ranges.items()) if r.end > ends.get(p, r.end)}:
        raise OffsetsBeyondEndError(
            f"The plan of topic {state.topic!r} ends after the log end offset: {{partition: (planned, log end)}} "
            f"{beyond}.",
            topic=state.topic,
        )
    return tuple(exclude_gaps(batch, lost) for batch in planned)


def _new_batches(progress: TopicProgress, client: AdminClient) -> tuple[Batch, ...]:
    """The unread offsets, cut into batches with new numbers."""
    state, last, limits = progress.state, progress.last, progress.settings.limits
    cursor = (
        last.next_offsets if last else _lowest_cursor([t for t in progress.published if t.topic_id == state.topic_id])
    )
    ahead = _unread_ranges(progress.settings, state, cursor, client)
    ahead = {p: OffsetRange(r.start, max(min(r.end, progress.ends.get(p, r.end)), r.start)) for p, r in ahead.items()}
    lost = accepted_losses(ahead, state, progress.accepted)
    readable = {p: OffsetRange(lost[p].end, r.end) if p in lost else r for p, r in ahead.items()}
    pieces = cut_ranges(readable, limits.records_per_batch, limits.batches_per_run)
    if not pieces and (last is None or lost):
        # Nothing to read yet: an empty batch pins where the topic starts, so that `latest` means now, not next time.
        pieces = [{}]
    if lost:
        # The first batch carries the whole gap: it costs nothing to read, and the cursor passes it in one step.
        pieces[0] |= {p: OffsetRange(g.start, pieces[0].get(p, g).end) for p, g in lost.items()}
    batches = []
    next_offsets = {p: r.start for p, r in ahead.items()}
    first = max([last.seq if last else 0, *(t.seq for t in progress.published)]) + 1
    for seq, ranges in enumerate(pieces, first):
        next_offsets |= {p: r.end for p, r in ranges.items()}
        batches.append(exclude_gaps(Batch(state.topic, state.topic_id, seq, ranges, dict(next_offsets)), lost))
    return tuple(batches)


def _lowest_cursor(published: Sequence[PublishedOffsets]) -> Offsets | None:
    """Per partition the lowest cursor of the tables; None where no table has published."""
    known = {p for t in published for p in t.next_offsets}
    return {p: min(t.next_offsets.get(p, 0) for t in published) for p in known} if published else None


def _unread_ranges(
    settings: TopicSettings, state: broker.TopicState, cursor: Offsets | None, client: AdminClient
) -> dict[int, OffsetRange]:
    """Per partition the unread offsets; a partition that was added since begins at 0.

    Args:
        cursor: None where the topic was never read.

    Raises:
        PartitionsGoneError: a partition that was read does not exist any more.
        OffsetsBeyondEndError: the cursor lies after the log end offset of a partition.
    """
    topic = settings.topic
    if cursor is None:
        starts = _start_offsets(settings, state, client)
    else:
        starts = {p: cursor.get(p, 0) for p in state.watermarks}
        if gone := sorted(set(cursor) - set(state.watermarks)):
            raise PartitionsGoneError(f"Topic {topic!r} has lost partitions.", topic=topic, partitions=gone)
    ahead = {p: OffsetRange(starts[p], marks.end) for p, marks in state.watermarks.items()}
    if beyond := {p: (r.start, r.end) for p, r in ahead.items() if r.start > r.end}:
        raise OffsetsBeyondEndError(
            f"The cursor of topic {topic!r} is after the log end offset: {{partition: (cursor, log end)}} {beyond}.",
            topic=topic,
        )
    return ahead


def cut_ranges(ahead: Mapping[int, OffsetRange], cap: int, max_pieces: int) -> list[dict[int, OffsetRange]]:
    """Cut ranges into at most `max_pieces` pieces, each with a share of every partition.

    A piece has at most `cap` offsets, or one of each partition if there are more partitions than that.
    """
    total = sum(r.span for r in ahead.values())
    if total == 0:
        return []
    found = _equal_shares(ahead, -(-total // cap), max_pieces)
    if any(sum(r.span for r in share.values()) > cap for share in found):
        # Each partition's share is rounded, by at most one offset: leave room for that below the cap.
        found = _equal_shares(ahead, -(-total // max(cap - len(ahead), 1)), max_pieces)
    return found


def _equal_shares(ahead: Mapping[int, OffsetRange], pieces: int, max_pieces: int) -> list[dict[int, OffsetRange]]:
    """The first `max_pieces` of `pieces` equal parts, empty ones left out."""
    shares = (
        {
            p: OffsetRange(r.start + r.span * i // pieces, r.start + r.span * (i + 1) // pieces)
            for p, r in sorted(ahead.items())
        }
        for i in range(pieces)
    )
    filled = ({p: r for p, r in share.items() if r.span} for share in shares)
    return list(islice(filter(None, filled), max_pieces))


def _start_offsets(settings: TopicSettings, state: broker.TopicState, client: AdminClient) -> dict[int, int]:
    """Per partition where a topic that was never read starts, by the contract.

    Raises:
        ContractError: the contract names a partition that does not exist.
    """
    start, marks = settings.start, state.watermarks
    if start == "latest":
        return {p: r.end for p, r in marks.items()}
    if isinstance(start, datetime):
        found = broker.offsets_for_time(client, state.topic, marks, start)
        # The index also has records of open transactions and later ones, which lie after this plan's end.
        return {p: min(found[p], r.end) if found[p] >= 0 else r.end for p, r in marks.items()}
    if isinstance(start, Mapping):
        if unknown := sorted(set(start) - set(marks)):
            raise ContractError(
                f"`start` names partitions that topic {state.topic!r} does not have: {unknown}.",
                topic=state.topic,
                partitions=sorted(marks),
                next_step="Correct `start` in the topic's contracts; partitions that are added later start at 0.",
            )
        return {p: start.get(p, r.start) for p, r in marks.items()}
    return {p: r.start for p, r in marks.items()}


def accepted_losses(
    ranges: Mapping[int, OffsetRange],
    state: broker.TopicState,
    accepted: Mapping[int, Sequence[OffsetRange]],
) -> dict[int, OffsetRange]:
    """Per partition the offsets at the start of the ranges that Kafka no longer holds, all of them accepted gaps.

    Raises:
        OffsetsLostError: a gap is not accepted; with the exact offsets per partition.
    """
    lost = {
        p: OffsetRange(r.start, min(state.watermarks[p].start, r.end))
        for p, r in sorted(ranges.items())
        if p in state.watermarks and r.span and r.start < state.watermarks[p].start
    }
    not_accepted = {
        p: (at, g.end) for p, g in lost.items() if (at := offsets.skip_accepted(g.start, accepted.get(p, ()))) < g.end
    }
    if not_accepted:
        raise OffsetsLostError(
            f"Topic {state.topic!r} no longer holds offsets that were not read.",
            topic=state.topic,
            topic_id=state.topic_id,
            lost=not_accepted,
        )
    return lost


def exclude_gaps(batch: Batch, lost: Mapping[int, OffsetRange]) -> Batch:
    """The batch with its share of the accepted gaps."""
    gaps = {
        p: (OffsetRange(r.start, min(r.end, lost[p].end)),)
        for p, r in batch.ranges.items()
        if p in lost and r.start < lost[p].end
    }
    return replace(batch, gaps=gaps) if gaps else batch
