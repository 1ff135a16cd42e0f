"""Review a change of a contract, started by a group's DAG or by hand: show → decide (a person) → apply → bring.

The work itself is in the package. While nobody answers, the table goes on with the contract in force.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowSkipException
from sluice_airflow.connections import errors_in_words, open_lake, use_registry
from sluice_airflow.forms import QUICK

log = logging.getLogger(__name__)

APPROVE, REJECT, LATER = "Approve", "Reject", "Not now"


@task(execution_timeout=QUICK)
def show(*, params: Any = None) -> dict[str, str]:
    """The change in words; offsets, counts and a few records since it is under review; what either answer does."""
    from sluice.operate import review_schema

    with errors_in_words():
        use_registry()
        lake, promises = open_lake()
        found = review_schema.look(lake, promises.table(params["table"]))
    lines = found.lines()
    for line in lines:
        log.warning("%s", line)
    return {"body": "\n".join(f"    {line}" for line in lines), "change": found.outlook.change_id}


@task(execution_timeout=QUICK)
def apply(
    shown: dict[str, str], answer: dict[str, Any], *, params: Any = None, run_id: Any = None
) -> list[dict[str, Any]]:
    """Carry out the answer; who gave it and why is kept in `sluice.schemas`. Returns the backfills to start."""
    from sluice.operate import review_schema

    (chosen,) = answer["chosen_options"]
    if chosen == LATER:
        raise AirflowSkipException("Nothing was decided. Trigger review_schema again to be asked again.")
    given = answer["params_input"]
    with errors_in_words():
        use_registry()
        lake, promises = open_lake()
        done = review_schema.answer(
            lake,
            promises,
            params["table"],
            approve=chosen == APPROVE,
            who=(answer["responded_by_user"] or {}).get("name") or "unknown",
            why=given.get("why") or "",
            run_id=run_id,
            change_id=shown["change"],
            republish=bool(given.get("republish")),
        )
    for line in done.lines:
        log.warning("%s", line)
    return [{"trigger_run_id": f"bring_{i}__{run_id}", "conf": form} for i, form in enumerate(done.forms())]


with DAG(
    dag_id="review_schema",
    schedule=None,
    catchup=False,
    max_active_runs=1000,  # each waits for a person, in no slot; none is to hide another
    tags=["sluice", "by hand"],
    params={"table": Param(type="string", minLength=1, description="The typed table.")},
    doc_md="Asks whether a change of a contract is to be made that its `schema_policy` does not make by itself. "
    "Until somebody answers, the table goes on with the contract in force.",
    default_args={"retries": 0},
):
    shown = show()
    decide = HITLOperator(
        task_id="decide",
        subject="{{ params.table }}: change the table as its contract asks?",
        body="{{ ti.xcom_pull(task_ids='show')['body'] }}",
        options=[APPROVE, REJECT, LATER],
        params={
            "why": Param("", type="string", description="The reason; kept in sluice.schemas with your name."),
            "republish": Param(
                False,
                type="boolean",
                description="Take back what was published since the review began, and publish it by the new contract. "
                "Without it, only what was rejected meanwhile is brought again.",
            ),
        },
    )
    shown >> decide
    # The run of the backfill tells what became of them; a person need not wait for it here.
    bring = TriggerDagRunOperator.partial(task_id="bring", trigger_dag_id="backfill", skip_when_already_exists=True)
    bring.expand_kwargs(apply(shown, decide.output))
