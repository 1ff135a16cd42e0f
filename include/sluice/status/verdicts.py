"""A table's state in a word, what it means and what to do: the first answer an operator wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from sluice.plan.risk import Kind, RiskStatus
from sluice.status.model import LastError, SliceStatus, TableStatus
from sluice.status.text import duration, moment

# What needs a person most comes first.
URGENCY = (
    *("blocked", "stopped", "failed", "late", "review", "doubtful", "at risk", "backfill refused"),
    *("unknown", "new", "reading", "fresh"),
)


# Topics that stop a table, or put it at one risk, told one by one: a broker that refuses all is no flood of mail.
PROBLEMS = 5

_AT_RISK = {
    Kind.UNREAD: "See whether the group's DAG runs and keeps up, or raise the topic's retention.",
    Kind.UNPUBLISHED: "Repair what keeps the table from publishing; until then leave staging as it is.",
    Kind.TOMBSTONES: "See whether the group's DAG runs and keeps up, or raise the topic's delete.retention.ms.",
    Kind.LEFT: "Name the topic in the contract again, beside the new one, until `status` shows all of it published.",
    Kind.SCHEMA: "Ask the writers whether the field is gone for good; then change the contract.",
}


class Tone(IntEnum):
    """How a state is coloured."""

    BAD = 0
    WARN = 1
    UNKNOWN = 2
    GOOD = 3


@dataclass(frozen=True)
class Verdict:
    """A state.

    Attributes:
        word: one word or two.
        tone: how much it needs a person.
        why: what it was told by.
        todo: the next step; empty where there is none.
        kind: what a table is at risk of; each kind is told by itself.
        about: what else tells it apart from another of its word, and stays while it lasts: the topic, with its batch
            where one is refused; the backfill's run.
        dag, run_id: of the run that was refused.
        runs: how many runs in a row failed at it.
    """

    word: str
    tone: Tone
    why: str
    todo: str = ""
    kind: str = ""
    about: str = ""
    dag: str = ""
    run_id: str | None = None
    runs: int = 0


@dataclass(frozen=True)
class Overall:
    """Where all tables stand together.

    Attributes:
        states: each word with its tone and how many tables it is said of, the most urgent first.
        needing: how many tables need a person.
        unknown: of how many nothing is known, as nobody could be asked.
        quarantined: records in quarantine.
    """

    states: Sequence[tuple[str, Tone, int]]
    needing: int
    unknown: int
    quarantined: int

    @classmethod
    def of(cls, judged: Sequence[tuple[TableStatus, Verdict]]) -> Overall:
        """By the most urgent that is to be said of each."""
        counts = Counter((v.word, v.tone) for _, v in judged)
        states = [(word, tone, n) for (word, tone), n in counts.items()]
        needing = sum(n for _, tone, n in states if tone <= Tone.WARN)
        unknown = sum(n for word, _, n in states if word == "unknown")
        quarantined = sum(table.quarantined or 0 for table, _ in judged)
        return cls(sorted(states, key=lambda s: URGENCY.index(s[0])), needing, unknown, quarantined)


def of_table(table: TableStatus) -> Verdict:
    """The most urgent thing that is to be said of a table."""
    return next(said(table))


def said(table: TableStatus) -> Iterator[Verdict]:
    """All that is to be said of a table, the most urgent first."""
    refusals = [_of_refusal(each, f"ingest_{table.group}") for each in table.refusals]
    yield from (each for each in refusals if each.word == "blocked")
    yield from islice(_of_problems(table), PROBLEMS)
    yield from (each for each in refusals if each.word == "failed")
    if table.freshness_kept is False:
        # Told partition by partition; between the newest of all there may be no distance.
        count = sum(n for topic in table.topics for n in (topic.late or {}).values())
        why = f"{count:,} unread offsets are older than the promised {duration(table.freshness_promised_seconds)}."
        yield Verdict("late", Tone.BAD, why, "See whether the group's DAG runs, and how long its batches take.")
    if table.schema:
        yield Verdict("review", Tone.WARN, table.schema, "Answer in the DAG review_schema.")
    for each in table.doubts:
        yield Verdict("doubtful", Tone.WARN, each.failed[0], "See Data quality.", about=each.topic)
    yield from _of_risks(table.risks)
    yield from _of_backfills(table.slices)
    if table.unknown and (table.unasked or not table.problems):  # else they all answered, and what they say is above
        todo = "The pages name at the top who did not answer; they ask again by themselves."
        last = f" What is told of it was so at {moment(table.as_of)}." if table.as_of else ""
        yield Verdict("unknown", Tone.UNKNOWN, f"Kafka or the catalog did not answer.{last}", todo)
    elif not table.exists:
        yield Verdict("new", Tone.UNKNOWN, "Nothing was written yet.", "The group's first run makes it.")
    elif table.lag_records:
        yield Verdict("reading", Tone.GOOD, f"{table.lag_records:,} offsets are unread.")
    else:
        apart = f" Records in quarantine: {table.quarantined:,}." if table.quarantined else ""
        yield Verdict("fresh", Tone.GOOD, f"Everything that the topic has was read.{apart}")


def _of_problems(table: TableStatus) -> Iterator[Verdict]:
    """One for each topic, and one for what is about none."""
    topics = {t.problem: t.topic for t in table.topics if t.problem}
    told = dict[str, str]()
    for problem in table.problems:
        told.setdefault(topics.get(problem, ""), problem)
    for topic, problem in told.items():
        yield Verdict("stopped", Tone.BAD, problem, "Do what the message says; the next run goes on.", about=topic)


def _of_risks(risks: Iterable[RiskStatus]) -> Iterator[Verdict]:
    """One for each topic, of a few of each kind."""
    found: dict[str, dict[str, list[str]]] = {}
    for risk in risks:
        found.setdefault(risk.kind, {}).setdefault(risk.topic, []).append(risk.text)
    for kind, topics in found.items():
        for topic, (first, *more) in islice(topics.items(), PROBLEMS):
            why = f"{first} And {len(more):,} like it." if more else first
            yield Verdict("at risk", Tone.WARN, why, _AT_RISK[Kind(kind)], kind, about=topic)


def _of_refusal(error: LastError, dag: str) -> Verdict:
    about = error.topic if error.batch is None else f"batch {error.batch} of {error.topic}"
    if error.state == "blocked":
        todo = "Repair the contract or the records, or replay."
        return Verdict("blocked", Tone.BAD, error.error or "Refused.", todo, about=about, dag=dag, run_id=error.run_id)
    why, todo = error.error or "The last run failed.", "Look at the run's log."
    return Verdict("failed", Tone.BAD, why, todo, about=about, dag=dag, run_id=error.run_id, runs=error.runs)


def _of_backfills(slices: Iterable[SliceStatus]) -> Iterator[Verdict]:
    """One for each run, not for each slice: what keeps out one of them keeps out the next."""
    refused: dict[str | None, SliceStatus] = {}
    for piece in slices:
        if piece.state in ("blocked", "failed"):
            refused.setdefault(piece.run_id, piece)
    for run_id, piece in refused.items():
        why = piece.error or f"Slice {piece.number} of a backfill was refused."
        todo = "Look at the log of the backfill's run."
        yield Verdict("backfill refused", Tone.WARN, why, todo, about=run_id or "", dag="backfill", run_id=run_id)


def sort_key(table: TableStatus) -> tuple[int, float, str]:
    """Tables that need a person first, the furthest behind among those of one state first."""
    return URGENCY.index(of_table(table).word), -(table.freshness_now_seconds or 0.0), table.table
