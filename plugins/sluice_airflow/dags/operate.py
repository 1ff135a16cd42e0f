"""The DAGs `accept_gap` and `rollback`, triggered by hand. A dry run, the default, changes nothing.

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
from sluice_airflow.forms import DRY_RUN_NOTICE, manual_dag, ranges_param, triggering_user
from sluice_airflow.sdk import AirflowFailException

log = logging.getLogger(__name__)


def parse_snapshot_id(text: Any) -> int | None:
    """Parse a snapshot id. The form accepts text, because browsers round such large integers."""
    if text in (None, ""):
        return None
    try:
        return int(text)
    except ValueError as error:
        raise AirflowFailException(
            f"{text!r} is not a snapshot id. Snapshot ids are numbers, see `<table>.snapshots`."
        ) from error


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
            operator_input.parse_ranges(params["ranges"]),
            PlanInputs(contracts, catalog, client),
            Decision(triggering_user(dag_run), params["why"], run_id),
            dry_run=params["dry_run"],
        )
    for gap in found:
        log.warning("%s: %s", "would be skipped permanently" if params["dry_run"] else "skipped permanently", gap)
    log.info("%s", DRY_RUN_NOTICE if params["dry_run"] else "The next run continues after the gap.")


@task
def rollback(*, params: Any = None, dag_run: Any = None, run_id: Any = None) -> None:
    """Show what would be undone and republished; unless this is a dry run, roll back."""
    from sluice.ledger.offsets_table import Ledger
    from sluice.operate import rollback as back
    from sluice.operate.rollback_target import RestorePoint

    with fail_with_message():
        catalog, contracts = open_catalog()
        ledger = Ledger(catalog)
        point = RestorePoint(parse_snapshot_id(params["snapshot_id"]), params["before_run"] or None)
        found = back.preview_rollback(params["table"], contracts, catalog, ledger, point)
        for line in found.lines():
            log.warning("%s", line)
        if not params["dry_run"]:
            decision = Decision(triggering_user(dag_run), params["why"], run_id)
            back.roll_back(found, catalog, ledger, decision, accept_loss=params["accept_loss"])
    done = "The next run publishes the batches marked `republish`."
    log.info("%s", DRY_RUN_NOTICE if params["dry_run"] else done)


def build(_: Contracts, options: DagOptions) -> list[DAG]:
    """Build both DAGs."""
    with manual_dag(
        dag_ids.ACCEPT_GAP,
        "Skips offsets permanently that Kafka lost before they were read. The topic then continues after them. The "
        "ledger records who accepted the gap, and why.",
        name=Param(type="string", minLength=1, description="Table or topic name; a table wins if both exist."),
        ranges=ranges_param('The lost offsets, as {"0": [start, end]}. Default: those that planning reports now.'),
        options=options,
    ) as accept_gap_dag:
        accept_gap()
    with manual_dag(
        dag_ids.ROLLBACK,
        "Rolls a table back to one of its snapshots, together with its offsets, in one commit. The next run "
        "republishes later batches from staging. A dry run shows them. The ledger records who did it, and why.",
        table=Param(type="string", minLength=1, description="Target table, e.g. shop.orders"),
        snapshot_id=Param(None, type=["null", "string", "integer"], description="Id of the snapshot to roll back to."),
        before_run=Param(None, type=["null", "string"], description="Or: the first run to undo."),
        accept_loss=Param(
            "",
            type="string",
            description="The table's name again, to accept the loss of batches that are no longer in staging.",
        ),
        options=options,
    ) as rollback_dag:
        rollback()
    return [accept_gap_dag, rollback_dag]
