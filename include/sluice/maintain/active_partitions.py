"""Leaves partitions that are still written to out of a rewrite: it would soon be undone, and conflict with the writer.

In: a table's partitions and which are due. Out: those to rewrite, and a filter for their files. A time partition waits
until nothing was written to it for `rewrite_after`, unless it has so many small files that reading gets slow.
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
from sluice.iceberg.sql_literals import quote_identifier, sql_literal
from sluice.maintain.file_stats import Key, PartitionFiles

OVERFULL = 10
"""With this many times `min_input_files` small files, a partition is rewritten even though it is still written to."""
MAX_VALUES = 100
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - partition values count from midnight of the column's own time zone


@dataclass(frozen=True)
class TimePartitionField:
    """The field of a partition spec that partitions by time.

    Attributes:
        index: its position in the partition's values.
        column: the source column.
        unit: year, month, day or hour.
        type: the source column's type.
    """

    index: int
    column: str
    unit: str
    type: DateType | TimestampType | TimestamptzType


@dataclass(frozen=True)
class PartitionChoice:
    """Which of the due partitions are rewritten.

    Attributes:
        keys: those to rewrite, by their key in `TableFiles.partitions`.
        waiting: those that are still written to.
        where: SQL that selects the files to rewrite; None: all files.
    """

    keys: tuple[Key, ...]
    waiting: tuple[Key, ...] = ()
    where: str | None = None


def choose_partitions(
    table: Table,
    partitions: Mapping[Key, PartitionFiles],
    due: Iterable[Key],
    settings: Maintenance,
    now: datetime,
) -> PartitionChoice:
    """Choose the partitions to rewrite. In a table that is not partitioned by time these are all that are due.

    Args:
        partitions: every partition whose files were counted.
        due: keys of those that a rewrite would improve.
    """
    wanted = tuple(due)
    field = find_time_field(table)
    spec = table.spec().spec_id
    if field is None or any(key[0] != spec for key in partitions):
        return PartitionChoice(wanted)
    since = (now - settings.rewrite_after).timestamp() * 1000
    overfull = OVERFULL * settings.min_input_files
    # The filter selects ranges of the time column: all partitions of one period wait together, unless one is overfull.
    busy = {_period(key, field) for key, p in partitions.items() if p.written_ms > since}
    busy -= {_period(key, field) for key, p in partitions.items() if p.small + p.surplus_deletes >= overfull}
    free = [key for key in wanted if _period(key, field) not in busy]
    load = Counter({_period(key, field): 0 for key in free})
    for key in free:
        load[_period(key, field)] += partitions[key].small + partitions[key].surplus_deletes
    if not busy and len(load) <= MAX_VALUES:
        return PartitionChoice(wanted)
    fullest = {period for period, _ in load.most_common(MAX_VALUES)}
    keys = tuple(key for key in free if _period(key, field) in fullest)
    waiting = tuple(key for key in wanted if _period(key, field) in busy)
    return PartitionChoice(keys, waiting, build_filter(field, fullest) if keys else None)


def find_time_field(table: Table) -> TimePartitionField | None:
    """The first field of the table's partition spec that partitions by time; None: there is none."""
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
        return TimePartitionField(index, source.name, unit, kind)
    return None


def build_filter(field: TimePartitionField, periods: Iterable[int | None]) -> str:
    """SQL that is true for the rows of these partition values, as ranges of the time column."""
    column = quote_identifier(field.column)
    terms = []
    for first, last in _consecutive({p for p in periods if p is not None}):
        lower, upper = _period_start(field, first), _period_start(field, last + 1)
        bounds = [f"{column} >= {sql_literal(lower)}"] if lower else []
        bounds += [f"{column} < {sql_literal(upper)}"] if upper else []
        # A time that no literal can express has no bound: more files are selected than needed, which only costs time.
        terms.append("(" + (" AND ".join(bounds) or f"{column} IS NOT NULL") + ")")
    if None in periods:
        terms.append(f"{column} IS NULL")
    return " OR ".join(terms)


def _consecutive(values: set[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _period_start(field: TimePartitionField, period: int) -> date | datetime | None:
    """The time at which a partition value's period begins; None where no literal can express it."""
    try:
        if field.unit in ("year", "month"):
            months = period * 12 if field.unit == "year" else period
            start = _EPOCH.replace(year=1970 + months // 12, month=1 + months % 12)
        else:
            start = _EPOCH + timedelta(**{f"{field.unit}s": period})
    except (ValueError, OverflowError):
        return None
    if isinstance(field.type, DateType):
        return start.date()
    return start.replace(tzinfo=UTC) if isinstance(field.type, TimestamptzType) else start


def _period(key: Key, field: TimePartitionField) -> int | None:
    value = key[1 + field.index]
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    return None if value is None else int(value)
