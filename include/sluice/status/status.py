"""Reads where every table stands: offsets, lag, last commit, open batches, quarantine, last error. Changes nothing.

Sources that do not answer are reported in the status; the rest is shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyiceberg.table import Table

from sluice import timeouts
from sluice.batch import BATCH_SEQ, PUBLISHED_THROUGH, TOPIC, PublishedOffsets
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import BrokerUnavailableError, SluiceError, TopicMissingError
from sluice.iceberg import active_contract, availability, cursor, record_times, refs, snapshots, table_names, tables
from sluice.kafka import broker
from sluice.ledger import slices
from sluice.ledger.quality_table import ExpectationResult
from sluice.offsets import Offsets, Ranges
from sluice.plan import retention_warnings
from sluice.status import sources
from sluice.status.model import (
    CATALOG,
    AcceptedGap,
    ExpectationsSummary,
    LastError,
    PartitionStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TopicStatus,
)
from sluice.status.open_work import OpenBatch, SliceStatus
from sluice.status.sources import StatusSources


def read_status(
    contracts: Contracts,
    only: Iterable[str] | None = None,
    *,
    patience: float = timeouts.DEFAULT_TIMEOUT_S,
    kafka: Mapping[str, Any] | None = None,
) -> Status:
    """Read the status of all tables, or of some.

    Args:
        contracts: the contracts of all tables.
        only: names of tables; None: all.
        patience: seconds to wait for the first answer of Kafka and of the catalog, each.
        kafka: settings of librdkafka; None: those of the environment.

    Raises:
        ContractError: A table in `only` has no contract.
        BrokerUnavailableError, CatalogUnavailableError: A table in `only` may belong to a topic pattern, and the
            source that knows the topics did not answer.
    """
    status = Status(datetime.now(UTC), [])
    if contracts.resolved:  # else the tables depend on the topics
        for name in only or ():
            contracts.table(name)
    inputs = sources.open_sources(status, patience, kafka)
    with inputs.exit_stack:
        contracts = sources.resolve_contracts(contracts, inputs, status)
        if status.unavailable and any(name not in contracts.tables for name in only or ()) and contracts.templates:
            raise status.unavailable[0]
        chosen = [contracts.table(name) for name in only] if only else list(contracts.tables.values())
        if not only:
            status.stopped += [
                (t.group, contracts.stopped[n]) for n, t in contracts.templates.items() if n in contracts.stopped
            ]
            status.broken += map(str, contracts.problems)
        sources.read_sources(contracts, chosen, inputs, status)
        status.unasked, status.unread_fields = inputs.unasked, inputs.unread_fields
        for contract in chosen:
            status.tables.append(_read_table(contract, inputs, status))
    return status


def _read_table(contract: Contract, inputs: StatusSources, status: Status) -> TableStatus:
    entry = TableStatus(
        contract.table, contract.group, contract.mode, contract.owner,
        freshness_promised_seconds=contract.freshness.total_seconds() if contract.freshness else None,
        unasked=list(status.unasked),
    )  # fmt: skip
    try:
        with availability.translate_catalog_errors():
            _fill_table(entry, contract, inputs)
    except BrokerUnavailableError as error:  # it failed after it described the topics
        inputs.client, inputs.topics = None, {}
        status.unavailable.append(BrokerUnavailableError(error.message))  # without the topic: it concerns all
        status.unasked = inputs.unasked
        return _read_table(contract, inputs, status)
    except SluiceError as error:
        entry.problems.append(str(error))
        entry.unasked = sorted({*entry.unasked, CATALOG})
    return entry


def _fill_table(entry: TableStatus, contract: Contract, inputs: StatusSources) -> None:
    entry.risks = retention_warnings.table_risks(inputs.warnings, contract)
    entry.schema, entry.schema_state = inputs.schemas.get(contract.table, (None, None))
    if contract.table in inputs.stops:
        stops = [inputs.stops[contract.table]]
    else:
        missing = [s for t in contract.topics if isinstance(s := inputs.topics.get(t), SluiceError)]
        stops = [*missing, *(inputs.topic_errors[t] for t in contract.topics if t in inputs.topic_errors)]
    entry.problems += map(str, stops)
    day = inputs.daily.get(contract.table)
    entry.day_records, entry.day_rejected = (day.records, day.rejected) if day else (0, 0)
    by_topic = {each.fields.get("topic"): str(each) for each in reversed(stops)}
    through: Mapping[str, PublishedOffsets] | None = None
    table: Table | None = None
    if inputs.catalog:
        try:
            table = tables.load(inputs.catalog, table_names.typed(contract))
            entry.exists = table is not None
            entry.totals = snapshots.read_totals(table.current_snapshot() if table else None)
            quarantine = tables.load_quarantine(inputs.catalog, contract)
            entry.quarantined = quarantine.scan().count() if quarantine and quarantine.current_snapshot() else 0
            entry.day_apart = day.count_quarantined(quarantine) if day else None
            through = cursor.read_table_cursor(table)
            carrier = cursor.find_offset_snapshot(table, PUBLISHED_THROUGH) if table else None
            entry.snapshot = SnapshotStatus.from_snapshot(table.metadata, carrier) if table and carrier else None
        except SluiceError as error:
            if str(error) not in entry.problems and contract.table not in inputs.stops:
                entry.problems.append(str(error))
    entry.maintenance = inputs.maintained.get(contract.table, [])
    entry.expectations, entry.further_expectations = _summarize_expectations(
        inputs.results.get(contract.table, ()), contract, table
    )
    for topic in contract.topics:
        entry.topics.append(_topic_status(contract, topic, inputs, table, through))
        entry.topics[-1].problem = by_topic.get(topic)
        entry.topics[-1].awaited = entry.exists is False and isinstance(inputs.topics.get(topic), TopicMissingError)
        entry.open_batches += _open_batches(topic, inputs, through)
        entry.slices += _slice_statuses(contract.table, topic, inputs, table)
    _set_errors(entry, inputs.errors.get(contract.table, {}), through)
    _set_freshness(entry)


def _summarize_expectations(
    results: Sequence[ExpectationResult], contract: Contract, table: Table | None
) -> tuple[ExpectationsSummary | None, list[ExpectationsSummary]]:
    """Summarize the last evaluated batch of each topic: the newest, and those of other topics with failures.

    Expectations that neither the contract file nor the active contract has any more are left out.
    """
    by_topic: dict[str, list[ExpectationResult]] = {}
    names = {each.name for each in contract.expectations}
    if table and any(each.name not in names for each in results):
        with suppress(SluiceError):
            names |= {each.name for each in active_contract.resolve_active_contract(table, contract).expectations}
    for each in results:
        if each.name in names and each.topic in contract.topics:
            by_topic.setdefault(each.topic, []).append(each)
    found = sorted(map(ExpectationsSummary.from_results, by_topic.values()), key=lambda each: each.at, reverse=True)
    return next(iter(found), None), [each for each in found[1:] if each.failed]


class TopicOffsets(NamedTuple):
    """Where a table stands in a topic: its last batch and next offsets, those of staging, and Kafka's watermarks."""

    topic: str
    last_batch: int
    published: Offsets
    staged: Offsets
    watermarks: Ranges


def _topic_status(
    contract: Contract,
    topic: str,
    inputs: StatusSources,
    table: Table | None,
    through: Mapping[str, PublishedOffsets] | None,
) -> TopicStatus:
    state = inputs.topics.get(topic)
    here = state if isinstance(state, broker.TopicState) else None
    marks = here.watermarks if here else {}
    at = through.get(topic) if through else None
    staged = inputs.staged.get(topic)
    entry = TopicStatus(
        topic,
        topic_id=next((each.topic_id for each in (here, at, staged) if each), None),
        batch=at.seq if at else None,
        staged_batch=staged.seq if staged else None,
    )
    entry.given_up = [
        AcceptedGap.from_row(r) for r in inputs.accepted_gaps if r.topic == topic and r.table in (None, contract.table)
    ]
    # Offsets of a deleted topic of the same name say nothing about this one.
    current = [each if each and each.topic_id == entry.topic_id else None for each in (at, staged)]
    published, raw = (dict(each.next_offsets) if each else {} for each in current)
    offsets = TopicOffsets(topic, at.seq if at else 0, published, raw, marks)
    entry.partitions = _partition_statuses(offsets, has_table=through is not None)
    if marks and through is not None:
        entry.lag_records = sum(line.lag or 0 for line in entry.partitions)
    if inputs.client is not None and marks:
        entry.stream_clock = (inputs.stream_clocks or broker.read_stream_clocks(inputs.client, {topic: marks}))[topic]
        # With another start than the earliest, the first offset is known only once reading has begun.
        if contract.freshness and through is not None and (any(current) or contract.start == "earliest"):
            entry.late = _count_late(contract.freshness, inputs, offsets)
    if at and current[0]:
        entry.table_clock = _table_clock(topic, inputs, table, at)
    if entry.lag_records == 0:
        entry.lag_seconds = 0.0
    elif entry.lag_records is not None and entry.stream_clock and entry.table_clock:
        entry.lag_seconds = max((entry.stream_clock - entry.table_clock).total_seconds(), 0.0)
    return entry


def _partition_statuses(offsets: TopicOffsets, *, has_table: bool) -> list[PartitionStatus]:
    lines = []
    for p in sorted({*offsets.watermarks, *offsets.published, *offsets.staged}):
        line = PartitionStatus(p, published=offsets.published.get(p), staged=offsets.staged.get(p))
        if p in offsets.watermarks:
            line.low, line.end = offsets.watermarks[p].start, offsets.watermarks[p].end
            # A partition without a committed offset counts from the log start; without a table, the lag is unknown.
            if has_table:
                line.lag = max(line.end - offsets.published.get(p, line.low), 0)
        lines.append(line)
    return lines


def _count_late(target: timedelta, inputs: StatusSources, offsets: TopicOffsets) -> dict[int, int]:
    """Count the unpublished offsets per partition whose records are older than the freshness target.

    Offsets that only staging still has count by the newest record of the next batch to publish.
    """
    topic, published, marks = offsets.topic, offsets.published, offsets.watermarks
    late: dict[int, int] = {}
    if inputs.client is not None:
        late |= broker.count_overdue_offsets(inputs.client, topic, published, marks, target)
    only_staged = {
        p: count
        for p, m in marks.items()
        if (count := min(offsets.staged.get(p, 0), m.start) - published.get(p, m.start)) > 0
    }
    if only_staged:
        newest = record_times.newest_record_time(inputs.staging.get(topic), offsets.last_batch + 1, None, None)
        if newest and newest < datetime.now(UTC) - target:
            late |= {p: late.get(p, 0) + count for p, count in only_staged.items()}
    return late


def _table_clock(topic: str, inputs: StatusSources, table: Table | None, at: PublishedOffsets) -> datetime | None:
    publisher = next(
        (
            s
            for s in (snapshots.ancestors(table.metadata) if table else ())
            if snapshots.summary(s).get(TOPIC) == topic and snapshots.summary(s).get(BATCH_SEQ) == str(at.seq)
        ),
        None,
    )
    return record_times.newest_record_time(inputs.staging.get(topic), at.seq, table, publisher)


def _open_batches(topic: str, inputs: StatusSources, through: Mapping[str, PublishedOffsets] | None) -> list[OpenBatch]:
    staged = inputs.staged.get(topic)
    last = staged.seq if staged else 0
    found = []
    if through is not None:
        done = through[topic].seq if topic in through else 0
        batches = {s: b for s, (b, _) in cursor.read_staged_batches(inputs.staging.get(topic), done).items()}
        for seq in range(done + 1, last + 1):
            batch = batches.get(seq)
            found.append(OpenBatch(topic, seq, "staged", dict(batch.ranges) if batch else {}))
    for (t, seq), batch in sorted(inputs.planned_batches.items()):
        if t == topic and seq > last:
            found.append(OpenBatch(topic, seq, "planned", dict(batch.ranges)))
    return found


def _slice_statuses(name: str, topic: str, inputs: StatusSources, table: Table | None) -> list[SliceStatus]:
    """List unfinished backfill slices of the last week, and all whose result was kept on a branch."""
    known = inputs.slices.get((topic, name), [])
    kept = refs.find_refused_branches(table.metadata.refs if table else (), topic)
    pieces, last = slices.planned_slices(known), {r.batch_seq: r for r in known}
    wanted = {*slices.unfinished_slices(known, datetime.now(UTC)), *kept}
    return [
        SliceStatus.from_ledger(topic, n, pieces.get(n), last.get(n), kept.get(n)) for n in sorted(wanted, reverse=True)
    ]


def _set_errors(
    entry: TableStatus, refusals: Mapping[str, list[LastError]], through: Mapping[str, PublishedOffsets] | None
) -> None:
    """Set the errors topic by topic: a published batch of one topic resolves no error of another."""
    mine = {t.topic for t in entry.topics} or set(refusals)  # a topic pattern, and the sources did not answer
    done = {topic: at.seq for topic, at in (through or {}).items()}
    found = [LastError.from_errors(rows, done.get(topic)) for topic, rows in refusals.items() if topic in mine]
    found.sort(key=lambda each: each.urgency, reverse=True)
    entry.last_error = found[0] if found else None
    entry.further_errors = [each for each in found[1:] if each.open]


def _set_freshness(entry: TableStatus) -> None:
    seconds = [t.lag_seconds for t in entry.topics if t.lag_seconds is not None]
    if not entry.topics:  # a topic pattern, and the sources did not answer
        return
    if len(seconds) == len(entry.topics):
        entry.freshness_now_seconds = max(seconds, default=None)
    late = [t.late for t in entry.topics]
    if entry.freshness_promised_seconds is not None and all(each is not None for each in late):
        entry.freshness_kept = not any(late)
