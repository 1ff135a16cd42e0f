"""Airflow's four services, their health, and the pools that Sluice's DAGs need.

They are those of `airflow standalone`, started one by one, so that a crash is noticed and the log servers, which listen
on every network interface, stay off (all services read the same folder of logs).
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from sluice.embedded.env import USER, pages_url
from sluice.embedded.failure import StackError, last_lines, say
from sluice.embedded.home import REPOSITORY, Home
from sluice.embedded.private_files import private_folder, write_private
from sluice.embedded.process import Service
from sluice.embedded.state import StackState

# By service: its name in Airflow's health report and the arguments that start it.
PARTS: dict[str, tuple[str, list[str]]] = {
    "api-server": ("metadatabase", ["api-server"]),
    "scheduler": ("scheduler", ["scheduler", "--skip-serve-logs"]),
    "dag-processor": ("dag_processor", ["dag-processor"]),
    "triggerer": ("triggerer", ["triggerer", "--skip-serve-logs"]),
}
# One Spark driver at a time: the embedded stack shares two cores with everything else on the machine.
POOLS = {"sluice_spark": (1, "Spark applications that Sluice runs at the same time")}

# The stack is on loopback: proxy settings are ignored.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def prepare_airflow(home: Home, state: StackState, env: Mapping[str, str]) -> None:
    """Create AIRFLOW_HOME, the login and the metadata database, or migrate them to the installed version.

    Raises:
        StackError: The migration failed; the message has the end of its log.
    """
    passwords = private_folder(home.airflow) / "simple_auth_manager_passwords.json.generated"
    write_private(passwords, json.dumps({USER: state.password}))
    installed = version("apache-airflow-core")
    if state.airflow_version == installed and (home.airflow / "airflow.db").is_file():
        return
    say("airflow: preparing the metadata database")
    log = home.logs / "airflow-migrate.log"
    with log.open("ab") as stream:
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(command, env=dict(env), cwd=REPOSITORY, stdout=stream, stderr=stream, check=False)
    if done.returncode:
        raise StackError(f"airflow db migrate failed; the end of {log}:\n{last_lines(log)}")
    state.airflow_version = installed


def airflow_services(home: Home, state: StackState, env: Mapping[str, str]) -> list[Service]:
    """Return Airflow's services; each is ready when Airflow's health report says so."""
    return [
        Service(
            name=name,
            argv=[sys.executable, "-m", "airflow", *arguments],
            env=env,
            cwd=REPOSITORY,
            log=home.logs / f"airflow-{name}.log",
            ready=lambda name=name: is_healthy(state, name),  # type: ignore[misc]
            patience=180,
        )
        for name, (_, arguments) in PARTS.items()
    ]


def is_healthy(state: StackState, part: str) -> bool:
    """Whether Airflow reports one of its services as healthy."""
    try:
        with _open(f"{pages_url(state)}/api/v2/monitor/health", timeout=5) as answer:
            report = json.load(answer)
    except (OSError, ValueError):
        return False
    return bool((report.get(PARTS[part][0]) or {}).get("status") == "healthy")


def create_pools(state: StackState) -> None:
    """Create the pools that the DAGs use; an existing pool keeps its size.

    Raises:
        StackError: Airflow rejects the login or the pool.
    """
    login = {"username": USER, "password": state.password}
    token = _post(state, "/auth/token", login, {})["access_token"]
    for name, (slots, description) in POOLS.items():
        body = {"name": name, "slots": slots, "description": description, "include_deferred": False}
        _post(state, "/api/v2/pools", body, {"Authorization": f"Bearer {token}"}, accept=409)


def _post(state: StackState, path: str, body: Any, headers: Mapping[str, str], *, accept: int = 0) -> Any:
    request = urllib.request.Request(  # noqa: S310 - always http on loopback
        pages_url(state) + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with _open(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == accept:
            return {}
        raise StackError(
            f"Airflow answered {path} with {error.code}: {error.read(300).decode('utf-8', 'replace')}"
        ) from error
    except OSError as error:
        raise StackError(f"Airflow did not answer {path}: {error}") from error
