"""A review as a person sees it: the change in words, what came in since it was opened, and what either answer does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog

from sluice import cursor, evolve, evolve_apply, rollback, tables
from sluice.contract import Contract
from sluice.contracts import Contracts
from sluice.evolve_outlook import Outlook
from sluice.filters import And, equal, one_of
from sluice.ledger import Ledger
from sluice.model import STEP, TOPIC, Batch, batches_of, joined_ranges
from sluice.schemas import Row, State

SHOWN = 20


@dataclass(frozen=True)
class Review:
    """An open review.

    Attributes:
        opened: the row that tells when; None where no run has opened it yet.
        ranges: per topic and partition the offsets published since, by the contract in force.
        batches: their numbers, by topic.
        records: rows that were added since.
        rejected: records rejected since, by error and field; no values.
        cannot: why it can't be approved, if so.
    """

    outlook: Outlook
    opened: Row | None = None
    ranges: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    batches: Mapping[str, Sequence[int]] = field(default_factory=dict)
    records: int = 0
    rejected: Mapping[tuple[str, str], int] = field(default_factory=dict)
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
        out.append(f"meanwhile {self.records:,} rows added, {sum(self.rejected.values()):,} records rejected")
        for (error, name), count in sorted(self.rejected.items())[:SHOWN]:
            out.append(f"rejected  {count:,} {error}{f' in field {name}' if name else ''}")
        if self.cannot:
            return [*out, f"approve   can't be: {self.cannot}", "reject    the table goes on as it is"]
        return [
            *out,
            "approve   the table is changed; rows that were added meanwhile stay as they are unless they are "
            "republished; rejected records can be brought by DAG backfill, source quarantine",
            "reject    the table goes on by the contract in force; what does not fit it stays in quarantine",
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
        for snapshot in cursor.ancestors(outlook.base.metadata):
            if snapshot.snapshot_id == opened.snapshot_id:
                break
            told = cursor.summary(snapshot)
            if told.get(STEP) == "publish":
                brought[told[TOPIC]] = [*batches_of(told), *brought.get(told[TOPIC], [])]
                records += int(told.get("added-records", "0"))
    for topic, batches in brought.items():
        numbers[topic] = [b.seq for b in batches]
        ranges[topic] = {p: (r.start, r.end) for p, r in sorted(joined_ranges(batches).items()) if r.span}
    why = evolve_apply.impossible(outlook.base, outlook.old, outlook.new, outlook.changes)
    return Review(outlook, opened, ranges, numbers, records, _rejected(catalog, file, numbers), why)


def _rejected(catalog: Catalog, file: Contract, batches: Mapping[str, Sequence[int]]) -> dict[tuple[str, str], int]:
    held = tables.load(catalog, tables.quarantine(file))
    counted: Counter[tuple[str, str]] = Counter()
    if held is None:
        return {}
    for topic, seqs in batches.items():
        mine = And(equal("_kafka_topic", topic), one_of("batch_seq", seqs))
        for row in held.scan(row_filter=mine, selected_fields=("error_class", "field")).to_arrow().to_pylist():
            counted[row["error_class"], row["field"] or ""] += 1
    return dict(counted)


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
) -> list[str]:
    """Approve or reject, see `evolve.decide`.

    Args:
        republish: of an approved change: take the table back to where the review began, so that what was published
            since by the old contract is published from staging by the new one.

    Returns:
        What was done, in sentences.
    """
    file = contracts.table(name)
    outlook = evolve.decide(catalog, file, approve=approve, who=who, why=why, run_id=run_id, change_id=change_id)
    if not approve:
        return [f"{name}: rejected. It goes on with version {outlook.version} of its contract."]
    out = [f"{name}: approved, and changed to version {outlook.version + 1} of its contract."]
    opened = evolve.opened(catalog, outlook)
    at = outlook.base.metadata.current_snapshot_id
    if republish and opened and opened.snapshot_id and opened.snapshot_id != at:
        ledger = Ledger(catalog)
        found = rollback.look(name, contracts, catalog, ledger, snapshot_id=opened.snapshot_id)
        rollback.roll_back(found, catalog, ledger, who=who, why=why, run_id=run_id)
        out += found.lines()
        out.append("The next run publishes again what is marked so, by the new contract.")
    elif republish:
        out.append("Nothing was published since the review began.")
    return out


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
