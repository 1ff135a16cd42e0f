"""The environment of a stack: for its services, and as the file `env` for shells and other programs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from sluice.embedded.caller_env import UNSET_SCRIPT, inherited_env
from sluice.embedded.failure import StackError
from sluice.embedded.home import REPOSITORY, Home, contracts_folder
from sluice.embedded.java import Java
from sluice.embedded.ports import HOST
from sluice.embedded.private_files import check_private, write_private
from sluice.embedded.process import MARK_VARIABLE
from sluice.embedded.schema_registry import registry_url
from sluice.embedded.state import StackState

# The proxy exceptions of `service_env`, for a shell.
_NO_PROXY_SCRIPT = (
    'no_proxy="${no_proxy:-${NO_PROXY-}}"; '
    f'[ "$no_proxy" = "*" ] || no_proxy="${{no_proxy:+$no_proxy,}}{HOST},localhost"; '
    'NO_PROXY="$no_proxy"; export no_proxy NO_PROXY\n'
)
# The folder of this Python has the commands `sluice` and `airflow`.
# The line does not begin with `export`: `load_env` has no use for a part of PATH.
_BIN = shlex.quote(str(Path(sys.executable).parent))
_PATH_SCRIPT = f'case ":$PATH:" in *:{_BIN}:*) ;; *) PATH={_BIN}:"$PATH"; export PATH ;; esac\n'
USER = "admin"
CATALOG = "lake"


def stack_env(home: Home, state: StackState, *, java: Java, spark_jars: Path) -> dict[str, str]:
    """Return the variables that a program needs to use the stack.

    Args:
        home: The stack's folder.
        state: Its ports and secrets.
        java: The Java for Spark.
        spark_jars: The folder with Spark's further jars.
    """
    bootstrap = f"{HOST}:{state.ports['kafka']}"
    registry = {"SCHEMA_REGISTRY_URL": registry_url(state.ports["registry"])} if state.ports.get("registry") else {}
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
        # Empty, because a caller's settings for another cluster or registry would take precedence.
        "SLUICE_KAFKA_CONFIG": "",
        "SLUICE_REGISTRY_CONFIG": "",
        "SLUICE_CATALOG": CATALOG,
        # Without it, PyIceberg would merge a catalog of the same name from the user's home directory into this one.
        "PYICEBERG_HOME": str(home.root),
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        # SQLite has one writer at a time; the others wait for up to a minute.
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{home.catalog}?timeout=60",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{home.warehouse}",
        "SLUICE_REPORTS": f"file://{home.warehouse}/sluice_reports",
        "GX_ANALYTICS_ENABLED": "false",
        **_airflow_env(home, state, bootstrap),
        "SLUICE_PAGES_URL": pages_url(state),
        "SLUICE_PAGES_USER": USER,
        "SLUICE_PAGES_PASSWORD": state.password,
    }


def pages_url(state: StackState) -> str:
    """Return the URL of Airflow's UI and API."""
    return f"http://{HOST}:{state.ports['pages']}"


def _airflow_env(home: Home, state: StackState, bootstrap: str) -> dict[str, str]:
    url = pages_url(state)
    return {
        "AIRFLOW_HOME": str(home.airflow),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        # The default of 32 is too much for SQLite as metadata database.
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": state.fernet_key,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(state.ports["pages"]),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API_AUTH__JWT_SECRET": state.jwt_secret,
        # Changes of DAGs and contracts appear within seconds.
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        # A task's supervisor may notice its end only at the next heartbeat, so the interval is short.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_SLUICE_KAFKA": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {"conn_type": "spark", "host": state.spark, "extra": {"deploy-mode": "client"}}
        ),
    }


def service_env(variables: Mapping[str, str], state: StackState) -> dict[str, str]:
    """Return a service's whole environment: the caller's without the ignored variables, the stack's, and the mark."""
    env = {**inherited_env(), **variables, MARK_VARIABLE: state.mark}
    env["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), f"{variables['JAVA_HOME']}/bin", env.get("PATH", "")]
    )
    # The services reach each other without a proxy.
    given = env.get("no_proxy") or env.get("NO_PROXY") or ""
    no_proxy = given if given == "*" else ",".join(filter(None, [given, HOST, "localhost"]))
    env |= {"no_proxy": no_proxy, "NO_PROXY": no_proxy}
    return env


def write_env(home: Home, variables: Mapping[str, str]) -> None:
    """Write the file that a shell can source, readable by its owner only, because it contains the password.

    Also writes a PyIceberg configuration next to it, so that PyIceberg does not read the user's own.
    """
    write_private(home.root / ".pyiceberg.yaml", f"default-catalog: {CATALOG}\n")
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    head = f"# Written by `make up`. In a shell: . {shlex.quote(str(home.env_file))}\n"
    write_private(home.env_file, f"{head}{UNSET_SCRIPT}{lines}{_NO_PROXY_SCRIPT}{_PATH_SCRIPT}")


def load_env(home: Path | None = None) -> dict[str, str]:
    """Read a stack's `env` file.

    Args:
        home: The stack's folder; by default `SLUICE_HOME`, else the repository's `.sluice`.

    Raises:
        StackError: The stack was never started, or others may change its folder.
    """
    stack = Home.default() if home is None else Home(home.expanduser().resolve())
    if not stack.env_file.is_file():
        raise StackError(f"{stack.env_file} does not exist: this stack was never started", next_step="make up")
    check_private(stack.root)
    variables = {}
    for line in stack.env_file.read_text(encoding="utf-8").splitlines():
        parts = shlex.split(line, comments=True)
        if len(parts) == 2 and parts[0] == "export":
            name, _, value = parts[1].partition("=")
            variables[name] = value
    return variables
