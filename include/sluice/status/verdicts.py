"""The states of a table, most urgent first: what is wrong, why, and the next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from sluice import dag_ids
from sluice.ledger.error_causes import EXPECTATIONS_FAILED
from sluice.plan.risk import RiskKind, RiskStatus
from sluice.status.model import LastError, TableStatus
from sluice.status.open_work import IngestRun, SliceStatus
from sluice.status.text import awaited_problems, counted, late_text, utc_text

# The most urgent state first.
URGENCY = (
    *("blocked", "stopped", "failed", "late", "review", "at risk", "backfill refused", "paused"),
    *("doubtful", "unknown", "new", "reading", "fresh"),
)


LABELS = {
    "late": "stale",
    "review": "schema change waiting",
    "doubtful": "checks failing",
    "new": "never run",
    "reading": "up to date",
    "fresh": "up to date",
}
"""States that pages show in other words than `groups.yaml`, metrics and incidents have them."""

# Topics listed one by one: a broker that refuses all topics must not cause a flood of alerts.
MAX_TOPICS_LISTED = 5

_AT_RISK = {
    RiskKind.UNREAD: "Check that the group's DAG runs and keeps up, or raise the topic's retention.",
    RiskKind.UNPUBLISHED: "Fix what keeps the table from publishing; until then, keep its raw records in staging.",
    RiskKind.TOMBSTONES: "Check that the group's DAG runs and keeps up, or raise the topic's delete.retention.ms.",
    RiskKind.LEFT_BEHIND: "Add the topic to the contract again until `status` shows it fully published.",
    RiskKind.TIMESTAMPS: "Have the producer send milliseconds; message.timestamp.after.max.ms refuses others.",
    RiskKind.OTHER_WRITERS: "Stop the other engine; or set `other_writers: allow` if its rows belong there.",
    RiskKind.SCHEMA: "Ask the producers whether the field is gone for good, then change the contract.",
}
_NEXT_OF_CHANGE = {
    "open": f"Approve or reject the change: on the table's page, or in DAG {dag_ids.REVIEW_SCHEMA}.",
    "rejected": "Take the change out of the contract file, or take the rejection back: review it again and approve it.",
    "due": "The next run applies it.",
}
_FAILED_CHECKS = (
    "Correct the records at their producer, or change the expectation in the contract: mostly allows a share to fail. "
    "The state ends with the next batch that passes."
)


class Tone(IntEnum):
    """The colour of a state."""

    BAD = 0
    WARN = 1
    UNKNOWN = 2
    GOOD = 3


@dataclass(frozen=True)
class Verdict:
    """One state of a table.

    Attributes:
        word: the state, one of `URGENCY` or `rejecting`.
        why: the evidence.
        todo: the next step; empty if there is none.
        kind: the kind of risk, for `at risk`.
        about: identifies it among verdicts of the same state while it lasts: the topic, with its batch if one was
            refused; the run of a backfill.
        dag: DAG of the run that was refused.
        task: the task of that run which failed.
        runs: consecutive runs that failed.
        by_expectation: whether an expectation refused the batch: its rows are not in quarantine.
        decided: whether an operator has decided already, and the next run shows the effect.
        name: the state as pages show it, where it differs from that of the word.
    """

    word: str
    tone: Tone
    why: str
    todo: str = ""
    kind: str = ""
    about: str = ""
    dag: str = ""
    run_id: str | None = None
    task: str | None = None
    runs: int = 0
    by_expectation: bool = False
    decided: bool = False
    name: str = ""

    @property
    def label(self) -> str:
        """The state as pages show it."""
        return self.name or label(self.word)


def label(word: str) -> str:
    """A state as pages show it."""
    return LABELS.get(word, word)


@dataclass(frozen=True)
class StatusSummary:
    """The status of all tables together.

    Attributes:
        states: label of the state, tone and number of tables, the most urgent first.
        needing: tables that need attention.
        unknown: tables whose status is unknown.
        new: tables that do not exist yet.
        quarantined: records in quarantine.
    """

    states: Sequence[tuple[str, Tone, int]]
    needing: int
    unknown: int
    new: int
    quarantined: int

    @classmethod
    def from_verdicts(cls, judged: Sequence[tuple[TableStatus, Verdict]]) -> StatusSummary:
        """Count the tables by their most urgent state."""
        ordered = sorted((v for _, v in judged), key=lambda v: URGENCY.index(v.word))
        states = [(name, tone, n) for (name, tone), n in Counter((v.label, v.tone) for v in ordered).items()]
        needing = sum(v.tone <= Tone.WARN for v in ordered)
        unknown, new = (sum(v.word == each for v in ordered) for each in ("unknown", "new"))
        quarantined = sum(table.quarantined or 0 for table, _ in judged)
        return cls(states, needing, unknown, new, quarantined)


def worst_verdict(table: TableStatus) -> Verdict:
    """The most urgent state of a table."""
    return next(list_verdicts(table))


def list_verdicts(table: TableStatus) -> Iterator[Verdict]:
    """List all states of a table, the most urgent first."""
    dag = dag_ids.ingest_dag(table.group)
    errors = [_error_verdict(each, dag, table.run) for each in table.open_errors]
    yield from (each for each in errors if each.word == "blocked")
    yield from islice(_problem_verdicts(table), MAX_TOPICS_LISTED)
    yield from (each for each in errors if each.word == "failed")
    yield from _failed_run_verdicts(table, dag)
    if table.freshness_kept is False:
        yield Verdict("late", Tone.BAD, late_text(table), _next_step_of_late(table, dag))
    if table.schema:
        name = "change rejected" if table.schema_state == "rejected" else ""
        todo = _NEXT_OF_CHANGE.get(
            table.schema_state or "", "Correct the newest schema in the registry, or the contract."
        )
        yield Verdict("review", Tone.WARN, f"{table.schema.rstrip('.')}.", todo, name=name)
    yield from _risk_verdicts(table.risks)
    yield from _backfill_verdicts(table.slices)
    if table.paused:
        todo = "Unpause the DAG." if table.scheduled else "It has no schedule: start a run, which unpauses it first."
        yield Verdict("paused", Tone.WARN, f"DAG {dag} is paused: no run starts.", todo)
    for each in table.failed_expectations:  # its rows are published, or quarantined: what holds up records comes first
        more = f"; {len(each.failed) - 1} more failed" if each.failed[1:] else ""
        yield Verdict("doubtful", Tone.WARN, each.failed[0] + more, _FAILED_CHECKS, about=each.topic)
    if table.unknown and (table.unasked or not table.problems):  # else the problems above are the answer
        todo = "See the error at the top of the page. The page retries automatically."
        last = f" Shown as of {utc_text(table.as_of)}." if table.as_of else ""
        yield Verdict("unknown", Tone.UNKNOWN, f"Kafka or the catalog did not answer.{last}", todo)
    elif not table.exists:
        why = "The table does not exist: no run has published to it yet."
        todo = f"The first run of DAG {dag} creates it. If the DAG is paused, unpause it."
        if awaited := awaited_problems(table):
            why, todo = awaited[0], "Create the topic, or correct `topic:` in the contract."
        yield Verdict("new", Tone.UNKNOWN, why, todo)
    elif table.lag_records:
        are = "is" if table.lag_records == 1 else "are"
        yield Verdict("reading", Tone.GOOD, f"{counted(table.lag_records, 'offset')} {are} unread.")
    else:
        but = f", except {table.quarantined:,} in quarantine" if table.quarantined else ""
        yield Verdict("fresh", Tone.GOOD, f"All records of the topics are published{but}.")


def _next_step_of_late(table: TableStatus, dag: str) -> str:
    if table.paused and table.scheduled:
        return f"DAG {dag} is paused: unpause it."
    if not table.scheduled and not table.run:
        return f"DAG {dag} has no schedule: start a run."
    if pool := table.waits_for_pool:
        return f"A run of DAG {dag} waits for a slot of pool {pool}: see what runs in it, or raise its slots."
    if table.failed_run:
        return f"The last run of DAG {dag} failed: fix its cause."
    return f"Check that DAG {dag} runs, and how long its batches take."


def _problem_verdicts(table: TableStatus) -> Iterator[Verdict]:
    """One per topic that exists or existed, and one for problems without a topic."""
    topics = {t.problem: t.topic for t in table.topics if t.problem}
    by_topic = dict[str, str]()
    awaited = awaited_problems(table)
    for problem in (each for each in table.problems if each not in awaited):
        by_topic.setdefault(topics.get(problem, ""), problem)
    for topic, problem in by_topic.items():
        yield Verdict(
            "stopped", Tone.BAD, problem, "Follow the next step in the message; the next run continues.", about=topic
        )


def _failed_run_verdicts(table: TableStatus, dag: str) -> Iterator[Verdict]:
    """The last run, if it failed before any table had an outcome: no ledger and no table knows of it."""
    run = table.failed_run
    if run is None or any(each.run_id == run.run_id for each in table.open_errors):
        return
    tries = f"{run.tries} {'try' if run.tries == 1 else 'tries'}"
    at = f" at {utc_text(run.ended)}" if run.ended else ""
    why = f"The last run of DAG {dag} failed{at}: task {run.task} failed after {tries}."
    yield Verdict("failed", Tone.BAD, why, "See the log of the task.", dag=dag, run_id=run.run_id, task=run.task)


def _risk_verdicts(risks: Iterable[RiskStatus]) -> Iterator[Verdict]:
    """One per kind and topic, for the first topics of each kind."""
    found: dict[str, dict[str, list[str]]] = {}
    for risk in risks:
        found.setdefault(risk.kind, {}).setdefault(risk.topic, []).append(risk.text)
    for kind, topics in found.items():
        for topic, (first, *more) in islice(topics.items(), MAX_TOPICS_LISTED):
            why = f"{first} And {len(more):,} more like it." if more else first
            yield Verdict("at risk", Tone.WARN, why, _AT_RISK[RiskKind(kind)], kind, about=topic)


def _error_verdict(error: LastError, dag: str, run: IngestRun | None) -> Verdict:
    about = error.topic if error.batch is None else f"batch {error.batch} of {error.topic}"
    if error.state == "blocked" and error.decided_by and error.decided_at:
        waits = "" if run else " It waits for a run."
        why = f"{error.decided_by} decided at {utc_text(error.decided_at)} to publish {about} anyway.{waits}"
        todo = "A run is under way." if run else f"Start a run of DAG {dag}."
        return Verdict(
            "blocked", Tone.BAD, why, todo, about=about, dag=dag, run_id=error.run_id,
            decided=True, name="publish decided",
        )  # fmt: skip
    if error.state == "blocked":
        todo = "Fix the contract or the records; the next run retries the batch."
        return Verdict(
            "blocked", Tone.BAD, error.error or "Refused.", todo, about=about, dag=dag, run_id=error.run_id,
            by_expectation=error.exception == EXPECTATIONS_FAILED,
        )  # fmt: skip
    why, todo = error.error or "The last run failed.", "See the log of the run."
    return Verdict("failed", Tone.BAD, why, todo, about=about, dag=dag, run_id=error.run_id, runs=error.runs)


def _backfill_verdicts(slices: Iterable[SliceStatus]) -> Iterator[Verdict]:
    """One per run: slices of a run fail for the same reason."""
    refused: dict[str | None, SliceStatus] = {}
    for piece in slices:
        if piece.state in ("blocked", "failed"):
            refused.setdefault(piece.run_id, piece)
    for run_id, piece in refused.items():
        why = piece.error or f"Slice {piece.number} of a backfill was refused."
        todo, dag = "See the log of the backfill run.", dag_ids.BACKFILL
        yield Verdict("backfill refused", Tone.WARN, why, todo, about=run_id or "", dag=dag, run_id=run_id)


def by_urgency(judged: tuple[TableStatus, Verdict]) -> tuple[int, float, str]:
    """Sort key of a table and its most urgent state: the most urgent first, then the table furthest behind."""
    table, verdict = judged
    return URGENCY.index(verdict.word), -(table.freshness_now_seconds or 0.0), table.table
