"""Starts a group's DAG when its topics have unread records (`schedule: on_data`), from Airflow's triggerer.

All groups share one client, and one request for the end offsets of all their topics. No consumer group is used.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from sluice import dag_ids
from sluice.contract.folder import Group
from sluice.contract.topic_pattern import TopicPattern
from sluice.errors import SluiceError
from sluice_airflow.compat import count_active_runs
from sluice_airflow.connections import CATALOG_TIMEOUT_S, kafka_client

if TYPE_CHECKING:
    from sluice.offsets import Offsets
    from sluice.plan.unread import UnreadReader

EVERY_S = 2.0
"""How often Kafka is asked."""
AFTER_ERROR_S = 15.0
NAMES_EVERY_S = 30.0
"""How often Kafka is asked for new topics of a pattern."""


class _Kafka:
    """The client and the end offsets that all triggers of this process share."""

    def __init__(self) -> None:
        self.watched: Counter[str] = Counter()
        self.lock = asyncio.Lock()
        self.client: Any = None
        self.ends: Mapping[str, Offsets] = {}
        self.names: set[str] = set()
        self.ends_at = self.names_at = -float("inf")

    def watch(self, topics: Set[str], *, instead_of: Set[str]) -> None:
        """Ask for these topics in each request, and no longer for the others on behalf of this trigger."""
        self.watched.update(topics - instead_of)
        self.watched -= Counter(instead_of - topics)  # drops those that nobody watches

    async def read_ends(self, topics: Set[str]) -> Mapping[str, Offsets]:
        """Return the end offsets of topics, at most `EVERY_S` old."""
        from sluice.kafka import broker

        async with self.lock:
            if time.monotonic() - self.ends_at > EVERY_S * 0.9 or not self.ends.keys() >= topics:
                client = await self._connect()
                self.ends = await sync_to_async(broker.read_end_offsets)(client, list(self.watched))
                self.ends_at = time.monotonic()
        return {topic: self.ends[topic] for topic in topics if topic in self.ends}

    async def read_names(self) -> set[str]:
        """Return the names of all topics, at most `NAMES_EVERY_S` old."""
        from sluice.kafka import broker

        async with self.lock:
            if time.monotonic() - self.names_at > NAMES_EVERY_S:
                self.names = await sync_to_async(broker.list_topic_names)(await self._connect())
                self.names_at = time.monotonic()
        return self.names

    async def make_reader(self) -> UnreadReader:
        """Return a reader for one trigger."""
        from sluice.iceberg import availability
        from sluice.plan.unread import UnreadReader

        async with self.lock:
            client = await self._connect()
        return UnreadReader(client, await sync_to_async(availability.open_catalog)(CATALOG_TIMEOUT_S))

    async def _connect(self) -> Any:
        self.client = self.client or await sync_to_async(kafka_client)()
        return self.client


_kafka_by_loop: dict[Any, _Kafka] = {}


def _shared_kafka() -> _Kafka:
    return _kafka_by_loop.setdefault(asyncio.get_running_loop(), _Kafka())


class UnreadRecordsTrigger(BaseEventTrigger):
    """Fires when topics have unread records and no run of the DAG is queued or running.

    Args:
        dag_id: The DAG that the event starts.
        topics: Topics by name.
        patterns: Topics by pattern: fields of `TopicPattern`.
        min_records: As in `OnData`.
        max_wait: As in `OnData`, in seconds.
    """

    def __init__(
        self,
        dag_id: str,
        topics: Sequence[str],
        patterns: Sequence[Mapping[str, Any]],
        min_records: int,
        max_wait: float,
    ) -> None:
        super().__init__()
        self.arguments = {
            "dag_id": dag_id,
            "topics": list(topics),
            "patterns": [dict(each) for each in patterns],
            "min_records": min_records,
            "max_wait": max_wait,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return f"{__name__}.{type(self).__name__}", self.arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each run to start, with the unread offsets by topic."""
        from sluice.plan.unread import StartCondition

        condition = StartCondition(self.arguments["min_records"], self.arguments["max_wait"])
        kafka, reader = _shared_kafka(), None
        watched: set[str] = set()
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                try:
                    topics = await self._find_topics(kafka)
                    kafka.watch(topics, instead_of=watched)
                    watched = topics
                    reader = reader or await kafka.make_reader()
                    ends = await kafka.read_ends(topics)
                    # The check alone is cheaper than a thread.
                    unread = await sync_to_async(reader.read)(ends) if reader.find_changed(ends) else {}
                    position = reader.position(topics)
                    if not condition.is_due(sum(unread.values()), position, time.monotonic()):
                        continue
                    if await count_active_runs(self.arguments["dag_id"]):
                        continue
                except SluiceError as error:
                    self.log.warning("%s: unread records can't be counted: %s", self.arguments["dag_id"], error)
                    await asyncio.sleep(AFTER_ERROR_S)
                    continue
                self.log.info("%s: unread offsets %s", self.arguments["dag_id"], unread)
                condition.start(position, time.monotonic())
                yield TriggerEvent({"unread": dict(unread)})
        finally:
            kafka.watch(set(), instead_of=watched)

    async def _find_topics(self, kafka: _Kafka) -> set[str]:
        patterns = [TopicPattern.model_validate(each) for each in self.arguments["patterns"]]
        named = set(self.arguments["topics"])
        if not patterns:
            return named
        names = await kafka.read_names()
        return named | {name for name in names if any(each.matches(name) for each in patterns)}


def unread_records(group: Group) -> Asset:
    """Make the asset whose events start the DAG of a group."""
    dag_id, settings = dag_ids.ingest_dag(group.name), group.settings.on_data
    trigger = UnreadRecordsTrigger(
        dag_id,
        topics=sorted({topic for each in group.all_contracts for topic in each.topics}),
        patterns=[each.topic_pattern.model_dump(mode="json") for each in group.all_contracts if each.topic_pattern],
        min_records=settings.min_records,
        max_wait=settings.max_wait.total_seconds(),
    )
    name = f"{dag_id}.unread"
    return Asset(name=name, uri=f"sluice://unread/{dag_id}", watchers=[AssetWatcher(name=name, trigger=trigger)])
