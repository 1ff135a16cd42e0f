"""The offsets of a time range come from Kafka's index, and before its log start from staging and quarantine.

Offset n was written n hours after the first. Kafka begins at 1000 and ends at 2000; the table has come to 1500.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from sluice.backfill import estimate, offsets_at_time
from sluice.backfill import ranges as backfill_ranges
from sluice.backfill.ranges import RangeSources, Request, resolve_ranges
from sluice.batch import Batch
from sluice.contract import folder as contract_folder
from sluice.errors import RefusedError
from sluice.iceberg import range_scan, schema, table_names, tables
from sluice.iceberg.filters import at_most
from sluice.kafka import broker
from sluice.kafka.broker import TopicState
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange

pytestmark = pytest.mark.unit

T0 = datetime(2026, 1, 1, tzinfo=UTC)
LOW, END, CURSOR = 1000, 2000, 1500
KAFKA, STAGING, QUARANTINE = Origin
ASKED: Any = object()  # a client, of which `index` takes the place


def hour(n: float) -> datetime:
    return T0 + timedelta(hours=n)


def batch(seq: int, start: int, end: int) -> Batch:
    return Batch("orders", "id", seq, {0: OffsetRange(start, end)}, {0: end} if seq > 0 else {})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def index(monkeypatch: pytest.MonkeyPatch, low: int = LOW, end: int = END, gone: Container[int] = ()) -> TopicState:
    """Kafka's own index of times, over what Kafka still holds."""

    def offsets_at(_client: Any, _topic: str, partitions: Iterable[int], moment: datetime) -> dict[int, int]:
        first = next((n for n in range(low, end) if hour(n) >= moment and n not in gone), -1)
        return dict.fromkeys(partitions, first)

    monkeypatch.setattr(broker, "offsets_for_time", offsets_at)
    return TopicState("orders", "id", {0: OffsetRange(low, end)}, False, 1)


def written(table: Table, rows: Mapping[int, float], **more: Any) -> Table:
    """Rows per offset, each at its hour, in one file."""
    fields = table.schema().as_arrow()
    none = {f.name: f.type for f in fields if not f.nullable}
    filler = {name: 0 if pa.types.is_integer(kind) else "" for name, kind in none.items()}
    same = {**filler, "_kafka_partition": 0, **more}
    found = [{**same, "_kafka_offset": at, "_kafka_timestamp": hour(when)} for at, when in rows.items()]
    table.append(pa.Table.from_pylist(found, schema=fields))
    return table


def in_staging(catalog: Catalog, *pieces: Batch, times: Callable[[int], float] = float) -> Table:
    table = tables.ensure_staging(catalog, "orders")
    for piece in pieces:
        written(table, {n: times(n) for n in range(*piece.ranges[0])}, batch_seq=piece.seq)
    return table


def known(state: TopicState, staging: Table | None, *staged: Batch, quarantine: Table | None = None) -> RangeSources:
    return RangeSources(state, staged, {0: CURSOR}, quarantine, {0: CURSOR}, staging)


def resolved(sources: RangeSources, origin: Origin, since: float | None = None, until: float | None = None) -> Any:
    times = {k: hour(v) for k, v in (("since", since), ("until", until)) if v is not None}
    return resolve_ranges(Request("shop.orders", origin=origin, **times), sources, ASKED).ranges[0]


def test_before_what_kafka_holds_staging_tells_where_a_time_lies(catalog, monkeypatch):
    pieces = [batch(1, 0, 700), batch(2, 700, CURSOR)]
    sources = known(index(monkeypatch), in_staging(catalog, *pieces), *pieces)
    assert resolved(sources, STAGING, until=100) == (0, 100)
    assert resolved(sources, STAGING, since=50, until=100) == (50, 100)
    assert resolved(sources, STAGING, since=99.5, until=1200) == (100, 1200)
    assert resolved(sources, STAGING, since=700) == (700, CURSOR)
    assert resolved(sources, STAGING, since=999.5) == (1000, CURSOR)
    assert resolved(sources, STAGING, since=-9) == (0, CURSOR)
    # Kafka's own, too, where staging shows that what Kafka has deleted is older.
    assert resolved(sources, KAFKA, since=999.5) == (1000, CURSOR)
    assert resolved(sources, KAFKA, since=1100, until=1200) == (1100, 1200)


@pytest.mark.parametrize("origin", [KAFKA, STAGING])
def test_what_compaction_took_is_placed_by_staging(catalog, monkeypatch, origin):
    """Of 1010 to 1099 Kafka's index knows no more, and leads to 1100."""
    piece = batch(1, 0, CURSOR)
    state = replace(index(monkeypatch, gone=range(1010, 1100)), compacted=True)
    sources = known(state, in_staging(catalog, piece), piece)
    assert resolved(sources, origin, since=1050) == (1050, CURSOR)
    assert resolved(sources, origin, since=1005, until=1050) == (1005, 1050)
    assert resolved(sources, origin, since=1200) == (1200, CURSOR)
    # What was never staged only Kafka can place.
    assert resolved(known(state, None), KAFKA, since=1050, until=1200) == (1100, 1200)


def test_what_kafka_no_longer_has_is_not_left_out_in_silence(catalog, monkeypatch):
    state = index(monkeypatch)
    with pytest.raises(
        RefusedError, match=r'neither Kafka nor staging has .* \{"0":\[\[0,1000\]\]\}.*first known offsets are \{0: 1'
    ):
        resolved(known(state, None), KAFKA, since=100, until=1200)
    piece = batch(1, 0, CURSOR)
    sources = known(state, in_staging(catalog, piece), piece)
    with pytest.raises(RefusedError, match=r"no longer holds the range.*\[100, 1200\].*staging has all"):
        resolved(sources, KAFKA, since=100, until=1200)
    # Where nothing was before what Kafka has, and where no time is asked for.
    assert resolved(known(index(monkeypatch, low=0), None), KAFKA, since=-9, until=10) == (0, 10)
    assert resolved(sources, KAFKA, until=1200) == (LOW, 1200)


def test_a_time_that_lies_in_what_nobody_has_is_refused(catalog, monkeypatch):
    pieces = [batch(1, 0, 100), batch(3, 600, CURSOR)]
    state, staging = index(monkeypatch), in_staging(catalog, *pieces)
    sources = known(state, staging, *pieces)
    assert resolved(sources, STAGING, since=50, until=80) == (50, 80)
    assert resolved(sources, STAGING, since=601) == (601, CURSOR)
    for since in (100, 300, 600):
        with pytest.raises(RefusedError, match=r'has .* \{"0":\[\[100,600\]\]\}.*first known offsets are \{0: 600\}'):
            resolved(sources, STAGING, since=since)
    # Unless nothing of it would be taken: the partition's live feed had begun by then.
    with pytest.raises(RefusedError, match="nothing in that time"):
        resolved(replace(sources, live_ingest_start={0: 100}), STAGING, since=300)
    # What Kafka still tells is no business of staging's.
    assert resolved(known(state, None), STAGING, since=1001) == (1001, CURSOR)


@pytest.mark.parametrize("origin", [KAFKA, STAGING])
def test_a_time_that_ends_behind_the_tables_cursor_is_cut_to_it(catalog, monkeypatch, origin):
    piece = batch(1, 0, CURSOR)
    sources = known(index(monkeypatch), in_staging(catalog, piece), piece)
    for until, told in ((9999, {0: END}), (1600, {0: 1600}), (1500, {}), (1400, {})):
        found = resolve_ranges(
            Request("shop.orders", origin=origin, since=hour(1100), until=hour(until)), sources, ASKED
        )
        assert (found.ranges, found.cut_at) == ({0: (1100, min(until, CURSOR))}, told)
    with pytest.raises(RefusedError, match=r"nothing in that time.*\{0: \(1600, 1500\)\}.*cursor \{0: 1500\}"):
        resolved(sources, origin, since=1600, until=1700)
    # A table that was rolled back behind where its live feed began.
    assert resolved(replace(sources, live_ingest_start={0: 1400}, cursor={0: 1300}), origin, since=1200) == (1200, 1300)
    # What is named by hand is meant as it is named: `check_below` refuses it.
    assert resolve_ranges(Request("shop.orders", {0: (1100, 1600)}), sources, ASKED).ranges == {0: (1100, 1600)}


def test_quarantine_tells_its_own_times(catalog, tmp_path, monkeypatch):
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    contract = contract_folder.load_contracts(folder).table("shop.orders")
    tables.ensure_quarantine(catalog, contract)
    table = catalog.load_table(table_names.quarantine(contract))
    written(table, {n: n for n in range(10, 1400, 10)}, _kafka_topic="orders", quarantined_at=T0)
    written(table, {5: 5}, _kafka_topic="other", quarantined_at=T0)
    sources = known(index(monkeypatch), None, quarantine=table)
    assert resolved(sources, QUARANTINE) == (10, 1391)
    assert resolved(sources, QUARANTINE, until=100) == (10, 100)
    assert resolved(sources, QUARANTINE, since=95) == (100, 1391)
    assert resolved(sources, QUARANTINE, since=1395 - 400, until=1105) == (1000, 1110)
    with pytest.raises(RefusedError, match=r"holds no record of the topic .* in that time"):
        resolved(sources, QUARANTINE, since=1391)


def test_the_first_rows_are_found_among_files_in_any_order(catalog):
    """By no more files than tell it, and never by their order alone: against looking through all rows."""
    some = random.Random(4)
    table, times = tables.ensure_staging(catalog, "orders"), {n: some.uniform(0, 60) for n in range(60)}
    # Partition 0 has the even offsets, partition 3 the odd ones; 7 has none, and 5 none that is asked for.
    places = list(times)
    some.shuffle(places)
    for at in range(0, 60, 12):
        for part in (0, 1):
            rows = {n: times[n] for n in places[at : at + 12] if n % 2 == part}
            written(table, rows, batch_seq=1, _kafka_partition=3 * part)
    written(table, dict.fromkeys(range(60), 60), batch_seq=1, _kafka_partition=5)
    for _ in range(40):
        since = some.uniform(0, 60)
        asked = {p: OffsetRange(some.randrange(60), some.randrange(61)) for p in (3, 0, 7)}
        places = {p: range(*asked[p]) for p in (0, 3)}
        rows = {p: [n for n in each if n % 2 == p % 2 and hour(times[n]) >= hour(since)] for p, each in places.items()}
        assert offsets_at_time.find_first_offsets(table, asked, hour(since)) == {
            p: min(each) for p, each in rows.items() if each
        }
    assert offsets_at_time.find_first_offsets(table, {1: OffsetRange(0, 60), 5: OffsetRange(7, 60)}) == {5: 7}
    assert offsets_at_time.find_first_offsets(None, {0: OffsetRange(0, 60)}) == {}


def test_a_time_is_looked_up_in_all_partitions_together(catalog, monkeypatch):
    """Staging's files are planned once for all of them: by one partition after the other, a thousand took minutes."""
    count = 8
    staging, held = tables.ensure_staging(catalog, "orders"), OffsetRange(15, 20)
    for p in range(count):
        written(staging, {n: n + p for n in range(20)}, batch_seq=1, _kafka_partition=p)
    staged = [Batch("orders", "id", 1, {p: OffsetRange(0, 20) for p in range(count)}, dict.fromkeys(range(count), 20))]
    marks = dict.fromkeys(range(count), held)
    # Of what Kafka holds all is younger than the moment, but in the first two partitions.
    older = {0: 17, 1: 16}
    index(monkeypatch)
    monkeypatch.setattr(
        broker, "offsets_for_time", lambda _c, _t, _p, at: {p: older.get(p, 15) if at > T0 else 15 for p in marks}
    )
    planned: list[Any] = []
    monkeypatch.setattr(
        tables, "plan_files", lambda *asked, plan=tables.plan_files: planned.append(asked) or plan(*asked)
    )
    found = offsets_at_time.find_offsets(hour(17), TopicState("orders", "id", marks, False, 1), staging, staged, ASKED)
    assert found.offsets == {p: older.get(p, min(15, max(0, 17 - p))) for p in marks}
    assert not found.unknown
    assert len(planned) == 1


def test_a_range_of_a_thousand_partitions_is_looked_up(catalog):
    staging = written(tables.ensure_staging(catalog, "orders"), {7: 7}, batch_seq=1)
    many = Batch("orders", "id", -1, {p: OffsetRange(0, 10) for p in range(1000)}, {})
    assert len(tables.plan_files(staging, range_scan.offset_filter(many))) == 1
    assert tables.plan_files(staging, range_scan.offset_filter(replace(many, ranges={0: OffsetRange(0, 7)}))) == []
    assert tables.plan_files(staging, range_scan.offset_filter(replace(many, ranges={}))) == []


@pytest.mark.parametrize("topic", [None, "orders"])
def test_files_and_rows_of_a_range_are_its_own_though_its_hull_is_asked_for(catalog, tmp_path, topic):
    """One partition is far ahead of the others: their hull holds nearly all rows."""
    some, also = random.Random(7), {} if topic is None else {"_kafka_topic": topic, "quarantined_at": T0}
    table = tables.ensure_staging(catalog, "orders")
    if topic:
        table = tables.ensure_table(catalog, ("db", "rejected"), schema.quarantine_schema()[0])
        written(table, dict.fromkeys(range(60), 0), batch_seq=1, _kafka_partition=0, **also | {"_kafka_topic": "other"})
    for p in (0, 1, 1000):
        for first in range(0, 60, 10):
            written(table, dict.fromkeys(range(first, first + 10), 0), batch_seq=first, _kafka_partition=p, **also)
    table = catalog.load_table(table.name())
    for _ in range(20):
        ranges = {p: OffsetRange(n := some.randrange(60), n + some.randrange(1, 20)) for p in (0, 1, 2, 1000)}
        asked = Batch("orders", "id", -1, ranges, {})
        held = {(p, n) for p, r in ranges.items() if p != 2 for n in range(*r) if n < 60}
        found = range_scan.read_slice_records(table, asked)
        assert found.num_rows == len(held)
        assert set(zip(*(found[name].to_pylist() for name in backfill_ranges.COORDINATES), strict=True)) == held
        assert len(range_scan.plan_slice_files(table, asked)) == len({(p, n // 10) for p, n in held})
        assert estimate.count_rows(table, asked) == (len(held), True)
        of_these = range_scan.read_slice_records(table, asked, ("batch_seq",), extra_filter=at_most("batch_seq", 20))
        pairs = zip(of_these["_kafka_offset"].to_pylist(), of_these["batch_seq"].to_pylist(), strict=True)
        assert all(seq == n // 10 * 10 for n, seq in pairs)
        assert of_these.num_rows == sum(n < 30 for _, n in held)
    assert range_scan.read_slice_records(table, Batch("orders", "id", -1, {}, {})).num_rows == 0


def test_a_range_is_asked_for_by_as_many_terms_however_many_partitions_it_has():
    """Each is looked at for each file."""
    many = Batch("orders", "id", -1, {p: OffsetRange(0, 10) for p in range(50)}, {})
    assert len(repr(range_scan.slice_filter(many))) < 1000
