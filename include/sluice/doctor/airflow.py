"""Checks Airflow's side: connections, pools and the plugin. Airflow runs in a process of its own, which can be ended.

In: the contracts' groups, and Airflow's configuration. Out: what is there, or what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sluice.contract import folder as contract_folder
from sluice.doctor.findings import SkippedError
from sluice.errors import ConfigError, printable
from sluice.kafka.connections import KAFKA_CONN_ID, REGISTRY_CONN_ID

PLUGIN = "sluice"
# No login, password or extra comes back.
PROGRAM = """
import json, sys
from airflow import plugins_manager
from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection
from airflow.models.pool import Pool

asked = json.loads(sys.argv[1])
connections = {}
for name in asked["connections"]:
    try:
        found = Connection.get_connection_from_secrets(name)
        connections[name] = found.extra_dejson.get("deploy-mode") or "client"
    except AirflowNotFoundException:
        pass
pools = [name for name in asked["pools"] if Pool.get_pool(name)]
plugins = [each["name"] for each in plugins_manager.get_plugin_info(["name"])]
errors = {name: str(text) for name, text in plugins_manager.get_import_errors().items()}
print(json.dumps({"connections": connections, "pools": pools, "plugins": plugins, "errors": errors}))
"""


def check_airflow(seconds: float) -> str:
    """Check the connections and pools that the groups use, and that Airflow loads the plugin.

    Args:
        seconds: after this time Airflow's process is ended.

    Raises:
        SkippedError: Airflow is not installed, or not configured here.
        TimeoutError: it did not answer in time.
        ConfigError: something is missing.
    """
    if find_spec("airflow") is None:
        raise SkippedError("Airflow is not installed here")
    if not _is_configured():
        raise SkippedError("Airflow is not configured here: neither AIRFLOW_HOME/airflow.cfg nor AIRFLOW__… exist")
    groups = contract_folder.load_contracts(strict=False).groups.values()
    spark = {g.settings.spark.connection for g in groups}
    pools = {pool for g in groups for pool in (g.settings.pool, g.settings.maintenance.pool) if pool}
    found = _ask({"connections": sorted({KAFKA_CONN_ID, REGISTRY_CONN_ID, *spark}), "pools": sorted(pools)}, seconds)
    problems = [f"connection {n} does not exist" for n in sorted(spark - found["connections"].keys())]
    problems += [
        f"connection {name} has deploy mode {mode}, and must have client"
        for name, mode in found["connections"].items()
        if name in spark and mode != "client"
    ]
    elsewhere = os.environ.get("SLUICE_KAFKA_CONFIG") or os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if KAFKA_CONN_ID not in found["connections"] and not elsewhere:
        problems.append(f"connection {KAFKA_CONN_ID} does not exist")
    problems += [f"pool {name} does not exist" for name in sorted(pools - set(found["pools"]))]
    problems += [f"plugin {name} can't be loaded: {text}" for name, text in found["errors"].items() if PLUGIN in name]
    if PLUGIN not in found["plugins"]:
        problems.append("the plugin with the pages is not loaded")
    if problems:
        raise ConfigError(
            f"In Airflow, {'; '.join(problems)}.",
            next_step="Create pools by `sluice airflow setup`, connections as docs/connect/platform.md shows; put "
            "plugins/ into Airflow's plugins folder, or install the wheel.",
        )
    named = ", ".join(sorted(found["connections"])) or "none"
    return f"connections {named}; pools {', '.join(sorted(pools)) or 'none'}; the plugin is loaded"


def _is_configured() -> bool:
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    return (home / "airflow.cfg").is_file() or any(name.startswith("AIRFLOW__") for name in os.environ)


def _ask(asked: dict[str, Any], seconds: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(asked)],
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
