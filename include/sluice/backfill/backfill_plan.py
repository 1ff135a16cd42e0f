"""Plans a backfill: offset ranges below a table's cursor become slices in the ledger. Runs without a JVM.

`plan_backfill` changes nothing; `write_backfill` writes the slices. `sluice.backfill.replay` carries out one slice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.backfill import estimate
from sluice.backfill import ranges as backfill_ranges
from sluice.backfill.ranges import RangeSources, Request
from sluice.batch import Batch, PublishedOffsets, merge_ranges
from sluice.contract.contract import Contract
from sluice.errors import BrokerUnavailableError, PlanLostError, RefusedError, SluiceError
from sluice.evolve import evolve
from sluice.iceberg import cursor, table_names, tables
from sluice.kafka import broker
from sluice.ledger import backlog, slices
from sluice.ledger.ledger_rows import LedgerRow
from sluice.ledger.offsets_table import ConflictError, Ledger
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange, Ranges, encode_gaps, encode_ranges
from sluice.plan.batches import cut_ranges
from sluice.plan.model import PlanInputs

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

ATTEMPTS = 10
# By default Airflow maps at most 1024 tasks; a DAG passes a lower limit.
MAX_SLICES = 1_000


@dataclass(frozen=True)
class BackfillPlan:
    """A backfill before it runs.

    Attributes:
        ranges: the requested offsets.
        slices: the parts, each with a task and a commit of its own.
        not_in_kafka: what of the ranges Kafka lacks; `not_in_staging` likewise.
        records: how many records there are to read, as text.
        existing_rows: how many rows of the ranges the table holds, and whether that is exact.
        seconds: the expected time, from earlier runs in the ledger; None where there are none.
        cut_at: per partition the requested end, where it is above the table's cursor and was cut off there.
        kafka_error: why Kafka has no answer for the topic that the table was filled from; empty where it has.
        frozen: the slices are in the ledger already.
    """

    table: str
    group: str
    topic: str
    origin: Origin
    ranges: Ranges
    slices: tuple[Batch, ...]
    not_in_kafka: Mapping[int, Sequence[OffsetRange]] = field(default_factory=dict)
    not_in_staging: Mapping[int, Sequence[OffsetRange]] = field(default_factory=dict)
    records: str = ""
    existing_rows: tuple[int, bool] = (0, True)
    seconds: float | None = None
    cut_at: Mapping[int, int] = field(default_factory=dict)
    kafka_error: str = ""
    frozen: bool = False

    @property
    def span(self) -> int:
        """How many offsets the ranges span."""
        return sum(r.span for r in self.ranges.values())

    def lines(self) -> list[str]:
        """The plan as text."""
        about = f"{self.table} from {self.topic} ({self.origin}) {encode_ranges(self.ranges)}: {self.span:,} offsets"
        if self.frozen:
            return [about, *(f"slice   {s} (planned earlier)" for s in self.slices)]
        rows, exact = self.existing_rows
        takes = (
            "unknown" if self.seconds is None else f"about {max(self.seconds, 1):,.0f} s, plus the start of each slice"
        )
        kafka = (
            f"not needed, and no answer: {self.kafka_error}" if self.kafka_error else _describe_holes(self.not_in_kafka)
        )
        cursor = f"the ranges end at the table's cursor; the ingest DAG publishes the rest, up to {dict(self.cut_at)}"
        return [
            about,
            *([f"cursor  {cursor}"] if self.cut_at else []),
            f"records {self.records}",
            f"kafka   {kafka}",
            f"staging {_describe_holes(self.not_in_staging)}",
            f"table   {'' if exact else 'at most '}{rows:,} rows of the range are in it now",
            f"time    {takes}",
            *(f"slice   {s}" for s in self.slices),
        ]

    def to_xcom(self) -> dict[str, Any]:
        """What the tasks that follow need to know, as JSON."""
        return {
            "table": self.table,
            "group": self.group,
            "topic": self.topic,
            "origin": str(self.origin),
            "slices": [s.seq for s in self.slices],
        }


def _describe_holes(holes: Mapping[int, Sequence[OffsetRange]]) -> str:
    return f"holds all but {encode_gaps(holes)}" if holes else "holds all of it"


def plan_backfill(request: Request, inputs: PlanInputs, *, max_slices: int = MAX_SLICES) -> BackfillPlan:
    """Plan a backfill, changing nothing.

    Args:
        request: what an operator asks for.
        inputs: what the plan is made from.
        max_slices: how many instances of a task Airflow maps.

    Raises:
        ContractError: no contract names the table, or its topics contradict another contract.
        RefusedError: with the reason, and what can be asked for instead.
        StagingTrimmedError: staging does not hold the ranges that are to be read from it.
        TopicRecreatedError: the ranges are to be read from Kafka, and the topic was created again.
        BrokerUnavailableError, TopicMissingError, TopicForbiddenError: they are to be read from Kafka, which failed.
    """
    contracts, catalog, ledger = inputs.contracts, inputs.catalog, inputs.ledger
    contract = contracts.table(request.table)
    if stop := contracts.stopped.get(contract.table):
        raise stop
    topic = _choose_topic(request, contract)
    if request.origin == Origin.QUARANTINE and contract.drops_raw_records:
        raise RefusedError(
            "The quarantine holds no raw records (errors.raw: drop, the default where a column is masked).",
            table=contract.table,
            topic=topic,
            next_step="Backfill their offsets from staging, or from Kafka.",
        )
    typed = tables.load(catalog, table_names.typed(contract))
    published = cursor.read_table_cursor(typed)
    known = slices.read_slice_rows(ledger, topic)
    sources = _find_sources(request, inputs, topic, known, published)
    if typed:
        sources = replace(sources, adopted_at=cursor.read_adopted_offsets(typed).get(topic, {}))
    resolved = backfill_ranges.resolve_ranges(request, sources, inputs.client)
    ranges = resolved.ranges
    whole = Batch(topic, sources.state.topic_id, -1, ranges, {})
    _check_no_open_batches(contract, catalog, ledger, whole, published)
    backfill_ranges.check_below_cursor(contract.table, whole, published[topic])
    if request.origin == Origin.STAGING:
        backfill_ranges.check_in_staging(contract.table, whole, sources.staged)
    starts = {p: m.start for p, m in sources.state.watermarks.items()}
    gone = {p: [OffsetRange(r.start, min(r.end, starts[p]))] for p, r in ranges.items() if r.start < starts[p]}
    holes = slices.find_missing_ranges(ranges, sources.staged)
    sparse = contracts.topics[topic].transactional or sources.state.compacted
    countable = replace(sources, staging=None) if holes else sources
    count, records = estimate.count_records(request.origin, whole, countable, ledger, sparse=sparse)
    cap = contracts.topics[topic].limits.records_per_batch
    pieces = _cut_slices(request, whole, sources.quarantine, cap, min(max_slices, MAX_SLICES))
    last = slices.lowest_slice_number(catalog, contracts.topics[topic].tables, topic, known)
    return BackfillPlan(
        table=contract.table,
        group=contract.group,
        topic=topic,
        origin=request.origin,
        ranges=ranges,
        slices=tuple(replace(whole, seq=last - 1 - i, ranges=piece) for i, piece in enumerate(pieces)),
        not_in_kafka=gone,
        not_in_staging=holes,
        records=records,
        existing_rows=estimate.count_rows(typed, whole) if typed else (0, True),
        seconds=estimate.estimate_seconds(ledger, contract.table, topic, count, known),
        cut_at=resolved.cut_at,
        kafka_error=sources.kafka_error,
    )


def _find_sources(
    request: Request,
    inputs: PlanInputs,
    topic: str,
    known: Sequence[LedgerRow],
    published: Mapping[str, PublishedOffsets],
) -> RangeSources:
    """Where the records of the topic may be: Kafka, staging, quarantine.

    Args:
        request: what an operator asks for.
        inputs: what the plan is made from.
        topic: one of the table's topics.
        known: the ledger's rows of earlier slices.
        published: the table's cursors.

    Raises:
        RefusedError: the table has no cursor for the topic.
        TopicRecreatedError: its cursor belongs to an older topic of that name.
        BrokerUnavailableError, TopicMissingError, TopicForbiddenError: Kafka is needed and failed.
    """
    catalog, ledger = inputs.catalog, inputs.ledger
    contract = inputs.contracts.table(request.table)
    staging = tables.load_staging(catalog, topic)
    state, kafka_error = _describe_topic(request, inputs.client, topic, staging, published.get(topic))
    # Before anything else: a topic that was created again has other offsets.
    backfill_ranges.check_below_cursor(contract.table, Batch(topic, state.topic_id, -1, {}, {}), published.get(topic))
    return RangeSources(
        state=state,
        staged=slices.find_staged_batches(staging, topic, known, ledger),
        live_ingest_start=backfill_ranges.find_live_ingest_start(ledger, staging, topic),
        quarantine=tables.load_quarantine(catalog, contract),
        cursor=published[topic].next_offsets,
        staging=staging,
        kafka_error=kafka_error,
    )


def _describe_topic(
    request: Request, client: AdminClient, topic: str, staging: Table | None, at: PublishedOffsets | None
) -> tuple[broker.TopicState, str]:
    """Kafka's answer for the topic; where it is not needed and fails, a stand-in, and the error.

    The stand-in is a topic that holds no records any more, up to the table's cursor, and may lack offsets.
    """
    try:
        state = cursor.with_known_id(broker.describe_topics(client, [topic])[topic], staging)
    except BrokerUnavailableError as failure:
        state = failure
    if request.needs_kafka and isinstance(state, SluiceError):
        raise state
    if isinstance(state, SluiceError):
        error = state.message
    elif request.needs_kafka or at is None or at.topic_id == state.topic_id:
        return state, ""
    else:
        error = f"Topic {topic!r} is not the one that the table was filled from."
    marks = {p: OffsetRange(end, end) for p, end in at.next_offsets.items()} if at else {}
    return broker.TopicState(topic, at.topic_id if at else "", marks, compacted=True, retention_ms=-1), error


def _choose_topic(request: Request, contract: Contract) -> str:
    if request.topic and request.topic not in contract.topics:
        raise RefusedError(
            f"Topic {request.topic!r} does not feed the table.",
            table=contract.table,
            next_step=f"It is fed by {', '.join(contract.topics)}.",
        )
    if not request.topic and len(contract.topics) > 1:
        raise RefusedError(
            "Several topics feed the table.", table=contract.table, next_step=f"Name one: {', '.join(contract.topics)}."
        )
    return request.topic or contract.topics[0]


def _check_no_open_batches(
    contract: Contract, catalog: Catalog, ledger: Ledger | None, whole: Batch, through: Mapping[str, PublishedOffsets]
) -> None:
    """Refuse ranges that batches of the ingest DAG are about to publish.

    Raises:
        RefusedError: with the batches' numbers.
    """
    broken: dict[str, SluiceError] = {}
    loaded = backlog.load_staging(catalog, [whole.topic], broken)
    if broken:
        raise broken[whole.topic]
    known = backlog.find_known_batches([contract], loaded, {contract.table: through}, ledger).for_topic(whole.topic)
    waiting = [b for seq, b in sorted(known.items()) if seq > through[whole.topic].seq]
    overlapping = [
        b.seq
        for b in waiting
        if any(p in whole.ranges and r.start < whole.ranges[p].end and whole.ranges[p].start < r.end
               for p, r in b.ranges.items())
    ]  # fmt: skip
    if overlapping:
        raise RefusedError(
            f"The range overlaps batches that are planned and not published yet: {', '.join(map(str, overlapping))}.",
            table=contract.table,
            topic=whole.topic,
            next_step="The ingest DAG publishes them; end the range before them.",
        )


def _cut_slices(
    request: Request, whole: Batch, quarantine: Table | None, cap: int, max_slices: int
) -> list[dict[int, OffsetRange]]:
    if request.origin == Origin.QUARANTINE:
        pieces = backfill_ranges.cut_by_quarantine(whole, quarantine, cap)
    else:
        pieces = cut_ranges(whole.ranges, cap, max_slices + 1)
    if len(pieces) > max_slices:
        raise RefusedError(
            f"The range makes more than {max_slices:,} slices of records_per_batch each.",
            table=request.table,
            topic=whole.topic,
            next_step="Backfill one part of it at a time.",
        )
    return pieces


def write_backfill(
    request: Request, inputs: PlanInputs, *, who: str, run_id: str, max_slices: int = MAX_SLICES
) -> BackfillPlan:
    """Plan a backfill and write its slices into the ledger by a compare-and-set; a second call returns the same slices.

    Args:
        request: what an operator asks for.
        inputs: what the plan is made from; the ledger is created if it is missing.
        who: the operator.
        run_id: the run that owns the slices.
        max_slices: how many instances of a task Airflow maps.

    Raises:
        RefusedError: as `plan_backfill`; or no reason is given, or the run id belongs to another backfill.
        PlanLostError: the ledger changed during each attempt.
    """
    if not request.why.strip():
        raise RefusedError(
            "No reason is given.", table=request.table, next_step="Give a reason: it is kept in the ledger."
        )
    contract = inputs.contracts.table(request.table)
    topic = _choose_topic(request, contract)
    for _ in range(ATTEMPTS):
        ledger = Ledger(inputs.catalog)
        known = slices.read_slice_rows(ledger, topic)
        if own := slices.planned_slices(known, run_id):
            frozen = _frozen_plan(request, contract, topic, tuple(own.values()))
            _check_same_request(request, frozen, {r.table for r in known if r.batch_seq in own}, run_id)
            return frozen
        found = plan_backfill(request, replace(inputs, ledger=ledger), max_slices=max_slices)
        # A repaired contract must be active before records are replayed by it.
        evolve.apply_pending(inputs.catalog, contract, run_id=run_id)
        rows = [
            row for s in found.slices for row in slices.slice_plan_rows(s, contract.table, who=who, why=request.why)
        ]
        try:
            ledger.append(rows, run_id=run_id, if_unchanged=True)
            return found
        except ConflictError:
            log.info("backfill: the ledger changed meanwhile, planning again")
    raise PlanLostError(f"The ledger changed during each of {ATTEMPTS} attempts to write the slices.", run=run_id)


def _frozen_plan(request: Request, contract: Contract, topic: str, own: tuple[Batch, ...]) -> BackfillPlan:
    """The plan of slices that are in the ledger already; its numbers are not computed again."""
    ranges = merge_ranges(sorted(own, key=lambda s: -s.seq))
    return BackfillPlan(contract.table, contract.group, topic, request.origin, ranges, own, frozen=True)


def _check_same_request(request: Request, frozen: BackfillPlan, tables_of: Set[str | None], run_id: str) -> None:
    """Refuse a run id that was given to another backfill before, as Airflow allows once the earlier run is deleted.

    Args:
        request: what an operator asks for.
        frozen: the slices of that run id.
        tables_of: the tables that these were planned for.
        run_id: the run.

    Raises:
        RefusedError: the slices are of another table, or of other ranges.
    """
    wanted = {p: tuple(bounds) for p, bounds in request.ranges.items()}
    if tables_of == {request.table} and wanted in ({}, {p: tuple(r) for p, r in frozen.ranges.items()}):
        return
    before = f"{', '.join(sorted(filter(None, tables_of)))} {encode_ranges(frozen.ranges)}"
    raise RefusedError(
        f"Run {run_id} planned other slices before: {before}.",
        table=request.table,
        topic=frozen.topic,
        next_step="Trigger the backfill with a run id that was not used before.",
    )
