"""What a run came to for one table: derived from the plan, the table's offsets and the ledger's rows of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.batch import Batch, PublishedOffsets
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.offsets import encode_gaps, encode_ranges
from sluice.plan import retention_warnings
from sluice.plan.model import GroupPlan

REPORTED = (LedgerState.STAGED, LedgerState.PUBLISHED, LedgerState.BLOCKED, LedgerState.FAILED, LedgerState.RETRIED)
APPLICATION_ENDED = "The Spark application ended before it reported on this table; the next run continues."


@dataclass
class Outcome:
    """What a run came to for one table.

    Attributes:
        state: published, idle (nothing to do), behind (out of time; the next run continues), blocked, failed, stopped.
        batches: per topic the numbers of the published batches.
        ranges: per topic the published offsets, as `{"partition": [start, end)}` of each batch.
        gaps: per topic the accepted gaps in these offsets.
        records: how many records were read for the table; None if the run did not report it.
        rejected: how many of these were rejected; None if the run did not report it.
        quarantined: `rejected`, and the rejected records of a batch that was blocked; None if one is not known.
        expectations: how many passed, failed and were not evaluated, and which failed.
        warnings: planning's warnings of records that retention will delete soon.
        snapshot_id: the last snapshot that carries offsets.
        location: where the table's files are; None if there is no table.
        contract: what its readers may rely on, if it published something; see `active_contract.describe_promise`.
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
    quarantined: int | None = 0
    error: str | None = None
    expectations: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    contract: dict[str, Any] = field(default_factory=dict)

    @property
    def red(self) -> bool:
        """Whether action is required."""
        return self.state in ("blocked", "failed", "stopped")


def summarize_plan(plan: GroupPlan) -> dict[str, Any]:
    """A plan as JSON for XCom: per table and topic the batches to publish, per table its error, warnings and review."""
    batches: dict[str, dict[str, list[int]]] = {}
    for name, table in plan.tables.items():
        batches[name] = {
            topic: [b.seq for b in table.pending.get(topic, ())] + [b.seq for b in plan.topics[topic].to_stage]
            for topic in table.contract.topics
        }
    return {
        "has_work": plan.has_work,
        "is_small": plan.is_small,
        "tables": batches,
        "stops": {name: str(error) for name, error in plan.stops.items()},
        "warnings": {
            name: retention_warnings.warning_texts(plan.warnings, t.contract) for name, t in plan.tables.items()
        },
        "reviews": {name: each.change_id for name, each in plan.pending_changes.items() if each.review == "open"},
    }


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run when it is settled.

    Attributes:
        plan: from `summarize_plan`.
        batches: by topic and number.
        rows: the ledger's rows of the run.
    """

    plan: Mapping[str, Any]
    batches: Mapping[tuple[str, int], Batch]
    rows: Sequence[LedgerRow]

    @property
    def reported(self) -> bool:
        """Whether the application came to its end: it writes its rows at once, as its last act."""
        return any(r.state in REPORTED for r in self.rows)


def derive_outcome(outcome: Outcome, run: RunRecord, offsets: Mapping[str, PublishedOffsets]) -> None:
    """Fill in state, batches, offsets, counts and error.

    Args:
        offsets: the table's published offsets by topic.
    """
    behind = False
    for topic, seqs in run.plan["tables"].get(outcome.table, {}).items():
        published = offsets[topic].seq if topic in offsets else 0
        done = [seq for seq in seqs if seq <= published]
        behind = behind or len(done) < len(seqs)
        if done:
            outcome.state = "published"
            outcome.batches[topic] = done
            batches = [run.batches[topic, s] for s in done if (topic, s) in run.batches]
            outcome.ranges[topic] = [encode_ranges(b.ranges) for b in batches]
            if gaps := [encode_gaps(b.gaps) for b in batches if b.gaps]:
                outcome.gaps[topic] = gaps
    rows = [r for r in run.rows if r.table == outcome.table]
    last = {(r.topic, r.batch_seq): r for r in rows if r.state == LedgerState.PUBLISHED}
    reports = [last.get((topic, seq)) for topic, done in outcome.batches.items() for seq in done]
    outcome.records = _sum(r.records if r else None for r in reports)
    outcome.rejected = _sum(r.rejected if r else None for r in reports)
    outcome.quarantined = _sum([outcome.rejected, *(r.rejected for r in rows if r.state == LedgerState.BLOCKED)])
    failures = [r for r in rows if r.state in (LedgerState.BLOCKED, LedgerState.FAILED)]
    if behind and failures:
        outcome.state, outcome.error = str(failures[-1].state), failures[-1].error
    elif behind and (run.reported or outcome.state == "published"):
        outcome.state = "behind"
    elif behind:
        outcome.state, outcome.error = "failed", APPLICATION_ENDED
    if outcome.table in run.plan["stops"]:
        outcome.state, outcome.error = "stopped", run.plan["stops"][outcome.table]


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum; None if one of the counts is not known."""
    known = list(counts)
    return None if None in known else sum(n for n in known if n is not None)
