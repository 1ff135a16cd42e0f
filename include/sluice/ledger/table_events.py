"""Finds what was published to a table since the last look: the asset events that Airflow's triggerer emits.

In: the table's metadata, the last reported snapshot, and the ledger for the counts. Out: one event per new snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Self

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import RUN_ID, STEP, TOPIC, batches_from_summary
from sluice.iceberg import snapshots
from sluice.ledger import slices
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import encode_gaps, encode_ranges


@dataclass(frozen=True)
class Position:
    """A snapshot of main up to which everything is reported.

    Attributes:
        table_uuid: of the table; empty if there was none.
        snapshot_id: 0 if there was none.
        sequence_number: that of the snapshot: later commits have greater ones, also when the snapshot has expired.
    """

    table_uuid: str = ""
    snapshot_id: int = 0
    sequence_number: int = 0

    @classmethod
    def of(cls, metadata: TableMetadata, snapshot: Snapshot | None) -> Self:
        """Return the position at a snapshot."""
        if snapshot is None:
            return cls(str(metadata.table_uuid))
        return cls(str(metadata.table_uuid), snapshot.snapshot_id, snapshot.sequence_number or 0)


@dataclass
class TableEvent:
    """One snapshot to report.

    Attributes:
        position: to store when the event has been emitted.
        payload: the event, without counts.
    """

    position: Position
    payload: dict[str, Any]


def read_head(table: Table) -> Position:
    """Return the position at main's head."""
    return Position.of(table.metadata, table.metadata.current_snapshot())


def find_events(table: Table, name: str, since: Position) -> list[TableEvent]:
    """Return an event for each snapshot of main that published something, oldest first.

    Commits of maintenance, of contracts and of other engines are no events. That main was moved back is one.

    Args:
        table: as it is.
        name: its name.
        since: where the last call ended.
    """
    metadata = table.metadata
    new, back_at = _new_snapshots(metadata, since)
    found = [(each, payload) for each in new if (payload := _published(each))]
    if back_at is not None:
        found.insert(0, (back_at, {"kind": "rollback", "run_id": None, "batches": {}, "ranges": {}, "gaps": {}}))
    times = snapshots.visible_times(metadata) if found else {}
    if back_at is not None:  # it was visible before
        times[back_at.snapshot_id] = datetime.fromtimestamp(metadata.last_updated_ms / 1000, UTC)
    return [
        TableEvent(
            Position.of(metadata, snapshot),
            {
                "table": name,
                "snapshot_id": snapshot.snapshot_id,
                "visible_at": times[snapshot.snapshot_id].isoformat(),
                **payload,
            },
        )
        for snapshot, payload in found
    ]


def _new_snapshots(metadata: TableMetadata, since: Position) -> tuple[list[Snapshot], Snapshot | None]:
    """Main's snapshots since a position, oldest first; and the one that main was moved back to, None if it was not."""
    head = metadata.current_snapshot()
    if head is None or head.snapshot_id == since.snapshot_id:
        return [], None
    chain = list(snapshots.ancestors(metadata))
    if not since.snapshot_id or str(metadata.table_uuid) != since.table_uuid:
        return chain[::-1], None
    seen = {each.snapshot_id for each in snapshots.ancestors(metadata, since.snapshot_id)}
    common = next((each for each in chain if each.snapshot_id in seen), None)
    if common is not None:
        new = list(takewhile(lambda each: each is not common, chain))
        moved_back = common.snapshot_id != since.snapshot_id
    else:  # what was seen has expired
        new = list(takewhile(lambda each: (each.sequence_number or 0) > since.sequence_number, chain))
        common, moved_back = head, not new
    return new[::-1], common if moved_back else None


def _published(snapshot: Snapshot) -> dict[str, Any] | None:
    """What a snapshot published, in the form of the asset events of tasks; None if nothing."""
    properties = snapshots.summary(snapshot)
    step = properties.get(STEP)
    if step not in ("publish", "replay") or TOPIC not in properties:
        return None
    batches = batches_from_summary(properties)
    if step == "replay" and not snapshots.changed_rows(snapshot):
        return None
    topic = batches[0].topic
    gaps = [encode_gaps(each.gaps) for each in batches if each.gaps]
    return {
        "kind": "ingest" if step == "publish" else "backfill",
        "run_id": properties.get(RUN_ID),
        "batches": {topic: [each.seq for each in batches]},
        "ranges": {topic: [encode_ranges(each.ranges) for each in batches]},
        "gaps": {topic: gaps} if gaps else {},
    }


def add_counts(ledger: Ledger | None, events: Sequence[TableEvent]) -> list[TableEvent]:
    """Add the counts of records to events, and return those of which the ledger has no row yet.

    The application writes the rows soon after the snapshot. If it is killed, the next run does, without counts.
    """
    rows = _read_rows(ledger, [each.payload for each in events])
    missing = []
    for event in events:
        mine = [
            rows.get((event.payload["table"], event.position.snapshot_id, topic, seq))
            for topic, seqs in event.payload["batches"].items()
            for seq in seqs
        ]
        for name in ("records", "rejected"):
            counts = [getattr(row, name) if row else None for row in mine]
            event.payload[name] = None if None in counts else sum(counts)
        if None in mine:
            missing.append(event)
    return missing


def _read_rows(
    ledger: Ledger | None, payloads: Iterable[Mapping[str, Any]]
) -> dict[tuple[str | None, int, str, int], LedgerRow]:
    """The ledger's rows of the events' batches, by table, snapshot, topic and batch."""
    wanted = [(topic, seq) for each in payloads for topic, seqs in each["batches"].items() for seq in seqs]
    if ledger is None or not wanted:
        return {}
    before: dict[str, int] = {}
    for topic, seq in wanted:
        if seq > 0:
            before[topic] = min(seq - 1, before.get(topic, seq))
    found = ledger.rows(before, [LedgerState.PUBLISHED])
    if replayed := {topic for topic, seq in wanted if seq < 0}:
        found += [row for row in slices.read_slice_rows(ledger, *replayed) if row.state == LedgerState.REPLAYED]
    return {
        (row.table, snapshot_id, row.topic, row.batch_seq): row
        for row in found
        if row.batch_seq is not None
        for snapshot_id in (row.snapshots or {}).values()
    }
