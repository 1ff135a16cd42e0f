"""`make demo`: real records through a real broker, Airflow's scheduler and Spark into Iceberg tables, and checked.

Uses the stack of SLUICE_HOME (default `.sluice`): starts it if it does not run, and then stops it again. The data
stays, so that `make up` opens it to look around. Run again, the demo first removes what it made itself, and only that.
"""

from __future__ import annotations

import os
import shlex
import sys
import time

from sluice.contract import folder as promises
from sluice.demo import reset, verify
from sluice.demo.api import Airflow
from sluice.demo.progress import follow
from sluice.demo.report import report
from sluice.demo.source import KEYS, TOPICS, Sender, SendError
from sluice.embedded import stack
from sluice.embedded.env import load_env
from sluice.embedded.failure import StackError, end_tidily
from sluice.embedded.home import Home
from sluice.embedded.inherited import foreign
from sluice.embedded.status import KAFKA
from sluice.iceberg import catalog as catalogs

GROUP = "aviation"
DAG = f"ingest_{GROUP}"
TABLES = tuple(f"{GROUP}.{topic}" for topic in TOPICS)


class Clock:
    """Prints lines with the seconds since the start in front."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print a line."""
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)


def main(*, keep: bool = False) -> int:
    """Run the demo.

    Args:
        keep: whether the stack goes on running at the end.

    Returns:
        0 if every table is as the input says; 1 if not, or if the demo could not be run.
    """
    say = Clock()
    end_tidily()
    try:
        home = Home.default()
        ran_before = stack.alive(home)
        stack.up(home, registry=False)
        try:
            return _demo(home, say)
        finally:
            if keep or ran_before >= {KAFKA, *stack.AIRFLOW}:
                say("the stack goes on running; make down stops it")
            else:
                stack.down(home, but=ran_before)
                say("make up opens the same data again, and says where Airflow's pages are; then:")
                print(f"  source {shlex.quote(str(home.env_file))}\n  {sys.executable} -m sluice status")
    except (StackError, SendError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _demo(home: Home, say: Clock) -> int:
    env = load_env(home.root)
    for name in foreign():  # of the user's own catalog, of whose tables some have the names that are dropped here
        del os.environ[name]
    os.environ.update(env)
    found = promises.load()
    if missing := [name for name in TABLES if name not in found.tables]:
        raise StackError(
            f"{found.folder} holds no contract for {', '.join(missing)}",
            way_out="run the demo without SLUICE_CONTRACTS: it needs the contracts of the repository",
        )
    catalog = catalogs.load()
    airflow = Airflow(env)
    airflow.wait_for_dag(DAG, tables=set(TABLES))
    airflow.pause(DAG, True)
    say("making the topics, and removing what an earlier demo left")
    bootstrap = env["KAFKA_BOOTSTRAP_SERVERS"]
    reset.fresh(home, catalog, found, bootstrap, airflow, DAG)
    sender = Sender(bootstrap)
    say("sending flights, planes and airports to Kafka")
    sender.flights()
    sender.registers()
    say("in Kafka: " + ", ".join(f"{count:,} {topic}" for topic, count in sender.sent.records.items()))
    airflow.pause(DAG, False)
    runs = follow(airflow, DAG, catalog, TABLES, say)
    say("second wave: sending changed planes and airports, and tombstones for those that go")
    sender.changes()
    touched = sender.sent.touched
    say("in Kafka: " + ", ".join(f"{touched[t][0]:,} {t} changed and {touched[t][1]:,} deleted" for t in KEYS))
    runs |= follow(airflow, DAG, catalog, TABLES, say)
    say("comparing every row and value of the tables with what was sent")
    wrong = verify.differences(catalog, found, sender.sent)
    wrong = report(found, catalog, bootstrap, runs, wrong, sender.sent, TABLES)
    failed = sorted(run for run, tasks in runs.items() if any(t["state"] == "failed" for t in tasks))
    for run in failed:
        print(f"  run {run} has failed tasks")
    good = not failed and not any(wrong.values())
    say("every row, value and offset is as sent" if good else "NOT as it should be: see the lines marked with !")
    return 0 if good else 1
