"""TODO docstring of sluice.timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ENDS = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
"""What is beyond is told as these: in no time zone are they other years."""


def moment(micros: int) -> datetime:
    """Epoch microseconds as a time within `ENDS`.

    A producer may stamp records with any number, such as microseconds for milliseconds, and Python's years end.
    """
    first, last = ((end - EPOCH) // timedelta(microseconds=1) for end in ENDS)
    return EPOCH + timedelta(microseconds=min(max(micros, first), last))
