"""One Spark application carries out one slice of a backfill, and tells the ledger what came of it."""

from __future__ import annotations

import logging
from dataclasses import replace

from confluent_kafka.admin import AdminClient

from sluice.backfill.replay import Replayed, replay
from sluice.batch import Batch
from sluice.contract.folder import Contracts
from sluice.errors import BlockedError, BrokerUnavailableError, LedgerError, SluiceError
from sluice.ingest.landing import Context
from sluice.ingest.run import again
from sluice.kafka import broker
from sluice.ledger import error_causes, slices
from sluice.ledger.offsets_table import Ledger, Row, State
from sluice.ledger.slices import Origin

log = logging.getLogger(__name__)

# Slices that run side by side overtake each other; each of them lands at some time.
TRIES = 12


def run(
    context: Context, contracts: Contracts, client: AdminClient, *, table: str, topic: str, seq: int, origin: Origin
) -> Replayed:
    """Bring one slice into its table.

    Raises:
        LedgerError: the ledger does not know the slice.
        SluiceError: as `replay`; the ledger keeps it.
    """
    contract = contracts.table(table)
    ledger = Ledger(context.catalog)
    known = slices.rows(ledger, topic)
    piece = slices.planned(known).get(seq)
    if piece is None:
        raise LedgerError(
            f"The ledger knows no slice {seq} of topic {topic!r}.", way_out="Trigger the backfill again.", table=table
        )
    gaps = contracts.topics[topic].transactional or _may_lack(client, piece, origin)
    about = (topic, piece.topic_id, seq)
    told_of: list[Row] = []

    def retried(error: Exception) -> None:
        kept = error_causes.facts(error)
        if error_causes.cause(kept["exception"]):
            told_of.append(Row(about[0], State.RETRIED, *about[1:], table=table, **kept))

    try:
        done = again(
            context,
            f"replay {table}",
            lambda: replay(context, contract, piece, origin, gaps_expected=gaps),
            tries=TRIES,
            retried=retried,
        )
    except Exception as error:
        end = State.BLOCKED if isinstance(error, BlockedError) else State.FAILED
        log.error("replay  %s: %s", piece, error, exc_info=not isinstance(error, SluiceError))
        failed = Row(about[0], end, *about[1:], table=table, **error_causes.facts(error))
        ledger.append([*told_of, failed], run_id=context.run_id)
        raise
    log.info("replay  %s: snapshot %s, %s, in %.1f s", piece, done.snapshot_id, told(done), done.seconds)
    told_already = any(r.batch_seq == seq and r.state == State.REPLAYED for r in known)
    if done.counts or not told_already:
        told_of.append(row(piece, table, done))
    ledger.append(told_of, run_id=context.run_id)
    return done


def _may_lack(client: AdminClient, piece: Batch, origin: Origin) -> bool:
    """Whether offsets may lack a record, for all that Kafka tells: of what is read elsewhere it need not tell.

    That staging holds what was staged is looked at by itself.
    """
    try:
        state = broker.describe(client, [piece.topic])[piece.topic]
    except BrokerUnavailableError:
        if origin == Origin.KAFKA:
            raise
        return True
    if isinstance(state, broker.TopicState) and (origin == Origin.KAFKA or state.topic_id == piece.topic_id):
        return state.compacted
    return origin != Origin.KAFKA


def told(done: Replayed) -> str:
    """What a slice changed."""
    if done.counts is None:
        return "landed before"
    return f"rows of the range: {done.before:,} before, {done.after:,} after, {done.added:,} written"


def row(piece: Batch, table: str, done: Replayed) -> Row:
    """The ledger's row of a slice that landed."""
    found = Row(
        topic=piece.topic,
        state=State.REPLAYED,
        topic_id=piece.topic_id,
        batch_seq=piece.seq,
        table=table,
        snapshots={table: done.snapshot_id},
        records=done.counts.records if done.counts else None,
        rejected=done.counts.rejected if done.counts else None,
        seconds=done.seconds if done.counts else None,
        why=told(done),
    )
    # When it landed, not when that is told: a rollback in between has undone it.
    return replace(found, at=done.at) if done.at else found
