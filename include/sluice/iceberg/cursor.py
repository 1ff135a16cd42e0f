"""Which offsets a table holds, read from its own snapshots. In: a staging or typed table. Out: its cursor.

Lookup order:
1. the nearest ancestor of main's current snapshot that carries offsets (or nothing, if the ancestry is complete);
2. the tag `sluice_cursor`, if expiry cut the ancestry and the tag's snapshot is older than what is left of it;
3. the earlier metadata files of the table, which still have the snapshots that expiry removed, with their parents.
Otherwise the table stops with `CursorUnknownError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import (
    ADOPT_STEP,
    BATCH_SEQ,
    CURSOR_TAG,
    LEADER_EPOCHS,
    NEXT_OFFSETS,
    PUBLISHED_THROUGH,
    Batch,
    PublishedOffsets,
    decode_published_through,
)
from sluice.errors import CursorUnknownError, SluiceError
from sluice.iceberg import snapshots
from sluice.kafka.broker import TopicState
from sluice.offsets import Offsets, decode_offsets

Described = TypeVar("Described", bound=TopicState | SluiceError)

ADOPTED = "sluice.adopted"
"""Property of a typed table that another writer filled: `{topic: {partition: the first offset that Sluice read}}`."""


MOVED = "sluice.moved-topic"
"""Property of a staging table whose topic continues on another cluster with the same offsets: `{Kafka's id: Move}`."""


class Move(NamedTuple):
    """A decision that a topic with another id is the one that was read.

    Attributes:
        topic_id: the id in snapshots and in the ledger, which stays.
        after: the last batch before.
        at: when it was decided, ISO 8601.
    """

    topic_id: str
    after: int
    who: str
    why: str
    at: str


def known_topic_id(staging: Table | None, topic_id: str) -> str:
    """Return the id by which snapshots and the ledger know a topic; the given one if the topic was never moved."""
    move = _moves(staging).get(topic_id)
    return move.topic_id if move else topic_id


def with_known_id(state: Described, staging: Table | None) -> Described:
    """Return Kafka's answer for a topic, with the id by which snapshots and the ledger know the topic."""
    if not isinstance(state, TopicState):
        return state
    return replace(state, topic_id=known_topic_id(staging, state.topic_id))


def _moves(staging: Table | None) -> dict[str, Move]:
    found = json.loads(staging.properties.get(MOVED, "{}")) if staging else {}
    return {topic_id: Move(**move) for topic_id, move in found.items()}


def encode_move(staging: Table, topic_id: str, move: Move) -> dict[str, str]:
    """Return the property that a staging table gets by a move to a topic with this id."""
    return {MOVED: json.dumps({k: v._asdict() for k, v in {**_moves(staging), topic_id: move}.items()})}


def read_adopted_offsets(table: Table) -> dict[str, dict[int, int]]:
    """Return, per topic and partition, the first offset that Sluice read; empty if no other writer filled the table.

    Rows of earlier offsets have no Kafka coordinates.
    """
    adopted = json.loads(table.properties.get(ADOPTED, "{}"))
    return {topic: {int(p): int(offset) for p, offset in each.items()} for topic, each in adopted.items()}


def find_offset_snapshot(table: Table, offset_property: str, at: Snapshot | None = None) -> Snapshot | None:
    """Find the snapshot that holds the table's cursor: steps 1 and 2 of the lookup order.

    Args:
        table: a staging or typed table.
        offset_property: the summary property with the offsets, `NEXT_OFFSETS` or `PUBLISHED_THROUGH`.
        at: look up the cursor as of this snapshot; by default main's current one.

    Returns:
        None if the ancestry is complete and no snapshot carries offsets.

    Raises:
        CursorUnknownError: expiry cut the ancestry, and the tag does not help.
    """
    start = at or table.metadata.current_snapshot()
    oldest: Snapshot | None = None
    for snapshot in snapshots.ancestors(table.metadata, start.snapshot_id if start else None):
        if offset_property in snapshots.summary(snapshot):
            return snapshot
        oldest = snapshot
    if oldest is None or snapshots.is_first_snapshot(oldest):
        return None
    tag = table.metadata.refs.get(CURSOR_TAG)
    tagged = table.metadata.snapshot_by_id(tag.snapshot_id) if tag else None
    # An expired ancestor is older than every ancestor that is left. A tag on a newer snapshot belongs to commits that
    # were rolled back: using it would skip records.
    if tagged and offset_property in snapshots.summary(tagged) and _is_not_newer(tagged, oldest):
        return tagged
    raise CursorUnknownError(
        "Neither a snapshot, nor the cursor tag, nor an earlier metadata file gives the offsets that the table holds.",
        table=".".join(table.name()),
        head=start.snapshot_id if start else None,
    )


def read_staging_cursor(table: Table | None) -> Batch | None:
    """Return the last batch in a staging table, with the topic's cursor after it.

    Args:
        table: the staging table; None if it does not exist.

    Raises:
        CursorUnknownError: the table has data, and no step of the lookup gives its offsets.
    """
    snapshot = _find_carrier(table, NEXT_OFFSETS) if table else None
    return Batch.from_properties(snapshots.summary(snapshot)) if snapshot else None


def read_leader_epochs(table: Table, last: Batch) -> Offsets:
    """Return, per partition, the leader epoch in which the records up to the staging table's cursor were read.

    Args:
        table: the staging table.
        last: the last batch in it.

    Returns:
        Nothing where no snapshot that is left records it, or where the topic was moved since: epochs are a cluster's.
    """
    if any(last.seq <= move.after for move in _moves(table).values()):
        return {}
    for snapshot in snapshots.ancestors(table.metadata):
        properties = snapshots.summary(snapshot)
        if NEXT_OFFSETS in properties:
            same = Batch.from_properties(properties) == last
            return decode_offsets(properties.get(LEADER_EPOCHS, "{}")) if same else {}
    return {}


def read_table_cursor(table: Table | None) -> Mapping[str, PublishedOffsets]:
    """Return a typed table's position per topic, without topics that were never published.

    Args:
        table: the typed table; None if it does not exist.

    Raises:
        CursorUnknownError: the table has data, and no step of the lookup gives its offsets; or it was rolled back to
            before it was adopted.
    """
    snapshot = _find_carrier(table, PUBLISHED_THROUGH) if table else None
    if snapshot is None and table is not None and ADOPTED in table.properties:
        raise CursorUnknownError(
            "The table was rolled back to before it was adopted: rows of the previous writer are missing, and "
            "Sluice has not read their records.",
            table=".".join(table.name()),
            next_step=f"Roll it forward to the snapshot whose summary has sluice.step = {ADOPT_STEP}, or a later one. "
            f"Or adopt it again from where its rows end: remove its properties {ADOPTED} and sluice.contract.",
        )
    return decode_published_through(snapshots.summary(snapshot)[PUBLISHED_THROUGH]) if snapshot else {}


def read_staged_batches(table: Table | None, after: int = 0) -> dict[int, tuple[Batch, Snapshot]]:
    """Return the batches above number `after` in main's snapshots, with the snapshot that staged each."""
    found: dict[int, tuple[Batch, Snapshot]] = {}
    if table is None:
        return found
    for snapshot in snapshots.ancestors(table.metadata):
        properties = snapshots.summary(snapshot)
        if BATCH_SEQ in properties:
            batch = Batch.from_properties(properties)
            if batch.seq <= after:
                break
            found.setdefault(batch.seq, (batch, snapshot))
    return found


def _is_not_newer(snapshot: Snapshot, other: Snapshot) -> bool:
    return (snapshot.sequence_number or 0) <= (other.sequence_number or 0)


def _find_carrier(table: Table, offset_property: str) -> Snapshot | None:
    """All steps of the lookup order; None if no snapshot up to the table's first one carries offsets."""
    try:
        return find_offset_snapshot(table, offset_property)
    except CursorUnknownError:
        if carrier := _find_in_earlier_metadata(table, offset_property):
            return carrier
        raise


def _find_in_earlier_metadata(table: Table, offset_property: str) -> Snapshot | None:
    """Follow main's ancestry through the metadata files that the table still names, newest first.

    The parents decide, and no time does: a snapshot that main was rolled back from is no ancestor.
    """
    oldest = list(snapshots.ancestors(table.metadata))[-1]
    for entry in reversed(table.metadata.metadata_log):
        try:
            earlier = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:
            return None
        chain = list(snapshots.ancestors(earlier, oldest.snapshot_id))
        if not chain:  # this file is older than the oldest ancestor that is known
            return None
        if carrier := next((s for s in chain if offset_property in snapshots.summary(s)), None):
            return carrier
        oldest = chain[-1]
    return None
