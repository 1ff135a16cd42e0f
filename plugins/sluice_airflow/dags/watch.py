"""The DAG `watch_tables`: it has no runs, and keeps the watchers of tables going (`asset_events: table`)."""

from __future__ import annotations

import logging

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset

from sluice import dag_ids
from sluice.contract.folder import Contracts
from sluice_airflow import assets, table_watcher
from sluice_airflow.dag_options import DagOptions

log = logging.getLogger(__name__)

ABOUT = """\
Keeps the watchers of tables going: they emit an asset event for each snapshot that publishes something. Airflow runs a
watcher only while an unpaused DAG is scheduled on its asset. This DAG has no runs, because it also waits for the asset
`{never}`, which has no events. While it is paused, there are no events; afterwards the watchers catch up."""


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAG; none if no group needs it."""
    groups = contracts.groups.values()
    tables = sorted(assets.watched_tables(groups))
    if not tables:
        for group in groups:
            if group.settings.has_watchers:
                log.warning("%s: asset_events: table needs Airflow 3.3; its tasks emit the events.", group.name)
        return []
    never = f"{dag_ids.WATCH_TABLES}.never"
    with DAG(
        dag_id=dag_ids.WATCH_TABLES,
        dag_display_name=dag_ids.display_name(dag_ids.WATCH_TABLES),
        schedule=[
            Asset(name=never, uri=f"sluice://never/{dag_ids.WATCH_TABLES}"),
            *map(table_watcher.watched_asset, tables),
        ],
        catchup=False,
        is_paused_upon_creation=False,
        max_active_runs=1,
        tags=options.tags(),
        doc_md=ABOUT.format(never=never),
        default_args=options.owner_argument,
    ) as dag:
        EmptyOperator(task_id="nothing")
    return [dag]
