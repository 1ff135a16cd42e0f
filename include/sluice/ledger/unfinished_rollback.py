"""Finishes a rollback after its commit: the ledger's rows, and the deletes table.

The commit writes a note, a table property, that says what is left to do. The rollback itself does it and removes the
note; if it was killed, the group's next plan or settle does.
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
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_incrementing

from sluice.batch import STEP, Batch
from sluice.contract.contract import Contract
from sluice.errors import CatalogUnavailableError, FencedError, RefusedError
from sluice.iceberg import refs, snapshots, table_names, tables
from sluice.iceberg.filters import And, equal
from sluice.ledger import accepted_gaps, restore_deletes
from sluice.ledger.accepted_gaps import LostRanges
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import ConflictError, Ledger
from sluice.offsets import decode_ranges, encode_ranges

log = logging.getLogger(__name__)

ROLLBACK_PROPERTY = "sluice.rolled-back"
"""Property of a typed table: a rollback that is not finished, as JSON."""

MAX_APPEND_ATTEMPTS = 20
WAIT_S = 30.0


@dataclass(frozen=True)
class RollbackNote:
    """A rollback.

    Attributes:
        left: main's snapshot before it.
        target: main's snapshot after it.
        topics: the topics of the table; the ledger gets a row for each.
        lost: the batches that the table skips, each as topic, topic id and encoded ranges.
        memory: the deletes table's snapshot before it, and the one to restore; None if it stays. Stored notes have
            this name.
        who, why: the operator and the reason.
        run: the run or command.
        at: when; it identifies the rollback.
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
    def from_table(cls, table: Table) -> Self | None:
        """Return the table's note; None if there is none, or if another writer damaged it."""
        text = table.properties.get(ROLLBACK_PROPERTY)
        try:
            return cls(**json.loads(text)) if text else None
        except (ValueError, TypeError) as error:
            log.error("%s: property %s cannot be parsed: %s", ".".join(table.name()), ROLLBACK_PROPERTY, error)
            return None

    def to_json(self) -> str:
        """Return the property's value."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def rows(self) -> list[LedgerRow]:
        """Return the ledger's rows: one per topic, and the gaps for batches that the table skips."""
        at = datetime.fromisoformat(self.at)
        gaps = [
            replace(row, at=at)
            for topic, topic_id, ranges in self.lost
            for row in accepted_gaps.gap_rows(
                LostRanges(topic, topic_id, decode_ranges(ranges)), who=self.who, why=self.why, table=self.table
            )
        ]
        rollback = LedgerRow(
            topic="",
            state=LedgerState.ROLLED_BACK,
            table=self.table,
            snapshots={"from": self.left, "to": self.target},
            who=self.who,
            why=self.why,
            at=at,
        )
        return gaps + [replace(rollback, topic=topic) for topic in self.topics]


def encode_lost_batch(batch: Batch) -> list[str]:
    """Return a batch that the table skips in the form of `RollbackNote.lost`."""
    return [batch.topic, batch.topic_id, encode_ranges(batch.ranges)]


def commit_rollback(
    catalog: Catalog, ledger: Ledger, base: Table, updates: tuple[TableUpdate, ...], note: RollbackNote
) -> None:
    """Commit a rollback; if the answer is lost, find out from the table and the ledger whether it was done.

    Args:
        catalog: the catalog.
        ledger: the ledger.
        base: the table as the rollback was decided on it.
        updates: the commit, which writes the note as well.
        note: the note.

    Raises:
        FencedError: main has moved since.
        RefusedError: the snapshot to go back to has expired since.
        CatalogUnavailableError: the catalog did not answer for `WAIT_S`; whether the commit was done is unknown.
    """
    unmoved = (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=note.left),)
    began, pause_s = time.monotonic(), 0.05
    while True:
        try:
            refs.commit(catalog, base, unmoved, updates)
            return
        except Exception as error:  # noqa: BLE001 - whatever the client raised, the table shows the outcome
            failure = error
        try:
            table = catalog.load_table(base.name())
            if RollbackNote.from_table(table) == note or is_recorded(ledger, note):
                return
        except Exception as error:  # noqa: BLE001 - the catalog does not answer: ask again
            log.info("%s: %s", note.table, error)
        else:
            _check_still_possible(table, updates, note, failure)
        if time.monotonic() - began > WAIT_S:
            raise CatalogUnavailableError(
                f"It is not known whether the table was rolled back: {failure}",
                table=note.table,
                next_step="Check the table when the catalog answers. If it was rolled back, the group's next run "
                "finishes the rollback.",
            ) from failure
        log.warning("rollback of %s: %s; trying again in %.1f s", note.table, failure, pause_s)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)


def _check_still_possible(
    table: Table, updates: tuple[TableUpdate, ...], note: RollbackNote, failure: Exception
) -> None:
    """Refuse to try again if the table has changed so that the commit can never succeed.

    Raises:
        FencedError: main has moved.
        RefusedError: a snapshot to go back to has expired.
    """
    targets = {u.snapshot_id for u in updates if isinstance(u, SetSnapshotRefUpdate)}
    if expired := targets - {s.snapshot_id for s in table.metadata.snapshots}:
        raise RefusedError(
            "A snapshot to go back to has expired since the preview; nothing was rolled back.",
            table=note.table,
            snapshot=min(expired),
            next_step="Preview the rollback again, and choose a newer snapshot.",
        ) from failure
    if table.metadata.current_snapshot_id != note.left:
        raise FencedError(
            "Main has moved since the preview; nothing was rolled back.",
            table=note.table,
            looked_at=note.left,
            next_step="Preview the rollback again, and decide again.",
        ) from failure


def finish_pending_rollback(catalog: Catalog, ledger: Ledger, contract: Contract, table: Table | None) -> bool:
    """Finish the rollback that the table has a note of; return whether there was one."""
    note = RollbackNote.from_table(table) if table else None
    if note:
        log.warning("%s: finishing the rollback of %s by %s", contract.table, note.at, note.who)
        finish_rollback(catalog, ledger, contract, note)
    return note is not None


def finish_rollback(catalog: Catalog, ledger: Ledger, contract: Contract, note: RollbackNote) -> None:
    """Do what is left of a rollback, each part once, and remove the note. What fails is left to the next run."""
    _restore_deletes(catalog, contract, note)
    if not record_rollback(ledger, note):
        log.warning("%s: the next run records the rollback in the ledger", contract.table)
        return
    table = catalog.load_table(table_names.typed(contract))
    if RollbackNote.from_table(table) != note:
        return
    # Another rollback would move main and write a note of its own.
    unmoved = AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=table.metadata.current_snapshot_id)
    try:
        refs.commit(catalog, table, (unmoved,), (RemovePropertiesUpdate(removals=[ROLLBACK_PROPERTY]),))
    except CommitFailedException as error:
        log.info("%s: the next run removes the rollback's note: %s", contract.table, error)


def _restore_deletes(catalog: Catalog, contract: Contract, note: RollbackNote) -> None:
    """Restore the deletes table, unless a batch was published since the rollback: its deletes must stay."""
    deletes = tables.load_deletes(catalog, contract) if note.memory else None
    if deletes is None or note.memory is None:
        return
    head_before, restore_to = note.memory
    exists = restore_to == restore_deletes.EMPTY or deletes.snapshot_by_id(restore_to)
    steps_since = set()  # contract changes and maintenance publish nothing
    for snapshot in snapshots.ancestors(catalog.load_table(table_names.typed(contract)).metadata):
        if snapshot.snapshot_id == note.target:
            break
        steps_since.add(snapshots.summary(snapshot).get(STEP))
    else:
        return
    is_unchanged = deletes.metadata.current_snapshot_id == head_before
    if exists and is_unchanged and not steps_since & set(restore_deletes.STEPS_THAT_DELETE):
        restore_deletes.restore_snapshot(deletes, catalog, restore_to)


@retry(
    retry=retry_if_exception_type(ConflictError),
    stop=stop_after_attempt(MAX_APPEND_ATTEMPTS),
    wait=wait_incrementing(0.05, 0.05),
    retry_error_callback=lambda _: False,
)
def record_rollback(ledger: Ledger, note: RollbackNote) -> bool:
    """Write the rollback into the ledger, once; return whether it is there."""
    if not is_recorded(ledger, note):
        ledger.append(note.rows(), run_id=note.run, if_unchanged=True)
    return True


def is_recorded(ledger: Ledger, note: RollbackNote) -> bool:
    """Return whether the ledger has this rollback."""
    ledger.refresh()
    if ledger.table.current_snapshot() is None:
        return False
    row_filter = And(equal("state", str(LedgerState.ROLLED_BACK)), equal("table", note.table))
    rows = ledger.table.scan(row_filter=row_filter, selected_fields=("at",)).to_arrow()
    return datetime.fromisoformat(note.at) in rows["at"].to_pylist()
