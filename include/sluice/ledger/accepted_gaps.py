"""Accepted gaps: lost offsets that an operator decided to skip.

In: the ledger's `gap` rows. Out: ranges by partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from sluice import offsets
from sluice.batch import Batch
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, rows_by_partition
from sluice.offsets import OffsetRange, Ranges

RECOVERED_REASON = "The ledger lost the operator's reason; the snapshot of batch {seq} in staging records the gap."


class LostRanges(NamedTuple):
    """Offsets of one topic that no longer exist in Kafka or in staging."""

    topic: str
    topic_id: str
    ranges: Ranges


def accepted_ranges(
    gaps: Iterable[LedgerRow], topic: str, topic_id: str, table: str | None = None
) -> dict[int, list[OffsetRange]]:
    """Return the accepted gaps of a topic by partition, merged and sorted.

    Args:
        gaps: rows as `Ledger.gaps` returns them.
        topic: the topic's name.
        topic_id: Kafka's id: after a topic is created again, gaps of the old one do not apply.
        table: the table that alone skips them, because staging had lost them; by default, gaps of the whole topic.
    """
    found: dict[int, list[OffsetRange]] = {}
    for row in gaps:
        if (row.topic, row.topic_id, row.table) == (topic, topic_id, table) and row.partition is not None:
            found.setdefault(row.partition, []).append(OffsetRange(row.start_offset or 0, row.end_offset or 0))
    return {p: offsets.merge_overlapping(each) for p, each in found.items()}


def add_accepted_gaps(batch: Batch, gaps: Iterable[LedgerRow]) -> Batch:
    """Return a batch that was read from the ledger with the accepted gaps inside its ranges."""
    inside = {}
    for p, accepted in accepted_ranges(gaps, batch.topic, batch.topic_id).items():
        if p in batch.ranges:
            r = batch.ranges[p]
            overlaps = [OffsetRange(max(gap.start, r.start), min(gap.end, r.end)) for gap in accepted]
            if overlaps := [gap for gap in overlaps if gap.span > 0]:
                inside[p] = tuple(overlaps)
    return replace(batch, gaps=inside) if inside else batch


def is_skipped_by_table(gaps: Iterable[LedgerRow], batch: Batch, table: str, *, before: bool = False) -> bool:
    """Return whether this table skips a whole batch.

    Args:
        gaps: rows as `Ledger.gaps` returns them.
        batch: the batch.
        table: the typed table.
        before: ask about all offsets of the topic before the batch instead.
    """
    accepted = accepted_ranges(gaps, batch.topic, batch.topic_id, table)
    wanted = batch.offsets_skipped_after({}) if before else batch.ranges
    return all(
        any(gap.start <= start and end <= gap.end for gap in accepted.get(p, ())) for p, (start, end) in wanted.items()
    )


def gap_rows(lost: LostRanges, *, why: str, who: str | None = None, table: str | None = None) -> list[LedgerRow]:
    """Return an accepted gap as rows of the ledger, one per partition.

    Args:
        lost: the offsets to skip.
        why: the operator's reason.
        who: the operator.
        table: the table that alone skips them; by default all tables of the topic.
    """
    row = LedgerRow(lost.topic, LedgerState.GAP, lost.topic_id, table=table, who=who, why=why)
    return rows_by_partition(row, lost.ranges)


def missing_gap_rows(batch: Batch, gaps: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return rows for a batch's gaps that the ledger has lost."""
    accepted = accepted_ranges(gaps, batch.topic, batch.topic_id)
    return [
        row
        for p, each in sorted(batch.gaps.items())
        for gap in each
        if not any(known.start <= gap.start and gap.end <= known.end for known in accepted.get(p, ()))
        for row in gap_rows(
            LostRanges(batch.topic, batch.topic_id, {p: gap}), why=RECOVERED_REASON.format(seq=batch.seq)
        )
    ]
