"""How many batches were staged and published when: one bar per batch, or where there are many, one per length of time.

In: rows of the ledger. Out: bars for the charts, and counts for the lanes of a timeline.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.ledger.ledger_rows import LedgerState
from sluice.status.events import Lane, TimeRange

_COUNTED_COLUMNS = ["at", "state", "topic", "table", "batch_seq"]
MAX_BARS = 400
"""More batches than a chart has room for are summed up."""


@dataclass(frozen=True)
class Bar:
    """A published batch, or several of them.

    Attributes:
        at: when the newest was published.
        delay: the greatest age of a record when its batch was published, in seconds.
        unread: the greatest number of unread offsets before a batch was read.
        seconds: the duration of the longest.
        commit_seconds: the part of `seconds` that its visible commit took.
    """

    at: datetime
    batches: int = 1
    records: int | None = None
    rejected: int | None = None
    delay: float | None = None
    unread: int | None = None
    seconds: float | None = None
    commit_seconds: float | None = None


@dataclass(frozen=True)
class Bars:
    """The published batches of a range.

    Attributes:
        bars: oldest first.
        seconds: the length of time of each bar; None: each is one batch.
    """

    bars: Sequence[Bar] = ()
    seconds: int | None = None


@dataclass(frozen=True)
class CellCounts:
    """The batches of a range by lane and name, which is that of a table, or of a topic for staged batches.

    Attributes:
        first: the number of the first cell: its time in seconds since 1970, divided by `cell_s`.
        counts: one number per cell.
    """

    first: int
    cell_s: int
    counts: Mapping[tuple[Lane, str], Sequence[int]]


@dataclass(frozen=True)
class BatchCounts:
    """The batches of each range, by its hours. Bars are those of one table."""

    bars: Mapping[int, Bars] = field(default_factory=dict)
    cells: Mapping[int, CellCounts] = field(default_factory=dict)


def list_batches(rows: pa.Table) -> list[Bar]:
    """The published batches among rows of the ledger, oldest first.

    Args:
        rows: newest first; a staged row has fields of its batch.
    """
    staged = _columns(rows, LedgerState.STAGED, ("topic", "batch_seq", "oldest", "unread"))
    beside = {(topic, seq): (oldest, unread) for topic, seq, oldest, unread in staged}
    names = ("topic", "batch_seq", "at", "records", "rejected", "seconds", "commit_seconds")
    found = []
    for topic, seq, at, records, rejected, seconds, commit in _columns(rows, LedgerState.PUBLISHED, names):
        oldest, unread = beside.get((topic, seq), (None, None))
        delay = (at - oldest).total_seconds() if oldest else None
        found.append(Bar(at, 1, records, rejected, delay, unread, seconds, commit))
    return sorted(found, key=lambda bar: bar.at)


def _columns(rows: pa.Table, state: LedgerState, names: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    present = {*names} & {*rows.column_names}
    chosen = rows.select(sorted(present)).filter(pc.equal(rows["state"], state))
    missing = [None] * len(chosen)  # a ledger of an older version
    return zip(*(chosen[name].to_pylist() if name in present else missing for name in names), strict=True)


def make_bars(batches: Sequence[Bar], each: TimeRange, until: datetime) -> Bars:
    """The bars of a range: one per batch, or of equal lengths that begin at full multiples.

    Args:
        batches: oldest first.
        until: the end of the range.
    """
    start = until - timedelta(hours=each.hours)
    inside = [bar for bar in batches if start <= bar.at <= until]
    if len(inside) <= MAX_BARS:
        return Bars(inside)
    by_time: dict[int, list[Bar]] = {}
    for bar in inside:
        by_time.setdefault(int(bar.at.timestamp()) // each.bar_s, []).append(bar)
    return Bars([_sum_up(found) for found in by_time.values()], each.bar_s)


def _sum_up(bars: Sequence[Bar]) -> Bar:
    def known(name: str) -> list[float]:
        return [value for bar in bars if (value := getattr(bar, name)) is not None]

    longest = max(bars, key=lambda bar: bar.seconds or 0.0)
    records, rejected = (int(sum(found)) if (found := known(name)) else None for name in ("records", "rejected"))
    unread = max(known("unread"), default=None)
    return Bar(
        bars[-1].at, len(bars), records, rejected, max(known("delay"), default=None),
        None if unread is None else int(unread), longest.seconds, longest.commit_seconds,
    )  # fmt: skip


def count_batches(parts: Iterable[pa.Table], ranges: Sequence[TimeRange], until: datetime) -> dict[int, CellCounts]:
    """Count the batches in rows of the ledger, for each range by its hours.

    Args:
        parts: the rows, in any number of parts, so that they need not be in memory together.
        until: the end of the ranges.
    """
    found: dict[int, CellCounts] = {}
    counts: dict[int, dict[tuple[Lane, str], array[int]]] = {each.hours: {} for each in ranges}
    for each in ranges:
        start = int((until - timedelta(hours=each.hours)).timestamp())
        found[each.hours] = CellCounts(start // each.cell_s, each.cell_s, counts[each.hours])
    for rows in parts:
        for each in ranges:
            cells = found[each.hours]
            length = int(until.timestamp()) // each.cell_s - cells.first + 1
            for lane, name, cell, number in _count_cells(rows, cells, until - timedelta(hours=each.hours), until):
                numbers = counts[each.hours].setdefault((lane, name), array("L", bytes(8 * length)))
                numbers[cell] += number
    return found


def _count_cells(
    rows: pa.Table, cells: CellCounts, start: datetime, until: datetime
) -> Iterable[tuple[Lane, str, int, int]]:
    rows = rows.select(_COUNTED_COLUMNS)
    inside = pc.and_(
        pc.and_(pc.greater_equal(rows["at"], start), pc.less_equal(rows["at"], until)),
        pc.is_in(rows["state"], pa.array([str(LedgerState.STAGED), str(LedgerState.PUBLISHED)])),
    )
    chosen = rows.filter(inside)
    seconds = pc.divide(pc.cast(chosen["at"].cast(pa.timestamp("s", "UTC"), safe=False), pa.int64()), cells.cell_s)
    by = ("state", "topic", "table", "cell")
    grouped = (
        chosen.append_column("cell", pc.subtract(seconds, cells.first))
        .group_by([*by])
        .aggregate([("batch_seq", "count_distinct")])  # older versions wrote a row per partition
    )
    for state, topic, table, cell, number in zip(
        *(grouped[name].to_pylist() for name in (*by, "batch_seq_count_distinct")), strict=True
    ):
        lane = Lane(state)
        yield lane, topic if lane == Lane.STAGED else table, cell, number
