"""A standalone cluster loses executors and a worker in mid-batch, and the batch goes on: docs/deploy/spark-cluster.md.

`make test-infra` runs it; see docs/dev/testing.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from sluice.embedded.home import REPOSITORY
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


@contextmanager
def driver(it: Lake, cluster: SparkCluster, folder: Path, **conf: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a driver of the ingestion of a group, which asks for executors with these settings."""
    settings = {"spark.cores.max": "2", "spark.executor.memory": "512m", **conf}
    command = [
        *(str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.master),
        *(each for name, value in settings.items() for each in ("--conf", f"{name}={value}")),
        *("--jars", ",".join(sorted(map(str, Path(os.environ["SLUICE_JARS"]).glob("*.jar"))))),
        *(str(REPOSITORY / "jobs" / "ingest.py"), f"--group={it.group}", "--run-id=none"),
    ]
    variables = {
        **{name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"},
        "KAFKA_BOOTSTRAP_SERVERS": it.bootstrap,
        "SLUICE_CONTRACTS": str(it.folder),
        "PYTHONPATH": str(REPOSITORY / "include"),
    }
    process = subprocess.Popen(
        command, env=variables, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        (
            {"spark.executor.memory": "8g"},
            r"No worker of .* is large enough .*8,192 MiB.*largest with 2 core\(s\) and 2,048",
        ),
        (
            {"spark.executor.cores": "3"},
            r"No worker of .* is large enough .*3 core\(s\) and 512 MiB, with spark.cores.max 2",
        ),
        # Executors that cannot connect: the driver listens on another address.
        (
            {"spark.driver.host": "127.0.0.2", "spark.driver.bindAddress": "127.0.0.1"},
            r".* each one ends before it registers, with: .*Failed to connect to /127\.0\.0\.2.*registered 0, ended \d",
        ),
        (
            {"spark.executor.extraJavaOptions": "-javaagent:/nowhere.jar"},
            r".* each one ends before it registers, with: .*/nowhere\.jar.*registered 0, ended \d",
        ),
    ],
    ids=["memory", "cores", "host", "java"],
)
def test_an_application_whose_executors_cannot_run_fails_and_says_why(
    lake: Callable[..., Lake], cluster: SparkCluster, tmp_path: Path, conf: dict[str, str], says: str
) -> None:
    it = lake()
    it.contract()
    began = time.monotonic()
    with driver(it, cluster, tmp_path, **conf) as process:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 2, said
    print(f"failed after {time.monotonic() - began:.0f} s")
    assert re.search(f"ERROR sluice {says}", said) and f"master {cluster.master}" in said, said
    if log := re.search(r"stderr (http://\S+)\]", said):
        assert "Spark Executor Command" in urlopen(log[1], timeout=10).read().decode()


def test_an_application_waits_while_others_use_the_cluster(
    lake: Callable[..., Lake], cluster: SparkCluster, tmp_path: Path
) -> None:
    # The session of the tests has a core of each worker.
    it = lake()
    it.contract()
    conf = {"spark.executor.cores": "2", "spark.sluice.executorTimeout": "1"}
    with driver(it, cluster, tmp_path, **conf) as process:
        assert process.stdout
        waits = next(line for line in process.stdout if "No executor for" in line or "ERROR" in line)
        assert re.search(r"No executor for 3\d s: an executor asks 2 core.*2 of 4 cores and .* are free", waits)
        assert process.poll() is None


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
