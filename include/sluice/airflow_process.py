"""Asks the Airflow that is configured here, in a process of its own: importing Airflow takes seconds.

In: a program for that process, and its argument. Out: what it prints as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sluice.errors import ConfigError, printable

FIND_CONNECTIONS = """
import json, sys
from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection

asked = json.loads(sys.argv[1])

def find_connections(names):
    for name in names:
        try:
            yield name, Connection.get_connection_from_secrets(name)
        except AirflowNotFoundException:
            pass
"""
"""The beginning of each program: what it was asked, and a function that finds those connections that exist."""


def is_installed() -> bool:
    """Whether this Python has Airflow."""
    return find_spec("airflow") is not None


def is_configured() -> bool:
    """Whether AIRFLOW_HOME has a configuration, or the environment has settings or connections of Airflow."""
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    settings = ("AIRFLOW__", "AIRFLOW_CONN_")
    return (home / "airflow.cfg").is_file() or any(name.startswith(settings) for name in os.environ)


def ask(program: str, asked: Any, seconds: float) -> dict[str, Any]:
    """Run a program that imports Airflow; return the map that its last line of output has as JSON.

    Args:
        program: Python that goes on after `FIND_CONNECTIONS`.
        asked: what it needs; others can see it in the list of processes.
        seconds: after this time the process is ended.

    Raises:
        TimeoutError: it did not answer in time.
        ConfigError: it failed. The message quotes Airflow, so it may hold an address with a password.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", FIND_CONNECTIONS + program, json.dumps(asked)],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"Airflow did not answer within {seconds:g} s") from error
    if done.returncode:
        last = (printable(done.stderr).strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"Airflow can't be asked: {last[:300]}",
            next_step="Run `airflow db check`, and `airflow db migrate` if it is new.",
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))
