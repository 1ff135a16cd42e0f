"""Which partitions of a table are still written to, and the filter that leaves them out of a rewrite.

A rewrite of a partition that takes rows all the time is soon undone, and runs into the writer. So in a table that is
partitioned by time, a partition waits until nothing was written into it for `rewrite_after`. Told from metadata: from
the snapshots that added its live files and deletes, those of rewrites left aside. A partition that is never left alone
is rewritten all the same once it is overfull, or reading it would become ever slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from sluice.contract.settings import Maintenance
from sluice.iceberg.sql_literals import literal, quoted
from sluice.maintain.file_stats import Key, PartitionFacts

OVERFULL = 10
"""So many times `min_input_files`, and a partition is rewritten though it is still written to."""
MOST_VALUES = 100
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a partition's value is counted from midnight, whatever the zone


@dataclass(frozen=True)
class Clock:
    """The field of a partition spec that tells a time.

    Attributes:
        index: its place in a partition's values.
        column: the source column.
        unit: year, month, day or hour.
    """

    index: int
    column: str
    unit: str
    kind: DateType | TimestampType | TimestamptzType


@dataclass(frozen=True)
class Choice:
    """Which of the partitions that need it are rewritten.

    Attributes:
        keys: those, by their key in `Facts.partitions`.
        waiting: those that are still written to.
        where: SQL that selects their files; None where nothing has to be left out.
    """

    keys: tuple[Key, ...]
    waiting: tuple[Key, ...] = ()
    where: str | None = None


def choose(
    table: Table,
    partitions: Mapping[Key, PartitionFacts],
    needy: Iterable[Key],
    settings: Maintenance,
    now: datetime,
) -> Choice:
    """Leave out what is still written to; all partitions are taken in a table that is not partitioned by time.

    Args:
        partitions: every partition that was looked at.
        needy: keys of those that a rewrite would serve.
    """
    wanted = tuple(needy)
    clock = clock_of(table)
    spec = table.spec().spec_id
    if clock is None or any(key[0] != spec for key in partitions):
        return Choice(wanted)
    since = (now - settings.rewrite_after).timestamp() * 1000
    least = OVERFULL * settings.min_input_files
    # One value of the clock is one range of the column: it waits as a whole, unless a part of it is overfull.
    busy = {_value(key, clock) for key, p in partitions.items() if p.written_ms > since}
    busy -= {_value(key, clock) for key, p in partitions.items() if p.small + p.surplus >= least}
    free = [key for key in wanted if _value(key, clock) not in busy]
    load = Counter({_value(key, clock): 0 for key in free})
    for key in free:
        load[_value(key, clock)] += partitions[key].small + partitions[key].surplus
    if not busy and len(load) <= MOST_VALUES:
        return Choice(wanted)
    taken = {value for value, _ in load.most_common(MOST_VALUES)}
    keys = tuple(key for key in free if _value(key, clock) in taken)
    waiting = tuple(key for key in wanted if _value(key, clock) in busy)
    return Choice(keys, waiting, where(clock, taken) if keys else None)


def clock_of(table: Table) -> Clock | None:
    """The first field of the table's partition spec that tells a time; None where there is none."""
    for index, field in enumerate(table.spec().fields):
        source = table.schema().find_field(field.source_id)
        kind = source.field_type
        if not isinstance(kind, (DateType, TimestampType, TimestamptzType)):
            continue
        match field.transform:
            case YearTransform():
                unit = "year"
            case MonthTransform():
                unit = "month"
            case DayTransform():
                unit = "day"
            case HourTransform():
                unit = "hour"
            case IdentityTransform() if isinstance(kind, DateType):
                unit = "day"
            case _:
                continue
        return Clock(index, source.name, unit, kind)
    return None


def where(clock: Clock, values: Iterable[int | None]) -> str:
    """SQL that is true for the rows of these values of the clock, as ranges of its column."""
    column = quoted(clock.column)
    terms = []
    for first, last in _runs({v for v in values if v is not None}):
        lower, upper = _moment(clock, first), _moment(clock, last + 1)
        bounds = [f"{column} >= {literal(lower)}"] if lower else []
        bounds += [f"{column} < {literal(upper)}"] if upper else []
        # Beyond what a literal can say: one bound selects more than is asked for, which costs time and nothing else.
        terms.append("(" + (" AND ".join(bounds) or f"{column} IS NOT NULL") + ")")
    if None in values:
        terms.append(f"{column} IS NULL")
    return " OR ".join(terms)


def _runs(values: set[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _moment(clock: Clock, value: int) -> date | datetime | None:
    """Where a value of the clock begins; None where no literal can say it."""
    try:
        if clock.unit in ("year", "month"):
            months = value * 12 if clock.unit == "year" else value
            moment = _EPOCH.replace(year=1970 + months // 12, month=1 + months % 12)
        else:
            moment = _EPOCH + timedelta(**{f"{clock.unit}s": value})
    except (ValueError, OverflowError):
        return None
    if isinstance(clock.kind, DateType):
        return moment.date()
    return moment.replace(tzinfo=UTC) if isinstance(clock.kind, TimestamptzType) else moment


def _value(key: Key, clock: Clock) -> int | None:
    found = key[1 + clock.index]
    if isinstance(found, date):
        return (found - _EPOCH.date()).days
    return None if found is None else int(found)
