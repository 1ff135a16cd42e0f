"""(l) Groups with `schedule: on_data`: the time until sent records are in the table, and the price of waiting."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from bench import feed, trigger
from bench.lab import Lab, judge, say

BURSTS, GROUPS, IDLE_S = 4, 100, 120.0
SETTINGS = "defaults: {schedule: on_data, on_data: {min_records: 1000, max_wait: 5s}}\n"


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:  # noqa: ARG001
    """Send bursts of records to one group's topic, and let many groups wait for records that don't come."""
    count = 10 if quick else GROUPS
    say(f"\n(l) on_data, bursts of {trigger.RECORDS:,} records, and {count} waiting groups")
    with trigger.services(lab, [trigger.TABLE], SETTINGS) as home:
        for number in range(2 if quick else BURSTS):
            judge(f"burst {number + 1}: seconds from sent to in the table", _burst(home, number), most=15)
    with trigger.services(lab, [f"db.wait{n:03d}" for n in range(count)], SETTINGS) as home:
        judge(f"{count} waiting groups: per cent of a core in the triggerer", 100 * _idle(home, count), most=1)


def _burst(home: Path, number: int) -> float:
    """Send a burst when no run is under way; return the seconds until the table has it."""
    from sluice.iceberg import catalog as iceberg_catalog

    env, airflow = trigger.connect(home)
    if number == 0:
        feed.create(env["KAFKA_BOOTSTRAP_SERVERS"], [trigger.TOPIC])
        airflow.wait_for_dag(trigger.DAG, tables={trigger.TABLE})
        airflow.pause(trigger.DAG, False)
    _wait_until_idle(airflow)
    lake = iceberg_catalog.load()
    before = lake.load_table(trigger.TABLE).metadata.current_snapshot_id if number else None
    pick = random.Random(number)
    keys = (pick.randrange(100_000) for _ in range(trigger.RECORDS))
    feed.send(env["KAFKA_BOOTSTRAP_SERVERS"], trigger.TOPIC, ((k, number) for k in keys))
    sent = time.time()
    while time.time() < sent + trigger.END:
        if lake.table_exists(trigger.TABLE):
            metadata = lake.load_table(trigger.TABLE).metadata
            if metadata.current_snapshot_id not in (before, None):
                return metadata.last_updated_ms / 1000 - sent
        time.sleep(0.2)
    raise SystemExit(f"the burst was not in the table within {trigger.END:.0f} s")


def _wait_until_idle(airflow: Any) -> None:
    """Wait until no run is under way, and has not been for a while: the trigger starts no other run beside one."""
    quiet = 0
    while quiet < 10:
        found = airflow.request("GET", f"/api/v2/dags/{trigger.DAG}/dagRuns?state=running&state=queued")
        quiet = 0 if found["dag_runs"] else quiet + 1
        time.sleep(1)


def _idle(home: Path, count: int) -> float:
    """Unpause all DAGs; return the share of a core that the triggerer takes while nothing is sent."""
    import psutil

    from sluice.embedded.home import Home
    from sluice.embedded.state import load_state

    env, airflow = trigger.connect(home)
    names = [f"wait{n:03d}" for n in range(count)]
    feed.create(env["KAFKA_BOOTSTRAP_SERVERS"], names)
    for name in names:
        airflow.wait_for_dag(f"ingest_{name}", tables={f"db.{name}"})
        airflow.pause(f"ingest_{name}", False)
    time.sleep(60)  # until Airflow has parsed the DAGs again and started the triggers
    triggerer = psutil.Process(load_state(Home.at(home)).services["triggerer"].process.pid)
    before = _cpu(triggerer)
    time.sleep(IDLE_S)
    return (_cpu(triggerer) - before) / IDLE_S


def _cpu(process: Any) -> float:
    return float(sum(sum(p.cpu_times()[:2]) for p in [process, *process.children(recursive=True)]))
