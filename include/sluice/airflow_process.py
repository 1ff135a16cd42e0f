"""Asks the Airflow that is configured here, in a process of its own: importing Airflow takes seconds.

In: a question, and what to look for. Out: what `configuration.py` of sluice_airflow prints as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from sluice.errors import ConfigError, printable


def is_installed() -> bool:
    """Whether this Python has Airflow."""
    return find_spec("airflow") is not None


def is_configured() -> bool:
    """Whether AIRFLOW_HOME has a configuration, or the environment has settings or connections of Airflow."""
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    settings = ("AIRFLOW__", "AIRFLOW_CONN_")
    return (home / "airflow.cfg").is_file() or any(name.startswith(settings) for name in os.environ)


def ask(question: Literal["connections", "setup"], names: Any, seconds: float) -> dict[str, Any]:
    """Return what Airflow has: the fields of connections, or which connections, pools and plugins exist.

    Args:
        question: what `configuration.py` answers: `read_connections` or `read_setup`.
        names: what to look for; others can see it in the list of processes.
        seconds: after this time the process is ended.

    Raises:
        TimeoutError: it did not answer in time.
        ConfigError: it failed. The message quotes Airflow, so it may hold an address with a password.
    """
    # -P: modules of that folder must not hide others of the same name.
    command = [sys.executable, "-P", str(_program()), question, json.dumps(names)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"Airflow did not answer within {seconds:g} s") from error
    if done.returncode:
        last = (printable(done.stderr).strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"Airflow can't be asked: {last[:300]}",
            next_step="Run `airflow db check`, and `airflow db migrate` if it is new.",
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _program() -> Path:
    """Find the program: in the sluice_airflow that is installed, else in the checkout's plugins."""
    installed = find_spec("sluice_airflow")
    plugins = Path(installed.origin).parents[1] if installed and installed.origin else None
    program = (plugins or Path(__file__).resolve().parents[2] / "plugins") / "sluice_airflow" / "configuration.py"
    if not program.is_file():
        raise ConfigError(
            f"Airflow can't be asked: {program} does not exist.",
            next_step="Put plugins/sluice_airflow on PYTHONPATH, or install the wheel.",
        )
    return program
