"""Risks: what planning warns of and status shows. Imports nothing heavy, because the pages load it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RiskKind(StrEnum):
    """What may go wrong."""

    UNREAD = "unread"
    UNPUBLISHED = "unpublished"
    TOMBSTONES = "tombstones"
    SCHEMA = "schema"
    LEFT_BEHIND = "left behind"
    TIMESTAMPS = "timestamps"
    OTHER_WRITERS = "other writers"


@dataclass(frozen=True)
class Risk:
    """A warning about a topic; with a table if it concerns only that one."""

    kind: RiskKind
    topic: str
    text: str
    table: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}"


@dataclass
class RiskStatus:
    """A risk as status shows it."""

    kind: str
    topic: str
    text: str
