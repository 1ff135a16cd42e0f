"""Decides when unread records start a group's run, with `schedule: on_data`.

In: Kafka's end offsets, and staging tables, which have the topics' cursors. Out: how much is unread, and whether a run
is due.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from sluice.errors import SluiceError
from sluice.kafka import broker
from sluice.ledger import backlog
from sluice.offsets import Offsets

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 1800.0


@dataclass
class UnreadReader:
    """Counts unread offsets. It asks the catalog only about topics that grew since all of them was read.

    Attributes:
        cursors: staging's cursors by topic.
    """

    client: AdminClient
    catalog: Catalog
    cursors: dict[str, Offsets] = field(default_factory=dict)
    _read_ends: dict[str, Offsets] = field(default_factory=dict)  # end offsets up to which nothing is unread

    def find_changed(self, ends: Mapping[str, Offsets]) -> list[str]:
        """Return the topics of which it is not known that all is read. No request is made."""
        return [topic for topic, end in ends.items() if self._read_ends.get(topic) != end]

    def read(self, ends: Mapping[str, Offsets]) -> Mapping[str, int]:
        """Return the number of unread offsets of each topic that has some.

        An end before the cursor counts as well: the topic was recreated or truncated, and only a run says so.

        Args:
            ends: Kafka's end offsets by topic.

        Raises:
            BrokerUnavailableError: Kafka did not answer.
            CatalogUnavailableError: the catalog did not answer.
        """
        changed = self.find_changed(ends)
        broken: dict[str, SluiceError] = {}
        for topic, state in backlog.load_staging(self.catalog, changed, broken).items():
            if state.last:
                self.cursors[topic] = dict(state.last.next_offsets)
        for topic, error in broken.items():
            log.warning("%s: %s", topic, error)
        unread = {}
        for topic, found in broker.describe_topics(self.client, [t for t in changed if t not in broken]).items():
            if isinstance(found, SluiceError):
                continue
            read = self.cursors.get(topic, {})
            if count := sum(abs(m.end - max(read.get(p, 0), m.start)) for p, m in found.watermarks.items()):
                unread[topic] = count
            else:
                self._read_ends[topic] = {p: m.end for p, m in found.watermarks.items()}
        return unread

    def position(self, topics: Iterable[str]) -> Mapping[str, Offsets]:
        """Return the known cursors of topics."""
        return {topic: self.cursors[topic] for topic in topics if topic in self.cursors}


@dataclass
class StartCondition:
    """When a group's run is due. Times are those of `time.monotonic()`.

    A start after which no cursor moves is repeated after pauses that double, up to half an hour.

    Attributes:
        min_records: so many unread offsets make a run due.
        max_wait: so many seconds after the first was seen, fewer do.
    """

    min_records: int
    max_wait: float
    _unread_since: float | None = None
    _started_at: Mapping[str, Offsets] | None = None
    _pause: float = FIRST_PAUSE_S
    _not_before: float = 0.0

    def is_due(self, unread: int, position: Mapping[str, Offsets], now: float) -> bool:
        """Whether a run should start.

        Args:
            unread: unread offsets of all topics.
            position: the topics' cursors.
            now: the time.
        """
        if not unread:
            self._unread_since = None
            return False
        if self._unread_since is None:
            self._unread_since = now
        if position == self._started_at and now < self._not_before:
            return False
        return unread >= self.min_records or now - self._unread_since >= self.max_wait

    def start(self, position: Mapping[str, Offsets], now: float) -> None:
        """Note that a run was started."""
        repeated = position == self._started_at
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S) if repeated else FIRST_PAUSE_S
        self._started_at, self._not_before, self._unread_since = position, now + self._pause, None
