"""The DAG `compare`, triggered by hand: check → a Spark application → verdict. It changes neither table.

The application runs in the pool of the group's ingestion, with a lower priority.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task

from sluice import dag_ids
from sluice.contract.folder import Contracts, Group
from sluice_airflow.connections import fail_with_message, open_catalog
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.forms import SHORT_TIMEOUT, ranges_param, table_param, triggering_user
from sluice_airflow.operators import CompareOperator
from sluice_airflow.sdk import AirflowFailException
from sluice_airflow.services import SparkService

log = logging.getLogger(__name__)

RUNS = 4
CHECK, VERDICT, ASKED = "check", "verdict", "asked"
TIME = {"type": ["null", "string"], "format": "date-time", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T"}
NAMES = {"type": ["null", "array"], "items": {"type": "string"}}
FIELDS = (
    *("table", "other", "key", "time_column", "since", "until", "offsets", "ignore", "tolerance", "columns"),
    "masked_alike",
)


def spark_task(group: str) -> str:
    """The id of the task that compares in Spark, with a group's settings."""
    return f"spark_{group}"


@task.branch(task_id=CHECK)
def check(*, params: Any = None, dag_run: Any = None, ti: Any = None) -> list[str]:
    """Check the request, and continue with the table's group."""
    from sluice.compare.request import make_request

    with fail_with_message():
        request = make_request({name: params[name] for name in FIELDS if params[name] not in (None, "")})
        _, contracts = open_catalog()
        group = contracts.table(request.table).group
    ti.xcom_push(ASKED, {"request": request.model_dump_json(), "who": triggering_user(dag_run)})
    return [spark_task(group), VERDICT]


@task(task_id=VERDICT, trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
def verdict(*, params: Any = None, run_id: Any = None) -> str:
    """Log the verdict; fail on differences if that was asked for."""
    from sluice.ledger import pilot_table

    with fail_with_message():
        catalog, _ = open_catalog()
        rows = [each for each in pilot_table.read(catalog, params["table"]) if each.run_id == run_id]
    if not rows:
        raise AirflowFailException("The application has ended, and wrote no verdict into sluice.pilot.")
    log.info("%s", rows[-1].verdict)
    log.info("The examples are in the log of the task before, and in the report if SLUICE_REPORTS is set.")
    if params["fail_on_difference"] and not rows[-1].ok:
        raise AirflowFailException(f"{params['table']} and {params['other']} are {rows[-1].verdict}")
    return rows[-1].verdict


def _add_tasks(groups: Iterable[Group], service: SparkService | None) -> None:
    """Add the tasks: per group one, with the pool and Spark settings of the group."""
    checked, ended = check(), verdict()
    checked >> ended
    for group in groups:
        settings = group.settings
        spark = CompareOperator(
            task_id=spark_task(group.name),
            group=group.name,
            settings=settings,
            service=service,
            asked=checked[ASKED],
            pool=settings.pool,
            # Lower than the group's ingestion, whose weight includes its downstream tasks.
            priority_weight=1,
            weight_rule="absolute",
            retries=settings.retries,
            retry_delay=settings.retry_delay,
            execution_timeout=settings.timeout,
        )
        spark >> ended


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAG."""
    names = "One name per line."
    with DAG(
        dag_id=dag_ids.COMPARE,
        dag_display_name=dag_ids.display_name(dag_ids.COMPARE),
        schedule=None,
        catchup=False,
        max_active_runs=RUNS,
        tags=options.tags("by hand"),
        params={
            "table": table_param(contracts),
            "other": Param(
                type="string",
                pattern=r"^[^.]+(\.[^.]+)+$",
                title="Compare with",
                description="A table or view: namespace.table, or catalog.namespace.table.",
            ),
            "key": Param(
                None, **NAMES, title="Key", description=f"{names} Default: the contract's key, or Kafka's offsets."
            ),
            "time_column": Param(
                None, type=["null", "string"], title="Time column", description="Default: _kafka_timestamp."
            ),
            "since": Param(None, **TIME, title="From", description="Only rows from this time on."),
            "until": Param(None, **TIME, title="To", description="Only rows before this time."),
            "offsets": ranges_param('Only these offsets, where both tables have them, as {"0": [start, end]}.'),
            "ignore": Param(None, **NAMES, title="Ignored columns", description=names),
            "tolerance": Param(
                {},
                type=["null", "object"],
                additionalProperties={"type": "number", "exclusiveMinimum": 0},
                title="Tolerance",
                description='The largest difference that counts as equal, as {"amount": 0.01}; of times in seconds.',
            ),
            "columns": Param(
                {},
                type=["null", "object"],
                additionalProperties={"type": "string"},
                title="Other names",
                description='The other table\'s names of columns, as {"theirs": "ours"}.',
            ),
            "masked_alike": Param(
                None,
                **NAMES,
                title="Masked alike",
                description=f"{names} Masked columns that the other table masks in the same way.",
            ),
            "fail_on_difference": Param(
                False, type="boolean", title="Fail on difference", description="Fail the run if the tables differ."
            ),
        },
        doc_md="Compares a table with that of another writer: keys that one lacks, duplicates, differing values, and "
        "how fresh both are. **verdict** has the result, which the table's readiness shows too; the report is in the "
        "folder `SLUICE_REPORTS`. It changes neither table.",
        default_args={"retries": 0, "execution_timeout": SHORT_TIMEOUT, **options.owner_argument},
    ) as dag:
        _add_tasks(contracts.groups.values(), options.service)
    return [dag]
