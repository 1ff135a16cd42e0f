"""Accepted gaps in batches, snapshot summaries and the ledger, and pauses of the schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice.batch import GAPS, Batch, batches_from_summary, merge_batches, publish_properties
from sluice.contract import folder as contract_folder
from sluice.errors import OffsetsLostError, RefusedError
from sluice.iceberg import tables
from sluice.kafka import broker
from sluice.kafka.broker import TopicState
from sluice.ledger import accepted_gaps
from sluice.ledger.ledger_rows import LedgerRow, LedgerState, batches_from_rows, plan_rows
from sluice.offsets import OffsetRange
from sluice.operate import accept_gap
from sluice.operate.accept_gap import Gap
from sluice.operate.operator_input import Decision
from sluice.plan.batches import accepted_losses, exclude_gaps
from sluice.plan.model import PlanInputs
from sluice.plan.retention_warnings import longest_interval
from tests.unit.maintain.test_assess import append

pytestmark = pytest.mark.unit

R = OffsetRange


def batch(seq: int, start: int, end: int, **gaps: tuple[int, int]) -> Batch:
    given_up = {int(p[1:]): (R(*g),) for p, g in gaps.items()}
    return Batch("t", "id", seq, {0: R(start, end)}, {0: end}, given_up)


def word(start: int, end: int, *, topic_id: str = "id", table: str | None = None) -> LedgerRow:
    return LedgerRow(
        "t", LedgerState.GAP, topic_id, partition=0, start_offset=start, end_offset=end, table=table, who="ann", why="w"
    )


def test_a_summary_carries_each_batchs_gaps_and_the_whole():
    several = [batch(1, 0, 10, p0=(0, 10)), batch(2, 10, 20, p0=(10, 13)), batch(3, 20, 30), batch(4, 30, 40)]
    several.append(batch(5, 40, 50, p0=(40, 41)))
    properties = publish_properties(several)
    assert properties[GAPS] == '{"0":[[0,10],[10,13],[40,41]]}'
    told = batches_from_summary(properties)
    assert told == several
    assert [b.gaps for b in told] == [b.gaps for b in several]
    assert merge_batches(several).span == 50 - 14
    assert merge_batches(several).ranges == {0: (0, 50)}
    assert [b.ranges_to_read for b in several[:2]] == [{}, {0: (13, 20)}]
    assert batches_from_summary(publish_properties(several[2:3]))[0].gaps == {}
    assert GAPS not in publish_properties(several[2:4])


@pytest.mark.parametrize(
    ("accepted", "low", "expected"),
    [
        ([], 10, {}),
        ([(10, 13)], 13, {0: R(10, 13)}),
        ([(10, 13), (13, 15)], 15, {0: R(10, 15)}),
        ([(0, 99)], 12, {0: R(10, 12)}),  # what Kafka holds is read, whatever was said
        ([(0, 99)], 80, {0: R(10, 40)}),
    ],
)
def test_no_more_is_passed_over_than_is_lost(accepted, low, expected):
    state = TopicState("t", "id", {0: R(low, 90)}, compacted=False, retention_ms=-1)
    assert accepted_losses({0: R(10, 40)}, state, {0: [R(*a) for a in accepted]}) == expected


@pytest.mark.parametrize(
    ("accepted", "low", "rest"),
    [
        ([], 13, (10, 13)),
        ([(10, 13)], 14, (13, 14)),
        ([(11, 14)], 14, (10, 14)),
        ([(10, 12), (13, 14)], 14, (12, 14)),
        ([(0, 10), (14, 99)], 14, (10, 14)),
        ([(10, 40)], 99, None),
    ],
)
def test_what_nobody_accepted_is_named(accepted, low, rest):
    state = TopicState("t", "id", {0: R(low, 99)}, compacted=False, retention_ms=-1)
    ranges, said = {0: R(10, 40)}, {0: [R(*a) for a in accepted]}
    if rest is None:
        assert accepted_losses(ranges, state, said) == {0: R(10, 40)}
        return
    with pytest.raises(OffsetsLostError) as stop:
        accepted_losses(ranges, state, said)
    assert stop.value.fields["lost"] == {0: rest}


def test_each_frozen_batch_gets_its_share():
    lost = {0: R(0, 15)}
    shares = [exclude_gaps(b, lost).gaps for b in (batch(1, 0, 10), batch(2, 10, 20), batch(3, 20, 30))]
    assert shares == [{0: (R(0, 10),)}, {0: (R(10, 15),)}, {}]


def test_words_are_of_one_topic_and_of_one_table():
    said = [word(5, 8), word(0, 5), word(7, 9), word(20, 30, topic_id="older"), word(40, 50, table="db.a")]
    assert accepted_gaps.accepted_ranges(said, "t", "id") == {0: [R(0, 9)]}
    assert accepted_gaps.accepted_ranges(said, "t", "id", "db.a") == {0: [R(40, 50)]}
    assert accepted_gaps.add_accepted_gaps(batch(3, 8, 60), said).gaps == {0: (R(8, 9),)}
    assert accepted_gaps.is_skipped_by_table(said, batch(3, 41, 50), "db.a")
    assert not accepted_gaps.is_skipped_by_table(said, batch(3, 41, 51), "db.a")
    assert not accepted_gaps.is_skipped_by_table(said, batch(3, 0, 9), "db.a")
    assert accepted_gaps.missing_gap_rows(batch(1, 0, 20, p0=(0, 9)), said) == []
    (row,) = accepted_gaps.missing_gap_rows(batch(1, 0, 20, p0=(0, 10)), said)
    assert (row.start_offset, row.end_offset, row.who) == (0, 10, None)
    # A word is no batch.
    assert batches_from_rows([*plan_rows(batch(1, 0, 10)), *said]) == {("t", 1): batch(1, 0, 10)}


@pytest.mark.parametrize(
    ("schedule", "pause"),
    [
        ("*/5 * * * *", timedelta(minutes=5)),
        ("0 6 * * 1-5", timedelta(days=3)),
        ("@hourly", timedelta(hours=1)),
        ("@quarterly", timedelta(days=92)),
        ("@continuous", timedelta(0)),
        ("@once", None),
        (None, None),
        ("1 2 3 4 99", None),
    ],
)
def test_the_longest_pause_of_a_schedule(schedule, pause):
    assert longest_interval(schedule, datetime(2026, 1, 1, tzinfo=UTC)) == pause


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def accept(catalog: Catalog, folder: Path, name: str, named: dict[int, list[int]] | None = None) -> list[Gap]:
    client: Any = None
    return accept_gap.accept_gaps(
        name,
        named,
        PlanInputs(contract_folder.load_contracts(folder), catalog, client),
        Decision("ann", "old", "r"),
        dry_run=False,
    )


def staged(catalog: Catalog, topic: str, trimmed: int = 0) -> None:
    """A topic of which offsets 0 and 1 are staged, each in a batch of its own."""
    staging = tables.ensure_staging(catalog, topic)
    for seq in (1, 2):
        told = Batch(topic, "id", seq, {0: R(seq - 1, seq)}, {0: seq}).properties()
        append(staging, seq, {"sluice.step": "stage", **told})
    with staging.transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: str(trimmed)})


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The first offset that Kafka has of each topic, 0 unless it is set."""
    low: dict[str, int] = {}

    def describe(_: object, topics: list[str]) -> dict[str, TopicState]:
        return {t: TopicState(t, "id", {0: R(low.get(t, 0), 9)}, compacted=False, retention_ms=-1) for t in topics}

    monkeypatch.setattr(broker, "describe_topics", describe)
    return low


BODY = "group: g\nowner: me\ncolumns: [{name: id, type: long}]\n"


def test_a_table_called_like_one_of_its_topics_is_the_table(
    tmp_path: Path, catalog: Catalog, kafka: dict[str, int]
) -> None:
    (tmp_path / "a.yaml").write_text("table: shop.orders\ntopic: [shop.orders, shop.orders_v2]\n" + BODY)
    staged(catalog, "shop.orders")
    staged(catalog, "shop.orders_v2", trimmed=1)
    kafka["shop.orders"] = 5
    with pytest.raises(RefusedError, match=r"has lost offsets of several: shop\.orders .*; shop\.orders_v2 "):
        accept(catalog, tmp_path, "shop.orders", {0: [0, 1]})
    of = ("shop.orders",)
    assert accept(catalog, tmp_path, "shop.orders") == [
        Gap("shop.orders", "id", {0: R(2, 5)}, of),
        Gap("shop.orders_v2", "id", {0: R(0, 1)}, of, "shop.orders"),
    ]
    with pytest.raises(RefusedError, match=r"are lost.*Nothing to do"):
        accept(catalog, tmp_path, "shop.orders")


def test_a_table_called_like_a_topic_of_others_is_not_that_topic(
    tmp_path: Path, catalog: Catalog, kafka: dict[str, int]
) -> None:
    (tmp_path / "a.yaml").write_text("table: shop.orders\ntopic: raw\n" + BODY)
    (tmp_path / "b.yaml").write_text("table: shop.others\ntopic: shop.orders\n" + BODY)
    staged(catalog, "raw", trimmed=1)
    staged(catalog, "shop.orders")
    kafka["shop.orders"] = 5
    assert accept(catalog, tmp_path, "shop.orders") == [Gap("raw", "id", {0: R(0, 1)}, ("shop.orders",), "shop.orders")]
    with pytest.raises(RefusedError, match=r"does not read the topic of that name.*shop\.others"):
        accept(catalog, tmp_path, "shop.orders")
    assert accept(catalog, tmp_path, "shop.others") == [Gap("shop.orders", "id", {0: R(2, 5)}, ("shop.others",))]
