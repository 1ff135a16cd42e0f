"""Plan: topic cursor and watermarks become exact, capped offset ranges; and per table the staged batches it has yet to publish.

Runs on the Airflow worker, without a JVM. `look` reads and decides, and changes nothing; `write` freezes what it decided.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice import broker, cursor, tables
from sluice import ledger as ledgers
from sluice.contract import Contract
from sluice.contracts import Contracts, Group, TopicSettings
from sluice.errors import (
    LedgerError,
    OffsetsBeyondEndError,
    OffsetsLostError,
    PartitionsGoneError,
    PlanLostError,
    SluiceError,
    TopicRecreatedError,
)
from sluice.ledger import Ledger, Row, State
from sluice.model import Batch, OffsetRange, Through

log = logging.getLogger(__name__)

ATTEMPTS = 10


@dataclass(frozen=True)
class TopicPlan:
    """One topic: the batches to stage, in order. `frozen` tells that an earlier plan is carried out, not a new one."""

    topic: str
    last: Batch | None
    to_stage: tuple[Batch, ...] = ()
    frozen: bool = False
    state: broker.TopicState | None = None


@dataclass(frozen=True)
class TablePlan:
    """One table: per topic the batches staged already that it has yet to publish, in order."""

    contract: Contract
    through: Mapping[str, Through] = field(default_factory=dict)
    pending: Mapping[str, tuple[Batch, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupPlan:
    """What a run of a group does. `stops` are tables that need a person, with the error that says why."""

    group: str
    topics: Mapping[str, TopicPlan]
    tables: Mapping[str, TablePlan]
    stops: Mapping[str, SluiceError]
    heal: tuple[Row, ...] = ()

    @property
    def has_work(self) -> bool:
        """Whether Spark is needed."""
        return any(t.to_stage for t in self.topics.values()) or any(
            batches for t in self.tables.values() for batches in t.pending.values()
        )

    def lines(self) -> list[str]:
        """The plan in words, one line per topic and table."""
        out = []
        for topic in self.topics.values():
            for batch in topic.to_stage:
                out.append(f"stage   {batch} ({batch.span} offsets{', planned earlier' if topic.frozen else ''})")
        for name, table in self.tables.items():
            feeds = {t: [b.seq for b in batches] for t, batches in table.pending.items()}
            for t in table.contract.topics:
                feeds.setdefault(t, []).extend(b.seq for b in self.topics[t].to_stage)
            for t, seqs in feeds.items():
                if seqs:
                    out.append(f"publish {name} from {t}: batches {', '.join(map(str, seqs))}")
        out += [f"stop    {name}: {error}" for name, error in self.stops.items()]
        return out or ["nothing to do"]


def look(
    group: Group, contracts: Contracts, catalog: Catalog, client: AdminClient, ledger: Ledger | None, *, extend: bool = True
) -> GroupPlan:
    """Decide what the next run does, changing nothing.

    Args:
        ledger: None where there is no ledger (yet); then the tables alone are asked.
        extend: plan new batches for topics that have none open; False carries out what is frozen already.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    topics = sorted({t for c in group.contracts for t in c.topics})
    states = broker.describe(client, topics)
    stops: dict[str, SluiceError] = {}
    loaded: dict[str, tuple[Table | None, Batch | None]] = {}
    broken: dict[str, SluiceError] = {}
    for topic in topics:
        staging = tables.load(catalog, tables.staging(topic))
        try:
            loaded[topic] = (staging, cursor.staged(staging))
        except SluiceError as error:
            broken[topic] = error
    through: dict[str, Mapping[str, Through]] = {}
    for contract in group.contracts:
        try:
            through[contract.table] = cursor.published(
                tables.load(catalog, tables.typed(contract)), partial(ledger.remembered, contract.table) if ledger else None
            )
        except SluiceError as error:
            stops[contract.table] = error
    known, heal = _known_batches(group, loaded, through, ledger)
    plans: dict[str, TopicPlan] = {}
    for topic, (_, last) in loaded.items():
        settings = contracts.topics[topic]
        batches = known[topic]
        try:
            plans[topic] = _plan_topic(settings, states[topic], last, batches, through, client, extend=extend)
        except SluiceError as error:
            broken[topic] = error
            plans[topic] = TopicPlan(topic, last)
    table_plans: dict[str, TablePlan] = {}
    for contract in group.contracts:
        for topic in contract.topics:
            if topic in broken:
                stops.setdefault(contract.table, _named(broken[topic], contract.table))
        if contract.table not in through:
            continue
        pending: dict[str, tuple[Batch, ...]] = {}
        for topic in contract.topics:
            if topic in loaded:
                try:
                    pending[topic] = _pending(
                        contract.table, known[topic], loaded[topic][1], through[contract.table].get(topic)
                    )
                except SluiceError as error:
                    stops.setdefault(contract.table, error)
        table_plans[contract.table] = TablePlan(contract, through[contract.table], pending)
    for topic in set(topics) - set(plans):
        plans[topic] = TopicPlan(topic, None)
    return GroupPlan(group.name, plans, table_plans, stops, heal)


def write(
    group: Group, contracts: Contracts, catalog: Catalog, client: AdminClient, *, run_id: str
) -> GroupPlan:
    """Decide, create the tables that are missing, and freeze the plan in the ledger by a compare-and-set.

    Raises:
        PlanLostError: another planner froze a plan for one of the topics first.
        BrokerUnavailableError: Kafka did not answer.
    """
    lost: PlanLostError | None = None
    ledger = Ledger(catalog)
    for _ in range(ATTEMPTS):
        plan = look(group, contracts, catalog, client, ledger)
        if lost and any(t.frozen for t in plan.topics.values()):
            raise lost
        fresh = [b for t in plan.topics.values() if not t.frozen for b in t.to_stage]
        stops = dict(plan.stops)
        for contract in group.contracts:
            try:
                tables.ensure_typed(catalog, contract)
            except SluiceError as error:
                stops.setdefault(contract.table, error)
        for topic, topic_plan in plan.topics.items():
            if topic_plan.to_stage:
                tables.ensure_staging(catalog, topic)
        plan = GroupPlan(plan.group, plan.topics, plan.tables, stops, plan.heal)
        rows = [*plan.heal, *(row for batch in fresh for row in ledgers.plan_rows(batch))]
        try:
            ledger.append(rows, run_id=run_id, cas=True)
            return plan
        except ledgers.Conflict:
            names = ", ".join(f"{b.topic} batch {b.seq}" for b in fresh)
            lost = PlanLostError(f"Another run wrote its plan before this one could: {names or 'healing'}.", run=run_id)
            log.info("plan: the ledger moved on, looking again")
    raise lost or PlanLostError("The ledger never stood still long enough to write a plan.", run=run_id)


def _known_batches(
    group: Group,
    loaded: Mapping[str, tuple[Table | None, Batch | None]],
    through: Mapping[str, Mapping[str, Through]],
    ledger: Ledger | None,
) -> tuple[dict[str, dict[int, Batch]], tuple[Row, ...]]:
    """Per topic the batches that some table may still need, from staging's snapshots and the ledger; and the rows that heal it."""
    floor: dict[str, int] = {}
    for topic, (_, last) in loaded.items():
        seqs = [last.seq - 1 if last else 0]
        for contract in group.contracts:
            if topic in contract.topics and contract.table in through:
                t = through[contract.table].get(topic)
                seqs.append(t.seq if t else 0)
        floor[topic] = max(min(seqs), 0)
    rows = ledger.rows(floor, (State.PLANNED, State.STAGED, State.SETTLED)) if ledger else []
    planned = ledgers.batches(rows)
    known: dict[str, dict[int, Batch]] = {}
    heal: list[Row] = []
    for topic, (staging, last) in loaded.items():
        told = cursor.staged_batches(staging, floor[topic])
        # A ledger that does not know the last batch was lost or is older than the table: tell it all that the table tells.
        if ledger and last and (topic, last.seq) not in planned:
            told = cursor.staged_batches(staging)
            for _, (batch, snapshot) in sorted(told.items()):
                place = {".".join(tables.staging(topic)): snapshot.snapshot_id}
                heal += ledgers.plan_rows(batch, State.STAGED, place)
        # The table wins where both speak.
        known[topic] = {seq: b for (t, seq), b in planned.items() if t == topic} | {s: b for s, (b, _) in told.items()}
    return known, tuple(heal)


def _plan_topic(
    settings: TopicSettings,
    state: broker.TopicState | SluiceError,
    last: Batch | None,
    known: Mapping[int, Batch],
    through: Mapping[str, Mapping[str, Through]],
    client: AdminClient,
    *,
    extend: bool,
) -> TopicPlan:
    """The topic's batches to stage: those frozen already, else new ones.

    Raises:
        SluiceError: the topic is missing, was created again, or no longer holds what comes next.
    """
    topic = settings.topic
    if isinstance(state, SluiceError):
        raise state
    staged_seq = last.seq if last else 0
    opened = tuple(known[seq] for seq in sorted(known) if seq > staged_seq)
    for before in filter(None, (last, *opened)):
        if before.topic_id != state.topic_id:
            raise TopicRecreatedError(
                f"Topic {topic!r} was deleted and created again after batch {before.seq}.",
                topic=topic,
                next_offsets=dict(before.next_offsets),
                was=before.topic_id,
                now=state.topic_id,
            )
    if opened:
        _check_held(topic, {p: r for b in reversed(opened) for p, r in b.ranges.items()}, state)
        return TopicPlan(topic, last, opened, frozen=True, state=state)
    if not extend:
        return TopicPlan(topic, last, state=state)
    if last is None:
        starts = _starts(settings, state, client)
    else:
        starts = {p: last.next_offsets.get(p, 0) for p in state.watermarks}
        if gone := sorted(set(last.next_offsets) - set(state.watermarks)):
            raise PartitionsGoneError(f"Topic {topic!r} has lost partitions.", topic=topic, partitions=gone)
    ahead = {p: OffsetRange(starts[p], marks.end) for p, marks in state.watermarks.items()}
    if beyond := {p: (r.start, r.end) for p, r in ahead.items() if r.start > r.end}:
        raise OffsetsBeyondEndError(
            f"The cursor of topic {topic!r} lies beyond the end: {{partition: (cursor, end)}} {beyond}.", topic=topic
        )
    _check_held(topic, ahead, state)
    seqs = [t[topic].seq for t in through.values() if topic in t]
    first = max([staged_seq, *seqs]) + 1
    limits = settings.limits
    batches = cut(ahead, limits.records_per_batch, limits.batches_per_run)
    if not batches and last is None:
        # Nothing to read yet: an empty batch pins where the topic starts, so that `latest` means now, not next time.
        batches = [{}]
    made = []
    at = dict(starts)
    for number, ranges in enumerate(batches):
        at |= {p: r.end for p, r in ranges.items()}
        made.append(Batch(topic, state.topic_id, first + number, ranges, dict(at)))
    return TopicPlan(topic, last, tuple(made), state=state)


def cut(ahead: Mapping[int, OffsetRange], cap: int, most: int) -> list[dict[int, OffsetRange]]:
    """Divide what lies ahead into at most `most` batches of at most `cap` offsets, each taking its share of every partition."""
    total = sum(r.count for r in ahead.values())
    if total == 0:
        return []
    # Each partition's share is rounded, by at most one offset: leave room for that below the cap.
    pieces = 1 if total <= cap else -(-total // max(cap - len(ahead), 1))
    result = []
    for i in range(1, pieces + 1):
        ranges = {
            p: OffsetRange(r.start + r.count * (i - 1) // pieces, r.start + r.count * i // pieces)
            for p, r in sorted(ahead.items())
        }
        if ranges := {p: r for p, r in ranges.items() if r.count}:
            result.append(ranges)
        if len(result) == most:
            break
    return result


def _starts(settings: TopicSettings, state: broker.TopicState, client: AdminClient) -> dict[int, int]:
    """Where a topic that was never read begins."""
    start, marks = settings.start, state.watermarks
    if start == "latest":
        return {p: r.end for p, r in marks.items()}
    if isinstance(start, datetime):
        found = broker.offsets_at(client, state.topic, marks, start)
        return {p: found[p] if found[p] >= 0 else r.end for p, r in marks.items()}
    if isinstance(start, Mapping):
        return {p: start.get(p, r.start) for p, r in marks.items()}
    return {p: r.start for p, r in marks.items()}


def _check_held(topic: str, ranges: Mapping[int, OffsetRange], state: broker.TopicState) -> None:
    """Refuse ranges whose beginning Kafka no longer holds.

    Raises:
        OffsetsLostError: with the exact offsets per partition.
    """
    lost = {
        p: (r.start, min(state.watermarks[p].start, r.end))
        for p, r in sorted(ranges.items())
        if p in state.watermarks and r.count and r.start < state.watermarks[p].start
    }
    if lost:
        raise OffsetsLostError(
            f"Topic {topic!r} no longer holds offsets that were not read: {{partition: [first, end)}} {lost}.", topic=topic
        )


def _pending(table: str, known: Mapping[int, Batch], last: Batch | None, through: Through | None) -> tuple[Batch, ...]:
    """The staged batches above `through`, in order and without a hole.

    Raises:
        LedgerError: a batch in between is known to nobody.
    """
    done = through.seq if through else 0
    pending = [known[seq] for seq in sorted(known) if done < seq <= (last.seq if last else 0)]
    at = dict(through.next_offsets) if through else None
    if at is None and pending and pending[0].seq != 1:
        raise LedgerError(f"Nobody knows the batches before {pending[0]}.", table=table)
    for batch in pending:
        holes = {p: (at[p], r.start) for p, r in batch.ranges.items() if at and p in at and r.start > at[p]}
        if holes:
            raise LedgerError(f"Batches before {batch} are unknown: offsets {holes} would be skipped.", table=table)
        at = {**(at or {}), **batch.next_offsets}
    if last and done < last.seq and (not pending or pending[-1].seq != last.seq):
        raise LedgerError(f"Nobody knows the batches between {done} and {last.seq} of {last.topic}.", table=table)
    return tuple(pending)


def _named(error: SluiceError, table: str) -> SluiceError:
    """The same error, naming the table it stops."""
    return type(error)(error.message, way_out=error.way_out, **{"table": table, **error.fields})
