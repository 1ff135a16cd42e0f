"""Another service submits: docs/deploy/submitting.md's recipe of the Spark operator, against a stub of its API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice.embedded.home import REPOSITORY
from tests.support.airflow_process import isolated_airflow_env, run_in_airflow
from tests.support.services.servers import JsonHandler, serving

pytestmark = pytest.mark.unit

SECRET = "s3cret-of-kafka"
PAGE = REPOSITORY / "docs" / "deploy" / "submitting.md"
PLACE = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/data/sparkapplications"


class Api(ThreadingHTTPServer):
    """Stands in for Kubernetes' API with the Spark operator's resource: states by call, the last one for ever."""

    states: list[str | None]
    made: list[dict[str, object]]
    deleted: list[str]


class Handler(JsonHandler):
    server: Api

    def do_POST(self) -> None:  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == PLACE and self.headers["Authorization"] == "Bearer token-of-kubernetes"
        self.server.made.append(body)
        self.answer_json(201, body)

    def do_GET(self) -> None:  # noqa: N802
        state = self.server.states[0]
        if len(self.server.states) > 1:
            self.server.states.pop(0)
        status = {"applicationState": {"state": state, "errorMessage": "driver failed"}} if state else {}
        self.answer_json(404 if state == "GONE" else 200, {"status": status})

    def do_DELETE(self) -> None:  # noqa: N802
        self.server.deleted.append(self.path)
        self.answer_json(200, {})


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(Api(("127.0.0.1", 0), Handler)) as server:
        server.states, server.made, server.deleted = ["COMPLETED"], [], []
        yield server


@pytest.fixture
def env(tmp_path: Path, api: Api) -> dict[str, str]:
    contracts, token = tmp_path / "contracts", tmp_path / "token"
    contracts.mkdir()
    token.write_text("token-of-kubernetes")
    (contracts / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    kafka = {"bootstrap.servers": "kafka:9092", "sasl.password": SECRET}
    return {
        **isolated_airflow_env(tmp_path),
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka}),
        "SLUICE_CONTRACTS": str(contracts),
        "SLUICE_HOME": str(tmp_path / "home"),
        "API": f"http://127.0.0.1:{api.server_port}",
        "TOKEN": str(token),
    }


RUN = """
import json, os, sys, time
from pathlib import Path
recipe = Path(sys.argv[1]).read_text().split("```python\\n")[1].split("```")[0]
names = {"__name__": "recipe", "__file__": os.path.abspath("recipe.py")}
exec(recipe, names)
dag = names["ingest_shop"]
operator = dag.get_task("ingest")
service = operator.service
service.api, service.token_file, service.poll_seconds = os.environ["API"], os.environ["TOKEN"], 0


class Store(dict):
    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


store, ended = Store(json.loads(sys.argv[2])), []
operator.promised = None
if sys.argv[3] == "cancelled":
    service.state = lambda _: operator.on_kill() or ("succeeded", "")
try:
    operator.execute({"task_state_store": store, "run_id": "r"})
    ended = "succeeded"
except Exception as error:
    ended = f"{type(error).__name__}: {error}"
from airflow.serialization.serialized_objects import DagSerialization
others = [names[name].get_task("spark_shop") for name in ("maintain_expire_snapshots", "backfill")]
same = [getattr(each, "service", None) or each.partial_kwargs["service"] for each in others]
text = json.dumps([DagSerialization.to_dict(names[name]) for name in ("ingest_shop", "backfill")], default=str)
print(json.dumps([ended, dict(store), [each is service for each in same], "s3cret" in text]))
"""


def run(env: dict[str, str], kept: dict[str, str] | None = None, how: str = "") -> tuple[str, dict[str, str]]:
    ended, store, same, leaked = run_in_airflow(RUN, env, str(PAGE), json.dumps(kept or {}), how)
    assert same == [True, True] and not leaked, "maintenance and backfill use it too"
    return ended, store


def test_a_service_submits_and_is_asked_for_the_state(env: dict[str, str], api: Api) -> None:
    api.states = [None, "RUNNING", "COMPLETED"]
    assert run(env) == ("succeeded", {})
    (made,) = api.made
    spec = made["spec"]
    assert isinstance(spec, dict)
    assert spec["mainApplicationFile"] == "local:///opt/sluice/jobs/ingest.py"
    assert spec["arguments"][0] == "--group=shop"
    assert spec["restartPolicy"] == {"type": "Never"}, "Airflow counts the tries"
    assert spec["driver"]["envFrom"] == [{"secretRef": {"name": "sluice-driver"}}]
    assert SECRET not in json.dumps(made)


@pytest.mark.parametrize("state", ["FAILED", "GONE"])
def test_a_failed_application_fails_the_task_and_a_retry_submits_again(
    env: dict[str, str], api: Api, state: str
) -> None:
    api.states = [state]
    ended, kept = run(env)
    assert ended.startswith("AirflowException: ") and kept, ended
    api.states = [state, "COMPLETED"]
    assert run(env, kept) == ("succeeded", {})
    assert len(api.made) == 2


def test_a_retry_waits_for_the_application_and_a_cancelled_task_ends_it(env: dict[str, str], api: Api) -> None:
    api.states = ["RUNNING", "COMPLETED"]
    assert run(env, {"spark_job_id": "sluice-1"}) == ("succeeded", {})
    assert api.made == []
    run(env, how="cancelled")
    ((name,),) = [[each["metadata"]["name"] for each in api.made]]  # type: ignore[index]
    assert api.deleted == [f"{PLACE}/{name}"]
