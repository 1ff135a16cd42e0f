"""What the DAGs that are triggered by hand have in common: the form's fields, and who filled it in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from sluice.operate import operator_input

QUICK = timedelta(minutes=5)
RANGE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
UNCHANGED = (
    "This was a dry run: nothing was changed. To do it, choose 'Trigger again with this config' under Trigger on this "
    "run's page: the form is filled in as it was; turn dry_run off."
)
WHY = Param(type="string", minLength=3, description="The reason; kept in the ledger with your name.")
DRY_RUN = Param(True, type="boolean", description="Only show what would be done.")


def ranges(description: str) -> Param:
    """A field for offset ranges per partition."""
    return Param(
        {},
        type="object",
        propertyNames={"pattern": f"^{operator_input.PARTITION}$"},
        additionalProperties=RANGE,
        description=description,
    )


def by_hand(dag_id: str, doc: str, *, runs: int = 1, **params: Param) -> DAG:
    """A DAG that is only triggered by hand, so many runs at a time."""
    return DAG(
        dag_id=dag_id,
        schedule=None,
        catchup=False,
        max_active_runs=runs,
        tags=["sluice", "by hand"],
        params={**params, "why": WHY, "dry_run": DRY_RUN},
        doc_md=doc,
        default_args={"retries": 0, "execution_timeout": QUICK},
    )


def who(dag_run: Any) -> str:
    """Who triggered the run, where Airflow knows."""
    return getattr(dag_run, "triggering_user_name", None) or "unknown"
