"""Shows a schema review to an operator, and carries out the answer.

In: a table whose contract change waits for approval. Out: the change as text with what happened since; after an answer,
the changed or unchanged table, and the backfills that replay quarantined records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pyiceberg.catalog import Catalog

from sluice.backfill.ranges import Request
from sluice.batch import STEP, TOPIC, Batch, batches_from_summary, merge_ranges
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import RefusedError
from sluice.evolve import apply, evolve, rejected_change
from sluice.evolve.pending_change import PendingChange, ReviewDecision
from sluice.iceberg import cursor, snapshots, table_names
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.schemas_table import SchemaRow, SchemaState
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange
from sluice.operate import review_records, rollback
from sluice.operate.operator_input import Decision
from sluice.operate.review_records import QuarantinedRecords, describe_error, printable_lines
from sluice.operate.rollback import Rollback
from sluice.operate.rollback_target import RestorePoint

MAX_SHOWN_ERRORS = 20


@dataclass(frozen=True)
class Review:
    """A change under review, and what happened since the review was opened.

    Attributes:
        opened: the row in `sluice.schemas` that opened it; None: no run has opened it yet.
        ranges: per topic and partition, the offsets published since under the active contract.
        batches: their numbers, by topic.
        records: rows added since.
        quarantined: records quarantined since.
        newest: if none were, the positions of the last rows added since.
        obstacle: why the change can't be approved; None: it can.
    """

    change: PendingChange
    opened: SchemaRow | None = None
    ranges: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    batches: Mapping[str, Sequence[int]] = field(default_factory=dict)
    records: int = 0
    quarantined: QuarantinedRecords = field(default_factory=QuarantinedRecords)
    newest: Sequence[str] = ()
    obstacle: str | None = None

    def lines(self) -> list[str]:
        """The review as text, one line each."""
        change = self.change
        since = f", since {self.opened.at:%Y-%m-%d %H:%M} UTC" if self.opened else ""
        state = f"was rejected{change.answer_text}" if change.review == "rejected" else f"is under review{since}"
        out = [f"{change.table}: version {change.version + 1} of its contract {state}"]
        out += [f"change    {each.description} ({each.kind})" for each in change.changes]
        out += [f"ignored   {each.description} ({each.kind})" for each in change.ignored]
        for topic, ranges in self.ranges.items():
            offsets = ", ".join(f"{p}: [{start}, {end})" for p, (start, end) in ranges.items())
            out.append(f"since     {topic} batches {', '.join(map(str, self.batches[topic]))}, offsets {offsets}")
        out.append(f"since     {self.records:,} rows added, {self.quarantined.total:,} records quarantined")
        for (error, name), count in sorted(self.quarantined.counts.items())[:MAX_SHOWN_ERRORS]:
            out.append(f"errors    {count:,} {describe_error(error, name)}")
        out += [f"sample    {each}" for each in self.quarantined.sample]
        out += [f"published {each}" for each in self.newest]
        return printable_lines([*out, *self._answers()])

    def _answers(self) -> list[str]:
        reject = "reject    the table keeps its active contract; records that do not fit it stay in quarantine"
        if self.obstacle:
            return [f"approve   not possible: {self.obstacle}", reject]
        added = "stay as they are, unless you ask to republish them"
        if self.opened and self.opened.snapshot_id is None and self.records:
            added = "stay as they are: the table was empty before them, so they can't be republished"
        effects = [f"the table is changed; quarantined records are replayed; rows added since the review began {added}"]
        if lost := ", ".join(each.column for each in self.change.changes if each.kind == "drop_column"):
            effects.append(f"{lost}: existing values are lost to queries, save of older snapshots until these expire")
        return [
            *(f"approve   {each}" for each in effects),
            f"{reject}, where their errors name who rejected the change and why",
        ]


@dataclass(frozen=True)
class ReviewResult:
    """What an answer did.

    Attributes:
        lines: as text, a sentence each.
        backfills: requests that replay the quarantined records; the operator or the DAG starts them.
    """

    lines: list[str]
    backfills: list[Request] = field(default_factory=list)

    def forms(self) -> list[dict[str, object]]:
        """The backfills, as parameters of DAG `backfill`."""
        return [
            {
                "table": each.table,
                "topic": each.topic,
                "ranges": {str(p): list(bounds) for p, bounds in each.ranges.items()},
                "source": str(each.origin),
                "why": each.why,
                "dry_run": False,
            }
            for each in self.backfills
        ]


def load_review(catalog: Catalog, file: Contract, *, include_rejected: bool = False) -> Review:
    """The change under review, and what has happened since.

    Args:
        file: the table's contract as the file defines it.
        include_rejected: load a change that was rejected as well.

    Raises:
        RefusedError: nothing is under review.
    """
    change = evolve.load_review(catalog, file, include_rejected=include_rejected)
    opened = evolve.find_review_row(catalog, change)
    records = 0
    batches: dict[str, list[Batch]] = {}
    if opened:
        for snapshot in snapshots.ancestors(change.base.metadata):
            if snapshot.snapshot_id == opened.snapshot_id:
                break
            summary = snapshots.summary(snapshot)
            if summary.get(STEP) == "publish":
                topic = summary[TOPIC]
                batches[topic] = [*batches_from_summary(summary), *batches.get(topic, [])]
                records += int(summary.get("added-records", "0"))
    ranges = {
        topic: {p: (r.start, r.end) for p, r in sorted(merge_ranges(each).items()) if r.span}
        for topic, each in batches.items()
    }
    quarantined = review_records.quarantined_since(catalog, file, opened.at) if opened else QuarantinedRecords()
    return Review(
        change=change,
        opened=opened,
        ranges=ranges,
        batches={topic: [batch.seq for batch in each] for topic, each in batches.items()},
        records=records,
        quarantined=quarantined,
        newest=() if quarantined.total else review_records.newest_published(change.base, ranges),
        obstacle=apply.find_obstacle(change.base, change.old, change.new, change.changes),
    )


def answer_review(
    catalog: Catalog, contracts: Contracts, name: str, decision: ReviewDecision, *, republish: bool = False
) -> ReviewResult:
    """Approve or reject a change, see `evolve.decide`.

    Args:
        republish: if the change is approved, roll the table back to where the review began. The next run then publishes
            from staging, under the new contract, what was published or quarantined since under the old one.

    Raises:
        RefusedError: as `evolve.decide`; or republishing is not possible, and then nothing was decided.
    """
    file = contracts.table(name)
    if not decision.approve and evolve.load_review(catalog, file, include_rejected=True).review == "rejected":
        return ReviewResult([f"{name}: it stays rejected. Take the change out of the contract file."])
    if decision.approve and republish:  # refused before anything is decided
        reviewed = evolve.load_review(catalog, file, include_rejected=True)
        _plan_republish(catalog, contracts, file, evolve.find_review_row(catalog, reviewed))
    change = evolve.decide(catalog, file, decision)
    opened = evolve.find_review_row(catalog, change)
    if not decision.approve:
        out = [f"{name}: rejected. The table stays at version {change.version} of its contract."]
        out.append("Take the change out of the contract file. Approving it takes the rejection back.")
        return ReviewResult(out + _annotate_quarantine(catalog, change, opened))
    out = [f"{name}: approved, and changed to version {change.version + 1} of its contract."]
    if republish and (found := _plan_republish(catalog, contracts, file, opened)):
        by = Decision(decision.who, decision.why, decision.run_id)
        rollback.roll_back(found, catalog, Ledger(catalog), by)
        out += [*found.lines(), "The next run publishes the batches marked `republish` under the new contract."]
        return ReviewResult(out)
    if republish:
        out.append("Nothing was published since the review began.")
    if opened is None:
        return ReviewResult(out)
    reason = f"The contract change that these records need was approved by {decision.who}: {decision.why}"
    return ReviewResult(out, _plan_backfills(catalog, change.old, file, opened, reason))


def _plan_republish(
    catalog: Catalog, contracts: Contracts, file: Contract, opened: SchemaRow | None
) -> Rollback | None:
    """The rollback to where the review began; None: nothing was published since.

    Raises:
        RefusedError: it is not possible.
    """
    chain = snapshots.ancestors(catalog.load_table(table_names.typed(file)).metadata)
    since = takewhile(lambda s: opened is None or s.snapshot_id != opened.snapshot_id, chain)
    if opened is None or all(snapshots.summary(s).get(STEP) == apply.CONTRACT_STEP for s in since):
        return None
    if opened.snapshot_id is None:
        raise RefusedError(
            "The table was empty when the review began: there is no snapshot to roll back to.",
            table=file.table,
            next_step="Answer without republish; or write to a new table name, which publishes everything under the "
            "new contract.",
        )
    point = RestorePoint(snapshot_id=opened.snapshot_id)
    found = rollback.preview_rollback(file.table, contracts, catalog, Ledger(catalog), point)
    if found.lost:
        raise RefusedError(rollback.loss_error(found).message, table=file.table, next_step="Answer without republish.")
    return found


def _annotate_quarantine(catalog: Catalog, change: PendingChange, opened: SchemaRow | None) -> list[str]:
    """Add the rejection to the errors of the records that were quarantined since the review began."""
    rejected = rejected_change.list_rejected_changes(catalog, change.base, change.old)
    if opened is None or not rejected:
        return []
    done, left = rejected_change.annotate_quarantine(catalog, change.old, rejected, opened.at)
    out = [f"{done:,} quarantined records name the rejection in their error."]
    if left:
        out.append(f"{left:,} do not: their batches are too large. The reason is in sluice.schemas.")
    return out


def _plan_backfills(catalog: Catalog, old: Contract, file: Contract, opened: SchemaRow, why: str) -> list[Request]:
    """The backfills of what was quarantined since the review began, one per topic.

    Records above the table's cursor belong to a blocked batch, which a later run publishes.
    """
    table = catalog.load_table(table_names.typed(file))
    published = cursor.read_table_cursor(table)
    # If either contract drops raw records, quarantine may lack them; staging has them.
    origin = Origin.STAGING if file.drops_raw_records or old.drops_raw_records else Origin.QUARANTINE
    found = []
    for topic, ranges in review_records.quarantined_since(catalog, file, opened.at).ranges.items():
        if topic not in published or topic not in file.topics:
            continue
        ends = published[topic].next_offsets
        below = {p: OffsetRange(r.start, min(r.end, ends.get(p, 0))) for p, r in ranges.items()}
        if wanted := {p: r for p, r in below.items() if r.span > 0}:
            found.append(Request(file.table, wanted, origin=origin, topic=topic, why=why))
    return found


def list_versions(catalog: Catalog, file: Contract) -> list[str]:
    """Every version of a table's contract and every answer, as text, oldest first."""
    out = []
    for row in evolve.list_versions(catalog, file):
        by = f" by {row.who or 'unknown'}: {row.why}" if row.why else ""
        out.append(f"{row.at:%Y-%m-%d %H:%M:%S} UTC  version {row.version}  {row.state}{by}")
        out += [f"    {each}" for each in row.words]
        if row.state == SchemaState.APPLIED:
            starts = json.loads(row.offsets or "{}")
            offsets = "; ".join(
                f"{topic} " + ", ".join(f"{p}: {o}" for p, o in sorted(at.items(), key=lambda item: int(item[0])))
                for topic, at in sorted(starts.items())
            )
            after = f"after snapshot {row.snapshot_id}" if row.snapshot_id else "from the table's first snapshot"
            out.append(f"    schema {row.schema_id}, {after}, from offsets {offsets or 'where the topics start'}")
    return out
