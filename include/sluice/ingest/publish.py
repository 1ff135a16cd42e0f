"""Publish: merge staged batches into a typed table, in one commit that also carries the offsets.

Running it again, late, twice or out of order leaves the table as if each record had been applied once, in order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.batch import (
    PUBLISHED_THROUGH,
    RUN_ID,
    STEP,
    Batch,
    PublishedOffsets,
    encode_published_through,
    publish_properties,
)
from sluice.contract.contract import Contract
from sluice.errors import AuditError, BatchOrderError, BlockedError, SluiceError
from sluice.evolve import evolve, rejected_change
from sluice.formats.internal_columns import ERROR, OP
from sluice.iceberg import active_contract, cursor, snapshots, table_names, tables
from sluice.ingest import check, expectations, merge, merge_batch, quarantine
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from sluice.ingest.merge_batch import MergeInput
from sluice.ingest.staged_batches import StagedBatches
from sluice.kafka import registry
from sluice.ledger import backlog
from sluice.ledger.accepted_gaps import is_skipped_by_table
from sluice.ledger.ledger_rows import LedgerRow
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.tolerated_batches import tolerated_numbers
from sluice.plan import other_writers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublishResult:
    """What a publish came to.

    Attributes:
        snapshot_id: the snapshot that holds the batches; None if the table held them already.
        counts: by batch number.
        commit_seconds: how much of `seconds` the commit took.
    """

    snapshot_id: int | None
    counts: Mapping[int, check.Counts] = field(default_factory=dict)
    seconds: float = 0.0
    commit_seconds: float | None = None


@registry.pinned_answers()
def publish(
    context: Context,
    contract: Contract,
    *batches: Batch,
    known_counts: Mapping[int, int] | None = None,
    replay: bool = False,
) -> PublishResult:
    """Publish consecutive staged batches of one topic into one table, in one commit. On an error main is not moved.

    Args:
        contract: as its file has it; the table's active contract decides how records are read.
        known_counts: staged records by batch number, as far as known.
        replay: apply batches again that the table has published; never moves the cursor.

    Returns:
        Snapshot, and counts by batch number. Batches that the table holds already are left out.

    Raises:
        BlockedError: too many records were rejected, or an expectation of severity `block` failed.
        SchemaChangeError: the table does not match its active contract.
        OrderUnknownError: a key occurs in two partitions, and the contract names no order.
        BatchOrderError: an earlier batch of the topic is not published yet.
        TopicRecreatedError: the table was filled from another topic of that name.
        FencedError: another writer moved main during the write.
        OtherWriterError: another engine has changed rows, and the contract does not allow that.
        SchemaIdReusedError: earlier records with one of the schema ids were read by another schema.
        StagingTrimmedError: staging no longer holds all of the records.
        AuditError: the branch does not hold what the batches hold.
    """
    began = time.monotonic()
    tables.ensure_typed(context.catalog, contract)
    write = BranchWrite(context, table_names.typed(contract), batches[-1])
    if by_others := other_writers.check(write.base, contract):
        log.warning("%s", by_others)
    active = active_contract.resolve_publish_contract(write.base, contract)
    offsets = dict(cursor.read_table_cursor(write.base))
    topic, last = batches[-1].topic, batches[-1].seq
    published = offsets.get(topic)
    if replay:
        if published is None or published.seq < last:
            raise BatchOrderError("Only a published batch can be replayed.", table=contract.table, batch=last)
    else:
        batches = tuple(b for b in batches if not published or b.seq > published.seq)
        if not batches:
            return PublishResult(None, seconds=time.monotonic() - began)
        _check_next(active, batches[0], published, lambda: Ledger(context.catalog).gaps([topic]))
        offsets[topic] = PublishedOffsets(last, batches[-1].topic_id, batches[-1].next_offsets)
    properties = {
        STEP: "replay" if replay else "publish",
        RUN_ID: context.run_id,
        **publish_properties(batches),
        PUBLISHED_THROUGH: encode_published_through(offsets),
    }
    staged = StagedBatches.open(context, active, batches, known_counts or {})
    fresh = not replay and _is_fresh(write.base, staged.whole, published)
    with write, context.session(properties) as session:
        merged = _merge(write, staged, session, fresh=fresh, replay=replay)
        write.check_main_unmoved()  # a writer that was overtaken must not write quarantine, results and deletes
        with context.meter.step("check", contract.table, topic):
            _check(write, staged, merged, contract)
        if merged.total.deleted:
            merge_batch.record_deletes(write, active, batches, staged.decode)
        _audit_branch(write, merged)
        if merged.total.ignored:
            log.info("%s from %s: %s records ignored", contract.table, staged.whole, merged.total.ignored)
        staged.check_still_there()
        snapshot = write.fast_forward_main()
    return PublishResult(snapshot.snapshot_id, merged.by_batch, time.monotonic() - began, write.commit_seconds)


@dataclass(frozen=True)
class _Merged:
    """Batches on the branch.

    Attributes:
        total: counts of all batches; `by_batch` of each.
        observed: aggregates observed during the merge; None if there are none.
    """

    given: MergeInput
    evaluation: expectations.Evaluation
    total: check.Counts
    by_batch: Mapping[int, check.Counts]
    observed: Mapping[str, Any] | None


def _merge(write: BranchWrite, staged: StagedBatches, session: SparkSession, *, fresh: bool, replay: bool) -> _Merged:
    """Merge the batches into the branch, and count their records in the same pass."""
    decoded = staged.decode(session)
    staged.context.check_writer_schemas(staged.whole.topic)
    evaluation = expectations.Evaluation(staged.contract, decoded)
    # Only what the MERGE takes: an observation keeps each column that it is given, and one nested column (headers)
    # would turn off Iceberg's vectorised reader for the whole scan.
    columns = decoded.select(*merge.typed_columns(staged.contract), OP, ERROR)
    # An observation does not separate several batches: then expectations count in a pass of their own.
    aggregates = evaluation.columns if len(staged.batches) == 1 else ()
    counted, observation = check.observe_counts(columns, aggregates)
    given = MergeInput(staged.contract, staged.whole, decoded, counted, fresh=fresh, replay=replay)
    merge_batch.merge_batch(write, given)
    expected = staged.count()
    observed = check.read_observation(observation, sum(expected.values()))
    total = check.counts_from(observed, decoded, sum(expected.values()))
    if total.records != sum(expected.values()):
        expected = staged.recount(expected, total.records)
    by_batch = check.counts_by_batch(decoded, staged.batches, total, expected)
    return _Merged(given, evaluation, total, by_batch, observed)


def _check(write: BranchWrite, staged: StagedBatches, merged: _Merged, contract: Contract) -> None:
    """Quarantine rejected records, then enforce the tolerance and the expectations.

    Args:
        contract: as its file has it.
    """
    active, base = staged.contract, write.base
    if not merged.given.replay:
        rejected = merged.total.rejected
        refused = rejected_change.list_rejected_changes(staged.context.catalog, base, active) if rejected else ()
        quarantine.overwrite_quarantine(staged, rejected, refused)
    try:
        check.check_tolerance(
            active, staged.batches, merged.by_batch, lambda: _count_awaiting_review(staged, base, contract),
            lambda: tolerated_numbers(Ledger(staged.context.catalog), active.table, staged.batches),
        )  # fmt: skip
        expectations.evaluate_and_store(staged.context, merged.evaluation, staged.batches, merged.observed)
    except BlockedError as error:
        error.records, error.rejected = merged.total.records, merged.total.rejected
        raise


def _count_awaiting_review(staged: StagedBatches, base: Table, contract: Contract) -> Mapping[int, int]:
    """By batch number, how many records were rejected for fields of a change that awaits review or was rejected.

    However many these are, records that fit the active contract continue to be published.

    Args:
        contract: as its file has it.
    """
    try:
        change = evolve.find_pending_change(staged.context.catalog, base, contract)
    except SluiceError as error:
        log.warning("%s: the changes in the contract file can't be determined: %s", contract.table, error)
        return {}
    fields = rejected_change.changed_fields_pattern(change.old, change.new, change.changes)
    if not fields or change.review not in ("open", "rejected"):
        return {}
    return quarantine.count_rejected_for(staged.decode(), staged.contract, fields)


def _is_fresh(table: Table, batch: Batch, published: PublishedOffsets | None) -> bool:
    """Whether main can't hold any of the batch's offsets: it begins at the table's cursor, and only Sluice wrote rows.

    Another engine may have written rows that the offsets do not cover: CREATE OR REPLACE TABLE … AS SELECT keeps the
    rows and drops the offsets, and a cherry-picked snapshot carries none.
    """
    if published is None and snapshots.read_totals(table.current_snapshot()).get("records") != 0:
        return False
    begins_at_cursor = not published or all(
        r.start == published.next_offsets.get(p, 0) for p, r in batch.ranges.items()
    )
    return begins_at_cursor and not snapshots.has_rows_of_other_writers(table)


def _audit_branch(write: BranchWrite, merged: _Merged) -> None:
    """Compare the rows on the branch with the counts, before main moves.

    Raises:
        AuditError: the branch has more new rows than the batches have good records; or fewer, after an append to a
            table that can't hold any of them yet.
    """
    given, counts = merged.given, merged.total
    if given.contract.valid_to:
        # Versions that end are rewritten, however many they are, so the batch's own are counted by their coordinates.
        added = 0
        if given.batch.span and given.fresh:
            branch = given.decoded.sparkSession.table(write.spark_branch)
            added = branch.where(F.expr(merge.in_ranges(given.batch))).count()
    else:
        summary = snapshots.summary(write.written_snapshot())
        # Copy-on-write adds all rows of a rewritten file again, and deletes them once.
        added = int(summary.get("added-records", "0")) - int(summary.get("deleted-records", "0"))
    good = counts.records - counts.rejected - counts.ignored
    if added > good or (given.fresh and not given.contract.keyed and added < good):
        raise AuditError(f"{added} rows were added for {good} good records.", table=given.contract.table)


def _check_next(
    contract: Contract,
    batch: Batch,
    published: PublishedOffsets | None,
    read_gaps: Callable[[], Sequence[LedgerRow]] = tuple,
) -> None:
    backlog.check_same_topic(contract.table, batch, published)
    skipped = batch.offsets_skipped_after(published.next_offsets if published else {})
    # A new table begins with the topic's first batch, or after an accepted gap.
    if (
        skipped
        and published is None
        and (batch.seq == 1 or is_skipped_by_table(read_gaps(), batch, contract.table, before=True))
    ):
        return
    if skipped:
        raise BatchOrderError(
            f"Earlier batches are not published yet; {{partition: (published end, batch start)}}: {skipped}.",
            table=contract.table,
            topic=batch.topic,
            batch=batch.seq,
        )
