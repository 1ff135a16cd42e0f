"""Runs a test's program in a separate process with Airflow, isolated from the caller's settings."""

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

# Variables of the caller that the process must not see.
REMOVED_PREFIXES = ("AIRFLOW", "SLUICE", "PYICEBERG", "OPENLINEAGE", "SCHEMA_REGISTRY")


def isolated_airflow_env(folder: Path) -> dict[str, str]:
    """Return the environment of an Airflow in `folder`, without examples, with an in-memory metadata database."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(REMOVED_PREFIXES)},
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "include"), str(REPOSITORY / "plugins")]),
    }


def run_in_airflow(program: str, env: dict[str, str], *arguments: str) -> Any:
    """Run a Python program with Airflow; return its last line of output, decoded from JSON.

    The program runs in a fork of one process that has imported Airflow, which takes two seconds. Settings that Airflow
    reads at import (AIRFLOW_HOME, the metadata database) are therefore those of that process.

    Args:
        program: The program's text.
        env: Its whole environment.
        arguments: Its command line arguments.
    """
    server = _server()
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        for file in (out, err):
            file.touch()
        request = {"program": program, "env": env, "arguments": arguments, "out": str(out), "err": str(err)}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = server.stdout.readline().strip()
        assert code == "0", f"exit code {code}: {out.read_text()}{err.read_text()}"
        return json.loads(out.read_text().splitlines()[-1])


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the fork server at the first call; it ends with the test run."""
    folder = tempfile.TemporaryDirectory()
    env = isolated_airflow_env(Path(folder.name)) | {"AIRFLOW__CORE__UNIT_TEST_MODE": "True"}
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
    server = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @atexit.register
    def end() -> None:
        server.communicate()
        folder.cleanup()

    return server
