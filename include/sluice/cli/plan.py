"""`sluice plan` and `sluice run`: what the next run of a group would do; and one run of it, without Airflow.

In: a group and the contracts. Out: the plan; or what the run came to for each table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.cli import output
from sluice.cli.arguments import (
    add_command,
    add_ingest_group,
    add_json,
    add_patience,
    load_contracts,
    new_run_id,
    next_offsets,
)
from sluice.errors import exit_code

if TYPE_CHECKING:
    from sluice.contract.groups import GroupSettings
    from sluice.plan.model import GroupPlan, PlanInputs


def add_commands(commands: Any) -> None:
    """Add the commands."""
    plan = add_command(commands, "plan", _plan, "show what the next run of a group would do", ["shop", "shop --json"])
    run = add_command(
        commands,
        "run",
        _run,
        "run a group once, without Airflow: plan, Spark on this machine, settle",
        ["shop", "shop --json 2>run.log", """shop --to-offsets '{"orders": {"0": 1200, "1": 980}}'"""],
    )
    for each in (plan, run):
        add_ingest_group(each)
        each.add_argument(
            "--to-offsets",
            type=next_offsets,
            default={},
            metavar="JSON",
            help='plan no record at or after these offsets: {"topic": {"0": 1200}}',
        )
        add_json(each)
        add_patience(each)


def _plan(given: argparse.Namespace) -> int:
    from sluice.formats import masks
    from sluice.iceberg import availability
    from sluice.kafka import broker
    from sluice.ledger import offsets_table
    from sluice.plan import plan, resolve_topics
    from sluice.plan.model import PlanInputs

    known = load_contracts()
    known.group(given.group)
    client = broker.connect(given.patience)
    catalog = availability.open_catalog(given.patience)
    ledger = offsets_table.load_ledger(catalog)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, client)
        inputs = PlanInputs(known, catalog, client, ledger, ends=given.to_offsets)
        found = plan.make_plan(known.group(given.group), inputs)
    lacking = [
        f"{name}: {error}" for name, error in masks.find_missing_keys(known.group(given.group).contracts).items()
    ]
    facts = _plan_facts(found)
    facts["warnings"] += lacking
    # Airflow's workers may have the key.
    lines = [*(f"warn    a run from this shell would stop {each}" for each in lacking), *found.lines()]
    output.show(given, facts, lambda: output.print_lines(lines))
    return max(map(exit_code, found.stops.values()), default=0)


def _plan_facts(found: GroupPlan) -> dict[str, Any]:
    stage = [
        {"topic": t.topic, "batch": b.seq, "ranges": dict(b.ranges), "offsets": b.span, "planned_earlier": t.frozen}
        for t in found.topics.values()
        for b in t.to_stage
    ]
    publish = []
    for name, table in found.tables.items():
        for topic in table.contract.topics:
            batches = [b.seq for b in table.pending.get(topic, ())]
            batches += [b.seq for b in found.topics[topic].to_stage]
            if batches:
                publish.append({"table": name, "topic": topic, "batches": batches})
    return {
        "group": found.group,
        "stage": stage,
        "publish": publish,
        "stops": {name: str(error) for name, error in found.stops.items()},
        "schema": {n: text for n, change in found.pending_changes.items() if (text := change.summary())},
        "warnings": [str(each) for each in found.warnings],
    }


def _run(given: argparse.Namespace) -> int:
    """One run, by the functions that the tasks of DAG `ingest_<group>` call."""
    from sluice.iceberg import availability
    from sluice.ingest import outcome, settle
    from sluice.kafka import broker
    from sluice.pages import report
    from sluice.plan import plan, resolve_topics
    from sluice.plan.model import PlanInputs

    run_id = new_run_id()
    known = load_contracts()
    known.group(given.group)
    client = broker.connect(given.patience)
    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, client)
        group = known.group(given.group)
        made = plan.write_plan(group, PlanInputs(known, catalog, client, ends=given.to_offsets), run_id=run_id)
    promised = outcome.summarize_plan(made)
    if not given.json:
        output.print_lines(made.lines())
    # Settle finds out what was published, even if Spark was stopped; the next run continues.
    code = _run_spark(given.group, run_id, promised, group.settings) if made.has_work else 0
    with availability.translate_catalog_errors():
        found = settle.settle(group, catalog, promised, run_id=run_id)
        addresses = report.write_reports(catalog, group.contracts, found, run_id=run_id)
        for name, address in addresses.items():
            found[name]["report"] = address
        inputs = PlanInputs(known, catalog, client)
        output.show(given, {"run_id": run_id, "tables": found}, lambda: _print_run(found, inputs, run_id))
    if not given.json:
        for name in promised["reviews"]:
            output.print_lines([f"review  {name}: a change of its contract needs approval; see `schema {name}`"])
    return _run_code(found, made, code)


def _run_spark(group: str, run_id: str, promised: Mapping[str, Any], settings: GroupSettings) -> int:
    from sluice.cli import spark

    arguments = [f"--group={group}", f"--run-id={run_id}"]
    return spark.run_job("ingest.py", arguments, settings, small=bool(promised["is_small"]))


def _print_run(found: Mapping[str, Mapping[str, Any]], inputs: PlanInputs, run_id: str) -> None:
    from sluice.iceberg import table_names, tables
    from sluice.kafka import broker
    from sluice.ledger.offsets_table import Ledger
    from sluice.status import run_summary

    contracts = inputs.contracts
    topics = {t for name in found if name in contracts.tables for t in contracts.tables[name].topics}
    states = broker.describe_topics(inputs.client, topics)
    rows = [r for r in Ledger(inputs.catalog).rows(dict.fromkeys(topics, 0)) if r.run_id == run_id and r.seconds]
    for name, came_to in found.items():
        print()
        output.print_lines([f"{came_to['state']}  {name}" + (f": {came_to['error']}" if came_to["error"] else "")])
        contract = contracts.tables.get(name)
        if contract is None or tables.load(inputs.catalog, table_names.typed(contract)) is None:
            continue
        known = {t: s for t in contract.topics if isinstance(s := states[t], broker.TopicState)}
        steps = [r for r in rows if r.topic in contract.topics and r.table in (None, name)]
        output.print_facts(run_summary.describe_table(inputs.catalog, contract, known, steps))


def _run_code(found: Mapping[str, Mapping[str, Any]], made: GroupPlan, spark: int) -> int:
    """The exit code: 3 if a table needs action, 2 if another run may help, else 0."""
    codes = [spark if spark in (1, 2, 3) else 0]
    for name, each in found.items():
        if each["red"]:
            retry = each["state"] == "failed" and spark == 2
            codes.append(exit_code(made.stops.get(name)) or (2 if retry else 3))
    return max(codes)
