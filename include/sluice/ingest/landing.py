"""How a Spark write becomes visible: written into a branch made from main's head, looked at, then main moves onto it.

The move is one catalog commit with an explicit requirement: main is still the head that the work began from. Nothing
unaudited is ever visible, a writer that was overtaken is refused, and the cursor tag moves in the same act. Both
staging and publishing go through here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId, AssertRefSnapshotId, RemoveSnapshotRefUpdate, TableUpdate
from pyiceberg.typedef import Identifier
from pyspark.sql import SparkSession

from sluice.batch import CURSOR_TAG, Batch
from sluice.errors import CatalogUnavailableError, ConfigError, FencedError
from sluice.iceberg import active_contract, own_table, refs, snapshots, table_names, tables
from sluice.kafka import broker

log = logging.getLogger(__name__)

WAIT_S = 150.0


@dataclass
class Context:
    """What every Spark step is given."""

    spark: SparkSession
    catalog: Catalog
    catalog_name: str
    kafka: Mapping[str, object]
    run_id: str

    @cached_property
    def client(self) -> AdminClient:
        """To ask Kafka by; one for all steps, for each logs in by itself, with a token of its own where it has one."""
        return broker.admin(self.kafka)

    def session(self, properties: Mapping[str, str]) -> SparkSession:
        """A session of its own whose commits carry `properties`: the setting is session-wide."""
        session = self.spark.newSession()
        for name, value in properties.items():
            session.conf.set(f"spark.sql.iceberg.snapshot-property.{name}", value)
        return session


class Attempt:
    """One attempt to move a table's main branch on. Use as a context manager: what is not landed is taken away.

    Attributes:
        base: the table as it was when the attempt began; its head is what main must still be when it lands.
        branch: the branch to write into.
        commit_seconds: how long landing took, once it has.
    """

    def __init__(self, context: Context, identifier: Identifier, batch: Batch) -> None:
        self._catalog = context.catalog
        self.identifier = identifier
        self.branch = refs.new_branch(batch.topic, batch.seq)
        self.landed = False
        self.commit_seconds = 0.0
        self._carries_cursor = not batch.is_slice
        self._opened = False
        self._result: Snapshot | None = None
        self._context = context
        self.base = self._catalog.load_table(identifier)
        # A branch needs a snapshot to start from. Here, not in `open`: what the caller decides by must be the very head
        # that landing requires. Two at once do no harm: either one's is as empty.
        for _ in range(5):
            if self.base.metadata.current_snapshot_id is not None:
                break
            own_table.commit_once(self.base)
            overtaken = suppress(CommitFailedException)
            with overtaken, self.base.transaction() as change, change.update_snapshot().fast_append():
                pass
            self.base = self._catalog.load_table(identifier)

    @property
    def spark_branch(self) -> str:
        """The branch as Spark names it."""
        return table_names.spark_name(self._context.catalog_name, self.identifier, self.branch)

    @property
    def head(self) -> int:
        """The snapshot that main must still be at."""
        head = self.base.metadata.current_snapshot_id
        if head is None:
            raise FencedError("The table has no snapshot to start from.", table=".".join(self.identifier))
        return head

    def open(self) -> None:
        """Make the branch.

        Raises:
            ConfigError: the catalog keeps no branches.
        """
        while True:
            try:
                made = refs.commit(self._catalog, self.base, (), (refs.point(self.branch, self.head),))
                break
            except CommitFailedException:  # somebody else's branch or tag; ours starts from the head we decided by
                self.base_still_there()
        if self.branch not in made.refs:  # Nessie answers that all is well, and drops it
            raise ConfigError(
                "The catalog keeps no branches of tables, without which nothing can be looked at before it lands.",
                table=".".join(self.identifier),
                way_out="Use a catalog that keeps Iceberg's branches and tags, which Nessie for one does not.",
            )
        self._opened = True

    def base_still_there(self) -> None:
        """Refuse early when main has moved.

        Raises:
            FencedError: it has.
        """
        now = self._catalog.load_table(self.identifier)
        if now.metadata.current_snapshot_id != self.head or self._is_another_time(now.properties):
            raise FencedError(
                "Main moved while this attempt was at work.",
                table=".".join(self.identifier),
                began_at=self.head,
                now_at=now.metadata.current_snapshot_id,
            )

    def _is_another_time(self, properties: Mapping[str, str]) -> bool:
        """Whether the table was rolled back since, or its contract changed: main may be at the same head again."""
        told = (active_contract.CONTRACT, tables.SLICES_SINCE)
        return any(properties.get(name) != self.base.properties.get(name) for name in told)

    def result(self) -> Snapshot:
        """The snapshot that the write left on the branch: what is looked at is what lands.

        Raises:
            FencedError: there is none of ours, or it does not stand on the head that the attempt began from.
        """
        if self._result is not None:
            return self._result
        table = self._catalog.load_table(self.identifier)
        ref = table.metadata.refs.get(self.branch)
        snapshot = table.metadata.snapshot_by_id(ref.snapshot_id) if ref else None
        if snapshot is None or snapshot.parent_snapshot_id != self.head:
            raise FencedError(
                "The branch does not hold exactly one commit on top of main.", table=".".join(self.identifier)
            )
        self._result = snapshot
        return snapshot

    def keep(self, name: str) -> None:
        """Leave what was written, under another name, for somebody to look at; main stays as it is."""
        updates = (refs.point(name, self.result().snapshot_id), RemoveSnapshotRefUpdate(ref_name=self.branch))
        refs.commit(self._catalog, self.base, (), updates)
        self._opened = False

    def land(self) -> Snapshot:
        """Move main and the cursor tag onto the branch, and drop the branch, in one commit.

        A slice of a backfill carries no cursor: the tag stays where it is.

        An answer that gets lost is resolved by looking the snapshot up among main's ancestors, never by trying blindly.

        Raises:
            FencedError: main moved meanwhile, or the branch is not what was looked at; nothing changed.
            CatalogUnavailableError: the catalog stayed away too long; whoever comes next looks the outcome up.
        """
        result = self.result()
        requirements = (
            AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=self.head),
            # Rows that were read by another contract would lack what the new one wants of them: main moves with ours,
            # but by other hands a schema is altered alone.
            AssertCurrentSchemaId(current_schema_id=self.base.schema().schema_id),
            AssertRefSnapshotId(ref=self.branch, snapshot_id=result.snapshot_id),
        )
        updates: tuple[TableUpdate, ...] = (
            refs.point(refs.MAIN, result.snapshot_id),
            *((refs.point(CURSOR_TAG, result.snapshot_id, tag=True),) if self._carries_cursor else ()),
            RemoveSnapshotRefUpdate(ref_name=self.branch),
        )
        began = time.monotonic()
        pause = 0.05
        failure: Exception | None = None
        while True:
            try:
                self.base_still_there()
                refs.commit(self._catalog, self.base, requirements, updates)
                outcome = "landed"
            except Exception as error:  # noqa: BLE001 - whatever the client raised, the table knows what happened
                failure, outcome = error, self._outcome(result)
            if outcome == "landed":
                self.landed, self.commit_seconds = True, time.monotonic() - began
                return result
            if outcome != "unknown":
                raise FencedError(
                    f"{outcome} while this attempt was at work; its result was refused.",
                    table=".".join(self.identifier),
                    began_at=self.head,
                ) from failure
            if time.monotonic() - began > WAIT_S:
                raise CatalogUnavailableError(
                    f"The commit's outcome is unknown: {failure}",
                    table=".".join(self.identifier),
                    snapshot=result.snapshot_id,
                ) from failure
            log.warning("commit of %s: %s; looking again in %.1f s", ".".join(self.identifier), failure, pause)
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _outcome(self, result: Snapshot) -> str:
        """`landed`; `unknown` where trying once more may help; or what makes landing impossible."""
        try:
            metadata = self._catalog.load_table(self.identifier).metadata
        except NoSuchTableError:
            raise
        except Exception:  # noqa: BLE001 - away: ask again
            return "unknown"
        if any(s.snapshot_id == result.snapshot_id for s in snapshots.ancestors(metadata)):
            return "landed"
        if metadata.current_schema_id != self.base.metadata.current_schema_id:
            return "The schema was changed"
        if metadata.current_snapshot_id != self.head:
            return "Main moved"
        if self._is_another_time(metadata.properties):
            return "Main moved, and back again,"
        branch = metadata.refs.get(self.branch)
        return "unknown" if branch and branch.snapshot_id == result.snapshot_id else "The branch was dropped or moved"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.landed or not self._opened:
            return
        try:
            refs.drop_branches(self._catalog, self.identifier, {self.branch})
        except Exception as failure:  # noqa: BLE001 - the branch is read by nobody; settle takes it away later
            log.warning("could not drop branch %s of %s: %s", self.branch, ".".join(self.identifier), failure)
