"""Plan: topic cursor and watermarks become exact offset ranges; and per table the staged batches it has yet to publish.

Runs on the Airflow worker, without a JVM. `look` reads and decides, changing nothing; `write` freezes what it decided.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import Batch, Through
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts, Group
from sluice.errors import CompactedDeletesError, PlanLostError, SluiceError, naming
from sluice.evolve import auto_columns, evolve
from sluice.evolve.pending_change import Outlook
from sluice.iceberg import availability, cursor, snapshots, table_names, tables
from sluice.kafka import broker
from sluice.ledger import accepted_gaps, backlog, unfinished_rollback
from sluice.ledger import offsets_table as ledgers
from sluice.ledger.offsets_table import Ledger, Row
from sluice.plan import warnings as plan_warnings
from sluice.plan.batches import plan_topic
from sluice.plan.model import GroupPlan, TablePlan, TopicPlan

log = logging.getLogger(__name__)

ATTEMPTS = 10


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
        contracts: all contracts, for the settings of the topics, which `sluice.plan.resolve_topics` has resolved.
        catalog: where the tables are.
        client: for the watermarks.
        ledger: None where there is no ledger (yet); then the tables alone are asked.
        extend: plan new batches for topics that have none open; False carries out what is frozen already.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    if not contracts.resolved:
        raise ValueError("topics.resolve comes first")  # or a pattern would be no topic at all, in silence
    stops = {c.table: contracts.stopped[c.table] for c in group.promises if c.table in contracts.stopped}
    chosen = [c for c in group.contracts if c.table not in stops]
    topics = sorted({t for c in chosen for t in c.topics})
    states = broker.describe(client, topics)
    broken: dict[str, SluiceError] = {t: s for t, s in states.items() if isinstance(s, SluiceError)}
    loaded = backlog.staged(catalog, topics, ledger, broken)
    through: dict[str, Mapping[str, Through]] = {}
    reached: list[Mapping[str, Through]] = []  # by tables that stop, too
    outlooks: dict[str, Outlook] = {}
    rows: dict[str, int] = {}

    def see(contract: Contract) -> None:
        remembered = partial(ledger.remembered, contract.table) if ledger else None
        table = tables.load(catalog, table_names.typed(contract))
        at = cursor.published(table, remembered)
        reached.append(at)
        asked = _asked(catalog, table, contract, registry=extend)
        outlooks.update(asked)
        found = asked.get(contract.table)
        # By what batches are published by: the file may wait for an answer.
        _check_deletes_stay(contract if found is None else found.new if found.due else found.old, states)
        if table is not None:
            rows[contract.table] = snapshots.rows(table)
        through[contract.table] = at

    for contract in chosen:
        try:
            availability.alone(catalog, partial(see, contract), table=contract.table)
        except SluiceError as error:
            stops[contract.table] = naming(error, contract.table)
    given_up = ledger.gaps(topics) if ledger else []
    known, heal = backlog.known_batches(chosen, loaded, through, ledger, given_up, broken)
    plans: dict[str, TopicPlan] = {}
    for topic in sorted(topics, key=lambda t: backlog.served(loaded.get(t))):
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
                published=[t[topic] for t in reached if topic in t],
                accepted=accepted_gaps.accepted(given_up, topic, state.topic_id),
                extend=extend,
            )
        except SluiceError as error:
            broken[topic] = error
    table_plans = {
        c.table: replace(
            _plan_table(c, loaded, known, through[c.table], ledger, given_up, stops), rows=rows.get(c.table, 0)
        )
        for c in chosen
        if c.table in through
    }
    for contract in chosen:
        for topic in contract.topics:
            if topic in broken:
                stops.setdefault(contract.table, naming(broken[topic], contract.table))
    warnings = plan_warnings.look(client, catalog, plans, table_plans, contracts, loaded) if extend else ()
    return GroupPlan(group.name, plans, table_plans, stops, broken, heal, warnings, outlooks)


def _asked(catalog: Catalog, table: Table | None, contract: Contract, *, registry: bool) -> dict[str, Outlook]:
    """What the contract asks of its table, if there is one; errors are those that would keep it from being made."""
    if contract.auto and not registry:  # the driver publishes by the contract in force, and asks for no columns
        tables.ensure_typed(catalog, contract)
    elif table is not None:
        return {contract.table: evolve.look(catalog, table, contract)}
    else:
        auto_columns.resolved(contract)
    return {}


def _check_deletes_stay(contract: Contract, states: Mapping[str, broker.TopicState | SluiceError]) -> None:
    """Refuse to pass tombstones over where they may be all that is left of a delete, unless the contract says so."""
    if contract.cdc is None or contract.cdc.tombstones or contract.tombstones_delete or contract.deletes == "ignore":
        return
    for topic in contract.topics if contract.keyed else ():
        state = states[topic]
        if isinstance(state, broker.TopicState) and state.compacted:
            raise CompactedDeletesError(
                "Tombstones are passed over, and the topic is compacted: one may be all that is left of a delete.",
                table=contract.table,
                topic=topic,
            )


def _plan_table(
    contract: Contract,
    loaded: Mapping[str, backlog.Staging],
    known: Mapping[str, Mapping[int, Batch]],
    through: Mapping[str, Through],
    ledger: Ledger | None,
    given_up: Sequence[Row],
    stops: dict[str, SluiceError],
) -> TablePlan:
    """What the table has yet to publish; where a batch is known to nobody, or its rows are gone, it joins `stops`."""
    pending: dict[str, tuple[Batch, ...]] = {}
    for topic in contract.topics:
        if topic in known:
            try:
                staging, last = loaded[topic]
                batches = backlog.pending(contract.table, known[topic], last, through.get(topic), given_up)
                pending[topic] = backlog.whole(contract.table, staging, batches, ledger, given_up)
            except SluiceError as error:
                stops.setdefault(contract.table, naming(error, contract.table))
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
        if [o for o in plan.outlooks.values() if unfinished_rollback.catch_up(catalog, ledger, o.new, o.base)]:
            plan = look(group, contracts, catalog, client, ledger)
        if lost and any(t.frozen and t.topic in raced for t in plan.topics.values()):
            raise lost
        fresh = [b for t in plan.topics.values() if not t.frozen for b in t.to_stage]
        stops = dict(plan.stops)
        outlooks = dict(plan.outlooks)
        new: list[Contract] = []
        for contract in (c for c in group.contracts if c.table not in contracts.stopped):
            try:
                if seen := outlooks.get(contract.table):
                    change = partial(evolve.settle, catalog, contract, seen, run_id=run_id)
                    outlooks[contract.table] = availability.alone(catalog, change, table=contract.table)
                else:
                    make = partial(_make, catalog, contract)
                    availability.alone(catalog, make, table=contract.table)
                    new.append(contract)
            except SluiceError as error:
                stops.setdefault(contract.table, naming(error, contract.table))
        evolve.created(catalog, new, run_id=run_id)
        broken = dict(plan.broken)
        for topic in [t.topic for t in plan.topics.values() if t.to_stage]:
            try:
                availability.alone(catalog, partial(tables.ensure_staging, catalog, topic), topic=topic)
            except SluiceError as error:
                broken[topic] = error
                for contract in (c for c in group.contracts if topic in c.topics):
                    stops.setdefault(contract.table, naming(error, contract.table))
        fresh = [batch for batch in fresh if batch.topic not in broken]
        topics = {t: replace(p, to_stage=() if t in broken else p.to_stage) for t, p in plan.topics.items()}
        plan = replace(plan, topics=topics, stops=stops, broken=broken, outlooks=outlooks)
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


def _make(catalog: Catalog, contract: Contract) -> Table:
    return tables.ensure_typed(catalog, auto_columns.resolved(contract))
