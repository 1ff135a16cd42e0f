"""An Airflow of a test's own, for programs that run in a process of theirs."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.embedded.home import REPOSITORY

# What a user's shell, or another test, says of these must not reach it.
FOREIGN = ("AIRFLOW", "SLUICE", "PYICEBERG", "OPENLINEAGE", "SCHEMA_REGISTRY")


def own_airflow(folder: Path) -> dict[str, str]:
    """The environment: its home in the folder, no examples, no database yet, the package and the DAG files at hand."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)},
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "include"), str(REPOSITORY / "dags")]),
    }
