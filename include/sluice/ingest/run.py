"""One Spark application carries out a group's plan: for each topic, stage a batch, then publish it into its tables.

The topics take turns, a batch each, so that one that is far behind keeps no other waiting. A table that fails is left
out for the rest of the run, and the others go on. What happened is written to the ledger in one commit; what is true is
in the tables all the same, should the application not live to write it.
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
from sluice.ingest import great_expectations
from sluice.ingest.landing import Context
from sluice.ingest.publish import publish
from sluice.ingest.stage import stage
from sluice.ledger import error_causes
from sluice.ledger.offsets_table import Ledger, Row, State
from sluice.plan import model
from sluice.plan import plan as planning
from sluice.plan.model import TopicPlan

log = logging.getLogger(__name__)
Result = TypeVar("Result")

TRIES = 4
# What it would be once more: what needs a person, and a plan that Spark can't make.
FINAL = (TerminalError, AnalysisException)
CATALOG_WAIT_S = 150.0
# Before a run has published anything, a batch is taken to cost so many times the seconds that its staging took.
PUBLISH_PER_STAGE = 3


@dataclass
class Report:
    """What a run did: ledger rows, and the tables and topics that failed, with the error."""

    rows: list[Row] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)

    @property
    def retryable(self) -> Exception | None:
        """An error that another try may cure, if there was one."""
        return next((e for e in self.failed.values() if not isinstance(e, FINAL)), None)


def run(context: Context, group: Group, contracts: Contracts, client: AdminClient, *, deadline: float) -> Report:
    """Carry out what is frozen in the ledger and what is staged but not published.

    Args:
        deadline: `time.monotonic()` after which no further batch is begun.
    """
    ledger = Ledger(context.catalog)
    great_expectations.warm(group.contracts)
    plan = planning.look(group, contracts, context.catalog, client, ledger, extend=False)
    for line in plan.lines():
        log.info("%s", line)
    worker = _Worker(context, plan, contracts, deadline, group.settings.topics_at_once)
    with ThreadPoolExecutor(max_workers=worker.at_once) as pool:
        for done in [pool.submit(worker.work) for _ in range(worker.at_once)]:
            done.result()
    ledger.append(worker.report.rows, run_id=context.run_id)
    return worker.report


@dataclass
class _Feed:
    """What one topic has for one table.

    Attributes:
        guess: seconds to publish one batch, where there is something to tell by.
        published: whether this run has published anything for it.
    """

    contract: Contract
    waiting: list[Batch]
    guess: float | None = None
    published: bool = False

    def fitting(self, seconds: float) -> int:
        """How many batches the next commit takes: together they are cheaper, but must not outlast the run."""
        if self.guess is None:
            return 1
        return max(min(int(seconds / max(self.guess, 0.001)), self.contract.limits.batches_per_commit), 1)


class _Worker:
    """The state that the topics of one run share."""

    def __init__(
        self, context: Context, plan: model.GroupPlan, contracts: Contracts, deadline: float, at_once: int
    ) -> None:
        self.context, self.plan, self.contracts, self.deadline = context, plan, contracts, deadline
        self.report = Report()
        self.at_once = max(min(at_once, len(plan.topics)), 1)
        self._unfinished = set(plan.topics)
        self._turns: SimpleQueue[Iterator[None]] = SimpleQueue()
        for each in plan.topics.values():
            self._turns.put(self._topic(each))
        self._tables = {name: Lock() for name in plan.tables}
        self._records: dict[tuple[str, int], int | None] = {}

    def work(self) -> None:
        """Give each topic a turn after the other until all are done, or those that are not are somebody else's."""
        while True:
            try:
                turns = self._turns.get_nowait()
            except Empty:
                return
            if next(turns, self) is not self:
                self._turns.put(turns)

    def _topic(self, plan: TopicPlan) -> Iterator[None]:
        """Stage one topic's batches and publish them with those that waited, in order, as many at a time as fit.

        Yields:
            After each batch, for the other topics' turns.
        """
        feeds = [
            _Feed(t.contract, list(t.pending.get(plan.topic, ())))
            for t in self.plan.tables.values()
            if plan.topic in t.contract.topics
        ]
        failure: tuple[Batch, Exception] | None = None
        for number, batch in enumerate(plan.to_stage):
            if time.monotonic() > self.deadline:
                log.info(
                    "%s: the time of this run is used up before batch %s; the next run goes on", plan.topic, batch.seq
                )
                break
            began = time.monotonic()
            if error := self._stage(plan, batch):
                failure = batch, error
                break
            for feed in feeds:
                if number == 0:
                    feed.guess = PUBLISH_PER_STAGE * (time.monotonic() - began)
                feed.waiting.append(batch)
                self._publish_waiting(feed, rest=False)
            yield
        for feed in feeds:
            self._publish_waiting(feed, rest=True)
        if failure:  # only now: what was staged before it could still be published
            self._fail([f.contract.table for f in feeds], *failure)
        self._unfinished.discard(plan.topic)

    def _publish_waiting(self, feed: _Feed, *, rest: bool) -> None:
        """Publish full commits of waiting batches, and what is left over where `rest` says that no more will come."""
        while feed.waiting and feed.contract.table not in self.report.failed:
            left = self.deadline - time.monotonic()
            if left < 0 and feed.published:
                log.info("%s: the time of this run is used up; the next run goes on", feed.contract.table)
                return
            # What is left is shared with the topics whose turns come in between.
            most = feed.fitting(left * self.at_once / max(len(self._unfinished), self.at_once))
            if len(feed.waiting) < most and not rest:
                return
            batches = feed.waiting[:most]
            began = time.monotonic()
            # Several that are refused are tried one by one: the good ones get in, and the error names the one it is.
            if not self._publish(feed.contract, batches) and not (
                len(batches) > 1 and all(self._publish(feed.contract, [b]) for b in batches)
            ):
                return
            del feed.waiting[:most]
            feed.published = True
            feed.guess = (time.monotonic() - began) / len(batches)

    def _stage(self, plan: TopicPlan, batch: Batch) -> Exception | None:
        """Stage one batch; returns what went wrong, if it did."""
        topic = batch.topic
        gaps = self.contracts.topics[topic].transactional or bool(plan.state and plan.state.compacted)
        try:
            done = again(
                self.context,
                f"stage {topic}",
                lambda: stage(self.context, batch, gaps_expected=gaps),
                retried=partial(self._retried, batch, None),
            )
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
                batch, State.STAGED, records=done.records, seconds=done.seconds, oldest=oldest, newest=newest,
                unread=plan.unread(batch), commit_seconds=done.commit_seconds,
            )  # fmt: skip
        return None

    def _publish(self, contract: Contract, batches: Sequence[Batch]) -> bool:
        """Publish batches in one commit; whether the table holds them now. Of several, a refusal is only logged."""
        name, last = contract.table, batches[-1]
        staged = {b.seq: n for b in batches if (n := self._records.get((b.topic, b.seq))) is not None}
        try:
            with self._tables[name]:
                done = again(
                    self.context,
                    f"publish {name}",
                    lambda: publish(self.context, contract, *batches, staged=staged),
                    retried=partial(self._retried, last, name),
                )
        except Exception as error:
            if len(batches) > 1 and isinstance(error, TerminalError):
                log.info("publish %s: batches %s to %s together: %s", name, batches[0].seq, last.seq, error)
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
                batch, State.PUBLISHED, table=name, snapshots={name: done.snapshot_id},
                records=found.records, rejected=found.rejected, seconds=seconds,
                commit_seconds=commit,
            )  # fmt: skip
        return True

    def _fail(self, names: Iterable[str], batch: Batch, error: Exception) -> None:
        for name in names:
            self.report.failed.setdefault(name, error)
            state = State.BLOCKED if isinstance(error, BlockedError) else State.FAILED
            self._row(batch, state, table=name, **error_causes.facts(error, name))

    def _retried(self, batch: Batch, table: str | None, error: Exception) -> None:
        """Keep what the catalog or the registry made fail: a batch that was waited for has its reason in the ledger."""
        kept = error_causes.facts(error, table)
        if error_causes.cause(kept["exception"]):
            self._row(batch, State.RETRIED, table=table, **kept)

    def _row(self, batch: Batch, state: State, **values: object) -> None:
        known = (batch.topic, state, batch.topic_id, batch.seq)
        self.report.rows.append(Row(*known, run_id=self.context.run_id, **values))  # type: ignore[arg-type]


def again(
    context: Context,
    what: str,
    step: Callable[[], Result],
    tries: int = TRIES,
    *,
    retried: Callable[[Exception], None],
) -> Result:
    """Run a step until it ends or fails for good. Each looks at what is true first, so that trying again is safe.

    Args:
        retried: is told of each error after which the step is run again.
    """
    for attempt in range(1, tries + 1):
        try:
            return step()
        except (*FINAL, PlanLostError):  # a plan that was lost needs another run
            raise
        except Exception as error:
            if attempt == tries:
                raise
            first = (str(error).splitlines() or [type(error).__name__])[0]
            log.warning("%s: %s; looking again (%s of %s)", what, first[:300], attempt, tries)
            retried(error)
            _wait_for_catalog(context)
            time.sleep(min(0.2 * 4**attempt, 15.0))
    raise AssertionError("unreachable")


def _wait_for_catalog(context: Context) -> None:
    """Return when the catalog answers, or when it has been away for too long."""
    until = time.monotonic() + CATALOG_WAIT_S
    while time.monotonic() < until:
        try:
            context.catalog.list_namespaces()
            return
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            log.warning("the catalog is away (%s); waiting", str(error).splitlines()[0][:200])
            time.sleep(2.0)
