"""A review as a person sees it: the change in words, what came in since it was opened, and what either answer does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pyiceberg.catalog import Catalog

from sluice.backfill.ranges import Request
from sluice.batch import STEP, TOPIC, Batch, batches_of, joined_ranges
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import RefusedError
from sluice.evolve import apply, evolve, rejected_change
from sluice.evolve.pending_change import Outlook
from sluice.iceberg import cursor, snapshots, table_names
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.schemas_table import Row, State
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange
from sluice.operate import review_records, rollback
from sluice.operate.review_records import Affected, kind, plain
from sluice.operate.rollback import Rollback

SHOWN = 20


@dataclass(frozen=True)
class Review:
    """An open review.

    Attributes:
        opened: the row that tells when; None where no run has opened it yet.
        ranges: per topic and partition the offsets published since, by the contract in force.
        batches: their numbers, by topic.
        records: rows that were added since.
        affected: records set apart since; no values.
        newest: where none were: the places of the last rows that were added since.
        cannot: why it can't be approved, if so.
    """

    outlook: Outlook
    opened: Row | None = None
    ranges: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    batches: Mapping[str, Sequence[int]] = field(default_factory=dict)
    records: int = 0
    affected: Affected = field(default_factory=Affected)
    newest: Sequence[str] = ()
    cannot: str | None = None

    def lines(self) -> list[str]:
        """The review in words, one line each."""
        outlook = self.outlook
        since = f", since {self.opened.at:%Y-%m-%d %H:%M} UTC" if self.opened else ""
        out = [f"{outlook.table}: version {outlook.version + 1} of its contract is under review{since}"]
        out += [f"change    {change.words} ({change.kind})" for change in outlook.changes]
        out += [f"ignored   {change.words} ({change.kind})" for change in outlook.ignored]
        for topic, ranges in self.ranges.items():
            told = ", ".join(f"{p}: [{start}, {end})" for p, (start, end) in ranges.items())
            out.append(f"meanwhile {topic} batches {', '.join(map(str, self.batches[topic]))}, offsets {told}")
        out.append(f"meanwhile {self.records:,} rows added, {self.affected.total:,} records rejected")
        for (error, name), count in sorted(self.affected.counts.items())[:SHOWN]:
            out.append(f"rejected  {count:,} {kind(error, name)}")
        out += [f"sample    {each}" for each in self.affected.sample]
        out += [f"sample    {each}: published" for each in self.newest]
        return plain([*out, *self._answers()])

    def _answers(self) -> list[str]:
        reject = "reject    the table goes on by the contract in force; what does not fit it stays in quarantine"
        if self.cannot:
            return [f"approve   can't be: {self.cannot}", reject]
        republish = "stay as they are, unless you ask to republish them"
        if self.opened and self.opened.snapshot_id is None and self.records:
            republish = "stay as they are: the table held nothing before them, so they can't be republished"
        return [
            f"approve   the table is changed; rejected records are brought again; rows that were added {republish}",
            f"{reject}, and says who rejected the change and why",
        ]


@dataclass(frozen=True)
class Done:
    """What an answer did.

    Attributes:
        lines: in sentences.
        backfills: what brings again the records that were set apart; somebody has to start them.
    """

    lines: list[str]
    backfills: list[Request] = field(default_factory=list)

    def forms(self) -> list[dict[str, object]]:
        """The backfills, as DAG `backfill` is asked for them."""
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


def look(catalog: Catalog, file: Contract, *, again: bool = False) -> Review:
    """What is under review, and what has happened since.

    Args:
        again: take one that was rejected as well.

    Raises:
        RefusedError: nothing is.
    """
    outlook = evolve.under_review(catalog, file, again=again)
    opened = evolve.opened(catalog, outlook)
    numbers: dict[str, list[int]] = {}
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    records = 0
    brought: dict[str, list[Batch]] = {}
    if opened:
        for snapshot in snapshots.ancestors(outlook.base.metadata):
            if snapshot.snapshot_id == opened.snapshot_id:
                break
            told = snapshots.summary(snapshot)
            if told.get(STEP) == "publish":
                brought[told[TOPIC]] = [*batches_of(told), *brought.get(told[TOPIC], [])]
                records += int(told.get("added-records", "0"))
    for topic, batches in brought.items():
        numbers[topic] = [b.seq for b in batches]
        ranges[topic] = {p: (r.start, r.end) for p, r in sorted(joined_ranges(batches).items()) if r.span}
    why = apply.impossible(outlook.base, outlook.old, outlook.new, outlook.changes)
    affected = review_records.set_apart(catalog, file, opened.at) if opened else Affected()
    newest = () if affected.total else review_records.newest(outlook.base, ranges)
    return Review(outlook, opened, ranges, numbers, records, affected, newest, why)


def answer(
    catalog: Catalog,
    contracts: Contracts,
    name: str,
    *,
    approve: bool,
    who: str,
    why: str,
    run_id: str,
    change_id: str = "",
    republish: bool = False,
) -> Done:
    """Approve or reject, see `evolve.decide`.

    Args:
        republish: of an approved change: take the table back to where the review began, so that what was published
            since by the old contract is published from staging by the new one, and what was set apart with it.

    Raises:
        RefusedError: as `evolve.decide`; or what is to be republished can't be, and then nothing was decided.
    """
    file = contracts.table(name)
    if approve and republish:
        _back(catalog, contracts, file, evolve.opened(catalog, evolve.under_review(catalog, file, again=True)))
    outlook = evolve.decide(catalog, file, approve=approve, who=who, why=why, run_id=run_id, change_id=change_id)
    opened = evolve.opened(catalog, outlook)
    if not approve:
        out = [f"{name}: rejected. It goes on with version {outlook.version} of its contract."]
        return Done(out + _tell(catalog, outlook, opened))
    out = [f"{name}: approved, and changed to version {outlook.version + 1} of its contract."]
    if republish and (found := _back(catalog, contracts, file, opened)):
        rollback.roll_back(found, catalog, Ledger(catalog), who=who, why=why, run_id=run_id)
        out += [*found.lines(), "The next run publishes again what is marked so, by the new contract."]
        return Done(out)
    if republish:
        out.append("Nothing was published since the review began.")
    reason = f"The change that kept them out was approved by {who}: {why}"
    return Done(out, _to_bring(catalog, outlook.old, file, opened, reason) if opened else [])


def _back(catalog: Catalog, contracts: Contracts, file: Contract, opened: Row | None) -> Rollback | None:
    """How the table is taken back to where the review began; None where nothing was published since.

    Raises:
        RefusedError: it can't be.
    """
    line = snapshots.ancestors(catalog.load_table(table_names.typed(file)).metadata)
    since = takewhile(lambda s: opened is None or s.snapshot_id != opened.snapshot_id, line)
    if opened is None or all(snapshots.summary(s).get(STEP) == apply.CHANGED for s in since):
        return None
    if opened.snapshot_id is None:
        raise RefusedError(
            "The table held nothing when the review began: there is no snapshot that it could be taken back to.",
            table=file.table,
            way_out="Answer without republish; or write to a new table name, which takes all by the new contract.",
        )
    found = rollback.look(file.table, contracts, catalog, Ledger(catalog), snapshot_id=opened.snapshot_id)
    if found.lost:
        raise RefusedError(rollback.loss(found).message, table=file.table, way_out="Answer without republish.")
    return found


def _tell(catalog: Catalog, outlook: Outlook, opened: Row | None) -> list[str]:
    """Let the records that were set apart since the review began say that the change was rejected."""
    refused = rejected_change.standing(catalog, outlook.base, outlook.old)
    if opened is None or not refused:
        return []
    told, left = rejected_change.tell(catalog, outlook.old, refused, opened.at)
    out = [f"{told:,} records in quarantine say so."]
    if left:
        out.append(f"{left:,} do not: their batches are too large for that. The reason is in sluice.schemas.")
    return out


def _to_bring(catalog: Catalog, old: Contract, file: Contract, opened: Row, why: str) -> list[Request]:
    """The backfills of what was set apart since the review began, one for each topic.

    What lies above the table's cursor is of a batch that is blocked, which brings it itself.
    """
    table = catalog.load_table(table_names.typed(file))
    reached = cursor.published(table, lambda: Ledger(catalog).remembered(file.table))
    # By either of the two, what was set apart may have lost its raw record, which staging has.
    origin = Origin.STAGING if file.drops_raw or old.drops_raw else Origin.QUARANTINE
    found = []
    for topic, spans in review_records.set_apart(catalog, file, opened.at).spans.items():
        if topic not in reached or topic not in file.topics:
            continue
        ends = reached[topic].next_offsets
        below = {p: OffsetRange(r.start, min(r.end, ends.get(p, 0))) for p, r in spans.items()}
        if ranges := {p: r for p, r in below.items() if r.span > 0}:
            found.append(Request(file.table, ranges, origin=origin, topic=topic, why=why))
    return found


def listed(catalog: Catalog, file: Contract) -> list[str]:
    """Every version and every answer, in words, oldest first."""
    out = []
    for row in evolve.versions(catalog, file):
        by = f" by {row.who or 'somebody'}: {row.why}" if row.why else ""
        out.append(f"{row.at:%Y-%m-%d %H:%M:%S} UTC  version {row.version}  {row.state}{by}")
        out += [f"    {words}" for words in row.words]
        if row.state == State.APPLIED:
            began = json.loads(row.offsets or "{}")
            told = "; ".join(
                f"{t} " + ", ".join(f"{p}: {o}" for p, o in sorted(at.items(), key=lambda x: int(x[0])))
                for t, at in sorted(began.items())
            )
            after = f"after snapshot {row.snapshot_id}" if row.snapshot_id else "from the table's first snapshot"
            out.append(f"    schema {row.schema_id}, {after}, from offsets {told or 'where the topics start'}")
    return out
