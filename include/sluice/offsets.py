"""Offset ranges of partitions, and their JSON in the ledger, in snapshot summaries and in requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """Offsets `[start, end)` of one partition."""

    start: int
    end: int

    @property
    def span(self) -> int:
        """Number of offsets in the range."""
        return self.end - self.start


Ranges = Mapping[int, OffsetRange]
Offsets = Mapping[int, int]
Gaps = Mapping[int, Sequence[OffsetRange]]


def encode_ranges(ranges: Ranges) -> str:
    """Return `{"0": [start, end], …}`, partitions in order."""
    return json.dumps({str(p): list(ranges[p]) for p in sorted(ranges)}, separators=(",", ":"))


def decode_ranges(text: str) -> dict[int, OffsetRange]:
    """Return the ranges: the inverse of `encode_ranges`."""
    return {int(p): OffsetRange(*map(int, bounds)) for p, bounds in json.loads(text).items()}


def encode_gaps(gaps: Gaps) -> str:
    """Return `{"0": [[start, end], …], …}`, partitions in order."""
    return json.dumps({str(p): [list(g) for g in gaps[p]] for p in sorted(gaps)}, separators=(",", ":"))


def decode_gaps(text: str) -> dict[int, tuple[OffsetRange, ...]]:
    """Return the gaps: the inverse of `encode_gaps`."""
    return {int(p): tuple(OffsetRange(*map(int, g)) for g in each) for p, each in json.loads(text).items()}


def encode_offsets(offsets: Offsets) -> str:
    """Return `{"0": next offset, …}`, partitions in order."""
    return json.dumps({str(p): offsets[p] for p in sorted(offsets)}, separators=(",", ":"))


def decode_offsets(text: str) -> dict[int, int]:
    """Return the offsets: the inverse of `encode_offsets`."""
    return {int(p): int(offset) for p, offset in json.loads(text).items()}


def merge_overlapping(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges in order; those that touch or overlap become one."""
    united: list[OffsetRange] = []
    for r in sorted(ranges):
        if united and r.start <= united[-1].end:
            united[-1] = OffsetRange(united[-1].start, max(united[-1].end, r.end))
        else:
            united.append(r)
    return united


def skip_accepted(start: int, accepted: Sequence[OffsetRange]) -> int:
    """Return the first offset from `start` on that no accepted range covers."""
    for gap in sorted(accepted):
        if gap.start <= start < gap.end:
            start = gap.end
    return start
