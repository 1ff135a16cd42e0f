"""Plan: topic cursor and watermarks become exact offset ranges; and per table the staged batches it has yet to publish.

Runs on the Airflow worker, without a JVM. `look` reads and decides, changing nothing; `write` freezes what it decided.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice import broker, cursor, tables
from sluice import ledger as ledgers
from sluice.ahead import TopicPlan, plan_topic
from sluice.contract import Contract
from sluice.contracts import Contracts, Group
from sluice.errors import LedgerError, PlanLostError, SluiceError, naming
from sluice.ledger import Ledger, Row, State
from sluice.model import Batch, Through

log = logging.getLogger(__name__)

ATTEMPTS = 10
Staging = tuple[Table | None, Batch | None]


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
                out.append(f"stage   {batch} ({batch.span} offsets{', planned earlier' if topic.frozen else ''})")  # noqa: PERF401
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
    group: Group,
    contracts: Contracts,
    catalog: Catalog,
    client: AdminClient,
    ledger: Ledger | None,
    *,
    extend: bool = True,
) -> GroupPlan:
    """Decide what the next run does, changing nothing.

    Args:
        group: the tables to plan for.
        contracts: all contracts, for the settings of the topics.
        catalog: where the tables are.
        client: for the watermarks.
        ledger: None where there is no ledger (yet); then the tables alone are asked.
        extend: plan new batches for topics that have none open; False carries out what is frozen already.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    topics = sorted({t for c in group.contracts for t in c.topics})
    states = broker.describe(client, topics)
    stops: dict[str, SluiceError] = {}
    broken: dict[str, SluiceError] = {t: s for t, s in states.items() if isinstance(s, SluiceError)}
    loaded = _staged(catalog, topics, ledger, broken)
    through: dict[str, Mapping[str, Through]] = {}
    for contract in group.contracts:
        try:
            remembered = partial(ledger.remembered, contract.table) if ledger else None
            through[contract.table] = cursor.published(tables.load(catalog, tables.typed(contract)), remembered)
        except SluiceError as error:
            stops[contract.table] = error
    known, heal = _known_batches(group, loaded, through, ledger)
    plans: dict[str, TopicPlan] = {}
    for topic in topics:
        state, last = states[topic], loaded[topic][1] if topic in loaded else None
        plans[topic] = TopicPlan(topic, last)
        if topic in broken or isinstance(state, SluiceError):
            continue
        try:
            plans[topic] = plan_topic(
                contracts.topics[topic],
                state,
                last,
                known[topic],
                client,
                published=[t[topic].seq for t in through.values() if topic in t],
                extend=extend,
            )
        except SluiceError as error:
            broken[topic] = error
    table_plans = {
        c.table: _plan_table(c, loaded, known, through[c.table], stops) for c in group.contracts if c.table in through
    }
    for contract in group.contracts:
        for topic in contract.topics:
            if topic in broken:
                stops.setdefault(contract.table, naming(broken[topic], contract.table))
    return GroupPlan(group.name, plans, table_plans, stops, heal)


def _staged(
    catalog: Catalog, topics: list[str], ledger: Ledger | None, broken: dict[str, SluiceError]
) -> dict[str, Staging]:
    """Per topic its staging table and the last batch in it; a topic whose staging can't tell is added to `broken`."""
    loaded: dict[str, Staging] = {}
    for topic in topics:
        staging = tables.load(catalog, tables.staging(topic))
        try:
            loaded[topic] = (
                staging,
                cursor.staged(staging, partial(ledger.remembered_batch, topic) if ledger else None),
            )
        except SluiceError as error:
            broken[topic] = error
    return loaded


def _plan_table(
    contract: Contract,
    loaded: Mapping[str, Staging],
    known: Mapping[str, Mapping[int, Batch]],
    through: Mapping[str, Through],
    stops: dict[str, SluiceError],
) -> TablePlan:
    """What the table has yet to publish; where a batch in between is known to nobody, it is added to `stops`."""
    pending: dict[str, tuple[Batch, ...]] = {}
    for topic in contract.topics:
        if topic in loaded:
            try:
                staging, last = loaded[topic]
                waiting = _pending(contract.table, known[topic], last, through.get(topic))
                tables.check_not_trimmed(staging, contract, waiting)
                pending[topic] = waiting
            except SluiceError as error:
                stops.setdefault(contract.table, error)
    return TablePlan(contract, through, pending)


def write(group: Group, contracts: Contracts, catalog: Catalog, client: AdminClient, *, run_id: str) -> GroupPlan:
    """Decide, create the tables that are missing, and freeze the plan in the ledger by a compare-and-set.

    Raises:
        PlanLostError: another planner froze a plan for one of the topics first.
        BrokerUnavailableError: Kafka did not answer.
    """
    lost: PlanLostError | None = None
    raced: set[str] = set()
    ledger = Ledger(catalog)
    for _ in range(ATTEMPTS):
        plan = look(group, contracts, catalog, client, ledger)
        if lost and any(t.frozen and t.topic in raced for t in plan.topics.values()):
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
        plan = replace(plan, stops=stops)
        rows = [*plan.heal, *(row for batch in fresh for row in ledgers.plan_rows(batch))]
        try:
            ledger.append(rows, run_id=run_id, cas=True)
            return plan
        except ledgers.ConflictError:
            names = ", ".join(f"{b.topic} batch {b.seq}" for b in fresh)
            lost = PlanLostError(f"Another run wrote its plan before this one could: {names or 'healing'}.", run=run_id)
            raced = {b.topic for b in fresh}
            log.info("plan: the ledger moved on, looking again")
    raise lost or PlanLostError("The ledger never stood still long enough to write a plan.", run=run_id)


def _known_batches(
    group: Group,
    loaded: Mapping[str, Staging],
    through: Mapping[str, Mapping[str, Through]],
    ledger: Ledger | None,
) -> tuple[dict[str, dict[int, Batch]], tuple[Row, ...]]:
    """Per topic the batches that some table may still need, from staging and the ledger; and the rows that heal it."""
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
        # A ledger that does not know the last batch was lost, or is older than the table: tell it all over again.
        if ledger and last and (topic, last.seq) not in planned:
            told = cursor.staged_batches(staging)
            for _, (batch, snapshot) in sorted(told.items()):
                place = {".".join(tables.staging(topic)): snapshot.snapshot_id}
                heal += ledgers.plan_rows(batch, State.STAGED, place)
        # The table wins where both speak.
        known[topic] = {seq: b for (t, seq), b in planned.items() if t == topic} | {s: b for s, (b, _) in told.items()}
    return known, tuple(heal)


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
