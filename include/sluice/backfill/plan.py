"""Backfill: bring ranges of a topic that lie below a table's cursor into the table, in slices. No JVM.

`look` resolves, refuses and shows, changing nothing; `write` freezes the slices in the ledger; `outcome` tells what the
tables say became of them. The slices themselves are `sluice.backfill.replay`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.backfill import estimate as figures
from sluice.backfill import ranges as backfill_ranges
from sluice.backfill.ranges import Request, Sources
from sluice.batch import Batch, Through, joined_ranges
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import BrokerUnavailableError, PlanLostError, RefusedError, SluiceError
from sluice.evolve import evolve
from sluice.iceberg import cursor, table_names, tables
from sluice.kafka import broker
from sluice.ledger import backlog, slices
from sluice.ledger.offsets_table import ConflictError, Ledger
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange, Ranges, encode_gaps, encode_ranges
from sluice.plan.batches import cut

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

ATTEMPTS = 10
# Airflow maps no more tasks than 1024 by default; where it maps fewer, the DAG says so.
MOST_SLICES = 1_000


@dataclass(frozen=True)
class Backfill:
    """A backfill before it runs.

    Attributes:
        ranges: what is asked for, resolved.
        slices: the parts, each a task and a commit of its own.
        not_in_kafka: what of it Kafka lacks; with `not_in_staging` likewise.
        records: how many there are to read, in words.
        there: rows of the range that the table holds now, and whether that is exact.
        beyond: where the time that was asked for ends, in partitions where that is behind the table's cursor.
        away: why Kafka can't be asked about the topic that the table was filled from; empty where it can.
        seconds: what the ledger's own figures let expect; None where there are none.
        frozen: the slices stand in the ledger.
    """

    table: str
    group: str
    topic: str
    origin: Origin
    ranges: Ranges
    slices: tuple[Batch, ...]
    not_in_kafka: Mapping[int, Sequence[OffsetRange]]
    not_in_staging: Mapping[int, Sequence[OffsetRange]]
    records: str
    there: tuple[int, bool]
    seconds: float | None
    beyond: Mapping[int, int] = field(default_factory=dict)
    away: str = ""
    frozen: bool = False

    @property
    def span(self) -> int:
        """How many offsets the ranges span."""
        return sum(r.span for r in self.ranges.values())

    def lines(self) -> list[str]:
        """The plan in words."""
        about = f"{self.table} from {self.topic} ({self.origin}) {encode_ranges(self.ranges)}: {self.span:,} offsets"
        if self.frozen:
            return [about, *(f"slice   {s} (planned earlier)" for s in self.slices)]
        rows, exact = self.there
        takes = "unknown" if self.seconds is None else f"about {self.seconds:,.0f} s, and the start of each slice"
        kafka = f"is not needed, and can not be asked: {self.away}" if self.away else _lacks(self.not_in_kafka)
        cursor = f"ends at the table's cursor: the ingest DAG brings what lies behind, to {dict(self.beyond)}"
        return [
            about,
            *([f"cursor  {cursor}"] if self.beyond else []),
            f"records {self.records}",
            f"kafka   {kafka}",
            f"staging {_lacks(self.not_in_staging)}",
            f"table   {'' if exact else 'at most '}{rows:,} rows of the range are in it now",
            f"time    {takes}",
            *(f"slice   {s}" for s in self.slices),
        ]

    def promised(self) -> dict[str, Any]:
        """What the tasks that follow need to know, as JSON for XCom."""
        return {
            "table": self.table,
            "group": self.group,
            "topic": self.topic,
            "origin": str(self.origin),
            "slices": [s.seq for s in self.slices],
        }


def _lacks(holes: Mapping[int, Sequence[OffsetRange]]) -> str:
    return f"holds all but {encode_gaps(holes)}" if holes else "holds all of it"


def look(
    request: Request,
    contracts: Contracts,
    catalog: Catalog,
    client: AdminClient,
    ledger: Ledger | None,
    *,
    mapped: int = MOST_SLICES,
) -> Backfill:
    """Work out a backfill, changing nothing.

    Args:
        mapped: so many instances of a task Airflow maps.

    Raises:
        ContractError: no contract names the table, or what its pattern finds contradicts another one.
        RefusedError: with the reason, and what can be asked for instead.
        StagingTrimmedError: staging does not hold what is to be read from it.
        TopicRecreatedError: the topic is not the one that the table was filled from, and is to be read from Kafka.
        BrokerUnavailableError, TopicMissingError, TopicForbiddenError: likewise, where Kafka does not tell of it.
    """
    contract = contracts.table(request.table)
    if stop := contracts.stopped.get(contract.table):
        raise stop
    topic = _topic(request, contract)
    if request.origin == Origin.QUARANTINE and contract.drops_raw:
        raise RefusedError(
            "The quarantine holds no raw records (errors.raw: drop, the default where a column is masked).",
            table=contract.table,
            topic=topic,
            way_out="Backfill their offsets from staging, or from Kafka.",
        )
    typed = tables.load(catalog, table_names.typed(contract))
    through = cursor.published(typed, partial(ledger.remembered, contract.table) if ledger else None)
    state, away = _kafka(request, client, topic, through.get(topic))
    # First of all: a topic that was created again has other offsets.
    backfill_ranges.check_below(contract.table, Batch(topic, state.topic_id, -1, {}, {}), through.get(topic))
    staging = tables.load(catalog, table_names.staging(topic))
    known = slices.rows(ledger, topic)
    staged = slices.in_staging(staging, topic, known, ledger)
    quarantine = tables.load(catalog, table_names.quarantine(contract))
    began = backfill_ranges.cutover(ledger, staging, topic)
    sources = Sources(state, staged, began, quarantine, through[topic].next_offsets, staging, away)
    resolved = backfill_ranges.resolve(request, sources, client)
    ranges = resolved.ranges
    whole = Batch(topic, state.topic_id, -1, ranges, {})
    _check_open(contract, catalog, ledger, whole, through)
    backfill_ranges.check_below(contract.table, whole, through[topic])
    if request.origin == Origin.STAGING:
        backfill_ranges.check_held(contract.table, whole, staged)
    last = slices.last_number(catalog, contracts.topics[topic].tables, topic, known)
    lows = {p: m.start for p, m in state.watermarks.items()}
    gone = {p: [OffsetRange(r.start, min(r.end, lows[p]))] for p, r in ranges.items() if r.start < lows[p]}
    holes = slices.missing(ranges, staged)
    sparse = contracts.topics[topic].transactional or state.compacted
    count, records = figures.records(request.origin, whole, ledger, sparse, quarantine, None if holes else staging)
    return Backfill(
        table=contract.table,
        group=contract.group,
        topic=topic,
        origin=request.origin,
        ranges=ranges,
        slices=_slices(request, contracts, whole, last, quarantine, min(mapped, MOST_SLICES)),
        not_in_kafka=gone,
        not_in_staging=holes,
        records=records,
        there=figures.rows(typed, whole) if typed else (0, True),
        seconds=figures.seconds(ledger, contract.table, topic, count, known),
        beyond=resolved.beyond,
        away=away,
    )


def _kafka(request: Request, client: AdminClient, topic: str, at: Through | None) -> tuple[broker.TopicState, str]:
    """What Kafka says of the topic, and why it can't say it of the one that the table was filled from.

    What is read elsewhere needs no Kafka. In its place stands then a topic that holds no record, and may have lacked
    some, as far as the table has come.
    """
    try:
        state = broker.describe(client, [topic])[topic]
    except BrokerUnavailableError as error:
        state = error
    if request.needs_kafka and isinstance(state, SluiceError):
        raise state
    if isinstance(state, SluiceError):
        away = state.message
    elif request.needs_kafka or at is None or at.topic_id == state.topic_id:
        return state, ""
    else:
        away = f"Topic {topic!r} is not the one that the table was filled from."
    marks = {p: OffsetRange(end, end) for p, end in at.next_offsets.items()} if at else {}
    return broker.TopicState(topic, at.topic_id if at else "", marks, compacted=True, retention_ms=-1), away


def _topic(request: Request, contract: Contract) -> str:
    if request.topic and request.topic not in contract.topics:
        raise RefusedError(
            f"Topic {request.topic!r} does not feed the table.",
            table=contract.table,
            way_out=f"It is fed by {', '.join(contract.topics)}.",
        )
    if not request.topic and len(contract.topics) > 1:
        raise RefusedError(
            "Several topics feed the table.", table=contract.table, way_out=f"Name one: {', '.join(contract.topics)}."
        )
    return request.topic or contract.topics[0]


def _check_open(
    contract: Contract, catalog: Catalog, ledger: Ledger | None, whole: Batch, through: Mapping[str, Through]
) -> None:
    """Refuse what a batch is about to bring.

    Raises:
        RefusedError: with the batches' numbers.
    """
    broken: dict[str, SluiceError] = {}
    loaded = backlog.staged(catalog, [whole.topic], ledger, broken)
    if broken:
        raise broken[whole.topic]
    known, _ = backlog.known_batches([contract], loaded, {contract.table: through}, ledger)
    waiting = [b for seq, b in sorted(known[whole.topic].items()) if seq > through[whole.topic].seq]
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
            way_out="The ingest DAG brings these by itself; end the range before them.",
        )


def _slices(
    request: Request, contracts: Contracts, whole: Batch, last: int, quarantine: Table | None, most: int
) -> tuple[Batch, ...]:
    cap = contracts.topics[whole.topic].limits.records_per_batch
    if request.origin == Origin.QUARANTINE:
        pieces = backfill_ranges.cut_rejected(whole, quarantine, cap)
    else:
        pieces = cut(whole.ranges, cap, most + 1)
    if len(pieces) > most:
        raise RefusedError(
            f"The range makes more than {most:,} slices of records_per_batch each.",
            table=request.table,
            topic=whole.topic,
            way_out="Backfill a part of it at a time.",
        )
    return tuple(replace(whole, seq=last - 1 - i, ranges=piece) for i, piece in enumerate(pieces))


def write(
    request: Request,
    contracts: Contracts,
    catalog: Catalog,
    client: AdminClient,
    *,
    who: str,
    run_id: str,
    mapped: int = MOST_SLICES,
) -> Backfill:
    """Freeze the slices in the ledger by a compare-and-set; a run that has frozen its own already gets them again.

    Raises:
        RefusedError: as `look`; or no reason is given.
        PlanLostError: the ledger was written to each time before the slices could be.
    """
    if not request.why.strip():
        raise RefusedError("No reason is given.", table=request.table, way_out="Say why: it is kept in the ledger.")
    contract = contracts.table(request.table)
    topic = _topic(request, contract)
    for _ in range(ATTEMPTS):
        ledger = Ledger(catalog)
        own = slices.planned(slices.rows(ledger, topic), run_id)
        if own:
            return _again(request, contract, topic, tuple(own.values()))
        found = look(request, contracts, catalog, client, ledger, mapped=mapped)
        # A contract that was repaired comes into force before its records are brought again.
        evolve.settle(catalog, contract, run_id=run_id)
        rows = [row for s in found.slices for row in slices.plan_rows(s, contract.table, who=who, why=request.why)]
        try:
            ledger.append(rows, run_id=run_id, cas=True)
            return found
        except ConflictError:
            log.info("backfill: the ledger moved on, looking again")
    raise PlanLostError("The ledger never stood still long enough to write the slices.", run=run_id)


def _again(request: Request, contract: Contract, topic: str, own: tuple[Batch, ...]) -> Backfill:
    """The same slices once more; what was told when they were planned is not asked again."""
    ranges = joined_ranges(sorted(own, key=lambda s: -s.seq))
    name, group = contract.table, contract.group
    return Backfill(name, group, topic, request.origin, ranges, own, {}, {}, "", (0, False), None, frozen=True)
