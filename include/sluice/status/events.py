"""What a timeline is made of: events, each in the lane of what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

INGEST = "ingest"
BY_HAND = ("backfill", "rollback", "accept_gap", "review_schema")
MAINTAIN = ("maintain_rewrite_data_files", "maintain_expire_snapshots", "maintain_remove_orphan_files")
"""The DAGs that act on tables, beside those of the groups."""


class Lane(StrEnum):
    """What an event is about, in the order in which a page draws them."""

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
    """Something that happened.

    Attributes:
        table: its name; None for what a topic's staging did, which all its tables share.
        bad: something failed or was given up: it needs, or needed, a person, unless another attempt went well.
        told: what happened, in one line.
        seconds: how long it took.
        records, rejected: of a batch.
        delay: of a published batch, the age in seconds that its oldest record had reached by then.
        unread: of a batch, the topic's unread offsets before it was read.
        commit_seconds: of `seconds`, how long the commit took that readers see.
        dag: what the run is one of: `INGEST` stands for that of the table's group; None where it is not told.

    A run that failed is told of by its DAG, and has no topic; nor a table, unless it was about that one alone.
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


def lanes(found: Iterable[Event]) -> list[tuple[Lane, list[Event]]]:
    """The events by lane; lanes without any are left out."""
    by_lane: dict[Lane, list[Event]] = {}
    for event in found:
        by_lane.setdefault(event.lane, []).append(event)
    return [(lane, by_lane[lane]) for lane in Lane if lane in by_lane]
