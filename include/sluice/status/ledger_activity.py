"""Summarizes what each table published lately.

In: the ledger's rows of a week. Out: a `TableActivity` per table, of a size that does not grow with the batches.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.newest_rows import take_newest
from sluice.status.activity import MAX_BATCHES, BatchEnd, TableActivity

_COUNTED = (LedgerState.PUBLISHED, LedgerState.BLOCKED)
_ENDS = (*_COUNTED, LedgerState.FAILED)
_BATCH = ("table", "topic", "topic_id", "batch_seq")
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


def summarize_activity(rows: pa.Table, now: datetime) -> dict[str, TableActivity]:
    """Summarize the ledger's rows by table. Slices of backfills do not count."""
    live = rows.filter(pc.and_(pc.is_valid(rows["table"]), pc.greater(rows["batch_seq"], 0)))
    ended = live.filter(pc.is_in(live["state"], pa.array(map(str, _ENDS))))
    # A batch is attempted again after a failure, and published again after a rollback: its newest row is true.
    last = take_newest(take_newest(ended, _BATCH), ("table",), MAX_BATCHES)
    unread = _read_unread(rows, last)
    batches: dict[str, list[BatchEnd]] = {}
    for row in last.select(["at", "table", "topic", "batch_seq", "state", "records", "rejected"]).to_pylist():
        batches.setdefault(row["table"], []).append(_batch_end(row, unread))
    counted = ended.filter(pc.is_in(ended["state"], pa.array(map(str, _COUNTED))))
    day = take_newest(counted.filter(pc.greater(counted["at"], now - _DAY)), _BATCH)
    hour = day.filter(pc.and_(pc.equal(day["state"], LedgerState.PUBLISHED), pc.greater(day["at"], now - _HOUR)))
    quarantined, records, rejected = _sum(day, "rejected"), _sum(hour, "records"), _sum(hour, "rejected")
    return {
        name: TableActivity(each, records.get(name, 0) - rejected.get(name, 0), quarantined.get(name, 0))
        for name, each in batches.items()
    }


def _batch_end(row: dict[str, Any], unread: dict[tuple[str, int], int | None]) -> BatchEnd:
    topic, seq = row["topic"], row["batch_seq"]
    return BatchEnd(row["at"], topic, seq, row["state"], row["records"], row["rejected"], unread.get((topic, seq)))


def _read_unread(rows: pa.Table, wanted: pa.Table) -> dict[tuple[str, int], int | None]:
    """The unread offsets that the staging of these batches recorded, by topic and batch."""
    if "unread" not in rows.column_names:  # a ledger of an older version
        return {}
    staged = rows.filter(
        pc.and_(
            pc.equal(rows["state"], LedgerState.STAGED),
            pc.and_(pc.is_in(rows["topic"], wanted["topic"]), pc.is_in(rows["batch_seq"], wanted["batch_seq"])),
        )
    )
    found = staged.select(["topic", "batch_seq", "unread"]).to_pylist()
    return {(row["topic"], row["batch_seq"]): row["unread"] for row in reversed(found)}  # the newest is first


def _sum(rows: pa.Table, column: str) -> dict[str, int]:
    sums = rows.group_by("table").aggregate([(column, "sum")]).to_pylist()
    return {row["table"]: row[f"{column}_sum"] or 0 for row in sums}
