"""Publish: deduplicate staged batches and MERGE them into the typed table, in one commit that also carries the offsets.

Running it again, late, twice or out of order leaves the table as if each record had been applied once, in order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, Through, encode_through, joined, publish_properties
from sluice.contract.contract import Contract
from sluice.errors import AuditError, BatchOrderError, SluiceError
from sluice.evolve import evolve, rejected_change
from sluice.formats.internal_columns import ERROR, OP
from sluice.iceberg import active_contract, cursor, snapshots, table_names, tables
from sluice.ingest import check, expectations, merge, merge_in, quarantine, staged_records
from sluice.ingest.landing import Attempt, Context
from sluice.kafka import registry
from sluice.ledger import backlog
from sluice.ledger.accepted_gaps import covers
from sluice.ledger.offsets_table import Ledger, Row

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """The outcome: the snapshot that holds the batches, or None where the table held them already.

    Attributes:
        commit_seconds: of `seconds`, how long the commit took.
    """

    snapshot_id: int | None
    counts: Mapping[int, check.Counts] = field(default_factory=dict)
    seconds: float = 0.0
    commit_seconds: float | None = None


@registry.held()
def publish(
    context: Context,
    contract: Contract,
    *batches: Batch,
    staged: Mapping[int, int] | None = None,
    replay: bool = False,
) -> Published:
    """Publish staged batches of one topic, which follow on one another, into one table, in one commit.

    Args:
        staged: how many records they have, by number, where that is known.
        replay: apply them again though the table is past them already; never moves the cursor.

    Returns:
        Snapshot, and counts by batch number. Batches that the table holds already are left out.

    Raises:
        BlockedError: more bad records in a batch than the contract tolerates, or an expectation that blocks does not
            hold; main is as it was.
        SchemaChangeError: the table is not what the contract in force made it.
        OrderUnknownError: a key was met in two partitions, and the contract names no order.
        BatchOrderError: an earlier batch of the topic was not published yet.
        TopicRecreatedError: the table was filled from another topic of that name.
        FencedError: another writer moved main meanwhile; main is as that one left it.
        StagingTrimmedError: staging no longer keeps their records, or not all of them.
    """
    began = time.monotonic()
    tables.ensure_typed(context.catalog, contract)
    attempt = Attempt(context, table_names.typed(contract), batches[-1])
    file, contract = contract, active_contract.published_by(attempt.base, contract)
    topic, last = batches[-1].topic, batches[-1].seq
    through = dict(cursor.published(attempt.base, lambda: Ledger(context.catalog).remembered(contract.table)))
    done = through.get(topic)
    if replay:
        if done is None or done.seq < last:
            raise BatchOrderError("Only a batch that was published can be replayed.", table=contract.table, batch=last)
    elif done and done.seq >= last:
        return Published(None, seconds=time.monotonic() - began)
    else:
        if done and done.seq >= batches[0].seq:
            batches = tuple(b for b in batches if b.seq > done.seq)
        _check_next(contract, batches[0], done, lambda: Ledger(context.catalog).gaps([topic]))
        through[topic] = Through(last, batches[-1].topic_id, batches[-1].next_offsets)
    properties = {
        STEP: "replay" if replay else "publish",
        RUN_ID: context.run_id,
        **publish_properties(batches),
        PUBLISHED_THROUGH: encode_through(through),
    }
    whole = joined(batches)
    staging = staged_records.checked(context, contract, batches)
    session = context.session(properties)
    splits = staged_records.how(staging, batches, session.sparkContext.defaultParallelism)
    reading = _Reading(context, attempt.base, file, contract, batches, splits)
    with attempt:
        decoded = reading.decoded(session)
        watch = expectations.Watch(contract, decoded)
        # Only what the MERGE takes: the observation keeps every column it is given alive, and one nested column among
        # them (the headers) would turn Iceberg's vectorised reader off for the whole scan.
        taken = decoded.select(*merge.columns(contract), OP, ERROR)
        # What expectations want to know goes along; of several batches it is known when they are told apart.
        watched, observation = check.observed(taken, watch.columns if len(batches) == 1 else ())
        fresh = not replay and _has_none_of(attempt.base, whole, done)
        merge_in.merge_in(context, attempt, contract, whole, decoded, watched, fresh=fresh, replay=replay)
        known = staged_records.counted(context, staging, batches, staged or {})
        seen = check.seen(observation, sum(known.values()))
        found = check.counts(seen, decoded, sum(known.values()))
        if found.records != sum(known.values()):
            known = staged_records.recounted(context, contract, batches, known, found.records)
        each = check.by_batch(decoded, batches, found, known)
        attempt.base_still_there()  # a zombie would set records apart that have been repaired since
        _aside(
            reading, found, each, partial(expectations.judge, context, contract, batches, decoded, watch, seen), replay
        )
        _look(session, attempt, contract, whole, found, fresh=fresh)
        if found.ignored:
            log.info("%s from %s: %s records passed over", contract.table, whole, found.ignored)
        # Once more: what was deleted while it was read would be missing in silence.
        staged_records.checked(context, contract, batches)
        snapshot = attempt.land()
    return Published(snapshot.snapshot_id, each, time.monotonic() - began, attempt.commit_seconds)


@dataclass(frozen=True)
class _Reading:
    """Staged batches as one attempt reads them.

    Attributes:
        base: the typed table.
        file: the contract as its file has it; `contract` is the one in force.
        splits: of `staged_records.how`.
    """

    context: Context
    base: Table
    file: Contract
    contract: Contract
    batches: Sequence[Batch]
    splits: Mapping[str, str]

    def decoded(self, session: SparkSession) -> DataFrame:
        """The records, by the contract."""
        return staged_records.decoded(self.context, self.contract, self.batches, self.splits, session)

    def anew(self) -> DataFrame:
        """The same for commits on other tables, which must not carry the publish commit's properties."""
        return self.decoded(self.context.spark)

    def excused(self) -> Mapping[int, int]:
        """How many records of each batch were rejected for what a change is about that waits for an answer, or has one.

        What still fits goes on being published meanwhile, however many there are of the others.
        """
        try:
            asked = evolve.look(self.context.catalog, self.base, self.file)
        except SluiceError as error:
            log.warning("%s: what its contract's file asks for is not known: %s", self.contract.table, error)
            return {}
        fields = rejected_change.touched(asked.old, asked.new, asked.changes)
        waits = asked.review in ("open", "rejected")
        return quarantine.bad_in(self.anew(), self.contract, fields) if fields and waits else {}


def _aside(
    reading: _Reading,
    found: check.Counts,
    each: Mapping[int, check.Counts],
    judge: Callable[[], object],
    replay: bool,
) -> None:
    """What goes to other tables: rejected records, and the memory of deletes. And the verdicts between the two."""
    context, contract, batches = reading.context, reading.contract, reading.batches
    # What was rejected of a batch that is given up now may be all that is left of it.
    if not replay and (mine := staged_records.with_records(batches)):
        refused = rejected_change.standing(context.catalog, reading.base, contract) if found.rejected else ()
        quarantine.quarantine(context, contract, mine, reading.anew, found.rejected, refused)
    check.verdict(contract, batches, each, reading.excused)
    judge()
    if found.deleted:
        merge_in.remember_deletes(context, contract, reading.base, reading.anew())


def _has_none_of(table: Table, batch: Batch, done: Through | None) -> bool:
    """Whether main can't hold any of the batch's offsets: it begins where the table's cursor stands, and all is ours.

    Other hands may have brought rows that the offsets do not tell of: CREATE OR REPLACE TABLE … AS SELECT leaves the
    rows and takes the offsets away; what is picked out of snapshots that were rolled back comes without any.
    """
    if done is None and snapshots.totals(table.current_snapshot()).get("records") != 0:
        return False
    begins = not done or all(r.start == done.next_offsets.get(p, 0) for p, r in batch.ranges.items())
    return begins and not snapshots.has_foreign_rows(table)


def _look(
    session: SparkSession, attempt: Attempt, contract: Contract, batch: Batch, found: check.Counts, *, fresh: bool
) -> None:
    """Look at what the MERGE left on the branch before anybody else can see it.

    Raises:
        AuditError: it holds more new rows than the batches have good records; or, of an append that can't hold any of
            them yet, fewer.
    """
    if contract.valid_to:
        # Versions that end are written anew, however many: those of the batch are told by their places.
        there = session.table(attempt.spark_branch).where(F.expr(merge.within(batch))) if batch.span and fresh else None
        new = 0 if there is None else there.count()
    else:
        told = snapshots.summary(attempt.result())
        # By copy-on-write all rows of a file are written anew, and taken away once.
        new = int(told.get("added-records", "0")) - int(told.get("deleted-records", "0"))
    good = found.records - found.rejected - found.ignored
    if new > good or (fresh and not contract.keyed and new < good):
        raise AuditError(f"{new} rows were added for {good} good records.", table=contract.table)


def _check_next(
    contract: Contract, batch: Batch, done: Through | None, given_up: Callable[[], Sequence[Row]] = tuple
) -> None:
    backlog.check_same_topic(contract.table, batch, done)
    skipped = batch.skips(done.next_offsets if done else {})
    # A new table begins with the topic's first batch, or where an operator has given up what came before.
    if skipped and done is None and (batch.seq == 1 or covers(given_up(), batch, contract.table, before=True)):
        return
    if skipped:
        raise BatchOrderError(
            f"Batches before it are not published yet; {{partition: (published to, start)}} {skipped}.",
            table=contract.table,
            topic=batch.topic,
            batch=batch.seq,
        )
