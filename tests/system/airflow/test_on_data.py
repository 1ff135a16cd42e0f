"""A group with `schedule: on_data` runs when its topics have unread records, once per burst, and not otherwise."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.airflow_stack import AirflowStack, make_records

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

DAG = "ingest_prompt"


def runs(stack: AirflowStack) -> list[dict[str, Any]]:
    found = stack.airflow.request("GET", f"/api/v2/dags/{DAG}/dagRuns?order_by=run_after")["dag_runs"]
    return [each for each in found if each["run_type"] == "asset_triggered"]


def all_ended(stack: AirflowStack) -> bool:
    return all(each["state"] in ("success", "failed") for each in runs(stack))


def test_unread_records_start_one_run_for_each_burst(stack):
    stack.airflow.wait_for_dag(DAG, tables={"prompt.orders"})
    stack.airflow.pause(DAG, False)
    try:
        for first in (0, 50, 100):
            stack.send("prompt.orders", make_records(first, 50))
            time.sleep(1)
        began = time.monotonic()
        stack.wait_until(
            lambda: stack.catalog.table_exists("prompt.orders") and stack.ids("prompt.orders") == list(range(150))
        )
        print(f"in the table {time.monotonic() - began:.1f} s after the last record was sent")
        stack.wait_until(lambda: all_ended(stack))
        assert [each["state"] for each in runs(stack)] == ["success"] * len(runs(stack))
        assert 1 <= len(runs(stack)) <= 2  # a run may begin with the first records of the burst
        before = len(runs(stack))

        # Fewer records than min_records: the run begins after max_wait.
        stack.send("prompt.orders", make_records(150, 10))
        stack.wait_until(lambda: stack.ids("prompt.orders") == list(range(160)))
        stack.wait_until(lambda: all_ended(stack))
        assert len(runs(stack)) == before + 1

        # Nothing unread, no run.
        time.sleep(10)
        assert len(runs(stack)) == before + 1
    finally:
        stack.airflow.pause(DAG, True)
