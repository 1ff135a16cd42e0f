"""Plan: topic cursors and watermarks become frozen batches, written to the ledger by compare-and-set.

Runs on the Airflow worker, without a JVM. `make_plan` changes nothing and lists what is to be staged and published;
`write_plan` writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import Batch, PublishedOffsets
from sluice.contract.contract import Contract
from sluice.contract.folder import Group
from sluice.errors import CompactedDeletesError, PlanLostError, RefusedError, SluiceError, with_table
from sluice.evolve import auto_columns, evolve
from sluice.evolve.pending_change import PendingChange
from sluice.formats import masks
from sluice.iceberg import availability, cursor, requirements_check, snapshots, table_names, tables
from sluice.iceberg.active_contract import CONTRACT_PROPERTY
from sluice.kafka import broker
from sluice.ledger import accepted_gaps, backlog, consumers, ledger_rows, unfinished_rollback
from sluice.ledger import offsets_table as ledgers
from sluice.ledger.ledger_rows import LedgerRow
from sluice.ledger.offsets_table import Ledger
from sluice.plan import other_writers, truncation
from sluice.plan import warnings as plan_warnings
from sluice.plan.batches import TopicProgress, plan_topic
from sluice.plan.model import GroupPlan, PlanInputs, TablePlan, TopicPlan

log = logging.getLogger(__name__)

ATTEMPTS = 10

TopicStates = Mapping[str, broker.TopicState | SluiceError]
"""Kafka's answer for each topic."""


@dataclass
class _TableProgress:
    """What was read of one table. Where `error` is set, the rest is what was read before it."""

    published: Mapping[str, PublishedOffsets] = field(default_factory=dict)
    change: PendingChange | None = None
    rows: int = 0
    other_writers: str = ""
    is_foreign: bool = False  # another writer filled the table, and nothing says where it stopped
    error: SluiceError | None = None


class _Backlog(NamedTuple):
    """What staging and the ledger hold of a group's topics."""

    staging: Mapping[str, backlog.StagingState]
    batches: Mapping[str, Mapping[int, Batch]]
    gaps: Sequence[LedgerRow]


def make_plan(group: Group, inputs: PlanInputs, *, extend: bool = True) -> GroupPlan:
    """Decide what the next run does, changing nothing.

    Args:
        group: the tables to plan for.
        inputs: what the plan is made from.
        extend: plan new batches for topics that have no open ones; False only continues what is frozen already.

    Raises:
        BrokerUnavailableError: Kafka did not answer.
    """
    contracts, catalog, ledger = inputs.contracts, inputs.catalog, inputs.ledger
    if not contracts.resolved:  # a contract with a pattern would silently have no topic
        raise ValueError("The topics of the contracts are not resolved: call resolve_topics.resolve first.")
    stops = {c.table: contracts.stopped[c.table] for c in group.all_contracts if c.table in contracts.stopped}
    chosen = [c for c in group.contracts if c.table not in stops]
    topics = sorted({t for c in chosen for t in c.topics})
    kafka = {t: inputs.kafka[t] for t in topics if t in inputs.kafka}
    kafka |= broker.describe_topics(inputs.client, [t for t in topics if t not in kafka])
    broken: dict[str, SluiceError] = {t: s for t, s in kafka.items() if isinstance(s, SluiceError)}
    staging = backlog.load_staging(catalog, topics, broken)
    kafka = {t: cursor.with_known_id(s, staging[t].table if t in staging else None) for t, s in kafka.items()}
    progress = {c.table: _read_table(c, inputs, kafka, staging, follow_registry=extend) for c in chosen}
    stops |= {name: each.error for name, each in progress.items() if each.error}
    stops = {**inputs.unready, **stops}
    unready = {*inputs.unready, *(name for name, each in progress.items() if each.error and each.is_foreign)}
    readable = {name: each.published for name, each in progress.items() if each.error is None}
    gaps = ledger.gaps(topics) if ledger else []
    known = backlog.find_known_batches(chosen, staging, readable, ledger, gaps)
    broken |= known.errors
    broken = {**truncation.find_truncated(inputs.client, kafka, staging, gaps), **broken}
    batches = known.by_topic
    topic_plans: dict[str, TopicPlan] = {}
    for topic in sorted(topics, key=lambda t: backlog.last_staged_ms(staging.get(t))):
        state, last = kafka[topic], staging[topic][1] if topic in staging else None
        unrecorded = _find_unrecorded(contracts.topics[topic].tables, staging.get(topic))
        topic_plans[topic] = TopicPlan(topic, last, unrecorded=unrecorded)
        if topic in broken or isinstance(state, SluiceError):
            continue
        topic_progress = TopicProgress(
            contracts.topics[topic],
            state,
            last,
            batches[topic],
            # Tables that stop count as well: a batch number is never given twice.
            published=[each.published[topic] for each in progress.values() if topic in each.published],
            accepted=accepted_gaps.accepted_ranges(gaps, topic, state.topic_id),
            ends=inputs.ends.get(topic, {}),
        )
        try:
            # Without a table that could publish them, no offsets are frozen. Where the records of a table begin that is
            # not adopted yet, is not known.
            some_ready = any(name not in unready for name in contracts.topics[topic].tables)
            topic_plan = plan_topic(topic_progress, inputs.client, extend=extend and some_ready)
            topic_plans[topic] = replace(topic_plan, unrecorded=unrecorded)
        except SluiceError as error:
            broken[topic] = error
    table_plans = {}
    for contract in chosen:
        if contract.table in readable:
            found, failure = _plan_table(contract, progress[contract.table], _Backlog(staging, batches, gaps), ledger)
            table_plans[contract.table] = found
            if failure:
                stops.setdefault(contract.table, with_table(failure, contract.table))
    for contract in chosen:
        for topic in contract.topics:
            if topic in broken:
                stops.setdefault(contract.table, with_table(broken[topic], contract.table))
    changes = {name: each.change for name, each in progress.items() if each.change}
    warnings = plan_warnings.find_risks(inputs, topic_plans, table_plans, staging) if extend else ()
    return GroupPlan(group.name, topic_plans, table_plans, stops, broken, known.missing_rows, warnings, changes)


def _find_unrecorded(names: Sequence[str], staging: backlog.StagingState | None) -> tuple[str, ...]:
    """The tables of a topic that its existing staging table does not record as consumers."""
    if staging is None or staging.table is None:
        return ()
    known = consumers.read_consumers(staging.table) | consumers.read_renamed(staging.table).keys()
    return tuple(name for name in names if name not in known)


def _read_table(
    contract: Contract,
    inputs: PlanInputs,
    kafka: TopicStates,
    staging: Mapping[str, backlog.StagingState],
    *,
    follow_registry: bool,
) -> _TableProgress:
    """What the table has published, and what its contract asks of it; an error stops this table alone."""
    catalog = inputs.catalog
    found = _TableProgress()

    def read() -> None:
        table = tables.load(catalog, table_names.typed(contract))
        if table is None:
            _check_not_renamed(contract, staging)
        # An adopted table is, until its snapshots give offsets: it may have been rolled back beyond its adoption.
        found.is_foreign = table is not None and (
            CONTRACT_PROPERTY not in table.properties or cursor.ADOPTED in table.properties
        )
        found.published = cursor.read_table_cursor(table)
        found.is_foreign &= not found.published
        found.change = change = _find_change(catalog, table, contract, follow_registry=follow_registry)
        # Batches are published by the active contract; the file's may still wait for a review.
        _check_deletes_stay(contract if change is None else change.new if change.due else change.old, kafka)
        if table is not None:
            found.rows = snapshots.count_rows(table)
            found.other_writers = other_writers.describe_commits(table, contract)

    try:
        availability.isolate_table_failure(catalog, read, table=contract.table)
    except SluiceError as error:
        found.error = with_table(error, contract.table)
    return found


def _check_not_renamed(contract: Contract, staging: Mapping[str, backlog.StagingState]) -> None:
    """Refuse to create a table that was renamed: it would be filled once more, from all that staging holds.

    Raises:
        RefusedError: with the table's new name.
    """
    for known in (staging[topic].table for topic in contract.topics if topic in staging):
        if new := consumers.read_renamed(known).get(contract.table):
            raise RefusedError(
                f"The table was renamed to {new}.",
                table=contract.table,
                next_step=f"Put {new} into the contract. For a new table, use a name that was not in use before.",
            )


def _find_change(
    catalog: Catalog, table: Table | None, contract: Contract, *, follow_registry: bool
) -> PendingChange | None:
    """The change that the contract asks of an existing table; of a missing one, check that it can be created."""
    if contract.auto and not follow_registry:  # Spark publishes by the active contract, and needs no new columns
        tables.ensure_typed(catalog, contract)
        return None
    if table is not None:
        return evolve.find_pending_change(catalog, table, contract)
    auto_columns.resolve_columns(contract)
    return None


def _check_deletes_stay(contract: Contract, kafka: TopicStates) -> None:
    """Refuse to ignore tombstones where one may be the only trace of a delete, unless the contract says so.

    Raises:
        CompactedDeletesError: the topic is compacted, and the contract does not say what a tombstone means.
    """
    if contract.cdc is None or contract.cdc.tombstones or contract.tombstones_delete or contract.deletes == "ignore":
        return
    for topic in contract.topics if contract.keyed else ():
        state = kafka[topic]
        if isinstance(state, broker.TopicState) and state.compacted:
            raise CompactedDeletesError(
                "The contract ignores tombstones, but the topic is compacted: one may be the only trace of a delete.",
                table=contract.table,
                topic=topic,
            )


def _plan_table(
    contract: Contract, progress: _TableProgress, group_backlog: _Backlog, ledger: Ledger | None
) -> tuple[TablePlan, SluiceError | None]:
    """The batches that the table has yet to publish, and the first error: a batch is unknown, or its rows are gone."""
    pending: dict[str, tuple[Batch, ...]] = {}
    first: SluiceError | None = None
    for topic in contract.topics:
        if topic in group_backlog.batches:
            staging, last = group_backlog.staging[topic]
            published = progress.published.get(topic)
            try:
                batches = backlog.find_pending_batches(
                    contract.table, group_backlog.batches[topic], last, published, group_backlog.gaps
                )
                pending[topic] = backlog.check_rows_staged(contract.table, staging, batches, ledger, group_backlog.gaps)
            except SluiceError as error:
                first = first or error
    return TablePlan(contract, progress.published, pending, progress.rows, progress.other_writers), first


def write_plan(group: Group, inputs: PlanInputs, *, run_id: str) -> GroupPlan:
    """Make a plan, create and change the tables that it needs, and write it into the ledger by a compare-and-set.

    The Spark driver starts on a machine with this one's environment: a table whose masking key is missing here stops.

    Args:
        group: the tables to plan for.
        inputs: what the plan is made from; the ledger is created if it is missing.
        run_id: the run that the ledger names as the plan's author.

    Raises:
        PlanLostError: another planner wrote a plan for one of the topics first.
        BrokerUnavailableError: Kafka did not answer.
        RequirementsNotEnforcedError: the catalog commits although a requirement does not hold.
    """
    lost: PlanLostError | None = None
    raced: set[str] = set()
    catalog, ledger = inputs.catalog, Ledger(inputs.catalog)
    requirements_check.check(catalog, ledger.table)
    inputs = replace(inputs, ledger=ledger, unready={**inputs.unready, **masks.find_missing_keys(group.contracts)})
    for _ in range(ATTEMPTS):
        plan = make_plan(group, inputs)
        finished = [
            unfinished_rollback.finish_pending_rollback(catalog, ledger, c.new, c.base)
            for c in plan.pending_changes.values()
        ]
        if any(finished):
            plan = make_plan(group, inputs)
        if lost and any(t.frozen and t.topic in raced for t in plan.topics.values()):
            raise lost
        plan = _ensure_tables(group, inputs, plan, run_id)
        plan = _ensure_staging(group, inputs, plan)
        fresh = [b for t in plan.topics.values() if not t.frozen for b in t.to_stage]
        rows = [*plan.missing_ledger_rows, *(row for batch in fresh for row in ledger_rows.plan_rows(batch))]
        try:
            ledger.append(rows, run_id=run_id, if_unchanged=True)
            return plan
        except ledgers.ConflictError:
            names = ", ".join(f"{b.topic} batch {b.seq}" for b in fresh)
            lost = PlanLostError(f"Another run wrote its plan first: {names or 'ledger repairs'}.", run=run_id)
            raced = {b.topic for b in fresh}
            log.info("plan: the ledger changed meanwhile, planning again")
    raise lost or PlanLostError(f"The ledger changed during each of {ATTEMPTS} attempts to write a plan.", run=run_id)


def _ensure_tables(group: Group, inputs: PlanInputs, plan: GroupPlan, run_id: str) -> GroupPlan:
    """The plan after pending changes were applied and missing tables created; a failure stops its table alone."""
    catalog = inputs.catalog
    stops, changes = dict(plan.stops), dict(plan.pending_changes)
    created: list[Contract] = []
    for contract in (c for c in group.contracts if c.table not in inputs.contracts.stopped):
        try:
            if isinstance(stops.get(contract.table), RefusedError):  # it was renamed: it is not created again
                continue
            if change := changes.get(contract.table):
                update = partial(evolve.apply_pending, catalog, contract, change, run_id=run_id)
                changes[contract.table] = availability.isolate_table_failure(catalog, update, table=contract.table)
            else:
                create = partial(_create_table, catalog, contract)
                availability.isolate_table_failure(catalog, create, table=contract.table)
                created.append(contract)
        except SluiceError as error:
            stops.setdefault(contract.table, with_table(error, contract.table))
    evolve.record_created_tables(catalog, created, run_id=run_id)
    return replace(plan, stops=stops, pending_changes=changes)


def _create_table(catalog: Catalog, contract: Contract) -> Table:
    return tables.ensure_typed(catalog, auto_columns.resolve_columns(contract))


def _ensure_staging(group: Group, inputs: PlanInputs, plan: GroupPlan) -> GroupPlan:
    """The plan after missing staging tables were created, and consumers recorded; a topic without stages nothing."""
    stops, broken = dict(plan.stops), dict(plan.broken)
    for topic in [t.topic for t in plan.topics.values() if t.to_stage or t.unrecorded]:
        ensure = partial(_ensure_consumers, inputs.catalog, topic, inputs.contracts.topics[topic].tables)
        try:
            availability.isolate_table_failure(inputs.catalog, ensure, topic=topic)
        except SluiceError as error:
            broken.setdefault(topic, error)
            for contract in (c for c in group.contracts if topic in c.topics):
                stops.setdefault(contract.table, with_table(error, contract.table))
    topics = {t: replace(p, to_stage=() if t in broken else p.to_stage) for t, p in plan.topics.items()}
    return replace(plan, topics=topics, stops=stops, broken=broken)


def _ensure_consumers(catalog: Catalog, topic: str, names: Sequence[str]) -> None:
    consumers.record_consumers(catalog, tables.ensure_staging(catalog, topic), names)
