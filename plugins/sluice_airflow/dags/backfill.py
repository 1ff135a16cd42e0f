"""The DAG `backfill`, triggered by hand: plan → slices in Spark applications → outcome. A dry run only plans.

Slices run in the pool of the group's ingestion with a lower priority. An application gives its slot to waiting tasks as
maintenance does, and goes on in its next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetAlias, Param, TriggerRule, task

from sluice import dag_ids
from sluice.contract.folder import Contracts, Group
from sluice_airflow import lineage
from sluice_airflow.assets import plain_asset, watched_tables
from sluice_airflow.connections import export_registry_config, fail_with_message, kafka_client, open_catalog
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.forms import DRY_RUN_NOTICE, manual_dag, ranges_param, table_param, triggering_user
from sluice_airflow.operators import BackfillOperator
from sluice_airflow.sdk import AirflowFailException
from sluice_airflow.services import SparkService
from sluice_airflow.task_mapping import max_instances

log = logging.getLogger(__name__)

SOURCES = ["kafka", "staging", "quarantine"]
TIMESTAMP = {"type": ["null", "string"], "format": "date-time", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T"}
RUNS = 8
SLICES_AT_ONCE = 20
"""How many slices share an application: a start of Spark takes as long as a small slice."""
# The form names the table: its asset is only known at run time, through an alias.
ALIAS = AssetAlias(f"{dag_ids.BACKFILL}.table")
PLAN, OUTCOME, PROMISED = "plan", "outcome", "promised"
# Retries are safe: they find the frozen plan, and the outcome is only read.
RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=10)}


@task.branch(task_id=PLAN, **RETRIES)
def plan(*, params: Any = None, dag_run: Any = None, run_id: Any = None, ti: Any = None) -> list[str]:
    """Resolve and show the ranges; unless this is a dry run, freeze the slices and continue with the table's group."""
    from sluice.backfill import backfill_plan
    from sluice.ledger.offsets_table import Ledger
    from sluice.operate import dry_run
    from sluice.plan.model import PlanInputs

    with fail_with_message():
        export_registry_config()
        request = dry_run.backfill_request(params)
        client = kafka_client()
        catalog, contracts = open_catalog(client if request.needs_kafka else None)
        if params["dry_run"]:
            inputs = PlanInputs(contracts, catalog, client, Ledger(catalog))
            found = backfill_plan.plan_backfill(request, inputs, max_slices=max_instances())
        else:
            by = triggering_user(dag_run)
            inputs = PlanInputs(contracts, catalog, client)
            found = backfill_plan.write_backfill(request, inputs, who=by, run_id=run_id, max_slices=max_instances())
    for line in found.lines():
        log.warning("%s", line)
    if params["dry_run"]:
        log.info("%s", DRY_RUN_NOTICE)
        return []
    promised = found.to_xcom()
    ti.xcom_push(PROMISED, promised)
    return [slices_task(promised["group"]), OUTCOME]


def slices_task(group: str) -> str:
    """The id of the task that lists the slices for a group."""
    return f"slices_of_{group}"


@task(**RETRIES)
def slices_of(promised: dict[str, Any], *, run_id: Any = None) -> list[dict[str, Any]]:
    """List the slices, `SLICES_AT_ONCE` per application."""
    common = {name: promised[name] for name in ("table", "topic", "origin")}
    numbers = promised["slices"]
    starts = range(0, len(numbers), SLICES_AT_ONCE)
    return [{**common, "slices": numbers[at : at + SLICES_AT_ONCE], "run_id": run_id} for at in starts]


@task(task_id=OUTCOME, trigger_rule=TriggerRule.ALL_DONE, outlets=[ALIAS], **RETRIES)
def outcome(*, ti: Any = None, outlet_events: Any = None) -> list[dict[str, Any]]:
    """Read the outcome from the table; fails if slices are missing.

    Emits the asset event if it succeeds, unless a watcher does; and an OpenLineage event in any case.
    """
    from sluice.backfill import backfill_outcome

    promised = ti.xcom_pull(task_ids=PLAN, key=PROMISED)
    if promised is None:
        raise AirflowFailException("There is no plan. See the log of task plan.")
    with fail_with_message():
        catalog, contracts = open_catalog()
        found = backfill_outcome.collect_outcome(contracts, catalog, promised)
        event = backfill_outcome.asset_event(contracts, catalog, promised, found)
    for each in found:
        log.info("slice %s: snapshot %s, %s", each["slice"], each["snapshot_id"], each["told"])
    if event:
        lineage.emit_lineage(event)
    if missing := [each for each in found if each["snapshot_id"] is None]:
        raise AirflowFailException(
            f"{len(missing)} of {len(found)} slices are not in {promised['table']}: "
            + "; ".join(f"{each['slice']}: {each['told']}" for each in missing)
        )
    if event and promised["table"] not in watched_tables():
        extra = {name: value for name, value in event.items() if name not in ("table", "location", "contract")}
        outlet_events[ALIAS].add(plain_asset(promised["table"]), extra=extra)
    return found


def _add_tasks(groups: Iterable[Group], service: SparkService | None) -> None:
    """Add the tasks: per group two, with the pool and Spark settings of the group."""
    planned, ended = plan(), outcome()
    planned >> ended
    for group in groups:
        settings = group.settings
        works = slices_of.override(task_id=slices_task(group.name))(planned[PROMISED])
        spark = BackfillOperator.partial(
            task_id=f"spark_{group.name}",
            group=group.name,
            settings=settings,
            service=service,
            pool=settings.pool,
            # Lower than the group's ingestion, whose weight includes its downstream tasks.
            priority_weight=1,
            weight_rule="absolute",
            retries=settings.retries,
            retry_delay=settings.retry_delay,
            execution_timeout=settings.timeout,
            map_index_template="{{ task.map_name }}",
        ).expand(work=works)
        spark >> ended


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAG."""
    with manual_dag(
        dag_ids.BACKFILL,
        "Replays history, or a range, into a table. **plan** shows the exact ranges and where they can be read. Each "
        "slice is validated on a branch before it becomes visible. **outcome** reads the result "
        "from the table. Committed offsets do not change, and live ingest continues.",
        options=options,
        # Long runs must not block other groups or dry runs; the pools limit the slices.
        runs=RUNS,
        table=table_param(contracts),
        topic=Param(None, type=["null", "string"], title="Topic", description="Required if several feed the table."),
        ranges=ranges_param('Offsets per partition, as {"0": [start, end]}. Leave empty to use times.'),
        since=Param(None, **TIMESTAMP, title="From", description="Default: the beginning."),
        until=Param(None, **TIMESTAMP, title="Until", description="Default: first offset of live ingest."),
        source=Param("kafka", type="string", enum=SOURCES, title="Source", description="Where records are read."),
    ) as dag:
        _add_tasks(contracts.groups.values(), options.service)
    return [dag]
