"""Airflow's task submits to YARN, in deploy modes client and cluster: docs/deploy/spark-cluster.md.

`make test-infra` runs it; see docs/dev/testing.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.ledger import maintenance_table
from tests.support.airflow_process import isolated_airflow_env, run_in_airflow
from tests.support.lake import Lake, record
from tests.support.services.yarn import Yarn

pytestmark = [pytest.mark.infra, pytest.mark.timeout(900)]

SECRET = "s3cret-of-kafka"

SUBMIT = """
import json, sys, time
from sluice.contract.groups import GroupSettings
from sluice_airflow.operators import BackfillOperator, IngestOperator, MaintainOperator

which, group, run_id, more, cancel, conf = sys.argv[1:]
conf = json.loads(conf) | {"spark.executor.instances": "1"}
conf |= {"spark.executor.memoryOverhead": "256m", "spark.driver.memoryOverhead": "256m"}
settings = GroupSettings.model_validate(
    {"spark": {"conf": conf, "executor_memory": "768m", "driver_memory": "768m"}}
)
kinds = {"ingest": IngestOperator, "maintain": MaintainOperator, "backfill": BackfillOperator}
operator = kinds[which](task_id="t", group=group, settings=settings, **json.loads(more))
operator.application_args = [each.replace("{{ run_id }}", run_id) for each in operator.application_args]


class Store(dict):
    set = dict.__setitem__

    def delete(self, key):
        self.pop(key, None)


def end_when_it_runs(external_id, context):
    while operator._ready.query_yarn_application_status(external_id) != "RUNNING":
        time.sleep(0.5)
    operator.on_kill()
    poll(external_id, context)


poll = operator.poll_until_complete
if cancel:
    operator.poll_until_complete = end_when_it_runs
store, seen = Store(), []
store.set = lambda key, value: (seen.append(value), dict.__setitem__(store, key, value))
try:
    operator.execute({"task_state_store": store, "run_id": run_id})
    ended = "succeeded"
except Exception as error:
    ended = f"{type(error).__name__}: {error}"
print(json.dumps({"ended": ended, "id": (seen or [None])[0], "kept": dict(store)}))
"""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with Yarn(tmp_path_factory.mktemp("yarn")) as running:
        yield running


@pytest.fixture
def submit(yarn: Yarn, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run one of Airflow's tasks on YARN."""

    def run(it: Lake, mode: str, which: str, run_id: str, **more: Any) -> dict[str, Any]:
        extra = {"deploy-mode": mode, "yarn_resourcemanager_webapp_address": yarn.address}
        # Another name for the brokers' password, which this broker does not ask for.
        kafka = {**it.kafka, "sasl.password": SECRET}
        connections = {
            "SPARK_DEFAULT": {"conn_type": "spark", "host": "yarn", "extra": extra},
            "SLUICE_KAFKA": {"conn_type": "kafka", "extra": kafka},
        }
        env = {
            **isolated_airflow_env(tmp_path),
            **{name: value for name, value in os.environ.items() if name.startswith(("PYICEBERG", "SLUICE_JARS"))},
            **{f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in connections.items()},
            "SLUICE_CONTRACTS": str(it.folder),
            "SLUICE_HOME": str(tmp_path / "home"),
            "HADOOP_CONF_DIR": str(yarn.conf),
            "PYSPARK_PYTHON": sys.executable,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        cancel = "yes" if more.pop("cancel", False) else ""
        conf = json.dumps(more.pop("conf", {}))
        found: dict[str, Any] = run_in_airflow(SUBMIT, env, which, it.group, run_id, json.dumps(more), cancel, conf)
        return found

    return run


ENDED = "Spark has ended the application before it had an executor. [master yarn"
WORK = {"promised": {"has_work": True, "is_small": True}}


@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_a_group_is_ingested_by_yarn(
    lake: Callable[..., Lake], yarn: Yarn, submit: Callable[..., dict[str, Any]], mode: str
) -> None:
    it = lake()
    it.create_topic(2)
    appended, merged = it.contract(), it.contract(mode="upsert")
    it.send((n % 2, f"k{n % 50}", record(n)) for n in range(200))
    it.plan(f"yarn-{mode}")
    done = submit(it, mode, "ingest", f"yarn-{mode}", **WORK)
    assert done["ended"] == "succeeded", (done, yarn.logs()[-5000:])
    it.assert_appended(appended)
    it.assert_folded(merged)
    assert done["kept"] == {}, "a task that is cleared starts an application of its own"
    if mode == "cluster":
        assert yarn.report(done["id"])["finalStatus"] == "SUCCEEDED"
        assert "sluice done after" in yarn.logs() and SECRET not in yarn.logs(), "the driver ran in a container"
    else:
        assert done["id"] is None
        assert yarn.states()[f"sluice ingest {it.group}"] == "SUCCEEDED"


@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_an_application_whose_executors_cannot_run_fails(
    lake: Callable[..., Lake], yarn: Yarn, submit: Callable[..., dict[str, Any]], mode: str
) -> None:
    it = lake()
    it.create_topic(2)
    it.contract()
    conf = {"spark.executor.extraJavaOptions": "-javaagent:/nowhere.jar"}
    done = submit(it, mode, "ingest", f"none-{mode}", conf=conf, **WORK)
    assert "Max number of executor failures (3) reached" in done["ended"], done
    says = done["ended"] if mode == "client" else yarn.logs()
    assert "sluice The Iceberg catalog did not answer" not in says
    # In cluster mode YARN may end the driver before it reports.
    assert mode == "cluster" or f"ERROR sluice {ENDED}" in says


def test_a_cancelled_task_ends_its_application_on_yarn_and_the_next_run_goes_on(
    lake: Callable[..., Lake], yarn: Yarn, submit: Callable[..., dict[str, Any]]
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(mode="upsert")
    it.send((n % 2, f"k{n % 50}", record(n)) for n in range(200))
    it.plan("cancelled")
    ended = submit(it, "cluster", "ingest", "cancelled", cancel=True, **WORK)
    assert ended["ended"].startswith("RuntimeError: YARN application") and "KILLED" in ended["ended"], ended
    assert yarn.report(ended["id"])["state"] == "KILLED"
    it.drain(table)
    it.assert_folded(table)


def test_what_a_driver_on_yarn_comes_to_is_read_from_sluices_tables(
    lake: Callable[..., Lake], yarn: Yarn, submit: Callable[..., dict[str, Any]]
) -> None:
    it = lake()
    it.create_topic(2)
    tables = [it.contract(), it.contract(mode="upsert")]
    it.send((n % 2, f"k{n % 50}", record(n)) for n in range(200))
    it.run()
    needs = [{"group": it.group, "table": table, "steps": ["binpack"], "reason": "", "error": None} for table in tables]
    turn = {"action": "rewrite_data_files", "seconds": 0, "needs": needs}
    first = submit(it, "cluster", "maintain", "turns", **turn)
    assert first["ended"].startswith("AirflowRescheduleException"), (first, yarn.logs()[-5000:])
    second = submit(it, "cluster", "maintain", "turns", **turn)
    assert second["ended"] == "succeeded", second
    where = maintenance_table.ResultFilter(run_id="turns", states=maintenance_table.ENDED)
    assert sorted(each.table for each in maintenance_table.read_results(it.catalog, where)) == sorted(tables)
    # No such slice: the driver ends by an error that needs action, and YARN reports its exit code.
    work = {"table": tables[0], "topic": it.topic, "slices": [-9], "origin": "kafka", "run_id": "none"}
    failed = submit(it, "cluster", "backfill", "none", work=work)
    assert failed["ended"].startswith("AirflowFailException: The job failed, and a retry does not help"), failed
