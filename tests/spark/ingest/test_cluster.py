"""A standalone cluster loses executors and a worker in mid-batch, and the batch goes on: docs/deploy/spark-cluster.md.

`make test-infra` runs it; see docs/dev/testing.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.support.airflow_process import isolated_airflow_env, run_in_airflow
from tests.support.lake import Lake, record
from tests.support.services.spark_cluster import SparkCluster, SparkWorker

pytestmark = [pytest.mark.infra, pytest.mark.timeout(600)]

RECORDS = 40_000
SECONDS_APART = 3.0
"""Time for a new executor to start: Spark gives up after four losses of one task."""


@pytest.fixture
def cluster(spark_cluster: SparkCluster | None) -> SparkCluster:
    assert spark_cluster, "this test needs the cluster of SLUICE_TEST_CLUSTER=1: make test-infra"
    return spark_cluster


SUBMIT = """
import json, sys
from sluice.contract.groups import GroupSettings
from sluice_airflow.operators import IngestOperator

group, run_id = sys.argv[1:]
settings = GroupSettings.model_validate({"spark": {"conf": {"spark.cores.max": "2"}, "executor_memory": "768m"}})
operator = IngestOperator(
    task_id="ingest", group=group, settings=settings, promised={"has_work": True, "is_small": True}
)
operator.application_args = [f"--group={group}", f"--run-id={run_id}"]
operator.execute({})
print(json.dumps({"py_files": operator._hook._py_files, "jars": operator._hook._jars}))
"""


def test_airflows_task_submits_the_jars_and_the_package_to_the_cluster(
    lake: Callable[..., Lake], cluster: SparkCluster, tmp_path: Path
) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract()
    it.send((n % 2, f"k{n}", record(n)) for n in range(200))
    it.plan("by-airflow")
    connections = {
        "SPARK_DEFAULT": {"conn_type": "spark", "host": f"spark://{cluster.host}", "port": cluster.port},
        "SLUICE_KAFKA": {"conn_type": "kafka", "extra": it.kafka},
    }
    env = {
        **isolated_airflow_env(tmp_path),
        **{name: value for name, value in os.environ.items() if name.startswith(("PYICEBERG", "SLUICE_JARS"))},
        **{f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in connections.items()},
        "SLUICE_CONTRACTS": str(it.folder),
        "SLUICE_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    submitted = run_in_airflow(SUBMIT, env, it.group, "by-airflow")
    assert submitted["py_files"].endswith("sluice.zip") and "iceberg-spark-runtime" in submitted["jars"]
    it.assert_appended(table)
    applications = [each["name"] for each in cluster.state()["completedapps"]]
    assert applications == [f"sluice ingest {it.group}"], "the driver's application ran on the cluster"


def kill_executor(worker: SparkWorker) -> None:
    for process in psutil.Process(worker.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that ends just now
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                process.kill()


def test_executors_and_a_worker_are_killed_in_mid_batch(
    lake: Callable[..., Lake], spark: SparkSession, cluster: SparkCluster
) -> None:
    it = lake()
    it.create_topic(4)
    tables = [it.contract(), it.contract(mode="upsert")]
    it.send((n % 4, f"k{n % 5000}", record(n)) for n in range(RECORDS))
    tracker = spark.sparkContext.statusTracker()
    first, second = cluster.workers
    losses = [lambda: kill_executor(first), lambda: kill_executor(second), second.kill]
    made = 0
    with ThreadPoolExecutor() as pool:
        batch = pool.submit(it.run)
        while made < len(losses) and not batch.done():
            if tracker.getActiveStageIds():
                losses[made]()
                made += 1
                time.sleep(SECONDS_APART)
            time.sleep(0.02)
        outcomes = batch.result()
    assert made == len(losses), "the batch ended too early: it needs more records"
    assert {o["state"] for o in outcomes.values()} == {"published"}, outcomes
    for table in tables:
        it.assert_published(table)
    # The next batch runs on the worker that is left.
    it.send((n % 4, f"k{n}", record(n)) for n in range(100))
    assert {o["state"] for o in it.run().values()} == {"published"}
    for table in tables:
        it.assert_published(table)
