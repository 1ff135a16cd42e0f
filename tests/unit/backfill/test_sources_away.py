"""A backfill from staging or quarantine works without the topic and without a broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from sluice.backfill import backfill_plan, ranges
from sluice.backfill.ranges import Request
from sluice.batch import PUBLISHED_THROUGH, Batch, PublishedOffsets, encode_published_through
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.errors import (
    BrokerUnavailableError,
    RefusedError,
    SluiceError,
    StagingTrimmedError,
    TopicMissingError,
    TopicRecreatedError,
)
from sluice.iceberg import table_names, tables
from sluice.kafka import broker
from sluice.kafka.broker import TopicState
from sluice.ledger import ledger_rows, slices
from sluice.ledger.ledger_rows import LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange
from sluice.plan.model import PlanInputs

pytestmark = pytest.mark.unit

T0 = datetime(2026, 1, 1, tzinfo=UTC)
LIVE = Batch("orders", "id", 1, {0: OffsetRange(0, 20)}, {0: 20})


def written(table: Table, offsets: Any, properties: dict[str, str], **more: Any) -> None:
    fields = table.schema().as_arrow()
    filler = {f.name: 0 if pa.types.is_integer(f.type) else "" for f in fields if not f.nullable}
    same = {**filler, "_kafka_topic": "orders", "_kafka_partition": 0, **more}
    rows = [{**same, "_kafka_offset": n, "_kafka_timestamp": T0 + timedelta(hours=n)} for n in offsets]
    rows = [{name: value for name, value in row.items() if name in fields.names} for row in rows]
    table.append(pa.Table.from_pylist(rows, schema=fields), snapshot_properties=properties)


@pytest.fixture
def promises(tmp_path: Path) -> Contracts:
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    return contract_folder.load_contracts(folder)


@pytest.fixture
def catalog(tmp_path: Path, promises: Contracts) -> Catalog:
    """A table that holds twenty records, all but three of them, which are set apart."""
    (tmp_path / "warehouse").mkdir()
    lake = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    contract = promises.table("shop.orders")
    written(tables.ensure_staging(lake, "orders"), range(20), LIVE.properties(), batch_seq=1)
    through = {PUBLISHED_THROUGH: encode_published_through({"orders": PublishedOffsets(1, "id", {0: 20})})}
    written(tables.ensure_typed(lake, contract), range(17), {**LIVE.properties(), **through})
    tables.ensure_quarantine(lake, contract)
    written(lake.load_table(table_names.quarantine(contract)), (17, 18, 19), {}, quarantined_at=T0)
    Ledger(lake).append(ledger_rows.plan_rows(LIVE, LedgerState.SETTLED), run_id="r")
    return lake


AWAY: dict[str, TopicState | SluiceError] = {
    "Kafka has no topic": TopicMissingError("Kafka has no topic 'orders'.", topic="orders"),
    "did not answer": BrokerUnavailableError("Kafka did not answer: timed out"),
    "is not the one that": TopicState("orders", "another", {0: OffsetRange(0, 3)}, False, 1),
}


@pytest.fixture(params=AWAY)
def away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    state = AWAY[request.param]

    def describe(_client: Any, topics: list[str]) -> dict[str, TopicState | SluiceError]:
        if isinstance(state, BrokerUnavailableError):
            raise state
        return dict.fromkeys(topics, state)

    def offsets_at(*_: Any) -> dict[int, int]:
        raise AssertionError("Kafka was asked for times, of which it knows nothing")

    monkeypatch.setattr(broker, "describe_topics", describe)
    monkeypatch.setattr(broker, "offsets_for_time", offsets_at)
    return str(request.param)


def looked(
    promises: Contracts, catalog: Catalog, origin: Origin, ranges: Any = None, **more: Any
) -> backfill_plan.BackfillPlan:
    request = Request("shop.orders", ranges or {}, origin=origin, why="a hole", **more)
    return backfill_plan.plan_backfill(request, PlanInputs(promises, catalog, None, Ledger(catalog)))  # type: ignore[arg-type]


def test_what_is_read_elsewhere_needs_no_kafka(promises, catalog, away):
    found = looked(promises, catalog, Origin.STAGING, {0: (3, 20)})
    (line,) = (line for line in found.lines() if line.startswith("kafka "))
    assert line.startswith("kafka   not needed, and no answer: ")
    assert away in line
    assert "records 17" in found.lines()
    assert [(s.topic_id, dict(s.ranges)) for s in found.slices] == [("id", {0: (3, 20)})]
    times = {"since": T0 + timedelta(hours=5), "until": T0 + timedelta(hours=9)}
    assert looked(promises, catalog, Origin.STAGING, **times).ranges == {0: (5, 9)}
    assert looked(promises, catalog, Origin.STAGING, since=T0, until=datetime.now(UTC)).ranges == {0: (0, 20)}
    assert looked(promises, catalog, Origin.QUARANTINE).ranges == {0: (17, 20)}
    assert "records 3" in looked(promises, catalog, Origin.QUARANTINE, {0: (3, 20)}).lines()  # not its 17 offsets
    assert looked(promises, catalog, Origin.QUARANTINE, since=T0 + timedelta(hours=18)).ranges == {0: (18, 20)}


def test_what_is_read_from_kafka_does(promises, catalog, away):
    with pytest.raises((BrokerUnavailableError, TopicMissingError, TopicRecreatedError), match=away):
        looked(promises, catalog, Origin.KAFKA, {0: (3, 20)})


def test_what_is_refused_is_refused_without_kafka_too(promises, catalog, away):
    with pytest.raises(RefusedError, match=r"ends above the table's cursor.*\{0: \(21, 20\)\}"):
        looked(promises, catalog, Origin.STAGING, {0: (3, 21)})
    with pytest.raises(RefusedError, match="no partition 1"):
        looked(promises, catalog, Origin.STAGING, {1: (3, 21)})
    with catalog.load_table(table_names.staging("orders")).transaction() as transaction:
        transaction.set_properties({tables.TRIMMED_THROUGH: "1"})
    with pytest.raises(StagingTrimmedError, match=r"missing\} \{0: \[\(3, 20\)\]\}"):
        looked(promises, catalog, Origin.STAGING, {0: (3, 20)})
    with pytest.raises(RefusedError, match=r'neither Kafka nor staging has .*"0":\[\[0,5\]\].*Give a later since, or'):
        looked(promises, catalog, Origin.STAGING, since=T0 + timedelta(hours=5), until=T0 + timedelta(hours=9))


def test_offsets_of_two_topics_in_one_staging_table_are_not_mixed():
    wanted = replace(LIVE, seq=-1, ranges={0: OffsetRange(5, 9)}, next_offsets={})
    other = replace(LIVE, seq=2, topic_id="another", ranges={0: OffsetRange(8, 30)})
    ranges.check_in_staging("shop.orders", wanted, [LIVE])
    ranges.check_in_staging("shop.orders", wanted, [LIVE, replace(other, ranges={0: OffsetRange(9, 30)})])
    with pytest.raises(RefusedError, match="batches of another topic of that name at the same offsets: 2"):
        ranges.check_in_staging("shop.orders", wanted, [LIVE, other])


def test_a_backfill_has_no_more_slices_than_airflow_maps(promises, catalog, tmp_path, monkeypatch):
    path = tmp_path / "contracts" / "shop.orders.yaml"
    path.write_text(path.read_text() + "limits: {records_per_batch: 5}\n")
    state = TopicState("orders", "id", {0: OffsetRange(0, 20)}, False, 1)
    monkeypatch.setattr(broker, "describe_topics", lambda _, topics: dict.fromkeys(topics, state))
    request = Request("shop.orders", {0: (0, 20)}, why="a hole")
    small, same = contract_folder.load_contracts(tmp_path / "contracts"), {"who": "ann", "run_id": "r"}
    inputs = PlanInputs(small, catalog, None)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="more than 3 slices"):
        backfill_plan.write_backfill(request, inputs, max_slices=3, **same)
    assert not slices.read_slice_rows(Ledger(catalog), "orders")
    found = backfill_plan.write_backfill(request, inputs, max_slices=4, **same)
    assert [dict(s.ranges) for s in found.slices] == [{0: (n, n + 5)} for n in range(0, 20, 5)]
    monkeypatch.setattr(backfill_plan, "MAX_SLICES", 3)
    with pytest.raises(RefusedError, match="more than 3 slices"):
        looked(small, catalog, Origin.KAFKA, {0: (0, 20)})


@pytest.mark.parametrize(("table", "ranges"), [("shop.orders", {0: (5, 9)}), ("shop.other", {0: (3, 20)})])
def test_a_run_id_that_was_used_for_something_else_is_refused(promises, catalog, away, table, ranges):
    before = replace(LIVE, seq=-1, ranges={0: OffsetRange(3, 20)}, next_offsets={})
    Ledger(catalog).append(slices.slice_plan_rows(before, table, who="ann", why="a hole"), run_id="r")
    request = Request("shop.orders", ranges, origin=Origin.STAGING, why="another hole")
    inputs = PlanInputs(promises, catalog, None)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=rf"Run r planned other slices before: {table} .*\"0\":\[3,20\]"):
        backfill_plan.write_backfill(request, inputs, who="ann", run_id="r")
    found = backfill_plan.write_backfill(request, inputs, who="ann", run_id="s")
    for _ in range(2):
        assert [(s.seq, dict(s.ranges)) for s in found.slices] == [(-2, ranges)]
        found = backfill_plan.write_backfill(request, inputs, who="ann", run_id="s")
