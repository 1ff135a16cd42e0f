"""The DAGs `accept_gap`, `publish_blocked` and `rollback`, triggered by hand. A dry run, the default, changes nothing.

Each is one task without retries: the operator reads the log and decides.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import DAG, Param, task

from sluice import dag_ids
from sluice.contract.folder import Contracts
from sluice.operate import operator_input
from sluice.operate.operator_input import Decision
from sluice_airflow.connections import export_registry_config, fail_with_message, kafka_client, open_catalog
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.forms import DRY_RUN_NOTICE, manual_dag, ranges_param, table_param, triggering_user

log = logging.getLogger(__name__)


@task
def accept_gap(*, params: Any = None, dag_run: Any = None, run_id: Any = None) -> None:
    """Show the lost offsets; unless this is a dry run, skip them permanently."""
    from sluice.operate import accept_gap
    from sluice.plan.model import PlanInputs

    with fail_with_message():
        export_registry_config()
        client = kafka_client()
        catalog, contracts = open_catalog(client)
        found = accept_gap.accept_gaps(
            params["name"],
            operator_input.parse_ranges(params["ranges"] or {}),
            PlanInputs(contracts, catalog, client),
            Decision(triggering_user(dag_run), params["why"], run_id),
            dry_run=params["dry_run"],
        )
    for gap in found:
        log.warning("%s: %s", "would be skipped permanently" if params["dry_run"] else "skipped permanently", gap)
    log.info("%s", DRY_RUN_NOTICE if params["dry_run"] else "The next run continues after the gap.")


@task
def publish_blocked(*, params: Any = None, dag_run: Any = None, run_id: Any = None) -> None:
    """Show the blocked batches; unless this is a dry run, let the next run publish them as they are."""
    from sluice.operate import publish_blocked

    with fail_with_message():
        catalog, contracts = open_catalog()
        found = publish_blocked.find_blocked(params["table"], contracts, catalog)
        if not params["dry_run"]:
            publish_blocked.publish_blocked(found, catalog, Decision(triggering_user(dag_run), params["why"], run_id))
    for each in found:
        log.warning("%s: %s", "would be published" if params["dry_run"] else "published by the next run", each)
    log.info("%s", DRY_RUN_NOTICE if params["dry_run"] else "The next run of the table's group publishes it.")


@task
def rollback(*, params: Any = None, dag_run: Any = None, run_id: Any = None) -> None:
    """Show what would be undone and republished; unless this is a dry run, roll back."""
    from sluice.ledger.offsets_table import Ledger
    from sluice.operate import dry_run
    from sluice.operate import rollback as back

    with fail_with_message():
        catalog, contracts = open_catalog()
        ledger = Ledger(catalog)
        found = back.preview_rollback(params["table"], contracts, catalog, ledger, dry_run.restore_point(params))
        for line in found.lines():
            log.warning("%s", line)
        if not params["dry_run"]:
            decision = Decision(triggering_user(dag_run), params["why"], run_id)
            back.roll_back(found, catalog, ledger, decision, accept_loss=params["accept_loss"])
    done = "The next run publishes the batches marked `republish`."
    log.info("%s", DRY_RUN_NOTICE if params["dry_run"] else done)


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAGs."""
    with manual_dag(
        dag_ids.ACCEPT_GAP,
        "Skips offsets permanently that Kafka lost before they were read. The topic then continues after them. The "
        "ledger records who accepted the gap, and why.",
        name=table_param(contracts, or_topic=True),
        ranges=ranges_param('The lost offsets, as {"0": [start, end]}. Default: those that planning reports now.'),
        options=options,
    ) as accept_gap_dag:
        accept_gap()
    with manual_dag(
        dag_ids.PUBLISH_BLOCKED,
        "Lets the next run publish a batch that has more bad records than the contract tolerates. These "
        "stay quarantined, and later batches are blocked as before. The ledger records who decided it, and why.",
        table=table_param(contracts),
        options=options,
    ) as publish_blocked_dag:
        publish_blocked()
    with manual_dag(
        dag_ids.ROLLBACK,
        "Rolls a table back to one of its snapshots, together with its offsets, in one commit. The next run "
        "republishes later batches from staging. A dry run shows them. The ledger records who did it, and why.",
        table=table_param(contracts),
        snapshot_id=Param(
            None,
            type=["null", "string", "integer"],
            title="Snapshot",
            description="The snapshot id to roll back to.",
        ),
        before_run=Param(
            None, type=["null", "string"], title="First run to undo", description="In place of a snapshot: a run id."
        ),
        accept_loss=Param(
            "",
            type="string",
            title="Accept loss",
            description="The table's name again, to accept the loss of batches that are no longer in staging.",
        ),
        options=options,
    ) as rollback_dag:
        rollback()
    return [accept_gap_dag, publish_blocked_dag, rollback_dag]
