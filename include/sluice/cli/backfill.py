"""`sluice backfill plan` and `sluice backfill run`: replay history, or a range, into a table.

In: a table and a range. Out: the preview; or, slice by slice in Spark on this machine, what is in the table.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sluice import dag_ids
from sluice.cli import output
from sluice.cli.arguments import (
    UNCHANGED,
    add_command,
    add_decision,
    add_group,
    add_json,
    add_patience,
    add_table,
    load_contracts,
    new_run_id,
    ranges,
)
from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.backfill.backfill_plan import BackfillPlan
    from sluice.backfill.ranges import Request
    from sluice.plan.model import PlanInputs

EXAMPLE = """shop.orders --ranges '{"0": [0, 5000]}'"""


def add_commands(commands: Any) -> None:
    """Add the commands."""
    group = add_group(commands, "backfill", "replay history, or a range, into a table")
    plan = add_command(group, "plan", _plan, "show what a backfill would do", ["shop.orders", EXAMPLE])
    run = add_command(
        group,
        "run",
        _run,
        "replay without Airflow, in Spark on this machine",
        [EXAMPLE, "shop.orders --since 2026-11-01T00:00:00Z --why 'bug in the contract' --yes"],
    )
    for each in (plan, run):
        add_table(each)
        each.add_argument("--topic", default="", metavar="TOPIC", help="if the table reads several")
        each.add_argument("--ranges", type=ranges, metavar="JSON", help='offsets: {"0": [start, end]}')
        each.add_argument("--since", default="", metavar="TIME", help="from this time; default: the beginning")
        each.add_argument(
            "--until", default="", metavar="TIME", help="to this time; default: the first offset of live ingestion"
        )
        each.add_argument("--source", default="kafka", choices=["kafka", "staging", "quarantine"])
    add_decision(run)
    for each in (plan, run):
        add_json(each)
        add_patience(each)


def _request(given: argparse.Namespace) -> Request:
    from sluice.backfill.ranges import Request, parse_time
    from sluice.ledger.slices import Origin

    return Request(
        given.table,
        given.ranges or {},
        parse_time(given.since, "since"),
        parse_time(given.until, "until"),
        Origin(given.source),
        given.topic,
        getattr(given, "why", ""),
    )


def _open(request: Request, patience: float) -> PlanInputs:
    """The contracts, the catalog and Kafka; without a ledger, which only a backfill that is run creates."""
    from sluice.iceberg import availability
    from sluice.kafka import broker as kafka_broker
    from sluice.plan import resolve_topics
    from sluice.plan.model import PlanInputs

    known = load_contracts()
    client = kafka_broker.connect(patience) if request.needs_kafka else kafka_broker.make_admin_client()
    catalog = availability.open_catalog(patience)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, client if request.needs_kafka else None)
    return PlanInputs(known, catalog, client)


def _preview(request: Request, inputs: PlanInputs) -> BackfillPlan:
    from dataclasses import replace

    from sluice.backfill import backfill_plan
    from sluice.ledger import offsets_table

    return backfill_plan.plan_backfill(request, replace(inputs, ledger=offsets_table.load_ledger(inputs.catalog)))


def _plan(given: argparse.Namespace) -> int:
    from sluice.iceberg import availability

    request = _request(given)
    inputs = _open(request, given.patience)
    with availability.translate_catalog_errors():
        found = _preview(request, inputs)
    _show_plan(given, found, f"Nothing was changed. Start it with `backfill run`, or DAG {dag_ids.BACKFILL}.")
    return 0


def _show_plan(given: argparse.Namespace, found: BackfillPlan, last: str) -> None:
    lines = [*found.lines(), last]
    output.show(given, {"applied": False, "plan": found}, lambda: output.print_lines(lines))


def _run(given: argparse.Namespace) -> int:
    """A backfill, by the functions that the tasks of DAG `backfill` call."""
    from sluice.backfill import backfill_outcome, backfill_plan
    from sluice.iceberg import availability

    request = _request(given)
    inputs = _open(request, given.patience)
    run_id = new_run_id()
    with availability.translate_catalog_errors():
        if not given.yes:
            _show_plan(given, _preview(request, inputs), UNCHANGED)
            return 0
        who = operator_input.current_user()
        made = backfill_plan.write_backfill(request, inputs, who=who, run_id=run_id)
    if not given.json:
        output.print_lines(made.lines())
    code = _run_slices(made, run_id, inputs)
    with availability.translate_catalog_errors():
        found = backfill_outcome.collect_outcome(inputs.contracts, inputs.catalog, made.to_xcom())

    def text() -> None:
        for each in found:
            state = "failed" if each["snapshot_id"] is None else "done"
            output.print_lines([f"{state}  slice {each['slice']}: snapshot {each['snapshot_id']}, {each['told']}"])

    output.show(given, {"applied": True, "run_id": run_id, "plan": made, "slices": found}, text)
    if all(each["snapshot_id"] is not None for each in found):
        return 0
    return 2 if code == 2 else 3


def _run_slices(made: BackfillPlan, run_id: str, inputs: PlanInputs) -> int:
    from sluice.cli import spark

    numbers = made.to_xcom()["slices"]
    if not numbers:
        return 0
    # As `--option=value`: a topic may begin with a dash, and the numbers do.
    values = {"table": made.table, "topic": made.topic, "source": str(made.origin), "run-id": run_id}
    arguments = [f"--{option}={value}" for option, value in values.items()]
    arguments.append(f"--slices={','.join(map(str, numbers))}")
    settings = inputs.contracts.group(made.group).settings
    return spark.run_job("backfill.py", arguments, settings, what=f"{len(numbers)} slices")
