"""What a table is at risk of: values that planning writes and status shows. Light, because pages import it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a table is at risk of."""

    UNREAD = "unread"
    UNPUBLISHED = "unpublished"
    TOMBSTONES = "tombstones"
    SCHEMA = "schema"
    LEFT = "left behind"


@dataclass(frozen=True)
class Risk:
    """A warning about a topic; with a table if it concerns that one alone."""

    kind: Kind
    topic: str
    text: str
    table: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}"


@dataclass
class RiskStatus:
    """What may come: of which kind, of which topic, and told in words."""

    kind: str
    topic: str
    text: str
