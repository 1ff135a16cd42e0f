"""Warnings about records that Kafka may delete unread, for a topic that grows by a thousand records a minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice.batch import Batch
from sluice.contract import folder as contract_folder
from sluice.iceberg import snapshots, table_names, tables
from sluice.kafka import broker
from sluice.kafka.broker import TopicState
from sluice.offsets import OffsetRange
from sluice.plan import plan, retention_warnings
from sluice.plan.model import PlanInputs, TopicPlan
from sluice.plan.risk import RiskKind
from tests.unit.maintain.test_assess import append

pytestmark = pytest.mark.unit

END = 99_000
CLIENT: Any = None


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    def offsets_at(_: object, topic: str, partitions: list[int], moment: datetime) -> dict[int, int]:
        since = max(END - round((datetime.now(UTC) - moment) / timedelta(minutes=1)) * 1000, 0)
        return dict.fromkeys(partitions, since)

    monkeypatch.setattr(broker, "offsets_for_time", offsets_at)


def unread(read: int, size: int, record_bytes: float | None, start: int = 0) -> str:
    state = TopicState("t", "id", {0: OffsetRange(start, END)}, False, -1, retention_bytes=size)
    topic = TopicPlan("t", Batch("t", "id", 1, {}, {0: read}), state=state)
    return "; ".join(
        str(r) for r in retention_warnings.find_retention_risks(CLIENT, topic, {}, "*/5 * * * *", record_bytes)
    )


@pytest.mark.usefixtures("kafka")
def test_a_log_that_has_not_reached_its_size_is_measured_by_staging() -> None:
    # Ten thousand come in twice the schedule, and 60,000 fit: what is below 49,000 goes.
    told = unread(10, 6_000_000, 100.0)
    assert "within 0:10:00 (twice the schedule): {partition: offsets} {0: 48990}" in told
    assert "Kafka has deleted nothing yet: guessed at 100 bytes a record, as in staging" in told
    assert unread(49_000, 6_000_000, 100.0) == ""  # what is read may go
    assert unread(10, 12_000_000, 100.0) == ""  # all of it fits
    assert unread(10, 6_000_000, None) == ""  # nothing is staged: nobody can tell
    # Once Kafka has deleted, it shows by itself how far it is: the next ten thousand go.
    told = unread(10, 6_000_000, 100.0, start=1)
    assert "{0: 9991}" in told  # 10 to 10,000
    assert told.endswith("(retention.bytes 6000000; by size an estimate from recent growth).")


@pytest.mark.usefixtures("kafka")
def test_a_plan_warns_by_what_its_staging_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warehouse").mkdir()
    catalog: Catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    (tmp_path / "a.yaml").write_text(
        "table: shop.orders\ntopic: t\ngroup: g\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    promises = contract_folder.load_contracts(tmp_path)
    staging = tables.ensure_staging(catalog, "t")
    told = Batch("t", "id", 1, {0: OffsetRange(0, 10)}, {0: 10}).properties()
    append(staging, 1, {"sluice.step": "stage", **told})
    size = snapshots.bytes_per_record(catalog.load_table(table_names.staging("t")))
    assert size
    state = TopicState("t", "id", {0: OffsetRange(0, END)}, False, -1, retention_bytes=int(60_000 * size) + 1)
    monkeypatch.setattr(broker, "describe_topics", lambda *_: {"t": state})
    found = plan.make_plan(promises.group("g"), PlanInputs(promises, catalog, CLIENT)).warnings
    (risk,) = (each for each in found if each.kind == RiskKind.UNREAD)
    limits = f"(retention.bytes {state.retention_bytes}; by size an estimate from recent growth; "
    limits += "Kafka has deleted nothing yet: guessed at"
    assert f"{{0: 48990}} {limits} {size:,.0f} bytes a record" in str(risk)
