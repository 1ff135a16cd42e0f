"""The cursor of a table after expiry, rollbacks and writes of other engines; an unknown cursor is an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import CURSOR_TAG, PUBLISHED_THROUGH, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.errors import CursorUnknownError
from sluice.iceberg import cursor
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
    with table.transaction() as commit:  # so that the earlier metadata files have all snapshots, as before any expiry
        commit.set_properties(expired="true")
    left = [s for s in table.metadata.snapshots if s.snapshot_id not in snapshots]
    return Table(table.name(), table.metadata.model_copy(update={"snapshots": left}), "", table.io, table.catalog)


def lose_earlier_metadata(table: Table) -> None:
    for entry in table.metadata.metadata_log:
        Path(entry.metadata_file.removeprefix("file://")).unlink()


@pytest.mark.parametrize("by", ["spark", "pyiceberg"])
def test_the_tag_of_what_was_rolled_back_is_not_believed_of_a_newer_head(table: Table, by: str) -> None:
    first = publish(table, 1)
    target = write(table)
    publish(table, 2)
    table.manage_snapshots().rollback_to_snapshot(target).commit()
    assert cursor.read_table_cursor(expired(table, by, first))["t"].seq == 1
    write(table)  # a compaction, say: the head is newer than the tag now
    assert cursor.read_table_cursor(expired(table, by, first) if by == "spark" else table)["t"].seq == 1


@pytest.mark.parametrize("by", ["spark", "pyiceberg"])
def test_a_batch_that_main_was_rolled_back_from_does_not_count_whatever_was_expired(table: Table, by: str) -> None:
    first = publish(table, 1)
    target = write(table)
    second = publish(table, 2)
    table.manage_snapshots().remove_tag(CURSOR_TAG).commit()
    table.manage_snapshots().rollback_to_snapshot(target).commit()
    write(table)  # newer than each commit of batch 2
    assert cursor.read_table_cursor(expired(table, by, first, target, second))["t"].seq == 1


@pytest.mark.parametrize("by", ["spark", "pyiceberg"])
def test_the_tag_and_then_the_earlier_metadata_answer_for_what_was_expired(table: Table, by: str) -> None:
    first = publish(table, 1)
    between = write(table)
    write(table)
    assert cursor.read_table_cursor(expired(table, by, between))["t"].seq == 1
    table.manage_snapshots().remove_tag(CURSOR_TAG).commit()
    bare = expired(table, by, first, *(() if by == "pyiceberg" else (between,)))
    assert cursor.read_table_cursor(bare)["t"].seq == 1
    lose_earlier_metadata(bare)
    with pytest.raises(CursorUnknownError, match=r"docs/operate/disaster-recovery\.md"):
        cursor.read_table_cursor(bare)


def test_a_table_that_never_carried_offsets_has_none(table: Table) -> None:
    assert cursor.read_table_cursor(table) == {}
    before = write(table)
    write(table)
    assert cursor.read_table_cursor(table) == {}
    publish(table, 1)
    table.manage_snapshots().rollback_to_snapshot(before).commit()
    assert cursor.read_table_cursor(table) == {}, "back to before the first batch"
