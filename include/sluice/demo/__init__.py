"""`make demo`: sends records to Kafka, lets Airflow and Spark ingest them into Iceberg tables, and checks every value.

Starts the stack of SLUICE_HOME (default `.sluice`) if it does not run, and stops it again; `make up` then has the data.
Each run first removes the topics and tables of an earlier demo, and nothing else.
"""

from __future__ import annotations

import os
import shlex
import sys
import time

from sluice.contract import folder as contract_folder
from sluice.demo import reset, verify
from sluice.demo.api import AirflowClient
from sluice.demo.context import DAG, GROUP, DemoContext
from sluice.demo.progress import follow_runs
from sluice.demo.report import print_report
from sluice.demo.source import KEYS, TOPICS, Sender, SendError
from sluice.embedded import stack
from sluice.embedded.caller_env import ignored_variables
from sluice.embedded.env import load_env
from sluice.embedded.failure import StackError, exit_on_signals
from sluice.embedded.home import Home
from sluice.embedded.status import KAFKA
from sluice.iceberg import catalog as catalogs

TABLES = tuple(f"{GROUP}.{topic}" for topic in TOPICS)


class ElapsedPrinter:
    """Prints lines that begin with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print a line."""
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)


def main(*, keep: bool = False) -> int:
    """Run the demo.

    Args:
        keep: Whether the stack keeps running at the end.

    Returns:
        The exit code: 0 if every table equals the input, 1 if not or if the demo failed, 130 if it was interrupted.
    """
    say = ElapsedPrinter()
    exit_on_signals()
    try:
        home = Home.default()
        ran_before = stack.running_services(home)
        stack.up(home, registry=False)
        try:
            return _demo(home, say)
        finally:
            if keep or ran_before >= {KAFKA, *stack.AIRFLOW}:
                say("the stack keeps running; make down stops it")
            else:
                stack.down(home, keep=ran_before)
                say("make up starts the stack with the same data and prints Airflow's address; then:")
                print(f"  source {shlex.quote(str(home.env_file))}\n  sluice status")
    except (StackError, SendError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _demo(home: Home, say: ElapsedPrinter) -> int:
    demo = _connect(home)
    demo.airflow.wait_for_dag(DAG, tables=set(TABLES))
    demo.airflow.pause(DAG, True)
    say("removing the topics and tables of an earlier demo, and creating the topics")
    reset.reset_demo(demo)
    sender = Sender(demo.bootstrap)
    say("sending flights, planes and airports to Kafka")
    sender.send_flights()
    sender.send_registers()
    say("in Kafka: " + ", ".join(f"{count:,} {topic}" for topic, count in sender.sent.records.items()))
    demo.airflow.pause(DAG, False)
    runs = follow_runs(demo, TABLES, say)
    say("second wave: sending changed planes and airports, and tombstones for deleted ones")
    sender.send_changes()
    touched = sender.sent.touched
    say("in Kafka: " + ", ".join(f"{touched[t][0]:,} {t} changed and {touched[t][1]:,} deleted" for t in KEYS))
    runs |= follow_runs(demo, TABLES, say)
    say("comparing every row and value of the tables with the records that were sent")
    problems = verify.find_differences(demo.catalog, demo.contracts, sender.sent)
    problems = print_report(demo, runs, problems, sender.sent)
    failed = sorted(run for run, tasks in runs.items() if any(t["state"] == "failed" for t in tasks))
    for run in failed:
        print(f"  run {run} has failed tasks")
    good = not failed and not any(problems.values())
    say("every row, value and offset is as sent" if good else "the tables differ: see the lines marked with !")
    return 0 if good else 1


def _connect(home: Home) -> DemoContext:
    env = load_env(home.root)
    # Otherwise the demo could drop tables of the same names in the user's own catalog.
    for name in ignored_variables():
        del os.environ[name]
    os.environ.update(env)
    contracts = contract_folder.load_contracts()
    if missing := [name for name in TABLES if name not in contracts.tables]:
        raise StackError(
            f"{contracts.folder} has no contract for {', '.join(missing)}",
            next_step="run the demo without SLUICE_CONTRACTS: it needs the contracts of the repository",
        )
    return DemoContext(home, catalogs.load(), contracts, env["KAFKA_BOOTSTRAP_SERVERS"], AirflowClient(env))
