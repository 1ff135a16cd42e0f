"""Replay: one slice of a backfill, from Kafka, from staging or from quarantine, into a typed table.

The same steps as for a batch, but over a range that lies below the table's cursor, which stays where it is. The result
is validated on its branch; what does not stand that stays there, to be looked at. Running it again changes nothing, but
for records that it set apart and that pass by now: they come in.
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
from sluice.backfill.source import Source
from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, Through, encode_through
from sluice.contract.contract import Contract
from sluice.errors import BlockedError, InvalidReplayError, SluiceError, StagingTrimmedError
from sluice.evolve import rejected_change
from sluice.formats.internal_columns import ERROR, OP
from sluice.iceberg import active_contract, cursor, refs, snapshots, table_names, tables
from sluice.iceberg.sql_literals import quoted
from sluice.ingest import check, decoded_rows, expectations, merge, merge_in, quarantine
from sluice.ingest.landing import Attempt, Context
from sluice.ingest.stage import stage
from sluice.kafka import registry
from sluice.ledger import slices
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin

log = logging.getLogger(__name__)

# A batch takes seconds to publish. One that was killed leaves its branch until the next run.
GIVE_WAY_S = 60.0


@dataclass(frozen=True)
class Replayed:
    """The outcome of a slice.

    Attributes:
        snapshot_id: the snapshot that brought it.
        at: when that was committed; None where it is not there any more.
        counts: what it held; None where it had landed before.
        before: rows of the range in main before, with `after` and `added` as in `Compared`.
    """

    snapshot_id: int
    at: datetime | None
    counts: check.Counts | None = None
    before: int = 0
    after: int = 0
    added: int = 0
    seconds: float = 0.0


@registry.held()
def replay(context: Context, contract: Contract, piece: Batch, origin: Origin, *, gaps_expected: bool) -> Replayed:
    """Bring one slice into the table, or find that it is there.

    Args:
        gaps_expected: the topic is compacted or written in transactions, so that offsets may be missing.

    Raises:
        RefusedError: the slice reaches beyond the table's cursor.
        StagingTrimmedError: staging does not hold it.
        OffsetsMissingError: offsets are missing where none may be.
        BlockedError: more bad records than the contract tolerates; main is as it was.
        InvalidReplayError: the result did not stand validation; main is as it was.
        FencedError: another writer moved main meanwhile; main is as that one left it.
    """
    began = time.monotonic()
    tables.ensure_typed(context.catalog, contract)
    dead = _give_way(context, table_names.typed(contract))
    attempt = Attempt(context, table_names.typed(contract), piece)
    file, contract = contract, active_contract.published_by(attempt.base, contract)
    ledger = Ledger(context.catalog)
    known = slices.rows(ledger, piece.topic)
    expected: int | None = None
    if origin == Origin.KAFKA and slices.landed_as(attempt.base, contract.table, piece, known) is None:
        _check_below(attempt, contract, piece, ledger)
        expected = stage(context, piece, gaps_expected=gaps_expected).records
        if expected is None:  # staged before
            expected = slices.rows_staged(context.catalog.load_table(table_names.staging(piece.topic)), piece)
        # Reading takes its time, and the live feed has gone on; the files of an old ledger have gone by now.
        ledger.refresh()
        attempt = Attempt(context, table_names.typed(contract), piece)
        contract = active_contract.published_by(attempt.base, file)
    source = Source.of(context, contract, piece, origin)
    done = slices.landed_as(attempt.base, contract.table, piece, known)
    if done is not None:
        source = replace(source, landed=True)
        if not source.passes():
            brought = attempt.base.snapshot_by_id(done)
            return Replayed(
                done, snapshots.committed_at(brought) if brought else None, seconds=time.monotonic() - began
            )
    through = _check_below(attempt, contract, piece, ledger)
    refs.drop_branches(context.catalog, attempt.identifier, slices.leftovers(attempt.base, [piece]))
    still_held = _holding(source, ledger, expected)
    still_held()
    properties = {
        STEP: "replay",
        RUN_ID: context.run_id,
        **piece.properties(),
        PUBLISHED_THROUGH: encode_through(through),
    }
    with attempt:
        session = context.session(properties)
        # Read and decoded once, for the MERGE, the counts and the validation.
        decoded = source.decoded(session).persist()
        try:
            counts = check.counted(decoded)
            compared = _onto_branch(attempt, source, decoded, counts, not gaps_expected)
        finally:
            decoded.unpersist()
        _give_way(context, attempt.identifier, dead, attempt.base_still_there)
        # Once more: what was deleted while it was read would be missing in silence.
        still_held()
        snapshot = attempt.land()
    source.release()
    seconds = time.monotonic() - began
    at = snapshots.committed_at(snapshot)
    return Replayed(snapshot.snapshot_id, at, counts, compared.before, compared.after, compared.added, seconds)


def _check_below(attempt: Attempt, contract: Contract, piece: Batch, ledger: Ledger) -> Mapping[str, Through]:
    """Where the table stands, provided that the slice lies below it."""
    through = cursor.published(attempt.base, lambda: ledger.remembered(contract.table))
    ranges.check_below(contract.table, piece, through.get(piece.topic))
    return through


def _give_way(
    context: Context, identifier: Identifier, dead: Set[str] = frozenset(), look: Callable[[], None] = lambda: None
) -> Set[str]:
    """Let a batch of the live feed land that is at work on the table: a slice that lands first makes it begin anew.

    Args:
        dead: branches that nobody works on.
        look: called while it waits.

    Returns:
        The branches on which nothing came of waiting.
    """
    until = time.monotonic() + GIVE_WAY_S
    while True:
        found = context.catalog.load_table(identifier).metadata.refs
        at_work = {name for name in found if refs.is_batch_attempt(name)} - dead
        if not at_work or time.monotonic() > until:
            return at_work
        look()
        time.sleep(0.5)


def _onto_branch(
    attempt: Attempt, source: Source, decoded: DataFrame, counts: check.Counts, whole: bool
) -> validate.Compared:
    """Merge into the branch, look at it, and do what other tables need before main moves."""
    context, contract, piece = source.context, source.contract, source.piece
    watched = decoded.select(*merge.columns(contract), OP, ERROR)
    merge_in.merge_in(context, attempt, contract, piece, decoded, watched, fresh=False, replay=True)
    good = watched.where(decoded_rows.is_good())
    compared = validate.compare(context, attempt, contract, piece, good, counts, whole=whole and not source.set_apart)
    log.info(
        "replay %s from %s into %s: %s records, %s rejected; rows of the range: %s before, %s after",
        piece, source.origin, contract.table, counts.records, counts.rejected, compared.before, compared.after,
    )  # fmt: skip
    if compared.problems:
        problem = InvalidReplayError("; ".join(compared.problems) + ".", table=contract.table, topic=piece.topic)
        raise _refused(attempt, contract, piece, problem)
    attempt.base_still_there()  # one that was overtaken has nothing to say to other tables
    # Commits on other tables must not carry this one's properties, hence the plain session.
    again = source.decoded(context.spark)
    if counts.rejected:
        tables.ensure_quarantine(context.catalog, contract)
        refused = rejected_change.standing(context.catalog, attempt.base, contract)
        merge.reject(quarantine.bad(again, contract, refused), source.quarantine, piece)
    try:
        if not source.set_apart:
            check.verdict(contract, [piece], {piece.seq: counts})
        expectations.judge(context, contract, [piece], decoded.withColumn(decoded_rows.SEQ, F.lit(piece.seq)))
    except BlockedError as error:
        raise _refused(attempt, contract, piece, error) from error
    if counts.deleted:
        merge_in.remember_deletes(context, contract, attempt.base, again)
    return compared


def _refused(attempt: Attempt, contract: Contract, piece: Batch, error: SluiceError) -> SluiceError:
    """The error, with what was written kept for somebody to look at."""
    name = refs.kept_branch(piece.topic, piece.seq)
    try:
        attempt.keep(name)
    except Exception as failure:  # noqa: BLE001 - what is wrong with the slice matters more
        log.warning("could not keep branch %s of %s: %s", name, contract.table, failure)
        return error
    table = ".".join(quoted(part) for part in attempt.identifier)
    way_out = (
        f"Main is as it was. Look at branch {name} ({table} VERSION AS OF '{name}'), repair the contract or choose "
        f"other ranges, and backfill again. ALTER TABLE {table} DROP BRANCH {name} drops it."
    )
    return type(error)(error.message, way_out=way_out, **{**error.fields, "kept": name})


def _holding(source: Source, ledger: Ledger, expected: int | None) -> Callable[[], None]:
    """A look whether staging holds the raw records: all that were staged under the slice's number, or its ranges."""
    contract, piece = source.contract, source.piece

    def look() -> None:
        if source.landed:  # what was to come from there has come
            return
        staging = tables.load(source.context.catalog, table_names.staging(piece.topic))
        if source.origin == Origin.KAFKA:
            left = slices.rows_of(staging, piece) if staging else 0
            if left != expected:
                raise StagingTrimmedError(
                    f"Of {expected} raw records that were staged for the slice, {left} are left.",
                    table=contract.table,
                    topic=piece.topic,
                    way_out="Trigger the backfill again: slices with new numbers are read from Kafka anew.",
                )
        elif source.origin == Origin.STAGING:
            ledger.refresh()  # the slice may have taken longer than the files of an old ledger stay
            known = slices.rows(ledger, piece.topic)
            ranges.check_held(contract.table, piece, slices.in_staging(staging, piece.topic, known, ledger))

    return look
