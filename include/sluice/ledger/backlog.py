"""Batches of a topic, by its staging table and the ledger; and those that a typed table has yet to publish. No JVM.

In: staging tables, the ledger, table cursors. Out: batches in order, or the error that stops one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from sluice import dag_ids
from sluice.batch import Batch, PublishedOffsets, merge_ranges
from sluice.contract.contract import Contract
from sluice.errors import LedgerError, SchemaChangeError, SluiceError, StagingTrimmedError, TopicRecreatedError
from sluice.iceberg import availability, cursor, snapshots, table_names, tables
from sluice.iceberg.filters import And, BooleanExpression, above, at_most
from sluice.ledger.accepted_gaps import add_accepted_gaps, is_skipped_by_table, missing_gap_rows
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.recorded_batches import BatchSnapshot, staged_rows
from sluice.offsets import encode_ranges


class StagingState(NamedTuple):
    """A topic's staging table and the last batch in it; None if there is none."""

    table: Table | None
    last: Batch | None


def load_staging(catalog: Catalog, topics: list[str], broken: dict[str, SluiceError]) -> dict[str, StagingState]:
    """Load the staging tables of topics; the error of a topic whose staging cannot be read is added to `broken`."""
    loaded: dict[str, StagingState] = {}
    for topic in topics:
        try:
            table = availability.isolate_table_failure(
                catalog, partial(tables.load_staging, catalog, topic), topic=topic
            )
            loaded[topic] = StagingState(table, cursor.read_staging_cursor(table))
        except SluiceError as error:
            broken[topic] = error
    return loaded


def last_staged_ms(staging: StagingState | None) -> int:
    """Return when a topic's last batch was staged (epoch ms); 0 if no snapshot records it."""
    if staging is None or staging.last is None:
        return 0
    staged = cursor.read_staged_batches(staging.table, staging.last.seq - 1)
    return max((snapshot.timestamp_ms for _, snapshot in staged.values()), default=0)


@dataclass(frozen=True)
class KnownBatches:
    """The batches that some table may still need.

    Attributes:
        by_topic: batches by number, per topic.
        missing_rows: rows that the ledger has lost; planning appends them.
        errors: the error of each topic for which the ledger has contradictory rows; it is not in `by_topic`.
    """

    by_topic: Mapping[str, Mapping[int, Batch]]
    missing_rows: tuple[LedgerRow, ...]
    errors: Mapping[str, LedgerError]

    def for_topic(self, topic: str) -> Mapping[int, Batch]:
        """Return the topic's batches by number.

        Raises:
            LedgerError: the ledger has contradictory rows for this or another topic.
        """
        for error in self.errors.values():
            raise error
        return self.by_topic[topic]


def find_known_batches(
    contracts: Sequence[Contract],
    staging: Mapping[str, StagingState],
    published: Mapping[str, Mapping[str, PublishedOffsets]],
    ledger: Ledger | None,
    gaps: Sequence[LedgerRow] = (),
) -> KnownBatches:
    """Find the batches of topics that some table may still need; where staging and the ledger differ, staging wins.

    Args:
        contracts: the tables.
        staging: per topic, as `load_staging` returns it.
        published: the cursor of each table that could be read, by name.
        ledger: the ledger, if there is one.
        gaps: rows as `Ledger.gaps` returns them.
    """
    needed_after = {
        topic: _published_by_all(topic, state.last, contracts, published) for topic, state in staging.items()
    }
    in_ledger, errors = ledger.batches(needed_after) if ledger else ({}, {})
    by_topic: dict[str, dict[int, Batch]] = {}
    missing_rows: list[LedgerRow] = []
    for topic, (table, last) in staging.items():
        if topic in errors:
            continue
        staged = cursor.read_staged_batches(table, needed_after[topic])
        # A ledger without the last batch was lost, or is older than staging: write all its rows again.
        if table and ledger and last and (topic, last.seq) not in in_ledger:
            staged = cursor.read_staged_batches(table)
            missing_rows += _rows_from_staging(topic, table, gaps)
        planned = {seq: add_accepted_gaps(b, gaps) for (name, seq), b in in_ledger.items() if name == topic}
        by_topic[topic] = planned | {seq: batch for seq, (batch, _) in staged.items()}
    return KnownBatches(by_topic, tuple(missing_rows), errors)


def _published_by_all(
    topic: str,
    last: Batch | None,
    contracts: Sequence[Contract],
    published: Mapping[str, Mapping[str, PublishedOffsets]],
) -> int:
    """The number up to which no table needs the topic's batches; below the last staged one in any case."""
    numbers = [last.seq - 1 if last else 0]
    for contract in contracts:
        if topic in contract.topics and contract.table in published:
            position = published[contract.table].get(topic)
            numbers.append(position.seq if position else 0)
    return max(min(numbers), 0)


def _rows_from_staging(topic: str, table: Table, gaps: Sequence[LedgerRow]) -> list[LedgerRow]:
    rows: list[LedgerRow] = []
    name, visible_times = ".".join(table_names.staging(topic)), snapshots.visible_times(table.metadata)
    for _, (batch, snapshot) in sorted(cursor.read_staged_batches(table).items()):
        staged = BatchSnapshot.from_snapshot(snapshot, visible_times[snapshot.snapshot_id])
        rows += staged_rows(batch, name, staged, who="plan")
        rows += missing_gap_rows(batch, gaps)
    return rows


def find_pending_batches(
    table: str,
    known: Mapping[int, Batch],
    last: Batch | None,
    published: PublishedOffsets | None,
    gaps: Sequence[LedgerRow] = (),
) -> tuple[Batch, ...]:
    """Return the staged batches of a topic that a table has yet to publish, in order and complete.

    Args:
        table: the typed table's name.
        known: the topic's batches by number.
        last: the last batch in staging.
        published: the table's position in the topic; None if nothing was published.
        gaps: rows as `Ledger.gaps` returns them.

    Raises:
        StagingTrimmedError: the table is new, and the topic's first batches are unknown.
        LedgerError: a batch in between is unknown, or the table is ahead of staging.
        TopicRecreatedError: the batches belong to another topic than the one the table was filled from.
    """
    done, last_seq = (published.seq if published else 0), (last.seq if last else 0)
    if published and last:
        _check_not_ahead(table, last, published)
    waiting = [known[seq] for seq in sorted(known) if done < seq <= last_seq]
    offsets = dict(published.next_offsets) if published else None
    starts_late = offsets is None and waiting and waiting[0].seq != 1
    if starts_late and not is_skipped_by_table(gaps, waiting[0], table, before=True):
        raise history_unknown_error(table, waiting[0])
    for batch in waiting:
        check_same_topic(table, batch, published)
        if offsets is not None and (skipped := batch.offsets_skipped_after(offsets)):
            raise LedgerError(f"Batches before {batch} are unknown: offsets {skipped} would be skipped.", table=table)
        offsets = {**(offsets or {}), **batch.next_offsets}
    if last and done < last_seq and (not waiting or waiting[-1].seq != last_seq):
        raise LedgerError(
            f"Batches of {last.topic} between {done} and {last_seq} are neither in staging nor in the ledger.",
            table=table,
        )
    return tuple(waiting)


def _check_not_ahead(table: str, last: Batch, published: PublishedOffsets) -> None:
    """Refuse a table whose batch number has reached staging's while its offsets have not.

    Raises:
        LedgerError: batch numbers were given twice.
    """
    if last.topic_id != published.topic_id or published.seq < last.seq:
        return
    positions = {p: (published.next_offsets.get(p, 0), end) for p, end in last.next_offsets.items()}
    if unpublished := {p: each for p, each in sorted(positions.items()) if each[0] < each[1]}:
        raise LedgerError(
            f"The table holds batch {published.seq}, but staging up to batch {last.seq} has more offsets: "
            f"{{partition: (published to, staged to)}} {unpublished}. The numbers were given out twice.",
            table=table,
            topic=last.topic,
            next_step="Was a catalog restored while the group's DAG was not paused? Roll the table back to before "
            "the first batch with such a number (sluice rollback TABLE): the next run continues there.",
        )


def check_same_topic(table: str, batch: Batch, published: PublishedOffsets | None) -> None:
    """Refuse a batch or slice of a topic that was deleted and created again: its offsets mean other records.

    Planning refuses it too, if anything of the old topic is still staged or planned.

    Raises:
        TopicRecreatedError: the table was filled from a topic with another id.
    """
    if published and published.topic_id != batch.topic_id:
        raise TopicRecreatedError(
            f"Topic {batch.topic!r} is not the one that the table was filled from.",
            table=table,
            topic=batch.topic,
            batch=None if batch.is_slice else batch.seq,  # a slice has no number before it is planned
            was=published.topic_id,
            now=batch.topic_id,
        )


@dataclass(frozen=True)
class StagedRows:
    """A batch, and how many of its rows staging holds.

    Attributes:
        rows: 0 if maintenance has trimmed the batch, even if the rows are not deleted yet.
        staged: how many rows were staged; None if unknown.
        trimmed: whether maintenance has trimmed the batch.
    """

    batch: Batch
    rows: int
    staged: int | None
    trimmed: bool = False

    @property
    def complete(self) -> bool:
        """Whether staging holds all rows; if their number is unknown, whether it holds any."""
        if self.trimmed:
            return self.batch.span == 0
        return self.rows >= self.staged if self.staged is not None else self.rows > 0 or self.batch.span == 0

    def __str__(self) -> str:
        staged = "an unknown number of" if self.staged is None else f"{self.staged:,}"
        return f"{self.batch.seq} {encode_ranges(self.batch.ranges)}: {self.rows:,} of {staged} rows in staging"


def check_rows_staged(
    table: str,
    staging: Table | None,
    batches: tuple[Batch, ...],
    ledger: Ledger | None,
    gaps: Sequence[LedgerRow],
) -> tuple[Batch, ...]:
    """Return the batches that a table has yet to publish, if staging holds their rows or the table skips them.

    Raises:
        StagingTrimmedError: rows are missing that the table does not skip.
    """
    checked: list[Batch] = []
    lost: list[Batch] = []
    for each in count_staged_rows(staging, batches, ledger):
        batch = each.batch
        if not each.complete:
            if not is_skipped_by_table(gaps, batch, table):
                lost.append(batch)
            elif each.rows == 0:
                batch = replace(batch, gaps={p: (r,) for p, r in batch.ranges.items()})
        checked.append(batch)
    if lost:
        raise staging_trimmed_error(table, lost)
    return tuple(checked)


def count_rows_by_batch(staging: Table | None, row_filter: BooleanExpression) -> dict[int, int]:
    """Return how many rows staging holds per batch or slice, from the metadata of its files.

    A row that two position delete files name is subtracted twice: a count may be too low, never too high.

    Raises:
        SchemaChangeError: another engine changed staging's partitioning.
    """
    counts: dict[int, int] = {}
    if staging is None:
        return counts
    delete_files: set[DataFile] = set()
    for task in tables.plan_files(staging, row_filter):
        seq = _batch_of_file(staging, task.file)
        counts[seq] = counts.get(seq, 0) + task.file.record_count
        delete_files |= task.delete_files
    for file in delete_files:
        counts[_batch_of_file(staging, file)] -= file.record_count
    return counts


def _batch_of_file(staging: Table, file: DataFile) -> int:
    schema = staging.schema()
    for position, field in enumerate(staging.specs()[file.spec_id].fields):
        if field.transform == IdentityTransform() and schema.find_column_name(field.source_id) == "batch_seq":
            return int(file.partition[position])
    name = ".".join(staging.name())
    raise SchemaChangeError(
        f"{name} is not partitioned by batch_seq any more, so the batch of a file is unknown.",
        next_step=f"In Spark: ALTER TABLE {name} ADD PARTITION FIELD batch_seq; then CALL system.rewrite_data_files("
        f"table => '{name}', options => map('rewrite-all', 'true')).",
    )


def count_staged_rows(staging: Table | None, batches: Sequence[Batch], ledger: Ledger | None) -> tuple[StagedRows, ...]:
    """Return how many rows of successive batches staging holds, and how many were staged."""
    if not batches or staging is None:
        return ()
    topic, first, last = batches[0].topic, batches[0].seq, batches[-1].seq
    counts = count_rows_by_batch(staging, And(above("batch_seq", first - 1), at_most("batch_seq", last)))
    staged = {
        seq: int(snapshots.summary(snapshot).get("added-records", "0"))
        for seq, (_, snapshot) in cursor.read_staged_batches(staging, first - 1).items()
    }
    if ledger and any(b.seq not in staged for b in batches):
        rows = ledger.rows({topic: first - 1}, (LedgerState.STAGED,))
        staged = {r.batch_seq: r.records for r in rows if r.batch_seq and r.records is not None} | staged
    trimmed = tables.trimmed_through(staging)
    return tuple(
        StagedRows(
            batch=b,
            rows=counts.get(b.seq, 0) if b.seq > trimmed else 0,
            staged=staged.get(b.seq),
            trimmed=b.seq <= trimmed,
        )
        for b in batches
    )


def check_not_trimmed(staging: Table | None, contract: Contract, batches: Iterable[Batch]) -> None:
    """Refuse batches that maintenance has trimmed from staging: reading them would silently return no rows.

    Raises:
        StagingTrimmedError: with the numbers of the batches.
    """
    trimmed_through = tables.trimmed_through(staging)
    # A batch with nothing to read has no records to lose.
    trimmed = [b for b in batches if b.seq <= trimmed_through and b.span]
    if trimmed:
        raise staging_trimmed_error(contract.table, trimmed)


def staging_trimmed_error(table: str, lost: Sequence[Batch]) -> StagingTrimmedError:
    """Return the error for batches that a table lacks and staging no longer has.

    Args:
        table: the typed table's name.
        lost: in order; only the first batches in a row are named, and further ones once those are skipped.
    """
    successive = [b for index, b in enumerate(lost) if b.seq == lost[0].seq + index]
    return StagingTrimmedError(
        f"The raw records of batches {successive[0].seq} to {successive[-1].seq} were deleted from staging, and the "
        "table does not hold them.",
        table=table,
        topic=successive[0].topic,
        topic_id=successive[0].topic_id,
        lost={p: tuple(r) for p, r in sorted(merge_ranges(successive).items())},
    )


def history_unknown_error(table: str, first: Batch) -> StagingTrimmedError:
    """Return the error for a new table if neither ledger nor snapshots have the batches before `first`."""
    return StagingTrimmedError(
        f"The batches before {first} are unknown, and the table is new.",
        table=table,
        topic=first.topic,
        topic_id=first.topic_id,
        lost=first.offsets_skipped_after({}),
        next_step="Run `sluice ledger rebuild`, which may find them in other tables. Otherwise skip their "
        f"offsets for this table (DAG {dag_ids.ACCEPT_GAP}, or `sluice gap accept TABLE`): it starts behind "
        f"them, and DAG {dag_ids.BACKFILL} can read them from Kafka or from staging.",
    )
