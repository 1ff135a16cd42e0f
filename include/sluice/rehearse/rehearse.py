"""Rehearses scenarios on a copy of a table, one after another, and drops the copy at the end, whatever happens."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.errors import ConfigError, RefusedError, SluiceError, first_line
from sluice.kafka import broker
from sluice.ledger import pilot_table
from sluice.ledger.pilot_table import PilotRow, Stage
from sluice.rehearse import namespaces
from sluice.rehearse.scenarios import SCENARIOS, Rehearsal, Skipped, Step, UnexpectedError, encode
from sluice.rehearse.table_copy import CopySource, TableCopy

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

    from sluice.contract.folder import Contracts
    from sluice.offsets import Ranges

log = logging.getLogger(__name__)

RECORDS = 10_000
"""So many records before the end of each partition are rehearsed with."""


class State(StrEnum):
    """How a scenario ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended.

    Attributes:
        expected: the expected outcome.
        actual: what happened, or why the scenario was skipped.
    """

    scenario: str
    expected: str
    actual: str
    state: State
    seconds: float


@dataclass(frozen=True)
class Request:
    """What is to be rehearsed.

    Attributes:
        scenarios: their names; empty: all.
        records: how many records before the end of each partition the copy begins.
        keep: leave the copy for a look at it.
        drop_left: first drop what an earlier rehearsal of the table left.
        environment: for the commands on the copy.
        who, run_id: recorded with the outcome.
    """

    table: str
    scenarios: Sequence[str] = ()
    records: int = RECORDS
    keep: bool = False
    drop_left: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    who: str = ""
    run_id: str = ""


def choose_scenarios(names: Sequence[str]) -> list[str]:
    """Return the scenarios in the order in which they are played; all if none is named.

    Raises:
        RefusedError: a name is not one of them.
    """
    if unknown := sorted(set(names) - set(SCENARIOS)):
        raise RefusedError(
            f"No scenario is named {', '.join(unknown)}.", next_step=f"The scenarios are {', '.join(SCENARIOS)}."
        )
    return [each for each in SCENARIOS if each in names or not names]


def without_reports(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the commands on a copy: without a folder of reports, which are about real tables."""
    return {name: value for name, value in environment.items() if not name.startswith("SLUICE_REPORTS")}


def lines(outcome: Outcome) -> list[str]:
    """Return an outcome as text."""
    return [
        f"{outcome.state:<7}  {outcome.scenario} ({outcome.seconds:.0f} s): {outcome.actual}",
        f"{'':<7}  expected: {outcome.expected}",
    ]


def rehearse(
    request: Request,
    contracts: Contracts,
    catalog: Catalog,
    client: AdminClient,
    report: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Rehearse the scenarios, record the outcomes in `sluice.pilot`, and drop the copy.

    Args:
        contracts: with their topics resolved.
        report: called at the end of each scenario.

    Raises:
        RefusedError: a name is unknown, there are too few records, or an earlier rehearsal is not cleaned up.
        ConfigError: the copy can't be made.
    """
    chosen = choose_scenarios(request.scenarios)
    contract = contracts.table(request.table)
    topic, ranges = _choose_topic(client, contract.topics, request.records)
    batches = 1 + sum(SCENARIOS[each].batches for each in chosen)
    if sum(r.span for r in ranges.values()) < batches:
        raise RefusedError(
            f"Topic {topic!r} has fewer records than the {batches} batches of this rehearsal.",
            table=request.table,
            next_step="Rehearse fewer scenarios, or when the topic has more records.",
        )
    prefix = namespaces.prefix_of(request.table)
    outcomes: list[Outcome] = []
    with _namespaces(catalog, prefix, request), tempfile.TemporaryDirectory(prefix="sluice-rehearsal-") as name:
        source = CopySource(contract, topic, contracts.folder, request.environment)

        def make(role: str) -> TableCopy:
            return TableCopy(source, catalog, f"{prefix}{role}_", Path(name, role))

        try:
            twin, steps = _make_twin(make("twin"), ranges, batches)
            copy = make("copy")
            # A plan is never cut: each run takes the records of the twin's next batch.
            copy.write_contract(start=_starts(ranges), limits={"records_per_batch": 1_000_000_000})
            it = Rehearsal(copy, twin, steps, client, catalog, lambda: make("lost"))
            it.run(forward=True)
            for each in _play(it, chosen):
                outcomes.append(each)
                report(each)
        except UnexpectedError as error:
            raise ConfigError(f"The copy can't be made: {error}.", table=request.table) from error
        finally:
            pilot_table.record(catalog, *(_as_row(request, each) for each in outcomes))
    return outcomes


def _choose_topic(client: AdminClient, topics: Sequence[str], records: int) -> tuple[str, Ranges]:
    """The topic with the most records, and the last ones of each of its partitions.

    Raises:
        SluiceError: Kafka has no answer for any of the topics.
    """
    states = broker.describe_topics(client, topics)
    found = {t: each for t, each in states.items() if isinstance(each, broker.TopicState)}
    if not found:
        raise next((e for e in states.values() if isinstance(e, SluiceError)), RefusedError("The table has no topic."))
    last = {
        t: {p: marks._replace(start=max(marks.start, marks.end - records)) for p, marks in each.watermarks.items()}
        for t, each in found.items()
    }
    return max(last.items(), key=lambda each: sum(r.span for r in each[1].values()))


def _starts(ranges: Ranges) -> dict[int, int]:
    return {p: r.start for p, r in ranges.items()}


@contextmanager
def _namespaces(catalog: Catalog, prefix: str, request: Request) -> Iterator[None]:
    """Drop the rehearsal's namespaces at the end.

    Raises:
        RefusedError: there are some already.
    """
    if request.drop_left:
        namespaces.drop(catalog, prefix)
    if left := namespaces.find(catalog, prefix):
        raise RefusedError(
            f"The table is being rehearsed, or an earlier rehearsal was not cleaned up: {'.'.join(left[0])} exists.",
            table=request.table,
            next_step="If no rehearsal of it is running, drop what is left: add --drop-left.",
        )
    try:
        with _terminated_like_interrupted():
            yield
    finally:
        if request.keep:
            log.warning("the copy is kept in the namespaces that begin with %s", prefix)
        else:
            namespaces.drop(catalog, prefix)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Make SIGTERM end the rehearsal as Ctrl-C does; by default the process would end without dropping the copy."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _make_twin(twin: TableCopy, ranges: Ranges, batches: int) -> tuple[TableCopy, list[Step]]:
    """Fill the undisturbed table by plain runs, in batches.

    Raises:
        UnexpectedError: a run fails, or the table has fewer batches.
    """
    total = sum(r.span for r in ranges.values())
    # A snapshot for each batch, to compare the copy with at any time.
    limits = {"records_per_batch": max(total // batches, 1), "batches_per_run": 1000, "batches_per_commit": 1}
    twin.write_contract(start=_starts(ranges), limits=limits)
    ends = {p: r.end for p, r in ranges.items()}
    while True:
        before = twin.published()
        done = twin.command("run", twin.group, "--to-offsets", encode(twin.topic, ends))
        if done.code:
            raise UnexpectedError(f"a plain run ends with exit code {done.code}: {done.error}")
        if twin.published() in (ends, before):
            break
    steps = [Step(at, each.snapshot_id) for each, at in twin.commits()]
    if twin.published() != ends or len(steps) < batches:
        raise UnexpectedError(f"plain runs made {len(steps)} batches up to {twin.published()}, not up to {ends}")
    return twin, steps


def _play(it: Rehearsal, chosen: Sequence[str]) -> Iterator[Outcome]:
    """Play the scenarios; after one that fails, the copy is no base for others."""
    failed = ""
    for name in chosen:
        scenario, began = SCENARIOS[name], time.monotonic()
        state = State.SKIPPED
        if failed:
            actual = f"not played: the copy is not as it should be after {failed}"
        else:
            log.info("%s: %s", name, scenario.expected)
            try:
                actual, state = scenario.play(it), State.PASSED
            except Skipped as why:
                actual = str(why)
            except UnexpectedError as error:
                actual, state, failed = str(error), State.FAILED, name
            except Exception as error:
                log.exception("%s", name)
                actual, state, failed = f"{type(error).__name__}: {first_line(error)}", State.FAILED, name
        log.info("%s %s: %s", name, state, actual)
        yield Outcome(name, scenario.expected, actual, state, round(time.monotonic() - began, 1))


def _as_row(request: Request, outcome: Outcome) -> PilotRow:
    evidence = {
        "scenario": outcome.scenario,
        "state": str(outcome.state),
        "expected": outcome.expected,
        "seconds": outcome.seconds,
    }
    return PilotRow(
        request.table,
        Stage.REHEARSED,
        outcome.state != State.FAILED,
        f"{outcome.scenario} {outcome.state}: {outcome.actual}",
        evidence,
        who=request.who,
        run_id=request.run_id,
        at=datetime.now(UTC),
    )
