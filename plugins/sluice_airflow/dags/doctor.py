"""The DAG `doctor`, triggered by hand: the checks of `sluice doctor` on a worker, with the connections of a task."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, task

from sluice import dag_ids
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice_airflow import connections, driver_variables
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.forms import SHORT_TIMEOUT
from sluice_airflow.sdk import AirflowFailException

if TYPE_CHECKING:
    import subprocess

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
CHECKS = Param(
    [],
    type="array",
    items={"type": "string"},
    description="Names of checks, one per line, such as kafka or catalog. Empty: all.",
)


@task(execution_timeout=SHORT_TIMEOUT)
def check(*, params: Any = None) -> None:
    """Log a line per check, and fail with the next step if one is not well. Temporary tables are removed again."""
    from sluice.doctor import airflow, doctor, findings
    from sluice.doctor.findings import State

    connections.export_kafka_config()
    connections.export_registry_config()
    used = airflow.find_used_connections(contract_folder.load_contracts(strict=False).groups.values())
    checks = doctor.make_checks(PATIENCE_S, _run_shell, connections=connections.driver_places(used))
    if unknown := [each for each in params["checks"] if each not in checks]:
        raise AirflowFailException(f"No check is named {', '.join(unknown)}. The checks are {', '.join(checks)}.")
    chosen = [each for name, each in checks.items() if name in (params["checks"] or checks)]
    bad = []
    for each in findings.run_checks(chosen, os.environ):
        is_bad = each.state in (State.FAILED, State.NO_ANSWER)
        step = f" Next step: {each.next_step}" if each.next_step else ""
        log.log(logging.ERROR if is_bad else logging.INFO, "%-9s  %-9s  %s%s", each.state, each.check, each.text, step)
        bad += [each] if is_bad else []
    if bad:
        raise AirflowFailException(f"Not well: {', '.join(each.check for each in bad)}. Next step: {bad[0].next_step}")


def _run_shell(statement: str | None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Spark's SQL shell, with those variables that a driver gets."""
    from sluice.cli import spark, sql

    spark.set_java()
    return sql.run_shell(statement, env=driver_variables.select_variables(os.environ), **options)


def build(_: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAG."""
    with DAG(
        dag_id=dag_ids.DOCTOR,
        dag_display_name=dag_ids.display_name(dag_ids.DOCTOR),
        schedule=None,
        catchup=False,
        max_active_runs=1,
        tags=options.tags("by hand"),
        params={"checks": CHECKS},
        doc_md="Checks on a worker what a run needs: versions, Java, jars, contracts, masking key, Kafka, registry, "
        "catalog, storage, Spark and connections. The log has one line per check, with the next step.",
        default_args={"retries": 0, **options.owner_argument},
    ) as dag:
        check()
    return [dag]
