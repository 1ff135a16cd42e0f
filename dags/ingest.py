"""One DAG per group of contracts: plan → ingest (one Spark application) → settle → one task per table.

What runs and in what order; the work itself is in the package. Contracts that are not sound are left out here and shown
as an import error by `contracts_check.py`, so that they do not stop the other groups.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, AssetAlias, Metadata, TaskGroup, TriggerRule, get_current_context, task
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)
from sluice_airflow import lineage, mapped
from sluice_airflow.assets import asset
from sluice_airflow.connections import errors_in_words, kafka_client, open_lake, use_registry
from sluice_airflow.mapped import GREEN, RED, SKIPPED
from sluice_airflow.spark import IngestOperator

from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.contract.folder import Group

log = logging.getLogger(__name__)

OWNERS = 1_900  # characters; Airflow's column for them has 2,000

QUICK = timedelta(minutes=5)
GRAPH = """\
**plan** fixes the offset ranges to read · **ingest** is one Spark application for all tables: stage, check, publish ·
**settle** reads the snapshots back · one task per table tells its outcome and emits its asset event; of tables that a
pattern of topics brings about, **table** has an instance each; of those without news there is nothing to tell ·
**reviews** and **ask** start `review_schema` for a change of a contract that somebody must approve.
With nothing new to read, all that follows `plan` is skipped, and no JVM is started."""


@task.short_circuit(ignore_downstream_trigger_rules=True)
def plan(group: str, *, run_id: str) -> dict[str, Any] | None:
    """Fix the offset ranges of this run, and say what is due; nothing due skips the rest."""
    from sluice.ingest import outcome
    from sluice.plan import plan as planning

    with errors_in_words():
        use_registry()
        client = kafka_client()
        lake, promises = open_lake(client)
        made = planning.write(promises.group(group), promises, lake, client, run_id=run_id)
    for line in made.lines():
        log.log(logging.WARNING if line.startswith("warn") else logging.INFO, "%s", line)
    reviews = any(each.review == "open" for each in made.outlooks.values())
    return outcome.expected(made) if made.has_work or made.stops or reviews else None


@task(trigger_rule=TriggerRule.ALL_DONE, multiple_outputs=False)
def settle(group: str, promised: dict[str, Any] | None, *, run_id: str) -> dict[str, Any]:
    """Whatever became of the application, look at the tables and say what is true."""
    from sluice.ingest import settle as settling
    from sluice.pages import report

    if promised is None:
        raise AirflowFailException("There is no plan to settle: see the log of the task plan.")
    with errors_in_words():
        lake, promises = open_lake()  # what is planned has a staging table
        here = promises.group(group)
        found = settling.settle(here, lake, promised, run_id=run_id)
        reports = report.keep_all(lake, here.contracts, found, run_id=run_id)
    for name, address in reports.items():
        found[name]["report"] = address
    for name, outcome in found.items():
        log.log(
            logging.ERROR if outcome["red"] else logging.INFO,
            "settle  %s: %s, batches %s, offsets %s, %s records, %s rejected, snapshot %s%s",
            name,
            outcome["state"],
            outcome["batches"] or "none",
            outcome["ranges"] or "none",
            outcome["records"],
            outcome["rejected"],
            outcome["snapshot_id"],
            f": {outcome['error']}" if outcome["error"] else "",
        )
    # Each task is a process of a second: in a group of many tables more than all that is to be done.
    context = get_current_context()
    idle = [n for n in context["task"].downstream_task_ids if n in found and colour(found[n]) == SKIPPED]
    idle += [] if promised["reviews"] else ["reviews"]
    if idle:
        context["ti"].xcom_push(BaseXCom.XCOM_RETURN_KEY, found)
        raise DownstreamTasksSkipped(tasks=idle)
    return found


@task
def reviews(promised: dict[str, Any]) -> list[dict[str, Any]]:
    """The changes under review, one run of `review_schema` each; that of a change that is asked already is skipped."""
    if not promised["reviews"]:
        raise AirflowSkipException("No contract asks for a change that somebody must approve.")
    asked = list(promised["reviews"].items())
    most = mapped.most()
    if len(asked) > most:
        log.warning("%s changes are under review: the first %s are asked now.", f"{len(asked):,}", f"{most:,}")
    return [
        {"trigger_run_id": f"review__{table}__{change}", "conf": {"table": table}} for table, change in asked[:most]
    ]


def event(found: dict[str, Any]) -> dict[str, Any]:
    """What the asset event of a table says; red with the reason, or skipped, where there is none. Tells OpenLineage."""
    if found["batches"]:  # in a run that is red as well: what it published before will not be told again
        lineage.emit(found)
    if found["red"]:
        raise AirflowFailException(f"{found['table']} is {found['state']}: {found['error']}")
    if not found["batches"]:
        raise AirflowSkipException(f"{found['table']}: {found['state']}, nothing was published.")
    kept = ("ranges", "gaps", "batches", "snapshot_id", "records", "rejected", "expectations", "warnings")
    return {name: found[name] for name in (*kept, "report") if name in found}


def colour(found: dict[str, Any]) -> str:
    """What the task of a table comes to by its outcome, see `event`."""
    return RED if found["red"] else GREEN if found["batches"] else SKIPPED


def table_task(contract: Contract, owner: str) -> Any:
    """The task that stands for a table: green with an asset event, red with the reason, or skipped."""
    made = asset(contract.table)

    @task(task_id=contract.table, outlets=[made], owner=owner, doc_md=contract.doc)
    def outcome(outcomes: dict[str, Any]) -> Any:
        yield Metadata(made, extra=event(outcomes[contract.table]))

    return outcome


def mapped_tables(group: Group, settled: Any) -> None:
    """The tables of templates, known when the broker was asked: a mapped task, whose instances are as `table_task`."""
    named = {contract.table for contract in group.contracts}
    alias = AssetAlias(f"ingest_{group.name}.by_topic")

    @task
    def by_topic(outcomes: dict[str, Any]) -> list[list[Mapping[str, Any]]]:
        found = [each for table, each in sorted(outcomes.items()) if table not in named and colour(each) != SKIPPED]
        if not found:
            raise AirflowSkipException("Nothing was published into a table of a template, and none is red.")
        return mapped.bounded(found, colour)

    @task(map_index_template="{{ table_name }}", outlets=[alias])
    def table(found: list[dict[str, Any]]) -> Any:
        get_current_context()["table_name"] = mapped.name(found)  # type: ignore[typeddict-unknown-key]
        without: list[AirflowException] = []
        for each in found:
            try:
                extra = event(each)
            except (AirflowFailException, AirflowSkipException) as error:
                without.append(error)
            else:
                yield Metadata(asset(each["table"]), extra=extra, alias=alias)
        if without:  # all of them: they are of one colour
            raise type(without[0])(mapped.told([str(error) for error in without], "settle"))

    table.expand(found=by_topic(settled))


def source(contract: Contract) -> str:
    """Which topics, in words: nobody asks the broker while a DAG file is read."""
    return f"topics like `{contract.matching.pattern}`" if contract.matching else ", ".join(contract.topics)


def build(group: Group) -> DAG:
    """The DAG of a group."""
    settings = group.settings
    tables = "\n".join(f"- `{c.table}` ({c.mode}) from {source(c)}" for c in group.promises)
    owners = sorted({c.owner for c in group.promises})
    # Airflow keeps the owners of all tasks as one text of the DAG. One that is too long is refused by the database, as
    # the log of the DAG processor alone tells.
    told = sum(len(each) + 2 for each in owners) < OWNERS
    with DAG(
        dag_id=f"ingest_{group.name}",
        schedule=settings.schedule,
        start_date=settings.start_date,
        catchup=False,
        max_active_runs=1,
        tags=["sluice", *settings.tags],
        doc_md=f"Ingests\n\n{tables}\n\n{GRAPH}",
        default_args={
            "owner": owners[0] if len(owners) == 1 else "sluice",
            "retries": settings.retries,
            "retry_delay": settings.retry_delay,
        },
    ) as dag:
        patience = QUICK + mapped.patience([group])
        promised = plan.override(execution_timeout=patience)(group.name, run_id="{{ run_id }}")
        ingest = IngestOperator(
            task_id="ingest",
            group=group.name,
            settings=settings,
            promised=promised,
            pool=settings.pool,
            execution_timeout=settings.timeout,
        )
        settled = settle.override(execution_timeout=patience)(group.name, promised, run_id="{{ run_id }}")
        ingest >> settled
        # Behind settle, so that what this run has published and rejected is in what a person is shown.
        found = reviews(promised)
        settled >> found
        TriggerDagRunOperator.partial(
            task_id="ask", trigger_dag_id="review_schema", skip_when_already_exists=True
        ).expand_kwargs(found)
        with TaskGroup("tables", prefix_group_id=False):
            for contract in group.contracts:
                table_task(contract, contract.owner if told else "sluice")(settled)
            if group.templates:
                mapped_tables(group, settled)
    return dag


for _group in contract_folder.load(strict=False).groups.values():
    globals()[f"ingest_{_group.name}"] = build(_group)
