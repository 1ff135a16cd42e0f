"""Words: which lost offsets an operator gave up, as the ledger's `gap` rows and the snapshots of staging tell it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sluice import offsets
from sluice.batch import Batch
from sluice.ledger.offsets_table import Row, State
from sluice.offsets import OffsetRange, Ranges

UNKNOWN = "The ledger that held the operator's word was lost; staging's snapshot of batch {seq} tells of the gap."


def accepted(words: Iterable[Row], topic: str, topic_id: str, table: str | None = None) -> dict[int, list[OffsetRange]]:
    """Per partition what was given up of this very topic: one that was created again has other offsets.

    Args:
        words: rows as `Ledger.gaps` gives them.
        table: what was given up for this table alone, because staging had lost it; without one, for the whole topic.
    """
    found: dict[int, list[OffsetRange]] = {}
    for row in words:
        if (row.topic, row.topic_id, row.table) == (topic, topic_id, table) and row.partition is not None:
            found.setdefault(row.partition, []).append(OffsetRange(row.start_offset or 0, row.end_offset or 0))
    return {p: offsets._united(each) for p, each in found.items()}


def with_gaps(batch: Batch, words: Iterable[Row]) -> Batch:
    """A batch that only the ledger tells of, with its share of what was given up."""
    gaps = {}
    for p, each in accepted(words, batch.topic, batch.topic_id).items():
        if p in batch.ranges:
            r = batch.ranges[p]
            shares = [OffsetRange(max(g.start, r.start), min(g.end, r.end)) for g in each]
            if inside := tuple(g for g in shares if g.span > 0):
                gaps[p] = inside
    return replace(batch, gaps=gaps) if gaps else batch


def covers(words: Iterable[Row], batch: Batch, table: str, *, before: bool = False) -> bool:
    """Whether all of a batch was given up for this table alone.

    Args:
        before: instead of the batch, all offsets of the topic before it.
    """
    known = accepted(words, batch.topic, batch.topic_id, table)
    wanted = batch.skips({}) if before else batch.ranges
    return all(any(w.start <= a and b <= w.end for w in known.get(p, ())) for p, (a, b) in wanted.items())


def rows(
    topic: str, topic_id: str, ranges: Ranges, *, why: str, who: str | None = None, table: str | None = None
) -> list[Row]:
    """A word as rows of the ledger, one per partition."""
    return [
        Row(
            topic=topic,
            state=State.GAP,
            topic_id=topic_id,
            partition=p,
            start_offset=r.start,
            end_offset=r.end,
            table=table,
            who=who,
            why=why,
        )
        for p, r in sorted(ranges.items())
    ]


def untold(batch: Batch, words: Iterable[Row]) -> list[Row]:
    """A batch's gaps that the ledger has no word of, as rows."""
    known = accepted(words, batch.topic, batch.topic_id)
    return [
        row
        for p, each in sorted(batch.gaps.items())
        for g in each
        if not any(w.start <= g.start and g.end <= w.end for w in known.get(p, ()))
        for row in rows(batch.topic, batch.topic_id, {p: g}, why=UNKNOWN.format(seq=batch.seq))
    ]
