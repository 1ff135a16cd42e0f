"""The work on a table that is not in it yet: runs, planned and staged batches, and slices of backfills."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Self

from sluice.batch import Batch
from sluice.offsets import OffsetRange

if TYPE_CHECKING:
    from sluice.ledger.ledger_rows import LedgerRow


@dataclass
class OpenBatch:
    """A batch under way. `state` is `planned` (not staged yet) or `staged` (not published to this table yet)."""

    topic: str
    batch: int
    state: str
    ranges: dict[int, OffsetRange]


@dataclass
class IngestRun:
    """A run of the DAG that ingests a table.

    Attributes:
        state: that of Airflow, such as `queued`.
        since: when it began, or was triggered if it has not begun.
        ended: when it ended; None if it has not.
        task: the first task that failed; None if none did.
        tries: tries of that task.
    """

    run_id: str
    state: str
    since: datetime | None
    ended: datetime | None = None
    task: str | None = None
    tries: int = 0


@dataclass
class SliceStatus:
    """A backfill slice that is not in the table.

    Attributes:
        number: negative.
        state: `planned` (not finished yet, or its application died), `blocked`, `failed`; `unknown` without a ledger.
        branch: the branch that keeps the result of a refused slice, until it is dropped.
    """

    topic: str
    number: int
    state: str
    ranges: dict[int, OffsetRange]
    at: datetime | None
    run_id: str | None
    error: str | None
    branch: str | None

    @classmethod
    def from_ledger(
        cls, topic: str, number: int, batch: Batch | None, last: LedgerRow | None, branch: str | None
    ) -> Self:
        """Build it from the slice's newest ledger row; without one, only the branch is known."""
        ranges = dict(batch.ranges) if batch else {}
        if last is None:
            return cls(topic, number, "unknown", ranges, None, None, None, branch)
        return cls(topic, number, str(last.state), ranges, last.at, last.run_id, last.error, branch)
