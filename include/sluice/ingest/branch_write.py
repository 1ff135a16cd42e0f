"""One Spark write to a table, by staging or publishing: into a branch of main's head, audited, then main moves onto it.

Main moves in one catalog commit that requires main to be where the write began: a writer that was overtaken is refused,
nothing unaudited is ever visible, and the cursor tag moves in the same commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Self

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId, AssertRefSnapshotId, RemoveSnapshotRefUpdate, TableUpdate
from pyiceberg.typedef import Identifier

from sluice.batch import CURSOR_TAG, Batch
from sluice.contract.settings import MIN_ORPHAN_AGE
from sluice.errors import CatalogUnavailableError, ConfigError, FencedError
from sluice.iceberg import active_contract, compat, refs, snapshots, table_names, tables
from sluice.ingest.context import Context

log = logging.getLogger(__name__)

MAX_WAIT_S = 150.0


class BranchWrite:
    """One write to a table, through a branch; a context manager that creates the branch, and drops it on failure.

    Attributes:
        base: the table when the write began; main must still be at its head when main is moved.
        branch: the branch to write into.
        commit_seconds: how long the commit that moved main took.
    """

    def __init__(self, context: Context, identifier: Identifier, batch: Batch) -> None:
        self.context = context
        self.identifier = identifier
        self.branch = refs.new_branch_name(batch.topic, batch.seq)
        self._done = False
        self.commit_seconds = 0.0
        self._began = time.monotonic(), time.time()
        self._carries_cursor = not batch.is_slice
        self._opened = False
        self._result: Snapshot | None = None
        self.base = self.context.catalog.load_table(identifier)
        # A branch needs a snapshot to start from. It is made here, because the caller's decisions must be based on the
        # head that the final commit requires. Two writers may both make one: each is empty.
        for _ in range(5):
            if self.base.metadata.current_snapshot_id is not None:
                break
            base = compat.without_commit_retries(self.base)
            with suppress(CommitFailedException), base.transaction() as change:
                compat.add_empty_snapshot(change, {})
            self.base = self.context.catalog.load_table(identifier)

    @property
    def spark_branch(self) -> str:
        """The branch's name in Spark."""
        return table_names.spark_name(self.context.catalog_name, self.identifier, self.branch)

    @property
    def head(self) -> int:
        """The id of the snapshot that main must still be at."""
        head = self.base.metadata.current_snapshot_id
        if head is None:
            raise FencedError("The table has no snapshot to branch from.", table=".".join(self.identifier))
        return head

    def create_branch(self) -> None:
        """Create the branch at main's head.

        Raises:
            ConfigError: the catalog does not keep branches.
        """
        while True:
            try:
                made = refs.commit(self.context.catalog, self.base, (), (refs.set_ref(self.branch, self.head),))
                break
            except CommitFailedException:  # a concurrent commit, which may only have made another branch or a tag
                self.check_main_unmoved()
        if self.branch not in made.refs:  # Nessie reports success and drops it
            raise ConfigError(
                "The catalog keeps no branches of tables, and a write is audited on a branch before main moves.",
                table=".".join(self.identifier),
                next_step="Use a catalog that keeps Iceberg branches and tags. Nessie does not.",
            )
        self._opened = True

    def check_main_unmoved(self) -> None:
        """Fail early if main moved since the write began.

        Raises:
            FencedError: main moved.
        """
        now = self.context.catalog.load_table(self.identifier)
        if now.metadata.current_snapshot_id != self.head or self._was_reset(now.properties):
            raise FencedError(
                "Main moved during the write.",
                table=".".join(self.identifier),
                began_at=self.head,
                now_at=now.metadata.current_snapshot_id,
            )

    def _was_reset(self, properties: Mapping[str, str]) -> bool:
        """Whether a rollback or a contract change happened since, after which main may be at the same head again."""
        # Each rollback sets `SLICES_SINCE`.
        names = (active_contract.CONTRACT_PROPERTY, tables.SLICES_SINCE)
        return any(properties.get(name) != self.base.properties.get(name) for name in names)

    def written_snapshot(self) -> Snapshot:
        """The snapshot that the write left on the branch, read once: what is audited is what main moves to.

        Raises:
            FencedError: the branch does not hold exactly one commit on top of the head that the write began from.
        """
        if self._result is not None:
            return self._result
        table = self.context.catalog.load_table(self.identifier)
        ref = table.metadata.refs.get(self.branch)
        snapshot = table.metadata.snapshot_by_id(ref.snapshot_id) if ref else None
        if snapshot is None or snapshot.parent_snapshot_id != self.head:
            raise FencedError(
                "The branch does not hold exactly one commit on top of main.", table=".".join(self.identifier)
            )
        self._result = snapshot
        return snapshot

    def keep_as(self, name: str) -> None:
        """Rename the branch so that an operator can look at it; main stays where it is."""
        updates = (
            refs.set_ref(name, self.written_snapshot().snapshot_id),
            RemoveSnapshotRefUpdate(ref_name=self.branch),
        )
        refs.commit(self.context.catalog, self.base, (), updates)
        self._opened = False

    def fast_forward_main(self) -> Snapshot:
        """Move main and the cursor tag to the branch, and drop the branch, in one commit.

        The tag stays where it is for a backfill slice, which carries no cursor. If the commit's response is lost, the
        outcome is looked up among main's ancestors; the commit is never repeated blindly.

        Raises:
            FencedError: main moved, the branch is not what was audited, or the write is too old; nothing changed.
            CatalogUnavailableError: the catalog was away too long; the next run looks up the outcome.
        """
        self._check_age()
        result = self.written_snapshot()
        requirements = (
            AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=self.head),
            # A changed contract moves main, but another engine may alter the schema without a snapshot.
            AssertCurrentSchemaId(current_schema_id=self.base.schema().schema_id),
            AssertRefSnapshotId(ref=self.branch, snapshot_id=result.snapshot_id),
        )
        updates: tuple[TableUpdate, ...] = (
            refs.set_ref(refs.MAIN, result.snapshot_id),
            *((refs.set_ref(CURSOR_TAG, result.snapshot_id, tag=True),) if self._carries_cursor else ()),
            RemoveSnapshotRefUpdate(ref_name=self.branch),
        )
        name = ".".join(self.identifier)
        began = time.monotonic()
        pause = 0.05
        while True:
            try:
                self.check_main_unmoved()
                refs.commit(self.context.catalog, self.base, requirements, updates)
                break
            except Exception as error:  # whatever the client raised, the table knows the outcome
                if self._was_committed(result, error):
                    break
                if time.monotonic() - began > MAX_WAIT_S:
                    raise CatalogUnavailableError(
                        f"The commit's outcome is unknown: {error}", table=name, snapshot=result.snapshot_id
                    ) from error
                log.warning("commit of %s: %s; retrying in %.1f s", name, error, pause)
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
        self._done, self.commit_seconds = True, time.monotonic() - began
        self.context.meter.add_commit(snapshots.summary(result))
        return result

    def _check_age(self) -> None:
        """Refuse a write that is as old as the youngest files which orphan clean-up may remove.

        Until the branch has its snapshot, the write's files are orphans: clean-up may have removed some.

        Raises:
            FencedError: the write is too old.
        """
        began, began_at = self._began
        # The monotonic clock stands still while the machine is suspended; the other one may be set back.
        age = timedelta(seconds=max(time.monotonic() - began, time.time() - began_at))
        if age >= MIN_ORPHAN_AGE:
            raise FencedError(
                f"The write took {age.total_seconds():.0f} s; orphan clean-up may have removed its files, as they "
                f"were older than {MIN_ORPHAN_AGE.total_seconds():.0f} s before a snapshot named them.",
                next_step="No action: the next run writes the batch again. If it happens again, lower "
                "`limits.records_per_batch`, or give the group more Spark.",
                table=".".join(self.identifier),
                began_at=self.head,
            )

    def _was_committed(self, result: Snapshot, failure: Exception) -> bool:
        """Whether main holds the result after a commit that failed; False if the commit may be tried again.

        Raises:
            FencedError: the commit can't succeed any more.
        """
        try:
            metadata = self.context.catalog.load_table(self.identifier).metadata
        except NoSuchTableError:
            raise
        except Exception:  # noqa: BLE001 - the catalog is away: ask again
            return False
        if any(s.snapshot_id == result.snapshot_id for s in snapshots.ancestors(metadata)):
            return True
        branch = metadata.refs.get(self.branch)
        if metadata.current_schema_id != self.base.metadata.current_schema_id:
            reason = "The schema was changed"
        elif metadata.current_snapshot_id != self.head:
            reason = "Main moved"
        elif self._was_reset(metadata.properties):
            reason = "Main moved away and back"
        elif not branch or branch.snapshot_id != result.snapshot_id:
            reason = "The branch was dropped or moved"
        else:
            return False
        raise FencedError(
            f"{reason} during the write; its result was rejected.",
            table=".".join(self.identifier),
            began_at=self.head,
        ) from failure

    def __enter__(self) -> Self:
        self.create_branch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._done or not self._opened:
            return
        try:
            refs.drop_branches(self.context.catalog, self.identifier, {self.branch})
        except Exception as failure:  # noqa: BLE001 - nobody reads the branch, and settle drops it later
            log.warning("branch %s of %s could not be dropped: %s", self.branch, ".".join(self.identifier), failure)
