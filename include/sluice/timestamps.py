"""Epoch numbers of Kafka and Iceberg as Python's timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BOUNDS = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
"""Times beyond are cut to these; far enough from the first and last year that no time zone leaves them."""


def utc_from_micros(micros: int) -> datetime:
    """Return epoch microseconds as a UTC time, cut to `BOUNDS`.

    Producers may stamp records with any number, such as microseconds where milliseconds are meant.
    """
    first, last = ((end - EPOCH) // timedelta(microseconds=1) for end in BOUNDS)
    return EPOCH + timedelta(microseconds=min(max(micros, first), last))
