"""What a table published lately, as plain values: its last batches, and the counts of the last hour and day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from sluice.status.events import Lane, count_published

MAX_BATCHES = 10


@dataclass(frozen=True)
class BatchEnd:
    """How the newest attempt to publish a batch to a table ended.

    Attributes:
        state: of `LedgerState`: published, blocked or failed.
        unread: the topic's unread offsets before the batch was read.
    """

    at: datetime
    topic: str
    batch: int
    state: str
    records: int | None = None
    rejected: int | None = None
    unread: int | None = None

    @property
    def published(self) -> int | None:
        """The records that are in the table; None if unknown, or if the batch is not published."""
        return count_published(self.records, self.rejected) if self.state == Lane.PUBLISHED else None

    @cached_property
    def tone(self) -> str:
        """`good`; `warn` if it is published without its quarantined records; `bad` if it is not published."""
        return "bad" if self.state != Lane.PUBLISHED else "warn" if self.rejected else "good"

    @cached_property
    def text(self) -> str:
        """The attempt in words."""
        counts = "" if self.records is None else f", {self.records:,} records"
        rejected = f", {self.rejected:,} quarantined" if self.rejected else ""
        at = f"{self.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"  # the page's script shows it in the viewer's zone
        return f"{at}: {self.topic}, batch {self.batch} {self.state}{counts}{rejected}"

    @cached_property
    def time(self) -> str:
        """The time, as the address of a timeline takes it."""
        return self.at.astimezone(UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class TableActivity:
    """What a table published lately.

    Attributes:
        batches: the last `MAX_BATCHES`, oldest first.
        published: records published within the last hour.
        quarantined: records quarantined within the last 24 hours, those of blocked batches included.
    """

    batches: Sequence[BatchEnd] = ()
    published: int = 0
    quarantined: int = 0
