"""What is left to do when a rollback's commit is there: the ledger's rows, and the memory of deleted keys.

The commit leaves the table a note of it, as a property. Whoever comes first does what the note says and takes it away:
the rollback itself, or, where that was killed, the group's next plan or settle.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Self

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, RemovePropertiesUpdate, SetSnapshotRefUpdate, TableUpdate

from sluice.batch import STEP, Batch
from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError, FencedError, RefusedError
from sluice.iceberg import refs, snapshots, table_names, tables
from sluice.iceberg.filters import And, equal
from sluice.ledger import accepted_gaps, restore_deletes
from sluice.ledger.offsets_table import ConflictError, Ledger, Row, State
from sluice.offsets import decode_ranges, encode_ranges

log = logging.getLogger(__name__)

NOTE = "sluice.rolled-back"
"""Property of a typed table: a rollback that is not done with, as JSON."""

TRIES = 20
WAIT_S = 30.0


@dataclass(frozen=True)
class Note:
    """A rollback.

    Attributes:
        left: main's head before it.
        target: and after it.
        topics: of which the ledger gets a row each.
        lost: the batches that are given up for the table, each as topic, topic's id and ranges.
        memory: the head of the memory of deleted keys, and the state that it goes back to; None where it stays.
        run: who or what did it.
        at: when; no two have the same.
    """

    table: str
    left: int
    target: int
    topics: Sequence[str]
    lost: Sequence[Sequence[str]]
    memory: Sequence[int] | None
    who: str
    why: str
    run: str
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @classmethod
    def of(cls, table: Table) -> Self | None:
        """What the table notes; nothing where that can't be read, as nobody but Sluice may write it."""
        text = table.properties.get(NOTE)
        try:
            return cls(**json.loads(text)) if text else None
        except (ValueError, TypeError) as error:
            log.error("%s: the property %s can't be read: %s", ".".join(table.name()), NOTE, error)
            return None

    def text(self) -> str:
        """The property's value."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def rows(self) -> list[Row]:
        """One row per topic; and the word that gives up for this table what staging no longer holds."""
        at, moved = datetime.fromisoformat(self.at), {"from": self.left, "to": self.target}
        given_up = [
            replace(row, at=at)
            for topic, topic_id, ranges in self.lost
            for row in accepted_gaps.rows(
                topic, topic_id, decode_ranges(ranges), who=self.who, why=self.why, table=self.table
            )
        ]
        about = {"table": self.table, "snapshots": moved, "who": self.who, "why": self.why, "at": at}
        return given_up + [Row(topic, State.ROLLED_BACK, **about) for topic in self.topics]  # type: ignore[arg-type]


def lost(batch: Batch) -> list[str]:
    """A batch that is given up, as `Note` has it."""
    return [batch.topic, batch.topic_id, encode_ranges(batch.ranges)]


def commit(catalog: Catalog, ledger: Ledger, base: Table, updates: tuple[TableUpdate, ...], note: Note) -> None:
    """Commit a rollback that leaves this note; an answer that gets lost is resolved by looking for it.

    Args:
        base: the table that was looked at.

    Raises:
        FencedError: main moved since.
        RefusedError: the snapshot to go back to has expired since.
        CatalogUnavailableError: the catalog stayed away, and nobody knows yet whether it is done.
    """
    here = (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=note.left),)
    began, pause = time.monotonic(), 0.05
    while True:
        try:
            refs.commit(catalog, base, here, updates)
            return
        except Exception as error:  # noqa: BLE001 - whatever the client raised, the table knows what happened
            failure = error
        try:
            table = catalog.load_table(base.name())
            if Note.of(table) == note or is_told(ledger, note):
                return
        except Exception as error:  # noqa: BLE001 - away: ask again
            log.info("%s: %s", note.table, error)
        else:
            pointed = {u.snapshot_id for u in updates if isinstance(u, SetSnapshotRefUpdate)}
            if gone := pointed - {s.snapshot_id for s in table.metadata.snapshots}:
                raise RefusedError(
                    "A snapshot to go back to has expired since it was looked at; nothing was rolled back.",
                    table=note.table,
                    snapshot=min(gone),
                    way_out="Look again, and choose a newer snapshot.",
                ) from failure
            if table.metadata.current_snapshot_id != note.left:
                raise FencedError(
                    "Main moved since it was looked at; nothing was rolled back.",
                    table=note.table,
                    looked_at=note.left,
                    way_out="Look again, and decide again.",
                ) from failure
        if time.monotonic() - began > WAIT_S:
            raise CatalogUnavailableError(
                f"It is not known whether the table was rolled back: {failure}",
                table=note.table,
                way_out="Look again when the catalog answers: if it was, the next run of the group finishes it.",
            ) from failure
        log.warning("rollback of %s: %s; looking again in %.1f s", note.table, failure, pause)
        time.sleep(pause)
        pause = min(pause * 2, 5.0)


def catch_up(catalog: Catalog, ledger: Ledger, contract: Contract, table: Table | None) -> bool:
    """Finish the rollback that the table notes; whether there was one."""
    note = Note.of(table) if table else None
    if note:
        log.warning("%s: finishing the rollback of %s by %s", contract.table, note.at, note.who)
        finish(catalog, ledger, contract, note)
    return note is not None


def finish(catalog: Catalog, ledger: Ledger, contract: Contract, note: Note) -> None:
    """Do what is left to do, each part once, and take the note away; what can't be done stays for the next run."""
    _forget(catalog, contract, note)
    if not tell(ledger, note):
        log.warning("%s: the next run tells the ledger of the rollback", contract.table)
        return
    table = catalog.load_table(table_names.typed(contract))
    if Note.of(table) != note:
        return
    # Another rollback, whose note this would be, moves main.
    here = AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=table.metadata.current_snapshot_id)
    try:
        refs.commit(catalog, table, (here,), (RemovePropertiesUpdate(removals=[NOTE]),))
    except CommitFailedException as error:
        log.info("%s: the note of a rollback is left for the next run: %s", contract.table, error)


def _forget(catalog: Catalog, contract: Contract, note: Note) -> None:
    """Take the memory of deleted keys back, as long as nothing has been published again: that is in it, too."""
    memory = tables.load(catalog, table_names.deletes(contract)) if note.memory else None
    if memory is None or note.memory is None:
        return
    looked_at, back_to = note.memory
    there = back_to == restore_deletes.EMPTY or memory.snapshot_by_id(back_to)
    since = []  # a change of the contract, or maintenance, publishes nothing
    for snapshot in snapshots.ancestors(catalog.load_table(table_names.typed(contract)).metadata):
        if snapshot.snapshot_id == note.target:
            break
        since.append(snapshots.summary(snapshot).get(STEP))
    else:
        return
    if there and memory.metadata.current_snapshot_id == looked_at and not set(since) & set(restore_deletes.REMEMBER):
        restore_deletes.go_back(memory, catalog, back_to)


def tell(ledger: Ledger, note: Note) -> bool:
    """Let the ledger tell of the rollback, once; whether it does."""
    for attempt in range(TRIES):
        time.sleep(0.05 * attempt)
        if is_told(ledger, note):
            return True
        try:
            ledger.append(note.rows(), run_id=note.run, cas=True)
            return True
        except ConflictError:
            continue
    return False


def is_told(ledger: Ledger, note: Note) -> bool:
    """Whether the ledger tells of this very rollback."""
    ledger.refresh()
    if ledger.table.current_snapshot() is None:
        return False
    wanted = And(equal("state", str(State.ROLLED_BACK)), equal("table", note.table))
    rows = ledger.table.scan(row_filter=wanted, selected_fields=("at",)).to_arrow()
    return datetime.fromisoformat(note.at) in rows["at"].to_pylist()
