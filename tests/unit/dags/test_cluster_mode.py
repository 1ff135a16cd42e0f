"""Deploy mode cluster: what is submitted, followed, found again and ended. Spark and YARN are stand-ins.

`tests/spark/ingest/test_yarn.py` runs on a real YARN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sluice.embedded.home import REPOSITORY
from tests.support.airflow_process import isolated_airflow_env, run_in_airflow
from tests.support.services.servers import JsonHandler, serving

pytestmark = pytest.mark.unit

SECRET = "s3cret-of-kafka"
# Stands in for spark-submit: writes down what it is given, and says what YARN's client says.
SPARK_SUBMIT = """#!/usr/bin/env python3
import json, os, sys, zipfile
files = sys.argv[sys.argv.index("--files") + 1].split(",") if "--files" in sys.argv else []
files = [f for f in files if not f.startswith("/etc/")]
seen = {"argv": sys.argv, "env": dict(os.environ), "modes": [oct(os.stat(f).st_mode & 0o777) for f in files]}
for f in files:
    if f.endswith(".zip"):
        seen["variables"] = json.loads(zipfile.ZipFile(f).read("variables.json"))
        seen["names"] = sorted(zipfile.ZipFile(f).namelist())
open(os.environ["SLUICE_TEST_SEEN"], "a").write(json.dumps(seen) + "\\n")
print("INFO Client: Submitted application application_1_0007")
"""


class Manager(ThreadingHTTPServer):
    """A ResourceManager that gives the listed answers, the last one for ever."""

    answers: list[tuple[str, str, str]]
    killed: list[str]


class Handler(JsonHandler):
    server: Manager

    def do_GET(self) -> None:  # noqa: N802
        state, final, text = self.server.answers[0]
        if len(self.server.answers) > 1:
            self.server.answers.pop(0)
        self.answer_json(
            404 if state == "GONE" else 200, {"app": {"state": state, "finalStatus": final, "diagnostics": text}}
        )

    def do_PUT(self) -> None:  # noqa: N802
        self.server.killed.append(f"{self.path} {self.rfile.read(int(self.headers['Content-Length'])).decode()}")
        self.answer_json(202, {})


@pytest.fixture
def manager() -> Iterator[Manager]:
    with serving(Manager(("127.0.0.1", 0), Handler)) as server:
        server.answers, server.killed = [("FINISHED", "SUCCEEDED", "")], []
        yield server


@pytest.fixture
def env(tmp_path: Path, manager: Manager) -> dict[str, str]:
    contracts, programs = tmp_path / "contracts", tmp_path / "bin"
    contracts.mkdir(), programs.mkdir()
    (contracts / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    (programs / "spark-submit").write_text(SPARK_SUBMIT)
    (programs / "spark-submit").chmod(0o755)
    address = f"http://127.0.0.1:{manager.server_port}"
    yarn = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": address}
    kafka = {"bootstrap.servers": "kafka:9092", "sasl.password": SECRET}
    base = isolated_airflow_env(tmp_path)
    return {
        **base,
        "PATH": f"{programs}:{base['PATH']}",
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "yarn", "extra": yarn}),
        "AIRFLOW_CONN_BLIND": json.dumps({"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}),
        **{
            f"AIRFLOW_CONN_{name}": json.dumps({"conn_type": "spark", "extra": {"deploy-mode": "cluster"}, **where})
            for name, where in (("ALONE", {"host": "spark://master", "port": 7077}), ("LOCAL", {"host": "local[2]"}))
        },
        "PYICEBERG_CATALOG__LAKE__URI": f"postgresql://sluice:{SECRET}@db/lake",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
        "SLUICE_CONTRACTS": str(contracts),
        "SLUICE_HOME": str(tmp_path / "home"),
        "SLUICE_TEST_SEEN": str(tmp_path / "seen"),
    }


RUN = """
import json, sys, time
from airflow.providers.apache.spark.hooks import spark_submit
from sluice.contract.groups import GroupSettings
from sluice_airflow.operators import IngestOperator, MaintainOperator

time.sleep = lambda _: None
asked, kept = json.loads(sys.argv[1]), json.loads(sys.argv[2])


class Store(dict):
    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


store, ended = Store(kept), []
for each in asked:
    settings = GroupSettings.model_validate({"spark": each.get("spark", {})})
    if "needs" in each:
        operator = MaintainOperator(
            task_id="t", group="shop", settings=settings, action="expire_snapshots", seconds=1, needs=each["needs"]
        )
        operator.is_unfinished = lambda _: False
    else:
        operator = IngestOperator(task_id="t", group="shop", settings=settings)
    if each.get("cancelled"):
        spark_submit.SparkSubmitHook._start_yarn_application_status_tracking = lambda *_: operator.on_kill()
    try:
        operator.execute({"task_state_store": store, "run_id": "r"})
        ended.append("succeeded")
    except Exception as error:
        ended.append(f"{type(error).__name__}: {error}")
print(json.dumps([ended, dict(store)]))
"""


def run(
    env: dict[str, str], *asked: dict[str, Any], kept: dict[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    ended, store = run_in_airflow(RUN, env, json.dumps(asked), json.dumps(kept or {}))
    return ended, store


def seen(env: dict[str, str]) -> list[dict[str, Any]]:
    path = Path(env["SLUICE_TEST_SEEN"])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_settings_and_secrets_reach_a_driver_on_yarn_in_one_private_file(env, manager):
    manager.answers = [("ACCEPTED", "UNDEFINED", ""), ("RUNNING", "UNDEFINED", ""), ("FINISHED", "SUCCEEDED", "")]
    assert run(env, {}) == (["succeeded"], {})
    (given,) = seen(env)
    command = given["argv"]
    assert command[command.index("--deploy-mode") + 1] == "cluster"
    assert command[command.index("--files") + 1].endswith("/sluice-driver.zip") and given["modes"] == ["0o600"]
    assert command[command.index("--py-files") + 1].endswith("sluice.zip")
    assert str(REPOSITORY / "jobs" / "ingest.py") in command
    for setting in (
        "spark.yarn.maxAppAttempts=1",
        "spark.yarn.submit.waitAppCompletion=false",
        "spark.yarn.appMasterEnv.SLUICE_DRIVER_FILES=sluice-driver.zip",
    ):
        assert setting in command
    assert "log4j2.configurationFile" not in " ".join(command), "a path of this worker"
    assert SECRET not in " ".join(command)
    sent = given["variables"]
    assert json.loads(sent["SLUICE_KAFKA_CONFIG"])["sasl.password"] == SECRET
    assert SECRET in sent["PYICEBERG_CATALOG__LAKE__URI"] and sent["AWS_SECRET_ACCESS_KEY"] == SECRET
    # What is true of this machine alone stays here.
    assert not {"PATH", "SLUICE_HOME", "PYTHONPATH", "AWS_WEB_IDENTITY_TOKEN_FILE"} & sent.keys()
    assert not [name for name in sent if name.startswith("AIRFLOW")]
    assert given["names"] == ["contracts/shop.orders.yaml", "variables.json"]
    assert not list(Path(env["SLUICE_HOME"], "driver").iterdir()), "the file is gone once it is submitted"
    listed = {**env, "SLUICE_DRIVER_ENV": "AWS_WEB_IDENTITY_*"}
    run(listed, {"spark": {"conf": {"spark.yarn.dist.files": "/etc/site.conf", "spark.yarn.maxAppAttempts": "2"}}})
    again = seen(env)[1]
    assert again["variables"]["AWS_WEB_IDENTITY_TOKEN_FILE"] == "/var/run/token"
    assert again["argv"][again["argv"].index("--files") + 1].endswith("/sluice-driver.zip,/etc/site.conf")
    assert "spark.yarn.maxAppAttempts=2" in again["argv"]


def test_the_exit_code_that_yarn_reports_says_whether_a_retry_helps(env, manager):
    for code, kind in (
        (3, "AirflowFailException: The job failed, and a retry does not help"),
        (2, "RuntimeError: YARN"),
    ):
        manager.answers = [("FINISHED", "FAILED", f"User application exited with status {code}")]
        ended, kept = run(env, {})
        assert ended[0].startswith(kind), ended
        assert kept == {"spark_job_id": "application_1_0007"}


def test_a_retry_finds_the_application_again_and_a_cleared_task_starts_another(env, manager):
    known = {"spark_job_id": "application_1_0003"}
    manager.answers = [("RUNNING", "UNDEFINED", ""), ("FINISHED", "SUCCEEDED", "")]
    assert run(env, {}, kept=known) == (["succeeded"], {})
    assert seen(env) == [], "nothing is submitted"
    for state in (("FINISHED", "FAILED", ""), ("KILLED", "KILLED", ""), ("GONE", "", "")):
        manager.answers = [state, ("FINISHED", "SUCCEEDED", "")]
        assert run(env, {}, kept=known) == (["succeeded"], {}), state
    assert len(seen(env)) == 3, "an application that has failed, or that YARN has forgotten, is submitted anew"


@pytest.mark.parametrize("kept", [{}, {"spark_job_id": "application_1_0007"}], ids=["submitted", "found again"])
def test_a_cancelled_task_ends_its_application(env, manager, kept):
    manager.answers = [("RUNNING", "UNDEFINED", "")]
    run(env, {"cancelled": True}, kept=kept)
    assert manager.killed == ['/ws/v1/cluster/apps/application_1_0007/state {"state": "KILLED"}'] * len(manager.killed)
    assert manager.killed


def test_a_long_list_of_tables_is_a_file_beside_the_driver(env):
    needs = [{"group": "shop", "table": f"shop.orders_of_customer_{n}", "steps": ["x"]} for n in range(5000)]
    assert run(env, {"needs": needs})[0] == ["succeeded"]
    (given,) = seen(env)
    files = given["argv"][given["argv"].index("--files") + 1].split(",")
    assert given["argv"][given["argv"].index("--tables") + 1] == f"@{Path(files[0]).name}"
    assert given["modes"] == ["0o600", "0o600"]


def test_where_spark_takes_no_python_driver_the_connection_is_refused_by_name(env):
    names = ("alone", "local", "blind")
    ended, _ = run(env, *({"spark": {"connection": name}} for name in names))
    alone, local, blind = ended
    assert alone.startswith(
        "AirflowFailException: Connection 'alone' has deploy mode 'cluster' with master 'spark://mas"
    )
    assert local.startswith("AirflowFailException: Connection 'local' has deploy mode 'cluster' with master 'local[2]'")
    assert blind.startswith("AirflowFailException: Connection 'blind'") and "yarn_resourcemanager_webapp_addr" in blind
    assert seen(env) == []
