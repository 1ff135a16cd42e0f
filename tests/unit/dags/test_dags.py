"""The DAG files: the DAGs that contracts lead to, their light imports, and the command that starts Spark."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice import dag_ids
from sluice.backfill.backfill_plan import MAX_SLICES
from sluice.backfill.ranges import Request
from sluice.embedded.home import REPOSITORY, cache_folder
from sluice.embedded.java import find_java
from sluice.ingest import session
from sluice.ledger.slices import Origin
from sluice.offsets import OffsetRange
from sluice.operate import review_schema
from tests.support.airflow_process import isolated_airflow_env, run_in_airflow

pytestmark = pytest.mark.unit

DAGS = REPOSITORY / "dags"
HEAVY = ("pyspark", "pyiceberg", "confluent_kafka", "great_expectations", "pyarrow")
SECRET = "s3cret-of-kafka"
RUN = "manual__2026-01-01T00:00:00+00:00"


@pytest.fixture
def airflow_env(tmp_path: Path) -> dict[str, str]:
    """An Airflow of one's own, without a database; Kafka behind a password."""
    jars = tmp_path / "cache" / "jars"
    jars.mkdir(parents=True)
    for name in ("b.jar", "a.jar"):
        (jars / name).touch()
    kafka = {"bootstrap.servers": "kafka:9092", "sasl.username": "sluice", "sasl.password": SECRET}
    return {
        **isolated_airflow_env(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka}),
        "AIRFLOW_CONN_SLUICE_REGISTRY": json.dumps(
            {
                "conn_type": "http",
                "host": "registry/apis",
                "schema": "https",
                "port": 8081,
                "login": "sluice",
                "password": SECRET,
                "extra": {"ssl.ca.location": "/ca.pem"},
            }
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_CONN_CLUSTER": json.dumps({"conn_type": "spark", "host": "spark://master", "port": 7077}),
        "AIRFLOW_CONN_HOST": json.dumps({"conn_type": "spark", "host": "localhost", "port": 7077}),
        "AIRFLOW_CONN_NO_PORT": json.dumps({"conn_type": "spark", "host": "localhost"}),
        "AIRFLOW_CONN_LOCAL_CLUSTER": json.dumps({"conn_type": "spark", "host": "local-cluster[2,1,1024]"}),
        "AIRFLOW_CONN_KUBERNETES": json.dumps({"conn_type": "spark", "host": "k8s://https://api"}),
        "AIRFLOW_CONN_AWAY": json.dumps(
            {"conn_type": "spark", "host": "spark://master", "port": 7077, "extra": {"deploy-mode": "cluster"}}
        ),
        "SLUICE_HOME": str(tmp_path / "home"),
        "SLUICE_JARS": str(jars),
    }


LOAD = f"""
import json, sys, time
import airflow.sdk
before = set(sys.modules)
from airflow.dag_processing.dagbag import DagBag
began = time.process_time()
bag = DagBag(dag_folder={str(DAGS)!r}, bundle_name="dags")
seconds = time.process_time() - began


def weight(task):
    # What Airflow makes of it by its rule `downstream`.
    return task.priority_weight + sum(t.priority_weight for t in task.get_flat_relatives(upstream=False))


dags = {{
    name: {{
        "tasks": {{
            t.task_id: {{
                "down": sorted(t.downstream_task_ids), "retries": t.retries, "rule": str(t.trigger_rule.value),
                "pool": t.pool, "outlets": [[a.name, getattr(a, "uri", None)] for a in t.outlets], "owner": t.owner,
                "timeout": t.execution_timeout and t.execution_timeout.total_seconds(),
                "arguments": getattr(t, "application_args", None), "mapped": t.is_mapped,
                "weight": t.priority_weight if t.is_mapped else weight(t),
            }}
            for t in dag.tasks
        }},
        "catchup": dag.catchup, "max_active_runs": dag.max_active_runs, "tags": sorted(dag.tags), "doc": dag.doc_md,
        "schedule": str(dag.schedule), "start": str(dag.start_date), "params": list(dag.params),
    }}
    for name, dag in bag.dags.items()
}}
heavy = [m for m in {HEAVY!r} if m in sys.modules]
files = sorted(name.rpartition("/")[2] for name in bag.file_last_changed)
print(json.dumps({{"dags": dags, "errors": bag.import_errors, "heavy": heavy, "seconds": seconds, "files": files}}))
"""


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """A folder with two groups."""
    folder = tmp_path / "contracts"
    folder.mkdir()
    for table, group in (("shop.orders", "shop"), ("crm.people", "crm")):
        (folder / f"{table}.yaml").write_text(
            f"table: {table}\ntopic: {table}\ngroup: {group}\nowner: team-{group}\n"
            "columns: [{name: id, type: long}]\n"
        )
    return folder


def test_the_dag_of_the_repository_is_short_and_readable(airflow_env):
    found = run_in_airflow(LOAD, airflow_env)
    assert found["errors"] == {}
    assert {*found["dags"]} == {
        *("ingest_aviation", dag_ids.COMPARE, dag_ids.DOCTOR, dag_ids.REHEARSE),
        *dag_ids.OPERATOR_DAGS,
        *dag_ids.MAINTENANCE_DAGS,
    }
    dag = found["dags"]["ingest_aviation"]
    tables = ["aviation.airports", "aviation.flights", "aviation.planes"]
    assert {name: task["down"] for name, task in dag["tasks"].items()} == {
        "plan": ["ingest", "reviews", "settle"],
        "reviews": ["ask"],
        "ask": [],
        "ingest": ["settle"],
        "settle": [*tables, "reviews"],
        **{name: [] for name in tables},
    }
    assert dag["max_active_runs"] == 1
    assert dag["catchup"] is False
    assert dag["tags"] == ["aviation", "demo", "sluice"]
    assert "`aviation.flights` (append) from flights" in dag["doc"]
    assert dag["tasks"]["ingest"]["pool"] == "sluice_spark"
    assert dag["tasks"]["ingest"]["timeout"] == 3600
    assert {dag["tasks"][name]["timeout"] for name in ("plan", "settle")} == {300 + 3}  # a second more for each table
    assert dag["tasks"]["ingest"]["retries"] == 2
    assert dag["tasks"]["settle"]["rule"] == "all_done"
    assert dag["tasks"]["aviation.flights"]["outlets"] == [["aviation.flights", "iceberg://lake/aviation/flights"]]
    assert dag["tasks"]["aviation.flights"]["retries"] == 2  # a worker that dies in it takes no event away


def test_topics_by_pattern_are_not_looked_up_to_read_a_dag(airflow_env, contracts):
    for name, table in (("all", "shop.all"), ("each", "shop.{topic}"), ("own", "own.{topic}")):
        (contracts / f"{name}.yaml").write_text(
            f"table: {table}\ntopic: {{pattern: 'orders-.*'}}\ngroup: {'own' if name == 'own' else 'shop'}\n"
            "owner: me\ncolumns: [{name: id, type: long}]\n"
        )
    # Neither Kafka nor a catalog is there to be asked.
    found = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})
    assert (found["errors"], found["heavy"]) == ({}, [])
    dag = found["dags"]["ingest_shop"]
    assert dag["tasks"]["settle"]["down"] == ["by_topic", "reviews", "shop.all", "shop.orders"]
    assert dag["tasks"]["by_topic"]["down"] == ["table"]
    table = dag["tasks"]["table"]
    assert (table["mapped"], table["retries"], table["outlets"]) == (True, 2, [["ingest_shop.by_topic", None]])
    assert "`shop.{topic}` (append) from topics like `orders-.*`" in dag["doc"]
    # A group of nothing but such tables has its DAG, and is maintained and backfilled.
    assert sorted(found["dags"]["ingest_own"]["tasks"]) == [
        "ask", "by_topic", "ingest", "plan", "reviews", "settle", "table",
    ]  # fmt: skip
    assert "spark_own" in found["dags"]["maintain_expire_snapshots"]["tasks"]
    assert "spark_own" in found["dags"]["backfill"]["tasks"]


MAPPED = """
import json, logging, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import AssetAlias
from airflow.sdk.execution_time.callback_runner import create_executable_runner
from airflow.sdk.execution_time.context import OutletEventAccessors
bag = DagBag(dag_folder={dags!r}, bundle_name="dags")
module = next(m for n, m in sys.modules.items() if n.endswith("ingest") and hasattr(m, "mapped_tables"))
named = dict()
module.get_current_context = lambda: named
dag = bag.dags["ingest_shop"]
by_topic, table = (dag.get_task(name).python_callable for name in ("by_topic", "table"))
kept = dict.fromkeys(("ranges", "gaps", "snapshot_id", "records", "rejected", "expectations", "warnings"))
found = dict(kept, table="shop.orders_eu", red=False, batches={{"orders-eu": [1]}}, state="published", error=None)
idle = dict(found, table="shop.orders_us", batches={{}}, state="idle")
lost = dict(found, table="shop.{{topic}}", red=True, state="stopped", error="no name")
outcomes = dict((each["table"], each) for each in (lost, idle, found))
answers = [[each["table"] for (each,) in by_topic(outcomes | {{"shop.orders": idle}})]]
try:
    by_topic(dict(idle=idle))
except Exception as error:
    answers.append(type(error).__name__)
for each in ([found], [idle], [lost], [lost, lost]):
    events = OutletEventAccessors()
    try:
        create_executable_runner(table, events, logger=logging.getLogger()).run(each)
        (event,) = events[AssetAlias("ingest_shop.by_topic")].asset_alias_events
        made = event.dest_asset_key
        answers.append([named["table_name"], made.name, made.uri, event.extra["batches"]])
    except Exception as error:
        answers.append([named["table_name"], type(error).__name__, str(error)])
# More than Airflow maps.
colours = (idle, found, lost)
many = by_topic({{f"shop.{{i}}": dict(colours[i % 3], table=f"shop.{{i}}") for i in range(3300)}})
answers.append([len(many), [[module.colour(some[0]), len(some)] for some in many[-2:]], module.colour(many[0][0])])
events = OutletEventAccessors()
create_executable_runner(table, events, logger=logging.getLogger()).run(many[-1])
made = events[AssetAlias("ingest_shop.by_topic")].asset_alias_events
answers.append([named["table_name"], len(set(each.dest_asset_key.name for each in made))])
reviews = dag.get_task("reviews").python_callable(dict(reviews=dict((f"shop.{{i}}", "c") for i in range(3300))))
answers.append(len(reviews))
print(json.dumps(answers))
"""


def test_each_table_of_a_template_has_its_own_outcome_and_asset(airflow_env, contracts):
    (contracts / "each.yaml").write_text(
        "table: shop.{topic}\ntopic: {pattern: 'orders-.*'}\ngroup: shop\nowner: me\n"
        "columns: [{name: id, type: long}]\n"
    )
    assert run_in_airflow(MAPPED.format(dags=str(DAGS)), {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}) == [
        ["shop.orders_eu", "shop.{topic}"],
        "AirflowSkipException",
        ["shop.orders_eu", "shop.orders_eu", "iceberg://lake/shop/orders_eu", {"orders-eu": [1]}],
        ["shop.orders_us", "AirflowSkipException", "shop.orders_us: idle, nothing was published."],
        ["shop.{topic}", "AirflowFailException", "shop.{topic} is stopped: no name"],
        ["2 more", "AirflowFailException", "\n".join(["shop.{topic} is stopped: no name"] * 2)],
        # Of 1,100 of each colour: no asset event is lost by what is red.
        [1023, [["red", 79], ["green", 1100]], "red"],
        ["1,100 more", 1100],
        1024,
    ]


def test_maintenance_and_alerts_run_when_the_folder_says(airflow_env, contracts):
    env = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    (contracts / "groups.yaml").write_text(
        "maintenance: {rewrite_data_files: '7 2 * * *', remove_orphan_files: null}\nalerts: {schedule: '3 * * * *'}\n"
    )
    dags = run_in_airflow(LOAD, env)["dags"]
    assert (dags["alerts"]["schedule"], dags["alerts"]["tasks"]["look"]["retries"]) == ("3 * * * *", 0)
    assert dags["maintain_rewrite_data_files"]["schedule"] == "7 2 * * *"
    assert "daily" in dags["maintain_expire_snapshots"]["schedule"]
    assert dags["maintain_remove_orphan_files"]["schedule"] == "None"
    # Where it is wrong there is none of them, rather than some at a time that nobody asked for.
    (contracts / "groups.yaml").write_text("maintenance: {expire_snapshots: nightly}\n")
    names = run_in_airflow(LOAD, env)["dags"]
    assert not [name for name in names if name.startswith("maintain_") or name == "alerts"]
    assert [name for name in names if name.startswith("ingest_")]


def test_the_application_of_a_continuous_group_stays(airflow_env, contracts):
    (contracts / "groups.yaml").write_text("shop: {schedule: continuous, continuous: {stay: 20m}}\n")
    with (contracts / "shop.orders.yaml").open("a") as file:
        file.write("maintenance: {snapshot_age: 1h}\n")
    dags = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})["dags"]
    arguments = {name: dags[f"ingest_{name}"]["tasks"]["ingest"]["arguments"] for name in ("shop", "crm")}
    assert arguments == {
        "shop": ["--group=shop", "--run-id={{ run_id }}", "--stay=1200"],
        "crm": ["--group=crm", "--run-id={{ run_id }}"],
    }
    # Neither the application nor a review waits for another task to end.
    down = {name: dags[f"ingest_{name}"]["tasks"]["plan"]["down"] for name in ("shop", "crm")}
    assert down == {"shop": ["reviews", "settle"], "crm": ["ingest", "reviews", "settle"]}
    assert "reviews" not in dags["ingest_shop"]["tasks"]["settle"]["down"]
    assert dags["ingest_shop"]["schedule"] == "@continuous"
    # Airflow gives the second run the first one's logical date if there is no start date.
    assert (dags["ingest_shop"]["start"][:4], dags["ingest_crm"]["start"]) == ("2020", "None")


WATCH = f"""
import json, sys
from airflow.dag_processing.dagbag import DagBag
from sluice_airflow import assets, compat
compat.__version__ = sys.argv[1]
bag = DagBag(dag_folder={str(DAGS)!r}, bundle_name="dags")
watch = bag.dags.get("watch_tables")
tasks = [task for name in ("ingest_shop", "ingest_crm") for task in bag.dags[name].tasks]
print(json.dumps({{
    "errors": list(bag.import_errors.values()),
    "outlets": {{task.task_id: [asset.name for asset in task.outlets] for task in tasks}},
    "assets": watch and [
        [asset.name, asset.uri, [[each.name, *each.trigger.serialize()] for each in asset.watchers]]
        for asset in watch.timetable.asset_condition.objects
    ],
    "condition": watch and type(watch.timetable.asset_condition).__name__,
    "paused": watch and watch.is_paused_upon_creation,
    "elsewhere": [len(assets.table_asset(name).watchers) for name in ("shop.orders", "crm.people")],
}}))
"""


def test_watchers_emit_the_events_of_a_continuous_group_in_place_of_its_tasks(airflow_env, contracts):
    (contracts / "many.yaml").write_text(
        "table: shop.{topic}\ntopic: {pattern: 'o-.*'}\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    (contracts / "groups.yaml").write_text("shop: {schedule: continuous}\n")
    (contracts / "defaults.yaml").write_text("maintenance: {snapshot_age: 1h}\n")
    env = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    found = run_in_airflow(WATCH, env, "3.3.2")
    assert found["errors"] == []
    trigger = ["sluice_airflow.table_watcher.TableSnapshotsTrigger", {"table": "shop.orders"}]
    assert found["assets"] == [
        ["watch_tables.never", "sluice://never/watch_tables", []],
        ["shop.orders", "iceberg://lake/shop/orders", [["shop.orders.snapshots", *trigger]]],
    ]
    assert (found["condition"], found["paused"]) == ("AssetAll", False)  # it never runs, and its watchers do
    assert found["elsewhere"] == [1, 0]  # else another DAG file would stop the watcher
    outlets = {name: assets for name, assets in found["outlets"].items() if assets}
    # Tables of a pattern are not known when DAGs are parsed.
    assert outlets == {"table": ["ingest_shop.by_topic"], "crm.people": ["crm.people"]}

    assert run_in_airflow(WATCH, env, "3.2.4") == {
        "errors": [],
        "outlets": {**found["outlets"], "shop.orders": ["shop.orders"]},
        "assets": None,
        "condition": None,
        "paused": None,
        "elsewhere": [0, 0],
    }
    other = "shop: {schedule: continuous, asset_events: task}\ncrm: {asset_events: table}\n"
    (contracts / "groups.yaml").write_text(other)
    found = run_in_airflow(WATCH, env, "3.3.2")
    assert [name for name, _, _ in found["assets"]] == ["watch_tables.never", "crm.people"]
    assert (found["outlets"]["shop.orders"], found["outlets"]["crm.people"]) == (["shop.orders"], [])


@pytest.mark.parametrize("wrong", ["defaults: {retrys: 3}", "shop: {retrys: 3}\ncrm: {retrys: 3}", ""])
def test_alerts_are_there_though_nothing_else_is(airflow_env, contracts, wrong):
    (contracts / "groups.yaml").write_text(f"{wrong}\nalerts: {{schedule: '3 * * * *'}}\n")
    if not wrong:
        for file in contracts.glob("*.*.yaml"):
            file.write_text(file.read_text() + "colour: red\n")
    dags = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})["dags"]
    assert not [name for name in dags if name.startswith("ingest_")]
    assert dags["alerts"]["schedule"] == "3 * * * *"


def test_each_maintenance_is_a_dag_of_its_own(airflow_env, contracts):
    settings = "pool: shop_pool, timeout: 30m, retries: 1, maintenance: {seconds_per_turn: 500, pool: tidy}"
    (contracts / "groups.yaml").write_text(f"shop: {{{settings}}}\n")
    dags = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})["dags"]
    schedules = {"rewrite_data_files": "hourly", "expire_snapshots": "daily", "remove_orphan_files": "weekly"}
    for action, schedule in schedules.items():
        check_maintenance(dags[f"maintain_{action}"], schedule)


def check_maintenance(dag: dict[str, Any], schedule: str) -> None:
    assert {name: task["down"] for name, task in dag["tasks"].items()} == {
        "assess": ["effects", "spark_crm", "spark_shop"],
        "spark_crm": ["effects"],
        "spark_shop": ["effects"],
        "effects": ["table"],
        "table": [],
    }
    # Where ingestion has its one slot, maintenance waits for it, unless it has a pool of its own.
    assert {n: (t["pool"], t["timeout"], t["retries"]) for n, t in dag["tasks"].items() if n.startswith("spark")} == {
        "spark_crm": ("sluice_spark", 3600, 2),
        "spark_shop": ("tidy", 1800, 1),
    }
    assert dag["tasks"]["effects"]["rule"] == "all_done"
    assert dag["tasks"]["assess"]["timeout"] == 600 + 2  # a second more for each table
    assert dag["tasks"]["table"]["retries"] == 0
    assert schedule in dag["schedule"]
    assert dag["max_active_runs"] == 1
    assert dag["catchup"] is False
    assert list(dag["params"]) == ["tables", *(["dry_run"] if schedule == "weekly" else [])]


MAINTAIN = """
import json
from sluice.contract.groups import GroupSettings
from sluice_airflow.operators import MaintainOperator
need = {"group": "shop", "reason": "", "error": None}
answers = []
for needs in (
    [{**need, "table": "shop.a", "steps": []}, {**need, "table": "crm.b", "group": "crm", "steps": ["files"]}],
    [{**need, "table": "shop.a", "steps": ["files"]}, {**need, "table": "it's.\\"b", "steps": ["manifests"]}],
    [{**need, "table": f"shop.orders_of_customer_{n}", "steps": ["files"]} for n in range(5000)],
):
    operator = MaintainOperator(
        task_id="m", action="rewrite_data_files", group="shop", seconds=100, settings=GroupSettings(), needs=needs
    )
    said = operator.skip_reason()
    command = operator.ready_hook()._build_spark_submit_command(operator.application)
    named = command[-1]
    read = json.loads(open(named[1:]).read() if named.startswith("@") else named)
    answers.append([said, command[command.index("--name"):], len(read), max(map(len, command))])
flags = []
for wanted in (True, False):
    operator = MaintainOperator(
        task_id="m", action="remove_orphan_files", group="shop", seconds=1, settings=GroupSettings(),
        needs=[{**need, "table": "shop.a", "steps": ["orphans"]}], dry_run="{{ params.dry_run }}",
    )
    operator.render_template_fields({"params": {"dry_run": wanted}})
    operator.skip_reason()
    flags.append("--dry-run" in operator.application_args)
print(json.dumps([*answers, flags]))
"""


def test_maintenance_starts_spark_for_the_tables_that_need_it_and_for_none_without(airflow_env):
    idle, due, many, flags = run_in_airflow(MAINTAIN, airflow_env)
    assert idle[0] == "No table needs anything: no Spark application is started."
    assert due[0] is None
    assert due[1] == [
        "--name",
        "sluice-shop-rewrite_data_files",
        "--deploy-mode",
        "client",
        str(REPOSITORY / "jobs" / "maintain.py"),
        "--action=rewrite_data_files",
        "--run-id={{ run_id }}",
        "--seconds=100",
        "--tables",
        json.dumps(["shop.a", "it's.\"b"]),
    ]
    # Linux takes no argument of 128 KiB.
    assert many[2] == 5000 and many[3] < 128 << 10
    assert flags == [True, False]


TABLE = """
import json, sys
sys.path.insert(0, {dags!r})
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={dags!r}, bundle_name="dags")
module = next(m for n, m in sys.modules.items() if n.endswith("maintain") and hasattr(m, "table"))
module.get_current_context = dict
from sluice.ledger.maintenance_table import ActionResult
need = dict(table="shop.a", group="shop", steps=["files"], reason="9 small files", error=None)
answers = []
for change, effect in json.loads({changes!r}):
    done = ActionResult("shop.a", "rewrite_data_files", **effect) if effect else None
    try:
        module.table.function([module.outcome({{**need, **change}}, done)])
        answers.append("green")
    except Exception as error:
        answers.append(f"{{type(error).__name__}}: {{error}}")
print(json.dumps(answers))
"""


def test_the_task_of_a_table_tells_what_came_of_it(airflow_env):
    changes: list[tuple[dict[str, Any], dict[str, str] | None]] = [
        ({}, {"state": "done"}),
        ({"steps": [], "reason": "3 data files"}, None),
        ({}, None),
        ({}, {"state": "failed", "error": "disk full"}),
        ({}, {"state": "left", "error": "another writer"}),
        ({}, {"state": "begun"}),
        ({"error": "FileNotFoundError: gone"}, None),
    ]
    answers = run_in_airflow(TABLE.format(dags=str(DAGS), changes=json.dumps(changes)), airflow_env)
    assert answers[0] == "green"
    assert answers[1] == "AirflowSkipException: shop.a: 3 data files"
    assert answers[2].startswith(
        "AirflowFailException: shop.a: the Spark application ended before this table (9 small files)"
    )
    assert answers[3] == "AirflowFailException: shop.a: failed, disk full"
    assert answers[4] == "AirflowSkipException: shop.a: left, another writer"
    assert answers[5].endswith("the Spark application ended during this table (9 small files). The next run continues.")
    assert answers[6] == "AirflowFailException: shop.a could not be assessed: FileNotFoundError: gone"


BOUNDED = """
import json
from sluice_airflow import task_mapping
from airflow.sdk.configuration import conf
found = [dict(table=str(n), verdict=name) for n, name in enumerate(["skipped", "red", "green"] * 3)]
told = []
for most in (9, 8, 5, 3):
    conf.set("core", "max_map_length", str(most))
    bounded = task_mapping.group_into_instances(found, lambda each: each["verdict"])
    told.append([[each["table"] for each in some] for some in bounded])
names = [task_mapping.instance_name(each) for each in (found[:1], found * 200)]
print(json.dumps([told, names, task_mapping.join_messages([str(n) for n in range(1500)], "effects")]))
"""


def test_no_more_tables_have_a_task_than_airflow_maps_and_the_red_ones_come_first(airflow_env):
    (whole, eight, five, three), names, told = run_in_airflow(BOUNDED, airflow_env)
    assert whole == [[str(n)] for n in range(9)]
    # What is left over has a task of each colour.
    assert eight == [*([each] for each in "14725"), ["8"], ["0", "3", "6"]]
    assert five == [["1"], ["4"], ["7"], ["2", "5", "8"], ["0", "3", "6"]]
    assert three == [["1", "4", "7"], ["2", "5", "8"], ["0", "3", "6"]]
    assert names == ["0", "1,800 more"]
    assert told.splitlines() == [*map(str, range(20)), "and 1,480 more: see the log of effects"]
    assert MAX_SLICES <= 1024  # as many slices as a plan makes are mapped by the defaults


EFFECTS = """
import json, sys
from types import SimpleNamespace
sys.path.insert(0, {dags!r})
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={dags!r}, bundle_name="dags")
module = next(m for n, m in sys.modules.items() if n.endswith("maintain") and hasattr(m, "table"))
from sluice.iceberg import catalog, tables
from sluice.ledger import maintenance_table
lake = catalog.load()
for action, state in (("expire_snapshots", "done"), ("rewrite_data_files", "failed")):
    effect = maintenance_table.ActionResult("shop.a", action, state, error=action)
    maintenance_table.write_results(lake, [effect], run_id="scheduled__midnight")
needs = [dict(table="shop.a", group="shop", steps=["files"], reason="", error=None)]
ti = SimpleNamespace(xcom_pull=lambda **_: needs)
told = {{}}
for action in ("expire_snapshots", "rewrite_data_files", "remove_orphan_files"):
    task = bag.dags["maintain_" + action].get_task("effects")
    given = {{**task.op_kwargs, "run_id": "scheduled__midnight", "ti": ti}}
    (told[action],) = task.python_callable(*task.op_args, **given)[0]
# Staging of a topic that is in no contract any more.
tables.ensure_staging(lake, "forgotten")
pushed = []
ti = SimpleNamespace(xcom_push=lambda _, value: pushed.append(value), xcom_pull=lambda **_: pushed[-1])
for action, names in (("expire_snapshots", []), ("expire_snapshots", ["shop.orders"]), ("rewrite_data_files", [])):
    for name in ("assess", "effects"):
        task = bag.dags["maintain_" + action].get_task(name)
        given = dict(run_id="r", ti=ti) if name == "effects" else dict(params=dict(tables=names), ti=ti)
        found = task.python_callable(action, **given)
    told.setdefault("unclaimed", []).append([each["told"] for (each,) in found if "forgotten" in each["table"]])
# No time is left but for the first table.
assessing = bag.dags["maintain_rewrite_data_files"].get_task("assess")
told["spare"] = assessing.execution_timeout.total_seconds() - assessing.op_args[1]
assessing.python_callable("rewrite_data_files", -1.0, params=dict(tables=[]), ti=ti, run_id="late")
pushed[-1][0]["steps"] = ["files"]  # as a second look would find
looked_up = bag.dags["maintain_rewrite_data_files"].get_task("effects").python_callable
(told["late"],) = looked_up("rewrite_data_files", run_id="late", ti=ti)[0]
told["waiting"] = sorted({{(each["verdict"], each["told"].split(": ", 1)[1]) for (each,) in looked_up(
    "rewrite_data_files", run_id="late", ti=ti)[1:]}})
print(json.dumps(told))
"""


def test_each_maintenance_reads_its_own_effects(airflow_env, contracts, tmp_path):
    """Scheduled runs of the three have one id where they begin at the same moment."""
    (tmp_path / "lake").mkdir()
    env = {
        **airflow_env,
        "SLUICE_CONTRACTS": str(contracts),
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{tmp_path}/lake/iceberg.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}/lake",
    }
    told = run_in_airflow(EFFECTS.format(dags=str(DAGS)), env)
    assert (told["expire_snapshots"]["verdict"], told["rewrite_data_files"]["verdict"]) == ("green", "red")
    assert "the Spark application ended before this table" in told["remove_orphan_files"]["told"]
    (whole, by_name, other) = told["unclaimed"]
    assert (by_name, other) == ([], [])
    (said,) = whole
    assert said.startswith(
        "sluice_staging.forgotten (topic forgotten): no contract reads its topic any more, so it is not trimmed:"
    )
    assert told["spare"] == 120
    assert told["waiting"] == [
        ["skipped", "not assessed: out of time; the next run begins with the tables that are left"]
    ]
    # That it waits is nothing that was done to it.
    assert told["late"]["verdict"] == "red" and "ended before this table" in told["late"]["told"]


LINKS = """
import json
from unittest import TestCase
from sluice_airflow.dags import alerts
from airflow.sdk.configuration import conf
told = {{}}
for base in ("", "https://airflow.example/"):
    conf.set("api", "base_url", base)
    with TestCase().assertLogs(alerts.log, "INFO") as seen:
        alerts.log.info("looked")
        address = alerts.pages_url()
    told[address] = [each.getMessage() for each in seen.records[1:]]
print(json.dumps(told))
"""


def test_a_link_without_a_host_is_warned_of(airflow_env, contracts):
    told = run_in_airflow(LINKS.format(), {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})
    assert told["https://airflow.example/sluice"] == []
    (warning,) = told["/sluice"]
    assert "base_url is not set" in warning


ALERTED = """
import json, types
from dataclasses import replace
from sluice_airflow.dags import alerts
from airflow.sdk.exceptions import AirflowTaskTimeout
from sluice.contract.groups import NotifierSettings
from sluice.status import incidents, status
kept, heard, hangs = {{}}, [], [True]
class Variable:
    set = staticmethod(lambda name, value, **_: kept.__setitem__(name, value))
alerts.Variable = Variable
alerts.load_incidents = lambda: [incidents.Incident(**each) for each in kept.get(alerts.INCIDENTS_VARIABLE, [])]
alerts.kafka_config = dict
alerts.export_registry_config = lambda: None
status.read_status = lambda *_, **__: None
chat, mail = NotifierSettings(notifier="a.Chat"), NotifierSettings(notifier="a.Mail")
loaded = alerts.contract_folder.load_contracts
def load(**_):
    found = loaded(strict=False)
    common = replace(found.common, alerts=alerts.AlertSettings(notifiers=(chat, mail)))
    return replace(found, common=common)
alerts.contract_folder.load_contracts = load
new = [incidents.Incident(f"k{{n}}", f"t{{n}}", "why", "", "", "") for n in range(3)]
incidents.find_incidents = lambda *_: new
incidents.compare_incidents = lambda found, before, _: (
    [e for e in found if e.title not in {{b.title for b in before}}], list(before), []
)
def tell(settings, incident):
    if settings is mail and hangs[0]:
        raise AirflowTaskTimeout("its time is up")
    heard.append([settings.notifier, incident.title])
    return True
alerts._notify = tell
ends = []
for run in range(4):
    hangs[0] = run < 2
    try:
        alerts.look.function()
        ends.append("green")
    except BaseException as error:
        ends.append(type(error).__name__)
print(json.dumps([ends, heard]))
"""


def test_whoever_was_told_is_not_told_again_though_another_notifier_never_comes_to_an_end(airflow_env, contracts):
    ends, heard = run_in_airflow(ALERTED.format(), {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})
    assert ends == ["AirflowTaskTimeout", "AirflowTaskTimeout", "AirflowFailException", "green"]
    assert sorted(heard) == sorted([who, f"k{n} is t{n}"] for n in range(3) for who in ("a.Chat", "a.Mail"))


def test_a_groups_owners_fit_into_airflows_column_for_them(airflow_env, contracts):
    for n in range(90):
        (contracts / f"own.t{n}.yaml").write_text(
            f"table: own.t{n}\ntopic: t{n}\ngroup: {'own' if n > 1 else 'few'}\nowner: team-warehouse-{n:04}\n"
            "columns: [{name: id, type: long}]\n"
        )
    dags = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})["dags"]
    few, many = ({t["owner"] for t in dags[f"ingest_{group}"]["tasks"].values()} for group in ("few", "own"))
    assert few == {"sluice", "team-warehouse-0000", "team-warehouse-0001"}
    assert len(", ".join(many)) <= 2000


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("x.yaml", f"table: {'n' * 100}.{'t' * 100}\ntopic: t\ngroup: crm\nowner: me\n", "201 characters: a table's"),
        ("groups.yaml", f"crm: {{tags: [{'x' * 101}]}}\n", "at most 100 characters"),
        ("groups.yaml", "crm: {start_date: '0001-01-01T00:00:00+23:00'}\n", "before year 1"),
    ],
    ids=["name", "tag", "date"],
)
def test_what_airflow_would_not_take_is_told_and_stops_no_other_group(airflow_env, contracts, file, text, said):
    (contracts / file).write_text(f"{text}columns: [{{name: id, type: long}}]\n" if file == "x.yaml" else text)
    found = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})
    ((where, told),) = found["errors"].items()
    assert where.endswith("contracts_check.py") and said in told, told
    assert "ingest_shop" in found["dags"]


ZIP = """
import json, os, sys, tempfile
from pathlib import Path
sys.path.insert(0, {dags!r})
from airflow.sdk.exceptions import AirflowFailException
from sluice_airflow import spark_driver
first, second = (spark_driver.package_zip(spark_driver.own_folder("cache")) for _ in range(2))
left = sorted(str(p.relative_to(os.environ["SLUICE_HOME"])) for p in Path(os.environ["SLUICE_HOME"]).rglob("*.*"))


def refusal():
    try:
        spark_driver.spark_log("shop")
    except AirflowFailException as error:
        return str(error)


refused = []
home = Path(os.environ["SLUICE_HOME"])
for part in (home, home / "logs"):
    part.mkdir(exist_ok=True)
    part.chmod(0o777)
    refused.append(refusal())
    part.chmod(0o700)
del os.environ["SLUICE_HOME"]
tempfile.tempdir = {tmp!r}
own = Path({tmp!r}) / f"sluice-{{os.getuid()}}"
own.symlink_to({tmp!r})
refused.append(refusal())
own.unlink()
own.mkdir(mode=0o700)
os.geteuid = lambda: own.stat().st_uid + 1
refused.append(refusal())
os.environ["SLUICE_HOME"] = "/proc/sluice"  # read-only for everybody
refused.append(refusal())
print(json.dumps([first == second, left, refused]))
"""


def test_the_package_is_zipped_once_and_a_folder_of_somebody_elses_is_not_used(airflow_env, tmp_path):
    home = tmp_path / "home"
    code = ZIP.format(dags=str(DAGS), tmp=str(tmp_path))
    same, left, refused = run_in_airflow(code, {**airflow_env, "SLUICE_HOME": str(home)})
    assert same and len(left) == 1 and left[0].endswith("/sluice.zip")
    wanted = ("has mode 0777", "logs has mode 0777", "is a symbolic link", "belongs to another user")
    wanted += ("/proc/sluice can't be used: [Errno",)
    assert all(words in text for words, text in zip(wanted, refused, strict=True)), refused


def test_parsing_is_light(airflow_env):
    """In a process that has imported nothing before."""
    command = [sys.executable, "-c", LOAD]
    told = subprocess.run(command, env=airflow_env, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
    found = json.loads(told.splitlines()[-1])
    print(f"all DAG files parsed in {found['seconds']:.2f} s of processor time")
    assert found["heavy"] == []
    assert "ingest.py" in found["files"] and not [name for name in found["files"] if name.startswith("sluice_")]
    assert found["seconds"] < 5  # a second on a quiet machine; what else runs makes it dearer


def test_a_broken_contract_is_shown_and_stops_no_other_group(airflow_env, contracts):
    broken = contracts / "shop.orders.yaml"
    broken.write_text(broken.read_text() + "colour: red\n")
    found = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})
    by_hand = [
        "accept_gap",
        "backfill",
        "compare",
        "doctor",
        "publish_blocked",
        "rehearse",
        "review_schema",
        "rollback",
    ]
    assert sorted(n for n in found["dags"] if not n.startswith("maintain_")) == sorted(["ingest_crm", *by_hand])
    ((file, text),) = found["errors"].items()
    assert file.endswith("contracts_check.py")
    assert "shop.orders.yaml:6" in text


def test_what_is_done_by_hand_is_a_form_and_a_dry_run_by_default(airflow_env):
    dags = run_in_airflow(LOAD, airflow_env)["dags"]
    for name, fields in (
        ("accept_gap", ["name", "ranges", "why", "dry_run"]),
        ("publish_blocked", ["table", "why", "dry_run"]),
        ("rollback", ["table", "snapshot_id", "before_run", "accept_loss", "why", "dry_run"]),
        ("rehearse", ["table", "scenarios", "records", "drop_left"]),
    ):
        dag = dags[name]
        assert (dag["schedule"], dag["max_active_runs"], dag["tags"]) == ("None", 1, ["by hand", "sluice"])
        assert list(dag["params"]) == fields
        (task,) = dag["tasks"].values()
        assert (task["retries"], task["timeout"]) == (0, 7200 if name == "rehearse" else 300)


def test_a_change_under_review_is_a_list_in_which_names_stay_text(airflow_env):
    lines = ["db.t: version 2", "change    adds the column `a` (add)", "approve   the table is changed"]
    code = f"""
import json, sys
sys.path.insert(0, {str(REPOSITORY / "plugins")!r})
from sluice_airflow.dags import review_schema
print(json.dumps(review_schema.as_list({lines!r})))
"""
    assert run_in_airflow(code, airflow_env).splitlines() == [
        "` db.t: version 2 `", "", "- **change** `` adds the column `a` (add) ``",
        "- **approve** ` the table is changed `",
    ]  # fmt: skip


def test_a_review_waits_for_a_person_between_showing_and_applying(airflow_env):
    dag = run_in_airflow(LOAD, airflow_env)["dags"]["review_schema"]
    assert (dag["schedule"], dag["params"]) == ("None", ["table"])
    downstream = {name: task["down"] for name, task in dag["tasks"].items()}
    assert downstream == {"show": ["apply", "decide"], "decide": ["apply"], "apply": ["bring"], "bring": []}
    assert dag["tasks"]["decide"]["timeout"] is None


def test_a_backfill_has_two_tasks_for_each_group_and_stays_behind_its_ingestion(airflow_env, contracts):
    (contracts / "groups.yaml").write_text("crm: {pool: crm_spark, timeout: 2h, retries: 5}\n")
    found = run_in_airflow(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})
    assert found["errors"] == {}
    dag = found["dags"]["backfill"]
    # Another group's, or a dry run, does not wait for one that takes hours.
    assert (dag["schedule"], dag["max_active_runs"], dag["tags"]) == ("None", 8, ["by hand", "sluice"])
    fields = ["table", "topic", "ranges", "since", "until", "source", "why", "dry_run"]
    assert dag["params"] == fields
    tasks = dag["tasks"]
    assert {name: task["down"] for name, task in tasks.items()} == {
        "plan": ["outcome", "slices_of_crm", "slices_of_shop"],
        "slices_of_crm": ["spark_crm"],
        "slices_of_shop": ["spark_shop"],
        "spark_crm": ["outcome"],
        "spark_shop": ["outcome"],
        "outcome": [],
    }
    assert tasks["outcome"]["rule"] == "all_done"
    spark = tasks["spark_crm"]
    assert (spark["pool"], spark["timeout"], spark["retries"], spark["mapped"]) == ("crm_spark", 7200, 5, True)
    assert tasks["spark_shop"]["pool"] == "sluice_spark"
    # Airflow gives a free slot to the greater weight first.
    assert spark["weight"] < found["dags"]["ingest_crm"]["tasks"]["ingest"]["weight"]


SLICE = """
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={dags!r}, bundle_name="dags")
mapped = bag.dags["backfill"].get_task("spark_shop")
def submitted(*numbers):
    work = dict(table="shop.orders", topic="shop.orders", origin="staging", slices=numbers, run_id="manual__1")
    operator = mapped.unmap({{**mapped.expand_input.value, "work": work}})
    return [operator.application, operator.application_args, operator.log_name, operator.map_name]


slices_of = bag.dags["backfill"].get_task("slices_of_shop").python_callable
promised = dict(table="shop.orders", topic="shop.orders", origin="staging", slices=[-n for n in range(1, 46)])
print(json.dumps([submitted(-3), submitted(-3, -4, -5), slices_of(promised, run_id="manual__1")]))
"""


def test_slices_share_a_submit(airflow_env, contracts):
    env = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    one, three, works = run_in_airflow(SLICE.format(dags=str(DAGS)), env)
    application, arguments, log, name = one
    assert application == str(REPOSITORY / "jobs" / "backfill.py")
    # A topic, and a run's id, may begin with a dash.
    given = "--table=shop.orders --topic=shop.orders --source=staging --run-id=manual__1 --slices=-3 --seconds=240"
    assert arguments == given.split()
    assert (log, name) == ("shop-backfill-3", "slice -3")
    assert three[1][-2] == "--slices=-3,-4,-5"
    assert three[2:] == ["shop-backfill-3", "slices -3 to -5"]
    assert [len(each["slices"]) for each in works] == [20, 20, 5]
    assert [n for each in works for n in each["slices"]] == [-n for n in range(1, 46)]


BACKFILL = """
import json, sys, types
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.configuration import conf
bag = DagBag(dag_folder={dags!r}, bundle_name="dags")
plan, outcome = (bag.dags["backfill"].get_task(name).python_callable for name in ("plan", "outcome"))
from sluice.backfill import backfill_plan
from sluice.iceberg import catalog
params = dict(table="shop.orders", ranges={{}}, since=None, until=None, topic=None, why="lost", dry_run=True)
ti = types.SimpleNamespace(xcom_pull=lambda **_: dict(table="shop.orders", topic="shop.orders", slices=[-1]))
told = []
for ask in (
    lambda: plan(params=dict(params, source="staging")),
    lambda: plan(params=dict(params, source="staging", dry_run=False), run_id="r"),
    lambda: outcome(ti=ti),
):
    try:
        told.append(ask())
    except Exception as error:
        told.append([type(error).__name__, str(error)])
mapped = []
catalog.load = lambda: types.SimpleNamespace(list_namespaces=lambda: [], list_tables=lambda *_: [])
backfill_plan.write_backfill = lambda *_, max_slices, **__: mapped.append(max_slices) or 1 / 0
for most in (500, 5000):
    conf.set("core", "max_map_length", str(most))
    try:
        plan(params=dict(params, source="staging", dry_run=False), run_id="r")
    except ZeroDivisionError:
        pass
print(json.dumps([told, mapped]))
"""


NEWS = """
import json, logging, sys, types
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import AssetAlias
from airflow.sdk.execution_time.callback_runner import create_executable_runner
from airflow.sdk.execution_time.context import OutletEventAccessors
bag = DagBag(dag_folder={dags!r}, bundle_name="dags")
outcome = bag.dags["backfill"].get_task("outcome").python_callable
module = next(m for n, m in sys.modules.items() if n.endswith("backfill") and hasattr(m, "slices_of"))
from sluice.backfill import backfill_outcome
module.open_catalog = lambda: (None, None)
told, lineage = [], []
module.lineage.emit_lineage = lambda found: lineage.append(found["batches"])
promised = dict(table="shop.orders", topic="t", slices=[-1])
ti = types.SimpleNamespace(xcom_pull=lambda **_: promised)
there = dict(slice=-1, snapshot_id=7, told="replayed")
news = dict(table="shop.orders", location="file:///x", backfill=True, batches=dict(t=[-1]), snapshot_id=7)
for found, new in (([there], news), ([there], None), ([there, dict(there, slice=-2, snapshot_id=None)], news)):
    backfill_outcome.collect_outcome, backfill_outcome.asset_event = lambda *_: found, lambda *_: new
    events = OutletEventAccessors()
    try:
        state = len(outcome(ti=ti, outlet_events=events))
    except Exception as error:
        state = type(error).__name__
    made = events[AssetAlias("backfill.table")].asset_alias_events
    told.append([state, [[e.dest_asset_key.name, e.dest_asset_key.uri, e.extra] for e in made]])
print(json.dumps([told, lineage]))
"""


def test_a_backfill_that_changed_its_table_tells_of_the_same_asset_as_ingestion(airflow_env, contracts):
    env = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    told, lineage = run_in_airflow(NEWS.format(dags=str(DAGS)), env)
    dags = run_in_airflow(LOAD, env)["dags"]
    (asset,) = dags["ingest_shop"]["tasks"]["shop.orders"]["outlets"]
    extra = {"backfill": True, "batches": {"t": [-1]}, "snapshot_id": 7}
    assert told == [[1, [[*asset, extra]]], [1, []], ["AirflowFailException", []]]
    assert lineage == [{"t": [-1]}] * 2  # what is in the table of a red run is there
    assert dags["backfill"]["tasks"]["outcome"]["outlets"] == [["backfill.table", None]]

    (contracts / "groups.yaml").write_text("shop: {asset_events: table}\n")
    told, lineage = run_in_airflow(NEWS.format(dags=str(DAGS)), env)
    assert told == [[1, []], [1, []], ["AirflowFailException", []]]  # a watcher emits the event
    assert lineage == [{"t": [-1]}] * 2


def test_a_backfill_without_a_catalog_says_so_and_is_tried_again_and_airflow_bounds_its_slices(airflow_env, contracts):
    away = {"PYICEBERG_CATALOG__LAKE__TYPE": "rest", "PYICEBERG_CATALOG__LAKE__URI": "http://127.0.0.1:9/"}
    env = {**airflow_env, **away, "SLUICE_CONTRACTS": str(contracts)}
    told, mapped = run_in_airflow(BACKFILL.format(dags=str(DAGS)), env)
    assert [name for name, _ in told] == ["CatalogUnavailableError"] * 3  # nothing that Airflow does not try again
    assert all("The Iceberg catalog did not answer: " in text for _, text in told)
    assert mapped == [500, 5000]
    tasks = run_in_airflow(LOAD, env)["dags"]["backfill"]["tasks"]
    assert [tasks[name]["retries"] for name in ("plan", "slices_of_shop", "outcome")] == [3, 3, 3]


FORM = f"""
import copy, json
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError
bag = DagBag(dag_folder={str(DAGS)!r}, bundle_name="dags")
out = []
for name, values in FORMS:
    params = copy.deepcopy(bag.dags[name].params)
    try:
        params.update(values)
        params.validate()
        out.append("taken")
    except ParamValidationError as error:
        out.append("refused")
print(json.dumps(out))
"""


def test_bad_input_is_refused_by_the_form(airflow_env, contracts):
    gap, back = {"name": "shop.orders", "why": "lost"}, {"table": "shop.orders", "why": "wrong"}
    request = Request("shop.orders", {0: OffsetRange(3, 4)}, origin=Origin.QUARANTINE, topic="t", why="approved")
    (bring,) = review_schema.ReviewResult([], [request]).forms()
    forms = [
        ("accept_gap", gap, "taken"),
        ("accept_gap", {**gap, "ranges": {"0": [100, 5000], "17": [0, 1]}, "dry_run": False}, "taken"),
        ("accept_gap", {"name": "shop.orders"}, "refused"),
        ("accept_gap", {**gap, "name": "shop.order"}, "refused"),
        ("accept_gap", {"why": "lost"}, "refused"),
        ("accept_gap", {**gap, "why": ""}, "refused"),
        ("accept_gap", {**gap, "ranges": {"0": [100]}}, "refused"),
        ("accept_gap", {**gap, "ranges": {"0": [-1, 5]}}, "refused"),
        ("accept_gap", {**gap, "ranges": {"all": [1, 5]}}, "refused"),
        ("accept_gap", {**gap, "ranges": {"0": [1, 5], "00": [7, 9]}}, "refused"),
        ("accept_gap", {**gap, "ranges": {"9" * 5000: [1, 5]}}, "refused"),
        ("rollback", {**back, "snapshot_id": "8612345678901234567"}, "taken"),
        ("rollback", {**back, "before_run": "scheduled__2026-01-01", "accept_loss": "shop.orders"}, "taken"),
        ("rollback", {"table": "shop.orders", "snapshot_id": "1"}, "refused"),
        ("rollback", {**back, "dry_run": "perhaps"}, "refused"),
        ("backfill", back, "taken"),
        ("backfill", {**back, "ranges": {"0": [1, 5]}, "source": "staging", "dry_run": False}, "taken"),
        ("backfill", {**back, "since": "2026-01-31T06:00:00+00:00", "topic": "t"}, "taken"),
        ("backfill", bring, "taken"),
        ("backfill", {**back, "since": "yesterday"}, "refused"),
        ("backfill", {**back, "source": "memory"}, "refused"),
        ("backfill", {**back, "ranges": {"0": [5]}}, "refused"),
        ("backfill", {"table": "shop.orders"}, "refused"),
        ("backfill", {**back, "table": "shopXorders"}, "refused"),
        ("review_schema", {"table": "shop.orders"}, "taken"),
        ("review_schema", {"table": "shop.orders "}, "refused"),
    ]
    given = [(name, values) for name, values, _ in forms]
    env = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    assert run_in_airflow(FORM.replace("FORMS", repr(given)), env) == [expected for *_, expected in forms]


def test_a_form_takes_the_tables_of_a_template_and_any_where_contracts_have_problems(airflow_env, contracts):
    file = contracts / "shop.orders.yaml"
    text = file.read_text()
    many = text.replace("table: shop.orders", "table: 'shop.{topic}_new'")
    (contracts / "many.yaml").write_text(re.sub("topic: .*", "topic: {pattern: 'orders-.*'}", many))
    env = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    why = {"why": "wrong"}
    given = [("rollback", {"table": each, **why}) for each in ("shop.orders_7_new", "shop.orders_7", "crm.people")]
    given.append(("accept_gap", {"name": "orders-7", **why}))
    asked = FORM.replace("FORMS", repr(given))
    assert run_in_airflow(asked, env) == ["taken", "refused", "taken", "taken"]
    file.write_text(f"{text}colour: red\n")
    assert run_in_airflow(asked, env) == ["taken"] * 4


AWAY = f"""
import json, types
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={str(DAGS)!r}, bundle_name="dags")
from sluice.kafka import broker
broker.TIMEOUT_S = 0.2
params = {{"name": "shop.a", "table": "shop.a", "tables": [], "ranges": {{"0": [0, 1]}}, "snapshot_id": "1",
          "before_run": None, "accept_loss": "", "since": None, "until": None, "topic": None, "source": "kafka",
          "why": "lost", "dry_run": True, "scenarios": [], "records": 9, "drop_left": False}}
ti = types.SimpleNamespace(xcom_pull=lambda **_: dict(table="shop.a", topic="shop.a", slices=[-1]))
answer = {{"chosen_options": ["Approve"], "params_input": {{}}, "responded_by_user": None}}
by_hand, maintained = {{"params": params}}, {{"params": params, "ti": ti, "run_id": "r"}}
told = {{}}
for dag, task, given, named in (
    ("accept_gap", "accept_gap", [], by_hand), ("publish_blocked", "publish_blocked", [], by_hand),
    ("rollback", "rollback", [], by_hand), ("rehearse", "rehearse", [], by_hand),
    ("review_schema", "show", [], by_hand), ("review_schema", "apply", [{{"change": "1"}}, answer], by_hand),
    ("backfill", "plan", [], {{**by_hand, "run_id": "r"}}), ("backfill", "outcome", [], {{"ti": ti}}),
    ("ingest_shop", "plan", ["shop"], {{"run_id": "r"}}), ("ingest_shop", "settle", ["shop", {{}}], {{"run_id": "r"}}),
    *((f"maintain_{{action}}", "assess", [action], {{"params": params, "ti": ti}})
      for action in ("rewrite_data_files", "expire_snapshots", "remove_orphan_files")),
    ("maintain_rewrite_data_files", "effects", ["rewrite_data_files"], {{"run_id": "r", "ti": ti}}),
):
    try:
        found = bag.dags[dag].get_task(task).python_callable(*given, **named)
        told[dag, task] = ["", str(found)]
    except BaseException as error:
        told[dag, task] = [type(error).__name__, str(error)]
print(json.dumps([[*which, *what] for which, what in told.items()]))
"""


IDLE = f"""
import json, types
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={str(DAGS)!r}, bundle_name="dags")
from sluice.maintain import assess
pushed = []
ti = types.SimpleNamespace(xcom_push=lambda _, value: pushed.append(value))
task = bag.dags["maintain_rewrite_data_files"].get_task("assess").python_callable
told = []
for steps, error in ((), ""), (("binpack",), ""), ((), "it is damaged"):
    need = types.SimpleNamespace(table="shop.a", steps=steps, reason="small", error=error)
    assess.assess_tables = lambda *_, **__: [need]
    told.append(task("rewrite_data_files", params=dict(tables=[]), ti=ti, run_id="r"))
print(json.dumps([told, [each["table"] for (each,) in pushed]]))
"""


def test_maintenance_with_nothing_to_do_is_skipped_as_a_whole(contracts, airflow_env, tmp_path):
    (contracts / "shop.a.yaml").write_text(
        "table: shop.a\ntopic: shop.a\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    lake = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/lake.db", "WAREHOUSE": f"file://{tmp_path}"}
    env = {**airflow_env, **{f"PYICEBERG_CATALOG__LAKE__{name}": value for name, value in lake.items()}}
    told, pushed = run_in_airflow(IDLE, {**env, "SLUICE_CONTRACTS": str(contracts)})
    assert told == [[], ["effects", "spark_shop"], ["effects"]]
    assert pushed == ["shop.a"] * 3


def test_what_does_not_answer_is_named_by_every_task_with_the_way_out(contracts, airflow_env, tmp_path):
    (contracts / "shop.a.yaml").write_text(
        "table: shop.a\ntopic: shop.a\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    env = {**airflow_env, "SLUICE_CONTRACTS": str(contracts), "AIRFLOW_CONN_SLUICE_REGISTRY": ""}
    away = {"PYICEBERG_CATALOG__LAKE__TYPE": "rest", "PYICEBERG_CATALOG__LAKE__URI": "http://127.0.0.1:9/"}
    told = run_in_airflow(AWAY, {**env, **away})
    assert len(told) == 14
    for *which, kind, text in told:
        # Airflow tries it again, where the task has tries left.
        assert kind == "CatalogUnavailableError", (which, text)
        assert text.startswith("The Iceberg catalog did not answer: ConnectionError"), which
        assert "Next step: Nothing is lost" in text, which

    (tmp_path / "lake").mkdir()
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:9"}}
    there = {
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{tmp_path}/lake/iceberg.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}/lake",
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps(kafka),
    }
    told = run_in_airflow(AWAY, {**env, **there})
    asking = [("accept_gap", "accept_gap"), ("backfill", "plan"), ("ingest_shop", "plan")]
    said = {(dag, task): (kind, text) for dag, task, kind, text in told if (dag, task) in asking}
    assert len(said) == len(asking)
    for which, (kind, text) in said.items():
        assert kind == "BrokerUnavailableError", (which, text)
        assert text.startswith("Kafka did not answer: "), (which, text)
        assert "Next step: Check that the brokers of connection sluice_kafka are reachable" in text, which


SUBMIT = """
import json, os, sys
from sluice_airflow import connections
from airflow.sdk.exceptions import AirflowFailException
from sluice.contract.groups import GroupSettings
from sluice_airflow.operators import IngestOperator
from sluice_airflow.spark_driver import driver_env, spark_log


def submit(small, settings):
    promised = {"has_work": True, "is_small": small}
    settings = GroupSettings.model_validate({"spark": settings})
    operator = IngestOperator(task_id="ingest", group="shop", settings=settings, promised=promised)
    try:
        hook = operator.ready_hook()
    except AirflowFailException as error:
        return {"error": str(error)}
    command = hook._build_spark_submit_command(operator.application)
    rendered = {name: str(getattr(operator, name)) for name in operator.template_fields}
    env = driver_env(spark_log("shop"), operator.spark_home)
    os.environ.pop("SLUICE_REGISTRY_CONFIG", None)
    connections.export_registry_config()
    return {"command": command, "rendered": rendered, "env": env, "own": dict(os.environ)}


print(json.dumps([submit(*each) for each in json.loads(sys.argv[1])]))
"""


def submit(env: dict[str, str], *asked: tuple[bool, dict[str, Any]]) -> list[Any]:
    """What each run is submitted with: whether it is a small one, and its group's settings of Spark."""
    return list(run_in_airflow(SUBMIT, env, json.dumps(asked)))


def test_the_submit_command_holds_all_and_no_secret(airflow_env, tmp_path):
    settings = {"driver_memory": "3g", "conf": {"spark.sql.shuffle.partitions": "4"}}
    (found,) = submit({**airflow_env, "PYSPARK_PYTHON": "/only/on/executors"}, (False, settings))
    jars = tmp_path / "cache" / "jars"
    home = Path(found["env"]["SPARK_HOME"])
    assert home.parent == tmp_path / "cache"
    assert not list((home / "jars").glob("slf4j-api-*")) and list((home / "jars").glob("0-slf4j-api-*"))
    log = REPOSITORY / "jobs" / "log4j2.properties"
    options = [
        "-XX:+UseParallelGC",
        "-XX:MetaspaceSize=256m",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:+AutoCreateSharedArchive",
        f"-XX:SharedArchiveFile={home / 'driver.jsa'}",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]
    assert found["command"] == [
        "spark-submit",
        "--master",
        "local[2]",
        "--conf",
        f"spark.driver.defaultJavaOptions={shlex.join(['-Xss64m', f'-Dlog4j2.configurationFile={log}'])}",
        "--conf",
        f"spark.driver.extraJavaOptions={' '.join(options)}",
        "--conf",
        "spark.sql.shuffle.partitions=4",
        "--driver-class-path",
        f"{jars / 'a.jar'}:{jars / 'b.jar'}",
        "--driver-memory",
        "3g",
        "--name",
        "sluice-shop",
        "--deploy-mode",
        "client",
        str(REPOSITORY / "jobs" / "ingest.py"),
        "--group=shop",
        "--run-id={{ run_id }}",
    ]
    assert SECRET not in json.dumps([found["command"], found["rendered"]])
    assert json.loads(found["env"]["SLUICE_KAFKA_CONFIG"])["sasl.password"] == SECRET
    assert json.loads(found["env"]["SLUICE_REGISTRY_CONFIG"]) == {
        "url": "https://registry:8081/apis",
        "basic.auth.user.info": f"sluice:{SECRET}",
        "ssl.ca.location": "/ca.pem",
    }
    assert found["own"]["SLUICE_REGISTRY_CONFIG"] == found["env"]["SLUICE_REGISTRY_CONFIG"], "a plan asks it, too"
    assert found["env"]["SLUICE_SPARK_LOG"] == str(tmp_path / "home" / "logs" / "spark-shop.log")
    assert (found["env"]["PYSPARK_PYTHON"], found["env"]["PYSPARK_DRIVER_PYTHON"]) == (
        "/only/on/executors",
        sys.executable,
    )


def test_a_driver_gets_nothing_of_airflows_environment(airflow_env):
    more = "DB_WALLET, TEAM_*, AIRFLOW__CORE__FERNET_KEY, AIRFLOW_CONN_*, AIRFLOW_*, *"
    secrets = {
        "AIRFLOW__CORE__FERNET_KEY": SECRET,
        "AIRFLOW__API_AUTH__JWT_SECRET": SECRET,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:////tmp/{SECRET}",
        "AIRFLOW_CONN_MAIL": f"smtp://x:{SECRET}@mail",
        "AIRFLOW_VAR_TOKEN": SECRET,
        "MY_FERNET_KEY": SECRET,
        "jwt_secret": SECRET,
        "SLUICE_PAGES_PASSWORD": SECRET,
    }
    wanted = {
        "AWS_SECRET_ACCESS_KEY": "a", "AZURE_CLIENT_SECRET": "b", "GOOGLE_APPLICATION_CREDENTIALS": "c",
        "HADOOP_CONF_DIR": "d", "SPARK_LOCAL_IP": "127.0.0.1", "PYICEBERG_CATALOG__LAKE__URI": "e", "LC_ALL": "C.UTF-8",
        "https_proxy": "http://proxy", "NO_PROXY": ".inside", "SLUICE_MASK_KEY": "f", "KRB5_CONFIG": "g",
        "SLUICE_NAMESPACE_PREFIX": "dev_",
        "SSL_CERT_FILE": "/ca.pem", "JAVA_TOOL_OPTIONS": "-Dh=i", "KUBERNETES_SERVICE_HOST": "j", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    others = {"DB_WALLET": "k", "TEAM_A": "l", "UNRELATED_TOKEN": "m"}
    given = {**airflow_env, **secrets, **wanted, **others}
    (plain,) = submit(given, (False, {}))
    assert {name: plain["env"].get(name) for name in wanted} == wanted
    assert not plain["env"].keys() & others.keys() and plain["env"]["PATH"]
    (listed,) = submit({**given, "SLUICE_DRIVER_ENV": more}, (False, {}))
    assert {name: listed["env"].get(name) for name in others} == others
    for found in (plain, listed):
        # What the connections say of Kafka and the registry is all that a driver is told of Airflow.
        found["env"].pop("SLUICE_KAFKA_CONFIG"), found["env"].pop("SLUICE_REGISTRY_CONFIG")
        assert not found["env"].keys() & secrets.keys() and SECRET not in json.dumps(found["env"])
        assert not [name for name in found["env"] if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))]


def test_a_driver_has_its_stack_whatever_options_its_group_gives(airflow_env, tmp_path):
    """Spark's own launcher starts it, from a cache whose name has a space."""
    jars = Path(shutil.copytree(airflow_env["SLUICE_JARS"], tmp_path / "it's my cache" / "jars"))
    flags = "-XX:+UseG1GC -XX:+PrintFlagsFinal"
    conf = {"spark.driver.extraJavaOptions": flags, "spark.driver.defaultJavaOptions": "-XX:+UseStringDeduplication"}
    found, plain = submit({**airflow_env, "SLUICE_JARS": str(jars)}, (False, {"conf": conf}), (False, {}))
    (options,) = [part for part in plain["command"] if part.startswith("spark.driver.extraJavaOptions=")]
    archives = [part for part in shlex.split(options) if "SharedArchiveFile" in part]
    assert archives == [f"-XX:SharedArchiveFile={plain['env']['SPARK_HOME']}/driver.jsa"] and "my cache" in archives[0]
    command = found["command"][: found["command"].index(str(REPOSITORY / "jobs" / "ingest.py"))]
    told = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), *command[1:], "--version"],
        env={**found["env"], "JAVA_HOME": str(find_java(cache_folder()).home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    sizes = dict(re.findall(r"^ *\w+ (\w+) += (\w+) ", told, re.MULTILINE))
    assert sizes["ThreadStackSize"] == str(64 << 10), "KiB"
    assert sizes["UseG1GC"] == sizes["UseStringDeduplication"] == "true"
    options = session.merge_defaults({session.EXECUTOR_OPTIONS: "-Dx=y"})[session.EXECUTOR_OPTIONS]
    assert options.startswith("-Xss64m ") and options.endswith(" -Dx=y"), "executors, too"


def test_a_cluster_gets_the_jars_and_the_package(airflow_env, tmp_path):
    (found,) = submit(airflow_env, (False, {"connection": "cluster"}))
    command, home = found["command"], Path(found["env"]["SPARK_HOME"])
    jars = tmp_path / "cache" / "jars"
    assert command[command.index("--master") + 1] == "spark://master:7077"
    assert command[command.index("--jars") + 1] == f"{jars / 'a.jar'},{jars / 'b.jar'}"
    assert command[command.index("--py-files") + 1].endswith("sluice.zip")
    assert "--driver-class-path" not in command
    assert home.parent == tmp_path / "cache" / "cluster", "an archive of its own, as its class path is another"
    assert f"-XX:SharedArchiveFile={home / 'driver.jsa'}" in " ".join(command)


def test_a_driver_with_little_to_do_does_without_the_second_compiler(airflow_env):
    found = submit(airflow_env, (True, {}), (False, {}), (False, {"connection": "cluster"}))
    for each, without in zip(found, (True, False, True), strict=True):
        (options,) = [part for part in each["command"] if part.startswith("spark.driver.extraJavaOptions=")]
        assert ("-XX:TieredStopAtLevel=1" in options) is without
        assert ("-XX:ReservedCodeCacheSize=240m" in options) is without


def test_a_connection_that_is_no_use_is_an_error_of_its_own(airflow_env):
    nowhere, away = submit(airflow_env, (False, {"connection": "nowhere"}), (False, {"connection": "away"}))
    assert "'nowhere' does not exist" in nowhere["error"]
    assert "deploy mode 'cluster'" in away["error"]


def test_a_connection_means_the_master_that_spark_submit_gets(airflow_env):
    names = ("host", "no_port", "local_cluster", "kubernetes")
    host, *refused, kubernetes = submit(airflow_env, *((False, {"connection": name}) for name in names))
    command = host["command"]
    assert command[command.index("--master") + 1] == "spark://localhost:7077"
    assert command[command.index("--deploy-mode") + 1] == "client"
    assert "--py-files" in command, "a cluster, whatever its host is called"
    for found, master in zip(refused, ("localhost", "local-cluster[2,1,1024]"), strict=True):
        assert f"the master '{master}', which Sluice can't use" in found["error"]
    assert "Install apache-airflow-providers-cncf-kubernetes" in kubernetes["error"]


DOCTOR = """
import json, logging, sys
from airflow.sdk.exceptions import AirflowFailException
from airflow.dag_processing.dagbag import DagBag

lines = []
class Kept(logging.Handler):
    def emit(self, record):
        lines.append(f"{record.levelname} {record.getMessage()}")

logging.getLogger("sluice_airflow.dags.doctor").addHandler(Kept())
check = DagBag(dag_folder=sys.argv[1], bundle_name="dags").dags["doctor"].get_task("check").python_callable
failed = []
for names in json.loads(sys.argv[2]):
    try:
        check(params={"checks": names})
    except AirflowFailException as error:
        failed.append(str(error))
print(json.dumps({"lines": lines, "failed": failed}))
"""


def test_the_doctor_says_what_a_task_lacks_and_its_next_step(airflow_env, contracts):
    (contracts / "groups.yaml").write_text("shop: {spark: {connection: away}}\ncrm: {spark: {connection: gone}}\n")
    asked = [["contracts", "airflow"], ["contracts"], ["contacts"]]
    given = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    found = run_in_airflow(DOCTOR, given, str(DAGS / "doctor.py"), json.dumps(asked))
    well, bad, again = found["lines"]
    assert well == again and re.match(r"INFO ok +contracts +2 in ", well), well
    assert re.match(r"ERROR failed +airflow +In Airflow, connection gone does not exist; connection away has de", bad)
    assert bad.endswith("Next step: Create or correct the connections as docs/connect/platform.md shows.")
    assert found["failed"][0].startswith("Not well: airflow. Next step: Create or correct the connections")
    assert found["failed"][1].startswith("No check is named contacts. The checks are versions, java,")


COMPARE = """
import json, sys
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException
from airflow.dag_processing.dagbag import DagBag
from sluice.iceberg import catalog
from sluice.ledger import pilot_table

dag = DagBag(dag_folder=sys.argv[1], bundle_name="dags").dags["compare"]
given = {name: param.value for name, param in dag.params.items()} | json.loads(sys.argv[2])
pushed, run = {}, SimpleNamespace(triggering_user_name="eve")
ti = SimpleNamespace(xcom_push=pushed.__setitem__)
check = dag.get_task("check").python_callable
next_tasks = check(params=given, dag_run=run, ti=ti)
operator = dag.get_task("spark_crm")
rows = [
    pilot_table.PilotRow("crm.people", pilot_table.Stage.COMPARED, ok, text, run_id=run_id)
    for ok, text, run_id in ((True, "equal: 3 rows, 2 columns", "r1"), (False, "different: 1 key", "r2"))
]
with catalog.load() as opened:
    pilot_table.record(opened, *rows)
verdict, failed = dag.get_task("verdict").python_callable, []
told = [verdict(params=given | {"fail_on_difference": fail}, run_id=r) for fail, r in ((True, "r1"), (False, "r2"))]
for function, values in (
    (verdict, {"params": given | {"fail_on_difference": True}, "run_id": "r2"}),
    (verdict, {"params": given, "run_id": "r3"}),
    (check, {"params": given | {"tolerance": {"id": 1}, "ignore": ["id"]}, "dag_run": run, "ti": ti}),
):
    try:
        function(**values)
    except AirflowFailException as error:
        failed.append(str(error))
print(json.dumps({
    "next": next_tasks, "asked": pushed["asked"], "told": told, "failed": failed, "params": list(dag.params),
    "pool": operator.pool, "downstream": sorted(operator.downstream_task_ids), "tags": sorted(dag.tags),
}))
"""


def test_a_comparison_is_asked_for_by_a_form_and_fails_on_differences_if_asked(airflow_env, contracts, tmp_path):
    form = {"table": "crm.people", "other": "old.people", "since": "2026-11-29T12:00:00Z", "tolerance": {"n": 0.1}}
    lake = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/lake.db", "WAREHOUSE": f"file://{tmp_path}"}
    given = {**airflow_env, "SLUICE_CONTRACTS": str(contracts)}
    given |= {f"PYICEBERG_CATALOG__LAKE__{name}": value for name, value in lake.items()}
    found = run_in_airflow(COMPARE, given, str(DAGS / "compare.py"), json.dumps(form))
    assert found["next"] == ["spark_crm", "verdict"]
    assert found["asked"]["who"] == "eve"
    asked = json.loads(found["asked"]["request"])
    assert (asked["other"], asked["since"], asked["tolerance"]) == ("old.people", "2026-11-29T12:00:00Z", {"n": "0.1"})
    assert found["told"] == ["equal: 3 rows, 2 columns", "different: 1 key"]
    differs, silent, wrong = found["failed"]
    assert differs == "crm.people and old.people are different: 1 key"
    assert silent == "The application has ended, and wrote no verdict into sluice.pilot."
    assert wrong.startswith("column 'id' is ignored, and has a tolerance.")
    assert (found["pool"], found["downstream"], found["tags"]) == ("sluice_spark", ["verdict"], ["by hand", "sluice"])
    assert found["params"][:2] == ["table", "other"] and found["params"][-1] == "fail_on_difference"
