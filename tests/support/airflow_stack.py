"""The embedded stack for tests of the DAGs: its groups and contracts, and methods that trigger and inspect runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import jwt
import psutil
import requests
from confluent_kafka import Producer
from pyiceberg.catalog import Catalog, load_catalog

from sluice.demo.api import AirflowClient
from tests.support.services.postgres import Postgres

PATIENCE_S = 600.0
CONTRACT = """\
table: {table}
topic: {topic}
group: {group}
owner: tests
columns:
  - {{name: id, type: long, required: true}}
"""
UPSERT_CONTRACT = """\
table: {table}
topic: {topic}
group: {group}
owner: tests
mode: upsert
identifier: [id]
columns:
  - {{name: id, type: string, source: $key}}
  - {{name: n, type: long}}
"""
# The tables by group; a topic has its table's name.
GROUPS = {
    "plain": ["plain.orders"],
    "kept": ["kept.orders"],
    "calm": ["calm.orders", "calm.latest"],
    "mixed": ["mixed.good", "mixed.bad"],
    "killed": ["killed.orders"],
    "reviewed": ["reviewed.orders"],
    "prompt": ["prompt.orders"],  # runs by itself when there are unread records
    "steady": ["steady.orders"],  # continuous
}
# Topics of one contract with a pattern, also in group `mixed`; Airflow learns of their tables when a run is planned.
PATTERN_TOPICS = ["many-good", "many-bad"]
# The contracts other than `CONTRACT`.
CONTRACT_BY_TABLE = {"calm.latest": UPSERT_CONTRACT}
# Further settings by table.
EXTRA_YAML = {
    "kept.orders": (
        "maintenance: {min_input_files: 2, min_snapshots: 1, snapshot_age: 1s, staging_retention: 1s}\n"
        "limits: {records_per_batch: 100, batches_per_commit: 1}\n"
    ),
    "killed.orders": "errors: {max_ratio: 0.5}\n",
    "steady.orders": "maintenance: {snapshot_age: 1h, min_input_files: 2}\n",
    "mixed.good": "expectations: [{type: expect_column_values_to_be_between, column: id, min_value: 0}]\n",
}
MAIL_NOTIFIER = {
    "notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
    "arguments": {
        "from_email": "sluice@example.org",
        "to": "ops@example.org",
        "subject": "Sluice: {{ incident.title }}",
        "html_content": "{{ incident.html }}",
    },
}


class AirflowStack:
    """A running stack."""

    def __init__(self, env: dict[str, str], database: Postgres | None) -> None:
        self.env = env
        self.database = database  # Airflow's; None: SQLite
        self.airflow = AirflowClient(env)
        self.catalog: Catalog = load_catalog(
            "lake",
            type="sql",
            uri=env["PYICEBERG_CATALOG__LAKE__URI"],
            warehouse=env["PYICEBERG_CATALOG__LAKE__WAREHOUSE"],
        )

    def send(self, topic: str, values: Sequence[bytes | None], keys: Iterable[bytes | None] = repeat(None)) -> None:
        producer = Producer({"bootstrap.servers": self.env["KAFKA_BOOTSTRAP_SERVERS"]})
        for value, key in zip(values, keys, strict=False):
            producer.produce(topic, value=value, key=key)
        assert producer.flush(30) == 0

    def delete_rows(self, table: str, where: str) -> None:
        """Delete rows from a table, for a backfill to restore."""
        with self.catalog.load_table(table).transaction() as transaction:
            transaction.set_properties({"write.delete.mode": "copy-on-write"})  # PyIceberg supports no other
            transaction.delete(where)

    def start(self, group: str) -> str:
        return self.trigger(f"ingest_{group}", set(GROUPS[group]))

    def trigger(self, dag: str, tasks: set[str], **form: Any) -> str:
        self.airflow.wait_for_dag(dag, tables=tasks)
        self.airflow.pause(dag, False)
        return self.airflow.trigger(dag, **form)

    def finish(self, group: str, run: str) -> tuple[str, dict[str, str]]:
        """Wait for a run; return its state and its tasks' states, without the tasks of the schema review."""
        state, tasks = self.end(f"ingest_{group}", run)
        return state, {t["task_id"]: t["state"] for t in tasks if t["task_id"] not in ("reviews", "ask")}

    def end(self, dag: str, run: str) -> tuple[str, list[dict[str, Any]]]:
        """Wait for a run; return its state and its tasks."""
        # Once a second: each request is work for the API server, which shares two cores with the run.
        self.wait_until(lambda: self.airflow.run_state(dag, run) in ("success", "failed"), every=1.0)
        return self.airflow.run_state(dag, run), self.airflow.tasks(dag, run)

    def maintain(self, action: str, **form: Any) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        """Run a maintenance DAG; return its tasks' states, and by table the state and the log of its task."""
        dag = f"maintain_{action}"
        run = self.trigger(dag, {"assess", "table"}, **form)
        state, tasks = self.end(dag, run)
        plain = {t["task_id"]: t["state"] for t in tasks if t["task_id"] != "table"}
        folder = Path(self.env["AIRFLOW_HOME"], "logs", f"dag_id={dag}", f"run_id={run}", "task_id=table")
        by_table = {}
        for each in (t for t in tasks if t["task_id"] == "table"):
            log = folder / f"map_index={each['map_index']}" / "attempt=1.log"
            by_table[each["rendered_map_index"]] = (each["state"], log.read_text() if log.exists() else "")
        assert state == "success", (plain, by_table)
        return plain, by_table

    def run_dag(self, dag: str, task: str, **form: Any) -> tuple[str, dict[str, str], str]:
        """Run a DAG with params; return the run's state, its tasks' states, and the log of one task."""
        run = self.trigger(dag, {task}, **form)
        state, tasks = self.end(dag, run)
        return state, {t["task_id"]: t["state"] for t in tasks}, self.log_file(dag, run, task).read_text()

    def token(self, role: str | None, secret: str | None = None) -> str:
        """Return the administrator's token, changed to another role and signed with `secret` if given."""
        own = self.airflow.token
        claims = {**jwt.decode(own, options={"verify_signature": False}), "role": role}
        algorithm = jwt.get_unverified_header(own)["alg"]
        return jwt.encode(claims, secret or self.env["AIRFLOW__API_AUTH__JWT_SECRET"], algorithm)

    def ask(self, path: str, role: str | None = "viewer", *, token: str | None = None) -> requests.Response:
        """Request a page of Sluice as a user with that role."""
        headers = {"Authorization": f"Bearer {token or self.token(role)}"}
        return requests.get(f"{self.env['SLUICE_PAGES_URL']}/sluice{path}", headers=headers, timeout=30)

    def events(self, group: str) -> list[dict[str, Any]]:
        return list(self.airflow.request("GET", f"/api/v2/assets/events?source_dag_id=ingest_{group}")["asset_events"])

    def log(self, group: str, run: str, task: str, attempt: int = 1) -> str:
        return self.log_file(f"ingest_{group}", run, task, attempt).read_text()

    def log_file(self, dag: str, run: str, task: str, attempt: int = 1) -> Path:
        """Return the path of a task's log."""
        folder = Path(self.env["AIRFLOW_HOME"], "logs", f"dag_id={dag}", f"run_id={run}", f"task_id={task}")
        return folder / f"attempt={attempt}.log"

    def ids(self, table: str) -> list[int]:
        return sorted(self.catalog.load_table(table).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())

    def drivers(self, name: str | None = None) -> list[psutil.Process]:
        """Return the Spark drivers of this stack that run, or those of the application with this name."""
        return [p for p in psutil.process_iter() if _is_driver(p, name) and self.owns(p)]

    def owns(self, process: psutil.Process) -> bool:
        """Whether a process belongs to this stack."""
        try:
            return process.environ().get("SLUICE_HOME") == self.env["SLUICE_HOME"]
        except (psutil.Error, OSError):
            return False

    @contextmanager
    def pool_size(self, number: int) -> Iterator[None]:
        """Set the size of the Spark pool for a `with` block."""
        path = "/api/v2/pools/sluice_spark"
        before = self.airflow.request("GET", path)
        pool = {"pool": before["name"], "include_deferred": before["include_deferred"]}
        self.airflow.request("PATCH", f"{path}?update_mask=slots", {**pool, "slots": number})
        try:
            yield
        finally:
            self.airflow.request("PATCH", f"{path}?update_mask=slots", {**pool, "slots": before["slots"]})

    @staticmethod
    def wait_until(condition: Callable[[], Any], every: float = 0.5) -> Any:
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit:
            if found := condition():
                return found
            time.sleep(every)
        raise AssertionError(f"not within {PATIENCE_S:.0f} s")


def command_line(process: psutil.Process) -> list[str]:
    """Return a process's arguments; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_driver(process: psutil.Process, name: str | None) -> bool:
    command = command_line(process)
    return (
        bool(command)
        and "java" in Path(command[0]).name
        and "org.apache.spark.deploy.SparkSubmit" in command
        and "org.apache.spark.launcher.Main" not in command  # it only builds the driver's command line
        and (name is None or f"sluice-{name}" in command)
    )


def make_records(first: int, count: int) -> list[bytes]:
    return [json.dumps({"id": n}).encode() for n in range(first, first + count)]
