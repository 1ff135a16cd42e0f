"""The events of a timeline, each in the lane of its kind, and the ranges of time that a page can show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

INGEST = "ingest"


class Lane(StrEnum):
    """The kind of an event, in the order of the page."""

    STAGED = "staged"
    PUBLISHED = "published"
    REFUSED = "refused"
    RUNS = "failed_runs"
    CATALOG = "catalog_errors"
    REGISTRY = "registry_errors"
    QUALITY = "quality"
    SCHEMA = "schema"
    OPERATOR = "operator"
    FILES = "files"
    MAINTENANCE = "maintenance"


class TimeRange(NamedTuple):
    """A range of time that a page can show, up to the time of the reading.

    Attributes:
        bar_s: the seconds of a bar that sums up batches.
        cell_s: the seconds of a mark on a lane.
    """

    hours: int
    bar_s: int
    cell_s: int


RANGES = tuple(
    TimeRange(hours, bar_s, cell_s)
    for hours, bar_s, cell_s in (
        (1, 15, 60), (6, 60, 300), (24, 300, 900), (168, 1800, 7200), (720, 7200, 21_600),
    )
)  # fmt: skip
WEEK_RANGES, MONTH_RANGES = RANGES[:-1], RANGES[-1:]


def find_range(hours: int) -> TimeRange:
    """The range of this many hours; a day, if there is none."""
    return next((each for each in RANGES if each.hours == hours), RANGES[2])


@dataclass(frozen=True)
class Event:
    """Something that happened. A failed run has no topic, and a table only if it acted on no other.

    Attributes:
        told: the description, in one line.
        table: None for the staging of a topic, which all its tables share.
        bad: whether it is a failure or an accepted gap.
        seconds: the duration.
        delay: of a published batch: the age of its oldest record at that time, in seconds.
        unread: of a batch: the topic's unread offsets before it was read.
        commit_seconds: the part of `seconds` that the visible commit took.
        dag: the DAG of the run, `INGEST` for the DAG of the table's group; None if unknown.
        batch: the topic's batch number; below zero: a slice of a backfill.
    """

    at: datetime
    lane: Lane
    told: str
    table: str | None = None
    topic: str | None = None
    bad: bool = False
    run_id: str | None = None
    seconds: float | None = None
    records: int | None = None
    rejected: int | None = None
    snapshot_id: int | None = None
    delay: float | None = None
    unread: int | None = None
    commit_seconds: float | None = None
    dag: str | None = None
    batch: int | None = None


def count_published(records: int | None, rejected: int | None) -> int | None:
    """The records of a batch that are in the table, without those that were quarantined; None if unknown."""
    return None if records is None else records - (rejected or 0)


def batch_name(seq: int) -> str:
    """A batch in words; numbers below zero are those of a backfill's slices."""
    return f"batch {seq}" if seq >= 0 else f"slice {seq}"


def group_by_lane(found: Iterable[Event]) -> list[tuple[Lane, list[Event]]]:
    """Group the events by lane; empty lanes are left out."""
    by_lane: dict[Lane, list[Event]] = {}
    for event in found:
        by_lane.setdefault(event.lane, []).append(event)
    return [(lane, by_lane[lane]) for lane in Lane if lane in by_lane]
