"""Warn while there is still time: unread records that Kafka deletes before twice the schedule has passed.

By time: records that are that close to `retention.ms`. By size: what the low watermark reaches within that time, if it
moves as fast as the topic grew just now. Kafka deletes whole segments, so it may come later, never sooner.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from croniter import croniter

from sluice import broker, clocks
from sluice.ahead import TopicPlan
from sluice.errors import BrokerUnavailableError
from sluice.model import Offsets

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

RUNS_AHEAD = 8
TIMES = 2


def interval(schedule: str | None, now: datetime | None = None) -> timedelta | None:
    """The longest pause between the next runs of a schedule; None where it has none."""
    if schedule == "@continuous":
        return timedelta(0)
    # Airflow's own preset, which the library lacks.
    cron = "0 0 1 */3 *" if schedule == "@quarterly" else schedule
    if cron is None or not croniter.is_valid(cron):
        return None
    ticks = croniter(cron, now or datetime.now(UTC))
    times: list[datetime] = [ticks.get_next(datetime) for _ in range(RUNS_AHEAD)]
    return max(later - earlier for earlier, later in pairwise(times))


def at_risk(client: AdminClient, topic: TopicPlan, schedule: str | None) -> str | None:
    """What of a topic will be deleted before twice the schedule has passed, if it is not read; None if nothing.

    One question to Kafka, a second where `retention.bytes` is set, and none where everything is read.
    """
    state, pause = topic.state, interval(schedule)
    if state is None or pause is None or (state.retention_ms < 0 and state.retention_bytes < 0):
        return None
    read = dict(topic.last.next_offsets) if topic.last else {}
    if all(read.get(p, marks.start) >= marks.end for p, marks in state.watermarks.items()):
        return None
    ahead = pause * TIMES
    try:
        old = dict(_by_time(client, state, read, ahead))
        for p, offsets in _by_size(client, state, read, ahead).items():
            old[p] = max(old.get(p, 0), offsets)
    except BrokerUnavailableError as error:  # a warning that can't be given stops nothing
        log.warning("%s: retention was not looked at: %s", topic.topic, error)
        return None
    if not old:
        return None
    limits = {"retention.ms": state.retention_ms, "retention.bytes": state.retention_bytes}
    said = ", ".join(f"{name} {value}" for name, value in limits.items() if value >= 0)
    return (
        f"{topic.topic}: Kafka may delete unread records within {ahead} (twice the schedule): "
        f"{{partition: offsets}} {dict(sorted(old.items()))} ({said})."
    )


def _by_time(client: AdminClient, state: broker.TopicState, read: Offsets, ahead: timedelta) -> dict[int, int]:
    if state.retention_ms < 0:
        return {}
    young = timedelta(milliseconds=state.retention_ms) - ahead
    return dict(clocks.older_unread(client, state.topic, read, state.watermarks, young))


def _by_size(client: AdminClient, state: broker.TopicState, read: Offsets, ahead: timedelta) -> dict[int, int]:
    # A log whose beginning is still there has not reached its size yet.
    trimmed = {p: marks for p, marks in state.watermarks.items() if marks.start > 0}
    if state.retention_bytes < 0 or not trimmed:
        return {}
    since = broker.offsets_at(client, state.topic, trimmed, datetime.now(UTC) - ahead)
    found = {}
    for p, marks in trimmed.items():
        grown = marks.end - since[p] if since[p] >= 0 else 0
        unread = min(marks.start + grown, marks.end) - max(read.get(p, marks.start), marks.start)
        if unread > 0:
            found[p] = unread
    return found
