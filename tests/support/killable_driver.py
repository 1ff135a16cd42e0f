"""Starts a Spark driver whose jobs stop at named points (`driver_program`), so that a test can kill or freeze it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from sluice import jvm
from sluice.embedded import class_archive
from sluice.embedded.home import REPOSITORY
from sluice.rehearse.table_copy import kill_group
from tests.support.lake import Lake

SETTLE = "tests.support.settle_program"


@dataclass(frozen=True)
class StoppingJob:
    """A job that stops at a point.

    Attributes:
        it: The tables it works on.
        point: The point; one of those in `driver_program`, or empty: it does not stop.
        module: The module with the job's `main`.
        arguments: The job's arguments without the run id; by default the group.
        rounds: So many rounds of a continuous group end before it stops.
    """

    it: Lake
    point: str
    module: str = "jobs.ingest"
    arguments: Sequence[str] = ()
    rounds: int = 0

    @property
    def mark(self) -> Path:
        """The file that exists when the job has stopped; a job that is not killed continues when it is removed."""
        return self.it.folder.parent / f"{self.it.group}.mark"


@contextmanager
def stopped_driver(lake_folder: Path, *jobs: StoppingJob) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process of a driver whose jobs have all stopped at their points. `settle` runs without Spark."""
    with running_driver(lake_folder, *jobs) as (process, out):
        until = time.monotonic() + 200 + 20 * len(jobs)
        while missing := [job.point for job in jobs if not job.mark.exists()]:
            assert process.poll() is None, f"the driver ended before {missing}:\n{out.read_text()[-6000:]}"
            assert time.monotonic() < until, f"the driver did not reach {missing}:\n{out.read_text()[-6000:]}"
            time.sleep(0.1)
        yield process


@contextmanager
def running_driver(lake_folder: Path, *jobs: StoppingJob) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yield the process of a driver that has just been started, and its log; it is killed at the end."""
    with tempfile.TemporaryDirectory(prefix="driver-", dir=lake_folder) as name:
        here = Path(name)
        (here / "contracts").mkdir()
        for each in jobs:
            for file in each.it.folder.glob("*.yaml"):
                shutil.copy(file, here / "contracts")
        job_specs = [
            {
                "module": job.module,
                "arguments": [*(job.arguments or ("--group", job.it.group)), "--run-id", "killed"],
                "point": job.point,
                "mark": str(job.mark),
                "rounds": job.rounds,
            }
            for job in jobs
        ]
        folder = Path(os.environ["SLUICE_JARS"])
        jars = sorted(map(str, folder.glob("*.jar")))
        # With the class archive, as Airflow's operator starts it: a start takes half the time.
        home = class_archive.spark_home(folder.parent, jars) or Path(pyspark.__file__).parent
        options = (*jvm.DRIVER_OPTIONS, *jvm.SHORT_LIVED_OPTIONS, *class_archive.driver_archive_options(home))
        spark = [
            str(home / "bin" / "spark-submit"),
            *("--master", "local[1]", "--driver-memory", "768m"),
            *("--driver-class-path", os.pathsep.join(jars)),
            *("--conf", f"spark.driver.defaultJavaOptions={jvm.THREAD_STACK_SIZE}"),
            *("--conf", f"spark.driver.extraJavaOptions={' '.join(options)}"),
        ]
        command = [
            *([sys.executable] if jobs[0].module == SETTLE else spark),
            str(REPOSITORY / "tests" / "support" / "driver_program.py"),
        ]
        variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")},
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home),
            "KAFKA_BOOTSTRAP_SERVERS": jobs[0].it.bootstrap,
            "SLUICE_CONTRACTS": str(here / "contracts"),
            "SLUICE_TEST_JOBS": json.dumps(job_specs),
            "SLUICE_TEST_DATABASE": str(lake_folder / "iceberg.db"),
            "SLUICE_TEST_WAREHOUSE": str(lake_folder / "warehouse"),
        }
        out = here / "driver.log"
        with out.open("wb") as log:
            process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=here
            )
        try:
            yield process, out
        finally:
            kill_group(process)
