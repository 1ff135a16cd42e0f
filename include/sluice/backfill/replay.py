"""Replays one slice of a backfill from Kafka, staging or quarantine into a typed table.

The same steps as for a batch, but over a range below the table's cursor, which does not move. A result that fails
validation stays on its branch. A repetition only adds records that were quarantined and pass now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime

from pyiceberg.typedef import Identifier
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sluice.backfill import ranges, validate
from sluice.backfill.source import SliceSource
from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.contract.contract import Contract
from sluice.errors import BlockedError, InvalidReplayError, SluiceError, StagingTrimmedError
from sluice.evolve import rejected_change
from sluice.formats.internal_columns import ERROR, OP
from sluice.iceberg import active_contract, cursor, refs, snapshots, table_names, tables
from sluice.iceberg.sql_literals import quote_identifier
from sluice.ingest import check, expectations, merge, merge_batch, quarantine
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from sluice.ingest.merge_batch import MergeInput
from sluice.ingest.stage import stage
from sluice.kafka import registry
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin

log = logging.getLogger(__name__)

# A batch takes seconds to publish. The branch of a killed writer stays until the next run.
BATCH_WAIT_S = 60.0


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of a slice.

    Attributes:
        snapshot_id: the snapshot that holds it.
        at: when that was committed; None where the snapshot has expired.
        counts: its records; None where the table held the slice already.
        before: rows of the range in main before; `after` and `added` as in `BranchComparison`.
    """

    snapshot_id: int
    at: datetime | None
    counts: check.Counts | None = None
    before: int = 0
    after: int = 0
    added: int = 0
    seconds: float = 0.0


@registry.pinned_answers()
def replay(context: Context, contract: Contract, piece: Batch, origin: Origin, *, gaps_expected: bool) -> ReplayResult:
    """Merge one slice into the table, unless the table holds it already.

    Args:
        context: the Spark application.
        contract: as in its file.
        piece: the slice.
        origin: where its records are read.
        gaps_expected: offsets may be missing, as the topic is compacted or written in transactions.

    Raises:
        RefusedError: the slice ends above the table's cursor.
        StagingTrimmedError: staging does not hold it.
        OffsetsMissingError: offsets are missing that must not be.
        BlockedError: more rejected records than the contract tolerates; main did not move.
        SchemaIdReusedError: earlier records with one of the schema ids were read by another schema.
        InvalidReplayError: the result failed validation; main did not move.
        FencedError: another writer moved main; this one changed nothing.
    """
    began = time.monotonic()
    tables.ensure_typed(context.catalog, contract)
    dead = _wait_for_batches(context, table_names.typed(contract))
    write = BranchWrite(context, table_names.typed(contract), piece)
    ledger = Ledger(context.catalog)
    known = slices.read_slice_rows(ledger, piece.topic)
    active = active_contract.resolve_publish_contract(write.base, contract)
    expected: int | None = None
    if origin == Origin.KAFKA and slices.find_replay_snapshot_id(write.base, active.table, piece, known) is None:
        _published_above(write, active, piece)
        expected = _stage_slice(context, piece, gaps_expected=gaps_expected)
        # Live ingest went on meanwhile, and the files of the ledger that was read may be gone.
        ledger.refresh()
        write = BranchWrite(context, table_names.typed(contract), piece)
        active = active_contract.resolve_publish_contract(write.base, contract)
    source = SliceSource.open(context, active, piece, origin)
    done = slices.find_replay_snapshot_id(write.base, active.table, piece, known)
    if done is not None:
        source = replace(source, replayed=True)
        if not source.has_quarantined_records_that_pass():
            snapshot = write.base.snapshot_by_id(done)
            at = snapshots.committed_at(snapshot) if snapshot else None
            return ReplayResult(done, at, seconds=time.monotonic() - began)
    published = _published_above(write, active, piece)
    refs.drop_branches(context.catalog, write.identifier, slices.find_slice_branches(write.base, [piece]))
    check_staging = _staging_check(source, ledger, expected)
    check_staging()
    properties = {
        STEP: "replay",
        RUN_ID: context.run_id,
        **piece.properties(),
        PUBLISHED_THROUGH: encode_published_through(published),
    }
    with write, context.session(properties) as session:
        # Read and decoded once, for the MERGE, the counts and the validation.
        decoded = source.decoded(session).persist()
        try:
            context.check_writer_schemas(piece.topic)
            counts = check.count_records(decoded)
            compared = _write_branch(write, source, decoded, counts, complete=not gaps_expected)
        finally:
            decoded.unpersist()
        _wait_for_batches(context, write.identifier, dead, write.check_main_unmoved)
        # Again: rows that were deleted from staging during the read would be missing silently.
        check_staging()
        snapshot = write.fast_forward_main()
    source.remove_passing_from_quarantine()
    seconds = time.monotonic() - began
    at = snapshots.committed_at(snapshot)
    return ReplayResult(snapshot.snapshot_id, at, counts, compared.before, compared.after, compared.added, seconds)


def _stage_slice(context: Context, piece: Batch, *, gaps_expected: bool) -> int:
    """Stage the slice from Kafka, unless it is staged; the number of its records."""
    records = stage(context, piece, gaps_expected=gaps_expected).records
    if records is not None:
        return records
    return slices.count_rows_staged(context.catalog.load_table(table_names.staging(piece.topic)), piece)


def _published_above(write: BranchWrite, contract: Contract, piece: Batch) -> Mapping[str, PublishedOffsets]:
    """The table's cursors, after a check that the slice is below the one of its topic."""
    published = cursor.read_table_cursor(write.base)
    ranges.check_below_cursor(contract.table, piece, published.get(piece.topic))
    return published


def _wait_for_batches(
    context: Context, identifier: Identifier, dead: Set[str] = frozenset(), on_wait: Callable[[], None] = lambda: None
) -> Set[str]:
    """Wait for batches that are being published: a slice that moves main first would make them start again.

    Args:
        context: the Spark application.
        identifier: the table.
        dead: branches that no writer works on any more.
        on_wait: called while it waits.

    Returns:
        The branches that were still there when the time was over.
    """
    until = time.monotonic() + BATCH_WAIT_S
    while True:
        found = context.catalog.load_table(identifier).metadata.refs
        open_branches = {name for name in found if refs.is_batch_branch(name)} - dead
        if not open_branches or time.monotonic() > until:
            return open_branches
        on_wait()
        time.sleep(0.5)


def _write_branch(
    write: BranchWrite, source: SliceSource, decoded: DataFrame, counts: check.Counts, *, complete: bool
) -> validate.BranchComparison:
    """Merge into the branch, validate it, and write quarantine, quality results and deletes before main moves."""
    context, contract, piece = source.context, source.contract, source.piece
    observed = decoded.select(*merge.typed_columns(contract), OP, ERROR)
    merge_batch.merge_batch(write, MergeInput(contract, piece, decoded, observed, replay=True))
    good = observed.where(check.is_good())
    records = validate.ReplayedRecords(contract, piece, good, counts, complete and not source.reads_quarantine)
    compared = validate.compare_branch(write, records)
    log.info(
        "replay %s from %s into %s: %s records, %s rejected; rows of the range: %s before, %s after",
        piece, source.origin, contract.table, counts.records, counts.rejected, compared.before, compared.after,
    )  # fmt: skip
    if compared.problems:
        problem = InvalidReplayError("; ".join(compared.problems) + ".", table=contract.table, topic=piece.topic)
        raise _keep_branch(write, contract, piece, problem)
    write.check_main_unmoved()  # a writer that was overtaken must not touch quarantine and deletes any more
    # Commits on other tables must not carry this one's properties, hence the plain session.
    plain = source.decoded(context.spark, explain=counts.rejected > 0)
    if counts.rejected:
        tables.ensure_quarantine(context.catalog, contract)
        rejections = rejected_change.list_rejected_changes(context.catalog, write.base, contract)
        merge.upsert_quarantine(quarantine.rejected_rows(plain, contract, rejections), source.quarantine, piece)
    try:
        if not source.reads_quarantine:
            check.check_tolerance(contract, [piece], {piece.seq: counts})
        evaluation = expectations.Evaluation(contract, decoded.withColumn(check.SEQ, F.lit(piece.seq)))
        expectations.evaluate_and_store(context, evaluation, [piece])
    except BlockedError as error:
        raise _keep_branch(write, contract, piece, error) from error
    if counts.deleted:
        merge_batch.record_deletes(write, contract, [piece], source.decoded)
    return compared


def _keep_branch(write: BranchWrite, contract: Contract, piece: Batch, error: SluiceError) -> SluiceError:
    """Keep the branch for an operator to look at; the error, with the branch's name."""
    name = refs.refused_branch_name(piece.topic, piece.seq)
    try:
        write.keep_as(name)
    except Exception as failure:  # noqa: BLE001 - the slice's own error matters more
        log.warning("could not keep branch %s of %s: %s", name, contract.table, failure)
        return error
    table = ".".join(quote_identifier(part) for part in write.identifier)
    next_step = (
        f"Main did not move. Look at branch {name} ({table} VERSION AS OF '{name}'), repair the contract or choose "
        f"other ranges, and backfill again. To drop the branch: ALTER TABLE {table} DROP BRANCH {name}."
    )
    return type(error)(error.message, next_step=next_step, **{**error.fields, "kept": name})


def _staging_check(source: SliceSource, ledger: Ledger, expected: int | None) -> Callable[[], None]:
    """A check that staging holds the raw records: all that were staged for the slice, or those of its ranges.

    Args:
        source: the slice.
        ledger: for what was staged in the ranges.
        expected: how many records were staged for the slice, where it is read from Kafka.
    """
    contract, piece = source.contract, source.piece

    def check_staging() -> None:
        if source.replayed:  # its records were read from staging before
            return
        staging = tables.load_staging(source.context.catalog, piece.topic)
        if source.origin == Origin.KAFKA:
            left = slices.count_rows_in_staging(staging, piece) if staging else 0
            if left != expected:
                raise StagingTrimmedError(
                    f"Staging holds {left} of the {expected} raw records that were staged for the slice.",
                    table=contract.table,
                    topic=piece.topic,
                    next_step="Trigger the backfill again: it reads slices with new numbers from Kafka.",
                )
        elif source.origin == Origin.STAGING:
            ledger.refresh()  # the files of the ledger that was read may be gone after a long slice
            known = slices.read_slice_rows(ledger, piece.topic)
            staged = slices.find_staged_batches(staging, piece.topic, known, ledger)
            ranges.check_in_staging(contract.table, piece, staged)

    return check_staging
