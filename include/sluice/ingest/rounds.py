"""Rounds: with `schedule: continuous`, one Spark application plans, stages, publishes and settles again and again.

To the tables a round is a run like any other: its batches are frozen in the ledger first, and it may be killed at any
time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.errors import BatchOrderError, FencedError, PlanLostError, RetryableError, SluiceError
from sluice.iceberg import availability
from sluice.ingest import great_expectations, outcome, settle
from sluice.ingest.context import Context
from sluice.ingest.run import RunReport, carry_out
from sluice.plan import plan as planning
from sluice.plan import resolve_topics
from sluice.plan.model import GroupPlan, PlanInputs
from sluice.usage.meter import WRITE_EVERY_S

log = logging.getLogger(__name__)

CONTRACTS_EVERY_S = 30.0
"""How often the contracts are read again, and Kafka is asked for the topics of their patterns."""
OUTAGE_S = 120.0
"""How long Kafka or the catalog may be unavailable before the application fails, so that its task shows it."""
AFTER_ERROR_S = 2.0
FIRST_HOLD_S, LONGEST_HOLD_S = 60.0, 300.0
OVERTAKEN = (PlanLostError, FencedError, BatchOrderError)
"""What a rollback, an approved contract change or another driver does to a batch under way."""


class _Hold(NamedTuple):
    """Until when a failed table is left out, and for how many seconds that is."""

    error: SluiceError
    until: float
    seconds: float


class Holds:
    """Failed tables that the next rounds leave out: for a minute, then for two, up to five, the default schedule.

    A blocked batch would fail again each round, and fill the ledger. A table that was overtaken is tried once more
    in the next round, which plans from what its tables hold now.
    """

    def __init__(self) -> None:
        self._by_table: dict[str, _Hold] = {}

    def errors(self, now: float) -> dict[str, SluiceError]:
        """The tables to leave out, with the error of each."""
        return {name: hold.error for name, hold in self._by_table.items() if now < hold.until}

    def note(self, tried: Collection[str], failed: Mapping[str, Exception], now: float) -> None:
        """Note what became of the tables that a round has tried to publish.

        Args:
            tried: their names.
            failed: the errors of those that failed.
            now: `time.monotonic()`.
        """
        self.release({*tried} - failed.keys())
        for name, error in failed.items():
            last = self._by_table.get(name)
            if last:
                seconds = min(max(2 * last.seconds, FIRST_HOLD_S), LONGEST_HOLD_S)
            else:
                seconds = 0.0 if isinstance(error, OVERTAKEN) else FIRST_HOLD_S
            if not isinstance(error, SluiceError):
                error = RetryableError(f"{type(error).__name__}: {error}", table=name)  # noqa: PLW2901
            self._by_table[name] = _Hold(error, now + seconds, seconds)
            log.warning("%s is tried again in %.0f s: %s", name, seconds, error)

    def release(self, names: Iterable[str]) -> None:
        """Leave these tables out no longer, and forget their failures."""
        for name in names:
            self._by_table.pop(name, None)


class Term(NamedTuple):
    """How long the application stays.

    Attributes:
        seconds: after so many no further round begins.
        end_file: none begins either when this file exists, by which the task asks for its end.
    """

    seconds: float
    end_file: Path | None = None


def run(context: Context, group: str, client: AdminClient, term: Term) -> int:
    """Make rounds until the time is up. Returns the exit code.

    Args:
        group: its name; its settings say how often.
        client: for the watermarks.
        term: how long.

    Raises:
        TerminalError: no round can succeed before somebody acts.
        RetryableError: Kafka or the catalog was unavailable for `OUTAGE_S`.
    """
    rounds = _Rounds(context, group, client)
    next_round = time.monotonic()
    ends = next_round + term.seconds
    failing_since: float | None = None
    # It does not wait for the end of its time: until the next application starts, nothing is ingested.
    while next_round < ends and not (term.end_file and term.end_file.exists()):
        began = time.monotonic()
        try:
            with availability.translate_catalog_errors():
                every = rounds.make(ends)
            failing_since = None
        except RetryableError as error:
            failing_since = failing_since or began
            if began - failing_since > OUTAGE_S:
                raise
            log.warning("This round was not made: %s", error)
            every = AFTER_ERROR_S
        if not rounds.is_spark_alive():
            return 2
        next_round = max(began + every, time.monotonic())
        if next_round < ends:
            time.sleep(max(next_round - time.monotonic(), 0.0))
    return 0


class _Rounds:
    """The rounds of one application.

    Attributes:
        group: the group's name.
        holds: tables to leave out for a while.
    """

    def __init__(self, context: Context, group: str, client: AdminClient) -> None:
        self.context, self.group, self.client = context, group, client
        self.holds = Holds()
        self._contracts: Contracts | None = None
        self._read_next = 0.0
        self._number = 0
        self._report = RunReport()

    def make(self, ends: float) -> float:
        """Make one round, and return the seconds from its start to the start of the next one.

        Args:
            ends: `time.monotonic()` after which no further batch is started.
        """
        began = time.monotonic()
        self._report = RunReport()
        contracts = self._read_contracts()
        group, catalog, run_id = contracts.group(self.group), self.context.catalog, self.context.run_id
        held = self.holds.errors(began)
        inputs = PlanInputs(contracts, catalog, self.client, unready=held)
        plan = _leave_out(planning.write_plan(group, inputs, run_id=run_id), held)
        every = group.settings.continuous.every.total_seconds()
        if not plan.has_work:
            return every
        self._number += 1
        if self._number == 1:
            great_expectations.import_in_background(group.contracts)
        deadline = min(began + group.seconds, ends)
        planned = time.monotonic()
        self._report = report = carry_out(
            self.context, plan, contracts, deadline=deadline, at_once=group.settings.topics_at_once
        )
        done = time.monotonic()
        self.holds.note(plan.tables.keys(), report.failed, done)
        settle.settle_round(group, catalog, outcome.summarize_plan(plan), run_id=run_id)
        self.context.meter.write(catalog, every=WRITE_EVERY_S)
        log.info(
            "round %s: plan %.1f s, stage and publish %.1f s, settle %.1f s",
            self._number, planned - began, done - planned, time.monotonic() - done,
        )  # fmt: skip
        return every

    def is_spark_alive(self) -> bool:
        """Whether Spark still answers; asked only after a failure."""
        if not self._report.retryable:
            return True
        try:
            return bool(self.context.spark.range(1).count())
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            log.error("Spark does not answer after a failed round, so the application ends: %s", type(error).__name__)
            return False

    def _read_contracts(self) -> Contracts:
        """Read the contracts, from time to time. As in other runs, an invalid file stops its own tables alone.

        A table whose contract has changed is tried again at once.
        """
        if self._contracts and time.monotonic() < self._read_next:
            return self._contracts
        found = contract_folder.load_contracts(strict=False)
        found = resolve_topics.resolve(found, self.context.catalog, self.client)
        before = self._contracts.tables if self._contracts else {}
        self.holds.release(name for name, each in found.tables.items() if before.get(name) != each)
        self._contracts, self._read_next = found, time.monotonic() + CONTRACTS_EVERY_S
        return found


def _leave_out(plan: GroupPlan, held: Collection[str]) -> GroupPlan:
    return replace(plan, tables={name: each for name, each in plan.tables.items() if name not in held})
