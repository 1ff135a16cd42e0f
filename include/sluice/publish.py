"""Publish: deduplicate a staged batch and MERGE it into the typed table, in one commit that also carries the offsets.

Running it again, late, twice or out of order leaves the table as if each record had been applied once, in order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import check, cursor, merge, tables
from sluice.commit import Attempt, Context
from sluice.contract import KAFKA_COLUMNS, Contract
from sluice.decode import DELETE, ERROR, OP, decode
from sluice.errors import AuditError, BatchOrderError, OrderUnknownError
from sluice.ledger import Ledger
from sluice.model import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, Through, encode_through

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """The outcome: the snapshot that holds the batch, or None where the table held it already."""

    batch: Batch
    snapshot_id: int | None
    records: int = 0
    rejected: int = 0
    seconds: float = 0.0


def publish(
    context: Context, contract: Contract, batch: Batch, *, staged_records: int | None = None, replay: bool = False
) -> Published:
    """Publish one staged batch of one topic into one table.

    Args:
        staged_records: how many records the batch has, where that is known; saves nothing but catches a wrong count.
        replay: apply a batch again that the table is past already; never moves the cursor.

    Raises:
        BlockedError: more bad records than the contract tolerates; main is as it was.
        OrderUnknownError: a key was met in two partitions, and the contract names no order.
        BatchOrderError: an earlier batch of the topic was not published yet.
        FencedError: another writer moved main meanwhile; main is as that one left it.
    """
    began = time.monotonic()
    tables.ensure_typed(context.catalog, contract)
    attempt = Attempt(context, tables.typed(contract), batch)
    through = dict(cursor.published(attempt.base, lambda: Ledger(context.catalog).remembered(contract.table)))
    done = through.get(batch.topic)
    if replay:
        if done is None or done.seq < batch.seq:
            raise BatchOrderError(
                "Only a batch that was published can be replayed.", table=contract.table, batch=batch.seq
            )
    elif done and done.seq >= batch.seq:
        return Published(batch, None, seconds=time.monotonic() - began)
    else:
        _check_next(contract, batch, done)
        through[batch.topic] = Through(batch.seq, batch.topic_id, batch.next_offsets)
    properties = {
        STEP: "replay" if replay else "publish",
        RUN_ID: context.run_id,
        **batch.properties(),
        PUBLISHED_THROUGH: encode_through(through),
    }
    with attempt:
        session = context.session(properties)
        decoded = _decoded(context, session, contract, batch)
        # Only what the MERGE takes: the observation keeps every column it is given alive, and one nested column among
        # them (the headers) would turn Iceberg's vectorised reader off for the whole scan.
        watched, observation = check.observed(decoded.select(*merge.columns(contract), OP, ERROR))
        try:
            _merge(
                context,
                attempt,
                contract,
                batch,
                decoded,
                watched,
                fresh=not replay and _begins_at(batch, done),
                replay=replay,
            )
        except Exception as error:
            if merge.ORDER_RAISED in str(error):
                raise OrderUnknownError(
                    "A key was met in two partitions.", table=contract.table, topic=batch.topic, batch=batch.seq
                ) from error
            raise
        found = check.counts(observation, decoded, staged_records)
        # What follows commits to other tables, which must not carry this commit's properties: the plain session.
        plain = _decoded(context, context.spark, contract, batch)
        if not replay:
            check.quarantine(context, contract, batch, plain, found.rejected)
        check.verdict(contract, batch, found)
        if found.deleted:
            _remember_deletes(context, contract, plain)
        _look(attempt, contract, found)
        snapshot = attempt.land()
    return Published(batch, snapshot.snapshot_id, found.records, found.rejected, time.monotonic() - began)


def _decoded(context: Context, session: SparkSession, contract: Contract, batch: Batch) -> DataFrame:
    staged = session.table(tables.spark_name(context.catalog_name, tables.staging(batch.topic)))
    return decode(staged.where(F.col("batch_seq") == batch.seq), contract, batch.topic)


def _begins_at(batch: Batch, done: Through | None) -> bool:
    """Whether the batch begins where the table's own cursor stands: then main can't hold any of its offsets."""
    return done is None or all(r.start == done.next_offsets.get(p, r.start) for p, r in batch.ranges.items())


def _merge(
    context: Context,
    attempt: Attempt,
    contract: Contract,
    batch: Batch,
    decoded: DataFrame,
    watched: DataFrame,
    *,
    fresh: bool,
    replay: bool,
) -> None:
    """Bring the batch's good rows onto the branch.

    Args:
        decoded: the batch, to take key bounds from; in the session whose commits carry the offsets, as all here.
        watched: the same rows, counted as they pass.
        fresh: the table can't hold any of the batch's offsets; the fence makes sure that it stays so.
        replay: the batch is applied once more, after later ones.
    """
    session, target = decoded.sparkSession, attempt.spark_branch
    if not batch.ranges:
        # Nothing to merge, but the offsets must be carried on.
        session.table(target).limit(0).writeTo(target).append()
        return
    if not contract.upsert:
        rows = check.good(watched).select(*merge.columns(contract))
        if fresh:
            rows.writeTo(target).append()
        else:
            merge.append(rows, target, contract, batch)
        return
    rows = merge.latest(check.good(watched).select(*merge.columns(contract), OP), contract)
    if replay or contract.order:
        deletes = tables.load(context.catalog, tables.deletes(contract))
        if deletes is not None:
            known = session.table(tables.spark_name(context.catalog_name, tables.deletes(contract)))
            rows = merge.without_deleted(rows, contract, known)
    head = attempt.base.metadata.current_snapshot()
    total = cursor.summary(head).get("total-records", "0") if head else "0"
    bounds = merge.key_bounds(decoded, target, contract, batch.span) if total != "0" else []
    merge.upsert(rows, target, contract, bounds)


def _remember_deletes(context: Context, contract: Contract, decoded: DataFrame) -> None:
    """Keep what a replay of older records needs to know: which keys were deleted after them."""
    tables.ensure_deletes(context.catalog, contract)
    rows = decoded.where((F.col(OP) == DELETE) & F.col(ERROR).isNull()).select(*merge.columns(contract), OP)
    deleted = merge.latest(rows, contract).select(*contract.identifier, *KAFKA_COLUMNS)
    merge.remember_deletes(deleted, tables.spark_name(context.catalog_name, tables.deletes(contract)), contract)


def _look(attempt: Attempt, contract: Contract, found: check.Counts) -> None:
    """Look at what the MERGE left on the branch before anybody else can see it.

    Raises:
        AuditError: it holds more rows than the batch has good records.
    """
    added = int(cursor.summary(attempt.result()).get("added-records", "0"))
    if added > found.records - found.rejected:
        raise AuditError(
            f"The MERGE added {added} rows for {found.records - found.rejected} good records.", table=contract.table
        )


def _check_next(contract: Contract, batch: Batch, done: Through | None) -> None:
    at: Mapping[int, int] = done.next_offsets if done else {}
    skipped = {p: (at[p], r.start) for p, r in sorted(batch.ranges.items()) if p in at and r.start > at[p]}
    if skipped or (done is None and batch.seq != 1):
        raise BatchOrderError(
            f"Batches before it are not published yet; {{partition: (published to, start)}} {skipped or 'nothing'}.",
            table=contract.table,
            topic=batch.topic,
            batch=batch.seq,
        )
