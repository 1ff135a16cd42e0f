"""`sluice maintain run`: one maintenance action on some tables, without Airflow.

In: an action and tables. Out: what each table needs; then, in Spark on this machine, what was done.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.cli import output
from sluice.cli.arguments import add_command, add_group, add_json, add_patience, load_contracts, new_run_id

if TYPE_CHECKING:
    from sluice.ledger.maintenance_table import ActionResult
    from sluice.maintain.assess import Assessment

ACTIONS = ("rewrite_data_files", "expire_snapshots", "remove_orphan_files")


def add_commands(commands: Any) -> None:
    """Add the commands."""
    group = add_group(commands, "maintain", "compact files, expire snapshots, remove orphan files")
    run = add_command(
        group,
        "run",
        _run,
        "carry out an action on the tables that need it, in Spark on this machine",
        ["rewrite_data_files shop.orders", "expire_snapshots shop.orders --dry-run"],
    )
    run.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    run.add_argument("tables", nargs="+", metavar="TABLE", help="as `sluice.maintenance` names them")
    run.add_argument("--dry-run", action="store_true", help="change nothing: say what is due, or list the orphan files")
    add_json(run)
    add_patience(run)


def _run(given: argparse.Namespace) -> int:
    """One run, by the functions that the tasks of DAG `maintain_<action>` call."""
    from sluice.cli import spark
    from sluice.iceberg import availability
    from sluice.ledger import maintenance_table
    from sluice.maintain import assess, targets
    from sluice.maintain.expiry_plan import AssessmentInputs
    from sluice.plan import resolve_topics

    action, run_id = maintenance_table.Action(given.action), new_run_id()
    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(load_contracts(), catalog, None)
        needs = assess.assess_tables(AssessmentInputs(catalog, known), action, names=given.tables, run_id=run_id)
        groups = {t.name: t.group or min(known.groups) for t in targets.list_targets(known)}
    due: dict[str, list[str]] = {}
    only_assess = given.dry_run and action != maintenance_table.Action.ORPHANS
    for each in needs:
        if each.steps and not only_assess:
            due.setdefault(groups[each.table], []).append(each.table)
    codes = []
    for group, tables in due.items():
        settings = known.group(group).settings
        arguments = [f"--action={action}", f"--run-id={run_id}", "--tables", json.dumps(tables)]
        arguments += [f"--seconds={settings.timeout.total_seconds():.0f}", *(["--dry-run"] if given.dry_run else [])]
        codes.append(spark.run_job("maintain.py", arguments, settings))
    where = maintenance_table.ResultFilter(run_id=run_id, action=action, states=maintenance_table.ENDED)
    with availability.translate_catalog_errors():
        done = {each.table: each for each in maintenance_table.read_results(catalog, where)} if due else {}
    output.show(
        given, {"run_id": run_id, "needs": needs, "results": done}, lambda: _print(needs, done, dry_run=only_assess)
    )
    if any(each.error for each in needs) or any(each.failed for each in done.values()):
        return 3
    return max(codes, default=0) if set(codes) <= {0, 1, 2, 3} else 2


def _print(needs: Sequence[Assessment], done: Mapping[str, ActionResult], *, dry_run: bool) -> None:
    for need in needs:
        result = done.get(need.table)
        if need.error:
            line = f"failed  {need.table}: {need.error}"
        elif result:
            line = f"{result.state}  {need.table}: {result.summary}"
        elif need.steps and dry_run:
            line = f"due  {need.table}: {need.reason}"
        elif need.steps:
            line = f"missing  {need.table}: the Spark application ended before its result ({need.reason})"
        else:
            line = f"skipped  {need.table}: {need.reason}"
        output.print_lines([line])
