"""Common parts of the DAGs that are triggered by hand: form fields, and who triggered the run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from sluice import dag_ids
from sluice.operate import operator_input
from sluice_airflow.dag_options import DagOptions

SHORT_TIMEOUT = timedelta(minutes=5)
RANGE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
DRY_RUN_NOTICE = (
    "This was a dry run: nothing was changed. To apply it, choose 'Trigger again with this config' under Trigger on "
    "the page of this run, and turn dry_run off."
)
WHY = Param(type="string", minLength=3, description="Reason; recorded in the ledger with your name.")
DRY_RUN = Param(True, type="boolean", description="Only show what would happen.")


def ranges_param(description: str) -> Param:
    """Make a field for offset ranges per partition."""
    return Param(
        {},
        type=["null", "object"],  # without null, Airflow's form marks the field as required
        propertyNames={"pattern": f"^{operator_input.PARTITION_PATTERN}$"},
        additionalProperties=RANGE,
        description=description,
    )


def manual_dag(dag_id: str, doc: str, *, options: DagOptions, runs: int = 1, **params: Param) -> DAG:
    """Make a DAG that is only triggered by hand; `runs` limits the concurrent runs."""
    return DAG(
        dag_id=dag_id,
        dag_display_name=dag_ids.display_name(dag_id),
        schedule=None,
        catchup=False,
        max_active_runs=runs,
        tags=options.tags("by hand"),
        params={**params, "why": WHY, "dry_run": DRY_RUN},
        doc_md=doc,
        default_args={"retries": 0, "execution_timeout": SHORT_TIMEOUT, **options.owner_argument},
    )


def triggering_user(dag_run: Any) -> str:
    """The user who triggered the run, if Airflow knows."""
    return getattr(dag_run, "triggering_user_name", None) or "unknown"
