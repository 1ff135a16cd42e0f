"""What a program needs to talk to a running stack: its services' environment, and the file `env` for everyone else."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from sluice.embedded.failure import StackError
from sluice.embedded.home import REPOSITORY, Home, contracts_folder
from sluice.embedded.inherited import UNSET, inherited
from sluice.embedded.java import Java
from sluice.embedded.ports import HOST
from sluice.embedded.process import MARK
from sluice.embedded.registry import url
from sluice.embedded.state import State, write_private

# As `service_env` has it.
_DIRECT = (
    'no_proxy="${no_proxy:-${NO_PROXY-}}"; '
    f'[ "$no_proxy" = "*" ] || no_proxy="${{no_proxy:+$no_proxy,}}{HOST},localhost"; '
    'NO_PROXY="$no_proxy"; export no_proxy NO_PROXY\n'
)
USER = "admin"
CATALOG = "lake"


def stack_env(home: Home, state: State, *, java: Java, spark_jars: Path) -> dict[str, str]:
    """Every variable that tells a program about the stack, and only those.

    Args:
        home: The stack's folder.
        state: Its ports and secrets.
        java: What Spark runs on.
        spark_jars: The folder with the jars that Spark needs.
    """
    bootstrap = f"{HOST}:{state.ports['kafka']}"
    registry = {"SCHEMA_REGISTRY_URL": url(state.ports["registry"])} if state.ports.get("registry") else {}
    return {
        "SLUICE_HOME": str(home.root),
        "SLUICE_CONTRACTS": str(contracts_folder()),
        "SLUICE_JARS": str(spark_jars),
        "JAVA_HOME": str(java.home),
        "PYTHONPATH": str(REPOSITORY / "include"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        **registry,
        # What would win over these two: a cluster or a registry that the caller names otherwise.
        "SLUICE_KAFKA_CONFIG": "",
        "SLUICE_REGISTRY_CONFIG": "",
        "SLUICE_CATALOG": CATALOG,
        # Its configuration, not one in the user's home, whose catalog of the same name would be mixed with this one.
        "PYICEBERG_HOME": str(home.root),
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        # SQLite has one writer at a time: the others wait up to a minute for it.
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{home.catalog}?timeout=60",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{home.warehouse}",
        "SLUICE_REPORTS": f"file://{home.warehouse}/sluice_reports",
        "GX_ANALYTICS_ENABLED": "false",
        **_airflow_env(home, state, bootstrap),
        "SLUICE_PAGES_URL": pages_url(state),
        "SLUICE_PAGES_USER": USER,
        "SLUICE_PAGES_PASSWORD": state.password,
    }


def pages_url(state: State) -> str:
    """Where Airflow's pages and its API are."""
    return f"http://{HOST}:{state.ports['pages']}"


def _airflow_env(home: Home, state: State, bootstrap: str) -> dict[str, str]:
    url = pages_url(state)
    return {
        "AIRFLOW_HOME": str(home.airflow),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        # SQLite as metadata database does not bear the default of 32.
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": state.fernet_key,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(state.ports["pages"]),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API_AUTH__JWT_SECRET": state.jwt_secret,
        # A changed DAG or contract shows within seconds.
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        # Where a task's process closes its sockets a moment before it ends, its supervisor sees the end so much later.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
        ),
    }


def service_env(variables: Mapping[str, str], state: State) -> dict[str, str]:
    """The whole environment of a service: what it may have of the caller's, the stack's variables, the stack's mark."""
    env = {**inherited(), **variables, MARK: state.mark}
    env["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), f"{variables['JAVA_HOME']}/bin", env.get("PATH", "")]
    )
    # A proxy is for the outside: the parts of the stack talk to each other directly.
    told = env.get("no_proxy") or env.get("NO_PROXY") or ""
    direct = told if told == "*" else ",".join(filter(None, [told, HOST, "localhost"]))
    env |= {"no_proxy": direct, "NO_PROXY": direct}
    return env


def write_env(home: Home, variables: Mapping[str, str]) -> None:
    """Write the file that a shell can source; it holds the password, so only its owner may read it.

    And beside it PyIceberg's own file, which it takes before others only if there is something in it.
    """
    write_private(home.root / ".pyiceberg.yaml", f"default-catalog: {CATALOG}\n")
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    head = f"# Written by `make up`. In a shell: . {shlex.quote(str(home.env_file))}\n"
    write_private(home.env_file, f"{head}{UNSET}{lines}{_DIRECT}")


def load_env(home: Path | None = None) -> dict[str, str]:
    """Read a stack's `env` file.

    Args:
        home: The stack's folder; by default `SLUICE_HOME`, else the repository's `.sluice`.

    Raises:
        StackError: If the stack was never started.
    """
    place = Home.default() if home is None else Home(home.expanduser().resolve())
    if not place.env_file.is_file():
        raise StackError(f"{place.env_file} does not exist: this stack was never started", way_out="make up")
    variables = {}
    for line in place.env_file.read_text(encoding="utf-8").splitlines():
        words = shlex.split(line, comments=True)
        if len(words) == 2 and words[0] == "export":
            name, _, value = words[1].partition("=")
            variables[name] = value
    return variables
