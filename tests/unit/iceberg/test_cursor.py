"""The cursor of a table after expiry, rollbacks and writes of other engines; an unknown cursor is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import CURSOR_TAG, PUBLISHED_THROUGH, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.errors import CursorUnknownError
from sluice.iceberg import cursor
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, plan_rows
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange

pytestmark = pytest.mark.unit

NAME = "db.t"
ROW = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def table(catalog: Catalog) -> Table:
    catalog.create_namespace("db")
    return catalog.create_table(NAME, ROW.schema)


def batch(seq: int) -> Batch:
    return Batch("t", "id", seq, {0: OffsetRange(5 * seq - 5, 5 * seq)}, {0: 5 * seq})


def publish(table: Table, seq: int) -> int:
    """What a publish commit leaves: rows, offsets and the tag; its snapshot."""
    through = {"t": PublishedOffsets(seq, "id", batch(seq).next_offsets)}
    about = {STEP: "publish", **batch(seq).properties(), PUBLISHED_THROUGH: encode_published_through(through)}
    made = write(table, about)
    if CURSOR_TAG in table.metadata.refs:
        table.manage_snapshots().remove_tag(CURSOR_TAG).commit()
    table.manage_snapshots().create_tag(made, CURSOR_TAG).commit()
    return made


def write(table: Table, about: Mapping[str, str] | None = None) -> int:
    """What others write, maintenance for one, carries no offsets."""
    table.append(ROW, snapshot_properties=dict(about or {}))
    head = table.current_snapshot()
    assert head is not None
    return head.snapshot_id


def expired(table: Table, by: str, *snapshots: int) -> Table:
    """The table without these snapshots. PyIceberg takes the id of what is gone from its child; Spark leaves it."""
    if by == "pyiceberg":
        table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()
        return table
    left = [s for s in table.metadata.snapshots if s.snapshot_id not in snapshots]
    return Table(table.name(), table.metadata.model_copy(update={"snapshots": left}), "", table.io, table.catalog)


def settled(catalog: Catalog, seq: int, at: datetime, **snapshots: int) -> None:
    rows = plan_rows(batch(seq), LedgerState.SETTLED, {f"db.{name}": place for name, place in snapshots.items()})
    Ledger(catalog).append([replace(row, at=at) for row in rows], run_id="r")


@pytest.mark.parametrize("by", ["spark", "pyiceberg"])
def test_the_tag_of_what_was_rolled_back_is_not_believed_of_a_newer_head(
    catalog: Catalog, table: Table, by: str
) -> None:
    first = publish(table, 1)
    target = write(table)
    settled(catalog, 2, datetime.now(UTC), t=publish(table, 2))
    remembered = partial(Ledger(catalog).last_settled_cursor, NAME)
    table.manage_snapshots().rollback_to_snapshot(target).commit()
    with pytest.raises(CursorUnknownError):
        cursor.read_table_cursor(expired(table, by, first), remembered)
    write(table)  # a compaction, say: the head is newer than the tag now, and than what the ledger remembers
    with pytest.raises(CursorUnknownError):
        cursor.read_table_cursor(expired(table, by, first) if by == "spark" else table, remembered)


@pytest.mark.parametrize("by", ["spark", "pyiceberg"])
def test_the_tag_and_then_the_ledger_answer_for_what_was_expired(catalog: Catalog, table: Table, by: str) -> None:
    first = publish(table, 1)
    settled(catalog, 1, datetime.now(UTC), t=first)
    between = write(table)
    write(table)
    assert cursor.read_table_cursor(expired(table, by, between))["t"].seq == 1
    table.manage_snapshots().remove_tag(CURSOR_TAG).commit()
    bare = expired(table, by, first, *(() if by == "pyiceberg" else (between,)))
    assert cursor.read_table_cursor(bare, partial(Ledger(catalog).last_settled_cursor, NAME))["t"].seq == 1
    with pytest.raises(CursorUnknownError):
        cursor.read_table_cursor(bare)


def test_a_table_that_never_carried_offsets_has_none(table: Table) -> None:
    assert cursor.read_table_cursor(table) == {}
    before = write(table)
    write(table)
    assert cursor.read_table_cursor(table) == {}
    publish(table, 1)
    table.manage_snapshots().rollback_to_snapshot(before).commit()
    assert cursor.read_table_cursor(table) == {}, "back to before the first batch"


def test_the_ledger_remembers_what_a_table_held_last_and_not_what_was_rolled_back(catalog: Catalog) -> None:
    began = datetime.now(UTC)

    def at(minutes: int) -> datetime:
        return began + timedelta(minutes=minutes)

    def remembered(table: str) -> tuple[int, datetime] | None:
        found = Ledger(catalog).last_settled_cursor(table)
        return found and (found.published["t"].seq, datetime.fromtimestamp(found.committed_ms / 1000, UTC))

    began = began.replace(microsecond=0)
    for seq in (1, 2, 3):
        settled(catalog, seq, at(seq), a=10 + seq, b=20 + seq)
    assert remembered("db.a") == remembered("db.b") == (3, at(3))
    moved = {"from": 13, "to": 11}
    Ledger(catalog).append(
        [LedgerRow("t", LedgerState.ROLLED_BACK, table="db.a", snapshots=moved, at=at(4))], run_id="x"
    )
    assert remembered("db.a") is None, "what it holds since is not told yet"
    assert remembered("db.b") == (3, at(3))
    # The batch is told again with its new place in the one table; the other is no further back for it.
    settled(catalog, 2, at(5), a=32, b=22)
    assert remembered("db.a") == (2, at(5))
    assert remembered("db.b") == (3, at(3))
    # Rolled back by other hands, of which there is no row.
    settled(catalog, 3, at(6), a=33, b=23)
    settled(catalog, 1, at(7), a=31, b=21)
    assert remembered("db.a") == (1, at(7))
    assert remembered("db.b") == (3, at(3))
