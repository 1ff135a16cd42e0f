"""Uses of Airflow's ORM models, for which `airflow.sdk` and the REST API have no equivalent in a plugin as of 3.3.

The REST API of the API server would need a token of its own for each read; `airflow.sdk` reads connections through the
task supervisor, which the API server does not have.
"""

from __future__ import annotations

from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunType

__all__ = [
    "DagModel",
    "DagRun",
    "DagRunState",
    "DagRunType",
    "Pool",
    "TaskInstance",
    "TaskInstanceState",
    "create_session",
    "get_connection",
    "get_team",
]


def get_connection(name: str) -> Connection | None:
    """Read a connection from the secrets backends; None if it does not exist."""
    try:
        return Connection.get_connection_from_secrets(name)
    except AirflowNotFoundException:
        return None


def get_team(dag: str) -> str | None:
    """The team of a DAG; None if it belongs to none."""
    return DagModel.get_team_name(dag)
