"""Batches, and how snapshot summaries carry them. Every step passes these values on; nothing here does I/O.

The property names below are stored in users' tables: they must not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from sluice import offsets
from sluice.offsets import Gaps, OffsetRange, Offsets, Ranges

STEP = "sluice.step"
ADOPT_STEP = "adopt"
"""The step of the snapshot from which a table that another writer filled is Sluice's."""
BATCH_SEQ = "sluice.batch-seq"
TOPIC = "sluice.topic"
TOPIC_ID = "sluice.topic-id"
RANGES = "sluice.ranges"
GAPS = "sluice.gaps"
BATCHES = "sluice.batches"
BACKFILL = "sluice.backfill"
NEXT_OFFSETS = "sluice.next-offsets"
LEADER_EPOCHS = "sluice.leader-epochs"
PUBLISHED_THROUGH = "sluice.published-through"
RUN_ID = "sluice.run-id"
BASE_SNAPSHOT = "sluice.base-snapshot"
CURSOR_TAG = "sluice_cursor"
BRANCH_PREFIX = "sluice_"


def merge_ranges(batches: Iterable[Batch]) -> dict[int, OffsetRange]:
    """Return, per partition, one range over successive batches."""
    joined: dict[int, OffsetRange] = {}
    for batch in batches:
        for p, r in batch.ranges.items():
            joined[p] = OffsetRange(joined[p].start if p in joined else r.start, r.end)
    return joined


@dataclass(frozen=True)
class Batch:
    """One bounded set of ranges of one topic. Once planned it never changes.

    Attributes:
        seq: the topic's batch number, from 1; negative for a slice of a backfill, which moves no cursor.
        ranges: what to read; partitions with nothing to read are left out. Empty for the batch that only records a
            topic's start.
        next_offsets: the topic's cursor after this batch, over all its partitions.
        gaps: accepted gaps at the beginning of the ranges: offsets that Kafka had lost and an operator accepted.
    """

    topic: str
    topic_id: str
    seq: int
    ranges: Ranges
    next_offsets: Offsets
    gaps: Gaps = field(default_factory=dict, compare=False)

    @property
    def is_slice(self) -> bool:
        """Whether the batch is a slice of a backfill."""
        return self.seq < 0

    @property
    def start_offsets(self) -> dict[int, int]:
        """The topic's cursor before this batch, over all its partitions."""
        return {p: self.ranges[p].start if p in self.ranges else end for p, end in self.next_offsets.items()}

    def offsets_skipped_after(self, cursor: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Return, per partition, the offsets `(first, end)` between a cursor and this batch's start, if any.

        A partition that the cursor lacks was added since, and begins at 0.
        """
        starts = sorted(self.start_offsets.items())
        return {p: (cursor.get(p, 0), start) for p, start in starts if start > cursor.get(p, 0)}

    @property
    def span(self) -> int:
        """Number of offsets to read; compacted and transactional topics have fewer records than offsets."""
        accepted = sum(g.span for each in self.gaps.values() for g in each)
        return sum(r.span for r in self.ranges.values()) - accepted

    @property
    def ranges_to_read(self) -> dict[int, OffsetRange]:
        """The non-empty ranges that are left after the accepted gaps at their beginnings."""
        ends = {p: max(g.end for g in each) for p, each in self.gaps.items()}
        rest = {p: OffsetRange(ends.get(p, r.start), r.end) for p, r in self.ranges.items()}
        return {p: r for p, r in rest.items() if r.span}

    def properties(self) -> dict[str, str]:
        """Return the snapshot summary properties of a commit of this batch; a slice of a backfill has no cursor."""
        common = {TOPIC: self.topic, TOPIC_ID: self.topic_id, RANGES: offsets.encode_ranges(self.ranges)}
        if self.is_slice:
            return {BACKFILL: str(self.seq), **common}
        return {
            BATCH_SEQ: str(self.seq),
            **common,
            NEXT_OFFSETS: offsets.encode_offsets(self.next_offsets),
            **({GAPS: offsets.encode_gaps(self.gaps)} if self.gaps else {}),
        }

    @classmethod
    def from_properties(cls, summary: Mapping[str, str]) -> Self:
        """Return the batch whose `properties` are in a snapshot summary."""
        return cls(
            topic=summary[TOPIC],
            topic_id=summary[TOPIC_ID],
            seq=int(summary[BATCH_SEQ] if BATCH_SEQ in summary else summary[BACKFILL]),
            ranges=offsets.decode_ranges(summary[RANGES]),
            next_offsets=offsets.decode_offsets(summary.get(NEXT_OFFSETS, "{}")),
            gaps=offsets.decode_gaps(summary.get(GAPS, "{}")),
        )

    def __str__(self) -> str:
        without = f" without {offsets.encode_gaps(self.gaps)}" if self.gaps else ""
        kind = "backfill" if self.is_slice else "batch"
        return f"{self.topic} {kind} {self.seq} {offsets.encode_ranges(self.ranges)}{without}"


def merge_batches(batches: Sequence[Batch]) -> Batch:
    """Return successive batches of one topic as one batch with the last one's number."""
    if len(batches) == 1:
        return batches[0]
    gaps: dict[int, tuple[OffsetRange, ...]] = {}
    for batch in batches:
        for p, each in batch.gaps.items():
            gaps[p] = (*gaps.get(p, ()), *each)
    return replace(batches[-1], ranges=merge_ranges(batches), gaps=gaps)


def publish_properties(batches: Sequence[Batch]) -> dict[str, str]:
    """Return the summary properties of a commit of successive batches: the whole, and each of several."""
    properties = merge_batches(batches).properties()
    if len(batches) > 1:
        each = [
            {
                "batch": b.seq,
                "ranges": offsets.encode_ranges(b.ranges),
                "next-offsets": offsets.encode_offsets(b.next_offsets),
                **({"gaps": offsets.encode_gaps(b.gaps)} if b.gaps else {}),
            }
            for b in batches
        ]
        properties[BATCHES] = json.dumps(each, separators=(",", ":"))
    return properties


def batches_from_summary(summary: Mapping[str, str]) -> list[Batch]:
    """Return the batches of a commit, in order: the inverse of `publish_properties` and of `Batch.properties`."""
    whole = Batch.from_properties(summary)
    if BATCHES not in summary:
        return [whole]
    return [
        replace(
            whole,
            seq=int(b["batch"]),
            ranges=offsets.decode_ranges(b["ranges"]),
            next_offsets=offsets.decode_offsets(b["next-offsets"]),
            gaps=offsets.decode_gaps(b.get("gaps", "{}")),
        )
        for b in json.loads(summary[BATCHES])
    ]


def deletes_properties(batches: Sequence[Batch], base_snapshot: int | None) -> dict[str, str]:
    """Return what a commit on a deletes table carries: whose deletes it records, without ranges and cursor.

    Args:
        batches: the batches of one publish, or one slice. The first one's number is recorded: a later publish of it
            alone may find its deletes recorded already, and commit nothing.
        base_snapshot: main's head of the typed table when the write began.
    """
    first = batches[0]
    return {
        TOPIC: first.topic,
        TOPIC_ID: first.topic_id,
        BACKFILL if first.is_slice else BATCH_SEQ: str(first.seq),
        BASE_SNAPSHOT: str(base_snapshot or 0),
    }


@dataclass(frozen=True)
class PublishedOffsets:
    """A typed table's position in one topic: the last published batch and the next offset per partition."""

    seq: int
    topic_id: str
    next_offsets: Offsets


def encode_published_through(published: Mapping[str, PublishedOffsets]) -> str:
    """Return the value of `sluice.published-through`: the table's position in every topic, as JSON."""
    return json.dumps(
        {
            topic: {
                "batch": t.seq,
                "topic-id": t.topic_id,
                "next-offsets": {str(p): t.next_offsets[p] for p in sorted(t.next_offsets)},
            }
            for topic, t in sorted(published.items())
        },
        separators=(",", ":"),
    )


def decode_published_through(text: str) -> dict[str, PublishedOffsets]:
    """Return the positions by topic: the inverse of `encode_published_through`."""
    return {
        topic: PublishedOffsets(
            seq=int(t["batch"]),
            topic_id=t["topic-id"],
            next_offsets={int(p): int(o) for p, o in t["next-offsets"].items()},
        )
        for topic, t in json.loads(text).items()
    }
