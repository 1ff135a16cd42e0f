"""Rows past a contract's retention go, none come back by a replay, and neither cursors nor other rows change."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sluice.batch import PUBLISHED_THROUGH
from sluice.iceberg import cursor, snapshots
from sluice.ledger.maintenance_table import Action, ActionResult
from sluice.maintain import assess, maintain, retention
from sluice.maintain.expiry_plan import AssessmentInputs
from sluice.plan import other_writers
from tests.support import runbook
from tests.support.backfills import backfill_request, run_backfill
from tests.support.lake import COLUMNS, Lake

AGES = [12, 11, 6, 3, 0]
"""Days before now; of each, two records."""


def expire(it: Lake, *names: str) -> dict[str, ActionResult]:
    run = maintain.MaintenanceRun(it.context("upkeep"), it.contracts, Action.EXPIRE)
    found = {e.table: e for e in maintain.maintain_tables(run, names, deadline=time.monotonic() + 600)}
    assert not [e.error for e in found.values() if e.error]
    return found


def is_due(it: Lake, table: str) -> bool:
    (found,) = assess.assess_tables(AssessmentInputs(it.catalog, it.contracts), Action.EXPIRE, names=[table])
    assert found.error is None
    return "retention" in found.steps


def days(it: Lake, table: str) -> list[int]:
    """Days before now of the rows."""
    today = datetime.now(UTC)
    return sorted(round((today - row["at"]) / timedelta(days=1)) for row in it.rows(table))


def test_rows_past_their_retention_go_and_stay_away(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    columns = [*COLUMNS[:2], {"name": "at", "type": "timestamptz"}]
    by_day = {"columns": columns, "partition_by": ["day(at)"]}
    merged = {"columns": columns, "mode": "upsert"}
    log, state = it.contract(**by_day), it.contract(**merged)
    now = datetime.now(UTC)

    def send(n: int, age: int) -> None:
        it.send([(n % 2, f"k{n}", {"n": n, "at": (now - timedelta(days=age)).isoformat()})])

    for n, age in enumerate(each for each in AGES for _ in range(2)):
        send(n, age)
    it.run()
    assert days(it, log) == days(it, state) == sorted(AGES * 2)
    assert not is_due(it, log)

    keep: dict[str, object] = {"retention": {"column": "at", "keep": "5d"}}
    it.contract(table=log, **by_day, **keep)
    it.plan()
    assert not is_due(it, log)  # nothing is deleted before somebody has approved it
    keep["schema_policy"] = {"change_retention": "auto"}
    it.contract(table=log, **by_day, **keep)
    it.contract(table=state, **merged, **keep)
    it.plan()
    before = {name: cursor.read_table_cursor(it.catalog.load_table(name)) for name in (log, state)}
    assert is_due(it, log) and is_due(it, state)
    shown = runbook.run_command(it, "maintain run expire_snapshots TABLE --dry-run", TABLE=log)
    assert f"due  {log}: rows with at before" in shown and "up to 6 rows in 3 files" in shown
    expire(it, log, state)
    for name in (log, state):
        table = it.catalog.load_table(name)
        assert days(it, name) == [0, 0, 3, 3]
        assert cursor.read_table_cursor(table) == before[name]
        assert other_writers.describe_commits(table, it.contract_of(name)) == ""
        assert not is_due(it, name)
    head = it.catalog.load_table(log).current_snapshot()
    assert head is not None
    summary = snapshots.summary(head)
    # Whole files, by metadata alone.
    assert summary["sluice.step"] == retention.RETENTION_STEP and PUBLISHED_THROUGH not in summary
    assert "added-delete-files" not in summary and int(summary["deleted-records"]) == 6

    # Records that are too old become no rows, and an expired version takes the row of its key away.
    send(50, 9)
    send(8, 7)
    send(51, 1)
    outcomes = it.run()
    assert {each["state"] for each in outcomes.values()} == {"published"}
    assert days(it, log) == [0, 0, 1, 3, 3]
    assert days(it, state) == [0, 1, 3, 3]
    assert not it.quarantined(log)
    run_backfill(it, backfill_request(log, {0: (0, 5), 1: (0, 5)}))
    run_backfill(it, backfill_request(state, {0: (0, 5), 1: (0, 5)}), "another")
    assert days(it, log) == [0, 0, 1, 3, 3]
    assert days(it, state) == [0, 1, 3, 3]


def test_spark_deletes_whole_files_without_the_sessions_properties(lake: Callable[..., Lake]) -> None:
    """Once it has them, `compat.delete_whole_files` is not needed."""
    it = lake()
    it.create_topic(1)
    table = it.contract()
    it.send([(0, "k", {"n": 1})])
    it.run()
    with it.context().session({"sluice.step": "test"}) as session:
        session.sql(f"DELETE FROM lake.{table} WHERE n < 5")
    head = it.catalog.load_table(table).current_snapshot()
    assert head is not None and "sluice.step" not in snapshots.summary(head)
    assert it.rows(table) == []
