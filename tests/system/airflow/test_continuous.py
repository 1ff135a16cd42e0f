"""A group with `schedule: continuous`: records land while the DAG run goes on, and the next run follows at once."""

from __future__ import annotations

from typing import Any

import pytest

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
    found = stack.airflow.request("GET", "/api/v2/assets/events?limit=100&order_by=timestamp")["asset_events"]
    return [each for each in found if each["name"] == TABLE]


def test_records_land_while_the_run_goes_on(stack: AirflowStack) -> None:
    stack.airflow.wait_for_dag(DAG, tables={TABLE})
    stack.airflow.pause(DAG, False)
    try:
        for first in (0, 50, 100):
            stack.send(TABLE, make_records(first, 50))
            expected = list(range(first + 50))
            stack.wait_until(
                lambda expected=expected: stack.catalog.table_exists(TABLE) and stack.ids(TABLE) == expected
            )
            assert [each["state"] for each in runs(stack)] == ["running"]
        stack.wait_until(lambda: len(runs(stack)) == 2, every=1.0)
    finally:
        stack.airflow.pause(DAG, True)
    first, second = runs(stack)
    assert first["state"] == "success"
    (event,) = events(stack)
    assert event["extra"]["records"] == 150
    assert len(event["extra"]["batches"][TABLE]) >= 3

    # The second run has nothing to read, stays as long, and ends green.
    stack.wait_until(lambda: runs(stack)[1]["state"] in ("success", "failed"), every=1.0)
    tasks = {t["task_id"]: t["state"] for t in stack.airflow.tasks(DAG, second["dag_run_id"])}
    assert (tasks["ingest"], tasks["settle"], tasks[TABLE]) == ("success", "success", "skipped")
