"""One DAG per group of contracts: plan → ingest (one Spark application) → settle → one task per table.

Broken contracts are skipped here and shown as an import error by `contracts_check.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset, AssetAlias, Metadata, TaskGroup, TriggerRule, get_current_context, task
from airflow.sdk.bases.xcom import BaseXCom

from sluice import dag_ids
from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts, Group
from sluice.contract.groups import CONTINUOUS, ON_DATA
from sluice_airflow import lineage, task_mapping
from sluice_airflow.assets import plain_asset, watched_tables
from sluice_airflow.connections import export_registry_config, fail_with_message, kafka_client, open_catalog
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.operators import IngestOperator
from sluice_airflow.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)
from sluice_airflow.task_mapping import GREEN, RED, SKIPPED

log = logging.getLogger(__name__)

# Without a start date, the second run of `@continuous` would have the first one's logical date: it is never created.
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

MAX_OWNERS_LENGTH = 1_900  # Airflow's column has 2,000 characters

QUICK = timedelta(minutes=5)
GRAPH = f"""\
**plan** fixes the offset ranges to read · **ingest** is one Spark application for all tables: stage, check, publish ·
**settle** derives the outcome from the tables' snapshots · one task per table shows its outcome and emits its asset
event, unless `{dag_ids.WATCH_TABLES}` does; tables of a topic pattern are instances of **table**, except those without
new data · **reviews** and **ask** start `{dag_ids.REVIEW_SCHEMA}` for contract changes that need approval.
With nothing new to read, all tasks after `plan` are skipped, and no JVM starts.
With `schedule: continuous`, **ingest** stays: it starts beside `plan`, and plans and settles each round itself."""


@task.short_circuit(ignore_downstream_trigger_rules=True)
def plan(group: str, *, run_id: str) -> dict[str, Any] | None:
    """Fix the offset ranges of this run; without work, skip the rest."""
    from sluice.ingest import outcome
    from sluice.plan import plan as planning
    from sluice.plan.model import PlanInputs

    with fail_with_message():
        export_registry_config()
        client = kafka_client()
        catalog, contracts = open_catalog(client)
        made = planning.write_plan(contracts.group(group), PlanInputs(contracts, catalog, client), run_id=run_id)
    for line in made.lines():
        log.log(logging.WARNING if line.startswith("warn") else logging.INFO, "%s", line)
    reviews = any(each.review == "open" for each in made.pending_changes.values())
    is_needed = made.has_work or made.stops or reviews or contracts.group(group).settings.is_continuous
    return outcome.summarize_plan(made) if is_needed else None


@task(trigger_rule=TriggerRule.ALL_DONE, multiple_outputs=False)
def settle(group: str, promised: dict[str, Any] | None, *, run_id: str) -> dict[str, Any]:
    """Derive the outcome of each table from its snapshots, not from Spark's exit code."""
    from sluice.ingest import settle as settling
    from sluice.pages import report

    if promised is None:
        raise AirflowFailException("There is no plan to settle. See the log of task plan.")
    with fail_with_message():
        catalog, contracts = open_catalog()
        here = contracts.group(group)
        found = settling.settle(here, catalog, promised, run_id=run_id)
        reports = report.write_reports(catalog, here.contracts, found, run_id=run_id)
    for name, address in reports.items():
        found[name]["report"] = address
    for name, outcome in found.items():
        log.log(
            logging.ERROR if outcome["red"] else logging.INFO,
            "settle  %s: %s, batches %s, offsets %s, %s records, %s quarantined, snapshot %s%s",
            name,
            outcome["state"],
            outcome["batches"] or "none",
            outcome["ranges"] or "none",
            outcome["records"],
            outcome["quarantined"],
            outcome["snapshot_id"],
            f": {outcome['error']}" if outcome["error"] else "",
        )
    # Skip idle tasks here: each would take a process for a second.
    context = get_current_context()
    following = context["task"].downstream_task_ids
    idle = [n for n in following if n in found and colour(found[n]) == SKIPPED]
    idle += ["reviews"] if "reviews" in following and not promised["reviews"] else []
    if idle:
        context["ti"].xcom_push(BaseXCom.XCOM_RETURN_KEY, found)
        raise DownstreamTasksSkipped(tasks=idle)
    return found


@task
def reviews(promised: dict[str, Any]) -> list[dict[str, Any]]:
    """Start one run of `review_schema` per contract change under review; a run that exists is skipped."""
    if not promised["reviews"]:
        raise AirflowSkipException("No contract change needs approval.")
    asked = list(promised["reviews"].items())
    most = task_mapping.max_instances()
    if len(asked) > most:
        log.warning("%s changes are under review. Reviews of the first %s start now.", f"{len(asked):,}", f"{most:,}")
    return [
        {"trigger_run_id": f"review__{table}__{change}", "conf": {"table": table}} for table, change in asked[:most]
    ]


def event(found: dict[str, Any]) -> dict[str, Any]:
    """Make the extra of a table's asset event, and emit OpenLineage; fails or skips the task without an event."""
    if found["batches"]:  # also in a failed run: no later run reports what it published
        lineage.emit_lineage(found)
    if found["red"]:
        raise AirflowFailException(f"{found['table']} is {found['state']}: {found['error']}")
    if not found["batches"]:
        raise AirflowSkipException(f"{found['table']}: {found['state']}, nothing was published.")
    kept = ("ranges", "gaps", "batches", "snapshot_id", "records", "rejected", "expectations", "warnings")
    return {name: found[name] for name in (*kept, "report") if name in found}


def colour(found: dict[str, Any]) -> str:
    """The state of a table's task, see `event`."""
    return RED if found["red"] else GREEN if found["batches"] else SKIPPED


def table_task(contract: Contract, owner: str, *, watched: bool) -> Any:
    """Make the task of a table: green, red with the error, or skipped. If green, it emits the asset event.

    Args:
        contract: of the table.
        owner: of the task.
        watched: a watcher emits the asset events instead.
    """
    made = plain_asset(contract.table)

    @task(task_id=contract.table, outlets=[] if watched else [made], owner=owner, doc_md=contract.doc)
    def outcome(outcomes: dict[str, Any]) -> Any:
        extra = event(outcomes[contract.table])
        if not watched:
            yield Metadata(made, extra=extra)

    return outcome


def mapped_tables(group: Group, settled: Any) -> None:
    """Make the mapped task for tables of topic patterns, which are only known at run time."""
    named = {contract.table for contract in group.contracts}
    alias = AssetAlias(f"{dag_ids.ingest_dag(group.name)}.by_topic")

    @task
    def by_topic(outcomes: dict[str, Any]) -> list[list[Mapping[str, Any]]]:
        found = [each for table, each in sorted(outcomes.items()) if table not in named and colour(each) != SKIPPED]
        if not found:
            raise AirflowSkipException("No table of a topic pattern has new data or an error.")
        return task_mapping.group_into_instances(found, colour)

    @task(map_index_template="{{ table_name }}", outlets=[alias])
    def table(found: list[dict[str, Any]]) -> Any:
        get_current_context()["table_name"] = task_mapping.instance_name(found)  # type: ignore[typeddict-unknown-key]
        errors: list[AirflowException] = []
        for each in found:
            try:
                extra = event(each)
            except (AirflowFailException, AirflowSkipException) as error:
                errors.append(error)
            else:
                yield Metadata(plain_asset(each["table"]), extra=extra, alias=alias)
        if errors:  # all tables of an instance have one colour
            raise type(errors[0])(task_mapping.join_messages([str(error) for error in errors], "settle"))

    table.expand(found=by_topic(settled))


def source(contract: Contract) -> str:
    """The topics of a contract as text; a pattern is not resolved, as DAG parsing makes no network calls."""
    return f"topics like `{contract.topic_pattern.pattern}`" if contract.topic_pattern else ", ".join(contract.topics)


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build a DAG for each group."""
    return [_build_group(group, options) for group in contracts.groups.values()]


def _schedule(group: Group) -> str | list[Asset] | None:
    schedule = group.settings.schedule
    if schedule == ON_DATA:
        from sluice_airflow import triggers

        return [triggers.unread_records(group)]
    return "@continuous" if schedule == CONTINUOUS else schedule


def _build_group(group: Group, options: DagOptions) -> DAG:
    settings = group.settings
    tables = "\n".join(f"- `{c.table}` ({c.mode}) from {source(c)}" for c in group.all_contracts)
    owners = sorted({c.owner for c in group.all_contracts})
    # Airflow stores the owners of all tasks in one column. A longer text is an error in the DAG processor's log only.
    shared_owner = options.owner or "sluice"
    fits = sum(len(each) + 2 for each in owners) < MAX_OWNERS_LENGTH
    with DAG(
        dag_id=dag_ids.ingest_dag(group.name),
        dag_display_name=dag_ids.display_name(dag_ids.ingest_dag(group.name)),
        schedule=_schedule(group),
        start_date=settings.start_date or (LONG_AGO if settings.is_continuous else None),
        catchup=False,
        max_active_runs=1,
        tags=options.tags(*settings.tags),
        doc_md=f"Ingests\n\n{tables}\n\n{GRAPH}",
        default_args={
            "owner": owners[0] if len(owners) == 1 else shared_owner,
            "retries": settings.retries,
            "retry_delay": settings.retry_delay,
        },
    ) as dag:
        timeout = QUICK + task_mapping.extra_timeout([group])
        promised = plan.override(execution_timeout=timeout)(group.name, run_id="{{ run_id }}")
        ingest = IngestOperator(
            task_id="ingest",
            group=group.name,
            settings=settings,
            # A continuous application plans by itself, so it needs not wait: records do until it has started.
            promised=None if settings.is_continuous else promised,
            service=options.service,
            pool=settings.pool,
            execution_timeout=settings.timeout,
        )
        settled = settle.override(execution_timeout=timeout)(group.name, promised, run_id="{{ run_id }}")
        ingest >> settled
        found = reviews(promised)
        if not settings.is_continuous:
            # So that the review shows what this run has published and quarantined. A continuous run takes too long.
            settled >> found
        TriggerDagRunOperator.partial(
            task_id="ask", trigger_dag_id=dag_ids.REVIEW_SCHEMA, skip_when_already_exists=True
        ).expand_kwargs(found)
        with TaskGroup("tables", prefix_group_id=False):
            watched = watched_tables([group])
            for contract in group.contracts:
                owner = contract.owner if fits else shared_owner
                table_task(contract, owner, watched=contract.table in watched)(settled)
            if group.templates:
                mapped_tables(group, settled)
    return dag
