"""The DAG `rehearse`, triggered by hand: rehearses failures of a table on a copy of it, on a worker."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from sluice import dag_ids
from sluice.contract.folder import Contracts
from sluice_airflow import driver_variables
from sluice_airflow.connections import (
    export_kafka_config,
    export_registry_config,
    fail_with_message,
    kafka_client,
    open_catalog,
)
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.forms import table_param, triggering_user
from sluice_airflow.sdk import AirflowFailException

log = logging.getLogger(__name__)

# A scenario starts Spark at most three times.
TIMEOUT = timedelta(hours=2)
SCENARIOS = Param(
    [],
    type="array",
    items={"type": "string"},
    title="Scenarios",
    description="Names of scenarios, one per line, such as kill-after-publish or rollback. Empty: all.",
)
RECORDS = Param(
    10_000,
    type="integer",
    minimum=1,
    title="Records",
    description="The copy begins so many records before the end of each partition.",
)
DROP_LEFT = Param(
    False,
    type="boolean",
    title="Drop what is left",
    description="First drop what an earlier rehearsal of this table left behind, because its worker was lost.",
)


@task(execution_timeout=TIMEOUT)
def rehearse(*, params: Any = None, dag_run: Any = None, run_id: Any = None) -> None:
    """Play the scenarios on a copy, log the outcome of each, and drop the copy; fail if one is not as expected."""
    from sluice.cli import spark
    from sluice.rehearse import rehearse as rehearsal

    def report(outcome: rehearsal.Outcome) -> None:
        level = logging.ERROR if outcome.state == rehearsal.State.FAILED else logging.INFO
        for line in rehearsal.lines(outcome):
            log.log(level, "%s", line)

    with fail_with_message():
        export_kafka_config()
        export_registry_config()
        spark.set_java()
        client = kafka_client()
        catalog, contracts = open_catalog(client)
        request = rehearsal.Request(
            params["table"],
            params["scenarios"],
            params["records"],
            drop_left=params["drop_left"],
            environment=rehearsal.without_reports(driver_variables.select_variables(os.environ)),
            who=triggering_user(dag_run),
            run_id=run_id,
        )
        found = rehearsal.rehearse(request, contracts, catalog, client, report)
    if failed := [each.scenario for each in found if each.state == rehearsal.State.FAILED]:
        raise AirflowFailException(f"Not as expected: {', '.join(failed)}. The log has what happened instead.")


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAG."""
    with DAG(
        dag_id=dag_ids.REHEARSE,
        dag_display_name=dag_ids.display_name(dag_ids.REHEARSE),
        schedule=None,
        catchup=False,
        max_active_runs=1,
        tags=options.tags("by hand"),
        params={
            "table": table_param(contracts),
            "scenarios": SCENARIOS,
            "records": RECORDS,
            "drop_left": DROP_LEFT,
        },
        doc_md="Rehearses failures of a table on a copy of it: drivers that are killed, a catalog that is away, a "
        "rollback and others. The copy has namespaces of its own and is dropped afterwards. The table and its topic "
        "stay as they are. Spark runs on the worker.",
        default_args={"retries": 0, **options.owner_argument},
    ) as dag:
        rehearse()
    return [dag]
