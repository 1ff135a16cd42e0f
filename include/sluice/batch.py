"""The values that every step passes on: offset ranges, batches, and how a commit carries them.

Nothing here does I/O. The property names below are a promise: they stand in the snapshot summaries of users' tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from sluice import offsets
from sluice.offsets import Gaps, OffsetRange, Offsets, Ranges

STEP = "sluice.step"
BATCH_SEQ = "sluice.batch-seq"
TOPIC = "sluice.topic"
TOPIC_ID = "sluice.topic-id"
RANGES = "sluice.ranges"
GAPS = "sluice.gaps"
BATCHES = "sluice.batches"
BACKFILL = "sluice.backfill"
NEXT_OFFSETS = "sluice.next-offsets"
PUBLISHED_THROUGH = "sluice.published-through"
RUN_ID = "sluice.run-id"
CURSOR_TAG = "sluice_cursor"
BRANCH_PREFIX = "sluice_"


def joined_ranges(batches: Iterable[Batch]) -> dict[int, OffsetRange]:
    """Per partition the whole range of successive batches."""
    joined: dict[int, OffsetRange] = {}
    for batch in batches:
        for p, r in batch.ranges.items():
            joined[p] = OffsetRange(joined[p].start if p in joined else r.start, r.end)
    return joined


@dataclass(frozen=True)
class Batch:
    """One bounded set of ranges of one topic. Once planned it never changes.

    Attributes:
        seq: the topic's batch number, from 1; below zero for a slice of a backfill, which moves no cursor.
        ranges: the partitions that have something to read; may be empty for the batch that pins a topic's start.
        next_offsets: the topic's cursor after this batch, over all its partitions.
        gaps: what lies in the ranges and is given up: Kafka had lost it, and an operator accepted that by name.
    """

    topic: str
    topic_id: str
    seq: int
    ranges: Ranges
    next_offsets: Offsets
    gaps: Gaps = field(default_factory=dict, compare=False)

    @property
    def is_slice(self) -> bool:
        """Whether it is a slice of a backfill."""
        return self.seq < 0

    @property
    def starts(self) -> dict[int, int]:
        """The topic's cursor before this batch, over all its partitions."""
        return {p: self.ranges[p].start if p in self.ranges else end for p, end in self.next_offsets.items()}

    def skips(self, at: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Per partition the offsets between a cursor and this batch's beginning, in any of the topic's partitions.

        A batch need not read each of them, and still tells where it follows on. One that the cursor does not know was
        added since, and begins at 0.
        """
        return {p: (at.get(p, 0), start) for p, start in sorted(self.starts.items()) if start > at.get(p, 0)}

    @property
    def span(self) -> int:
        """How many offsets there are to read; the records may be fewer on compacted or transactional topics."""
        given_up = sum(g.span for each in self.gaps.values() for g in each)
        return sum(r.span for r in self.ranges.values()) - given_up

    @property
    def to_read(self) -> dict[int, OffsetRange]:
        """The ranges behind the batch's gaps, which lie at their beginnings, where there is anything left."""
        ends = {p: max(g.end for g in each) for p, each in self.gaps.items()}
        behind = {p: OffsetRange(ends.get(p, r.start), r.end) for p, r in self.ranges.items()}
        return {p: r for p, r in behind.items() if r.span}

    def properties(self) -> dict[str, str]:
        """What a stage or publish commit of this batch carries in its snapshot summary; of a slice, no cursor."""
        about = {TOPIC: self.topic, TOPIC_ID: self.topic_id, RANGES: offsets.encode_ranges(self.ranges)}
        if self.is_slice:
            return {BACKFILL: str(self.seq), **about}
        return {
            BATCH_SEQ: str(self.seq),
            **about,
            NEXT_OFFSETS: offsets.encode_offsets(self.next_offsets),
            **({GAPS: offsets.encode_gaps(self.gaps)} if self.gaps else {}),
        }

    @classmethod
    def from_properties(cls, summary: Mapping[str, str]) -> Self:
        """Read back what `properties` wrote."""
        return cls(
            topic=summary[TOPIC],
            topic_id=summary[TOPIC_ID],
            seq=int(summary[BATCH_SEQ] if BATCH_SEQ in summary else summary[BACKFILL]),
            ranges=offsets.decode_ranges(summary[RANGES]),
            next_offsets=offsets.decode_offsets(summary.get(NEXT_OFFSETS, "{}")),
            gaps=offsets.decode_gaps(summary.get(GAPS, "{}")),
        )

    def __str__(self) -> str:
        given_up = f" without {offsets.encode_gaps(self.gaps)}" if self.gaps else ""
        kind = "backfill" if self.is_slice else "batch"
        return f"{self.topic} {kind} {self.seq} {offsets.encode_ranges(self.ranges)}{given_up}"


def joined(batches: Sequence[Batch]) -> Batch:
    """Successive batches of one topic as one, which bears the last one's number."""
    if len(batches) == 1:
        return batches[0]
    gaps: dict[int, tuple[OffsetRange, ...]] = {}
    for batch in batches:
        for p, each in batch.gaps.items():
            gaps[p] = (*gaps.get(p, ()), *each)
    return replace(batches[-1], ranges=joined_ranges(batches), gaps=gaps)


def publish_properties(batches: Sequence[Batch]) -> dict[str, str]:
    """What a publish commit of successive batches carries: the whole, and, of several, each by itself."""
    properties = joined(batches).properties()
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


def batches_of(summary: Mapping[str, str]) -> list[Batch]:
    """Each batch that a commit brought, in order: the inverse of `publish_properties`, and of `Batch.properties`."""
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


@dataclass(frozen=True)
class Through:
    """How far a typed table has come in one topic: the last batch in it, and the offsets after it."""

    seq: int
    topic_id: str
    next_offsets: Offsets


@dataclass(frozen=True)
class Remembered:
    """What the ledger remembers of a table: how far it had come per topic, and when that was settled (epoch ms)."""

    through: Mapping[str, Through]
    committed_ms: int


def encode_through(through: Mapping[str, Through]) -> str:
    """The value of `sluice.published-through`: every topic of the table, so that one snapshot answers for all."""
    return json.dumps(
        {
            topic: {
                "batch": t.seq,
                "topic-id": t.topic_id,
                "next-offsets": {str(p): t.next_offsets[p] for p in sorted(t.next_offsets)},
            }
            for topic, t in sorted(through.items())
        },
        separators=(",", ":"),
    )


def decode_through(text: str) -> dict[str, Through]:
    """The inverse of `encode_through`."""
    return {
        topic: Through(
            seq=int(t["batch"]),
            topic_id=t["topic-id"],
            next_offsets={int(p): int(o) for p, o in t["next-offsets"].items()},
        )
        for topic, t in json.loads(text).items()
    }
