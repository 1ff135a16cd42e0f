"""The ledger `sluice.offsets`: an append-only history of plans and outcomes that any engine can query.

It is an index. What a table holds is what the table's own snapshots say; the ledger adds what is still under way, and
why something was refused. Every write is a compare-and-set on the ledger's head.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import reduce
from math import inf
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, MapType, NestedField, StringType, TimestamptzType

from sluice.batch import Batch, Remembered, Through
from sluice.errors import LedgerError, RetryableError, SluiceError
from sluice.iceberg import availability, own_table, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, above, at_most, equal, one_of
from sluice.offsets import OffsetRange

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

APPEND_TRIES = 20


class State(StrEnum):
    """What a ledger row reports."""

    PLANNED = "planned"
    STAGED = "staged"
    PUBLISHED = "published"
    BLOCKED = "blocked"
    FAILED = "failed"
    RETRIED = "retried"
    SETTLED = "settled"
    GAP = "gap"
    ROLLED_BACK = "rolled_back"
    REPLAYED = "replayed"


SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="when the row was written"),
    NestedField(2, "run_id", StringType(), doc="the Airflow run, or who ran the command"),
    NestedField(3, "topic", StringType(), required=True),
    NestedField(4, "topic_id", StringType(), doc="Kafka's id of the topic, new when it is created again"),
    NestedField(5, "batch_seq", LongType(), doc="the topic's batch number; below zero: a slice of a backfill"),
    NestedField(6, "partition", IntegerType(), doc="null in rows about a batch as a whole"),
    NestedField(7, "start_offset", LongType(), doc="first offset of the range"),
    NestedField(8, "end_offset", LongType(), doc="one past the last offset; equal to start where nothing is read"),
    NestedField(9, "state", StringType(), required=True, doc=", ".join(State)),
    NestedField(10, "table", StringType(), doc="the typed table of published, blocked, failed and retried rows"),
    NestedField(
        11, "snapshots", MapType(14, StringType(), 15, LongType()), doc="table -> snapshot that holds the batch"
    ),
    NestedField(12, "records", LongType(), doc="records staged or published"),
    NestedField(13, "rejected", LongType(), doc="records sent to quarantine"),
    NestedField(16, "seconds", DoubleType(), doc="how long the step took"),
    NestedField(17, "error", StringType(), doc="why a table was blocked or failed, or an attempt was made again"),
    NestedField(18, "who", StringType(), doc="gap, rolled_back, a backfill: whose word it is; who told it anew"),
    NestedField(19, "why", StringType(), doc="gap, rolled_back, a backfill: the reason given; replayed: what changed"),
    NestedField(20, "oldest", TimestamptzType(), doc="staged: the least timestamp of the batch's records in Kafka"),
    NestedField(21, "newest", TimestamptzType(), doc="staged: the greatest"),
    NestedField(22, "unread", LongType(), doc="staged: the topic's offsets from this batch on, to Kafka's end by then"),
    NestedField(23, "commit_seconds", DoubleType(), doc="staged, published: of these, how long readers' commit took"),
    NestedField(24, "exception", StringType(), doc="the class of that error, with its package, in Python or Java"),
)
SPEC = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "topic"))


@dataclass(frozen=True)
class Row:
    """One line of the ledger; see `SCHEMA` for what each field means."""

    topic: str
    state: State
    topic_id: str | None = None
    batch_seq: int | None = None
    partition: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    table: str | None = None
    snapshots: Mapping[str, int] | None = None
    records: int | None = None
    rejected: int | None = None
    seconds: float | None = None
    error: str | None = None
    who: str | None = None
    why: str | None = None
    oldest: datetime | None = None
    newest: datetime | None = None
    unread: int | None = None
    commit_seconds: float | None = None
    exception: str | None = None
    run_id: str | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


class ConflictError(RetryableError):
    """The ledger's head moved since it was read; nothing was written."""


class Ledger:
    """A view of the ledger at one head. Reading is cheap; every append moves the view on."""

    def __init__(self, catalog: Catalog, table: Table | None = None) -> None:
        self.catalog = catalog
        self.table = table or own_table.widened(tables.ensure(catalog, table_names.LEDGER, SCHEMA, SPEC), SCHEMA)
        self._settled: tuple[int | None, dict[str | None, list[FileScanTask]]] = (None, {})

    def refresh(self) -> None:
        """Look at the ledger as it is now."""
        self.table = self.catalog.load_table(table_names.LEDGER)

    def rows(self, after: Mapping[str, int], states: Iterable[State] | None = None) -> list[Row]:
        """The rows of the named topics with a batch number above the given one, oldest first."""
        if not after or self.table.metadata.current_snapshot_id is None:
            return []
        # The topics are no part of the filter, which is evaluated whole for each file: each file is of one topic.
        # Files whose floors are of like size are read at once; what that lets through too much is dropped below.
        stated = [] if states is None else [one_of("state", [str(s) for s in states])]
        lowest = min(after.values())
        alike: dict[int, list[tuple[int, FileScanTask]]] = {}
        for task in self.table.scan(row_filter=reduce(And, stated, above("batch_seq", lowest))).plan_files():
            topic = self._topic(task.file)
            floor = lowest if topic is None else after.get(topic)
            if floor is not None and self._last_seq(task.file) > floor:
                alike.setdefault(floor.bit_length(), []).append((floor, task))
        if not alike:
            return []
        read = []
        for some in alike.values():
            wanted = reduce(And, stated, above("batch_seq", min(floor for floor, _ in some)))
            read.append(self._read([task for _, task in some], wanted))
        found = pa.concat_tables(read, promote_options="permissive").sort_by([("at", "ascending")])
        place = pc.index_in(found["topic"], pa.array(list(after), found.schema.field("topic").type))
        least = pa.array(list(after.values()), pa.int64()).take(place)
        return [row_of(r) for r in found.filter(pc.greater(found["batch_seq"], least)).to_pylist()]

    def files(self, wanted: BooleanExpression) -> dict[str | None, list[FileScanTask]]:
        """The files that may hold such rows, by the topic that they are of; None: of any."""
        found: dict[str | None, list[FileScanTask]] = {}
        for task in self.table.scan(row_filter=wanted).plan_files():
            found.setdefault(self._topic(task.file), []).append(task)
        return found

    def _topic(self, file: DataFile) -> str | None:
        """The one topic of a file; None where somebody has partitioned the ledger otherwise."""
        spec = self.table.specs()[file.spec_id]
        return str(file.partition[0]) if spec.fields == SPEC.fields else None

    def _last_seq(self, file: DataFile) -> float:
        """The highest batch number of a file, as far as its bounds tell."""
        return tables.bound(file.upper_bounds, self.table.schema().find_field("batch_seq"), inf)

    def _first_at(self, file: DataFile) -> float:
        """When a file's first row was written, in seconds, as far as its bounds tell."""
        return tables.bound(file.lower_bounds, self.table.schema().find_field("at"), -inf) / 1_000_000

    def _read(self, tasks: Sequence[FileScanTask], wanted: BooleanExpression, *fields: str) -> pa.Table:
        table, columns = self.table, self.table.schema()
        return ArrowScan(table.metadata, table.io, columns.select(*fields) if fields else columns, wanted).to_table(
            tasks
        )

    def remembered(self, table: str) -> Remembered | None:
        """How far the ledger saw a table come, for the case that the table itself can no longer tell."""
        if self.table.metadata.current_snapshot_id is None:
            return None
        wanted = one_of("state", [str(State.SETTLED), str(State.ROLLED_BACK)])
        found = list(map(row_of, self.table.scan(row_filter=wanted).to_arrow().to_pylist()))
        rows = [r for r in found if r.state == State.SETTLED and table in (r.snapshots or {})]
        undone = (r.at for r in found if r.state == State.ROLLED_BACK and r.table == table)
        since = max(undone, default=datetime.min.replace(tzinfo=UTC))
        # Not by number: after a rollback lower ones come again. Nor by when a batch was last told of, which it also is
        # when it stands elsewhere in another table: by when it was first seen in this table's snapshot.
        seen: dict[tuple[str, int, int], datetime] = {}
        for row in rows:
            key = row.topic, row.batch_seq or 0, (row.snapshots or {})[table]
            seen[key] = min(seen.get(key, row.at), row.at)
        last = {
            topic: (seq, at)
            for (topic, seq, _), at in sorted(seen.items(), key=lambda each: (each[1], each[0]))
            if at > since
        }
        if not last:
            return None
        told = batches(rows)
        through = {
            topic: Through(seq, told[topic, seq].topic_id, told[topic, seq].next_offsets)
            for topic, (seq, _) in last.items()
        }
        return Remembered(through, int(max(at for _, at in last.values()).timestamp() * 1000))

    def remembered_batch(self, topic: str) -> tuple[Batch, int] | None:
        """The topic's last batch that the ledger saw staged, and when (epoch ms), should staging no longer tell."""
        rows = self.rows({topic: 0})
        done = {r.batch_seq: r.at for r in reversed(rows) if r.batch_seq and r.state in (State.STAGED, State.SETTLED)}
        last = batches(rows).get((topic, max(done, default=0)))
        return (last, int(done[last.seq].timestamp() * 1000)) if last else None

    def gaps(self, topics: Iterable[str]) -> list[Row]:
        """What was given up of these topics, oldest first."""
        if self.table.metadata.current_snapshot_id is None:
            return []
        wanted = And(one_of("topic", sorted(topics)), equal("state", str(State.GAP)))
        found = self.table.scan(row_filter=wanted).to_arrow().sort_by([("at", "ascending")])
        return [row_of(r) for r in found.to_pylist()]

    def settled_before(self, topic: str, moment: datetime, above_seq: int = 0) -> int:
        """The topic's last batch above that one that all its tables were seen to hold at that moment; 0: none.

        The files are listed once for all topics, for as long as nothing is written: a list for each topic would take as
        long as that for all.
        """
        head = self.table.metadata.current_snapshot_id
        if head is None:
            return 0
        stated = equal("state", str(State.SETTLED))
        if self._settled[0] != head:
            self._settled = head, self.files(stated)
        tasks = [
            task
            for task in (*self._settled[1].get(topic, ()), *self._settled[1].get(None, ()))
            if self._last_seq(task.file) > above_seq and self._first_at(task.file) <= moment.timestamp()
        ]
        if not tasks:
            return 0
        wanted = And(And(stated, equal("topic", topic)), above("batch_seq", above_seq))
        found = self._read(tasks, wanted, "batch_seq", "at")
        return pc.max(found.filter(pc.field("at") <= moment)["batch_seq"]).as_py() or 0

    def last_settled(self, topic: str, most: int) -> int:
        """The topic's last batch up to this number that all its tables were seen to hold; 0 where there is none."""
        if self.table.metadata.current_snapshot_id is None:
            return 0
        of_topic = And(equal("topic", topic), equal("state", str(State.SETTLED)))
        found = self.table.scan(row_filter=And(of_topic, at_most("batch_seq", most)), selected_fields=("batch_seq",))
        return pc.max(found.to_arrow()["batch_seq"]).as_py() or 0

    def append(self, rows: Iterable[Row], *, run_id: str, cas: bool = False) -> None:
        """Write rows in one commit.

        Args:
            rows: what to write; those without a run id get `run_id`.
            run_id: who writes; also stands in the commit's summary.
            cas: refuse when the ledger moved since this view was read; otherwise move onto the new head.

        Raises:
            ConflictError: the head moved (without `cas`: each of many times). Nothing was written; the view is fresh.
        """
        records = [asdict(replace(r, run_id=r.run_id or run_id)) for r in rows]
        if not records:
            return
        for record in records:
            record["snapshots"] = sorted((record["snapshots"] or {}).items())
        data = pa.Table.from_pylist(records, schema=self.table.schema().as_arrow())
        for attempt in range(APPEND_TRIES):
            time.sleep(0.05 * attempt)
            if not cas:
                self.refresh()
            head = self.table.metadata.current_snapshot_id
            own_table.commit_once(self.table)
            try:
                own_table.append(self.table, data, **{"sluice.run-id": run_id})
            except CommitFailedException as error:
                conflict = ConflictError(str(error))
                self.refresh()
                # What came first may have written no row, such as an expiry of snapshots: that is no reason to refuse.
                if cas and self.table.metadata.current_snapshot_id != head:
                    break
            else:
                self.refresh()
                return
        raise conflict


def row_of(record: dict[str, Any]) -> Row:
    """A record of the table as a row."""
    record["snapshots"] = dict(record["snapshots"] or [])
    record["state"] = State(record["state"])
    return Row(**record)


def plan_rows(batch: Batch, state: State = State.PLANNED, snapshots: Mapping[str, int] | None = None) -> list[Row]:
    """A batch as ledger rows: one per partition of the topic, those without anything to read as empty ranges."""
    return [
        Row(
            topic=batch.topic,
            topic_id=batch.topic_id,
            batch_seq=batch.seq,
            partition=p,
            start_offset=start,
            end_offset=batch.next_offsets[p],
            state=state,
            snapshots=snapshots,
        )
        for p, start in sorted(batch.starts.items())
    ]


def staged_rows(
    batch: Batch, place: Mapping[str, int], *, at: datetime, records: int | None, run_id: str | None, who: str
) -> list[Row]:
    """What a plan and a run write of a staged batch, told anew from its snapshot: the ranges, and that it was staged.

    Args:
        run_id: the run that staged it, as its snapshot tells.
        who: tells it anew.
    """
    rows = plan_rows(batch)
    rows.append(Row(batch.topic, State.STAGED, batch.topic_id, batch.seq, snapshots=place, records=records))
    return [replace(row, at=at, run_id=run_id, who=who) for row in rows]


def batches(rows: Iterable[Row], broken: dict[str, SluiceError] | None = None) -> dict[tuple[str, int], Batch]:
    """The batches that `plan_rows` wrote, by topic and number.

    Args:
        broken: takes the error of each topic that contradicts itself, whose batches are left out; without it, it is
            raised.

    Raises:
        LedgerError: two rows give one partition of a batch different ranges.
    """
    parts: dict[tuple[str, int], dict[int, Row]] = {}
    torn: dict[str, SluiceError] = {}
    for row in rows:
        if row.partition is None or row.batch_seq is None or row.state == State.GAP:
            continue
        known = parts.setdefault((row.topic, row.batch_seq), {}).setdefault(row.partition, row)
        if (known.start_offset, known.end_offset) != (row.start_offset, row.end_offset):
            error = LedgerError(
                "The ledger gives one batch two different ranges.",
                topic=row.topic,
                batch=row.batch_seq,
                partition=row.partition,
            )
            if broken is None:
                raise error
            torn.setdefault(row.topic, error)
    if broken is not None:
        broken |= torn
    found = {}
    for (topic, seq), by_partition in parts.items():
        if topic in torn:
            continue
        bounds = {p: OffsetRange(r.start_offset or 0, r.end_offset or 0) for p, r in by_partition.items()}
        found[topic, seq] = Batch(
            topic=topic,
            topic_id=next(iter(by_partition.values())).topic_id or "",
            seq=seq,
            ranges={p: r for p, r in sorted(bounds.items()) if r.span},
            next_offsets={p: r.end for p, r in sorted(bounds.items())},
        )
    return found


def existing_ledger_table(catalog: Catalog) -> Table | None:
    """The ledger's table where there is one: looking must not create it."""
    from sluice.iceberg import table_names, tables

    with availability.catalog_errors():
        return tables.load(catalog, table_names.LEDGER)
