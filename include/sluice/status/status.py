"""Where every table stands: cursor, Kafka's end, lag, last durable snapshot, open batches, quarantine, last error.

Reads the tables, the ledger and Kafka, and changes nothing. What does not answer is named, and the
rest is told all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pyiceberg.table import Table

from sluice import timeouts
from sluice.batch import BATCH_SEQ, PUBLISHED_THROUGH, TOPIC, Through
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import BrokerUnavailableError, SluiceError
from sluice.iceberg import active_contract, availability, cursor, record_times, refs, snapshots, table_names, tables
from sluice.kafka import broker
from sluice.ledger import slices
from sluice.ledger.quality_table import Result
from sluice.offsets import Offsets, Ranges
from sluice.plan import retention_warnings
from sluice.status import sources
from sluice.status.model import (
    CATALOG,
    GivenUp,
    Judgement,
    LastError,
    OpenBatch,
    PartitionStatus,
    SliceStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TopicStatus,
)
from sluice.status.sources import World


def look(
    contracts: Contracts,
    only: Iterable[str] | None = None,
    *,
    patience: float = timeouts.PATIENCE_S,
    kafka: Mapping[str, Any] | None = None,
) -> Status:
    """Ask for the state of all tables, or of those named.

    Args:
        contracts: what the tables promise, and which topics feed them.
        only: names of tables; all when left out.
        patience: seconds to wait for the first answer of Kafka and of the catalog, each.
        kafka: librdkafka's settings; those of the environment when left out.

    Raises:
        ContractError: a table that is named has no contract.
        BrokerUnavailableError, CatalogUnavailableError: it may be one of a pattern's, and nobody could be asked.
    """
    status = Status(datetime.now(UTC), [])
    if contracts.resolved:  # else only the topics tell which tables there are
        for name in only or ():
            contracts.table(name)
    world = sources.open_all(status, patience, kafka)
    with world.opened:
        contracts = sources.resolved(contracts, world, status)
        if status.unavailable and any(name not in contracts.tables for name in only or ()) and contracts.templates:
            raise status.unavailable[0]  # who knows which tables there are did not answer
        chosen = [contracts.table(name) for name in only] if only else list(contracts.tables.values())
        if not only:
            status.stopped += [
                (t.group, contracts.stopped[n]) for n, t in contracts.templates.items() if n in contracts.stopped
            ]
            status.broken += map(str, contracts.problems)
        sources.ask(contracts, chosen, world, status)
        status.unasked, status.unread = world.unasked, world.unread
        for contract in chosen:
            status.tables.append(_table(contract, world, status))
    return status


def _table(contract: Contract, world: World, status: Status) -> TableStatus:
    entry = TableStatus(
        contract.table, contract.group, contract.mode, contract.owner,
        freshness_promised_seconds=contract.freshness.total_seconds() if contract.freshness else None,
        unasked=list(status.unasked),
    )  # fmt: skip
    try:
        with availability.catalog_errors():
            _fill(entry, contract, world)
    except BrokerUnavailableError as error:  # it is away since it told of the topics: no table stops for that
        world.client, world.states = None, {}
        status.unavailable.append(BrokerUnavailableError(error.message))  # of all topics, and told to all
        status.unasked = world.unasked
        return _table(contract, world, status)
    except SluiceError as error:
        entry.problems.append(str(error))
        entry.unasked = sorted({*entry.unasked, CATALOG})
    return entry


def _fill(entry: TableStatus, contract: Contract, world: World) -> None:
    entry.risks = retention_warnings.statuses(world.warnings, contract)
    entry.schema = world.schemas.get(contract.table)
    if contract.table in world.stops:
        stops = [world.stops[contract.table]]
    else:
        missing = [s for t in contract.topics if isinstance(s := world.states.get(t), SluiceError)]
        stops = [*missing, *(world.broken[t] for t in contract.topics if t in world.broken)]
    entry.problems += map(str, stops)
    day = world.day.get(contract.table)
    entry.day_records, entry.day_rejected = (day.records, day.rejected) if day else (0, 0)
    by_topic = {each.fields.get("topic"): str(each) for each in reversed(stops)}
    through: Mapping[str, Through] | None = None
    table: Table | None = None
    if world.catalog:
        remembered = partial(world.ledger.remembered, contract.table) if world.ledger else None
        try:
            table = tables.load(world.catalog, table_names.typed(contract))
            entry.exists = table is not None
            entry.totals = snapshots.totals(table.current_snapshot() if table else None)
            held = tables.load(world.catalog, table_names.quarantine(contract))
            entry.quarantined = held.scan().count() if held and held.current_snapshot() else 0
            entry.day_apart = day.apart(held) if day else None
            through = cursor.published(table, remembered)
            carrier = cursor.carrier(table, PUBLISHED_THROUGH) if table else None
            entry.snapshot = SnapshotStatus.of(table.metadata, carrier) if table and carrier else None
        except SluiceError as error:
            if str(error) not in entry.problems and contract.table not in world.stops:
                entry.problems.append(str(error))
    entry.maintenance = world.maintained.get(contract.table, [])
    entry.expectations, entry.further_expectations = _judged(world.judged.get(contract.table, ()), contract, table)
    for topic in contract.topics:
        entry.topics.append(_topic(contract, topic, world, table, through))
        entry.topics[-1].problem = by_topic.get(topic)
        entry.open_batches += _open_batches(topic, world, through)
        entry.slices += _slices(contract.table, topic, world, table)
    _refused(entry, world.refusals.get(contract.table, {}), through)
    _judge(entry)


def _judged(
    results: Sequence[Result], contract: Contract, table: Table | None
) -> tuple[Judgement | None, list[Judgement]]:
    """What the last batch of the topic came to that was judged last, and those of the others that do not hold.

    By the expectations that the contract has, as its file or the one in force names them: one that was taken away
    concerns nobody any more.
    """
    by_topic: dict[str, list[Result]] = {}
    now = {each.name for each in contract.expectations}
    if table and any(each.name not in now for each in results):
        with suppress(SluiceError):
            now |= {each.name for each in active_contract.effective(table, contract).expectations}
    for each in results:
        if each.name in now and each.topic in contract.topics:
            by_topic.setdefault(each.topic, []).append(each)
    found = sorted(map(Judgement.of, by_topic.values()), key=lambda each: each.at, reverse=True)
    return next(iter(found), None), [each for each in found[1:] if each.failed]


def _topic(
    contract: Contract, topic: str, world: World, table: Table | None, through: Mapping[str, Through] | None
) -> TopicStatus:
    state = world.states.get(topic)
    here = state if isinstance(state, broker.TopicState) else None
    marks = here.watermarks if here else {}
    at = through.get(topic) if through else None
    staged = world.staged.get(topic)
    entry = TopicStatus(
        topic,
        topic_id=next((each.topic_id for each in (here, at, staged) if each), None),
        batch=at.seq if at else None,
        staged_batch=staged.seq if staged else None,
    )
    entry.given_up = [GivenUp.of(r) for r in world.given_up if r.topic == topic and r.table in (None, contract.table)]
    # Offsets of a topic that was made anew tell nothing of where in this one anybody stands.
    mine = [each if each and each.topic_id == entry.topic_id else None for each in (at, staged)]
    reached, raw = (dict(each.next_offsets) if each else {} for each in mine)
    for p in sorted({*marks, *reached, *raw}):
        line = PartitionStatus(p, published=reached.get(p), staged=raw.get(p))
        if p in marks:
            line.low, line.end = marks[p].start, marks[p].end
            # What the table never read counts from where Kafka begins now; without a table nothing can be said.
            if through is not None:
                line.lag = max(line.end - reached.get(p, line.low), 0)
        entry.partitions.append(line)
    if marks and through is not None:
        entry.lag_records = sum(line.lag or 0 for line in entry.partitions)
    if world.client is not None and marks:
        entry.stream_clock = broker.stream_clock(world.client, topic, marks)
        # By another start than the earliest, what it is to read is known when it has begun.
        if contract.freshness and through is not None and (any(mine) or contract.start == "earliest"):
            entry.late = _late(contract.freshness, world, topic, at.seq if at else 0, reached, raw, marks)
    if at and mine[0]:
        entry.table_clock = _table_clock(topic, world, table, at)
    if entry.lag_records == 0:
        entry.lag_seconds = 0.0
    elif entry.lag_records is not None and entry.stream_clock and entry.table_clock:
        entry.lag_seconds = max((entry.stream_clock - entry.table_clock).total_seconds(), 0.0)
    return entry


def _late(
    promised: timedelta, world: World, topic: str, done: int, reached: Offsets, raw: Offsets, marks: Ranges
) -> dict[int, int]:
    """Per partition the offsets that are not in the table and hold records older than the promise.

    What Kafka holds no more, and staging does, it can't be asked about: that goes by the first batch to be published.

    Args:
        done: the topic's last batch in the table.
        raw: how far staging reaches, as `reached` is of the table.
    """
    late = dict(broker.older_unread(world.client, topic, reached, marks, promised)) if world.client is not None else {}
    gone = {p: n for p, m in marks.items() if (n := min(raw.get(p, 0), m.start) - reached.get(p, m.start)) > 0}
    newest = record_times.table_clock(world.staging.get(topic), done + 1, None, None) if gone else None
    if newest and newest < datetime.now(UTC) - promised:
        late |= {p: late.get(p, 0) + n for p, n in gone.items()}
    return late


def _table_clock(topic: str, world: World, table: Table | None, at: Through) -> datetime | None:
    publisher = next(
        (
            s
            for s in (snapshots.ancestors(table.metadata) if table else ())
            if snapshots.summary(s).get(TOPIC) == topic and snapshots.summary(s).get(BATCH_SEQ) == str(at.seq)
        ),
        None,
    )
    return record_times.table_clock(world.staging.get(topic), at.seq, table, publisher)


def _open_batches(topic: str, world: World, through: Mapping[str, Through] | None) -> list[OpenBatch]:
    staged = world.staged.get(topic)
    last = staged.seq if staged else 0
    found = []
    if through is not None:
        done = through[topic].seq if topic in through else 0
        told = {s: b for s, (b, _) in cursor.staged_batches(world.staging.get(topic), done).items()}
        for seq in range(done + 1, last + 1):
            batch = told.get(seq)
            found.append(OpenBatch(topic, seq, "staged", dict(batch.ranges) if batch else {}))
    for (t, seq), batch in sorted(world.known.items()):
        if t == topic and seq > last:
            found.append(OpenBatch(topic, seq, "planned", dict(batch.ranges)))
    return found


def _slices(name: str, topic: str, world: World, table: Table | None) -> list[SliceStatus]:
    """What is not in the table of the backfills that were planned within the last week, and all that was kept."""
    known = world.slices.get((topic, name), [])
    kept = refs.kept_branches(table.metadata.refs if table else (), topic)
    pieces, last = slices.planned(known), {r.batch_seq: r for r in known}
    wanted = {*slices.unfinished(known, datetime.now(UTC)), *kept}
    return [SliceStatus.of(topic, n, pieces.get(n), last.get(n), kept.get(n)) for n in sorted(wanted, reverse=True)]


def _refused(
    entry: TableStatus, refusals: Mapping[str, list[LastError]], through: Mapping[str, Through] | None
) -> None:
    """What was refused, topic by topic: each has batches of its own, and what lands of one cures no other."""
    mine = {t.topic for t in entry.topics} or set(refusals)  # by a pattern, and nobody could be asked
    done = {topic: at.seq for topic, at in (through or {}).items()}
    found = [LastError.of(rows, done.get(topic)) for topic, rows in refusals.items() if topic in mine]
    found.sort(key=lambda each: each.urgency, reverse=True)
    entry.last_error = found[0] if found else None
    entry.further_errors = [each for each in found[1:] if each.open]


def _judge(entry: TableStatus) -> None:
    seconds = [t.lag_seconds for t in entry.topics if t.lag_seconds is not None]
    if not entry.topics:  # by a pattern, and nobody could be asked
        return
    if len(seconds) == len(entry.topics):
        entry.freshness_now_seconds = max(seconds, default=None)
    late = [t.late for t in entry.topics]
    if entry.freshness_promised_seconds is not None and all(each is not None for each in late):
        entry.freshness_kept = not any(late)
