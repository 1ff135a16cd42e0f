"""The status of the tables as plain values; their field names are those of the JSON API."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from sluice.batch import BATCH_SEQ, RUN_ID, STEP, Batch
from sluice.errors import ContractError, SluiceError
from sluice.offsets import OffsetRange
from sluice.plan.risk import RiskStatus
from sluice.status.open_work import IngestRun, OpenBatch, SliceStatus
from sluice.status.redact import hide_names, redact_maintenance, without_paths

KAFKA, CATALOG = "kafka", "catalog"
PLANNER_FIELDS = ("problems", "risks", "schema", "schema_state")  # fields of `TableStatus` that come from the planner

if TYPE_CHECKING:  # pages do not load PyIceberg to show a status
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from sluice.ledger.ledger_rows import LedgerRow
    from sluice.ledger.quality_table import ExpectationResult


@dataclass
class PartitionStatus:
    """Offsets of one partition; None where Kafka or the table did not answer, or has none yet."""

    partition: int
    low: int | None = None
    published: int | None = None
    staged: int | None = None
    end: int | None = None
    lag: int | None = None


@dataclass
class AcceptedGap:
    """Lost offsets that an operator accepted; `who` is None if the ledger was rebuilt without that row."""

    partition: int
    offsets: OffsetRange
    at: datetime
    who: str | None
    why: str | None

    @classmethod
    def from_row(cls, row: LedgerRow) -> Self:
        """Build it from a ledger row."""
        offsets = OffsetRange(row.start_offset or 0, row.end_offset or 0)
        return cls(row.partition or 0, offsets, row.at, row.who, row.why)


@dataclass
class TopicStatus:
    """One topic that feeds a table.

    Attributes:
        lag_records: offsets in Kafka that are not in the table.
        lag_seconds: stream clock minus table clock; 0 without unread offsets.
        late: unread offsets per partition whose records are older than the freshness target.
        problem: the table's problem that is about this topic.
        awaited: whether Kafka has no such topic, and no run has created the table yet.
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
    given_up: list[AcceptedGap] = field(default_factory=list)
    problem: str | None = None
    awaited: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether all partitions are known, and none holds a record."""
        return bool(self.partitions) and all(p.end is not None and p.low == p.end for p in self.partitions)


@dataclass
class SnapshotStatus:
    """The last commit of a typed table with offsets.

    It added `records` rows and removed `removed`: deleted ones, and earlier versions of added ones.
    """

    snapshot_id: int
    at: datetime
    age_seconds: float
    topic: str | None
    batch: int | None
    ranges: dict[int, OffsetRange]
    records: int | None
    run_id: str | None
    step: str | None
    removed: int = 0

    @classmethod
    def from_snapshot(cls, metadata: TableMetadata, snapshot: Snapshot) -> Self:
        """Build it from a snapshot's summary; the time is when readers first saw it."""
        from sluice.iceberg import snapshots

        at, properties = snapshots.visible_at(metadata, snapshot), snapshots.summary(snapshot)
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
            removed=snapshots.count_removed_rows(properties),
        )


@dataclass
class LastError:
    """The last ledger row with a blocked or failed batch of a topic.

    Attributes:
        open: whether the batch is still not published.
        runs: consecutive runs in which this batch was blocked or failed.
        exception: the class of the error, with its package.
        decided_by: who decided to publish the blocked batch anyway; None if nobody has.
        decided_at: when.
    """

    at: datetime
    state: str
    topic: str
    batch: int | None
    error: str | None
    run_id: str | None
    open: bool
    runs: int = 1
    exception: str | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None

    @classmethod
    def from_errors(cls, rows: Sequence[Self], published: int | None) -> Self:
        """Reduce the errors of a topic to the one that matters.

        Args:
            rows: oldest first; a row whose batch was published since is not open.
            published: the topic's newest batch in the table; None if unknown.
        """
        newest = [r for r in rows if r.run_id == rows[-1].run_id]
        # One run may record several: a commit of many batches, then the first alone, or batches staged later.
        waiting = [r for r in newest if r.open and (published is None or r.batch is None or r.batch > published)]
        stuck = min(reversed(waiting or newest[-1:]), key=lambda each: each.batch or 0)
        runs = {r.run_id for r in rows if (r.batch, r.open) == (stuck.batch, stuck.open)}
        return replace(stuck, open=bool(waiting), runs=len(runs))

    @property
    def urgency(self) -> tuple[bool, bool, int, datetime]:
        """Sort key, the worst greatest: open before resolved, blocked before failed."""
        return self.open, self.open and self.state == "blocked", self.runs if self.open else 0, self.at


@dataclass
class MaintenanceStatus:
    """The last maintenance action on a table that changed something or failed.

    `of` is empty for the typed table, else the name of its quarantine, deletes or staging table.
    """

    action: str
    at: datetime
    state: str
    told: str
    of: str = ""


@dataclass
class ExpectationsSummary:
    """The expectations of the last evaluated batch; `held` counts passed ones, `failed` describes failures."""

    topic: str
    batch: int
    at: datetime
    held: int
    not_judged: int
    failed: list[str]

    @classmethod
    def from_results(cls, results: Sequence[ExpectationResult]) -> Self:
        """Build it from the results of one batch."""
        return cls(
            results[0].topic,
            results[0].batch_seq,
            results[0].at,
            sum(r.success is True for r in results),
            sum(r.success is None for r in results),
            [f"{r.severity}: {r.summary}" for r in results if r.success is False],
        )


@dataclass
class TableStatus:
    """The status of one table.

    Attributes:
        totals: of the newest snapshot: records, files, bytes, delete files, records marked as deleted.
        day_records: records of batches published within the last 24 hours.
        day_rejected: records of these batches that were quarantined.
        day_apart: how many of those are still quarantined.
        expectations: of the topic evaluated last.
        further_expectations: of other topics, if any failed.
        last_error: the worst error of its topics.
        further_errors: open errors of other topics.
        problems: errors that stop the next run, or that kept the status from being read.
        risks: what may go wrong later.
        schema: the contract change that is due, under review, or rejected.
        schema_state: `open` (under review), `rejected`, or `due`; None if nobody can do anything about it.
        unasked: the sources (`KAFKA`, `CATALOG`) that did not answer, or only in part.
        as_of: the time of the values that are kept from an earlier status.
        paused: whether the DAG that ingests it is paused; only where Airflow can be asked.
        scheduled: whether that DAG has a schedule; True where Airflow can't be asked.
        waits_for_pool: the pool without a free slot that a run of this DAG waits for; likewise.
        run: the newest run of this DAG that has not ended; likewise.
        failed_run: the last run of this DAG that ended, if it failed before any table had an outcome; likewise.
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
    expectations: ExpectationsSummary | None = None
    further_expectations: list[ExpectationsSummary] = field(default_factory=list)
    last_error: LastError | None = None
    further_errors: list[LastError] = field(default_factory=list)
    freshness_promised_seconds: float | None = None
    freshness_now_seconds: float | None = None
    freshness_kept: bool | None = None
    problems: list[str] = field(default_factory=list)
    risks: list[RiskStatus] = field(default_factory=list)
    schema: str | None = None
    schema_state: str | None = None
    unasked: list[str] = field(default_factory=list)
    as_of: datetime | None = None
    paused: bool = False
    scheduled: bool = True
    waits_for_pool: str | None = None
    run: IngestRun | None = None
    failed_run: IngestRun | None = None

    @property
    def warnings(self) -> list[str]:
        """The risks as text."""
        return [each.text for each in self.risks]

    @property
    def unknown(self) -> bool:
        """Whether Kafka or the catalog did not answer, or only in part."""
        return self.as_of is not None or self.exists is None or self.lag_records is None or CATALOG in self.unasked

    @property
    def open_errors(self) -> list[LastError]:
        """The open errors of its topics, the worst first."""
        return [each for each in (self.last_error, *self.further_errors) if each and each.open]

    @property
    def within_target(self) -> bool | None:
        """Whether the table is within its freshness target, as pages show it; None if it is not known.

        A topic that resumes after a quiet day is far ahead of the table until the next run: no unread record is late.
        But where no run publishes them, the table is as old as it looks.
        """
        target, now = self.freshness_promised_seconds, self.freshness_now_seconds
        held_up = bool(self.open_errors or self.problems or self.paused or self.failed_run)
        if self.freshness_kept and held_up and target is not None and now is not None and now > target:
            return False
        return self.freshness_kept

    @property
    def failed_expectations(self) -> list[ExpectationsSummary]:
        """The expectations that failed in the last batch of each topic."""
        return [each for each in (self.expectations, *self.further_expectations) if each and each.failed]

    @property
    def most_delayed_topic(self) -> TopicStatus | None:
        """The topic with the greatest known lag in seconds."""
        return max(self.topics, key=lambda t: -1.0 if t.lag_seconds is None else t.lag_seconds, default=None)

    @property
    def lag_records(self) -> int | None:
        """Unread offsets over all topics; None if the lag of any topic is unknown."""
        lags = [t.lag_records for t in self.topics]
        return None if None in lags or not lags else sum(lag for lag in lags if lag is not None)

    def hide_tables(self, names: Collection[str] | None) -> Self:
        """Replace the names of other tables in all texts."""
        if names is None:
            return self
        # A topic may have the name of another table. `hide_names` keeps a name that follows the word "topic".
        others = frozenset(names) - {t.topic for t in self.topics}

        def redact_error(each: LastError) -> LastError:
            return replace(each, error=each.error and hide_names(each.error, others))

        return replace(
            self,
            topics=[replace(t, problem=hide_names(t.problem, names)) if t.problem else t for t in self.topics],
            slices=[replace(s, error=hide_names(s.error, others)) if s.error else s for s in self.slices],
            maintenance=[replace(m, told=redact_maintenance(m.told, names)) for m in self.maintenance],
            last_error=self.last_error and redact_error(self.last_error),
            further_errors=[redact_error(each) for each in self.further_errors],
            problems=[hide_names(each, names) for each in self.problems],
            # A topic that the contract no longer reads may have the name of another table.
            risks=[replace(r, topic=hide_names(r.topic, others), text=hide_names(r.text, others)) for r in self.risks],
        )


@dataclass
class Status:
    """The status of the requested tables.

    Attributes:
        unavailable: errors of sources that did not answer.
        stopped: errors of a whole group, with its name: the topics of a pattern can't be known, or its pool is missing.
        broken: problems of contracts that cannot be read; their tables are missing.
        unasked: the sources that did not answer: `KAFKA`, `CATALOG`.
        unread_fields: fields of `TableStatus` whose source failed although the catalog answers; they are empty.
        unclaimed: staging tables of topics that no contract reads any more; only on the command line.
        hidden_tables: names of tables that the reader may not see; None: the reader may see all.
    """

    at: datetime
    tables: list[TableStatus]
    unavailable: list[SluiceError] = field(default_factory=list)
    stopped: list[tuple[str, SluiceError]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    unread_fields: list[str] = field(default_factory=list)
    unclaimed: list[str] = field(default_factory=list)
    hidden_tables: frozenset[str] | None = None

    @property
    def errors(self) -> list[SluiceError]:
        """The reasons why something is missing."""
        return [*self.unavailable, *(error for _, error in self.stopped)]

    def filter_groups(self, may_read: Callable[[str], bool]) -> Status:
        """Reduce it to the groups that a user may read, without the names of other tables."""
        visible = [t for t in self.tables if may_read(t.group)]
        stopped = [(group, error) for group, error in self.stopped if may_read(group)]
        # A broken contract belongs to no known group: its user might not be allowed to see it.
        sees_all = (len(visible), len(stopped)) == (len(self.tables), len(self.stopped)) and not self.broken
        hidden = None if sees_all else frozenset(t.table for t in self.tables) - {t.table for t in visible}
        unavailable = [
            type(e)(hide_names(without_paths(e.message), hidden), next_step=e.next_step, **e.fields)
            for e in self.unavailable
        ]
        if self.broken:
            count = "1 problem" if len(self.broken) == 1 else f"{len(self.broken):,} problems"
            text = f"{count} in contracts. Their tables are not shown."
            unavailable.append(ContractError(text, next_step="Run `sluice contract check`."))
        return replace(
            self,
            tables=[t.hide_tables(hidden) for t in visible],
            unavailable=unavailable,
            stopped=stopped,
            broken=[],
            unclaimed=[],
            hidden_tables=hidden,
        )
