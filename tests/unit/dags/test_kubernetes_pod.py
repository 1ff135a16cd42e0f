"""The driver pod that Spark makes of what Airflow's task submits: spark-submit runs, Kubernetes' API is a stub."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from tests.support.airflow_process import isolated_airflow_env, run_in_airflow
from tests.support.services.servers import JsonHandler, serving

pytestmark = pytest.mark.unit

SECRET = "s3cret-of-kafka"


class Api(ThreadingHTTPServer):
    """Kubernetes' API: takes any resource, and says that a pod has come to its end."""

    made: list[dict[str, Any]]
    deleted: list[str]


class Handler(JsonHandler):
    server: Api
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        found = body[0] if isinstance(body, list) else body
        if self.command == "POST":
            self.server.made.append(found)
        found.setdefault("metadata", {})["uid"] = "1"
        self.answer_json(201 if self.command == "POST" else 200, found)

    def do_PUT(self) -> None:  # noqa: N802
        self.do_POST()

    def do_PATCH(self) -> None:  # noqa: N802
        self.do_POST()

    def do_GET(self) -> None:  # noqa: N802
        self.answer_json(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

    def do_DELETE(self) -> None:  # noqa: N802
        self.server.deleted.append(self.path)
        self.answer_json(200, {})


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(Api(("127.0.0.1", 0), Handler)) as server:
        server.made, server.deleted = [], []
        yield server


# The provider's client for Kubernetes is a package of its own, which the project does not install.
RUN = """
import json, sys, types
from urllib.request import Request, urlopen

api, settings, phases = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])


class ApiException(Exception):
    status = 404


class Client:
    def read_namespaced_pod(self, name, namespace):
        return types.SimpleNamespace(status=types.SimpleNamespace(phase=phases.pop(0), container_statuses=None))

    def delete_namespaced_pod(self, name, namespace, **_):
        urlopen(Request(f"{api}/pods/{namespace}/{name}", method="DELETE")).read()


kube_client = types.ModuleType("airflow.providers.cncf.kubernetes.kube_client")
kube_client.ApiException, kube_client.get_kube_client = ApiException, Client
for name in ("airflow.providers.cncf", "airflow.providers.cncf.kubernetes"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["airflow.providers.cncf.kubernetes"].kube_client = kube_client
sys.modules["airflow.providers.cncf.kubernetes.kube_client"] = kube_client
kubernetes = types.ModuleType("kubernetes")
kubernetes.client = types.SimpleNamespace(V1DeleteOptions=dict)
sys.modules["kubernetes"] = kubernetes
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.providers.apache.spark.operators import spark_submit as operators

spark_submit.kube_client = operators.kube_client = kube_client
spark_submit.time = types.SimpleNamespace(sleep=lambda _: None)
from sluice.contract.groups import GroupSettings
from sluice_airflow.operators import IngestOperator


class Store(dict):
    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


operator = IngestOperator(task_id="t", group="shop", settings=GroupSettings.model_validate({"spark": settings}))
operator.application_args = ["--group=shop", "--run-id=r"]
store, ids = Store(), []
poll = operator.poll_until_complete
operator.poll_until_complete = lambda id, context: (ids.append(id), poll(id, context))
try:
    operator.execute({"task_state_store": store, "run_id": "r"})
    ended = "succeeded"
except Exception as error:
    ended = f"{type(error).__name__}: {error}"
operator.on_kill()
print(json.dumps([ended, ids, dict(store), operator._hook._build_spark_submit_command(operator.application)]))
"""


def test_spark_makes_the_pod_with_secrets_by_reference(tmp_path: Path, api: Api) -> None:
    address = f"http://127.0.0.1:{api.server_port}"
    extra = {"deploy-mode": "cluster", "namespace": "data", "sluice-jobs": "local:///opt/sluice/jobs"}
    base = isolated_airflow_env(tmp_path)
    env = {
        **base,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(find_java(cache_folder()).home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": f"k8s://{address}", "extra": extra}),
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": {"sasl.password": SECRET}}),
        "PYICEBERG_CATALOG__LAKE__URI": f"postgresql://sluice:{SECRET}@db/lake",
        "SLUICE_HOME": str(tmp_path / "home"),
    }
    conf = {
        "spark.kubernetes.container.image": "registry.example.com/sluice:1",
        "spark.kubernetes.driver.secretKeyRef.SLUICE_KAFKA_CONFIG": "sluice:kafka",
        "spark.kubernetes.driver.secretKeyRef.PYICEBERG_CATALOG__LAKE__URI": "sluice:catalog",
        "spark.kubernetes.driver.secrets.sluice-ca": "/etc/sluice/ca",
        "spark.kubernetes.driverEnv.SLUICE_CONTRACTS": "/opt/sluice/contracts",
    }
    settings = {"conf": conf, "driver_memory": "1g"}
    ended, ids, kept, command = run_in_airflow(
        RUN, env, address, json.dumps(settings), json.dumps(["Pending", "Running", "Succeeded"])
    )
    assert (ended, kept) == ("succeeded", {})
    (pod_id,) = ids
    (pod,) = [each for each in api.made if each["kind"] == "Pod"]
    namespace, name = pod_id.split(":")
    assert (namespace, name) == ("data", pod["metadata"]["name"])
    assert api.deleted and set(api.deleted) == {f"/pods/data/{name}"}, "ended pods go, and a cancelled task's"
    (driver,) = pod["spec"]["containers"]
    assert "local:///opt/sluice/jobs/ingest.py" in driver["args"] and "--group=shop" in driver["args"]
    variables = {each["name"]: each for each in driver["env"]}
    for variable, key in (("SLUICE_KAFKA_CONFIG", "kafka"), ("PYICEBERG_CATALOG__LAKE__URI", "catalog")):
        assert variables[variable]["valueFrom"]["secretKeyRef"] == {"name": "sluice", "key": key}
    assert variables["SLUICE_CONTRACTS"]["value"] == "/opt/sluice/contracts"
    mounts = {each["mountPath"] for each in driver["volumeMounts"]}
    assert "/etc/sluice/ca" in mounts
    assert pod["spec"]["restartPolicy"] == "Never", "Airflow counts the tries"
    assert SECRET not in json.dumps(api.made) and SECRET not in " ".join(command)
    assert "--py-files" not in command, "the image has the package"
    assert not [each for each in command if each.startswith("spark.yarn")]
