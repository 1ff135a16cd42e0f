"""The DAGs in a real Airflow with scheduler, workers, broker and Spark: ingestion, maintenance, backfill, reviews."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice.batch import CURSOR_TAG, PUBLISHED_THROUGH, STEP, Batch, PublishedOffsets, encode_published_through
from sluice.contract import folder as contract_folder
from sluice.embedded.home import Home
from sluice.iceberg import cursor, table_names, tables
from sluice.kafka import broker
from sluice.ledger import schemas_table, slices
from sluice.ledger.offsets_table import Ledger
from tests.support import read_only, table_files
from tests.support.airflow_stack import AirflowStack, command_line, make_records
from tests.support.thorough import only_thorough

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


@pytest.fixture(autouse=True)
def another_workers_disk(stack: AirflowStack) -> None:
    """Let each test begin on the disk of another worker: nothing that earlier tasks wrote there is left."""
    home = Path(stack.env["SLUICE_HOME"])
    for log in home.glob("logs/spark-*"):
        log.unlink()
    for folder in ("cache", "schemas"):
        shutil.rmtree(home / folder, ignore_errors=True)


def test_a_run_is_green_and_its_event_tells_offsets_and_snapshot(stack):
    stack.send("plain.orders", make_records(0, 100))
    run = stack.start("plain")
    state, tasks = stack.finish("plain", run)
    assert (state, set(tasks.values())) == ("success", {"success"}), tasks
    assert stack.ids("plain.orders") == list(range(100))
    (event,) = stack.events("plain")
    extra = event["extra"]
    head = stack.catalog.load_table("plain.orders").metadata.current_snapshot_id
    assert (extra["records"], extra["rejected"], extra["snapshot_id"]) == (100, 0, head)
    assert extra["batches"] == {"plain.orders": [1]}
    text = Path(extra["report"].removeprefix("file://")).read_text()
    assert "plain.orders" in text and str(head) in text and "<script" not in text
    (ranges,) = extra["ranges"]["plain.orders"]
    assert sum(last - first for first, last in json.loads(ranges).values()) == 100
    # The task's log holds our lines and none of Spark's, which are kept in a file.
    log = stack.log("plain", run, "ingest")
    assert "publish plain.orders from plain.orders batch 1" in log
    assert "SparkContext" not in log
    assert "SparkContext" in Path(stack.env["SLUICE_HOME"], "logs", "spark-plain.log").read_text()


@only_thorough("tests/system/cli/test_run.py")
def test_a_comparison_leaves_its_verdict_and_a_report_and_fails_if_asked(stack):
    stack.send("plain.orders", make_records(0, 10))
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    rows = stack.catalog.load_table("plain.orders").scan().to_arrow()
    stack.catalog.create_table("plain.old", rows.schema).append(rows.slice(1))
    form = {"table": "plain.orders", "other": "plain.old", "ignore": ["_kafka_timestamp"]}
    state, tasks, log = stack.run_dag("compare", "verdict", **form)
    assert (state, tasks["check"], tasks["spark_plain"]) == ("success", "success", "success"), (tasks, log)
    assert {s for name, s in tasks.items() if name.startswith("spark_") and name != "spark_plain"} == {"skipped"}
    assert "different: 1 key is missing in plain.old" in log
    (report,) = Path(stack.env["SLUICE_REPORTS"].removeprefix("file://")).glob("plain_orders_*/compare_*.html")
    assert "1 key is missing in plain.old" in report.read_text()
    state, tasks, log = stack.run_dag("compare", "verdict", **form, fail_on_difference=True)
    assert (state, tasks["verdict"]) == ("failed", "failed"), (tasks, log)
    assert "plain.orders and plain.old are different: 1 key is missing in plain.old" in log


def test_airflow_runs_on_postgresql(stack):
    if stack.database is None:
        pytest.skip("no PostgreSQL here, so Airflow was tried on SQLite ONLY: apt-get install postgresql")
    with (
        closing(psycopg2.connect(stack.database.uri.replace("+psycopg2", ""))) as database,
        database.cursor() as cursor,
    ):
        cursor.execute("SELECT count(*) FROM dag_run WHERE state = 'success'")
        assert cursor.fetchone()[0] > 0


def test_the_doctor_finds_a_worker_well(stack):
    state, _, log = stack.run_dag("doctor", "check")
    assert state == "success", log
    for name, text in {
        "jars": "jars as locked",
        "kafka": "answers, by Airflow connection sluice_kafka; ",
        "storage": "files can be written, read, listed and deleted",
        "spark": "a query and the catalog's namespaces",
        "airflow": "connections sluice_kafka, spark_default;",
    }.items():
        assert re.search(rf"ok +{name} +.*{re.escape(text)}", log), (name, log)


def test_services_and_workers_can_write_where_settings_say_only(stack):
    if not read_only.is_possible():
        pytest.skip("no Landlock in this kernel, so a read-only image was NOT tried")
    services = [p for p in psutil.process_iter() if "airflow" in command_line(p)[2:3] and stack.owns(p)]
    assert services
    for each in services:
        status = Path(f"/proc/{each.pid}/status").read_text()
        assert re.search(r"NoNewPrivs:\s1", status), each


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is asked of Linux")
@pytest.mark.parametrize("command", ["scheduler", "dag-processor"])
def test_what_every_task_imports_is_imported_before_it_is_forked(stack, command):
    def is_one(process: psutil.Process) -> bool:
        return ["airflow", command] == command_line(process)[2:4] and stack.owns(process)

    found = [p for p in psutil.process_iter() if is_one(p)]
    assert found
    for process in found:
        mapped = {Path(each.path).name for each in process.memory_maps()}
        assert any(name.startswith("libarrow.so") for name in mapped), process


def test_nothing_new_is_skipped_and_starts_no_jvm(stack):
    spark_log = Path(stack.env["SLUICE_HOME"], "logs", "spark-plain.log")
    state, tasks = stack.finish("plain", stack.start("plain"))
    assert state == "success"
    assert tasks.pop("plan") == "success"
    assert set(tasks.values()) == {"skipped"}, tasks
    assert not spark_log.exists()


def test_a_rollback_by_hand_and_the_next_run_publishes_again(stack):
    stack.send("plain.orders", make_records(100, 50))
    run = stack.start("plain")
    assert stack.finish("plain", run)[0] == "success"
    asked = {"table": "plain.orders", "before_run": run, "why": "the contract was wrong"}
    state, _, log = stack.run_dag("rollback", "rollback", **asked)
    assert state == "success"
    assert "1 snapshot(s) undone" in log
    assert "dry run" in log
    assert stack.ids("plain.orders") == list(range(150))
    # Lost on its way to the commit, it has changed nothing, and is started again.
    with closing(locked(stack)):
        lost = stack.trigger("rollback", {"rollback"}, **asked, dry_run=False)
        said = stack.log_file("rollback", lost, "rollback")
        far = "1 snapshot(s) undone"
        kill_worker(stack, "rollback", lost, "rollback", lambda: said.exists() and far in said.read_text())
    assert stack.end("rollback", lost)[0] == "failed"
    assert stack.ids("plain.orders") == list(range(150))
    state, _, log = stack.run_dag("rollback", "rollback", **asked, dry_run=False)
    assert state == "success"
    assert stack.ids("plain.orders") == list(range(100))
    state, _, log = stack.run_dag("rollback", "rollback", **asked, dry_run=False)
    assert state == "failed"
    assert "made none of main's snapshots" in log
    run = stack.start("plain")
    assert stack.finish("plain", run)[0] == "success"
    assert stack.ids("plain.orders") == list(range(150))
    # Lost behind its commit, the ledger does not tell of it; the table does, and the next run lets the ledger tell.
    with hung(stack, table_names.LEDGER):
        lost = stack.trigger("rollback", {"rollback"}, **{**asked, "before_run": run}, dry_run=False)
        kill_worker(stack, "rollback", lost, "rollback", lambda: stack.ids("plain.orders") == list(range(100)))
    assert stack.end("rollback", lost)[0] == "failed"
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    assert stack.ids("plain.orders") == list(range(150))
    told = [(r["table"], r["why"], r["who"]) for r in ledger(stack) if r["state"] == "rolled_back"]
    assert told == [("plain.orders", asked["why"], stack.env["SLUICE_PAGES_USER"])] * 2


def ledger(stack: AirflowStack) -> list[dict[str, Any]]:
    return stack.catalog.load_table(table_names.LEDGER).scan().to_arrow().to_pylist()


@pytest.mark.timeout(1800)
def test_maintenance_starts_spark_where_it_is_needed_and_shows_the_figure_where_not(stack):
    stack.send("kept.orders", make_records(0, 200))
    stack.send("calm.orders", make_records(0, 100))
    stack.send("plain.orders", make_records(150, 10))
    with stack.pool_size(3):
        runs = {group: stack.start(group) for group in ("kept", "calm", "plain")}
        assert [stack.finish(group, run)[0] for group, run in runs.items()] == ["success"] * 3
    spark = [t for g, r in runs.items() for t in stack.airflow.tasks(f"ingest_{g}", r) if t["task_id"] == "ingest"]
    assert max(t["start_date"] for t in spark) < min(t["end_date"] for t in spark), "three groups at once"
    assert stack.ids("plain.orders")[-10:] == list(range(150, 160))
    before = stack.catalog.load_table("kept.orders")
    # Two batches, or three where the producer spread the records over the partitions too unevenly.
    count = len(list(before.scan().plan_files()))
    assert count > 1
    plain, told = stack.maintain("rewrite_data_files")
    # One group needed it; the other's application was not started.
    assert (plain["spark_kept"], plain["spark_calm"]) == ("success", "skipped")
    state, log = told["kept.orders"]
    assert state == "success"
    assert f"kept.orders: done, {count} small files of" in log
    assert f"data files {count} → 1" in log
    state, log = told["calm.orders"]
    assert state == "skipped"
    assert "calm.orders: 1 data files, at most 1 small ones in a partition, 0 delete files" in log
    assert "mixed.good" not in told  # the table is empty

    names = ["kept.orders", "calm.orders"]  # by hand, as each table that holds something has a task of its own
    staging = ".".join(table_names.staging("kept.orders"))

    def kept() -> Table:
        return stack.catalog.load_table("kept.orders")

    # Kills in the other actions are in tests/spark/ingest/test_kills.py: Airflow starts each of them again alike.
    fewer = committed(stack, lambda: len(kept().snapshots()) < len(before.snapshots()))
    with killed(stack, {"kept-expire_snapshots": fewer}):
        plain, told = stack.maintain("expire_snapshots", tables=[*names, staging])
    assert (plain["spark_kept"], plain["spark_calm"]) == ("success", "skipped")
    # One turn is too short for two tables: the table that was killed comes behind the other, and that is no retry.
    logs = Path(stack.env["AIRFLOW_HOME"], "logs", "dag_id=maintain_expire_snapshots")
    (second,) = logs.glob("*/task_id=spark_kept/attempt=2.log")
    assert "The time of this turn is over. The slot goes to waiting tasks" in second.read_text()
    assert told[staging][0] == "success", told
    assert told["kept.orders"][0] in ("success", "skipped"), told  # the second try may find nothing left to do
    assert "snapshots can expire, the oldest is" in told["calm.orders"][1]
    assert len(kept().metadata.snapshots) < len(before.metadata.snapshots)

    orphans = [Path(before.location().removeprefix("file://"), "data", f"orphan-{n}.parquet") for n in range(500)]
    for path in orphans:
        path.write_bytes(b"PAR1")
    table_files.age_files(kept())
    plain, told = stack.maintain("remove_orphan_files", tables=names)
    assert set(told) == set(names)
    assert told["kept.orders"][0] == told["calm.orders"][0] == "success"
    assert table_files.files_on_disk(kept()) == table_files.referenced_files(kept())
    table_files.read_all_snapshots(kept())

    stack.send("kept.orders", make_records(200, 100))
    assert stack.finish("kept", stack.start("kept"))[0] == "success"
    assert stack.ids("kept.orders") == list(range(300))


def test_a_replay_that_meets_newer_updates_and_deletes_brings_back_what_was_lost_alone(stack):
    keys = [f"k{n}".encode() for n in range(30)]
    since = datetime.now(UTC).isoformat()
    stack.send("calm.latest", [b'{"n": 1}'] * 30, keys)
    until = datetime.now(UTC).isoformat()
    stack.send("calm.latest", [b'{"n": 2}'] * 10, keys[:10])
    stack.send("calm.latest", [None] * 10, keys[10:20])
    tasks = {each["task_id"]: each for each in stack.end("ingest_calm", stack.start("calm"))[1]}
    assert tasks["calm.latest"]["state"] == "success"
    for nothing_to_tell in ("calm.orders", "reviews"):  # and no process was started for that
        each = tasks[nothing_to_tell]
        assert (each["state"], each["pid"]) == ("skipped", None)

    def latest() -> dict[str, int]:
        return {row["id"]: row["n"] for row in stack.catalog.load_table("calm.latest").scan().to_arrow().to_pylist()}

    expected = {f"k{n}": 2 if n < 10 else 1 for n in (*range(10), *range(20, 30))}
    assert latest() == expected
    through = cursor.read_table_cursor(stack.catalog.load_table("calm.latest"))
    stack.delete_rows("calm.latest", "id == 'k25'")
    form = {"table": "calm.latest", "ranges": {}, "since": since, "until": until, "why": "a row is missing"}
    state, tasks, log = stack.run_dag("backfill", "plan", **form, dry_run=False)
    assert (state, tasks["spark_calm"], tasks["outcome"]) == ("success", "success", "success"), log
    assert "30 offsets" in log
    assert latest() == expected
    assert cursor.read_table_cursor(stack.catalog.load_table("calm.latest")) == through


def test_one_bad_table_is_red_and_says_why_and_the_other_goes_on(stack):
    stack.send("mixed.good", make_records(0, 50))
    stack.send("many-good", make_records(0, 30))
    stack.send("mixed.bad", [each.replace(b'"id"', b'"number"') for each in make_records(0, 50)])
    stack.send("many-bad", [b"{not json"] * 50)
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


def test_a_killed_worker_is_retried_and_nothing_is_lost_or_doubled(stack):
    stack.send("killed.orders", [*make_records(0, 100), b'{"number": 100}'])
    run = stack.start("killed")

    def staged() -> bool:
        table = tables.load(stack.catalog, table_names.staging("killed.orders"))
        return table is not None and table.metadata.current_snapshot_id is not None

    stack.wait_until(staged, every=0.1)
    (driver,) = stack.drivers("killed")
    driver.parent().kill()  # the worker alone: its driver goes on, as it does in life
    state, tasks = stack.finish("killed", run)
    assert (state, set(tasks.values())) == ("success", {"success"}), tasks
    (ingest,) = (t for t in stack.airflow.tasks("ingest_killed", run) if t["task_id"] == "ingest")
    assert ingest["try_number"] == 2
    stack.wait_until(lambda: not stack.drivers("killed"))
    assert stack.ids("killed.orders") == list(range(100))


def test_a_backfill_shows_its_plan_and_fills_a_hole_though_its_processes_are_killed(stack):
    stack.send("plain.orders", make_records(1000, 20))
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    starts = cursor.read_table_cursor(stack.catalog.load_table("plain.orders"))["plain.orders"].next_offsets
    since = datetime.now(UTC).isoformat()
    stack.send("plain.orders", make_records(1020, 240))
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    whole = stack.ids("plain.orders")
    through = cursor.read_table_cursor(stack.catalog.load_table("plain.orders"))
    ends = through["plain.orders"].next_offsets
    stack.delete_rows("plain.orders", "id >= 1020")
    assert len(stack.ids("plain.orders")) == len(whole) - 240
    ranges = {str(p): [starts[p], end] for p, end in ends.items() if end > starts[p]}  # a partition may get nothing
    form = {"table": "plain.orders", "ranges": ranges, "why": "a hole was found"}
    with changed(stack, "plain.orders", "limits: {records_per_batch: 130}\n"), stack.pool_size(2):
        time = {"since": since, "until": datetime.now(UTC).isoformat(), "source": "staging"}
        state, tasks, log = stack.run_dag("backfill", "plan", **{**form, "ranges": {}, **time})
        assert (state, tasks["plan"], tasks["spark_plain"], tasks["outcome"]) == (
            "success", "success", "skipped", "skipped",
        ), tasks  # fmt: skip
        assert "240 offsets" in log and "staging holds all of it" in log
        assert all(f":[{start},{end}]" in log for start, end in ranges.values())
        assert len(stack.ids("plain.orders")) == len(whole) - 240
        before = ledger_file(stack)
        run = stack.trigger("backfill", {"plan"}, **form, dry_run=False)
        # Lost behind its commit, the plan is the one that is carried out.
        kill_worker(stack, "backfill", run, "plan", lambda: ledger_file(stack) != before)
        planned = slices.planned_slices(slices.read_slice_rows(Ledger(stack.catalog), "plain.orders"), run)
        assert len(planned) >= 2

        def first_is_there() -> Any:
            return slices.find_slice_snapshot(stack.catalog.load_table("plain.orders"), planned[-1])

        # All slices share a driver, which is killed behind its first one; tests/spark/backfill/test_races.py has more.
        with killed(stack, {"plain-backfill-1": committed(stack, first_is_there)}):
            kill_worker(stack, "backfill", run, "outcome", stack.log_file("backfill", run, "outcome").exists)
            state, found = stack.end("backfill", run)
    assert slices.planned_slices(slices.read_slice_rows(Ledger(stack.catalog), "plain.orders"), run) == planned
    tries = {t["task_id"]: t["try_number"] for t in found}
    assert (tries["plan"], tries["outcome"]) == (2, 2)
    told = [stack.log_file("backfill", run, "outcome", number).read_text() for number in (1, 2)]
    assert [text.count(": snapshot ") for text in told] == [0, len(planned)]
    tried = {t["rendered_map_index"]: (t["state"], t["try_number"]) for t in found if t["task_id"] == "spark_plain"}
    assert tried == {f"slices -1 to {min(planned)}": ("success", 2)}
    tasks = {t["task_id"]: t["state"] for t in found}
    assert (state, tasks["spark_mixed"], tasks["outcome"]) == ("success", "skipped", "success"), tasks
    assert stack.ids("plain.orders") == whole
    assert_told_once(stack, run, planned)
    assert cursor.read_table_cursor(stack.catalog.load_table("plain.orders")) == through
    for name in ("plain.orders", table_names.staging("plain.orders")):
        assert set(stack.catalog.load_table(name).metadata.refs) == {"main", CURSOR_TAG}
    from_staging_when_kafka_has_lost_it(stack, form, ends)
    assert stack.ids("plain.orders") == whole


def assert_told_once(stack: AirflowStack, run: str, numbers: Collection[int]) -> None:
    """Though the task that tells was killed, the asset that ingestion tells of has news of the backfill, and once."""
    found = stack.airflow.request("GET", "/api/v2/assets/events?source_dag_id=backfill")["asset_events"]
    (event,) = [each for each in found if each["source_run_id"] == run]
    assert event["asset_id"] == stack.events("plain")[0]["asset_id"]
    extra = event["extra"]
    # One of the drivers was killed behind its commit: what that counted nobody knows.
    assert (extra["backfill"], extra["records"], extra["rejected"]) == (True, None, None)
    assert sorted(extra["batches"]["plain.orders"]) == sorted(numbers)


def from_staging_when_kafka_has_lost_it(stack: AirflowStack, form: dict[str, Any], ends: dict[int, int]) -> None:
    """What can't be is refused in the plan, with the reason; what Kafka has deleted, staging still has."""
    client = AdminClient({"bootstrap.servers": stack.env["KAFKA_BOOTSTRAP_SERVERS"]})
    for future in client.delete_records([TopicPartition("plain.orders", p, end) for p, end in ends.items()]).values():
        future.result(30)
    stack.delete_rows("plain.orders", "id >= 1200")
    for asked, words in ((form["ranges"], "Kafka no longer holds the range"), ({"9": [0, 5]}, "no partition 9")):
        state, tasks, log = stack.run_dag("backfill", "plan", **{**form, "ranges": asked}, dry_run=False)
        assert (state, tasks["plan"], tasks["outcome"]) == ("failed", "failed", "failed")
        assert words in log
    state, tasks, log = stack.run_dag("backfill", "plan", **form, source="staging", dry_run=False)
    assert (state, tasks["spark_plain"], tasks["outcome"]) == ("success", "success", "success"), tasks
    assert "staging holds all of it" in log


@only_thorough("tests/spark/maintain/test_maintain.py")
def test_the_strictest_expiry_leaves_what_a_rollback_within_the_window_needs(stack):
    """Of a table with a history, whose records Kafka has no more."""
    before, whole = stack.catalog.load_table("plain.orders"), stack.ids("plain.orders")
    oldest, back_to = before.metadata.snapshots[0], before.current_snapshot()
    stack.send("plain.orders", make_records(1900, 50))
    undone = stack.start("plain")
    assert stack.finish("plain", undone)[0] == "success"
    # The window ends before the snapshot to go back to, by as much as expiry may need to come, and after the oldest.
    margin = (back_to.timestamp_ms - oldest.timestamp_ms) / 2
    window = f"{datetime.now(UTC).timestamp() - (back_to.timestamp_ms - margin) / 1000:.0f}s"
    strict = f"maintenance: {{min_snapshots: 1, snapshot_age: {window}, staging_retention: {window}}}\n"
    names = ["plain.orders", ".".join(table_names.staging("plain.orders"))]
    with changed(stack, "plain.orders", strict):
        _, told = stack.maintain("expire_snapshots", tables=names)
    assert [told[name][0] for name in names] == ["success", "success"], told
    left = stack.catalog.load_table("plain.orders")
    assert left.snapshot_by_id(back_to.snapshot_id)
    assert not left.snapshot_by_id(oldest.snapshot_id)
    asked = {"table": "plain.orders", "before_run": undone, "why": "the contract was wrong"}
    assert stack.run_dag("rollback", "rollback", **asked, dry_run=False)[0] == "success"
    assert stack.ids("plain.orders") == whole
    assert stack.finish("plain", stack.start("plain"))[0] == "success"
    assert stack.ids("plain.orders") == sorted([*whole, *range(1900, 1950)])


@contextmanager
def killed(stack: AirflowStack, drivers: dict[str, Callable[[], Any]]) -> Iterator[None]:
    """Each of these drivers, named as its log is, is killed as soon as it has come that far."""

    def lose(name: str, has_come: Callable[[], Any]) -> None:
        driver, *_ = stack.wait_until(lambda: stack.drivers(name))
        stack.wait_until(has_come, every=0.005)
        for process in (*driver.children(recursive=True), driver):
            process.kill()

    with ThreadPoolExecutor() as threads:
        lost = [threads.submit(lose, *each) for each in drivers.items()]
        yield
        for each in lost:
            each.result()


def committed(stack: AirflowStack, has_come: Callable[[], Any]) -> Callable[[], Any]:
    """The same question, which is only answered anew after a commit: an answer takes longer than until the next one."""
    file = Home.at(Path(stack.env["SLUICE_HOME"])).catalog
    catalog = sqlite3.connect(file, timeout=60, check_same_thread=False)
    seen = None

    def has_come_now() -> Any:
        nonlocal seen
        before, seen = seen, catalog.execute("PRAGMA data_version").fetchone()
        return seen != before and has_come()

    return has_come_now


def locked(stack: AirflowStack) -> sqlite3.Connection:
    """Until it is closed nobody can commit to the catalog."""
    catalog = sqlite3.connect(Home.at(Path(stack.env["SLUICE_HOME"])).catalog, timeout=60, check_same_thread=False)
    catalog.execute("BEGIN IMMEDIATE")
    return catalog


@contextmanager
def hung(stack: AirflowStack, identifier: Identifier) -> Iterator[None]:
    """For a while whoever commits to this table hangs in the commit, until it is killed."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
    when = f"NEW.table_namespace = '{identifier[0]}' AND NEW.table_name = '{identifier[1]}'"
    with closing(sqlite3.connect(Home.at(Path(stack.env["SLUICE_HOME"])).catalog, timeout=60)) as catalog:
        catalog.execute(f"CREATE VIEW endless AS {endless}")
        catalog.execute(
            f"CREATE TRIGGER hung BEFORE UPDATE ON iceberg_tables WHEN {when} BEGIN SELECT count(*) FROM endless; END"
        )
        try:
            yield
        finally:
            catalog.execute("DROP TRIGGER hung")
            catalog.execute("DROP VIEW endless")


def kill_worker(stack: AirflowStack, dag: str, run: str, task: str, has_come: Callable[[], Any]) -> None:
    """The process of a task is killed when it has come that far, not the supervisor that it tells its state."""

    def processes() -> set[psutil.Process]:
        (attempt,) = (t["id"] for t in stack.airflow.tasks(dag, run) if t["task_id"] == task)
        supervisors = [p for p in psutil.process_iter() if attempt in " ".join(command_line(p))]
        return {each for p in supervisors for each in p.children(recursive=True) if not each.children()}

    found = stack.wait_until(processes, every=0.05)  # some tasks take half a second
    stack.wait_until(has_come, every=0.002)
    for process in found:
        process.kill()


def ledger_file(stack: AirflowStack) -> str:
    """Which metadata file is the ledger's, in next to no time."""
    with closing(sqlite3.connect(Home.at(Path(stack.env["SLUICE_HOME"])).catalog, timeout=60)) as catalog:
        named = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
        return str(catalog.execute(named, table_names.LEDGER).fetchone()[0])


@contextmanager
def changed(stack: AirflowStack, name: str, more: str) -> Iterator[None]:
    """More stands in the contract for a while."""
    file = Path(stack.env["SLUICE_CONTRACTS"], f"{name}.yaml")
    before = file.read_text()
    file.write_text(before + more)
    try:
        yield
    finally:
        file.write_text(before)


def test_a_gap_is_given_up_by_hand_and_the_next_run_goes_on(stack):
    client = AdminClient({"bootstrap.servers": stack.env["KAFKA_BOOTSTRAP_SERVERS"]})
    before = stack.ids("plain.orders")
    stack.send("plain.orders", make_records(2000, 60))
    ends = {p: client.list_offsets({TopicPartition("plain.orders", p): OffsetSpec.latest()}) for p in (0, 1)}
    lost = [TopicPartition("plain.orders", p, next(iter(f.values())).result().offset) for p, f in ends.items()]
    for future in client.delete_records(lost).values():
        future.result(30)
    stack.send("plain.orders", make_records(3000, 20))
    state, tasks = stack.finish("plain", stack.start("plain"))
    assert (state, tasks["plain.orders"]) == ("failed", "failed")
    state, _, log = stack.run_dag(
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
    topic_id = broker.describe_topics(broker.make_admin_client(bootstrap), [name])[name].topic_id
    # As a first run leaves them when the topic is empty, so that no Spark is needed here.
    batch = Batch(name, topic_id, 1, {}, {0: 0, 1: 0})
    through = encode_published_through({name: PublishedOffsets(1, topic_id, batch.next_offsets)})
    contract = contract_folder.load_contracts(Path(stack.env["SLUICE_CONTRACTS"])).table(name)
    for table, properties in (
        (tables.ensure_staging(stack.catalog, name), {STEP: "stage"}),
        (tables.ensure_typed(stack.catalog, contract), {STEP: "publish", PUBLISHED_THROUGH: through}),
    ):
        empty = table.schema().as_arrow().empty_table()
        table.append(empty, snapshot_properties={**properties, **batch.properties()})
    file = Path(stack.env["SLUICE_CONTRACTS"], f"{name}.yaml")
    more = "partition_by: ['bucket(4, id)']\nschema_policy: {make_optional: review}\nerrors: {max_ratio: 1.0}\n"
    file.write_text(file.read_text().replace("required: true", "required: false") + more)

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
    stack.wait_until(lambda: "awaiting_input" in {t["state"] for t in stack.airflow.tasks("review_schema", review)})
    body = stack.airflow.request("GET", path)["body"]
    assert "changes the partitions: none to bucket(4, id)" in body
    assert "0 rows added, 0 records quarantined" in body
    # The table goes on by the old contract; what only the new one lets in is set apart.
    stack.send(name, [*make_records(0, 20), b'{"id": null}'])
    assert stack.finish("reviewed", stack.start("reviewed"))[0] == "success"
    assert stack.ids(name) == list(range(20))
    quarantine = stack.catalog.load_table(table_names.quarantine(contract))
    assert quarantine.scan().count() == 1
    assert not stack.catalog.load_table(name).spec().fields
    stack.airflow.wait_for_dag("backfill", tables={"plan"})
    stack.airflow.pause("backfill", False)
    answer = {"chosen_options": ["Approve"], "params_input": {"why": "it has grown", "republish": False}}
    stack.airflow.request("PATCH", path, answer)
    state, tasks = stack.end("review_schema", review)
    assert state == "success", tasks
    state, tasks = stack.end("backfill", f"bring_0__{review}")
    assert state == "success", tasks
    found = stack.catalog.load_table(name).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    assert len(found) == 21 and set(found) == {*range(20), None}
    assert quarantine.refresh().scan().count() == 0
    assert [f.name for f in stack.catalog.load_table(name).spec().fields] == ["id_bucket"]
    (approved,) = [r for r in schemas_table.read_schema_rows(stack.catalog, name) if r.state == "approved"]
    assert (approved.why, approved.who) == ("it has grown", stack.env["SLUICE_PAGES_USER"])
