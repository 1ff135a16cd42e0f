"""Checks Airflow's side: connections, pools and the plugin. Airflow runs in a process of its own, which can be ended.

In: the contracts' groups, and Airflow's configuration. Out: what is there, or what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set

from sluice import airflow_process, spark_cluster
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Group
from sluice.contract.groups import SparkSettings
from sluice.doctor.findings import SkippedError
from sluice.embedded import spark_master
from sluice.embedded.spark_master import DriverPlace
from sluice.errors import ConfigError
from sluice.kafka import airflow_connections
from sluice.kafka.connections import KAFKA_CONN_ID, REGISTRY_CONN_ID

PLUGIN = "sluice"
PAGE_PORT = "spark.master.ui.port"


def check_airflow(seconds: float) -> str:
    """Check the connections and pools that the groups use, and that Airflow loads the plugin.

    Args:
        seconds: after this time Airflow's process is ended.

    Raises:
        SkippedError: Airflow is not installed, or not configured here.
        TimeoutError: it, or the master of a Spark cluster, did not answer in time.
        ConfigError: something is missing.
    """
    if not airflow_process.is_installed():
        raise SkippedError("Airflow is not installed here")
    if not airflow_process.is_configured():
        raise SkippedError("Airflow is not configured here: neither AIRFLOW_HOME/airflow.cfg nor AIRFLOW__… exist")
    groups = contract_folder.load_contracts(strict=False).groups
    spark = _spark_connections(groups.values())
    pools = {pool for g in groups.values() for pool in g.settings.pools}
    wanted = {"connections": sorted(find_used_connections(groups.values())), "pools": sorted(pools)}
    found = airflow_process.ask("setup", wanted, seconds)
    places = {name: DriverPlace(*fields) for name, fields in found["connections"].items()}
    problems = _connection_problems(spark, places)
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
    return f"{_describe_connections(groups, places)}; pools {', '.join(sorted(pools)) or 'none'}; the plugin is loaded"


def find_used_connections(groups: Iterable[Group]) -> set[str]:
    """The names of the connections that the groups use."""
    return {KAFKA_CONN_ID, REGISTRY_CONN_ID, *_spark_connections(groups)}


def check_connections(found: Mapping[str, DriverPlace]) -> str:
    """Check the connections that the groups use, as a task gets them.

    Args:
        found: those that exist.

    Raises:
        TimeoutError: the master of a Spark cluster did not answer.
        ConfigError: one is missing, or has a deploy mode that Spark does not know, or a cluster has no worker that is
            large enough for a group's executors.
    """
    groups = contract_folder.load_contracts(strict=False).groups
    if problems := _connection_problems(_spark_connections(groups.values()), found):
        raise ConfigError(
            f"In Airflow, {'; '.join(problems)}.",
            next_step="Create or correct the connections as docs/connect/platform.md shows.",
        )
    return f"{_describe_connections(groups, found)}; `sluice doctor airflow` checks pools and the plugin too"


def _describe_connections(groups: Mapping[str, Group], found: Mapping[str, DriverPlace]) -> str:
    """The names of the connections, and the standalone masters among those of Spark, which are connected to.

    Raises:
        TimeoutError: one does not answer. Spark itself would try for a minute, at each run.
        ConfigError: no worker is large enough for a group's executors.
    """
    spark = _spark_connections(groups.values())
    masters = {name: place.master for name, place in found.items() if name in spark}
    problems = {name: spark_master.find_problem(master) for name, master in masters.items()}
    if away := [f"connection {name}: {text}" for name, text in sorted(problems.items()) if text]:
        raise TimeoutError(f"Spark's master, by Airflow {'; '.join(away)}")
    there = [
        _describe_master(
            master, {n: g.settings.spark for n, g in groups.items() if g.settings.spark.connection == name}
        )
        for name, master in sorted(masters.items())
        if spark_cluster.addresses(master)
    ]
    return "; ".join([f"connections {', '.join(sorted(found)) or 'none'}", *dict.fromkeys(there)])


def _describe_master(master: str, groups: Mapping[str, SparkSettings]) -> str:
    """What a standalone cluster has and what is free, as far as the master's page answers.

    Raises:
        ConfigError: no worker is large enough for a group's executors.
    """
    port = next((s.conf[PAGE_PORT] for s in groups.values() if PAGE_PORT in s.conf), spark_cluster.PAGE_PORT)
    pages = [spark_cluster.page_address(host, port) for host, _ in spark_cluster.addresses(master)]
    cluster = next(filter(None, map(spark_cluster.read_cluster, pages)), None)
    if cluster is None:
        return f"{master} answers, its page {pages[0]} does not: what is free is unknown"
    needs = {name: spark_cluster.Need.of(s.conf, s.executor_memory) for name, s in groups.items()}
    if unmet := [f"group {name} asks {need}" for name, need in needs.items() if cluster.is_too_small(need)]:
        raise ConfigError(
            f"No worker of {master} is large enough: for an executor, {'; '.join(unmet)}; the cluster has {cluster}.",
            next_step="Start a larger worker, or lower executor_memory and spark.executor.cores in groups.yaml.",
        )
    asked = "; ".join(f"an executor of group {name} asks {need}" for name, need in needs.items())
    return f"{master} answers: {cluster}{f'; {asked}' if asked else ''}"


_USABLE = re.compile(r"client|cluster of (spark://(yarn|k8s://.*)|k8s://.*|yarn://.*)")


def _spark_connections(groups: Iterable[Group]) -> set[str]:
    """The connections that groups use; before there is a group, the one that it uses by default."""
    return {group.settings.spark.connection for group in groups} or {SparkSettings().connection}


def _connection_problems(spark: Set[str], found: Mapping[str, DriverPlace]) -> list[str]:
    problems = [f"connection {name} does not exist" for name in sorted(spark - found.keys())]
    problems += [
        f"connection {name} has deploy mode {place}, and must have client, or cluster with YARN or Kubernetes"
        for name, place in found.items()
        if name in spark and not _USABLE.fullmatch(str(place))
    ]
    if KAFKA_CONN_ID not in found and not airflow_connections.source(airflow_connections.KAFKA):
        problems.append(f"connection {KAFKA_CONN_ID} does not exist")
    return problems
