"""Epoch numbers of Kafka and Iceberg as Python's timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BOUNDS = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)
"""Times beyond are cut to these; far enough from the first and last year that no time zone leaves them."""

NO_TIMESTAMP = -1
"""What Kafka has for a record without a timestamp."""


def utc_from_kafka(millis: int) -> datetime | None:
    """Return a record's timestamp as a UTC time; None if it has none, or one beyond the years 1 to 9999."""
    try:
        return None if millis == NO_TIMESTAMP else EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return None


def utc_from_micros(micros: int) -> datetime:
    """Return epoch microseconds as a UTC time, cut to `BOUNDS`."""
    first, last = ((end - EPOCH) // timedelta(microseconds=1) for end in BOUNDS)
    return EPOCH + timedelta(microseconds=min(max(micros, first), last))
