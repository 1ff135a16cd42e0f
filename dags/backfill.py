"""Backfill, triggered by hand: plan → one Spark application per slice → outcome. A dry run, the default, only plans.

The slices of a group run in the pool of its ingestion, behind it: the live feed waits for one slice at most, and where
the pool has slots they run side by side.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import AssetAlias, Param, TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException
from sluice_airflow import lineage
from sluice_airflow.assets import asset
from sluice_airflow.connections import errors_in_words, kafka_client, open_lake, use_registry
from sluice_airflow.forms import UNCHANGED, by_hand, ranges, who
from sluice_airflow.mapped import most
from sluice_airflow.spark import BackfillOperator

from sluice.contract import folder as contract_folder
from sluice.operate import operator_input

log = logging.getLogger(__name__)

SOURCES = ["kafka", "staging", "quarantine"]
MOMENT = {"type": ["null", "string"], "format": "date-time", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T"}
RUNS = 8
# Which table it is a form says: its asset comes through an alias.
ALIAS = AssetAlias("backfill.table")
PLAN, OUTCOME, PROMISED = "plan", "outcome", "promised"
# A plan that is frozen is the one that a further try finds; slices are told from it, an outcome is only looked up.
AGAIN: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=10)}


@task.branch(task_id=PLAN, **AGAIN)
def plan(*, params: Any = None, dag_run: Any = None, run_id: Any = None, ti: Any = None) -> list[str]:
    """Resolve and show the ranges; freeze the slices, and go on with the table's group, unless this is a dry run."""
    from sluice.backfill import plan as backfill_plan
    from sluice.backfill.ranges import Request, moment
    from sluice.ledger.offsets_table import Ledger
    from sluice.ledger.slices import Origin

    with errors_in_words():
        use_registry()
        request = Request(
            params["table"],
            operator_input.ranges(params["ranges"]),
            moment(params["since"] or "", "since"),
            moment(params["until"] or "", "until"),
            Origin(params["source"]),
            params["topic"] or "",
            params["why"],
        )
        client = kafka_client()
        lake, promises = open_lake(client if request.needs_kafka else None)
        if params["dry_run"]:
            found = backfill_plan.look(request, promises, lake, client, Ledger(lake), mapped=most())
        else:
            by = who(dag_run)
            found = backfill_plan.write(request, promises, lake, client, who=by, run_id=run_id, mapped=most())
    for line in found.lines():
        log.warning("%s", line)
    if params["dry_run"]:
        log.info("%s", UNCHANGED)
        return []
    promised = found.promised()
    ti.xcom_push(PROMISED, promised)
    return [slices_task(promised["group"]), OUTCOME]


def slices_task(group: str) -> str:
    """The task that hands out the slices of a group's tables."""
    return f"slices_of_{group}"


@task(**AGAIN)
def slices_of(promised: dict[str, Any], *, run_id: Any = None) -> list[dict[str, Any]]:
    """The slices, one for each application."""
    about = {name: promised[name] for name in ("table", "topic", "origin")}
    return [{**about, "slice": seq, "run_id": run_id} for seq in promised["slices"]]


@task(task_id=OUTCOME, trigger_rule=TriggerRule.ALL_DONE, outlets=[ALIAS], **AGAIN)
def outcome(*, ti: Any = None, outlet_events: Any = None) -> list[dict[str, Any]]:
    """Look into the table, whatever became of the applications, and say what is true: green or red.

    Where it is green, the table's asset has an event; OpenLineage is told of what is in the table in any case.
    """
    from sluice.backfill import outcome as backfill_outcome

    promised = ti.xcom_pull(task_ids=PLAN, key=PROMISED)
    if promised is None:
        raise AirflowFailException("There is no plan: see the log of the task plan.")
    with errors_in_words():
        lake, promises = open_lake()
        found = backfill_outcome.outcome(promises, lake, promised)
        news = backfill_outcome.news(promises, lake, promised, found)
    for each in found:
        log.info("slice %s: snapshot %s, %s", each["slice"], each["snapshot_id"], each["told"])
    if news:
        lineage.emit(news)
    if missing := [each for each in found if each["snapshot_id"] is None]:
        raise AirflowFailException(
            f"{len(missing)} of {len(found)} slices are not in {promised['table']}: "
            + "; ".join(f"{each['slice']}: {each['told']}" for each in missing)
        )
    if news:
        extra = {name: value for name, value in news.items() if name not in ("table", "location")}
        outlet_events[ALIAS].add(asset(promised["table"]), extra=extra)
    return found


def build() -> None:
    """The tasks, with two for each group: each has the group's pool and Spark settings."""
    planned, ended = plan(), outcome()
    planned >> ended
    for group in contract_folder.load(strict=False).groups.values():
        settings = group.settings
        pieces = slices_of.override(task_id=slices_task(group.name))(planned[PROMISED])
        spark = BackfillOperator.partial(
            task_id=f"spark_{group.name}",
            group=group.name,
            settings=settings,
            pool=settings.pool,
            # Behind the ingestion of the group, whose weight counts what follows it.
            priority_weight=1,
            weight_rule="absolute",
            retries=settings.retries,
            retry_delay=settings.retry_delay,
            execution_timeout=settings.timeout,
            map_index_template="{{ task.map_name }}",
        ).expand(piece=pieces)
        spark >> ended


with by_hand(
    "backfill",
    "Brings history, or a range again, into a table. **plan** shows the exact ranges and where they can be read; each "
    "slice is one Spark application, validated on a branch before it becomes visible; **outcome** tells what is in the "
    "table. The cursor stays, and the live feed goes on.",
    # One that takes hours must not keep another group's, or a dry run, waiting: the slices share their pools.
    runs=RUNS,
    table=Param(type="string", minLength=1, description="The typed table."),
    topic=Param(None, type=["null", "string"], description="Which topic, where several feed the table."),
    ranges=ranges('Offsets per partition, as {"0": [first, end]}; or leave it empty and give a time.'),
    since=Param(None, **MOMENT, description="From this moment; empty: from the beginning."),
    until=Param(None, **MOMENT, description="To this moment; empty: to where the live feed began."),
    source=Param("kafka", type="string", enum=SOURCES, description="Where the records are read."),
):
    build()
