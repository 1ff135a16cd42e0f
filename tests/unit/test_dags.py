"""The DAG files: what they make of the contracts, how light they are, and the command that starts Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.embedded.home import REPOSITORY

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
        **{k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "SLUICE", "PYICEBERG"))},
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://",
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_CONN_CLUSTER": json.dumps({"conn_type": "spark", "host": "spark://master", "port": 7077}),
        "AIRFLOW_CONN_AWAY": json.dumps({"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}),
        "PYTHONPATH": f"{REPOSITORY / 'include'}{os.pathsep}{DAGS}",
        "SLUICE_HOME": str(tmp_path / "home"),
        "SLUICE_JARS": str(jars),
    }


def ask(program: str, env: dict[str, str]) -> Any:
    """Run a program in an Airflow of its own; returns what it prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LOAD = f"""
import json, sys, time
import airflow.sdk
before = set(sys.modules)
from airflow.dag_processing.dagbag import DagBag
began = time.monotonic()
bag = DagBag(dag_folder={str(DAGS)!r}, bundle_name="dags")
seconds = time.monotonic() - began
dags = {{
    name: {{
        "tasks": {{
            t.task_id: {{
                "down": sorted(t.downstream_task_ids), "retries": t.retries, "rule": str(t.trigger_rule.value),
                "pool": t.pool, "outlets": [[a.name, a.uri] for a in t.outlets], "owner": t.owner,
                "timeout": t.execution_timeout and t.execution_timeout.total_seconds(),
            }}
            for t in dag.tasks
        }},
        "catchup": dag.catchup, "max_active_runs": dag.max_active_runs, "tags": sorted(dag.tags), "doc": dag.doc_md,
        "schedule": str(dag.schedule),
    }}
    for name, dag in bag.dags.items()
}}
heavy = [m for m in {HEAVY!r} if m in sys.modules]
print(json.dumps({{"dags": dags, "errors": bag.import_errors, "heavy": heavy, "seconds": seconds}}))
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
    found = ask(LOAD, airflow_env)
    assert found["errors"] == {}
    dag = found["dags"]["ingest_aviation"]
    tables = ["aviation.airports", "aviation.flights", "aviation.planes"]
    assert {name: task["down"] for name, task in dag["tasks"].items()} == {
        "plan": ["ingest", "settle"],
        "ingest": ["settle"],
        "settle": tables,
        **{name: [] for name in tables},
    }
    assert dag["max_active_runs"] == 1
    assert dag["catchup"] is False
    assert dag["tags"] == ["aviation", "demo", "sluice"]
    assert "`aviation.flights` (append) from flights" in dag["doc"]
    assert dag["tasks"]["ingest"]["pool"] == "sluice_spark"
    assert dag["tasks"]["ingest"]["timeout"] == 3600
    assert dag["tasks"]["ingest"]["retries"] == 2
    assert dag["tasks"]["settle"]["rule"] == "all_done"
    assert dag["tasks"]["aviation.flights"]["outlets"] == [["aviation.flights", "iceberg://lake/aviation/flights"]]
    assert dag["tasks"]["aviation.flights"]["retries"] == 0


def test_parsing_is_light(airflow_env):
    found = ask(LOAD, airflow_env)
    print(f"both DAG files parsed in {found['seconds']:.2f} s")
    assert found["heavy"] == []
    assert found["seconds"] < 5  # on a busy machine; below 1 s on a quiet one


def test_a_broken_contract_is_shown_and_stops_no_other_group(airflow_env, contracts):
    broken = contracts / "shop.orders.yaml"
    broken.write_text(broken.read_text() + "colour: red\n")
    found = ask(LOAD, {**airflow_env, "SLUICE_CONTRACTS": str(contracts)})
    assert list(found["dags"]) == ["ingest_crm"]
    ((file, text),) = found["errors"].items()
    assert file.endswith("contracts_check.py")
    assert "shop.orders.yaml:6" in text


SUBMIT = """
import json, sys
from airflow.sdk.exceptions import AirflowFailException
from sluice.groups import GroupSettings
from sluice_spark import IngestOperator, driver_env, spark_log
settings = GroupSettings.model_validate({{"spark": {settings!r}}})
operator = IngestOperator(task_id="ingest", group="shop", settings=settings)
try:
    hook = operator.ready_hook()
except AirflowFailException as error:
    print(json.dumps({{"error": str(error)}}))
    sys.exit()
command = hook._build_spark_submit_command(operator.application)
rendered = {{name: str(getattr(operator, name)) for name in operator.template_fields}}
env = driver_env(spark_log("shop"), operator.spark_home)
print(json.dumps({{"command": command, "rendered": rendered, "env": env}}))
"""


def submit(env: dict[str, str], **settings: Any) -> Any:
    return ask(SUBMIT.format(settings=settings), env)


def test_the_submit_command_holds_all_and_no_secret(airflow_env, tmp_path):
    found = submit(airflow_env, driver_memory="3g", conf={"spark.sql.shuffle.partitions": "4"})
    jars = tmp_path / "cache" / "jars"
    home = Path(found["env"]["SPARK_HOME"])
    assert home.parent == tmp_path / "cache"
    assert not list((home / "jars").glob("slf4j-api-*")) and list((home / "jars").glob("0-slf4j-api-*"))
    options = [
        f"-Dlog4j2.configurationFile={REPOSITORY / 'jobs' / 'log4j2.properties'}",
        "-XX:+UseParallelGC",
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
        f"spark.driver.extraJavaOptions={' '.join(options)}",
        "--conf",
        "spark.sql.shuffle.partitions=4",
        "--driver-class-path",
        f"{jars / 'a.jar'}:{jars / 'b.jar'}",
        "--driver-memory",
        "3g",
        "--name",
        "sluice-shop",
        str(REPOSITORY / "jobs" / "ingest.py"),
        "--group",
        "shop",
        "--run-id",
        "{{ run_id }}",
    ]
    assert SECRET not in json.dumps([found["command"], found["rendered"]])
    assert json.loads(found["env"]["SLUICE_KAFKA_CONFIG"])["sasl.password"] == SECRET
    assert found["env"]["SLUICE_SPARK_LOG"] == str(tmp_path / "home" / "logs" / "spark-shop.log")


def test_a_cluster_gets_the_jars_and_the_package(airflow_env, tmp_path):
    command = submit(airflow_env, connection="cluster")["command"]
    jars = tmp_path / "cache" / "jars"
    assert command[command.index("--master") + 1] == "spark://master:7077"
    assert command[command.index("--jars") + 1] == f"{jars / 'a.jar'},{jars / 'b.jar'}"
    assert command[command.index("--py-files") + 1].endswith("sluice.zip")
    assert "--driver-class-path" not in command


@pytest.mark.parametrize(
    ("connection", "says"),
    [("nowhere", "'nowhere' does not exist"), ("away", "deploy mode 'cluster'")],
)
def test_a_connection_that_is_no_use_is_an_error_of_its_own(airflow_env, connection, says):
    assert says in submit(airflow_env, connection=connection)["error"]
