"""Finds the snapshot that a rollback goes back to, and what it undoes.

In: main's snapshots and a `RestorePoint`. Out: the target snapshot, and the one that carries its offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import PUBLISHED_THROUGH, RUN_ID
from sluice.errors import RefusedError
from sluice.iceberg import cursor, snapshots

MAX_SUGGESTED = 10


@dataclass(frozen=True)
class RestorePoint:
    """Where an operator wants to go back to; exactly one of the two is set.

    Attributes:
        snapshot_id: one of main's ancestors.
        before_run: the run whose first commit on the table is the oldest to be undone.
    """

    snapshot_id: int | None = None
    before_run: str | None = None


def find_target(name: str, chain: Sequence[Snapshot], point: RestorePoint) -> Snapshot:
    """The snapshot to go back to.

    Args:
        chain: main's snapshots, newest first.

    Raises:
        RefusedError: there is none.
    """
    if (point.snapshot_id is None) == (point.before_run is None):
        raise RefusedError("Name either a snapshot or the run to go back before.", table=name)
    wanted = point.snapshot_id if point.before_run is None else _parent_of_run(name, chain, point.before_run)
    found = next((s for s in chain if s.snapshot_id == wanted), None)
    if found is None:
        raise RefusedError(
            f"Snapshot {wanted} is not among main's ancestors, or has expired."
            if wanted is not None
            else f"Run {point.before_run!r} made the table's first snapshot: there is none before it.",
            table=name,
            next_step=f"Snapshots to go back to, newest first: "
            f"{', '.join(str(s.snapshot_id) for s in chain[1 : MAX_SUGGESTED + 1])}.",
        )
    if found is chain[0]:
        raise RefusedError("Main is at that snapshot already.", table=name, snapshot=found.snapshot_id)
    return found


def _parent_of_run(name: str, chain: Sequence[Snapshot], run: str) -> int | None:
    """The snapshot before a run's first commit; None: the run made the table's first snapshot."""
    commits = [s for s in chain if snapshots.summary(s).get(RUN_ID) == run]
    if not commits:
        runs = dict.fromkeys(r for s in chain if (r := snapshots.summary(s).get(RUN_ID)))
        raise RefusedError(
            f"Run {run!r} made none of main's snapshots.",
            table=name,
            next_step=f"Runs that did, newest first: {', '.join(list(runs)[:MAX_SUGGESTED]) or 'none'}.",
        )
    return commits[-1].parent_snapshot_id


def commits_by_others(undone: Sequence[Snapshot], run: str | None) -> tuple[Snapshot, ...]:
    """The undone commits of other runs that are older than the newest of `run`."""
    own = [snapshots.summary(s).get(RUN_ID) == run for s in undone]
    newest = own.index(True) if run and any(own) else len(own)
    return tuple(s for s, mine in zip(undone[newest:], own[newest:], strict=True) if not mine)


def require_offsets_snapshot(name: str, table: Table, target: Snapshot) -> Snapshot | None:
    """The nearest ancestor of the target, or itself, that carries published offsets.

    None: nothing was published yet at the target, so the rollback leaves no cursor.

    Raises:
        RefusedError: the ancestors that carried them have expired.
    """
    oldest = target
    for snapshot in snapshots.ancestors(table.metadata, target.snapshot_id):
        if PUBLISHED_THROUGH in snapshots.summary(snapshot):
            return snapshot
        oldest = snapshot
    if not snapshots.is_first_snapshot(oldest):
        raise RefusedError(
            "The snapshots that carried the table's offsets at that time have expired.",
            table=name,
            snapshot=target.snapshot_id,
            next_step="Choose a newer snapshot.",
        )
    if cursor.read_adopted_offsets(table):
        raise RefusedError(
            "The snapshot is older than the table's adoption: Sluice could not publish the rows of the previous writer "
            "again.",
            table=name,
            snapshot=target.snapshot_id,
            next_step="Choose a newer snapshot.",
        )
    return None
