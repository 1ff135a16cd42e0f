"""Rolls a typed table back, data and offsets in one commit, after a preview. No JVM.

In: a table and a `RestorePoint`. Out: a `Rollback` to show, and the commit. The snapshot that main goes back to carries
the offsets of that time; later batches are still in staging, and the next run publishes them again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetPropertiesUpdate, TableUpdate

from sluice import dag_ids
from sluice.batch import (
    BATCH_SEQ,
    CURSOR_TAG,
    PUBLISHED_THROUGH,
    RUN_ID,
    Batch,
    PublishedOffsets,
    batches_from_summary,
    decode_published_through,
    merge_ranges,
)
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import CursorUnknownError, RefusedError, SluiceError
from sluice.iceberg import cursor, refs, snapshots, table_names, tables
from sluice.ledger import backlog, restore_deletes, unfinished_rollback
from sluice.ledger.accepted_gaps import is_skipped_by_table
from sluice.ledger.backlog import StagedRows
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.unfinished_rollback import ROLLBACK_PROPERTY, RollbackNote
from sluice.offsets import Ranges, encode_ranges
from sluice.operate import rollback_target, undone_slices
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.operate.undone_slices import UndoneSlice

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rollback:
    """What a rollback would do.

    Attributes:
        base: the table when it was previewed; the rollback is refused if main's head has changed since.
        target: the snapshot that main goes back to.
        offsets_snapshot: the target or its nearest ancestor that carries offsets; None: there were none yet.
        undone: main's snapshots that are undone, newest first.
        by_others: those of them that other runs committed between the commits of the named run.
        republish: per topic, the batches that the next run publishes again.
        skipped: undone batches that the table had skipped as an accepted gap; the next run skips them again.
        slices: backfill slices that are undone; no run publishes these again by itself.
        branches: branches of attempts; main will refuse their commits.
        deletes_table: the deletes table of an upsert table.
        deletes_snapshot_id: the snapshot that the deletes table goes back to, 0 for empty; None: it stays as it is.
    """

    contract: Contract
    base: Table
    target: Snapshot
    offsets_snapshot: Snapshot | None
    undone: tuple[Snapshot, ...]
    by_others: tuple[Snapshot, ...] = ()
    republish: Mapping[str, tuple[StagedRows, ...]] = field(default_factory=dict)
    skipped: tuple[Batch, ...] = ()
    slices: tuple[UndoneSlice, ...] = ()
    branches: tuple[str, ...] = ()
    deletes_table: Table | None = None
    deletes_snapshot_id: int | None = None

    @property
    def table(self) -> str:
        """The table's name."""
        return self.contract.table

    @property
    def lost(self) -> list[StagedRows | UndoneSlice]:
        """The batches and slices whose rows staging no longer holds completely."""
        return [*self.lost_batches, *(each for each in self.slices if not each.complete)]

    @property
    def lost_batches(self) -> list[StagedRows]:
        """The lost batches among those that the next run publishes again."""
        return [each for staged in self.republish.values() for each in staged if not each.complete]

    def lines(self) -> list[str]:
        """The preview as text, one line each."""
        out = [
            f"{self.table}: from snapshot {self.base.metadata.current_snapshot_id} back to {self.target.snapshot_id}, "
            f"{len(self.undone)} snapshot(s) undone"
        ]
        if self.by_others:
            runs = ", ".join(dict.fromkeys(snapshots.summary(s).get(RUN_ID, "unknown") for s in self.by_others))
            out.append(_line("others", f"{len(self.by_others)} of them are commits of other runs: {runs}"))
        for topic, staged in self.republish.items():
            out += [_line("republish" if each.complete else "LOST", f"{topic} batch {each}") for each in staged]
            if lost := [each.batch for each in staged if not each.complete]:
                out.append(self._kafka_line(topic, merge_ranges(lost)))
        out += [_line("skipped", f"{each}: an accepted gap of this table, and skipped again") for each in self.skipped]
        if not any(self.republish.values()) and not self.skipped:
            out.append(_line("republish", "no batch: nothing was published since"))
        for each in self.slices:
            text = f"{each.batch.topic} {each}: not published again by itself; run a backfill again"
            out.append(_line("undone" if each.complete else "LOST", text))
            out += [] if each.complete else [self._kafka_line(each.batch.topic, each.batch.ranges)]
        if self.deletes_snapshot_id is not None:
            state = f"goes back to snapshot {self.deletes_snapshot_id}" if self.deletes_snapshot_id else "is emptied"
            out.append(_line("deletes", f"the deletes table {state}"))
        out += [_line("branch", f"{name}: its writes will be refused") for name in self.branches]
        return out

    def _kafka_line(self, topic: str, ranges: Ranges) -> str:
        return _line(
            "kafka",
            f"sluice backfill plan {self.table} --topic={topic} --ranges '{encode_ranges(ranges)}' "
            f"shows which lost records Kafka still has; DAG {dag_ids.BACKFILL} replays them after the next run",
        )


def _line(label: str, text: str) -> str:
    return f"{label:<9} {text}"


def preview_rollback(
    name: str, contracts: Contracts, catalog: Catalog, ledger: Ledger | None, point: RestorePoint
) -> Rollback:
    """Work out a rollback of a typed table without changing anything.

    Raises:
        ContractError: no contract defines the table.
        RefusedError: there is no such snapshot, or the snapshots that carried its offsets have expired.
        LedgerError: the batches to publish again are unknown.
    """
    contract = contracts.table(name)
    deletes = tables.load_deletes(catalog, contract) if contract.upsert else None
    table = tables.load(catalog, table_names.typed(contract))
    if table is None or table.metadata.current_snapshot_id is None:
        raise RefusedError("The table is empty.", table=name)
    chain = list(snapshots.ancestors(table.metadata))
    target = rollback_target.find_target(name, chain, point)
    undone = tuple(chain[: chain.index(target)])
    carrier = rollback_target.require_offsets_snapshot(name, table, target)
    published = decode_published_through(snapshots.summary(carrier)[PUBLISHED_THROUGH]) if carrier else {}
    republish, skipped = _split_skipped(
        contract, ledger, undone, _find_undone_batches(contract, catalog, ledger, table, published)
    )
    return Rollback(
        contract=contract,
        base=table,
        target=target,
        offsets_snapshot=carrier,
        undone=undone,
        by_others=rollback_target.commits_by_others(undone, point.before_run),
        republish=republish,
        skipped=skipped,
        slices=undone_slices.find_undone_slices(undone, catalog, ledger),
        branches=tuple(sorted(n for n in table.metadata.refs if refs.is_batch_branch(n) or refs.is_slice_branch(n))),
        deletes_table=deletes,
        deletes_snapshot_id=restore_deletes.find_restore_point(
            deletes, published, {target.snapshot_id, *(s.snapshot_id for s in undone)}
        ),
    )


def _find_undone_batches(
    contract: Contract,
    catalog: Catalog,
    ledger: Ledger | None,
    table: Table,
    published: Mapping[str, PublishedOffsets],
) -> dict[str, tuple[StagedRows, ...]]:
    """Per topic, the batches between the target's offsets and the table's, and how many rows staging holds of them."""
    try:
        now = cursor.read_table_cursor(table)
    except CursorUnknownError:  # perhaps the very reason for the rollback
        now = {}
    errors: dict[str, SluiceError] = {}
    staging = backlog.load_staging(catalog, list(contract.topics), errors)
    if errors:
        raise next(iter(errors.values()))
    gaps = ledger.gaps(contract.topics) if ledger else []
    known = backlog.find_known_batches([contract], staging, {contract.table: published}, ledger, gaps)
    found: dict[str, tuple[StagedRows, ...]] = {}
    for topic in contract.topics:
        staging_table, last = staging[topic]
        batches = backlog.find_pending_batches(contract.table, known.for_topic(topic), last, published.get(topic), gaps)
        if topic in now:
            batches = tuple(b for b in batches if b.seq <= now[topic].seq)
        found[topic] = backlog.count_staged_rows(staging_table, batches, ledger)
    return found


def _split_skipped(
    contract: Contract,
    ledger: Ledger | None,
    undone: tuple[Snapshot, ...],
    found: Mapping[str, tuple[StagedRows, ...]],
) -> tuple[dict[str, tuple[StagedRows, ...]], tuple[Batch, ...]]:
    """Separate the batches that the table had skipped as an accepted gap.

    The accepted gap alone does not prove it: after a manual change of main the table may hold the batch. So the undone
    snapshots must carry it as an empty batch.
    """
    summaries = (snapshots.summary(s) for s in undone)
    carried = (batch for each in summaries if BATCH_SEQ in each for batch in batches_from_summary(each))
    empty = [batch for batch in carried if batch.span == 0]
    lost = [each.batch for staged in found.values() for each in staged if not each.complete and each.batch in empty]
    gaps = ledger.gaps(contract.topics) if ledger and lost else []
    skipped = [batch for batch in lost if is_skipped_by_table(gaps, batch, contract.table)]
    left = {topic: tuple(each for each in staged if each.batch not in skipped) for topic, staged in found.items()}
    return left, tuple(skipped)


def roll_back(found: Rollback, catalog: Catalog, ledger: Ledger, decision: Decision, *, accept_loss: str = "") -> None:
    """Carry out a previewed rollback: one commit moves main and the cursor tag; ledger and deletes table follow.

    Args:
        accept_loss: the table's name, to confirm that batches and slices which staging no longer holds are lost.

    Raises:
        RefusedError: staging lacks rows that would be lost, no reason is given, or the target has expired meanwhile.
        FencedError: main moved since the preview; nothing was changed.
        CatalogUnavailableError: the catalog stopped answering, and the outcome is unknown.
    """
    if not decision.why.strip():
        raise RefusedError("No reason is given.", table=found.table, next_step="Say why: the ledger records it.")
    if found.lost and accept_loss != found.table:
        raise loss_error(found)
    # The table records the rollback itself, as the ledger may not. Clocks differ, hence the maximum.
    recorded_ms = undone_slices.last_recorded_ms(found.slices, ledger)
    now_ms = max(int(time.time() * 1000), found.undone[0].timestamp_ms, recorded_ms)
    note = _make_note(found, decision)
    updates: list[TableUpdate] = [
        refs.set_ref(refs.MAIN, found.target.snapshot_id),
        SetPropertiesUpdate(updates={tables.SLICES_SINCE: str(now_ms), ROLLBACK_PROPERTY: note.to_json()}),
    ]
    if found.offsets_snapshot:
        updates.append(refs.set_ref(CURSOR_TAG, found.offsets_snapshot.snapshot_id, tag=True))
    elif CURSOR_TAG in found.base.metadata.refs:
        updates.append(RemoveSnapshotRefUpdate(ref_name=CURSOR_TAG))
    # Main may be back at the head that a write began from: without its branch the catalog refuses that write's commit.
    updates += [RemoveSnapshotRefUpdate(ref_name=name) for name in found.branches]
    if unfinished := RollbackNote.from_table(found.base):  # the new note replaces it
        unfinished_rollback.record_rollback(ledger, unfinished)
    unfinished_rollback.commit_rollback(catalog, ledger, found.base, tuple(updates), note)
    log.warning("%s: rolled back from %s to %s", found.table, note.left, note.target)
    unfinished_rollback.finish_rollback(catalog, ledger, found.contract, note)


def loss_error(found: Rollback) -> RefusedError:
    """The error for a rollback whose batches or slices staging no longer holds."""
    return RefusedError(
        f"Staging no longer holds all rows of {'; '.join(map(str, found.lost))}: the table would lose them.",
        table=found.table,
        next_step="Choose a newer snapshot; or accept the loss by typing the table's name as accept_loss. The next run "
        f"then skips them, and DAG {dag_ids.BACKFILL} replays what Kafka still has: the dry run shows the command to "
        "check that.",
    )


def _make_note(found: Rollback, decision: Decision) -> RollbackNote:
    deletes = None
    if found.deletes_table is not None and found.deletes_snapshot_id is not None:
        deletes = [found.deletes_table.metadata.current_snapshot_id or 0, found.deletes_snapshot_id]
    return RollbackNote(
        table=found.table,
        left=found.undone[0].snapshot_id,
        target=found.target.snapshot_id,
        topics=list(found.republish),
        lost=[unfinished_rollback.encode_lost_batch(each.batch) for each in found.lost_batches],
        memory=deletes,
        who=decision.who,
        why=decision.why,
        run=decision.run_id,
    )
