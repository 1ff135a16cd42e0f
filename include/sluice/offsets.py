"""TODO docstring of sluice.offsets."""

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
        """How many offsets the range spans."""
        return self.end - self.start


Ranges = Mapping[int, OffsetRange]
Offsets = Mapping[int, int]
Gaps = Mapping[int, Sequence[OffsetRange]]


def encode_ranges(ranges: Ranges) -> str:
    """`{"0": [start, end], …}`, partitions in order."""
    return json.dumps({str(p): list(ranges[p]) for p in sorted(ranges)}, separators=(",", ":"))


def decode_ranges(text: str) -> dict[int, OffsetRange]:
    """The inverse of `encode_ranges`."""
    return {int(p): OffsetRange(*map(int, bounds)) for p, bounds in json.loads(text).items()}


def encode_gaps(gaps: Gaps) -> str:
    """`{"0": [[start, end], …], …}`, partitions in order."""
    return json.dumps({str(p): [list(g) for g in gaps[p]] for p in sorted(gaps)}, separators=(",", ":"))


def decode_gaps(text: str) -> dict[int, tuple[OffsetRange, ...]]:
    """The inverse of `encode_gaps`."""
    return {int(p): tuple(OffsetRange(*map(int, g)) for g in each) for p, each in json.loads(text).items()}


def encode_offsets(offsets: Offsets) -> str:
    """`{"0": next offset, …}`, partitions in order."""
    return json.dumps({str(p): offsets[p] for p in sorted(offsets)}, separators=(",", ":"))


def decode_offsets(text: str) -> dict[int, int]:
    """The inverse of `encode_offsets`."""
    return {int(p): int(offset) for p, offset in json.loads(text).items()}


def _united(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The ranges in order, those that touch or overlap as one."""
    united: list[OffsetRange] = []
    for r in sorted(ranges):
        if united and r.start <= united[-1].end:
            united[-1] = OffsetRange(united[-1].start, max(united[-1].end, r.end))
        else:
            united.append(r)
    return united


def _reached(start: int, accepted: Sequence[OffsetRange]) -> int:
    """How far the accepted ranges lead on from `start` without a hole."""
    for gap in sorted(accepted):
        if gap.start <= start < gap.end:
            start = gap.end
    return start
