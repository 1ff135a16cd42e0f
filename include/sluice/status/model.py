"""What `status` knows, as plain values: one `TableStatus` per table, complete enough for a page or a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from sluice.batch import BATCH_SEQ, RUN_ID, STEP, Batch
from sluice.errors import ContractError, SluiceError, discreet
from sluice.offsets import OffsetRange
from sluice.plan.risk import RiskStatus
from sluice.status.redact import of_maintenance, without

KAFKA, CATALOG = "kafka", "catalog"
OF_PLANNER = ("problems", "risks", "schema")
"""Fields of a table's status that the planner tells."""


if TYPE_CHECKING:  # a page that shows a status need not load PyIceberg for it
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from sluice.ledger.offsets_table import Row
    from sluice.ledger.quality_table import Result


@dataclass
class PartitionStatus:
    """One partition of one topic; None where Kafka or the table could not be asked, or holds nothing yet."""

    partition: int
    low: int | None = None
    published: int | None = None
    staged: int | None = None
    end: int | None = None
    lag: int | None = None


@dataclass
class OpenBatch:
    """A batch under way. `state` is planned (not staged yet) or staged (not published in this table yet)."""

    topic: str
    batch: int
    state: str
    ranges: dict[int, OffsetRange]


@dataclass
class SliceStatus:
    """A slice of a backfill that is not in the table.

    Attributes:
        number: below zero.
        state: `planned` (to come, or lost with its application), `blocked`, `failed`; `unknown` without a ledger.
        branch: where the refused result stands to be looked at, until somebody drops it.
    """

    topic: str
    number: int
    state: str
    ranges: dict[int, OffsetRange]
    at: datetime | None
    run_id: str | None
    error: str | None
    branch: str | None

    @classmethod
    def of(cls, topic: str, number: int, piece: Batch | None, last: Row | None, branch: str | None) -> Self:
        """What the slice's newest row in the ledger tells; nothing but the branch where the ledger was lost."""
        ranges = dict(piece.ranges) if piece else {}
        if last is None:
            return cls(topic, number, "unknown", ranges, None, None, None, branch)
        return cls(topic, number, str(last.state), ranges, last.at, last.run_id, last.error, branch)


@dataclass
class GivenUp:
    """Lost offsets that an operator gave up; `who` is None where the ledger that knew was lost."""

    partition: int
    offsets: OffsetRange
    at: datetime
    who: str | None
    why: str | None

    @classmethod
    def of(cls, row: Row) -> Self:
        """What a row of the ledger tells."""
        offsets = OffsetRange(row.start_offset or 0, row.end_offset or 0)
        return cls(row.partition or 0, offsets, row.at, row.who, row.why)


@dataclass
class TopicStatus:
    """One topic that feeds a table.

    Attributes:
        lag_records: offsets in Kafka that the table does not hold.
        lag_seconds: stream clock less table clock; 0 where nothing is unread.
        late: per partition the unread offsets whose records are older than the freshness promise.
        problem: which of the table's problems is about this topic.
    """

    topic: str
    topic_id: str | None = None
    batch: int | None = None
    staged_batch: int | None = None
    partitions: list[PartitionStatus] = field(default_factory=list)
    lag_records: int | None = None
    lag_seconds: float | None = None
    stream_clock: datetime | None = None
    table_clock: datetime | None = None
    late: dict[int, int] | None = None
    given_up: list[GivenUp] = field(default_factory=list)
    problem: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether Kafka holds no record of it, as far as all of its partitions are known."""
        return bool(self.partitions) and all(p.end is not None and p.low == p.end for p in self.partitions)


@dataclass
class SnapshotStatus:
    """The last durable snapshot of a typed table that carries offsets."""

    snapshot_id: int
    at: datetime
    age_seconds: float
    topic: str | None
    batch: int | None
    ranges: dict[int, OffsetRange]
    records: int | None
    run_id: str | None
    step: str | None

    @classmethod
    def of(cls, metadata: TableMetadata, snapshot: Snapshot) -> Self:
        """What a snapshot tells of itself, and its table of when readers first saw it."""
        from sluice.iceberg import snapshots

        at = snapshots.landed_at(metadata, snapshot)
        properties = snapshots.summary(snapshot)
        batch = Batch.from_properties(properties) if BATCH_SEQ in properties else None
        return cls(
            snapshot_id=snapshot.snapshot_id,
            at=at,
            age_seconds=(datetime.now(UTC) - at).total_seconds(),
            topic=batch.topic if batch else None,
            batch=batch.seq if batch else None,
            ranges=dict(batch.ranges) if batch else {},
            records=int(properties.get("added-records", "0")),
            run_id=properties.get(RUN_ID),
            step=properties.get(STEP),
        )


@dataclass
class LastError:
    """The last row of the ledger that tells of a refusal of one topic's batch.

    Attributes:
        open: while the batch it is about is not published.
        runs: how many runs were refused in a row for that batch, whatever came of other topics in them.
    """

    at: datetime
    state: str
    topic: str
    batch: int | None
    error: str | None
    run_id: str | None
    open: bool
    runs: int = 1

    @classmethod
    def of(cls, rows: Sequence[Self], published: int | None) -> Self:
        """Where one topic stands in a table.

        Args:
            rows: what was refused of it, the oldest first; not open what was published since, and rolled back perhaps.
            published: its newest batch in the table; None where that is not known.
        """
        newest = [r for r in rows if r.run_id == rows[-1].run_id]
        # One run may refuse several: a commit of many, then the first of them alone, or what comes to staging later.
        waiting = [r for r in newest if r.open and (published is None or r.batch is None or r.batch > published)]
        stuck = min(reversed(waiting or newest[-1:]), key=lambda each: each.batch or 0)
        runs = {r.run_id for r in rows if (r.batch, r.open) == (stuck.batch, stuck.open)}
        return replace(stuck, open=bool(waiting), runs=len(runs))

    @property
    def urgency(self) -> tuple[bool, bool, int, datetime]:
        """The greater, the worse: what is cured comes last; no run cures what is blocked."""
        return self.open, self.open and self.state == "blocked", self.runs if self.open else 0, self.at


@dataclass
class MaintenanceStatus:
    """The last time that an action of maintenance did something in a table, or failed.

    `of` is empty for the typed table itself, else one of those that belong to it: quarantine, deletes, staging.
    """

    action: str
    at: datetime
    state: str
    told: str
    of: str = ""


@dataclass
class Judgement:
    """What the expectations of the batch that was judged last came to; `failed` tells each that does not hold."""

    topic: str
    batch: int
    at: datetime
    held: int
    not_judged: int
    failed: list[str]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Self:
        """What a batch's results tell."""
        return cls(
            results[0].topic,
            results[0].batch_seq,
            results[0].at,
            sum(r.success is True for r in results),
            sum(r.success is None for r in results),
            [f"{r.severity}: {r.told}" for r in results if r.success is False],
        )


@dataclass
class TableStatus:
    """One table. `problems` is what the next run would stop for, or could not be asked; `risks` what may come.

    `totals` is what its newest snapshot says of the whole: records, files, bytes, delete files. `schema` is what the
    contract asks of the table, where that is due, under review, or was rejected. `day_records` are those of the batches
    that were published within the last 24 hours, `day_rejected` what of them was set apart then, `day_apart` what of
    that is in quarantine now. `unasked` names who did not answer (`KAFKA`, `CATALOG`): what they know is missing, or
    not all there; with `as_of`, what they told then.
    `last_error` is the worst of its topics' refusals, `further_errors` are the others of them that are open.
    `expectations` is of the topic that was judged last, `further_expectations` are those of others that do not hold.
    """

    table: str
    group: str
    mode: str
    owner: str
    exists: bool | None = None
    topics: list[TopicStatus] = field(default_factory=list)
    snapshot: SnapshotStatus | None = None
    totals: dict[str, int] = field(default_factory=dict)
    open_batches: list[OpenBatch] = field(default_factory=list)
    slices: list[SliceStatus] = field(default_factory=list)
    quarantined: int | None = None
    day_records: int = 0
    day_rejected: int = 0
    day_apart: int | None = None
    maintenance: list[MaintenanceStatus] = field(default_factory=list)
    expectations: Judgement | None = None
    further_expectations: list[Judgement] = field(default_factory=list)
    last_error: LastError | None = None
    further_errors: list[LastError] = field(default_factory=list)
    freshness_promised_seconds: float | None = None
    freshness_now_seconds: float | None = None
    freshness_kept: bool | None = None
    problems: list[str] = field(default_factory=list)
    risks: list[RiskStatus] = field(default_factory=list)
    schema: str | None = None
    unasked: list[str] = field(default_factory=list)
    as_of: datetime | None = None

    @property
    def warnings(self) -> list[str]:
        """What may come, in words."""
        return [each.text for each in self.risks]

    @property
    def unknown(self) -> bool:
        """Whether Kafka or the catalog did not tell where it stands now, or not all of it."""
        return self.as_of is not None or self.exists is None or self.lag_records is None or CATALOG in self.unasked

    @property
    def refusals(self) -> list[LastError]:
        """What is open of each topic, the worst first."""
        return [each for each in (self.last_error, *self.further_errors) if each and each.open]

    @property
    def doubts(self) -> list[Judgement]:
        """What does not hold in the last batch of each topic."""
        return [each for each in (self.expectations, *self.further_expectations) if each and each.failed]

    @property
    def furthest(self) -> TopicStatus | None:
        """The topic that the table is furthest behind of, as far as is known."""
        return max(self.topics, key=lambda t: -1.0 if t.lag_seconds is None else t.lag_seconds, default=None)

    @property
    def lag_records(self) -> int | None:
        """Unread offsets over all topics; None where one of them, or which there are, could not be asked."""
        lags = [t.lag_records for t in self.topics]
        return None if None in lags or not lags else sum(lag for lag in lags if lag is not None)

    def without(self, names: Collection[str] | None) -> Self:
        """The same table, told without the names of others."""
        if names is None:
            return self
        # Its topics may be called as others' tables are. A problem may be about both, and says which is a topic.
        others = frozenset(names) - {t.topic for t in self.topics}

        def refused(each: LastError) -> LastError:
            return replace(each, error=each.error and without(each.error, others))

        return replace(
            self,
            topics=[replace(t, problem=without(t.problem, names)) if t.problem else t for t in self.topics],
            slices=[replace(s, error=without(s.error, others)) if s.error else s for s in self.slices],
            maintenance=[replace(m, told=of_maintenance(m.told, names)) for m in self.maintenance],
            last_error=self.last_error and refused(self.last_error),
            further_errors=[refused(each) for each in self.further_errors],
            problems=[without(each, names) for each in self.problems],
            # A topic that the contract names no more may be called as another's table.
            risks=[replace(r, topic=without(r.topic, others), text=without(r.text, others)) for r in self.risks],
        )


@dataclass
class Status:
    """All tables asked for.

    Attributes:
        unavailable: what did not answer.
        stopped: what keeps the tables of a pattern from being known, each with its group.
        broken: contracts that can't be read: their tables are not among those told of.
        unasked: who did not answer, `KAFKA` or `CATALOG`.
        unread: fields of the tables' status whose source failed, though the catalog answers: they are empty.
        unclaimed: staging tables of topics that no contract reads any more; on the command line alone.
        unseen: the names, as far as known, of those that whoever it is told to may not see; None: they may see all.
    """

    at: datetime
    tables: list[TableStatus]
    unavailable: list[SluiceError] = field(default_factory=list)
    stopped: list[tuple[str, SluiceError]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unclaimed: list[str] = field(default_factory=list)
    unseen: frozenset[str] | None = None

    @property
    def errors(self) -> list[SluiceError]:
        """Why not all is told."""
        return [*self.unavailable, *(error for _, error in self.stopped)]

    def readable(self, groups: Callable[[str], bool]) -> Status:
        """What somebody may know who may read these groups: not what stands in a contract that nobody can read."""
        mine = [t for t in self.tables if groups(t.group)]
        stopped = [(group, error) for group, error in self.stopped if groups(group)]
        # Nor are those known that stand in a contract which can't be read, or are a template's that is stopped.
        whole = (len(mine), len(stopped)) == (len(self.tables), len(self.stopped)) and not self.broken
        unseen = None if whole else frozenset(t.table for t in self.tables) - {t.table for t in mine}
        unavailable = [
            type(e)(without(discreet(e.message), unseen), way_out=e.way_out, **e.fields) for e in self.unavailable
        ]
        if self.broken:
            count = "1 problem" if len(self.broken) == 1 else f"{len(self.broken):,} problems"
            text = f"{count} in contracts: the tables concerned are not shown."
            unavailable.append(ContractError(text, way_out="`python -m sluice contract check` names them."))
        return replace(
            self,
            tables=[t.without(unseen) for t in mine],
            unavailable=unavailable,
            stopped=stopped,
            broken=[],
            unclaimed=[],
            unseen=unseen,
        )
