"""A driver whose Python has the wheel's extra `driver` alone ingests a group: docs/deploy/cluster-mode.md.

`make test-infra` runs it; see docs/dev/testing.md. It needs the package index.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from sluice.embedded.home import REPOSITORY
from tests.support.lake import Lake, record
from tests.support.wheel import build_wheel

pytestmark = [pytest.mark.infra, pytest.mark.timeout(900)]

UV = str(Path(sys.executable).with_name("uv"))
MEAN = {"type": "expect_column_mean_to_be_between", "column": "n", "min_value": 0, "severity": "block"}
# Great Expectations itself evaluates this one.
REGEX = {"type": "expect_column_values_to_match_regex", "column": "text", "regex": "^rec(?=ord)", "severity": "block"}


@pytest.fixture(scope="module")
def driver_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel's extra, in the versions that the tests use."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "source").mkdir()
    wheel = build_wheel(folder / "source")
    pinned = re.sub(r"\s*(\\\n)?\s+--hash=\S+", "", (REPOSITORY / "requirements.txt").read_text())
    (folder / "pinned.txt").write_text(pinned)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
    install = [UV, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(folder / "pinned.txt")]
    subprocess.run([*install, f"sluice[driver] @ {wheel.as_uri()}"], check=True)
    return python


def test_a_driver_with_its_extra_alone_ingests(lake: Callable[..., Lake], driver_python: Path, tmp_path: Path) -> None:
    for name in ("airflow", "pyspark"):
        assert subprocess.run([driver_python, "-c", f"import {name}"], capture_output=True, check=False).returncode == 1
    it = lake()
    it.create_topic(2)
    tables = [it.contract(expectations=[MEAN, REGEX]), it.contract(mode="upsert")]
    it.send((n % 2, f"k{n % 50}", record(n)) for n in range(200))
    it.plan("lean")
    (job,) = driver_python.parents[1].glob("lib/*/site-packages/sluice_airflow/jobs/ingest.py")
    home = Path(pyspark.__file__).parent
    jars = ",".join(sorted(map(str, Path(os.environ["SLUICE_JARS"]).glob("*.jar"))))
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--jars", jars]
    variables = {
        **{name: value for name, value in os.environ.items() if name not in ("PYSPARK_SUBMIT_ARGS", "PYTHONPATH")},
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": str(driver_python),
        "KAFKA_BOOTSTRAP_SERVERS": it.bootstrap,
        "SLUICE_CONTRACTS": str(it.folder),
    }
    done = subprocess.run(
        [*command, str(job), f"--group={it.group}", "--run-id=lean"],
        env=variables, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    for table in tables:
        it.assert_published(table)
