"""The list of checks, from what is installed to what a run needs.

In: how long to wait. Out: checks for `findings.run_checks`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from sluice.doctor import airflow, lake, software, sources
from sluice.doctor.findings import Check
from sluice.embedded.spark_master import DriverPlace
from sluice.errors import ConfigError, printable
from sluice.kafka import airflow_connections

PROCESS_SECONDS = 120.0
"""For the checks that start a process: Spark, Airflow."""
STATEMENT = "SELECT count(*) FROM range(1000); SHOW NAMESPACES"

RunShell = Callable[..., "subprocess.CompletedProcess[str]"]


def make_checks(
    patience: float,
    run_shell: RunShell,
    *,
    connections: Mapping[str, DriverPlace] | None = None,
) -> dict[str, Check]:
    """Make the checks, by name.

    Args:
        patience: seconds until a service counts as not answering.
        run_shell: runs SQL in Spark's shell on the catalog, with `subprocess.run`'s options.
        connections: Airflow's that the groups use, as a task gets them: it can't ask Airflow's database. None: Airflow
            is asked.
    """
    # The checks run in threads: two that import this package at once can meet a module that is half initialised.
    with suppress(ImportError):  # `versions` reports a missing package
        import_module("confluent_kafka.schema_registry")
    process = max(patience, PROCESS_SECONDS)
    kafka, registry = (
        airflow_connections.SECONDS if airflow_connections.needs_lookup(each) else 0.0
        for each in (airflow_connections.KAFKA, airflow_connections.REGISTRY)
    )
    if connections is None:
        ask_airflow = partial(airflow.check_airflow, process)
    else:
        ask_airflow = partial(airflow.check_connections, connections)
    steps: dict[str, tuple[Callable[[], str], float]] = {
        "versions": (software.check_versions, patience),
        "java": (software.check_java, patience),
        "jars": (software.check_jars, patience),
        "contracts": (sources.check_contracts, patience),
        "masks": (sources.check_masks, patience),
        "kafka": (partial(sources.check_kafka, patience), 2 * patience + 5 + kafka),
        "registry": (sources.check_registry, patience + registry),
        "catalog": (partial(lake.check_catalog, patience), patience + 5),
        "storage": (partial(lake.check_storage, patience), patience + 5),
        "spark": (partial(check_spark, process, run_shell), process + 5),
        "airflow": (ask_airflow, process + 5),
    }
    return {name: Check(name, run, seconds) for name, (run, seconds) in steps.items()}


def check_spark(seconds: float, run_shell: RunShell) -> str:
    """Run a query in Spark on this machine, and let it list the catalog's namespaces.

    Raises:
        TimeoutError: it took longer than `seconds`.
        ConfigError: it failed, or there are no jars.
    """
    options: dict[str, Any] = {"capture_output": True, "timeout": seconds}
    try:
        done = run_shell(STATEMENT, **options)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"Spark did not end within {seconds:g} s") from error
    if done.returncode or "1000" not in done.stdout:
        lines = printable(done.stderr).strip().splitlines()
        raise ConfigError(
            f"Spark failed: {(lines or ['no message'])[0][:300]}",
            next_step="`sluice sql 'SHOW NAMESPACES'` shows the whole error: the jars, Java or the catalog's settings.",
        )
    return "a query and the catalog's namespaces, on this machine"
