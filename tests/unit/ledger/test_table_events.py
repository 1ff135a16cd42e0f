"""The asset events of a table: one per snapshot that published something, whatever else happens to the table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.batch import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, publish_properties
from sluice.ledger import table_events
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.table_events import Position
from sluice.offsets import OffsetRange

pytestmark = pytest.mark.unit

NAME = "db.t"
ROW = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def table(catalog: Catalog) -> Table:
    catalog.create_namespace("db")
    return catalog.create_table(NAME, ROW.schema)


def batch(seq: int) -> Batch:
    gaps = {0: (OffsetRange(15, 17),)} if seq == 4 else {}
    return Batch("t", "id", seq, {0: OffsetRange(5 * abs(seq) - 5, 5 * abs(seq))}, {0: 5 * seq}, gaps)


def write(table: Table, about: Mapping[str, str] | None = None, *, rows: int = 1) -> int:
    """What others write has no properties: a rewrite, for one."""
    table.append(ROW.slice(0, rows), snapshot_properties=dict(about or {}))
    head = table.current_snapshot()
    assert head is not None
    return head.snapshot_id


def publish(table: Table, *seqs: int, rows: int = 1) -> int:
    step = "replay" if seqs[0] < 0 else "publish"
    about = {STEP: step, RUN_ID: "run", PUBLISHED_THROUGH: "{}", **publish_properties([batch(seq) for seq in seqs])}
    return write(table, about, rows=rows)


def move_main(table: Table, snapshot_id: int) -> None:
    table.manage_snapshots().set_current_snapshot(snapshot_id).commit()


def expire(table: Table, *snapshots: int) -> None:
    table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()


def look(table: Table, since: Position) -> tuple[list[tuple[str, int]], Position]:
    """The events as kind and snapshot, and the position to continue at."""
    found = table_events.find_events(table, NAME, since)
    return [(e.payload["kind"], e.payload["snapshot_id"]) for e in found], table_events.read_head(table)


def test_each_publish_is_an_event_in_order_and_maintenance_is_none(table: Table) -> None:
    first = publish(table, 1)
    at = table_events.read_head(table)
    assert look(table, at) == ([], at), "what was there at the start"
    second = publish(table, 2)
    write(table)
    write(table, {STEP: "contract", RUN_ID: "run"}, rows=0)
    third = publish(table, 3, 4)
    slice_ = publish(table, -1)
    publish(table, -2, rows=0)  # changed nothing
    write(table)
    events = table_events.find_events(table, NAME, at)
    moved = {entry.snapshot_id: entry.timestamp_ms for entry in table.metadata.snapshot_log}
    common = {"table": NAME, "run_id": "run"}
    seen = [{name: value for name, value in e.payload.items() if name != "visible_at"} for e in events]
    assert seen == [
        {"snapshot_id": second, "kind": "ingest", "batches": {"t": [2]}, "ranges": {"t": ['{"0":[5,10]}']}, "gaps": {}}
        | common,
        {
            "snapshot_id": third,
            "kind": "ingest",
            "batches": {"t": [3, 4]},
            "ranges": {"t": ['{"0":[10,15]}', '{"0":[15,20]}']},
            "gaps": {"t": ['{"0":[[15,17]]}']},
        }
        | common,
        {
            "snapshot_id": slice_,
            "kind": "backfill",
            "batches": {"t": [-1]},
            "ranges": {"t": ['{"0":[0,5]}']},
            "gaps": {},
        }
        | common,
    ]  # fmt: skip
    assert [to_ms(e.payload["visible_at"]) for e in events] == [moved[second], moved[third], moved[slice_]]
    # A triggerer that ended after each of them continues there.
    assert look(table, events[0].position)[0] == [("ingest", third), ("backfill", slice_)]
    assert look(table, events[2].position)[0] == []
    assert look(table, Position())[0][0] == ("ingest", first), "a table that came after the first look"


def to_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_expiry_of_what_was_reported_neither_loses_nor_repeats(table: Table) -> None:
    first = publish(table, 1)
    at = table_events.read_head(table)
    second, third = publish(table, 2), publish(table, 3)
    expire(table, first)
    assert look(table, at)[0] == [("ingest", second), ("ingest", third)]
    at = table_events.read_head(table)
    publish(table, 4)
    fifth = publish(table, 5)
    expire(table, third, second)
    # The fourth is gone unseen; what came before the stored position stays reported.
    expire(table, next(s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != fifth))
    assert look(table, at)[0] == [("ingest", fifth)]


def test_a_rollback_is_an_event_and_what_is_published_again_is_one_too(table: Table) -> None:
    first, second = publish(table, 1), publish(table, 2)
    write(table)
    at = table_events.read_head(table)
    move_main(table, first)
    events, back = look(table, at)
    assert events == [("rollback", first)]
    assert look(table, back)[0] == []
    again = publish(table, 2)
    assert look(table, back)[0] == [("ingest", again)]
    assert look(table, at)[0] == [("rollback", first), ("ingest", again)], "both between two looks"
    # The undone snapshots expire, also while no triggerer runs: their sequence numbers are known.
    expire(table, second, at.snapshot_id)
    assert look(table, at)[0] == [("ingest", again)]
    move_main(table, first)
    assert look(table, at)[0] == [("rollback", first)]


def test_a_table_that_was_dropped_and_created_again_begins_anew(catalog: Catalog, table: Table) -> None:
    for seq in range(1, 4):
        publish(table, seq)
    at = table_events.read_head(table)
    catalog.drop_table(NAME)
    other = catalog.create_table(NAME, ROW.schema)
    assert look(other, at)[0] == []
    made = publish(other, 1)
    assert look(other, at)[0] == [("ingest", made)]


def test_the_counts_are_the_ledgers(catalog: Catalog, table: Table) -> None:
    ledger = Ledger(catalog)
    ids = [publish(table, 1), publish(table, 2, 3), publish(table, -1), publish(table, 4), publish(table, 5)]

    def row(seq: int, snapshot_id: int, records: int | None, state: LedgerState = LedgerState.PUBLISHED) -> LedgerRow:
        counts = {"records": records, "rejected": None if records is None else 1}
        return LedgerRow("t", state, "id", seq, table=NAME, snapshots={NAME: snapshot_id}, **counts)

    other = {"table": "db.other", "snapshots": {"db.other": 9}}
    rows: list[Any] = [
        row(1, ids[0], 5),
        row(1, 77, 500),  # was rolled back
        LedgerRow("t", LedgerState.PUBLISHED, "id", 1, records=50, **other),
        row(2, ids[1], 4),
        row(3, ids[1], 6),
        row(-1, ids[2], 3, LedgerState.REPLAYED),
        row(4, ids[3], None),  # written by settle, because the application was killed
    ]
    ledger.append(rows, run_id="r")
    events = table_events.find_events(table, NAME, Position())
    missing = table_events.add_counts(ledger, events)
    assert [(e.payload["records"], e.payload["rejected"]) for e in events] == [
        (5, 1), (10, 2), (3, 1), (None, None), (None, None),
    ]  # fmt: skip
    assert [e.position.snapshot_id for e in missing] == [ids[4]]
    assert len(table_events.add_counts(None, events)) == 5
