"""Common parts of the DAGs that are triggered by hand: form fields, and who triggered the run."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from sluice import dag_ids
from sluice.contract.folder import Contracts
from sluice.contract.values import TEMPLATE
from sluice.operate import operator_input
from sluice_airflow.dag_options import DagOptions

SHORT_TIMEOUT = timedelta(minutes=5)
RANGE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
DRY_RUN_NOTICE = (
    "This was a dry run: nothing was changed. To apply it, choose 'Trigger again with this config' under Trigger on "
    "the page of this run, and turn dry_run off."
)
WHY = Param(type="string", minLength=3, title="Reason", description="Recorded in the ledger with your name.")
DRY_RUN = Param(True, type="boolean", title="Dry run", description="Only show what would happen.")


def table_param(contracts: Contracts, *, or_topic: bool = False) -> Param:
    """Make a field that offers the tables, and refuses other names where all names are known.

    Args:
        or_topic: whether it takes the name of a topic as well.
    """
    every = [*contracts.tables.values(), *contracts.templates.values()]
    names = dict.fromkeys(contracts.tables)
    known = not contracts.problems  # the tables of a contract with problems are missing
    if or_topic:
        names |= dict.fromkeys(topic for each in every for topic in each.topics)
        known = known and not any(each.topic_pattern for each in every)
    title = "Table or topic" if or_topic else "Table"
    schema: dict[str, Any] = {"type": "string", "minLength": 1, "title": title}
    if names:
        schema["examples"] = list(names)
    # Each topic of a template makes a table, and topics are not known here.
    made = (re.escape(each).replace(re.escape(TEMPLATE), "[^.]+") for each in contracts.templates)
    if known and every:
        schema["pattern"] = f"^(?:{'|'.join([*map(re.escape, names), *made])})$"
    return Param(description="A table wins if a topic has the same name." if or_topic else None, **schema)


def ranges_param(description: str) -> Param:
    """Make a field for offset ranges per partition."""
    return Param(
        {},
        title="Offset ranges",
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
