"""Three maintenance DAGs: assess → one Spark application per group → one task per table.

`assess` reads only metadata. Without a need in a group, its Spark application does not start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, get_current_context, task

from sluice import dag_ids
from sluice.contract.folder import Contracts
from sluice_airflow import task_mapping
from sluice_airflow.connections import CATALOG_TIMEOUT_S, fail_with_message, open_catalog
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.operators import MaintainOperator
from sluice_airflow.sdk import AirflowFailException, AirflowSkipException
from sluice_airflow.task_mapping import GREEN, RED, SKIPPED

log = logging.getLogger(__name__)

QUICK = timedelta(minutes=10)
LAST = timedelta(minutes=2)
"""The part of the timeout of `assess` that is left for its last table and its end."""
ABOUT = {
    "rewrite_data_files": "compacts small files, applies delete files, and rewrites manifests",
    "expire_snapshots": "expires snapshots older than the rollback window, and staged records past their retention",
    "remove_orphan_files": "removes files that no snapshot references, left by killed runs",
}
TABLES = Param(
    [],
    type="array",
    items={"type": "string"},
    title="Tables",
    description="Only for manual runs: the tables, one per line, named as in earlier runs. Empty: all.",
)
DRY_RUN = Param(
    False,
    type="boolean",
    title="Dry run",
    description="Only for manual runs: list orphan files without removing them.",
)
GRAPH = """\
**assess** reads only metadata · **spark_GROUP** is one Spark application for the tables of a group that need it, in
the pool of that group's ingestion; after a while it yields its slot to waiting tasks, and continues later ·
**effects** reads what was done · **table** is one task per table with data: green if something was done, skipped with
the reason if nothing was needed, or red with the error. If no table needs it, all tasks after **assess** are skipped,
and the log of **assess** has the reasons."""


ASSESS, NEEDS = "assess", "needs"
UNCLAIMED = "no contract reads its topic any more, so it is not trimmed: add the topic to a contract, or drop the table"


@task.branch(task_id=ASSESS)
def assess(action: str, seconds: float = 480.0, *, params: Any = None, ti: Any = None, run_id: Any = None) -> list[str]:
    """Assess each table with data, push the needs as XCom, and choose the applications to start.

    After `seconds`, no further table is assessed; the next run begins with it.
    """
    from sluice.ledger import maintenance_table
    from sluice.maintain import assess as assessing
    from sluice.maintain import targets
    from sluice.maintain.expiry_plan import AssessmentInputs
    from sluice.plan import resolve_topics

    deadline = time.monotonic() + seconds
    with fail_with_message():
        catalog, contracts = open_catalog()
        named = {"names": params["tables"], "deadline": deadline, "run_id": run_id}
        inputs = AssessmentInputs(catalog, contracts)
        needs = assessing.assess_tables(inputs, maintenance_table.Action(action), **named)
        everything = action == maintenance_table.Action.EXPIRE and not params["tables"]
        unclaimed = resolve_topics.find_unclaimed_staging(contracts, catalog) if everything else []
    groups = {s.name: s.group or min(contracts.groups) for s in targets.list_targets(contracts)}
    for need in needs:
        log.info("%s needs %s: %s", need.table, ", ".join(need.steps) or "nothing", need.reason)
    tables = [
        {"table": n.table, "group": groups[n.table], "steps": list(n.steps), "reason": n.reason, "error": n.error}
        for n in needs
        if n.reason != assessing.EMPTY  # no tasks for tables without data
    ]
    for staging in unclaimed:
        log.warning("%s: %s", staging, UNCLAIMED)
        tables.append({"table": staging, "group": "", "steps": [], "reason": UNCLAIMED, "error": ""})
    ti.xcom_push(NEEDS, tables)
    if not any(n["steps"] or n["error"] or n["reason"] == UNCLAIMED for n in tables):
        log.info("No table needs it: all further tasks are skipped.")
        return []
    # Other applications are skipped here: their tasks would take a process to find out.
    return ["effects", *sorted({f"spark_{n['group']}" for n in tables if n["steps"]})]


@task(trigger_rule=TriggerRule.ALL_DONE, execution_timeout=QUICK)
def effects(action: str, *, run_id: Any = None, ti: Any = None) -> list[list[Mapping[str, Any]]]:
    """Combine the need of each table with the result in `sluice.maintenance`."""
    from sluice.iceberg import availability
    from sluice.ledger import maintenance_table

    needs = ti.xcom_pull(task_ids=ASSESS, key=NEEDS)
    if needs is None:
        raise AirflowFailException("There is no assessment. See the log of task assess.")
    done: dict[str, maintenance_table.ActionResult] = {}
    with fail_with_message():
        # Filter by action too: runs of the three DAGs scheduled for the same time have the same id.
        where = maintenance_table.ResultFilter(
            run_id=run_id,
            action=maintenance_table.Action(action),
            states=(maintenance_table.BEGUN, *maintenance_table.ENDED),
        )
        kept = maintenance_table.read_results(availability.open_catalog(CATALOG_TIMEOUT_S), where)
    for effect in kept:
        # A retry of a finished table is idle: keep the first result.
        before = done.get(effect.table)
        if before is None or before.state != "done" or effect.state not in ("begun", "idle"):
            done[effect.table] = effect
    found = [outcome(need, done.get(need["table"])) for need in needs]
    for each in found:
        log.info("%s: %s", each["verdict"], each["told"])
    return task_mapping.group_into_instances(found, lambda each: str(each["verdict"]))


def outcome(need: dict[str, Any], effect: Any) -> dict[str, str]:
    """The state of a table's task, and its message."""
    name, verdict, told = need["table"], GREEN, f"{need['table']}: {effect.summary if effect else need['reason']}"
    if need["error"]:
        verdict, told = RED, f"{name} could not be assessed: {need['error']}"
    elif not need["steps"]:
        verdict, told = SKIPPED, f"{name}: {need['reason']}"
    elif effect is None or effect.state == "begun":
        verdict, when = RED, "during" if effect else "before"
        told = f"{name}: the Spark application ended {when} this table ({need['reason']}). The next run continues."
    elif effect.state == "failed":
        verdict = RED
    elif effect.state in ("left", "idle"):
        verdict = SKIPPED
    return {"table": name, "verdict": verdict, "told": told}


@task(map_index_template="{{ table_name }}", retries=0, execution_timeout=QUICK)
def table(found: list[dict[str, str]]) -> None:
    """Show the state of one table, or of several with the same state."""
    get_current_context()["table_name"] = task_mapping.instance_name(found)  # type: ignore[typeddict-unknown-key]
    told = task_mapping.join_messages([each["told"] for each in found], "effects")
    if found[0]["verdict"] == RED:
        raise AirflowFailException(told)
    if found[0]["verdict"] == SKIPPED:
        raise AirflowSkipException(told)
    log.info("%s", told)


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build a DAG for each action; none without a readable group or with invalid schedules."""
    if not contracts.groups or not contracts.common.maintenance:
        return []
    schedules = contracts.common.maintenance.schedules
    return [_build_action(action, schedule, contracts, options) for action, schedule in schedules.items()]


def _build_action(action: str, schedule: str | None, contracts: Contracts, options: DagOptions) -> DAG:
    has_dry_run = action == "remove_orphan_files"
    with DAG(
        dag_id=dag_ids.maintenance_dag(action),
        dag_display_name=dag_ids.display_name(dag_ids.maintenance_dag(action)),
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        tags=options.tags("maintenance"),
        params={"tables": TABLES, **({"dry_run": DRY_RUN} if has_dry_run else {})},
        doc_md=f"Maintenance: {ABOUT[action]}.\n\n{GRAPH}",
        default_args={"retries": 2, "retry_delay": timedelta(minutes=1), **options.owner_argument},
    ) as dag:
        timeout = QUICK + task_mapping.extra_timeout(contracts.groups.values())
        assessed = assess.override(execution_timeout=timeout)(action, (timeout - LAST).total_seconds())
        looked_up = effects(action)
        assessed >> looked_up
        for group in contracts.groups.values():
            settings = group.settings
            spark = MaintainOperator(
                task_id=f"spark_{group.name}",
                action=action,
                group=group.name,
                settings=settings,
                service=options.service,
                seconds=settings.maintenance_seconds,
                needs=assessed[NEEDS],
                dry_run="{{ params.dry_run }}" if has_dry_run else "",
                retries=settings.retries,
                retry_delay=settings.retry_delay,
                # By default the pool of the group's ingestion: with one slot, the two never overlap.
                pool=settings.maintenance_pool,
                # Lower than the group's ingestion, whose weight includes its downstream tasks.
                priority_weight=1,
                weight_rule="absolute",
                execution_timeout=settings.timeout,
            )
            spark >> looked_up
        table.expand(found=looked_up)
    return dag
