"""Runs slices of a backfill in one Spark application, and records the outcome of each in the ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog

from sluice.backfill import backfill_outcome
from sluice.backfill.replay import ReplayResult, replay
from sluice.batch import Batch
from sluice.contract.folder import Contracts
from sluice.errors import BlockedError, BrokerUnavailableError, LedgerError, SluiceError, TerminalError
from sluice.iceberg import cursor, tables
from sluice.ingest.context import Context
from sluice.ingest.run import retry_step
from sluice.kafka import broker
from sluice.ledger import error_causes, slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin

log = logging.getLogger(__name__)

# Slices that run in parallel overtake each other: each of them needs several attempts.
ATTEMPTS = 12


class SliceTask(NamedTuple):
    """One slice of a backfill, as its task is given it.

    Attributes:
        seq: its number, below zero, as in the ledger.
        origin: where its records are read.
    """

    table: str
    topic: str
    seq: int
    origin: Origin


def run_slices(
    context: Context, contracts: Contracts, client: AdminClient, tasks: Sequence[SliceTask], *, seconds: float = inf
) -> None:
    """Replay the slices that are not in their table, one after another. One that needs action does not stop the others.

    Slices that this run has not tried yet come first. While there are any, none begins after the time is up.

    Args:
        tasks: slices of one table and topic.
        seconds: the time.

    Raises:
        RetryableError: of a slice, at once.
        TerminalError: the first one, after the last slice.
    """
    until = time.monotonic() + seconds
    by_number = {task.seq: task for task in tasks}
    asked = tasks[0].table, tasks[0].topic, list(by_number)
    progress = backfill_outcome.read_progress(contracts, context.catalog, asked, context.run_id)
    errors: list[TerminalError] = []
    for number, seq in enumerate([*progress.untried, *progress.failed]):
        if 0 < number < len(progress.untried) and time.monotonic() > until:
            log.info("The time is up before slice %s; the next application continues.", seq)
            return
        try:
            run_slice(context, contracts, client, by_number[seq])
        except TerminalError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def run_slice(context: Context, contracts: Contracts, client: AdminClient, task: SliceTask) -> ReplayResult:
    """Replay one slice into its table, and record the outcome in the ledger.

    Raises:
        LedgerError: the ledger has no such slice.
        SluiceError: as `replay`; it is recorded in the ledger.
    """
    table, topic, seq, origin = task
    contract = contracts.table(table)
    ledger = Ledger(context.catalog)
    known = slices.read_slice_rows(ledger, topic)
    piece = slices.planned_slices(known).get(seq)
    if piece is None:
        raise LedgerError(
            f"The ledger has no slice {seq} of topic {topic!r}.", next_step="Trigger the backfill again.", table=table
        )
    gaps = contracts.topics[topic].transactional or _may_have_gaps(context.catalog, client, piece, origin)
    rows: list[LedgerRow] = []

    def failure_row(state: LedgerState, columns: error_causes.ErrorColumns) -> LedgerRow:
        return LedgerRow(topic, state, piece.topic_id, seq, table=table, **columns)

    def retried(error: Exception) -> None:
        columns = error_causes.error_columns(error)
        if error_causes.classify(columns["exception"]):
            rows.append(failure_row(LedgerState.RETRIED, columns))

    try:
        with context.meter.step("backfill", table, topic) as usage:
            done = retry_step(
                context,
                f"replay {table}",
                lambda: replay(context, contract, piece, origin, gaps_expected=gaps),
                tries=ATTEMPTS,
                on_retry=retried,
            )
            usage.add_records(done.counts.records if done.counts else None)
    except Exception as error:
        end = LedgerState.BLOCKED if isinstance(error, BlockedError) else LedgerState.FAILED
        log.error("replay  %s: %s", piece, error, exc_info=not isinstance(error, SluiceError))
        rows.append(failure_row(end, error_causes.error_columns(error)))
        ledger.append(rows, run_id=context.run_id)
        raise
    log.info("replay  %s: snapshot %s, %s, in %.1f s", piece, done.snapshot_id, describe_result(done), done.seconds)
    recorded = any(r.batch_seq == seq and r.state == LedgerState.REPLAYED for r in known)
    if done.counts or not recorded:
        rows.append(replayed_row(piece, table, done))
    ledger.append(rows, run_id=context.run_id)
    return done


def _may_have_gaps(catalog: Catalog, client: AdminClient, piece: Batch, origin: Origin) -> bool:
    """Whether offsets of the slice may have no record; assumed where it is read elsewhere and Kafka has no answer."""
    try:
        state = broker.describe_topics(client, [piece.topic])[piece.topic]
        state = cursor.with_known_id(state, tables.load_staging(catalog, piece.topic))
    except BrokerUnavailableError:
        if origin == Origin.KAFKA:
            raise
        return True
    if isinstance(state, broker.TopicState) and (origin == Origin.KAFKA or state.topic_id == piece.topic_id):
        return state.compacted
    return origin != Origin.KAFKA


def describe_result(done: ReplayResult) -> str:
    """What a slice changed, as text."""
    if done.counts is None:
        return "was in the table already"
    return f"rows of the range: {done.before:,} before, {done.after:,} after, {done.added:,} written"


def replayed_row(piece: Batch, table: str, done: ReplayResult) -> LedgerRow:
    """The ledger's row of a slice that is in the table."""
    found = LedgerRow(
        topic=piece.topic,
        state=LedgerState.REPLAYED,
        topic_id=piece.topic_id,
        batch_seq=piece.seq,
        table=table,
        snapshots={table: done.snapshot_id},
        records=done.counts.records if done.counts else None,
        rejected=done.counts.rejected if done.counts else None,
        seconds=done.seconds if done.counts else None,
        why=describe_result(done),
    )
    # The time of the commit, not of this row: a rollback in between has undone it.
    return replace(found, at=done.at) if done.at else found
