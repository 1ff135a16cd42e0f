"""The branches and the tag that Sluice keeps on a table, changed by explicit catalog commits. No JVM."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Identifier

from sluice.batch import BRANCH_PREFIX, CURSOR_TAG, NEXT_OFFSETS
from sluice.iceberg import snapshots

MAIN = "main"
TAG_MAX_AGE_MS = 100 * 365 * 24 * 3600 * 1000
_BRANCH = re.compile(re.escape(BRANCH_PREFIX) + r"([0-9a-f]{6})_(\d+)_[0-9a-f]{8}")
_SLICE_BRANCH = re.compile(re.escape(BRANCH_PREFIX) + r"[0-9a-f]{6}_b\d+_[0-9a-f]{8}")


def commit(
    catalog: Catalog, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> TableMetadata:
    """One commit on the table with this uuid, if the requirements hold; the table as it then is.

    Raises:
        CommitFailedException: they don't, or another commit came first.
    """
    required = (AssertTableUUID(uuid=table.metadata.table_uuid), *requirements)
    return catalog.commit_table(table, required, updates).metadata


RETENTION = ("max_snapshot_age_ms", "min_snapshots_to_keep")
"""What a branch may have of its own. `point` gives none, so that main loses it with each batch that lands."""


def point(name: str, snapshot_id: int, *, tag: bool = False) -> SetSnapshotRefUpdate:
    """Set a branch or tag to a snapshot."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.TAG if tag else SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        # Without an age of its own a tag may fall to history.expire.max-ref-age-ms, and the cursor with it.
        max_ref_age_ms=TAG_MAX_AGE_MS if tag else None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def new_branch(topic: str, seq: int) -> str:
    """A name of its own for an attempt at one batch, or slice of a backfill, of one topic."""
    return f"{_stem(topic, seq)}{uuid.uuid4().hex[:8]}"


def is_attempt_at(name: str, topic: str, seq: int) -> bool:
    """Whether a branch is an attempt of ours at this very batch or slice."""
    return name.startswith(_stem(topic, seq))


def is_batch_attempt(name: str) -> bool:
    """Whether a branch is an attempt of ours at some batch of the live feed."""
    return _BRANCH.fullmatch(name) is not None


def is_slice_attempt(name: str) -> bool:
    """Whether a branch is an attempt of ours at some slice of a backfill."""
    return _SLICE_BRANCH.fullmatch(name) is not None


def kept_branch(topic: str, seq: int) -> str:
    """The name under which the refused result of a slice stays, until somebody drops it: no clean-up of ours does."""
    return f"refused_backfill_{_mark(topic)}_{-seq}"


def kept_branches(names: Iterable[str], topic: str) -> dict[int, str]:
    """Those among a table's branches that hold refused slices of the topic, by the slice's number."""
    stem = kept_branch(topic, 0)[:-1]
    return {-int(n.removeprefix(stem)): n for n in names if n.startswith(stem) and n.removeprefix(stem).isdecimal()}


def is_finished(name: str, reached: Mapping[str, int]) -> bool:
    """Whether a branch is an attempt of ours at a batch that its topic is past: `reached` is {topic: batch number}."""
    match = _BRANCH.fullmatch(name)
    return match is not None and any(match[1] == _mark(t) and int(match[2]) <= seq for t, seq in reached.items())


def _stem(topic: str, seq: int) -> str:
    # A slice's number is below zero. Its letter keeps it from being taken for a batch that the topic is past.
    return f"{BRANCH_PREFIX}{_mark(topic)}_{seq if seq > 0 else f'b{-seq}'}_"


def _mark(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[:6]


def drop_branches(catalog: Catalog, identifier: Identifier, names: set[str]) -> None:
    """Drop those of the branches that exist.

    Raises:
        CommitFailedException: the table was changed under our hands five times over.
    """
    for attempt in range(5):
        table = catalog.load_table(identifier)
        present = sorted(names & set(table.metadata.refs))
        if not present:
            return
        try:
            commit(catalog, table, (), tuple(RemoveSnapshotRefUpdate(ref_name=name) for name in present))
            return
        except CommitFailedException:
            if attempt == 4:
                raise


def heal_tag(catalog: Catalog, table: Table) -> None:
    """Put the cursor tag on the nearest ancestor of main that carries offsets, where it is not there already.

    Raises:
        CommitFailedException: main is not where it was when the table was loaded.
    """
    head = table.metadata.current_snapshot_id
    carrier = next((s for s in snapshots.ancestors(table.metadata) if NEXT_OFFSETS in snapshots.summary(s)), None)
    tag = table.metadata.refs.get(CURSOR_TAG)
    if head is None or carrier is None or (tag and tag.snapshot_id == carrier.snapshot_id):
        return
    here = (AssertRefSnapshotId(ref=MAIN, snapshot_id=head),)
    commit(catalog, table, here, (point(CURSOR_TAG, carrier.snapshot_id, tag=True),))
