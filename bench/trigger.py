"""(c) The time from a DAG's trigger to the committed snapshot, for 1,000 records and one spark-submit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from bench import feed
from bench.lab import COLUMNS, Lab, say

RECORDS = 1_000
TOPIC, TABLE, DAG = "trigger", "db.trigger", "ingest_bench"
GROUPS = "bench: {schedule: null, spark: {connection: spark_default, driver_memory: 2g}}\n"
END = 240.0
NAMES = ("total", "Airflow", "JVM and session", "Spark work", "commits", "until the run ended")


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:  # noqa: ARG001
    """Start the embedded stack, run its DAG a few times and measure the parts; the first run fills caches."""
    say(f"\n(c) trigger to committed snapshot, {RECORDS:,} records, one submit (target at most 20 s, aim 12)")
    with stack(lab) as run:
        header()
        for _ in range(2 if quick else 4):
            run()


def header() -> None:
    """Print the names of the columns that each run prints."""
    say(f"    {'run':6}" + "".join(f"{name:>22}" for name in NAMES))


@contextmanager
def stack(lab: Lab) -> Iterator[Callable[[], dict[str, float]]]:
    """Run an embedded stack with one DAG; yields a function that sends records and runs the DAG once."""
    with services(lab, [TABLE], GROUPS) as home:
        yield _runner(home)


@contextmanager
def services(lab: Lab, tables: list[str], groups: str) -> Iterator[Path]:
    """Run an embedded stack; yields its home.

    Args:
        lab: The place for measurements.
        tables: Names of upsert tables, each of the topic and the group of its last name; `TABLE` of group `bench`.
        groups: The text of `groups.yaml`.
    """
    home = lab.folder / f"stack-{len(tables)}"
    contracts = home / "contracts"
    contracts.mkdir(parents=True)
    for table in tables:
        name = table.rpartition(".")[2]
        body = {"table": table, "topic": name, "group": "bench" if table == TABLE else name, "owner": "bench"}
        body |= {"columns": COLUMNS, "mode": "upsert", "identifier": ["id"]}  # type: ignore[dict-item]
        (contracts / f"{name}.yaml").write_text(json.dumps(body), encoding="utf-8")
    (contracts / "groups.yaml").write_text(groups, encoding="utf-8")
    env = {**os.environ, "SLUICE_HOME": str(home), "SLUICE_CONTRACTS": str(contracts)}
    command = [sys.executable, "-m", "sluice.embedded"]
    try:
        began = time.monotonic()
        with (lab.folder / "stack.log").open("ab") as log:
            subprocess.run([*command, "up", "--no-registry"], env=env, stdout=log, stderr=log, check=True)
        say(f"    the stack is up after {time.monotonic() - began:.0f} s")
        yield home
    finally:
        subprocess.run([*command, "down"], env=env, capture_output=True, check=False)


def connect(home: Path) -> tuple[dict[str, str], Any]:
    """Return the environment of a stack, which this process gets too, and a client of its Airflow."""
    from sluice.demo.api import AirflowClient
    from sluice.embedded.env import load_env

    env = load_env(home)
    os.environ.update({k: v for k, v in env.items() if k.startswith(("PYICEBERG_", "SLUICE_PAGES_"))})
    return env, AirflowClient(env)


def _runner(home: Path) -> Callable[[], dict[str, float]]:
    env, airflow = connect(home)
    feed.create(env["KAFKA_BOOTSTRAP_SERVERS"], [TOPIC])
    airflow.wait_for_dag(DAG, tables={TABLE})
    airflow.pause(DAG, False)
    pick = random.Random(7)
    numbers = count(1)

    def run() -> dict[str, float]:
        number = next(numbers)
        keys = [pick.randrange(100_000) for _ in range(RECORDS)]
        feed.send(env["KAFKA_BOOTSTRAP_SERVERS"], TOPIC, ((k, number * RECORDS + i) for i, k in enumerate(keys)))
        found = _one(home, airflow)
        say(f"    {number:<6}" + "".join(f"{found[name]:20.1f} s" for name in NAMES))
        return found

    return run


def _one(home: Path, airflow: Any) -> dict[str, float]:
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names

    lake = iceberg_catalog.load()
    triggered = time.time()
    run = airflow.trigger(DAG)
    while (state := airflow.run_state(DAG, run)) in ("queued", "running"):
        if time.time() > triggered + END:
            raise SystemExit(f"the run did not end within {END:.0f} s")
        time.sleep(0.2)
    ended = time.time()
    if state != "success":
        raise SystemExit(f"the run ended as {state}: {_log(home, run)[-2000:]}")
    submit = next(t for t in airflow.tasks(DAG, run) if t["task_id"] == "ingest")
    started = datetime.fromisoformat(submit["start_date"]).timestamp()
    up = _time_of_line(home, run, "Spark is up")
    commits = 0.0
    durable = 0.0
    for identifier in (table_names.staging(TOPIC), tuple(TABLE.split("."))):
        metadata = lake.load_table(identifier).metadata
        # From the snapshot's creation until main was moved to it.
        commits += (metadata.last_updated_ms - metadata.current_snapshot().timestamp_ms) / 1000  # type: ignore[union-attr]
        durable = metadata.last_updated_ms / 1000
    return {
        "total": durable - triggered,
        "Airflow": started - triggered,
        "JVM and session": up - started,
        "Spark work": durable - up - commits,
        "commits": commits,
        "until the run ended": ended - triggered,
    }


def _time_of_line(home: Path, run: str, text: str) -> float:
    """Return the time of the log line with this text, in seconds since the epoch."""
    event = next(json.loads(line) for line in _log(home, run).splitlines() if text in line)
    return datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).timestamp()


def _log(home: Path, run: str) -> str:
    """Return the log of the submit task."""
    found = sorted((home / "airflow" / "logs").glob(f"dag_id={DAG}/run_id={run}/task_id=ingest/*.log"))
    return found[-1].read_text(encoding="utf-8", errors="replace") if found else ""
