"""A sample of a topic: its newest records, and what Kafka says of the topic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SampledRecord:
    """One record.

    Attributes:
        key: Its key; None if it has none.
        value: Its value; None for a tombstone.
        millis: Its Kafka timestamp in milliseconds since 1970; None if it has no valid one.
        headers: The names of its headers.
    """

    key: bytes | None
    value: bytes | None
    millis: int | None = None
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Records of a topic.

    Attributes:
        topic: The topic.
        records: Its newest records.
        compacted: Whether Kafka keeps only the newest record of a key.
    """

    topic: str
    records: tuple[SampledRecord, ...]
    compacted: bool = False

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self.records)

    @property
    def tombstones(self) -> int:
        """How many records have a key and no value."""
        return sum(each.value is None and each.key is not None for each in self.records)

    @property
    def records_per_day(self) -> float | None:
        """How many records arrive in a day, by their timestamps; None if that can't be said."""
        times = [each.millis for each in self.records if each.millis is not None]
        if len(times) < 2 or max(times) - min(times) < 1000:
            return None
        return len(times) * 86_400_000 / (max(times) - min(times))
