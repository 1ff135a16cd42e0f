"""Roll a typed table back: data and offsets in one commit, shown before it is done. No JVM.

The snapshot that main goes back to carries the offsets that were true then. What came after it is still in staging, and
the next run publishes it again by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetPropertiesUpdate, TableUpdate

from sluice.batch import (
    BATCH_SEQ,
    CURSOR_TAG,
    PUBLISHED_THROUGH,
    RUN_ID,
    Batch,
    Through,
    batches_of,
    decode_through,
    joined_ranges,
)
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.errors import CursorUnknownError, RefusedError, SluiceError
from sluice.iceberg import cursor, refs, snapshots, table_names, tables
from sluice.ledger import backlog, restore_deletes, unfinished_rollback
from sluice.ledger.accepted_gaps import covers
from sluice.ledger.backlog import Held
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.unfinished_rollback import NOTE, Note
from sluice.offsets import Ranges, encode_ranges
from sluice.operate import rollback_target, undone_slices
from sluice.operate.undone_slices import Undone

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rollback:
    """What a rollback would do.

    Attributes:
        base: the table that was looked at; main must still be at its head.
        target: the snapshot that main goes back to.
        carrier: target's nearest ancestor, or itself, that carries offsets; None before the first of them.
        again: per topic the batches that the next run publishes again.
        undone: main's snapshots that are left, newest first.
        between: those of them that others made between the commits of the run that was named.
        passed: the batches that these passed over, as they were given up for the table: the next run does so again.
        slices: the slices of backfills that these brought, which are not brought again by themselves.
        branches: attempts that are under way, or were left behind; what they write is refused.
        memory: the memory of deleted keys, and the state it goes back to; None where it stays as it is.
    """

    contract: Contract
    base: Table
    target: Snapshot
    carrier: Snapshot | None
    undone: tuple[Snapshot, ...]
    between: tuple[Snapshot, ...] = ()
    again: Mapping[str, tuple[Held, ...]] = field(default_factory=dict)
    passed: tuple[Batch, ...] = ()
    slices: tuple[Undone, ...] = ()
    branches: tuple[str, ...] = ()
    memory: Table | None = None
    memory_back_to: int | None = None

    @property
    def table(self) -> str:
        """The table's name."""
        return self.contract.table

    @property
    def lost(self) -> list[Held | Undone]:
        """The batches and slices whose rows staging no longer holds whole."""
        return [*self.lost_batches, *(each for each in self.slices if not each.whole)]

    @property
    def lost_batches(self) -> list[Held]:
        """Those that the next run would publish again."""
        return [each for held in self.again.values() for each in held if not each.whole]

    def lines(self) -> list[str]:
        """The rollback in words."""
        metadata = self.base.metadata
        out = [
            f"{self.table}: from snapshot {metadata.current_snapshot_id} back to {self.target.snapshot_id}, "
            f"{len(self.undone)} snapshot(s) undone"
        ]
        if self.between:
            runs = ", ".join(dict.fromkeys(snapshots.summary(s).get(RUN_ID, "unknown") for s in self.between))
            out.append(f"between {len(self.between)} of them lie between the run's own commits, by others: {runs}")
        for topic, held in self.again.items():
            out += [f"{'again  ' if each.whole else 'LOST   '} {topic} batch {each}" for each in held]
            if lost := [each.batch for each in held if not each.whole]:
                out.append(self._kafka(topic, joined_ranges(lost)))
        out += [f"passed  {each}: given up for this table before, and not in it now either" for each in self.passed]
        if not any(self.again.values()) and not self.passed:
            out.append("again   no batch: nothing was published since")
        for each in self.slices:
            told = "not published again by itself; backfill it again"
            out.append(f"{'undone ' if each.whole else 'LOST   '} {each.batch.topic} {each}: {told}")
            out += [] if each.whole else [self._kafka(each.batch.topic, each.batch.ranges)]
        if self.memory_back_to is not None:
            state = f"snapshot {self.memory_back_to}" if self.memory_back_to else "nothing"
            out.append(f"deletes the memory of deleted keys goes back to {state}")
        out += [f"branch  {name}: what is being written there will be refused" for name in self.branches]
        return out

    def _kafka(self, topic: str, ranges: Ranges) -> str:
        return (
            f"kafka   python -m sluice backfill plan {self.table} --topic={topic} --ranges '{encode_ranges(ranges)}' "
            "tells what it still has of the lost; DAG backfill brings that after the next run"
        )


def look(
    name: str,
    contracts: Contracts,
    catalog: Catalog,
    ledger: Ledger | None,
    *,
    snapshot_id: int | None = None,
    before_run: str | None = None,
) -> Rollback:
    """Work out a rollback, changing nothing.

    Args:
        name: a typed table.
        snapshot_id: one of main's ancestors.
        before_run: or the run, whose first commit on the table is the first to be undone.

    Raises:
        ContractError: no contract names the table.
        RefusedError: there is nothing to go back to, or it does not tell its offsets.
        LedgerError: nobody knows the batches that would have to be published again.
    """
    contract = contracts.table(name)
    memory = tables.load(catalog, table_names.deletes(contract)) if contract.upsert else None
    table = tables.load(catalog, table_names.typed(contract))
    if table is None or table.metadata.current_snapshot_id is None:
        raise RefusedError("The table holds nothing yet.", table=name)
    line = list(snapshots.ancestors(table.metadata))
    target = rollback_target.target(name, line, snapshot_id, before_run)
    undone = tuple(line[: line.index(target)])
    then = rollback_target.carrier(name, table, target)
    through = decode_through(snapshots.summary(then)[PUBLISHED_THROUGH]) if then else {}
    again, passed = _again(contract, catalog, ledger, table, through, undone)
    return Rollback(
        contract=contract,
        base=table,
        target=target,
        carrier=then,
        undone=undone,
        between=rollback_target.between(undone, before_run),
        again=again,
        passed=passed,
        slices=undone_slices.look(undone, catalog, ledger),
        branches=tuple(sorted(n for n in table.metadata.refs if refs.is_batch_attempt(n) or refs.is_slice_attempt(n))),
        memory=memory,
        memory_back_to=restore_deletes.state_before(memory, table.metadata, target, undone[-1]),
    )


def _again(
    contract: Contract,
    catalog: Catalog,
    ledger: Ledger | None,
    table: Table,
    through: Mapping[str, Through],
    undone: tuple[Snapshot, ...],
) -> tuple[dict[str, tuple[Held, ...]], tuple[Batch, ...]]:
    """Per topic the batches between then and now, and whether staging still holds their rows; apart, those passed over.

    That a batch was given up is not enough: a table that was put forward again by hand may hold it.
    """
    try:
        now = cursor.published(table, partial(ledger.remembered, contract.table) if ledger else None)
    except CursorUnknownError:  # which may be why somebody rolls back
        now = {}
    broken: dict[str, SluiceError] = {}
    loaded = backlog.staged(catalog, list(contract.topics), ledger, broken)
    if broken:
        raise next(iter(broken.values()))
    given_up = ledger.gaps(contract.topics) if ledger else []
    known, _ = backlog.known_batches([contract], loaded, {contract.table: through}, ledger, given_up)
    told = (snapshots.summary(s) for s in undone)
    empty = [b for properties in told if BATCH_SEQ in properties for b in batches_of(properties) if b.span == 0]
    again: dict[str, tuple[Held, ...]] = {}
    passed: list[Batch] = []
    for topic in contract.topics:
        staging, last = loaded[topic]
        batches = backlog.pending(contract.table, known[topic], last, through.get(topic), given_up)
        if topic in now:
            batches = tuple(b for b in batches if b.seq <= now[topic].seq)
        held = backlog.held(staging, batches, ledger)
        lost = [each.batch for each in held if not each.whole]
        gone = [b for b in lost if b in empty and covers(given_up, b, contract.table)]
        again[topic] = tuple(each for each in held if each.batch not in gone)
        passed += gone
    return again, tuple(passed)


def roll_back(
    found: Rollback, catalog: Catalog, ledger: Ledger, *, who: str, why: str, run_id: str, accept_loss: str = ""
) -> None:
    """Do what `look` worked out, in one commit: main, and the tag that keeps the offsets. Then what is left to do.

    Args:
        accept_loss: the table's name, typed out, if batches and slices are to be lost for it that staging no longer
            holds.

    Raises:
        RefusedError: staging no longer holds what would be published again; or no reason is given; or the snapshot has
            expired since it was looked at.
        FencedError: main moved since it was looked at; nothing was changed.
        CatalogUnavailableError: the catalog stayed away, and nobody knows yet whether it is done.
    """
    if not why.strip():
        raise RefusedError("No reason is given.", table=found.table, way_out="Say why: it is kept in the ledger.")
    if found.lost and accept_loss != found.table:
        raise loss(found)
    # The table itself tells, since the ledger's row may not follow. Clocks differ.
    now_ms = max(int(time.time() * 1000), found.undone[0].timestamp_ms)
    note = _note(found, who, why, run_id)
    updates: list[TableUpdate] = [
        refs.point(refs.MAIN, found.target.snapshot_id),
        SetPropertiesUpdate(updates={tables.SLICES_SINCE: str(now_ms), NOTE: note.text()}),
    ]
    if found.carrier:
        updates.append(refs.point(CURSOR_TAG, found.carrier.snapshot_id, tag=True))
    elif CURSOR_TAG in found.base.metadata.refs:
        updates.append(RemoveSnapshotRefUpdate(ref_name=CURSOR_TAG))
    if unfinished := Note.of(found.base):  # the note takes its place
        unfinished_rollback.tell(ledger, unfinished)
    unfinished_rollback.commit(catalog, ledger, found.base, tuple(updates), note)
    log.warning("%s: rolled back from %s to %s", found.table, note.left, note.target)
    unfinished_rollback.finish(catalog, ledger, found.contract, note)


def loss(found: Rollback) -> RefusedError:
    """What is said where staging no longer holds what would be published again, or could be backfilled again."""
    return RefusedError(
        f"Staging no longer holds all rows of {'; '.join(map(str, found.lost))}: the table would be without them.",
        table=found.table,
        way_out="Choose a newer snapshot; or accept the loss by typing the table's name as accept_loss: the next run "
        "passes over them, and DAG backfill then brings what Kafka still has: a dry run shows the command that tells.",
    )


def _note(found: Rollback, who: str, why: str, run_id: str) -> Note:
    memory = None
    if found.memory is not None and found.memory_back_to is not None:
        memory = [found.memory.metadata.current_snapshot_id or 0, found.memory_back_to]
    return Note(
        table=found.table,
        left=found.undone[0].snapshot_id,
        target=found.target.snapshot_id,
        topics=list(found.again),
        lost=[unfinished_rollback.lost(each.batch) for each in found.lost_batches],
        memory=memory,
        who=who,
        why=why,
        run=run_id,
    )
