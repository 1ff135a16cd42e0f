"""An Airflow of a test's own, for programs that run in a process of theirs."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sluice.embedded.home import REPOSITORY

# What a user's shell, or another test, says of these must not reach it.
REMOVED_PREFIXES = ("AIRFLOW", "SLUICE", "PYICEBERG", "OPENLINEAGE", "SCHEMA_REGISTRY")


def isolated_airflow_env(folder: Path) -> dict[str, str]:
    """The environment: its home in the folder, no examples, no database yet, the package and the DAG files at hand."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(REMOVED_PREFIXES)},
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "include"), str(REPOSITORY / "plugins")]),
    }


def run_in_airflow(program: str, env: dict[str, str], *arguments: str) -> Any:
    """Run a program in an Airflow of its own; returns what it prints last, as JSON.

    It is a fork of one process, which has imported Airflow: that takes two seconds, most programs a tenth of one. So
    what Airflow reads when it is imported, its home and its database, is that process's.

    Args:
        program: Its text.
        env: Its whole environment.
        arguments: Its command line.
    """
    server = _server()
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        for file in (out, err):
            file.touch()
        asked = {"program": program, "env": env, "arguments": arguments, "out": str(out), "err": str(err)}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = server.stdout.readline().strip()
        assert code == "0", f"exit code {code}: {out.read_text()}{err.read_text()}"
        return json.loads(out.read_text().splitlines()[-1])


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process of this test run, started by the first test that asks, and ended with the run."""
    folder = tempfile.TemporaryDirectory()
    env = isolated_airflow_env(Path(folder.name)) | {"AIRFLOW__CORE__UNIT_TEST_MODE": "True"}
    command = [sys.executable, str(Path(__file__).with_name("forks.py"))]
    server = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @atexit.register
    def end() -> None:
        server.communicate()
        folder.cleanup()

    return server
