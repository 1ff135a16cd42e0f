"""Sluice's branches and cursor tag on a table: their names, and catalog commits that change them. No JVM is needed."""

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
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from sluice.batch import BRANCH_PREFIX, CURSOR_TAG, NEXT_OFFSETS
from sluice.iceberg import snapshots

MAIN = "main"
MAX_DROP_ATTEMPTS = 5
TAG_MAX_AGE_MS = 100 * 365 * 24 * 3600 * 1000
_BRANCH = re.compile(re.escape(BRANCH_PREFIX) + r"([0-9a-f]{6})_(\d+)_[0-9a-f]{8}")
_SLICE_BRANCH = re.compile(re.escape(BRANCH_PREFIX) + r"[0-9a-f]{6}_b\d+_[0-9a-f]{8}")


def commit(
    catalog: Catalog, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> TableMetadata:
    """Commit updates if the requirements hold and the table is still the one with this uuid.

    Returns:
        The table's metadata after the commit.

    Raises:
        CommitFailedException: a requirement does not hold, or another commit came first.
    """
    required = (AssertTableUUID(uuid=table.metadata.table_uuid), *requirements)
    return catalog.commit_table(table, required, updates).metadata


BRANCH_RETENTION_FIELDS = ("max_snapshot_age_ms", "min_snapshots_to_keep")
"""Retention settings of a branch. `set_ref` clears them, so main loses them with each published batch."""


def set_ref(name: str, snapshot_id: int, *, tag: bool = False) -> SetSnapshotRefUpdate:
    """Return the update that sets a branch or tag to a snapshot."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.TAG if tag else SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        # Otherwise history.expire.max-ref-age-ms may expire the tag, and the cursor with it.
        max_ref_age_ms=TAG_MAX_AGE_MS if tag else None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def new_branch_name(topic: str, seq: int) -> str:
    """Return a unique branch name for one attempt to write a batch, or a slice of a backfill, of a topic."""
    return f"{_prefix(topic, seq)}{uuid.uuid4().hex[:8]}"


def is_branch_of(name: str, topic: str, seq: int) -> bool:
    """Return whether a branch was made by `new_branch_name` for this batch or slice."""
    return name.startswith(_prefix(topic, seq))


def is_batch_branch(name: str) -> bool:
    """Return whether a branch was made for a batch of live ingest."""
    return _BRANCH.fullmatch(name) is not None


def is_slice_branch(name: str) -> bool:
    """Return whether a branch was made for a slice of a backfill."""
    return _SLICE_BRANCH.fullmatch(name) is not None


def refused_branch_name(topic: str, seq: int) -> str:
    """Return the branch that keeps a refused slice's result. Sluice never drops it; an operator does."""
    return f"refused_backfill_{_topic_hash(topic)}_{-seq}"


def find_refused_branches(names: Iterable[str], topic: str) -> dict[int, str]:
    """Return the branches among `names` with refused slices of the topic, by slice number."""
    prefix = refused_branch_name(topic, 0)[:-1]
    numbers = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    return {-int(number): name for number, name in numbers.items() if number.isdecimal()}


def is_finished_branch(name: str, published: Mapping[str, int]) -> bool:
    """Return whether a branch was made for a batch that is published: `published` is {topic: last batch number}."""
    match = _BRANCH.fullmatch(name)
    return match is not None and any(
        match[1] == _topic_hash(topic) and int(match[2]) <= seq for topic, seq in published.items()
    )


def _prefix(topic: str, seq: int) -> str:
    # A slice's number is negative; the letter b keeps its branch apart from a batch with the same digits.
    return f"{BRANCH_PREFIX}{_topic_hash(topic)}_{seq if seq > 0 else f'b{-seq}'}_"


def _topic_hash(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[:6]


@retry(retry=retry_if_exception_type(CommitFailedException), stop=stop_after_attempt(MAX_DROP_ATTEMPTS), reraise=True)
def drop_branches(catalog: Catalog, identifier: Identifier, names: set[str]) -> None:
    """Drop the branches that exist among `names`.

    Raises:
        CommitFailedException: other commits came first, at each attempt.
    """
    table = catalog.load_table(identifier)
    if present := sorted(names & set(table.metadata.refs)):
        commit(catalog, table, (), tuple(RemoveSnapshotRefUpdate(ref_name=name) for name in present))


def repair_cursor_tag(catalog: Catalog, table: Table) -> None:
    """Set the cursor tag to main's nearest ancestor that carries offsets, if it is elsewhere.

    Raises:
        CommitFailedException: main has moved since the table was loaded.
    """
    head = table.metadata.current_snapshot_id
    carrier = next((s for s in snapshots.ancestors(table.metadata) if NEXT_OFFSETS in snapshots.summary(s)), None)
    tag = table.metadata.refs.get(CURSOR_TAG)
    if head is None or carrier is None or (tag and tag.snapshot_id == carrier.snapshot_id):
        return
    unmoved = (AssertRefSnapshotId(ref=MAIN, snapshot_id=head),)
    commit(catalog, table, unmoved, (set_ref(CURSOR_TAG, carrier.snapshot_id, tag=True),))
