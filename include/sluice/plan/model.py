"""TODO docstring of sluice.plan.model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.batch import Batch, Through
from sluice.contract.contract import Contract
from sluice.errors import SluiceError
from sluice.evolve.pending_change import Outlook
from sluice.kafka import broker
from sluice.ledger.offsets_table import Row
from sluice.plan.risk import Risk

SMALL_OFFSETS, SMALL_ROWS = 100_000, 10_000_000


@dataclass(frozen=True)
class TopicPlan:
    """One topic: the batches to stage, in order. `frozen` tells that an earlier plan is carried out, not a new one."""

    topic: str
    last: Batch | None
    to_stage: tuple[Batch, ...] = ()
    frozen: bool = False
    state: broker.TopicState | None = None

    def unread(self, batch: Batch) -> int | None:
        """How many offsets there were to read before one of the batches was, by Kafka's end as the plan saw it."""
        if self.state is None:
            return None
        starts = batch.starts
        return sum(marks.end - starts.get(p, marks.start) for p, marks in self.state.watermarks.items())


@dataclass(frozen=True)
class TablePlan:
    """One table: per topic the batches staged already that it has yet to publish, in order; and its rows by now."""

    contract: Contract
    through: Mapping[str, Through] = field(default_factory=dict)
    pending: Mapping[str, tuple[Batch, ...]] = field(default_factory=dict)
    rows: int = 0


@dataclass(frozen=True)
class GroupPlan:
    """What a run of a group does. `topics` are in the order of their turns: first those that waited longest.

    `stops` are tables that need a person, with the error that says why.
    `broken` are the topics that stop them; `warnings` tell of topics that retention is about to overtake; `outlooks`
    what the contracts ask of the tables that there are.
    """

    group: str
    topics: Mapping[str, TopicPlan]
    tables: Mapping[str, TablePlan]
    stops: Mapping[str, SluiceError]
    broken: Mapping[str, SluiceError] = field(default_factory=dict)
    heal: tuple[Row, ...] = ()
    warnings: tuple[Risk, ...] = ()
    outlooks: Mapping[str, Outlook] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        """Whether Spark is needed."""
        return any(t.to_stage for t in self.topics.values()) or any(
            batches for t in self.tables.values() for batches in t.pending.values()
        )

    @property
    def is_small(self) -> bool:
        """Whether the run is over before a JVM has gained what it spends on compiling for speed."""
        batches = [b for t in self.topics.values() for b in t.to_stage]
        batches += [b for t in self.tables.values() for each in t.pending.values() for b in each]
        searched = [t.rows for t in self.tables.values() if t.contract.keyed]
        return sum(b.span for b in batches) <= SMALL_OFFSETS and max(searched, default=0) <= SMALL_ROWS

    def lines(self) -> list[str]:
        """The plan in words, one line per topic and table."""
        out = []
        for topic in self.topics.values():
            for batch in topic.to_stage:
                out.append(f"stage   {batch} ({batch.span} offsets{', planned earlier' if topic.frozen else ''})")  # noqa: PERF401
        for name, table in self.tables.items():
            feeds = {t: [b.seq for b in batches] for t, batches in table.pending.items()}
            for t in table.contract.topics:
                feeds.setdefault(t, []).extend(b.seq for b in self.topics[t].to_stage)
            for t, seqs in feeds.items():
                if seqs:
                    out.append(f"publish {name} from {t}: batches {', '.join(map(str, seqs))}")
        out += [f"stop    {name}: {error}" for name, error in self.stops.items()]
        asked = [(each, name, line) for name, each in self.outlooks.items() if (line := each.line())]
        out += [f"{'warn  ' if each.unfollowed else 'schema'}  {name}: {line}" for each, name, line in asked]
        return [*(f"warn    {warning}" for warning in self.warnings), *(out or ["nothing to do"])]
