"""A table's state in a word, what it means and what to do: the first answer an operator wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from sluice.status_model import TableStatus
from sluice.status_text import duration, moment

# What needs a person most comes first.
URGENCY = (
    *("blocked", "stopped", "failed", "late", "review", "doubtful", "at risk", "backfill refused"),
    *("unknown", "new", "reading", "fresh"),
)


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
    """

    word: str
    tone: Tone
    why: str
    todo: str = ""
    kind: str = ""


def of_table(table: TableStatus) -> Verdict:
    """The most urgent thing that is to be said of a table."""
    return next(said(table))


def said(table: TableStatus) -> Iterator[Verdict]:
    """All that is to be said of a table, the most urgent first; the last is that it is fresh."""
    error = table.last_error
    if error and error.open and error.state == "blocked":
        yield Verdict("blocked", Tone.BAD, error.error or "Refused.", "Repair the contract or the records, or replay.")
    if table.problems:
        yield Verdict("stopped", Tone.BAD, table.problems[0], "Do what the message says; the next run goes on.")
    if error and error.open and error.state != "blocked":
        yield Verdict("failed", Tone.BAD, error.error or "The last run failed.", "Look at the run's log.")
    if table.freshness_kept is False:
        # Told partition by partition; between the newest of all there may be no distance.
        count = sum(n for topic in table.topics for n in (topic.late or {}).values())
        why = f"{count:,} unread offsets are older than the promised {duration(table.freshness_promised_seconds)}."
        yield Verdict("late", Tone.BAD, why, "See whether the group's DAG runs, and how long its batches take.")
    if table.schema:
        yield Verdict("review", Tone.WARN, table.schema, "Answer in the DAG review_schema.")
    if table.expectations and table.expectations.failed:
        yield Verdict("doubtful", Tone.WARN, table.expectations.failed[0], "See Data quality.")
    for kind, (first, *more) in table.risks.items():
        yield Verdict("at risk", Tone.WARN, f"{first} And {len(more):,} like it." if more else first, kind=kind)
    refused = [s for s in table.slices if s.state in ("blocked", "failed")]
    if refused:
        why = refused[0].error or f"Slice {refused[0].number} of a backfill was refused."
        yield Verdict("backfill refused", Tone.WARN, why, "See the backfill's run.")
    if table.unknown:
        last = f" What is told of it was so at {moment(table.as_of)}." if table.as_of else ""
        yield Verdict("unknown", Tone.UNKNOWN, f"Kafka or the catalog did not answer.{last}", "")
    elif not table.exists:
        yield Verdict("new", Tone.UNKNOWN, "Nothing was written yet.", "The group's first run makes it.")
    elif table.lag_records:
        yield Verdict("reading", Tone.GOOD, f"{table.lag_records:,} offsets are unread.", "")
    yield Verdict("fresh", Tone.GOOD, "Everything that the topic has is in the table.", "")


def sort_key(table: TableStatus) -> tuple[int, float, str]:
    """Tables that need a person first, the furthest behind among those of one state first."""
    return URGENCY.index(of_table(table).word), -(table.freshness_now_seconds or 0.0), table.table
