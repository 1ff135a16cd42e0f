"""TODO docstring of sluice.ingest.outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.batch import Batch, Through
from sluice.ledger.offsets_table import Row, State
from sluice.offsets import encode_gaps, encode_ranges
from sluice.plan import retention_warnings
from sluice.plan.model import GroupPlan

REPORTED = (State.STAGED, State.PUBLISHED, State.BLOCKED, State.FAILED, State.RETRIED)
ENDED = "The Spark application ended before it reported on this table; the next run goes on."


@dataclass
class Outcome:
    """What a run came to for one table.

    Attributes:
        state: published, idle (nothing was due), behind (time ran out; the next run goes on), blocked, failed, stopped.
        ranges: per topic the offsets published by this run, as `{"partition": [start, end)}` of each batch.
        gaps: per topic what of these offsets was given up.
        records: how many were read for it, and `rejected` how many of these were; None where nobody lived to tell.
        expectations: of the batches that were judged, how many held, failed, were not_judged; and told, what failed.
        warnings: what planning said that retention will delete before long.
        snapshot_id: the last durable snapshot that carries offsets.
        location: where the table's files are; None where there is no table.
    """

    table: str
    state: str = "idle"
    batches: dict[str, list[int]] = field(default_factory=dict)
    ranges: dict[str, list[str]] = field(default_factory=dict)
    gaps: dict[str, list[str]] = field(default_factory=dict)
    snapshot_id: int | None = None
    location: str | None = None
    records: int | None = 0
    rejected: int | None = 0
    error: str | None = None
    expectations: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def red(self) -> bool:
        """Whether somebody has to look."""
        return self.state in ("blocked", "failed", "stopped")


def expected(plan: GroupPlan) -> dict[str, Any]:
    """What a plan promises, as JSON for XCom: per table and topic its batches; what stops or threatens it."""
    promised: dict[str, dict[str, list[int]]] = {}
    for name, table in plan.tables.items():
        promised[name] = {
            topic: [b.seq for b in table.pending.get(topic, ())] + [b.seq for b in plan.topics[topic].to_stage]
            for topic in table.contract.topics
        }
    return {
        "has_work": plan.has_work,
        "is_small": plan.is_small,
        "tables": promised,
        "stops": {name: str(error) for name, error in plan.stops.items()},
        "warnings": {name: retention_warnings.of_table(plan.warnings, t.contract) for name, t in plan.tables.items()},
        "reviews": {name: each.change_id for name, each in plan.outlooks.items() if each.review == "open"},
    }


def _judge(
    outcome: Outcome,
    promised: Mapping[str, Any],
    through: Mapping[str, Through],
    known: Mapping[tuple[str, int], Batch],
    mine: list[Row],
    reported: bool,
) -> None:
    name = outcome.table
    behind = False
    for topic, seqs in promised["tables"].get(name, {}).items():
        at = through[topic].seq if topic in through else 0
        done = [seq for seq in seqs if seq <= at]
        behind = behind or len(done) < len(seqs)
        if done:
            outcome.state = "published"
            outcome.batches[topic] = done
            here = [known[topic, s] for s in done if (topic, s) in known]
            outcome.ranges[topic] = [encode_ranges(b.ranges) for b in here]
            if given_up := [encode_gaps(b.gaps) for b in here if b.gaps]:
                outcome.gaps[topic] = given_up
    last = {(r.topic, r.batch_seq): r for r in mine if r.state == State.PUBLISHED}
    counts = [last.get((topic, seq)) for topic, done in outcome.batches.items() for seq in done]
    outcome.records = _sum(r.records if r else None for r in counts)
    outcome.rejected = _sum(r.rejected if r else None for r in counts)
    failures = [r for r in mine if r.state in (State.BLOCKED, State.FAILED)]
    if behind:
        if failures:
            outcome.state, outcome.error = str(failures[-1].state), failures[-1].error
        elif reported or outcome.state == "published":
            outcome.state = "behind"
        else:
            outcome.state = "failed"
            outcome.error = ENDED
    if name in promised["stops"]:
        outcome.state, outcome.error = "stopped", promised["stops"][name]


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum; None where one of them is not known."""
    known = list(counts)
    return None if None in known else sum(n for n in known if n is not None)
