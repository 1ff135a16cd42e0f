"""Follows the scheduler's runs live: task states as they change, and the rows of each table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.demo.api import Airflow
from sluice.embedded.failure import StackError
from sluice.iceberg import snapshots, tables

RUN_PATIENCE_S = 900.0
Runs = dict[str, list[dict[str, Any]]]


def follow(airflow: Airflow, dag: str, catalog: Catalog, names: Iterable[str], say: Callable[[str], None]) -> Runs:
    """Trigger a run and follow it, and whatever the schedule starts meanwhile, to the end.

    Returns:
        Per run its task instances.

    Raises:
        StackError: It takes far too long.
    """
    runs: Runs = {airflow.trigger(dag): []}
    say(f"triggered {dag}: {next(iter(runs))}")
    shown: dict[tuple[str, str], str] = {}
    rows: dict[str, int] = {}
    until = time.monotonic() + RUN_PATIENCE_S
    while time.monotonic() < until:
        opened = airflow.open_runs(dag)
        for run in dict.fromkeys([*runs, *opened]):
            runs[run] = airflow.tasks(dag, run)
            for task in sorted(runs[run], key=lambda t: t["start_date"] or ""):
                state = str(task["state"] or "")
                if state and shown.get((run, task["task_id"])) != state:
                    shown[run, task["task_id"]] = state
                    if state not in ("scheduled", "queued"):
                        took = f" after {task['duration']:.1f} s" if task["duration"] and state != "running" else ""
                        say(f"  {run.split('__')[0]:9} {task['task_id']:20} {state}{took}")
        now = {name: count for name in names if (count := row_count(catalog, name)) is not None}
        if now != rows:
            rows = now
            say("  rows      " + ", ".join(f"{name} {count:,}" for name, count in rows.items()))
        if not opened:
            return runs
        time.sleep(1.5)
    raise StackError(f"{dag} did not end within {RUN_PATIENCE_S:.0f} s; the logs are below SLUICE_HOME/airflow/logs")


def row_count(catalog: Catalog, name: str) -> int | None:
    """Rows of a table by its newest snapshot's summary, None where it has none: cheap enough to ask all the time."""
    table = tables.load(catalog, tuple(name.split(".")))
    head = table.metadata.current_snapshot() if table else None
    if head is None:
        return None
    summary = snapshots.summary(head)
    return int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
