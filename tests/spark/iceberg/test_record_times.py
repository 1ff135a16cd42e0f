"""The rows of a table at any time, after batches, rewrites, rollbacks and expiry, equal what was sent until then."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from sluice.contract.settings import Maintenance
from sluice.iceberg import snapshots
from sluice.ledger.maintenance_table import Action
from sluice.ledger.offsets_table import Ledger
from sluice.maintain import maintain
from sluice.operate import rollback
from sluice.operate.operator_input import Decision
from sluice.operate.rollback_target import RestorePoint
from sluice.status import readiness, timeline
from sluice.status.events import Event, Lane
from tests.support.lake import Lake

pytestmark = pytest.mark.usefixtures("generated_code")


def now() -> datetime:
    time.sleep(0.005)
    found = datetime.now(UTC)
    time.sleep(0.005)
    return found


def assert_measured(happened: list[Event], within: timedelta) -> None:
    """What is told of each batch of 20 records: three, of which two were published again after a rollback."""
    batches = [e for e in happened if e.lane in (Lane.STAGED, Lane.PUBLISHED)]
    assert {e.unread for e in batches} == {20}
    assert all(0 < (e.commit_seconds or 0) < (e.seconds or 0) for e in batches)
    delays = [e.delay for e in batches if e.lane == Lane.PUBLISHED]
    assert len(delays) == 5 and all(d is not None and 0 < d < within.total_seconds() for d in delays)


def test_each_moment_tells_the_offsets_that_were_in_the_table_then(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    strict = {"snapshot_age": "1s", "min_snapshots": 2, "min_input_files": 2}
    table = it.contract(maintenance=strict)
    began = now()
    held: list[tuple[datetime, int]] = []

    def remember(records: int) -> None:
        held.append((now(), records))

    for number in range(3):
        it.send((n % 2, f"k{n}", {"n": n}) for n in range(20 * number, 20 * number + 20))
        it.run()
        remember(20 * number + 20)
    done = maintain.maintain_tables(
        maintain.MaintenanceRun(it.context("rewrite"), it.contracts, Action.REWRITE),
        [table],
        deadline=time.monotonic() + 600,
    )
    assert [e.state for e in done] == ["done"], done
    remember(60)
    ledger = Ledger(it.catalog)
    found = rollback.preview_rollback(table, it.contracts, it.catalog, ledger, RestorePoint(before_run=f"{it.group}-2"))
    rollback.roll_back(found, it.catalog, ledger, Decision("ann", "a test", "back"))
    remember(20)
    it.drain(table)
    remember(60)

    loaded = it.catalog.load_table(table)
    assert timeline.find_table_as_of(loaded, began) is None
    for moment, records in held:
        standing = timeline.find_table_as_of(loaded, moment)
        assert standing is not None
        (through,) = standing.through.values()
        assert dict(through.next_offsets) == {0: records // 2, 1: records // 2}, (moment, records)
        assert standing.totals["records"] == records
        rows = loaded.scan(snapshot_id=standing.snapshot_id).to_arrow().to_pylist()
        assert {(r["_kafka_partition"], r["_kafka_offset"]) for r in rows} == {
            (p, o) for p in (0, 1) for o in range(records // 2)
        }

    def ready() -> dict[str, readiness.ReadinessCheck]:
        return {line.subject: line for line in readiness.check_table(it.contract_of(table), it.contracts, it.catalog)}

    told = ready()
    assert (
        told["Raw records for a rollback"].ready
        and "3 batches since the restore point" in told["Raw records for a rollback"].evidence
    )
    assert told["Rollback tested"].ready and told["Restore point"].ready

    # Expiry takes the past away, and nothing is said of it any more; the present stays known.
    time.sleep(1.1)
    done = maintain.maintain_tables(
        maintain.MaintenanceRun(it.context("expire"), it.contracts, Action.EXPIRE),
        [table],
        deadline=time.monotonic() + 600,
    )
    assert [e.state for e in done] == ["done"], done
    loaded = it.catalog.load_table(table)
    assert len(list(snapshots.ancestors(loaded.metadata))) < 6
    assert timeline.find_table_as_of(loaded, held[0][0]) is None
    last = timeline.find_table_as_of(loaded, now())
    assert last is not None and last.totals["records"] == 60
    assert ready()["Restore point"].ready
    longer = it.contract_of(table).model_copy(update={"maintenance": Maintenance()})
    line = {x.subject: x for x in readiness.check_table(longer, it.contracts, it.catalog)}["Restore point"]
    assert line.ready is False and "the rollback window is 5d" in line.evidence
    happened = timeline.read_events(it.catalog, began, [it.contract_of(table)])
    assert_measured(happened, now() - began)
    assert {e.lane for e in happened} == {
        Lane.STAGED, Lane.PUBLISHED, Lane.OPERATOR, Lane.SCHEMA, Lane.FILES, Lane.MAINTENANCE,
    }  # fmt: skip
    # What the snapshots tell goes with them.
    made = {e.snapshot_id for e in happened if e.lane == Lane.FILES}
    assert made <= {s.snapshot_id for s in loaded.metadata.snapshots}
