"""Accept a gap: the operator's explicit word that lost offsets are given up.

The word is a row of the ledger. Planning then takes a batch whose ranges pass over exactly these offsets; the batch's
commits carry them as `sluice.gaps`. A gap that has grown since needs a new word.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from sluice.contract.folder import Contracts
from sluice.errors import OffsetsLostError, PlanLostError, RefusedError, SluiceError, StagingTrimmedError
from sluice.ledger import accepted_gaps
from sluice.ledger.offsets_table import ConflictError, Ledger, Row
from sluice.offsets import OffsetRange, Ranges, encode_ranges
from sluice.plan import plan

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

ATTEMPTS = 5


@dataclass(frozen=True)
class Gap:
    """What one topic has lost and nobody has given up yet: what planning stops for.

    Attributes:
        tables: where it will be missing.
        table: the one table that it is about, where staging has lost it; None where Kafka has.
    """

    topic: str
    topic_id: str
    ranges: Ranges
    tables: tuple[str, ...]
    table: str | None = None

    @classmethod
    def of(cls, stop: SluiceError, tables: tuple[str, ...], table: str | None = None) -> Self:
        """What an error names."""
        lost = {int(p): OffsetRange(*r) for p, r in stop.fields["lost"].items()}
        return cls(stop.fields["topic"], stop.fields["topic_id"], lost, tables, table)

    @property
    def span(self) -> int:
        """How many offsets."""
        return sum(r.span for r in self.ranges.values())

    def rows(self, who: str, why: str) -> list[Row]:
        """The word that gives it up."""
        return accepted_gaps.rows(self.topic, self.topic_id, self.ranges, who=who, why=why, table=self.table)

    def __str__(self) -> str:
        return f"{self.topic} {encode_ranges(self.ranges)}: {self.span:,} offsets, missing in {', '.join(self.tables)}"


def look(name: str, contracts: Contracts, catalog: Catalog, client: AdminClient, ledger: Ledger | None) -> list[Gap]:
    """The gaps of a topic; or those of a table's topics, and what staging has lost for that table.

    Args:
        name: a table or a topic. A name that both have means the table, whether it reads that topic or not.

    Raises:
        ContractError: no contract names it.
        BrokerUnavailableError: Kafka did not answer.
    """
    is_topic = name in contracts.topics and name not in contracts.tables
    topics = (name,) if is_topic else contracts.table(name).topics
    found = []
    for topic in topics:
        settings = contracts.topics[topic]
        planned = plan.look(contracts.group(settings.group), contracts, catalog, client, ledger)
        stop = planned.broken.get(topic)
        if isinstance(stop, OffsetsLostError):
            found.append(Gap.of(stop, settings.tables))
        stop = planned.stops.get(name)
        if isinstance(stop, StagingTrimmedError) and stop.fields["topic"] == topic:
            found.append(Gap.of(stop, (name,), name))
    return found


def accept(
    name: str,
    named: Mapping[int, Sequence[int]] | None,
    contracts: Contracts,
    catalog: Catalog,
    client: AdminClient,
    *,
    who: str,
    why: str,
    run_id: str,
    dry_run: bool,
) -> list[Gap]:
    """Give up what Kafka has lost of a topic, or of a table's topics, and keep the word in the ledger.

    Args:
        named: `{partition: [start, end)}`; left out, it is what planning names at this moment.
        who: whose word it is.
        why: the reason, for those who wonder later.
        dry_run: only tell what would be given up.

    Returns:
        What was given up.

    Raises:
        RefusedError: nothing is lost, or something else is than was named; or no reason is given.
        BrokerUnavailableError: Kafka did not answer.
        PlanLostError: the ledger was written to each time before the word could be.
    """
    if not why.strip():
        raise RefusedError("No reason is given.", way_out="Say why the offsets are given up: it is kept in the ledger.")
    for _ in range(ATTEMPTS):
        ledger = Ledger(catalog)
        gaps = look(name, contracts, catalog, client, ledger)
        if not gaps:
            raise RefusedError(
                f"Nothing that {name!r} has yet to read is lost, or it was given up already.",
                way_out=_namesake(name, contracts)
                or "Nothing to do; `python -m sluice plan` tells what else may stop it.",
            )
        gaps = _named(name, gaps, named) if named else gaps
        if dry_run:
            return gaps
        try:
            ledger.append([row for gap in gaps for row in gap.rows(who, why)], run_id=run_id, cas=True)
        except ConflictError:
            log.info("accept_gap: the ledger moved on, looking again")
            continue
        return gaps
    raise PlanLostError("The ledger never stood still long enough to write the word.", run=run_id)


def _namesake(name: str, contracts: Contracts) -> str | None:
    """What to name where a table has the name of a topic that it does not read."""
    if name not in contracts.tables or name not in contracts.topics or name in contracts.tables[name].topics:
        return None
    others = ", ".join(contracts.topics[name].tables)
    return (
        f"{name!r} is the table, which does not read the topic of that name. For that name a table that does: {others}."
    )


def _named(name: str, gaps: Sequence[Gap], named: Mapping[int, Sequence[int]]) -> list[Gap]:
    """The one gap, as far as it was named.

    Raises:
        RefusedError: what was named is not what is lost.
    """
    if len(gaps) > 1:
        raise RefusedError(
            f"Ranges are of one topic, and {name!r} lacks several: {'; '.join(map(str, gaps))}.",
            way_out="Leave the ranges out to give up all of these; or name one topic with its ranges, which takes what "
            "Kafka has lost of it, unless a table has the topic's name.",
        )
    (gap,) = gaps
    wanted = {}
    for p, bounds in named.items():
        if tuple(bounds) != gap.ranges.get(p):
            raise RefusedError(
                f"Partition {p} has not lost exactly {list(bounds)}.",
                topic=gap.topic,
                lost=encode_ranges(gap.ranges),
                way_out="Name exactly what is lost, as `[first, end)`, or leave the ranges out to take what is lost "
                "now. A gap that has grown since it was looked at needs a new word.",
            )
        wanted[p] = gap.ranges[p]
    return [replace(gap, ranges=wanted)]
