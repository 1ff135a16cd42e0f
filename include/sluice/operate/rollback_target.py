"""Which snapshot a rollback goes back to, and what lies in between."""

from __future__ import annotations

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import PUBLISHED_THROUGH, RUN_ID
from sluice.errors import RefusedError
from sluice.iceberg import snapshots


def target(name: str, line: list[Snapshot], snapshot_id: int | None, before_run: str | None) -> Snapshot:
    """The ancestor that is named, or the one before a run's first commit.

    Args:
        line: main's snapshots, newest first.

    Raises:
        RefusedError: there is none to go back to.
    """
    if (snapshot_id is None) == (before_run is None):
        raise RefusedError("Name a snapshot, or the run to go back before: one of the two.", table=name)
    at: int | None
    if before_run is not None:
        mine = [s for s in line if snapshots.summary(s).get(RUN_ID) == before_run]
        if not mine:
            runs = dict.fromkeys(r for s in line if (r := snapshots.summary(s).get(RUN_ID)))
            raise RefusedError(
                f"Run {before_run!r} made none of main's snapshots.",
                table=name,
                way_out=f"Runs that did, newest first: {', '.join(list(runs)[:10]) or 'none'}.",
            )
        at = mine[-1].parent_snapshot_id
    else:
        at = snapshot_id
    found = next((s for s in line if s.snapshot_id == at), None)
    if found is None:
        raise RefusedError(
            f"Snapshot {at} is not among main's ancestors that are left."
            if at is not None
            else f"Run {before_run!r} made the table's first snapshot: there is nothing before it.",
            table=name,
            way_out=f"Snapshots to go back to, newest first: {', '.join(str(s.snapshot_id) for s in line[1:11])}.",
        )
    if found is line[0]:
        raise RefusedError("Main is at that snapshot already.", table=name, snapshot=found.snapshot_id)
    return found


def between(undone: tuple[Snapshot, ...], run: str | None) -> tuple[Snapshot, ...]:
    """What is undone besides the run's commits, and is older than the newest of them."""
    own = [snapshots.summary(s).get(RUN_ID) == run for s in undone]
    newest = own.index(True) if run and any(own) else len(own)
    return tuple(s for s, mine in zip(undone[newest:], own[newest:], strict=True) if not mine)


def carrier(name: str, table: Table, target: Snapshot) -> Snapshot | None:
    """The snapshot that says where the table stood then; None before its first offsets.

    Raises:
        RefusedError: expiry has cut the line before it said.
    """
    oldest = target
    for snapshot in snapshots.ancestors(table.metadata, target.snapshot_id):
        if PUBLISHED_THROUGH in snapshots.summary(snapshot):
            return snapshot
        oldest = snapshot
    if not snapshots.began(oldest):
        raise RefusedError(
            "The snapshots that told which offsets the table held then have expired.",
            table=name,
            snapshot=target.snapshot_id,
            way_out="Choose a newer snapshot.",
        )
    return None
