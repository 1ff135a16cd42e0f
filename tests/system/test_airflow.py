"""Groups through a real Airflow: its scheduler, its workers, a broker, Spark. One stack for all, started once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jwt
import psutil
import pytest
import requests
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyiceberg.catalog import Catalog, load_catalog

from sluice import broker, contracts, cursor, schemas, tables
from sluice.demo.api import Airflow
from sluice.embedded import stack as stacks
from sluice.embedded.env import load_env
from sluice.embedded.home import REPOSITORY, Home
from sluice.embedded.process import end
from sluice.embedded.state import load as load_state
from sluice.model import PUBLISHED_THROUGH, RUN_ID, STEP, Batch, Through, encode_through
from tests.support.mailbox import Mailbox

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PATIENCE_S = 300.0
CONTRACT = """\
table: {table}
topic: {topic}
group: {group}
owner: tests
columns:
  - {{name: id, type: long, required: true}}
"""
# Table by group; the topic is named as the table.
GROUPS = {
    "plain": ["plain.orders"],
    "kept": ["kept.orders"],
    "calm": ["calm.orders"],
    "mixed": ["mixed.good", "mixed.bad"],
    "killed": ["killed.orders"],
    "reviewed": ["reviewed.orders"],
}
# Group `mixed` has two more, by one contract, and Airflow learns of them when a run is planned.
MANY = ["many-good", "many-bad"]
STRICT = (
    "maintenance: {min_input_files: 2, min_snapshots: 1, snapshot_age: 1s, staging_retention: 1s}\n"
    "limits: {records_per_batch: 100, batches_per_commit: 1}\n"
)
MAIL = {
    "notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
    "arguments": {
        "from_email": "sluice@example.org",
        "to": "ops@example.org",
        "subject": "Sluice: {{ incident.title }}",
        "html_content": "{{ incident.html }}",
    },
}


class Stack:
    """A running stack, and what the tests ask of it."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.airflow = Airflow(env)
        self.catalog: Catalog = load_catalog(
            "lake",
            type="sql",
            uri=env["PYICEBERG_CATALOG__LAKE__URI"],
            warehouse=env["PYICEBERG_CATALOG__LAKE__WAREHOUSE"],
        )

    def send(self, topic: str, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.env["KAFKA_BOOTSTRAP_SERVERS"]})
        for value in values:
            producer.produce(topic, value=value)
        assert producer.flush(30) == 0

    def start(self, group: str) -> str:
        return self.trigger(f"ingest_{group}", set(GROUPS[group]))

    def trigger(self, dag: str, tasks: set[str], **form: Any) -> str:
        self.airflow.wait_for_dag(dag, tables=tasks)
        self.airflow.pause(dag, False)
        return self.airflow.trigger(dag, **form)

    def finish(self, group: str, run: str) -> tuple[str, dict[str, str]]:
        """The run's state, and its tasks' states, but for those that ask about a contract which was changed."""
        state, tasks = self.end(f"ingest_{group}", run)
        return state, {t["task_id"]: t["state"] for t in tasks if t["task_id"] not in ("reviews", "ask")}

    def end(self, dag: str, run: str) -> tuple[str, list[dict[str, Any]]]:
        """The run's state, and its tasks."""
        self.until(lambda: self.airflow.run_state(dag, run) in ("success", "failed"))
        return self.airflow.run_state(dag, run), self.airflow.tasks(dag, run)

    def maintain(self, action: str) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        """Run a maintenance DAG: its tasks' states, and per table the state and the log of its task."""
        dag = f"maintain_{action}"
        run = self.trigger(dag, {"assess", "table"})
        state, tasks = self.end(dag, run)
        plain = {t["task_id"]: t["state"] for t in tasks if t["task_id"] != "table"}
        folder = Path(self.env["AIRFLOW_HOME"], "logs", f"dag_id={dag}", f"run_id={run}", "task_id=table")
        told = {}
        for each in (t for t in tasks if t["task_id"] == "table"):
            log = folder / f"map_index={each['map_index']}" / "attempt=1.log"
            told[each["rendered_map_index"]] = (each["state"], log.read_text() if log.exists() else "")
        assert state == "success", (plain, told)
        return plain, told

    def by_hand(self, dag: str, task: str, **form: Any) -> tuple[str, dict[str, str], str]:
        """Trigger a DAG with a form: the run's state, its tasks' states, and the log of one of them."""
        run = self.trigger(dag, {task}, **form)
        state, tasks = self.end(dag, run)
        folder = Path(self.env["AIRFLOW_HOME"], "logs", f"dag_id={dag}", f"run_id={run}", f"task_id={task}")
        return state, {t["task_id"]: t["state"] for t in tasks}, (folder / "attempt=1.log").read_text()

    def events(self, group: str) -> list[dict[str, Any]]:
        return list(self.airflow._ask("GET", f"/api/v2/assets/events?source_dag_id=ingest_{group}")["asset_events"])

    def log(self, group: str, run: str, task: str, attempt: int = 1) -> str:
        folder = Path(self.env["AIRFLOW_HOME"], "logs", f"dag_id=ingest_{group}", f"run_id={run}", f"task_id={task}")
        return (folder / f"attempt={attempt}.log").read_text()

    def ids(self, table: str) -> list[int]:
        return sorted(self.catalog.load_table(table).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())

    @staticmethod
    def until(true: Callable[[], Any]) -> Any:
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit:
            if found := true():
                return found
            time.sleep(0.2)
        raise AssertionError(f"not within {PATIENCE_S:.0f} s")


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as running:
        yield running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, mailbox: Mailbox) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow")
    contracts = folder / "contracts"
    contracts.mkdir()
    for group, names in GROUPS.items():
        for name in names:
            text = CONTRACT.format(table=name, topic=name, group=group)
            (contracts / f"{name}.yaml").write_text(text + (STRICT if group == "kept" else ""))
    text = CONTRACT.format(table="mixed.{topic}", topic='{pattern: "many-.*"}', group="mixed")
    (contracts / "many.yaml").write_text(text)
    (contracts / "groups.yaml").write_text(
        "defaults: {schedule: null, retries: 1, retry_delay: 2s}\n"
        "maintenance: {rewrite_data_files: null, expire_snapshots: null, remove_orphan_files: null}\n"
        f"alerts: {{schedule: null, states: [blocked], notifiers: [{json.dumps(MAIL)}]}}\n"
    )
    home = Home.at(folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_HOME", str(home.root))
        patch.setenv("SLUICE_CONTRACTS", str(contracts))
        plain = {"disable_ssl": True, "disable_tls": True}
        server = {"conn_type": "smtp", "host": "127.0.0.1", "port": mailbox.port, "extra": plain}
        patch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(server))
        try:
            # A process of its own: the services outlive it, and are not this process's children.
            subprocess.run([sys.executable, "-m", "sluice.embedded", "up"], env=command_env(), check=True, timeout=300)
            env = load_env(home.root)
            client = AdminClient({"bootstrap.servers": env["KAFKA_BOOTSTRAP_SERVERS"]})
            names = [name for group in (*GROUPS.values(), MANY) for name in group]
            for future in client.create_topics([NewTopic(name, 2, 1) for name in names]).values():
                future.result()
            yield Stack(env)
        finally:
            stacks.down(home)
            end([each.process for each in load_state(home).services.values()], load_state(home).mark, grace=5)


def command_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "include")}


def records(first: int, count: int) -> list[bytes]:
    return [json.dumps({"id": n}).encode() for n in range(first, first + count)]


def test_a_run_is_green_and_its_event_tells_offsets_and_snapshot(stack):
    stack.send("plain.orders", records(0, 100))
    run = stack.start("plain")
    state, tasks = stack.finish("plain", run)
    assert (state, set(tasks.values())) == ("success", {"success"}), tasks
    assert stack.ids("plain.orders") == list(range(100))
    (event,) = stack.events("plain")
    extra = event["extra"]
    head = stack.catalog.load_table("plain.orders").metadata.current_snapshot_id
    assert (extra["records"], extra["rejected"], extra["snapshot_id"]) == (100, 0, head)
    assert extra["batches"] == {"plain.orders": [1]}
    (ranges,) = extra["ranges"]["plain.orders"]
    assert sum(last - first for first, last in json.loads(ranges).values()) == 100
    # The task's log holds our lines and none of Spark's, which are kept in a file.
    log = stack.log("plain", run, "ingest")
    assert "publish plain.orders from plain.orders batch 1" in log
    assert "SparkContext" not in log
    assert "SparkContext" in Path(stack.env["SLUICE_HOME"], "logs", "spark-plain.log").read_text()


def test_nothing_new_is_skipped_and_starts_no_jvm(stack):
    spark_log = Path(stack.env["SLUICE_HOME"], "logs", "spark-plain.log")
    before = spark_log.stat().st_size
    state, tasks = stack.finish("plain", stack.start("plain"))
    assert state == "success"
    assert tasks.pop("plan") == "success"
    assert set(tasks.values()) == {"skipped"}, tasks
    assert spark_log.stat().st_size == before


def test_a_rollback_by_hand_and_the_next_run_publishes_again(stack):
    stack.send("plain.orders", records(100, 50))
    run = stack.start("plain")
    assert stack.finish("plain", run)[0] == "success"
    asked = {"table": "plain.orders", "before_run": run, "why": "the contract was wrong"}
    state, _, log = stack.by_hand("rollback", "rollback", **asked)
    assert state == "success"
    assert "1 snapshot(s) undone" in log
    assert "dry run" in log
    assert stack.ids("plain.orders") == list(range(150))
    state, _, log = stack.by_hand("rollback", "rollback", **asked, dry_run=False)
    assert state == "success"
    assert stack.ids("plain.orders") == list(range(100))
    state, _, log = stack.by_hand("rollback", "rollback", **asked, dry_run=False)
    assert state == "failed"
    assert "made none of main's snapshots" in log
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    assert stack.ids("plain.orders") == list(range(150))
    (row,) = [r for r in ledger(stack) if r["state"] == "rolled_back"]
    assert (row["table"], row["why"], row["who"]) == ("plain.orders", asked["why"], stack.env["SLUICE_PAGES_USER"])


def ledger(stack: Stack) -> list[dict[str, Any]]:
    return stack.catalog.load_table(tables.LEDGER).scan().to_arrow().to_pylist()


@pytest.mark.timeout(1200)
def test_maintenance_starts_spark_where_it_is_needed_and_shows_the_figure_where_not(stack):
    stack.send("kept.orders", records(0, 200))
    stack.send("calm.orders", records(0, 100))
    runs = {group: stack.start(group) for group in ("kept", "calm")}
    assert [stack.finish(group, run)[0] for group, run in runs.items()] == ["success", "success"]
    before = stack.catalog.load_table("kept.orders")
    # Two batches, or three where the producer spread the records over the partitions too unevenly.
    files = len(list(before.scan().plan_files()))
    assert files > 1
    plain, told = stack.maintain("rewrite_data_files")
    # One group needed it; the other's application was not started.
    assert (plain["spark_kept"], plain["spark_calm"]) == ("success", "skipped")
    state, log = told["kept.orders"]
    assert state == "success"
    assert f"kept.orders: done, {files} small files of" in log
    assert f"data files {files} → 1" in log
    state, log = told["calm.orders"]
    assert state == "skipped"
    assert "calm.orders: 1 data files, at most 1 small ones in a partition, 0 delete files" in log
    assert "mixed.good" not in told  # it holds nothing yet

    plain, told = stack.maintain("expire_snapshots")
    assert (plain["spark_kept"], plain["spark_calm"]) == ("success", "skipped")
    assert told["kept.orders"][0] == "success"
    assert "snapshots are not needed, the oldest is" in told["calm.orders"][1]
    after = stack.catalog.load_table("kept.orders")
    assert len(after.metadata.snapshots) < len(before.metadata.snapshots)

    plain, told = stack.maintain("remove_orphan_files")
    assert told["kept.orders"][0] == told["calm.orders"][0] == "success"

    stack.send("kept.orders", records(200, 100))
    assert stack.finish("kept", stack.start("kept"))[0] == "success"
    assert stack.ids("kept.orders") == list(range(300))


def test_one_bad_table_is_red_and_says_why_and_the_other_goes_on(stack):
    stack.send("mixed.good", records(0, 50))
    stack.send("many-good", records(0, 30))
    for bad in ("mixed.bad", "many-bad"):
        stack.send(bad, [b"{not json"] * 50)
    run = stack.start("mixed")
    state, tasks = stack.finish("mixed", run)
    assert state == "failed"
    instances = [t for t in stack.airflow.tasks("ingest_mixed", run) if t["task_id"] == "table"]
    assert {t["rendered_map_index"]: t["state"] for t in instances} == {
        "mixed.many_bad": "failed",
        "mixed.many_good": "success",
    }
    assert (tasks.pop("by_topic"), tasks.pop("table") in ("success", "failed")) == ("success", True)
    assert tasks == {
        "plan": "success",
        "ingest": "success",
        "settle": "success",
        "mixed.good": "success",
        "mixed.bad": "failed",
    }
    assert stack.ids("mixed.good") == list(range(50))
    assert "mixed.bad is blocked" in stack.log("mixed", run, "mixed.bad")
    assert {e["name"]: e["extra"]["records"] for e in stack.events("mixed")} == {
        "mixed.good": 50,
        "mixed.many_good": 30,
    }


def test_the_pages_tell_where_every_table_stands_to_those_who_may_know(stack):
    paths = re.findall(r'@app.get\("([^"]+)"', (REPOSITORY / "plugins/sluice_plugin.py").read_text())
    paths = [path.replace("/tables/{name}", "/tables/mixed.bad").replace("{name}", "sluice.css") for path in paths]
    assert len(paths) > 6
    url = f"{stack.env['SLUICE_PAGES_URL']}/sluice"
    admin = jwt.decode(stack.airflow._token, options={"verify_signature": False})
    secret = stack.env["AIRFLOW__API_AUTH__JWT_SECRET"]
    algorithm = jwt.get_unverified_header(stack.airflow._token)["alg"]

    def ask(path: str, role: str | None, *, token: str | None = None) -> requests.Response:
        token = token or jwt.encode({**admin, "role": role}, secret, algorithm)
        return requests.get(
            f"{stack.env['SLUICE_PAGES_URL']}/sluice{path}", headers={"Authorization": f"Bearer {token}"}
        )

    def at(table: str, moment: datetime) -> str:
        return ask(f"/tables/{table}/timeline?at={quote(moment.isoformat())}", "viewer").text

    stack.until(lambda: ask("/api/tables", "viewer").status_code == 200)
    for path in paths:
        without = requests.get(f"{url}{path}", timeout=30)
        assert (without.status_code, ask(path, None).status_code) == (401, 403), path
        assert ask(path, "viewer", token="eyJ.not.one").status_code in (401, 403), path
        assert ask(path, "viewer", token=jwt.encode(admin, "another" * 10, algorithm)).status_code in (401, 403), path
        allowed = ask(path, "viewer")
        assert allowed.status_code == 200, path
        if not path.startswith("/api"):
            assert "script-src 'self'" in allowed.headers["Content-Security-Policy"], path
    assert ask("/tables/no.such", "viewer").status_code == 404

    stack.until(lambda: {t["table"] for t in ask("/api/tables", "viewer").json()["tables"]} >= set(GROUPS["mixed"]))
    page = ask("/tables", "viewer").text
    assert page.index("mixed.bad</a>") < page.index("mixed.good</a>"), "what needs a person comes first"
    assert "mixed.good</a>" not in ask("/tables?state=blocked", "viewer").text
    good = stack.catalog.load_table("mixed.good")
    page = stack.until(lambda: "Versions of" in (text := ask("/tables/mixed.good", "viewer").text) and text)
    run = cursor.carrier(good, PUBLISHED_THROUGH).summary.additional_properties[RUN_ID]
    assert f"<code>{cursor.carrier(good, PUBLISHED_THROUGH).snapshot_id}</code>" in page and run in page
    assert "[0, " in page and "No record is in quarantine" in page
    assert "Rollback drilled" in page
    # What was true at the moment of that snapshot, and just before it.
    moment = cursor.committed_at(cursor.carrier(good, PUBLISHED_THROUGH))
    then = stack.until(lambda: "VERSION AS OF" in (text := at("mixed.good", moment + timedelta(seconds=60))) and text)
    assert f"<code>{good.metadata.current_snapshot_id}</code>" in then and "published, mixed.good, batch" in then
    assert "no longer reaches back" in at("mixed.good", datetime(2020, 1, 1, tzinfo=UTC))
    assert "no moment with a time zone" in ask("/tables/mixed.good/timeline?at=yesterday", "viewer").text
    assert stack.until(lambda: "mixed.bad</a>" in (text := ask("/timeline", "viewer").text) and "refused" in text)
    told = stack.until(lambda: "last_batch_seconds{" in (text := ask("/metrics", "viewer").text) and text)
    assert (
        'sluice_table_failing{table="mixed.bad"} 1.0' in told and 'sluice_table_failing{table="mixed.good"} 0.0' in told
    )
    page = stack.until(lambda: "Versions of" in (text := ask("/tables/mixed.bad", "viewer").text) and text)
    assert "is not a JSON object" in page and "blocked</span>" in page
    # Nobody is kept waiting by the catalog or by Kafka.
    took = sorted(ask("/tables", "viewer").elapsed.total_seconds() for _ in range(20))
    assert took[10] < 0.5, took


def test_who_is_to_be_told_is_told_once_and_again_after_mail_was_away(stack, mailbox):
    def look() -> str:
        return stack.end("alerts", stack.trigger("alerts", {"look"}))[0]

    mailbox.refuses = True
    assert look() == "failed" and not mailbox.messages
    mailbox.refuses = False
    assert look() == "failed"
    told = {m["Subject"]: m.get_body().get_content() for m in mailbox.messages}
    assert set(told) == {"Sluice: mixed.bad is blocked", "Sluice: mixed.many_bad is blocked"}
    assert len(mailbox.messages) == 2 and mailbox.messages[0]["To"] == "ops@example.org"
    body = told["Sluice: mixed.bad is blocked"]
    assert "50 of 50 records" in body
    (link,) = re.findall(r'href="([^"]+)"', body)
    assert link == f"{stack.env['SLUICE_PAGES_URL']}/sluice/tables/mixed.bad/timeline"
    assert look() == "success" and len(mailbox.messages) == 2


def test_a_killed_worker_is_retried_and_nothing_is_lost_or_doubled(stack):
    stack.send("killed.orders", records(0, 100))
    run = stack.start("killed")

    def staged() -> bool:
        table = tables.load(stack.catalog, tables.staging("killed.orders"))
        return table is not None and table.metadata.current_snapshot_id is not None

    stack.until(staged)
    (driver,) = (p for p in psutil.process_iter() if _is_driver(p, stack, "killed"))
    driver.parent().kill()  # the worker alone: its driver goes on, as it does in life
    state, tasks = stack.finish("killed", run)
    assert (state, set(tasks.values())) == ("success", {"success"}), tasks
    (ingest,) = (t for t in stack.airflow.tasks("ingest_killed", run) if t["task_id"] == "ingest")
    assert ingest["try_number"] == 2
    stack.until(lambda: not [p for p in psutil.process_iter() if _is_driver(p, stack, "killed")])
    assert stack.ids("killed.orders") == list(range(100))


def test_a_backfill_shows_its_plan_and_then_fills_a_hole(stack):
    stack.send("plain.orders", records(1000, 60))
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    whole = stack.ids("plain.orders")
    table = stack.catalog.load_table("plain.orders")
    through = cursor.published(table)
    ends = through["plain.orders"].next_offsets
    with table.transaction() as transaction:
        transaction.set_properties({"write.delete.mode": "copy-on-write"})  # PyIceberg knows no other
        transaction.delete("id >= 1020")
    assert len(stack.ids("plain.orders")) == len(whole) - 40
    ranges = {str(p): [0, end] for p, end in ends.items() if end}  # run by itself, a partition may hold nothing
    form = {"table": "plain.orders", "ranges": ranges, "why": "a hole was found"}
    state, tasks, log = stack.by_hand("backfill", "plan", **form)
    assert (state, tasks["plan"], tasks["spark_plain"], tasks["outcome"]) == (
        "success", "success", "skipped", "skipped",
    ), tasks  # fmt: skip
    assert f"{sum(ends.values())} offsets" in log
    assert len(stack.ids("plain.orders")) == len(whole) - 40
    state, tasks, _ = stack.by_hand("backfill", "plan", **form, dry_run=False)
    assert (state, tasks["spark_plain"], tasks["spark_mixed"], tasks["outcome"]) == (
        "success", "success", "skipped", "success",
    ), tasks  # fmt: skip
    assert stack.ids("plain.orders") == whole
    assert cursor.published(stack.catalog.load_table("plain.orders")) == through
    # What can't be is refused in the plan, with the reason.
    state, tasks, log = stack.by_hand("backfill", "plan", **{**form, "ranges": {"9": [0, 5]}}, dry_run=False)
    assert (state, tasks["plan"], tasks["outcome"]) == ("failed", "failed", "failed")
    assert "no partition 9" in log


def test_a_gap_is_given_up_by_hand_and_the_next_run_goes_on(stack):
    client = AdminClient({"bootstrap.servers": stack.env["KAFKA_BOOTSTRAP_SERVERS"]})
    before = stack.ids("plain.orders")
    stack.send("plain.orders", records(2000, 60))
    ends = {p: client.list_offsets({TopicPartition("plain.orders", p): OffsetSpec.latest()}) for p in (0, 1)}
    lost = [TopicPartition("plain.orders", p, next(iter(f.values())).result().offset) for p, f in ends.items()]
    for future in client.delete_records(lost).values():
        future.result(30)
    stack.send("plain.orders", records(3000, 20))
    state, tasks = stack.finish("plain", stack.start("plain"))
    assert (state, tasks["plain.orders"]) == ("failed", "failed")
    state, _, log = stack.by_hand(
        "accept_gap", "accept_gap", name="plain.orders", why="the disk was full", dry_run=False
    )
    assert state == "success"
    assert "60 offsets, missing in plain.orders" in log
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    assert stack.ids("plain.orders") == [*before, *range(3000, 3020)]
    assert stack.events("plain")[-1]["extra"]["gaps"].keys() == {"plain.orders"}


def test_a_change_of_a_contract_is_reviewed_by_a_person_and_then_made(stack):
    name = "reviewed.orders"
    bootstrap = {"bootstrap.servers": stack.env["KAFKA_BOOTSTRAP_SERVERS"]}
    topic_id = broker.describe(broker.admin(bootstrap), [name])[name].topic_id
    # As a first run leaves them when the topic is empty, so that no Spark is needed here.
    batch = Batch(name, topic_id, 1, {}, {0: 0, 1: 0})
    through = encode_through({name: Through(1, topic_id, batch.next_offsets)})
    contract = contracts.load(Path(stack.env["SLUICE_CONTRACTS"])).table(name)
    for table, properties in (
        (tables.ensure_staging(stack.catalog, name), {STEP: "stage"}),
        (tables.ensure_typed(stack.catalog, contract), {STEP: "publish", PUBLISHED_THROUGH: through}),
    ):
        empty = table.schema().as_arrow().empty_table()
        table.append(empty, snapshot_properties={**properties, **batch.properties()})
    file = Path(stack.env["SLUICE_CONTRACTS"], f"{name}.yaml")
    file.write_text(file.read_text() + "partition_by: ['bucket(4, id)']\n")

    stack.airflow.wait_for_dag("review_schema", tables={"decide"})
    stack.airflow.pause("review_schema", False)
    for asked in ("success", "skipped"):  # once, however many runs there are
        run = stack.start("reviewed")
        state, tasks = stack.end("ingest_reviewed", run)
        states = {t["task_id"]: t["state"] for t in tasks}
        assert (state, states["ingest"], states["reviews"], states["ask"]) == (
            "success", "skipped", "success", asked,
        ), states  # fmt: skip
    (review,) = stack.airflow.open_runs("review_schema")
    path = f"/api/v2/dags/review_schema/dagRuns/{review}/taskInstances/decide/-1/hitlDetails"
    stack.until(lambda: "awaiting_input" in {t["state"] for t in stack.airflow.tasks("review_schema", review)})
    body = stack.airflow._ask("GET", path)["body"]
    assert "changes the partitions: none to bucket(4, id)" in body
    assert "meanwhile 0 rows added, 0 records rejected" in body
    assert not stack.catalog.load_table(name).spec().fields
    answer = {"chosen_options": ["Approve"], "params_input": {"why": "it has grown", "republish": True}}
    stack.airflow._ask("PATCH", path, answer)
    state, tasks = stack.end("review_schema", review)
    assert state == "success", tasks
    assert [f.name for f in stack.catalog.load_table(name).spec().fields] == ["id_bucket"]
    (approved,) = [r for r in schemas.rows(stack.catalog, name) if r.state == "approved"]
    assert (approved.why, approved.who) == ("it has grown", stack.env["SLUICE_PAGES_USER"])


def _is_driver(process: psutil.Process, stack: Stack, group: str) -> bool:
    try:
        command = process.cmdline()
        return (
            "java" in Path(command[0]).name
            and "org.apache.spark.deploy.SparkSubmit" in command
            and f"sluice-{group}" in command
            and process.environ().get("SLUICE_HOME") == stack.env["SLUICE_HOME"]
        )
    except (psutil.Error, IndexError, OSError):
        return False
