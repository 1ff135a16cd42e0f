"""What planning starts from and results in: per topic the batches to stage, per table the batches to publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog

from sluice.batch import Batch, PublishedOffsets
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import SluiceError
from sluice.evolve.pending_change import PendingChange
from sluice.kafka import broker
from sluice.ledger.ledger_rows import LedgerRow
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import Offsets
from sluice.plan.risk import Risk

SMALL_OFFSETS, SMALL_ROWS = 100_000, 10_000_000


@dataclass(frozen=True)
class PlanInputs:
    """What a plan is made from.

    Attributes:
        contracts: all contracts, their topics resolved by `sluice.plan.resolve_topics`.
        client: for the watermarks and the topics' settings.
        ledger: None where it does not exist yet: then only the tables are read.
        unready: tables that this machine can't publish to, with the error.
        kafka: Kafka's answer for topics that the caller has asked about just now; it is asked about the others.
        ends: per topic and partition the first offset that is not to be planned, where the log has more.
    """

    contracts: Contracts
    catalog: Catalog
    client: AdminClient
    ledger: Ledger | None = None
    unready: Mapping[str, SluiceError] = field(default_factory=dict)
    kafka: Mapping[str, broker.TopicState | SluiceError] = field(default_factory=dict)
    ends: Mapping[str, Offsets] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicPlan:
    """The batches of one topic to stage, in order.

    Attributes:
        last: the last batch in staging.
        frozen: the batches were planned by an earlier run and are not in staging yet.
        state: Kafka's answer; None where planning the topic failed.
        unrecorded: typed tables that read the topic and are not among the consumers in its staging table.
    """

    topic: str
    last: Batch | None
    to_stage: tuple[Batch, ...] = ()
    frozen: bool = False
    state: broker.TopicState | None = None
    unrecorded: tuple[str, ...] = ()

    def unread(self, batch: Batch) -> int | None:
        """How many unread offsets the topic had before one of its batches, up to the log end when it was planned."""
        if self.state is None:
            return None
        starts = batch.start_offsets
        return sum(marks.end - starts.get(p, marks.start) for p, marks in self.state.watermarks.items())


@dataclass(frozen=True)
class TablePlan:
    """One table.

    Attributes:
        published: per topic how far the table has published.
        pending: per topic the batches that are staged and not published, in order.
        rows: how many rows the table has now.
        other_writers: what other engines committed since Sluice's last commit, as text; empty if nothing.
    """

    contract: Contract
    published: Mapping[str, PublishedOffsets] = field(default_factory=dict)
    pending: Mapping[str, tuple[Batch, ...]] = field(default_factory=dict)
    rows: int = 0
    other_writers: str = ""


@dataclass(frozen=True)
class GroupPlan:
    """What a run of a group does.

    Attributes:
        topics: in the order in which they are staged: the one that has waited longest comes first.
        stops: tables that need attention, with the error that stops them.
        broken: topics that can't be read, with the error; they stop their tables.
        missing_ledger_rows: rows that the ledger lacks and the tables' snapshots have.
        warnings: what does not stop a table yet.
        pending_changes: per existing table the change that its contract asks for.
    """

    group: str
    topics: Mapping[str, TopicPlan]
    tables: Mapping[str, TablePlan]
    stops: Mapping[str, SluiceError]
    broken: Mapping[str, SluiceError] = field(default_factory=dict)
    missing_ledger_rows: tuple[LedgerRow, ...] = ()
    warnings: tuple[Risk, ...] = ()
    pending_changes: Mapping[str, PendingChange] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        """Whether Spark is needed."""
        return any(t.to_stage for t in self.topics.values()) or any(
            batches for t in self.tables.values() for batches in t.pending.values()
        )

    @property
    def is_small(self) -> bool:
        """Whether the run ends before the JVM's optimizing compiler pays off."""
        batches = [b for t in self.topics.values() for b in t.to_stage]
        batches += [b for t in self.tables.values() for each in t.pending.values() for b in each]
        searched = [t.rows for t in self.tables.values() if t.contract.keyed]
        return sum(b.span for b in batches) <= SMALL_OFFSETS and max(searched, default=0) <= SMALL_ROWS

    def lines(self) -> list[str]:
        """The plan as text, one line per batch, table, error and warning."""
        out = []
        for topic in self.topics.values():
            for batch in topic.to_stage:
                s = "" if batch.span == 1 else "s"
                earlier = ", planned earlier" if topic.frozen else ""
                out.append(f"stage   {batch} ({batch.span} offset{s}{earlier})")
        for name, table in self.tables.items():
            feeds = {t: [b.seq for b in batches] for t, batches in table.pending.items()}
            for t in table.contract.topics:
                feeds.setdefault(t, []).extend(b.seq for b in self.topics[t].to_stage)
            for t, seqs in feeds.items():
                if seqs:
                    out.append(f"publish {name} from {t}: batches {', '.join(map(str, seqs))}")
        out += [f"stop    {name}: {error}" for name, error in self.stops.items()]
        for name, change in self.pending_changes.items():
            if summary := change.summary():
                out.append(f"{'warn  ' if change.schema_error else 'schema'}  {name}: {summary}")
        return [*(f"warn    {warning}" for warning in self.warnings), *(out or ["nothing to do"])]
