"""Follows the DAG's runs: prints task states as they change, and the rows of each table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.demo.context import DAG, DemoContext
from sluice.embedded.failure import StackError
from sluice.iceberg import snapshots, tables

RUN_PATIENCE_S = 900.0
Runs = dict[str, list[dict[str, Any]]]


def follow_runs(demo: DemoContext, names: Iterable[str], say: Callable[[str], None]) -> Runs:
    """Trigger a run of the DAG, and wait until it and all runs that the schedule starts meanwhile have ended.

    Returns:
        The task instances by run.

    Raises:
        StackError: The runs do not end in time.
    """
    airflow = demo.airflow
    runs: Runs = {airflow.trigger(DAG): []}
    say(f"triggered {DAG}: {next(iter(runs))}")
    shown: dict[tuple[str, str], str] = {}
    rows: dict[str, int] = {}
    until = time.monotonic() + RUN_PATIENCE_S
    while time.monotonic() < until:
        opened = airflow.open_runs(DAG)
        for run in dict.fromkeys([*runs, *opened]):
            runs[run] = airflow.tasks(DAG, run)
            for task in sorted(runs[run], key=lambda t: t["start_date"] or ""):
                state = str(task["state"] or "")
                if state and shown.get((run, task["task_id"])) != state:
                    shown[run, task["task_id"]] = state
                    if state not in ("scheduled", "queued"):
                        took = f" after {task['duration']:.1f} s" if task["duration"] and state != "running" else ""
                        say(f"  {run.split('__')[0]:9} {task['task_id']:20} {state}{took}")
        now = {name: count for name in names if (count := row_count(demo.catalog, name)) is not None}
        if now != rows:
            rows = now
            say("  rows      " + ", ".join(f"{name} {count:,}" for name, count in rows.items()))
        if not opened:
            return runs
        time.sleep(1.5)
    raise StackError(f"{DAG} did not end within {RUN_PATIENCE_S:.0f} s; the logs are in SLUICE_HOME/airflow/logs")


def row_count(catalog: Catalog, name: str) -> int | None:
    """Return a table's row count from its current snapshot's summary, without reading data; None without a snapshot."""
    table = tables.load(catalog, tuple(name.split(".")))
    head = table.metadata.current_snapshot() if table else None
    if head is None:
        return None
    summary = snapshots.summary(head)
    return int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
