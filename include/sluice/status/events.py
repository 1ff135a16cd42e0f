"""The events of a timeline, each in the lane of its kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

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


def group_by_lane(found: Iterable[Event]) -> list[tuple[Lane, list[Event]]]:
    """Group the events by lane; empty lanes are left out."""
    by_lane: dict[Lane, list[Event]] = {}
    for event in found:
        by_lane.setdefault(event.lane, []).append(event)
    return [(lane, by_lane[lane]) for lane in Lane if lane in by_lane]
