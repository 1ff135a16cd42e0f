"""The DAG `review_schema`: show → decide (a person) → apply → bring, for a contract change that needs approval.

Until the decision, the table continues with its active contract.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from sluice import dag_ids
from sluice.contract.folder import Contracts
from sluice_airflow.connections import export_registry_config, fail_with_message, open_catalog
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.forms import SHORT_TIMEOUT, table_param
from sluice_airflow.sdk import AirflowSkipException

log = logging.getLogger(__name__)

APPROVE, REJECT, LATER = "Approve", "Reject", "Not now"


@task(execution_timeout=SHORT_TIMEOUT)
def show(*, params: Any = None) -> dict[str, str]:
    """Show the change, its effect on offsets and sample records, and what approving or rejecting it does."""
    from sluice.operate import review_schema

    with fail_with_message():
        export_registry_config()
        catalog, contracts = open_catalog()
        # A rejection can be taken back. Only who triggers the DAG is asked again: ingest starts it for open reviews.
        found = review_schema.load_review(catalog, contracts.table(params["table"]), include_rejected=True)
    lines = found.lines()
    for line in lines:
        log.warning("%s", line)
    return {"body": as_list(lines), "change": found.change.change_id}


def as_list(lines: Sequence[str]) -> str:
    """Write a review as a Markdown list; what others named stays text."""
    title, *rest = lines
    items = (line.partition(" ") for line in rest)
    return "\n".join([code_span(title), "", *(f"- **{label}** {code_span(text.strip())}" for label, _, text in items)])


def code_span(text: str) -> str:
    """Quote text for Markdown: the fence is longer than any within."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}"


@task(execution_timeout=SHORT_TIMEOUT)
def apply(
    shown: dict[str, str], answer: dict[str, Any], *, params: Any = None, run_id: Any = None
) -> list[dict[str, Any]]:
    """Apply the decision and record it in `sluice.schemas`. Returns the backfills to start."""
    from sluice.evolve.pending_change import ReviewDecision
    from sluice.operate import review_schema

    (chosen,) = answer["chosen_options"]
    if chosen == LATER:
        raise AirflowSkipException(f"No decision was made. Trigger {dag_ids.REVIEW_SCHEMA} again to decide.")
    given = answer["params_input"]
    with fail_with_message():
        export_registry_config()
        catalog, contracts = open_catalog()
        done = review_schema.answer_review(
            catalog,
            contracts,
            params["table"],
            ReviewDecision(
                approve=chosen == APPROVE,
                who=(answer["responded_by_user"] or {}).get("name") or "unknown",
                why=given.get("why") or "",
                run_id=run_id,
                change_id=shown["change"],
            ),
            republish=bool(given.get("republish")),
        )
    for line in done.lines:
        log.warning("%s", line)
    return [{"trigger_run_id": f"bring_{i}__{run_id}", "conf": form} for i, form in enumerate(done.forms())]


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAG."""
    with DAG(
        dag_id=dag_ids.REVIEW_SCHEMA,
        dag_display_name=dag_ids.display_name(dag_ids.REVIEW_SCHEMA),
        schedule=None,
        catchup=False,
        max_active_runs=1000,  # each waits for a person without using a slot; none must block another
        tags=options.tags("by hand"),
        params={"table": table_param(contracts)},
        doc_md="Asks for approval of a contract change that `schema_policy` does not apply automatically. "
        "Until the decision, the table continues with its active contract.",
        default_args={"retries": 0, **options.owner_argument},
    ) as dag:
        shown = show()
        decide = HITLOperator(
            task_id="decide",
            subject="{{ params.table }}: apply the contract change to the table?",
            body="{{ ti.xcom_pull(task_ids='show')['body'] }}",
            options=[APPROVE, REJECT, LATER],
            params={
                "why": Param(
                    "", type="string", title="Reason", description="Recorded in sluice.schemas with your name."
                ),
                "republish": Param(
                    False,
                    type="boolean",
                    title="Republish",
                    description="Roll back what was published since the review began, and republish it with the new "
                    "contract. Without it, only records quarantined since then are replayed.",
                ),
            },
        )
        shown >> decide
        # Does not wait for the backfills: their own runs show the outcome.
        bring = TriggerDagRunOperator.partial(
            task_id="bring", trigger_dag_id=dag_ids.BACKFILL, skip_when_already_exists=True
        )
        bring.expand_kwargs(apply(shown, decide.output))
    return [dag]
