"""Warns of records that Kafka may delete within twice the schedule before they are read or published.

By `retention.ms`: records that reach that age. By `retention.bytes`: an estimate from the topic's recent growth; while
Kafka has deleted nothing, from staging's bytes per record. Kafka deletes whole segments: maybe later, never sooner.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from croniter import croniter

from sluice.batch import Batch, merge_ranges
from sluice.contract.contract import Contract
from sluice.contract.groups import CONTINUOUS, ON_DATA
from sluice.errors import BrokerUnavailableError
from sluice.kafka import broker
from sluice.offsets import Offsets
from sluice.plan.model import TopicPlan
from sluice.plan.risk import Risk, RiskKind, RiskStatus

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

SCHEDULED_RUNS = 8
# With these schedules, the longest time until unread records are read, as long as runs succeed.
UNTIMED = dict.fromkeys((ON_DATA, CONTINUOUS), timedelta(minutes=5))
INTERVALS_AHEAD = 2
BISECTIONS = 12


def warning_texts(risks: Iterable[Risk], contract: Contract) -> list[str]:
    """The texts of the risks of a table."""
    return [each.text for each in table_risks(risks, contract)]


def table_risks(risks: Iterable[Risk], contract: Contract) -> list[RiskStatus]:
    """The risks of a table, as status shows them."""
    return [
        RiskStatus(str(risk.kind), risk.topic, str(risk))
        for risk in risks
        if risk.table == contract.table or (risk.table is None and risk.topic in contract.topics)
    ]


def longest_interval(schedule: str | None, now: datetime | None = None) -> timedelta | None:
    """The longest interval between the next runs of a schedule; None where there is no schedule."""
    if schedule == "@continuous":
        return timedelta(0)
    if schedule in UNTIMED:
        return UNTIMED[schedule]
    # A preset of Airflow that croniter does not know.
    cron = "0 0 1 */3 *" if schedule == "@quarterly" else schedule
    return (
        None
        if cron is None
        else _longest_cron_interval(cron, now or datetime.now(UTC).replace(second=0, microsecond=0))
    )


@lru_cache
def _longest_cron_interval(cron: str, now: datetime) -> timedelta | None:
    """The longest interval between the next runs; kept, because a thousand tables have few schedules."""
    if not croniter.is_valid(cron):
        return None
    ticks = croniter(cron, now)
    times: list[datetime] = [ticks.get_next(datetime) for _ in range(SCHEDULED_RUNS)]
    return max(later - earlier for earlier, later in pairwise(times))


def find_retention_risks(
    client: AdminClient,
    topic: TopicPlan,
    waiting: Mapping[str, Sequence[Batch]],
    schedule: str | None,
    record_bytes: float | None = None,
) -> tuple[Risk, ...]:
    """What Kafka may delete of a topic within twice the schedule: unread records, or staged ones not published.

    One request to Kafka, a second one for `retention.bytes`, and none where everything is read and published.

    Args:
        client: for the offsets at a time.
        topic: the topic's plan.
        waiting: per table the batches that it has yet to publish; staging may soon hold their only copy.
        schedule: the group's.
        record_bytes: the size of a record in staging; None where staging is empty.
    """
    state, interval = topic.state, longest_interval(schedule)
    if state is None or interval is None or (state.retention_ms < 0 and state.retention_bytes < 0):
        return ()
    read = dict(topic.last.next_offsets) if topic.last else {}
    if not any(waiting.values()) and not _unread(state, read):
        return ()
    ahead = interval * INTERVALS_AHEAD
    try:
        gone = _deleted_to(client, state, ahead, record_bytes)
    except BrokerUnavailableError as error:  # a failed check of a warning stops nothing
        log.warning("%s: retention was not checked: %s", topic.topic, error)
        return ()
    limits = {"retention.ms": state.retention_ms, "retention.bytes": state.retention_bytes}
    basis = ", ".join(f"{name} {value}" for name, value in limits.items() if value >= 0)
    if state.retention_bytes >= 0:
        basis += "; by size an estimate from recent growth"
        if record_bytes and not all(m.start for m in state.watermarks.values()):
            basis += f"; Kafka has deleted nothing yet: guessed at {record_bytes:,.0f} bytes a record, as in staging"
    out = []
    unread = {p: gone[p] - max(read.get(p, m.start), m.start) for p, m in sorted(state.watermarks.items())}
    if unread := {p: n for p, n in unread.items() if n > 0}:
        text = f"Kafka may delete unread records within {ahead} (twice the schedule): {{partition: offsets}} {unread}"
        out.append(Risk(RiskKind.UNREAD, topic.topic, f"{text} ({basis})."))
    for table, batches in waiting.items():
        last = {
            p: (r.start, min(gone.get(p, 0), r.end))
            for p, r in sorted(merge_ranges(batches).items())
            if r.start < gone.get(p, 0)
        }
        if last:
            text = (
                f"staging has, or within {ahead} (twice the schedule) will have, the only copy of records that {table}"
            )
            text += f" has yet to publish: {{partition: (first, end)}} {last} ({basis})."
            out.append(Risk(RiskKind.UNPUBLISHED, topic.topic, text, table))
    return tuple(out)


def find_tombstone_risks(client: AdminClient, topic: TopicPlan, schedule: str | None) -> tuple[Risk, ...]:
    """Unread tombstones of a compacted topic that compaction may remove, although they delete rows.

    A topic that was never read has no rows whose delete could be missed. `delete.retention.ms` starts when Kafka has
    cleaned the log: the tombstone may go later, never sooner.
    """
    state, interval = topic.state, longest_interval(schedule)
    if state is None or interval is None or not state.compacted or topic.last is None:
        return ()
    read, ahead = topic.last.next_offsets, interval * INTERVALS_AHEAD
    if not _unread(state, read):
        return ()
    young = datetime.now(UTC) - timedelta(milliseconds=state.delete_retention_ms)

    def unread_before(time: datetime) -> dict[int, tuple[int, int]]:
        ends = _first_at(client, state, state.watermarks, time)
        spans = {p: (read.get(p, m.start), ends[p]) for p, m in sorted(state.watermarks.items())}
        return {p: (first, end) for p, (first, end) in spans.items() if first < end}

    try:
        soon = unread_before(young + ahead)
        gone = unread_before(young) if soon else {}
    except BrokerUnavailableError as error:
        log.warning("%s: delete.retention.ms was not checked: %s", topic.topic, error)
        return ()
    if not soon:
        return ()
    when = "may already have removed" if gone else f"may remove within {ahead} (twice the schedule)"
    text = f"compaction {when} unread tombstones: {{partition: (first, end)}} {gone or soon}"
    text += f" (delete.retention.ms {state.delete_retention_ms}); the rows that they delete would stay."
    return (Risk(RiskKind.TOMBSTONES, topic.topic, text),)


def retention_seconds_left(client: AdminClient, state: broker.TopicState, reached: Offsets) -> dict[int, float]:
    """Per partition with unread records, for how many seconds `retention.ms` keeps the first of them at least.

    The record's age is found by bisection over Kafka's time index, without reading it; the result is at most 1/4096 of
    the retention too short.

    Args:
        client: for the offsets at a time.
        state: Kafka's answer for the topic.
        reached: per partition the first unread offset.

    Returns:
        Seconds by partition; without partitions that are read to their end, empty where Kafka never deletes.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    unread = {p: first for p, m in state.watermarks.items() if (first := max(reached.get(p, 0), m.start)) < m.end}
    if not unread or state.retention_ms < 0:
        return {}
    now, retention = datetime.now(UTC), timedelta(milliseconds=state.retention_ms)
    # The first unread record was made at or after `since`, if not longer ago than all that may be deleted.
    since, until = dict.fromkeys(unread, now - retention), dict.fromkeys(unread, now)
    for _ in range(BISECTIONS):
        middle = {p: since[p] + (until[p] - since[p]) / 2 for p in unread}
        for p, first in broker.offsets_for_times(client, state.topic, middle).items():
            younger = 0 <= first <= unread[p]
            (since if younger else until)[p] = middle[p]
    return {p: (retention - (now - time)).total_seconds() for p, time in since.items()}


def _deleted_to(
    client: AdminClient, state: broker.TopicState, ahead: timedelta, record_bytes: float | None
) -> dict[int, int]:
    """Per partition the offset up to which Kafka may have deleted records when that time has passed."""
    deleted = {p: marks.start for p, marks in state.watermarks.items()}
    if state.retention_ms >= 0:
        young = datetime.now(UTC) - timedelta(milliseconds=state.retention_ms) + ahead
        for p, first in _first_at(client, state, state.watermarks, young).items():
            deleted[p] = max(deleted[p], first)
    sized = {p: marks for p, marks in state.watermarks.items() if marks.start > 0 or record_bytes}
    if state.retention_bytes >= 0 and sized:
        since = _first_at(client, state, sized, datetime.now(UTC) - ahead)
        for p, marks in sized.items():
            start = marks.start
            if start == 0 and record_bytes:  # the log is not full yet: estimate how many records it can hold
                start = marks.end - int(state.retention_bytes / record_bytes)
            deleted[p] = max(deleted[p], start + marks.end - since[p])
    return {p: min(offset, state.watermarks[p].end) for p, offset in deleted.items()}


def _unread(state: broker.TopicState, read: Offsets) -> bool:
    """Whether Kafka holds records at or after these offsets."""
    return any(read.get(p, m.start) < m.end for p, m in state.watermarks.items())


def _first_at(
    client: AdminClient, state: broker.TopicState, partitions: Iterable[int], time: datetime
) -> dict[int, int]:
    """Per partition the first offset with that time or later; the log end offset where there is none."""
    found = broker.offsets_for_time(client, state.topic, partitions, time)
    return {p: first if first >= 0 else state.watermarks[p].end for p, first in found.items()}
