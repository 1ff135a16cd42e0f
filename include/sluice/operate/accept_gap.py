"""Accepts a gap: an operator decides that lost offsets are skipped permanently.

In: a table or topic, and a `Decision`. Out: ledger rows. Planning then makes a batch whose ranges skip exactly these
offsets and whose commits carry them as `sluice.gaps`. A gap that grows needs a new decision.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from sluice.contract.folder import Contracts
from sluice.errors import (
    LogTruncatedError,
    OffsetsLostError,
    PlanLostError,
    RefusedError,
    SluiceError,
    StagingTrimmedError,
)
from sluice.iceberg import table_names
from sluice.ledger import accepted_gaps
from sluice.ledger.ledger_rows import LedgerRow
from sluice.ledger.offsets_table import ConflictError, Ledger
from sluice.offsets import OffsetRange, Ranges, encode_ranges
from sluice.operate.operator_input import Decision
from sluice.plan import plan
from sluice.plan.model import PlanInputs

log = logging.getLogger(__name__)

ATTEMPTS = 5


@dataclass(frozen=True)
class Gap:
    """Lost offsets of one topic that nobody has accepted yet: planning stops for them.

    Attributes:
        tables: the tables that will miss the records.
        table: the one table concerned, if staging lost the records; the staging table, if `replaced`; None if Kafka
            lost unread records.
        replaced: Kafka's log was truncated: the tables have what Kafka lost, and lack what replaced it.
    """

    topic: str
    topic_id: str
    ranges: Ranges
    tables: tuple[str, ...]
    table: str | None = None
    replaced: bool = False

    @classmethod
    def from_error(cls, error: SluiceError, tables: tuple[str, ...], table: str | None = None) -> Self:
        """The gap that an error of planning reports."""
        topic = error.fields["topic"]
        lost = {int(p): OffsetRange(*r) for p, r in error.fields["lost"].items()}
        replaced = isinstance(error, LogTruncatedError)
        about = ".".join(table_names.staging(topic)) if replaced else table
        return cls(topic, error.fields["topic_id"], lost, tables, about, replaced)

    @property
    def span(self) -> int:
        """The number of offsets."""
        return sum(r.span for r in self.ranges.values())

    def ledger_rows(self, decision: Decision) -> list[LedgerRow]:
        """The ledger rows that accept the gap."""
        lost = accepted_gaps.LostRanges(self.topic, self.topic_id, self.ranges)
        return accepted_gaps.gap_rows(lost, who=decision.who, why=decision.why, table=self.table)

    def __str__(self) -> str:
        effect = "replaced in Kafka by records that are missing in" if self.replaced else "missing in"
        return f"{self.topic} {encode_ranges(self.ranges)}: {self.span:,} offsets, {effect} {', '.join(self.tables)}"


def find_gaps(name: str, inputs: PlanInputs) -> list[Gap]:
    """The gaps of a topic; or those of a table's topics, and what staging has lost for that table.

    Args:
        name: a table or a topic. If both have this name, the table is meant, whether it reads that topic or not.

    Raises:
        ContractError: no contract names it.
        BrokerUnavailableError: Kafka did not answer.
    """
    contracts = inputs.contracts
    is_topic = name in contracts.topics and name not in contracts.tables
    topics = (name,) if is_topic else contracts.table(name).topics
    found = []
    for topic in topics:
        settings = contracts.topics[topic]
        planned = plan.make_plan(contracts.group(settings.group), inputs)
        error = planned.broken.get(topic)
        if isinstance(error, OffsetsLostError | LogTruncatedError):
            found.append(Gap.from_error(error, settings.tables))
        error = planned.stops.get(name)
        if isinstance(error, StagingTrimmedError) and error.fields["topic"] == topic:
            found.append(Gap.from_error(error, (name,), name))
    return found


def accept_gaps(
    name: str,
    ranges: Mapping[int, Sequence[int]] | None,
    inputs: PlanInputs,
    decision: Decision,
    *,
    dry_run: bool,
) -> list[Gap]:
    """Accept what is lost of a topic, or of a table's topics, and record the decision in the ledger.

    Args:
        ranges: `{partition: [start, end)}`; empty: all that planning reports as lost now.
        inputs: the ledger is opened here.
        dry_run: only return what would be accepted.

    Returns:
        What was accepted.

    Raises:
        RefusedError: nothing is lost, the ranges are not what is lost, or no reason is given to accept it.
        BrokerUnavailableError: Kafka did not answer.
        PlanLostError: other writers committed to the ledger first, each time.
    """
    if not dry_run and not decision.why.strip():
        raise RefusedError("No reason is given.", next_step="Say why the offsets are skipped: the ledger records it.")
    for _ in range(ATTEMPTS):
        ledger = Ledger(inputs.catalog)
        gaps = find_gaps(name, replace(inputs, ledger=ledger))
        if not gaps:
            raise RefusedError(
                f"No offsets that {name!r} still needs are lost, or the gap is accepted already.",
                next_step=_same_name_hint(name, inputs.contracts)
                or "Nothing to do; `sluice plan` shows what else may stop it.",
            )
        if ranges:
            gaps = [_select_ranges(name, gaps, ranges)]
        if dry_run:
            return gaps
        try:
            rows = [row for gap in gaps for row in gap.ledger_rows(decision)]
            ledger.append(rows, run_id=decision.run_id, if_unchanged=True)
        except ConflictError:
            log.info("accept_gap: another writer committed to the ledger first, looking again")
            continue
        return gaps
    raise PlanLostError("Other writers committed to the ledger first, each time.", run=decision.run_id)


def _same_name_hint(name: str, contracts: Contracts) -> str | None:
    """The next step where a table has the name of a topic that it does not read."""
    if name not in contracts.tables or name not in contracts.topics or name in contracts.tables[name].topics:
        return None
    readers = ", ".join(contracts.topics[name].tables)
    return f"{name!r} means the table, which does not read the topic of that name. Name a table that does: {readers}."


def _select_ranges(name: str, gaps: Sequence[Gap], ranges: Mapping[int, Sequence[int]]) -> Gap:
    """The one gap, reduced to the given partitions.

    Raises:
        RefusedError: the ranges are not what is lost.
    """
    if len(gaps) > 1:
        raise RefusedError(
            f"Ranges refer to one topic, and {name!r} has lost offsets of several: {'; '.join(map(str, gaps))}.",
            next_step="Leave the ranges out to accept all of these; or name one topic with its ranges, which accepts "
            "what Kafka has lost of it (a table with the topic's name wins).",
        )
    (gap,) = gaps
    chosen = {}
    for p, bounds in ranges.items():
        if tuple(bounds) != gap.ranges.get(p):
            raise RefusedError(
                f"Partition {p} has not lost exactly {list(bounds)}.",
                topic=gap.topic,
                lost=encode_ranges(gap.ranges),
                next_step="Give exactly what is lost, as `[first, end)`, or leave the ranges out to accept what is "
                "lost now. A gap that has grown since needs a new decision.",
            )
        chosen[p] = gap.ranges[p]
    return replace(gap, ranges=chosen)
