"""Warn while there is still time: records not read or not published that Kafka deletes before long, and tombstones.

"Before long" is twice the schedule. By time: records that are that close to `retention.ms`. By size: what the low
watermark reaches within that time, if it moves as fast as the topic grew just now. Kafka deletes whole segments, so it
may come later, never sooner. Where Kafka has deleted nothing yet, only bytes tell when it will, and its clients can't
ask for those of a partition: what staging's files take per record is a guess, either way, as both may be compressed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from croniter import croniter

from sluice.batch import Batch, joined_ranges
from sluice.contract.contract import Contract
from sluice.errors import BrokerUnavailableError
from sluice.kafka import broker
from sluice.offsets import Offsets
from sluice.plan.model import TopicPlan
from sluice.plan.risk import Kind, Risk, RiskStatus

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

RUNS_AHEAD = 8
TIMES = 2
HALVINGS = 12


def of_table(risks: Iterable[Risk], contract: Contract) -> list[str]:
    """Those that concern a table, in words."""
    return [each.text for each in statuses(risks, contract)]


def statuses(risks: Iterable[Risk], contract: Contract) -> list[RiskStatus]:
    """The same, with kind and topic."""
    return [
        RiskStatus(str(risk.kind), risk.topic, str(risk))
        for risk in risks
        if risk.table == contract.table or (risk.table is None and risk.topic in contract.topics)
    ]


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


def look(
    client: AdminClient,
    topic: TopicPlan,
    waiting: Mapping[str, Sequence[Batch]],
    schedule: str | None,
    record_bytes: float | None = None,
) -> tuple[Risk, ...]:
    """What of a topic Kafka may delete before twice the schedule has passed: unread, or read and not published.

    One question to Kafka, a second where `retention.bytes` is set, and none where nothing is left to do.

    Args:
        waiting: per table the batches that it has yet to publish; staging's copy of them may become the last.
        record_bytes: what a record takes in staging; None where it holds none.
    """
    state, pause = topic.state, interval(schedule)
    if state is None or pause is None or (state.retention_ms < 0 and state.retention_bytes < 0):
        return ()
    read = dict(topic.last.next_offsets) if topic.last else {}
    if not any(waiting.values()) and not _unread(state, read):
        return ()
    ahead = pause * TIMES
    try:
        gone = _deleted_to(client, state, ahead, record_bytes)
    except BrokerUnavailableError as error:  # a warning that can't be given stops nothing
        log.warning("%s: retention was not looked at: %s", topic.topic, error)
        return ()
    limits = {"retention.ms": state.retention_ms, "retention.bytes": state.retention_bytes}
    said = ", ".join(f"{name} {value}" for name, value in limits.items() if value >= 0)
    if state.retention_bytes >= 0:
        said += "; by size an estimate, from what came in lately"
        if record_bytes and not all(m.start for m in state.watermarks.values()):
            said += f", guessed at {record_bytes:,.0f} bytes a record, as in staging, where nothing is deleted yet"
    out = []
    unread = {p: gone[p] - max(read.get(p, m.start), m.start) for p, m in sorted(state.watermarks.items())}
    if unread := {p: n for p, n in unread.items() if n > 0}:
        text = f"Kafka may delete unread records within {ahead} (twice the schedule): {{partition: offsets}} {unread}"
        out.append(Risk(Kind.UNREAD, topic.topic, f"{text} ({said})."))
    for table, batches in waiting.items():
        last = {
            p: (r.start, min(gone.get(p, 0), r.end))
            for p, r in sorted(joined_ranges(batches).items())
            if r.start < gone.get(p, 0)
        }
        if last:
            text = f"staging's copy is the last, or will be within {ahead} (twice the schedule), of what {table}"
            text += f" has yet to publish: {{partition: (first, end)}} {last} ({said})."
            out.append(Risk(Kind.UNPUBLISHED, topic.topic, text, table))
    return tuple(out)


def tombstones(client: AdminClient, topic: TopicPlan, schedule: str | None) -> tuple[Risk, ...]:
    """Of a compacted topic whose tombstones delete rows: those that compaction may take away before they are read.

    A topic that was never read has no rows whose delete could be missed. Kafka counts from when it cleaned the log, so
    it may come later, never sooner.
    """
    state, pause = topic.state, interval(schedule)
    if state is None or pause is None or not state.compacted or topic.last is None:
        return ()
    read, ahead = topic.last.next_offsets, pause * TIMES
    if not _unread(state, read):
        return ()
    young = datetime.now(UTC) - timedelta(milliseconds=state.delete_retention_ms)

    def older(moment: datetime) -> dict[int, tuple[int, int]]:
        ends = _first_at(client, state, state.watermarks, moment)
        spans = {p: (read.get(p, m.start), ends[p]) for p, m in sorted(state.watermarks.items())}
        return {p: (first, end) for p, (first, end) in spans.items() if first < end}

    try:
        soon = older(young + ahead)
        gone = older(young) if soon else {}
    except BrokerUnavailableError as error:
        log.warning("%s: delete.retention.ms was not looked at: %s", topic.topic, error)
        return ()
    if not soon:
        return ()
    when = "has been able to" if gone else f"may within {ahead} (twice the schedule)"
    text = f"compaction {when} remove tombstones that are not read: {{partition: (first, end)}} {gone or soon}"
    text += f" (delete.retention.ms {state.delete_retention_ms}); the rows that they delete would stay."
    return (Risk(Kind.TOMBSTONES, topic.topic, text),)


def left(client: AdminClient, state: broker.TopicState, reached: Offsets) -> dict[int, float]:
    """Per partition with unread records the seconds that Kafka keeps the first of them at least, by `retention.ms`.

    How old it is is found by halving, over Kafka's index of times: no record is read. It is told a part in 4,096 of
    the retention too short at most.

    Args:
        reached: per partition the first offset that is not read.

    Returns:
        Nothing for partitions that are read to their end, or that Kafka keeps for ever.

    Raises:
        BrokerUnavailableError: the cluster did not answer.
    """
    unread = {p: first for p, m in state.watermarks.items() if (first := max(reached.get(p, 0), m.start)) < m.end}
    if not unread or state.retention_ms < 0:
        return {}
    now, retention = datetime.now(UTC), timedelta(milliseconds=state.retention_ms)
    # The first unread record was made at or after `since`, if not longer ago than all that may be deleted.
    since, until = dict.fromkeys(unread, now - retention), dict.fromkeys(unread, now)
    for _ in range(HALVINGS):
        middle = {p: since[p] + (until[p] - since[p]) / 2 for p in unread}
        for p, first in broker.offsets_at_each(client, state.topic, middle).items():
            younger = 0 <= first <= unread[p]
            (since if younger else until)[p] = middle[p]
    return {p: (retention - (now - moment)).total_seconds() for p, moment in since.items()}


def _deleted_to(
    client: AdminClient, state: broker.TopicState, ahead: timedelta, record_bytes: float | None
) -> dict[int, int]:
    """Per partition the offset up to which Kafka may have deleted records when that time has passed."""
    reach = {p: marks.start for p, marks in state.watermarks.items()}
    if state.retention_ms >= 0:
        young = datetime.now(UTC) - timedelta(milliseconds=state.retention_ms) + ahead
        for p, first in _first_at(client, state, state.watermarks, young).items():
            reach[p] = max(reach[p], first)
    sized = {p: marks for p, marks in state.watermarks.items() if marks.start > 0 or record_bytes}
    if state.retention_bytes >= 0 and sized:
        since = _first_at(client, state, sized, datetime.now(UTC) - ahead)
        for p, marks in sized.items():
            left = marks.start
            if left == 0 and record_bytes:  # the log has not reached its size yet, which holds so many records
                left = marks.end - int(state.retention_bytes / record_bytes)
            reach[p] = max(reach[p], left + marks.end - since[p])
    return {p: min(offset, state.watermarks[p].end) for p, offset in reach.items()}


def _unread(state: broker.TopicState, read: Offsets) -> bool:
    """Whether Kafka holds anything beyond these offsets."""
    return any(read.get(p, m.start) < m.end for p, m in state.watermarks.items())


def _first_at(
    client: AdminClient, state: broker.TopicState, partitions: Iterable[int], moment: datetime
) -> dict[int, int]:
    """Per partition the first offset from a moment on; its end where there is none yet."""
    found = broker.offsets_at(client, state.topic, partitions, moment)
    return {p: first if first >= 0 else state.watermarks[p].end for p, first in found.items()}
