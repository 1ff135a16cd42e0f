"""What the pages show before an operator's run starts: the same as that run would do, and nothing is changed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice import dag_ids
from sluice.errors import RefusedError
from sluice.ledger.slices import Origin
from sluice.operate import dry_run
from sluice.operate.rollback_target import RestorePoint
from sluice.plan.model import PlanInputs
from tests.unit.maintain.test_assess import filled, promise
from tests.unit.operate.test_rollback import head, look

pytestmark = pytest.mark.unit


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "warehouse").mkdir()
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")


def test_a_rollback_is_shown_as_it_would_be_done(tmp_path: Path, catalog: Catalog) -> None:
    promises = promise(tmp_path)
    filled(catalog, promises, 3)
    target = head(catalog).parent_snapshot_id
    inputs = PlanInputs(promises, catalog, None)  # type: ignore[arg-type] - a rollback does not need Kafka
    before = {name: catalog.load_table(name).metadata_location for name in catalog.list_tables("shop")}
    shown = dry_run.dry_run(dag_ids.ROLLBACK, {"table": "shop.orders", "snapshot_id": str(target)}, inputs)
    snapshot = catalog.load_table("shop.orders").snapshot_by_id(target or 0)
    assert snapshot is not None
    assert shown.lines == look(catalog, promises, snapshot).lines() and shown.pinned == {}
    assert {name: catalog.load_table(name).metadata_location for name in before} == before
    with pytest.raises(RefusedError, match="'seven' is not a snapshot id"):
        dry_run.dry_run(dag_ids.ROLLBACK, {"table": "shop.orders", "snapshot_id": "seven"}, inputs)
    with pytest.raises(RefusedError, match="has no dry run"):
        dry_run.dry_run("ingest_shop", {"table": "shop.orders"}, inputs)


def test_a_form_of_a_backfill_is_read_with_its_defaults() -> None:
    least = dry_run.backfill_request({"table": "shop.orders"})
    assert (least.origin, least.topic, least.ranges, least.since, least.why) == (Origin.KAFKA, "", {}, None, "")
    form = {
        "source": "quarantine",
        "topic": "t",
        "ranges": {"0": [1, 9]},
        "since": "2026-11-22T06:00:00.000Z",
        "why": "x",
    }
    whole = dry_run.backfill_request({"table": "shop.orders", **form})
    assert (whole.origin, whole.topic, whole.ranges) == (Origin.QUARANTINE, "t", {0: (1, 9)})
    assert (whole.since, whole.until, whole.why) == (datetime(2026, 11, 22, 6, tzinfo=UTC), None, "x")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"source": "tape"}, "'tape' is not a source"),
        ({"ranges": {"0": [9]}}, "Partition 0"),
        ({"ranges": ["0"]}, "is not a JSON object of ranges"),
        ({"until": "yesterday"}, "until is 'yesterday', which is not a time with a time zone"),
    ],
)
def test_a_form_that_is_wrong_is_refused_with_its_field(form: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        dry_run.backfill_request({"table": "shop.orders", **form})


def test_no_snapshot_is_blank_and_a_large_one_is_exact() -> None:
    for blank in (None, ""):
        assert dry_run.restore_point({"snapshot_id": blank, "before_run": "r"}) == RestorePoint(None, "r")
    assert dry_run.restore_point({"snapshot_id": "9007199254740993"}).snapshot_id == 2**53 + 1
