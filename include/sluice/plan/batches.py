"""What lies ahead in one topic: where it starts, what Kafka still holds of it, and how it is cut into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

from confluent_kafka.admin import AdminClient

from sluice import offsets
from sluice.batch import Batch, Through, joined_ranges
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


def plan_topic(
    settings: TopicSettings,
    state: broker.TopicState,
    last: Batch | None,
    known: Mapping[int, Batch],
    client: AdminClient,
    *,
    published: Sequence[Through],
    accepted: Mapping[int, Sequence[OffsetRange]],
    extend: bool,
) -> TopicPlan:
    """The topic's batches to stage: those frozen already, else new ones.

    Args:
        last: the last batch in staging.
        known: batches by number, those that are frozen but not staged among them.
        published: how far its tables have come; a number that was given once is never given again, and where staging
            and the ledger were lost they tell where to go on.
        accepted: lost offsets that an operator gave up; nothing else that is lost is passed over.
        extend: whether new batches may be planned.

    Raises:
        SluiceError: the topic was created again, or does not hold what comes next.
    """
    topic = settings.topic
    staged_seq = last.seq if last else 0
    opened = tuple(known[seq] for seq in sorted(known) if seq > staged_seq)
    for before in filter(None, (last, *opened)):
        if before.topic_id != state.topic_id:
            raise TopicRecreatedError(
                f"Topic {topic!r} was deleted and created again after batch {before.seq}.",
                topic=topic,
                next_offsets=dict(before.next_offsets),
                was=before.topic_id,
                now=state.topic_id,
            )
    if opened:
        planned = joined_ranges(opened)
        lost = _given_up(topic, planned, state, accepted)
        ends = {p: marks.end for p, marks in state.watermarks.items()}
        if beyond := {p: (r.end, ends[p]) for p, r in sorted(planned.items()) if r.end > ends.get(p, r.end)}:
            raise OffsetsBeyondEndError(
                f"The plan of topic {topic!r} reaches beyond the end: {{partition: (planned to, end)}} {beyond}.",
                topic=topic,
            )
        return TopicPlan(topic, last, tuple(_without(b, lost) for b in opened), frozen=True, state=state)
    if not extend:
        return TopicPlan(topic, last, state=state)
    at = last.next_offsets if last else _least([t for t in published if t.topic_id == state.topic_id])
    ahead = _ahead(settings, state, at, client)
    lost = _given_up(topic, ahead, state, accepted)
    behind = {p: OffsetRange(lost[p].end, r.end) if p in lost else r for p, r in ahead.items()}
    limits = settings.limits
    pieces = cut(behind, limits.records_per_batch, limits.batches_per_run)
    if not pieces and (last is None or lost):
        # Nothing to read yet: an empty batch pins where the topic starts, so that `latest` means now, not next time.
        pieces = [{}]
    if lost:
        # The first batch carries all of it: it costs nothing to read, and the cursor passes it in one step.
        pieces[0] |= {p: OffsetRange(g.start, pieces[0].get(p, g).end) for p, g in lost.items()}
    batches = []
    at = {p: r.start for p, r in ahead.items()}
    for seq, ranges in enumerate(pieces, max([staged_seq, *(t.seq for t in published)]) + 1):
        at |= {p: r.end for p, r in ranges.items()}
        batches.append(_without(Batch(topic, state.topic_id, seq, ranges, dict(at)), lost))
    return TopicPlan(topic, last, tuple(batches), state=state)


def _least(published: Sequence[Through]) -> Offsets | None:
    """Where the table stands that has come least far, per partition; None where none has begun."""
    known = {p for t in published for p in t.next_offsets}
    return {p: min(t.next_offsets.get(p, 0) for t in published) for p in known} if published else None


def _ahead(
    settings: TopicSettings, state: broker.TopicState, at: Offsets | None, client: AdminClient
) -> dict[int, OffsetRange]:
    """Per partition what was not read yet; a partition that was added since begins at 0.

    Args:
        at: the topic's cursor; None where it was never read.

    Raises:
        PartitionsGoneError: a partition that was read is gone.
        OffsetsBeyondEndError: the cursor lies beyond a partition's end.
    """
    topic = settings.topic
    if at is None:
        starts = _starts(settings, state, client)
    else:
        starts = {p: at.get(p, 0) for p in state.watermarks}
        if gone := sorted(set(at) - set(state.watermarks)):
            raise PartitionsGoneError(f"Topic {topic!r} has lost partitions.", topic=topic, partitions=gone)
    ahead = {p: OffsetRange(starts[p], marks.end) for p, marks in state.watermarks.items()}
    if beyond := {p: (r.start, r.end) for p, r in ahead.items() if r.start > r.end}:
        raise OffsetsBeyondEndError(
            f"The cursor of topic {topic!r} lies beyond the end: {{partition: (cursor, end)}} {beyond}.", topic=topic
        )
    return ahead


def cut(ahead: Mapping[int, OffsetRange], cap: int, most: int) -> list[dict[int, OffsetRange]]:
    """Cut what lies ahead into at most `most` batches of at most `cap` offsets, each a share of every partition."""
    total = sum(r.span for r in ahead.values())
    if total == 0:
        return []
    found = _shares(ahead, -(-total // cap), most)
    if any(sum(r.span for r in share.values()) > cap for share in found):
        # Each partition's share is rounded, by at most one offset: leave room for that below the cap.
        found = _shares(ahead, -(-total // max(cap - len(ahead), 1)), most)
    return found


def _shares(ahead: Mapping[int, OffsetRange], pieces: int, most: int) -> list[dict[int, OffsetRange]]:
    """The first `most` of so many like pieces, without those that come out empty."""
    shares = (
        {
            p: OffsetRange(r.start + r.span * i // pieces, r.start + r.span * (i + 1) // pieces)
            for p, r in sorted(ahead.items())
        }
        for i in range(pieces)
    )
    filled = ({p: r for p, r in share.items() if r.span} for share in shares)
    return list(islice(filter(None, filled), most))


def _starts(settings: TopicSettings, state: broker.TopicState, client: AdminClient) -> dict[int, int]:
    """Where a topic that was never read begins.

    Raises:
        ContractError: the contract names a partition that is not there.
    """
    start, marks = settings.start, state.watermarks
    if start == "latest":
        return {p: r.end for p, r in marks.items()}
    if isinstance(start, datetime):
        found = broker.offsets_at(client, state.topic, marks, start)
        # Kafka counts records of open transactions, and those that came since: beyond the end as it was looked up.
        return {p: min(found[p], r.end) if found[p] >= 0 else r.end for p, r in marks.items()}
    if isinstance(start, Mapping):
        if unknown := sorted(set(start) - set(marks)):
            raise ContractError(
                f"`start` names partitions that topic {state.topic!r} does not have: {unknown}.",
                topic=state.topic,
                partitions=sorted(marks),
                way_out="Correct `start` in the topic's contracts; partitions that come later begin at 0.",
            )
        return {p: start.get(p, r.start) for p, r in marks.items()}
    return {p: r.start for p, r in marks.items()}


def _given_up(
    topic: str,
    ranges: Mapping[int, OffsetRange],
    state: broker.TopicState,
    accepted: Mapping[int, Sequence[OffsetRange]],
) -> dict[int, OffsetRange]:
    """What of the ranges' beginnings Kafka no longer holds, where an operator has accepted the whole of it.

    Raises:
        OffsetsLostError: something is lost that nobody has accepted; with the exact offsets per partition.
    """
    lost = {
        p: OffsetRange(r.start, min(state.watermarks[p].start, r.end))
        for p, r in sorted(ranges.items())
        if p in state.watermarks and r.span and r.start < state.watermarks[p].start
    }
    unspoken = {
        p: (at, g.end) for p, g in lost.items() if (at := offsets._reached(g.start, accepted.get(p, ()))) < g.end
    }
    if unspoken:
        raise OffsetsLostError(
            f"Topic {topic!r} no longer holds offsets that were not read.",
            topic=topic,
            topic_id=state.topic_id,
            lost=unspoken,
        )
    return lost


def _without(batch: Batch, lost: Mapping[int, OffsetRange]) -> Batch:
    """The batch with its share of what is given up."""
    gaps = {
        p: (OffsetRange(r.start, min(r.end, lost[p].end)),)
        for p, r in batch.ranges.items()
        if p in lost and r.start < lost[p].end
    }
    return replace(batch, gaps=gaps) if gaps else batch
