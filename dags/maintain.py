"""Three DAGs that keep the tables fast and small: assess → one Spark application per group → one task per table.

`assess` looks at metadata alone. A group whose tables need nothing starts no Spark, and each table shows the figure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sluice_airflow import mapped
from sluice_airflow.connections import PATIENCE_S, errors_in_words, open_lake
from sluice_airflow.mapped import GREEN, RED, SKIPPED
from sluice_airflow.spark import MaintainOperator

from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts

log = logging.getLogger(__name__)

QUICK = timedelta(minutes=10)
LAST = timedelta(minutes=2)
"""Of the time of `assess`, for the last table that it looks at, and what it does afterwards."""
ABOUT = {
    "rewrite_data_files": "puts small files together, takes out rows that were deleted, and rewrites manifests",
    "expire_snapshots": "removes snapshots older than the rollback window, and staging's raw records after retention",
    "remove_orphan_files": "removes files that no snapshot names, which attempts that were killed have left",
}
TABLES = Param(
    [],
    type="array",
    items={"type": "string"},
    description="By hand: only these tables, named as a run shows them, one per line. Empty: all.",
)
DRY_RUN = Param(False, type="boolean", description="By hand: show which files are orphans, and remove none of them.")
GRAPH = """\
**assess** reads metadata only · **spark_GROUP** is one Spark application for the tables of a group that need it, in
the pool of that group's ingestion; after a while it gives its slot back, and goes on behind whoever waited ·
**effects** looks up what was done · **table** is one task per table that holds something: green, skipped with the
figure when nothing was needed, or red with the reason."""


ASSESS, NEEDS = "assess", "needs"
UNCLAIMED = "no contract reads its topic any more; nobody trims it: put the topic back into a contract, or drop it"


@task.branch(task_id=ASSESS)
def assess(action: str, seconds: float = 480.0, *, params: Any = None, ti: Any = None, run_id: Any = None) -> list[str]:
    """What each table that holds something needs, with the figure, as XCom `needs`; which applications to start.

    After so many seconds no further table is looked at: the next run begins with it.
    """
    from sluice.ledger import maintenance_table
    from sluice.maintain import assess as assessing
    from sluice.maintain import subjects
    from sluice.plan import resolve_topics

    deadline = time.monotonic() + seconds
    with errors_in_words():
        lake, promises = open_lake()
        named = {"names": params["tables"], "deadline": deadline, "run_id": run_id}
        needs = assessing.assess(promises, lake, maintenance_table.Action(action), **named)
        everything = action == maintenance_table.Action.EXPIRE and not params["tables"]
        unclaimed = resolve_topics.unclaimed(promises, lake) if everything else []
    groups = {s.name: s.group or min(promises.groups) for s in subjects.subjects(promises)}
    for need in needs:
        log.info("%s needs %s: %s", need.table, ", ".join(need.steps) or "nothing", need.reason)
    told = [
        {"table": n.table, "group": groups[n.table], "steps": list(n.steps), "reason": n.reason, "error": n.error}
        for n in needs
        if n.reason != assessing.EMPTY  # a task for each table to come would be the greater part of the run
    ]
    for staging in unclaimed:
        log.warning("%s: %s", staging, UNCLAIMED)
        told.append({"table": staging, "group": "", "steps": [], "reason": UNCLAIMED, "error": ""})
    ti.xcom_push(NEEDS, told)
    # The others are skipped without a process of their own, which would do no more than find that out.
    return ["effects", *sorted({f"spark_{n['group']}" for n in told if n["steps"]})]


@task(trigger_rule=TriggerRule.ALL_DONE, execution_timeout=QUICK)
def effects(action: str, *, run_id: Any = None, ti: Any = None) -> list[list[Mapping[str, Any]]]:
    """What the task of each table shows: its need, and what `sluice.maintenance` says that the application did."""
    from sluice.iceberg import availability
    from sluice.ledger import maintenance_table

    needs = ti.xcom_pull(task_ids=ASSESS, key=NEEDS)
    if needs is None:
        raise AirflowFailException("There is nothing to look up: see the log of the task assess.")
    done: dict[str, maintenance_table.Effect] = {}
    with errors_in_words():
        # A run's id is not enough: those of the three DAGs that are scheduled for the same moment are the same.
        given = {
            "run_id": run_id,
            "action": maintenance_table.Action(action),
            "states": (maintenance_table.BEGUN, *maintenance_table.ENDED),
        }
        kept = maintenance_table.kept(availability.open_catalog(PATIENCE_S), **given)
    for effect in kept:
        # A retry has nothing left to do where the first try came through.
        before = done.get(effect.table)
        if before is None or before.state != "done" or effect.state not in ("begun", "idle"):
            done[effect.table] = effect
    found = [outcome(need, done.get(need["table"])) for need in needs]
    for each in found:
        log.info("%s: %s", each["verdict"], each["told"])
    return mapped.bounded(found, lambda each: str(each["verdict"]))


def outcome(need: dict[str, Any], effect: Any) -> dict[str, str]:
    """What a table's task shows: green, skipped or red, and why."""
    name, verdict, told = need["table"], GREEN, f"{need['table']}: {effect.told if effect else need['reason']}"
    if need["error"]:
        verdict, told = RED, f"{name} could not be assessed: {need['error']}"
    elif not need["steps"]:
        verdict, told = SKIPPED, f"{name}: {need['reason']}"
    elif effect is None or effect.state == "begun":
        verdict, when = RED, "while it was at work on" if effect else "before it reported on"
        told = f"{name} needs it ({need['reason']}), but the Spark application ended {when} it; the next run goes on."
    elif effect.state == "failed":
        verdict = RED
    elif effect.state in ("left", "idle"):
        verdict = SKIPPED
    return {"table": name, "verdict": verdict, "told": told}


@task(map_index_template="{{ table_name }}", retries=0, execution_timeout=QUICK)
def table(found: list[dict[str, str]]) -> None:
    """Stands for one table, or for several of one colour: green, skipped, or red."""
    get_current_context()["table_name"] = mapped.name(found)  # type: ignore[typeddict-unknown-key]
    told = mapped.told([each["told"] for each in found], "effects")
    if found[0]["verdict"] == RED:
        raise AirflowFailException(told)
    if found[0]["verdict"] == SKIPPED:
        raise AirflowSkipException(told)
    log.info("%s", told)


def build(action: str, schedule: str | None, promises: Contracts) -> DAG:
    """The DAG of an action."""
    lists = action == "remove_orphan_files"
    with DAG(
        dag_id=f"maintain_{action}",
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        tags=["sluice", "maintenance"],
        params={"tables": TABLES, **({"dry_run": DRY_RUN} if lists else {})},
        doc_md=f"Maintenance: {ABOUT[action]}.\n\n{GRAPH}",
        default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    ) as dag:
        patience = QUICK + mapped.patience(promises.groups.values())
        assessed = assess.override(execution_timeout=patience)(action, (patience - LAST).total_seconds())
        looked_up = effects(action)
        assessed >> looked_up
        for group in promises.groups.values():
            settings = group.settings
            spark = MaintainOperator(
                task_id=f"spark_{group.name}",
                action=action,
                group=group.name,
                settings=settings,
                seconds=settings.turn,
                needs=assessed[NEEDS],
                dry_run="{{ params.dry_run }}" if lists else "",
                retries=settings.retries,
                retry_delay=settings.retry_delay,
                # The same pool as the group's ingestion, if not told otherwise: with one slot the two never overlap.
                pool=settings.maintenance.pool or settings.pool,
                # Behind the ingestion of the group, whose weight counts what follows it.
                priority_weight=1,
                weight_rule="absolute",
                execution_timeout=settings.timeout,
            )
            spark >> looked_up
        table.expand(found=looked_up)
    return dag


_promises = contract_folder.load(strict=False)
if _promises.groups and _promises.common.maintenance:
    for _action, _schedule in _promises.common.maintenance.schedules.items():
        globals()[f"maintain_{_action}"] = build(_action, _schedule, _promises)
