"""A group with `schedule: continuous`: records and asset events arrive while the DAG run goes on; the next follows."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.batch import STEP
from sluice.iceberg import snapshots
from sluice.offsets import decode_ranges
from tests.support.airflow_stack import AirflowStack, make_records

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

DAG, TABLE = "ingest_steady", "steady.orders"


def runs(stack: AirflowStack) -> list[dict[str, Any]]:
    """The DAG's runs, oldest first."""
    found: list[dict[str, Any]] = stack.airflow.request("GET", f"/api/v2/dags/{DAG}/dagRuns?order_by=run_after")[
        "dag_runs"
    ]
    return found


def events(stack: AirflowStack) -> list[dict[str, Any]]:
    """What the table's asset events say, oldest first; they come from its watcher."""
    found = stack.airflow.request("GET", "/api/v2/assets/events?limit=100&order_by=timestamp")["asset_events"]
    mine = [each for each in found if each["name"] == TABLE]
    assert {each["source_dag_id"] for each in mine} <= {None}
    return [each["extra"]["payload"] for each in mine]


def has_watcher(stack: AirflowStack) -> bool:
    """Whether the table's watcher has begun."""
    found = stack.airflow.request("GET", f"/api/v2/assets?name_pattern={TABLE}")["assets"]
    stores = [stack.airflow.request("GET", f"/api/v2/assets/{each['id']}/state-store") for each in found]
    return any(each["total_entries"] for each in stores)


def test_records_and_events_arrive_while_the_run_goes_on(stack: AirflowStack) -> None:
    stack.airflow.wait_for_dag(DAG, tables={TABLE})
    stack.wait_until(lambda: has_watcher(stack), every=1.0)
    stack.airflow.pause(DAG, False)
    try:
        for first in (0, 50, 100):
            stack.send(TABLE, make_records(first, 50))
            expected = list(range(first + 50))
            stack.wait_until(
                lambda expected=expected: stack.catalog.table_exists(TABLE) and stack.ids(TABLE) == expected
            )
            stack.wait_until(lambda first=first: sum(each["records"] for each in events(stack)) == first + 50)
            assert [each["state"] for each in runs(stack)] == ["running"]
        # The second run has nothing to read, stays as long, and ends green. Tasks of a paused DAG would not be started.
        ended = ("success", "failed")
        stack.wait_until(lambda: [each["state"] in ended for each in runs(stack)[:2]] == [True, True], every=1.0)
    finally:
        stack.airflow.pause(DAG, True)
    first, second = runs(stack)[:2]
    for run, state in ((first, "success"), (second, "skipped")):
        tasks = {t["task_id"]: t["state"] for t in stack.airflow.tasks(DAG, run["dag_run_id"])}
        assert (tasks["ingest"], tasks["settle"], tasks[TABLE]) == ("success", "success", state)

    published = [
        snapshot.snapshot_id
        for snapshot in reversed(list(snapshots.ancestors(stack.catalog.load_table(TABLE).metadata)))
        if snapshots.summary(snapshot).get(STEP) == "publish"
    ]
    found = events(stack)
    assert [each["snapshot_id"] for each in found] == published
    assert len(found) >= 3
    assert {(each["kind"], each["run_id"], each["rejected"]) for each in found} == {("ingest", first["dag_run_id"], 0)}
    batches = [seq for each in found for seq in each["batches"][TABLE]]
    assert batches == list(range(1, len(batches) + 1))
    ends: dict[int, int] = {}
    for ranges in (decode_ranges(text) for each in found for text in each["ranges"][TABLE]):
        for partition, offsets in ranges.items():
            assert offsets.start == ends.get(partition, 0)
            ends[partition] = offsets.end
    assert sum(ends.values()) == 150
