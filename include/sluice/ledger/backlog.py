"""Which batches a topic has, by its staging table and the ledger, and which of them a table has yet to publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from sluice.batch import RUN_ID, Batch, Through, joined_ranges
from sluice.contract.contract import Contract
from sluice.errors import LedgerError, SchemaChangeError, SluiceError, StagingTrimmedError, TopicRecreatedError
from sluice.iceberg import availability, cursor, snapshots, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, above, at_most
from sluice.ledger import offsets_table as ledgers
from sluice.ledger.accepted_gaps import covers, untold, with_gaps
from sluice.ledger.offsets_table import Ledger, Row, State
from sluice.offsets import encode_ranges

Staging = tuple[Table | None, Batch | None]


def staged(
    catalog: Catalog, topics: list[str], ledger: Ledger | None, broken: dict[str, SluiceError]
) -> dict[str, Staging]:
    """Per topic its staging table and the last batch in it; a topic whose staging can't tell is added to `broken`."""
    loaded: dict[str, Staging] = {}
    for topic in topics:
        try:
            staging = availability.alone(
                catalog, partial(tables.load, catalog, table_names.staging(topic)), topic=topic
            )
            loaded[topic] = (
                staging,
                cursor.staged(staging, partial(ledger.remembered_batch, topic) if ledger else None),
            )
        except SluiceError as error:
            broken[topic] = error
    return loaded


def served(loaded: Staging | None) -> int:
    """When a topic had its last turn: milliseconds at which its last batch was staged; 0 where no snapshot tells."""
    staging, last = loaded or (None, None)
    told = cursor.staged_batches(staging, last.seq - 1) if last else {}
    return max((snapshot.timestamp_ms for _, snapshot in told.values()), default=0)


def known_batches(
    contracts: Sequence[Contract],
    loaded: Mapping[str, Staging],
    through: Mapping[str, Mapping[str, Through]],
    ledger: Ledger | None,
    words: Sequence[Row] = (),
    broken: dict[str, SluiceError] | None = None,
) -> tuple[dict[str, dict[int, Batch]], tuple[Row, ...]]:
    """Per topic the batches that some table may still need, from staging and the ledger; and the rows that heal it.

    Args:
        broken: takes the error of each topic that the ledger contradicts itself about, which is left out; without it,
            the error is raised.

    Raises:
        LedgerError: the ledger contradicts itself.
    """
    floor: dict[str, int] = {}
    for topic, (_, last) in loaded.items():
        seqs = [last.seq - 1 if last else 0]
        for contract in contracts:
            if topic in contract.topics and contract.table in through:
                t = through[contract.table].get(topic)
                seqs.append(t.seq if t else 0)
        floor[topic] = max(min(seqs), 0)
    rows = ledger.rows(floor, (State.PLANNED, State.STAGED, State.SETTLED)) if ledger else []
    planned = ledgers.batches(rows, broken)
    known: dict[str, dict[int, Batch]] = {}
    heal: list[Row] = []
    for topic, (staging, last) in loaded.items():
        if broken and isinstance(broken.get(topic), LedgerError):
            continue
        told = cursor.staged_batches(staging, floor[topic])
        # A ledger that does not know the last batch was lost, or is older than the table: tell it all over again.
        if staging and ledger and last and (topic, last.seq) not in planned:
            told = cursor.staged_batches(staging)
            landed = snapshots.landed(staging.metadata)
            for _, (batch, snapshot) in sorted(told.items()):
                summary = snapshots.summary(snapshot)
                heal += ledgers.staged_rows(
                    batch,
                    {".".join(table_names.staging(topic)): snapshot.snapshot_id},
                    at=landed[snapshot.snapshot_id],
                    records=int(summary.get("added-records", "0")),
                    run_id=summary.get(RUN_ID),
                    who="plan",
                )
                heal += untold(batch, words)
        # The table wins where both speak.
        known[topic] = {seq: with_gaps(b, words) for (t, seq), b in planned.items() if t == topic}
        known[topic] |= {seq: b for seq, (b, _) in told.items()}
    return known, tuple(heal)


def pending(
    table: str,
    known: Mapping[int, Batch],
    last: Batch | None,
    through: Through | None,
    words: Sequence[Row] = (),
) -> tuple[Batch, ...]:
    """The staged batches above `through`, in order and without a hole.

    Args:
        words: what was given up.

    Raises:
        StagingTrimmedError: the table is new, and nothing tells of the topic's first batches any more.
        LedgerError: a batch in between is known to nobody, or what is staged is not what the table was filled from.
        TopicRecreatedError: they are of another topic than the one that the table was filled from.
    """
    done = through.seq if through else 0
    if through and last and last.topic_id == through.topic_id and done >= last.seq:
        # Numbers alone would tell that the table holds what it never saw.
        ahead = {p: (through.next_offsets.get(p, 0), end) for p, end in last.next_offsets.items()}
        if beyond := {p: each for p, each in sorted(ahead.items()) if each[0] < each[1]}:
            raise LedgerError(
                f"The table holds batch {done}, and what is staged up to {last.seq} reaches beyond it: "
                f"{{partition: (published to, staged to)}} {beyond}. The numbers were given out twice.",
                table=table,
                topic=last.topic,
                way_out="Was a catalog restored, and the group's DAG not paused? Roll the table back to before "
                "the first batch of such a number (python -m sluice rollback TABLE): the next run goes on there.",
            )
    waiting = [known[seq] for seq in sorted(known) if done < seq <= (last.seq if last else 0)]
    at = dict(through.next_offsets) if through else None
    if at is None and waiting and waiting[0].seq != 1 and not covers(words, waiting[0], table, before=True):
        raise history_unknown(table, waiting[0])
    for batch in waiting:
        check_same_topic(table, batch, through)
        if at is not None and (holes := batch.skips(at)):
            raise LedgerError(f"Batches before {batch} are unknown: offsets {holes} would be skipped.", table=table)
        at = {**(at or {}), **batch.next_offsets}
    if last and done < last.seq and (not waiting or waiting[-1].seq != last.seq):
        raise LedgerError(f"Nobody knows the batches between {done} and {last.seq} of {last.topic}.", table=table)
    return tuple(waiting)


def check_same_topic(table: str, batch: Batch, through: Through | None) -> None:
    """Refuse a batch of a topic that was made anew: below the table's offsets its records would pass for known ones.

    And a slice. Planning stops such a topic by what is staged and planned of the old one; but that may all be dropped.

    Raises:
        TopicRecreatedError: the topic's id is not the one that the table was filled from.
    """
    if through and through.topic_id != batch.topic_id:
        raise TopicRecreatedError(
            f"Topic {batch.topic!r} is not the one that the table was filled from.",
            table=table,
            topic=batch.topic,
            batch=None if batch.is_slice else batch.seq,  # which has no number of its own before it is planned
            was=through.topic_id,
            now=batch.topic_id,
        )


@dataclass(frozen=True)
class Held:
    """A batch, and how many of its rows staging holds.

    Attributes:
        rows: none where maintenance has trimmed the batch, though it may not have deleted them yet.
        staged: how many there were; None where nothing tells any more.
        trimmed: whether maintenance has.
    """

    batch: Batch
    rows: int
    staged: int | None
    trimmed: bool = False

    @property
    def whole(self) -> bool:
        """Whether staging holds them all; where nothing tells how many, whether it holds any."""
        if self.trimmed:
            return self.batch.span == 0
        return self.rows >= self.staged if self.staged is not None else self.rows > 0 or self.batch.span == 0

    def __str__(self) -> str:
        ranges = encode_ranges(self.batch.ranges)
        return f"{self.batch.seq} {ranges}: {self.rows:,} of {_number(self.staged)} rows in staging"


def whole(
    table: str,
    staging: Table | None,
    batches: tuple[Batch, ...],
    ledger: Ledger | None,
    words: Sequence[Row],
) -> tuple[Batch, ...]:
    """The batches that a table has yet to publish, provided that staging holds their rows or they were given up.

    Raises:
        StagingTrimmedError: rows are gone that nobody has given up for this table.
    """
    out: list[Batch] = []
    lost: list[Batch] = []
    for each in held(staging, batches, ledger):
        batch = each.batch
        if not each.whole:
            if covers(words, batch, table):
                if each.rows == 0:
                    batch = replace(batch, gaps={p: (r,) for p, r in batch.ranges.items()})
            else:
                lost.append(batch)
        out.append(batch)
    if lost:
        raise no_longer_staged(table, lost)
    return tuple(out)


def _number(value: int | None) -> str:
    return "an unknown number of" if value is None else f"{value:,}"


def rows_by_batch(staging: Table | None, wanted: BooleanExpression) -> dict[int, int]:
    """How many rows staging holds of each batch or slice, by its files, without reading them.

    A row that an engine deleted by a file of positions is not there; one that two such files name counts twice, so that
    these numbers may be too low, never too high.

    Raises:
        SchemaChangeError: somebody has changed how staging is partitioned.
    """
    counted: dict[int, int] = {}
    if staging is None:
        return counted
    deletes: set[DataFile] = set()
    for task in tables.files(staging, wanted):
        seq = _batch_of(staging, task.file)
        counted[seq] = counted.get(seq, 0) + task.file.record_count
        deletes |= task.delete_files
    for file in deletes:
        counted[_batch_of(staging, file)] -= file.record_count
    return counted


def _batch_of(staging: Table, file: DataFile) -> int:
    """The one batch, or slice, that a file of staging is of."""
    schema = staging.schema()
    for place, field in enumerate(staging.specs()[file.spec_id].fields):
        if field.transform == IdentityTransform() and schema.find_column_name(field.source_id) == "batch_seq":
            return int(file.partition[place])
    name = ".".join(staging.name())
    raise SchemaChangeError(
        f"Somebody has partitioned {name} otherwise than by batch_seq: which batch a file is of can't be told.",
        way_out=f"In Spark: ALTER TABLE {name} ADD PARTITION FIELD batch_seq; then CALL system.rewrite_data_files("
        f"table => '{name}', options => map('rewrite-all', 'true')).",
    )


def held(staging: Table | None, batches: Sequence[Batch], ledger: Ledger | None) -> tuple[Held, ...]:
    """How many rows of successive batches staging holds, by its files and by what it says is trimmed."""
    if not batches or staging is None:
        return ()
    topic, first, last = batches[0].topic, batches[0].seq, batches[-1].seq
    counted = rows_by_batch(staging, And(above("batch_seq", first - 1), at_most("batch_seq", last)))
    told = {seq: snapshots.summary(s) for seq, (_, s) in cursor.staged_batches(staging, first - 1).items()}
    staged = {seq: int(properties.get("added-records", "0")) for seq, properties in told.items()}
    if ledger and any(b.seq not in staged for b in batches):
        rows = ledger.rows({topic: first - 1}, (State.STAGED,))
        staged = {r.batch_seq: r.records for r in rows if r.batch_seq and r.records is not None} | staged
    gone = tables.trimmed_through(staging)
    return tuple(
        Held(b, counted.get(b.seq, 0) if b.seq > gone else 0, staged.get(b.seq), b.seq <= gone) for b in batches
    )


def check_not_trimmed(table: Table | None, contract: Contract, batches: Iterable[Batch]) -> None:
    """Refuse to read batches from staging that it no longer holds: they would come as empty, in silence.

    Raises:
        StagingTrimmedError: with the numbers of the batches.
    """
    through = tables.trimmed_through(table)
    # A batch with nothing to read has no records to lose: it only pins where a topic starts, or was given up.
    gone = [b for b in batches if b.seq <= through and b.span]
    if gone:
        raise no_longer_staged(contract.table, gone)


def no_longer_staged(table: str, gone: Sequence[Batch]) -> StagingTrimmedError:
    """The error that names the first batches whose raw records a table lacks, and their offsets.

    Args:
        gone: in order. What lies apart from the first ones gets a word of its own.
    """
    gone = [b for number, b in enumerate(gone) if b.seq == gone[0].seq + number]
    return StagingTrimmedError(
        f"The raw records of batches {gone[0].seq} to {gone[-1].seq} were deleted from staging, and the table does "
        "not hold them.",
        table=table,
        topic=gone[0].topic,
        topic_id=gone[0].topic_id,
        lost={p: tuple(r) for p, r in sorted(joined_ranges(gone).items())},
    )


def history_unknown(table: str, first: Batch) -> StagingTrimmedError:
    """The error of a new table on a topic whose batches before this one neither ledger nor snapshots tell of."""
    return StagingTrimmedError(
        f"Nothing tells of the batches before {first}, and the table is new.",
        table=table,
        topic=first.topic,
        topic_id=first.topic_id,
        lost=first.skips({}),
        way_out="Run `python -m sluice ledger rebuild`, which may find them in other tables. Else give their offsets "
        "up for this table (DAG accept_gap, or `python -m sluice gap accept TABLE`): it begins behind them, and DAG "
        "backfill brings them, from Kafka or from staging.",
    )
