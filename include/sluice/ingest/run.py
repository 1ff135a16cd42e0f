"""Run: one Spark application carries out a group's plan. For each topic it stages a batch and publishes it, in turns.

Topics take turns, a batch each, so that a long backlog does not delay the others. A table that fails is left out for
the rest of the run. The ledger is written once, at the end; the tables are right even if that is not reached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TypeVar

from confluent_kafka.admin import AdminClient
from pyspark.errors import AnalysisException

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts, Group
from sluice.errors import BlockedError, PlanLostError, SluiceError, TerminalError
from sluice.iceberg import table_names
from sluice.ingest import great_expectations
from sluice.ingest.context import Context
from sluice.ingest.publish import publish
from sluice.ingest.stage import stage
from sluice.ledger import error_causes
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.plan import model
from sluice.plan import plan as planning
from sluice.plan.model import PlanInputs, TopicPlan
from sluice.usage.costs_table import STAGE

log = logging.getLogger(__name__)
Result = TypeVar("Result")

MAX_TRIES = 4
# Another try would end the same: errors that need action, and queries that Spark can't plan.
NOT_RETRIED = (TerminalError, AnalysisException)
BUGS = (TypeError, NameError, NotImplementedError, AssertionError)
CATALOG_WAIT_S = 150.0
# Until a table has published in this run, a batch is estimated to take this many times as long as its staging.
PUBLISH_PER_STAGE = 3


@dataclass
class RunReport:
    """What a run did: the ledger's rows, and the error of each table that failed."""

    rows: list[LedgerRow] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)

    @property
    def retryable(self) -> Exception | None:
        """The first error that another try may cure, if any."""
        return next((e for e in self.failed.values() if not isinstance(e, NOT_RETRIED)), None)


def run(context: Context, group: Group, contracts: Contracts, client: AdminClient, *, deadline: float) -> RunReport:
    """Stage the batches that the ledger has planned, and publish what is staged.

    Args:
        deadline: `time.monotonic()` after which no further batch is started.
    """
    great_expectations.import_in_background(group.contracts)
    inputs = PlanInputs(contracts, context.catalog, client, Ledger(context.catalog))
    plan = planning.make_plan(group, inputs, extend=False)
    return carry_out(context, plan, contracts, deadline=deadline, at_once=group.settings.topics_at_once)


def carry_out(
    context: Context, plan: model.GroupPlan, contracts: Contracts, *, deadline: float, at_once: int
) -> RunReport:
    """Stage and publish the batches of a plan that is in the ledger.

    Args:
        deadline: `time.monotonic()` after which no further batch is started.
        at_once: how many topics are staged and published in parallel.
    """
    for line in plan.lines():
        log.info("%s", line)
    context.meter.count_run()
    group_run = _GroupRun(context, plan, contracts, deadline, at_once)
    with ThreadPoolExecutor(max_workers=group_run.at_once) as pool:
        for done in [pool.submit(group_run.work) for _ in range(group_run.at_once)]:
            done.result()
    Ledger(context.catalog).append(group_run.report.rows, run_id=context.run_id)
    return group_run.report


@dataclass
class _TableQueue:
    """The batches of one topic that wait for one table.

    Attributes:
        estimate: seconds to publish one batch, if there is a basis for it.
        published: whether this run has published any.
    """

    contract: Contract
    waiting: list[Batch]
    estimate: float | None = None
    published: bool = False

    def batches_in(self, seconds: float) -> int:
        """How many batches the next commit takes: several are cheaper together, but must not outlast the run."""
        if self.estimate is None:
            return 1
        return max(min(int(seconds / max(self.estimate, 0.001)), self.contract.limits.batches_per_commit), 1)


class _GroupRun:
    """One run of a group: what its topics share."""

    def __init__(
        self, context: Context, plan: model.GroupPlan, contracts: Contracts, deadline: float, at_once: int
    ) -> None:
        self.context, self.plan, self.contracts, self.deadline = context, plan, contracts, deadline
        self.report = RunReport()
        self.at_once = max(min(at_once, len(plan.topics)), 1)
        self._unfinished = set(plan.topics)
        self._turns: SimpleQueue[Iterator[None]] = SimpleQueue()
        for each in plan.topics.values():
            self._turns.put(self._topic(each))
        self._tables = {name: Lock() for name in plan.tables}
        self._records: dict[tuple[str, int], int | None] = {}

    def work(self) -> None:
        """Give topics their turns until each is done or in another thread's hands."""
        while True:
            try:
                turns = self._turns.get_nowait()
            except Empty:
                return
            if next(turns, self) is not self:
                self._turns.put(turns)

    def _topic(self, plan: TopicPlan) -> Iterator[None]:
        """Stage a topic's batches and publish them with the waiting ones, in order, several in a commit if time allows.

        Yields:
            After each batch, for the other topics' turns.
        """
        queues = [
            _TableQueue(t.contract, list(t.pending.get(plan.topic, ())))
            for t in self.plan.tables.values()
            if plan.topic in t.contract.topics
        ]
        failure: tuple[Batch, Exception] | None = None
        for number, batch in enumerate(plan.to_stage):
            if time.monotonic() > self.deadline:
                log.info("%s: out of time before batch %s; the next run continues", plan.topic, batch.seq)
                break
            began = time.monotonic()
            if error := self._stage(plan, batch):
                failure = batch, error
                break
            for queue in queues:
                if number == 0:
                    queue.estimate = PUBLISH_PER_STAGE * (time.monotonic() - began)
                queue.waiting.append(batch)
                self._publish_waiting(queue, all_staged=False)
            yield
        for queue in queues:
            self._publish_waiting(queue, all_staged=True)
        if failure:  # reported last, because earlier batches could still be published
            self._fail([q.contract.table for q in queues], *failure)
        self._unfinished.discard(plan.topic)

    def _publish_waiting(self, queue: _TableQueue, *, all_staged: bool) -> None:
        """Publish as many waiting batches as fill commits; if no more will be staged, the remaining ones too."""
        while queue.waiting and queue.contract.table not in self.report.failed:
            left = self.deadline - time.monotonic()
            if left < 0 and queue.published:
                log.info("%s: out of time; the next run continues", queue.contract.table)
                return
            # The remaining time is shared with the topics that take turns.
            most = queue.batches_in(left * self.at_once / max(len(self._unfinished), self.at_once))
            if len(queue.waiting) < most and not all_staged:
                return
            batches = queue.waiting[:most]
            began = time.monotonic()
            # If several are refused together, each is tried alone, so that the error names the one that is refused.
            if not self._publish(queue.contract, batches) and not (
                len(batches) > 1 and all(self._publish(queue.contract, [b]) for b in batches)
            ):
                return
            del queue.waiting[:most]
            queue.published = True
            queue.estimate = (time.monotonic() - began) / len(batches)

    def _stage(self, plan: TopicPlan, batch: Batch) -> Exception | None:
        """Stage one batch; returns the error, if there was one."""
        topic = batch.topic
        gaps = self.contracts.topics[topic].transactional or bool(plan.state and plan.state.compacted)
        epochs = plan.state.leader_epochs if plan.state else None
        staging = ".".join(table_names.staging(topic))
        try:
            with self.context.meter.step(STAGE, staging, topic) as usage:
                done = retry_step(
                    self.context,
                    f"stage {topic}",
                    lambda: stage(self.context, batch, gaps_expected=gaps, leader_epochs=epochs),
                    on_retry=partial(self._record_retry, batch, None),
                )
                usage.add_records(done.records)
        except Exception as error:
            log.error("stage   %s: %s", batch, error, exc_info=not isinstance(error, SluiceError))
            return error
        self._records[topic, batch.seq] = done.records
        if done.snapshot_id is None:
            log.info("stage   %s: was staged already", batch)
        else:
            log.info(
                "stage   %s: %s records in %.1f s, snapshot %s", batch, done.records, done.seconds, done.snapshot_id
            )
            oldest, newest = done.span or (None, None)
            self._row(
                batch, LedgerState.STAGED, records=done.records, seconds=done.seconds, oldest=oldest, newest=newest,
                unread=plan.unread(batch), commit_seconds=done.commit_seconds,
            )  # fmt: skip
        return None

    def _publish(self, contract: Contract, batches: Sequence[Batch]) -> bool:
        """Publish batches in one commit; returns whether the table holds them. A refusal of several is only logged."""
        name, last = contract.table, batches[-1]
        known = {b.seq: n for b in batches if (n := self._records.get((b.topic, b.seq))) is not None}
        try:
            with self._tables[name], self.context.meter.step("publish", name, last.topic) as usage:
                done = retry_step(
                    self.context,
                    f"publish {name}",
                    lambda: publish(self.context, contract, *batches, known_counts=known),
                    on_retry=partial(self._record_retry, last, name),
                )
                usage.add_records(sum(each.records for each in done.counts.values()))
        except Exception as error:
            if len(batches) > 1 and isinstance(error, TerminalError):
                log.info(
                    "publish %s: batches %s to %s are refused together, each is tried alone: %s",
                    name,
                    batches[0].seq,
                    last.seq,
                    error,
                )
                return False
            log.error("publish %s from %s: %s", name, last, error, exc_info=not isinstance(error, SluiceError))
            self._fail([name], last, error)
            return False
        if done.snapshot_id is None:
            log.info("publish %s from %s: was published already", name, last)
            return True
        for batch in batches:
            if (found := done.counts.get(batch.seq)) is None:
                continue
            seconds, commit = done.seconds / len(done.counts), (done.commit_seconds or 0.0) / len(done.counts)
            log.info(
                "publish %s from %s: %s records, %s rejected, in %.1f s, snapshot %s",
                name, batch, found.records, found.rejected, seconds, done.snapshot_id,
            )  # fmt: skip
            self._row(
                batch, LedgerState.PUBLISHED, table=name, snapshots={name: done.snapshot_id},
                records=found.records, rejected=found.rejected, seconds=seconds,
                commit_seconds=commit,
            )  # fmt: skip
        return True

    def _fail(self, names: Iterable[str], batch: Batch, error: Exception) -> None:
        state, counts = LedgerState.FAILED, dict[str, int | None]()
        if isinstance(error, BlockedError):
            state, counts = LedgerState.BLOCKED, {"records": error.records, "rejected": error.rejected}
        for name in names:
            self.report.failed.setdefault(name, error)
            self._row(batch, state, table=name, **counts, **error_causes.error_columns(error, name))

    def _record_retry(self, batch: Batch, table: str | None, error: Exception) -> None:
        """Write to the ledger that an outage of the catalog or the registry delayed the batch."""
        values = error_causes.error_columns(error, table)
        if error_causes.classify(values["exception"]):
            self._row(batch, LedgerState.RETRIED, table=table, **values)

    def _row(self, batch: Batch, state: LedgerState, **values: object) -> None:
        key = (batch.topic, state, batch.topic_id, batch.seq)
        self.report.rows.append(LedgerRow(*key, run_id=self.context.run_id, **values))  # type: ignore[arg-type]


def retry_step(
    context: Context,
    what: str,
    step: Callable[[], Result],
    tries: int = MAX_TRIES,
    *,
    on_retry: Callable[[Exception], None],
) -> Result:
    """Run a step until it succeeds or can't. Each step looks up what is done first, so running it again is safe.

    Args:
        what: the step's name in the log.
        on_retry: called with each error after which the step is run again.

    Raises:
        Exception: an error that another try can't cure, or the last try's.
    """
    for attempt in range(1, tries + 1):
        try:
            return step()
        except (*NOT_RETRIED, *BUGS, PlanLostError):  # a lost plan needs another run
            raise
        except Exception as error:
            if attempt == tries:
                raise
            first = (str(error).splitlines() or [type(error).__name__])[0]
            log.warning("%s: %s; retrying (%s of %s)", what, first[:300], attempt, tries)
            on_retry(error)
            _wait_for_catalog(context)
            time.sleep(min(0.2 * 4**attempt, 15.0))
    raise AssertionError("unreachable")


def _wait_for_catalog(context: Context) -> None:
    """Return when the catalog answers, at the latest after `CATALOG_WAIT_S`."""
    until = time.monotonic() + CATALOG_WAIT_S
    while time.monotonic() < until:
        try:
            context.catalog.list_namespaces()
            return
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            log.warning("the catalog does not answer (%s); waiting", str(error).splitlines()[0][:200])
            time.sleep(2.0)
