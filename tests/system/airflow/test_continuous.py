"""A group with `schedule: continuous`: records and asset events arrive while the DAG run goes on; the next follows.

Its application gives maintenance and backfills their turn.
"""

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


def task_state(stack: AirflowStack, run: int, task: str) -> str:
    """The state of a task in one of the DAG's runs."""
    states = {each["task_id"]: each["state"] for each in stack.airflow.tasks(DAG, runs(stack)[run]["dag_run_id"])}
    return str(states[task])


def end_last_run(stack: AirflowStack) -> None:
    """End the run that has followed, and wait until other tests have the pool's slot."""
    path = f"/api/v2/dags/{DAG}/dagRuns/{runs(stack)[-1]['dag_run_id']}"
    stack.airflow.request("PATCH", path, {"state": "failed"})
    stack.wait_until(lambda: stack.airflow.request("GET", "/api/v2/pools/sluice_spark")["occupied_slots"] == 0)


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
        # With one slot in the pool, each application ends for them, long before its `stay`. The second has nothing to
        # read, and ends green. Tasks of a paused DAG would not be started.
        _, tables = stack.maintain("rewrite_data_files", tables=[TABLE])
        assert tables[TABLE][0] == "success"
        stack.wait_until(lambda: runs(stack)[1:] and task_state(stack, 1, "ingest") == "running")
        ranges = {str(p): [0, 1] for p in (0, 1)}
        state, tasks, _ = stack.run_dag("backfill", "outcome", table=TABLE, ranges=ranges, why="again", dry_run=False)
        assert (state, tasks["spark_steady"]) == ("success", "success")
        stack.wait_until(lambda: [each["state"] for each in runs(stack)[:2]] == ["success", "success"], every=1.0)
    finally:
        stack.airflow.pause(DAG, True)
        end_last_run(stack)
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
