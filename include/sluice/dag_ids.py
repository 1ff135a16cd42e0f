"""The ids of Sluice's DAGs in Airflow: one prefix for all, which DAG files, pages, messages and commands agree on."""

from __future__ import annotations

import os
from pathlib import Path

PREFIX_VARIABLE = "SLUICE_DAG_PREFIX"
"""Environment variable with the prefix; the same for every part of Airflow and for the command line."""


COMMAND_RUN_PREFIX = "command__"
"""The beginning of the id of a run that a command starts; Airflow has no such run."""


def _default_prefix() -> str:
    """None in a checkout, whose Airflow is Sluice's own. A package from a wheel shares its Airflow with other DAGs."""
    return "sluice_" if any(Path(__file__).parents[1].glob("sluice-*.dist-info")) else ""


PREFIX = os.environ.get(PREFIX_VARIABLE, _default_prefix())


def dag_id(name: str) -> str:
    """Return the id of one of Sluice's DAGs, such as `sluice_backfill`."""
    return f"{PREFIX}{name}"


def ingest_dag(group: str) -> str:
    """Return the id of the DAG that ingests a group."""
    return dag_id(f"ingest_{group}")


def maintenance_dag(action: str) -> str:
    """Return the id of the DAG of a maintenance action."""
    return dag_id(f"maintain_{action}")


def display_name(dag: str) -> str:
    """Return the name that Airflow's pages show: the id as words, so that a search for words of the id finds it."""
    words = dag.replace("_", " ")
    return words[:1].upper() + words[1:]


ALERTS = dag_id("alerts")
COMPARE = dag_id("compare")
DOCTOR = dag_id("doctor")
REHEARSE = dag_id("rehearse")
WATCH_TABLES = dag_id("watch_tables")
OPERATOR_DAGS = BACKFILL, ROLLBACK, ACCEPT_GAP, REVIEW_SCHEMA, PUBLISH_BLOCKED = (
    dag_id("backfill"),
    dag_id("rollback"),
    dag_id("accept_gap"),
    dag_id("review_schema"),
    dag_id("publish_blocked"),
)
"""The DAGs that an operator triggers."""
MAINTENANCE_DAGS = REWRITE_FILES, EXPIRE_SNAPSHOTS, REMOVE_ORPHANS = (
    maintenance_dag("rewrite_data_files"),
    maintenance_dag("expire_snapshots"),
    maintenance_dag("remove_orphan_files"),
)
"""The DAGs of the maintenance actions."""
