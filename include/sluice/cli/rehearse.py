"""`sluice rehearse`: rehearses failures of a table on a copy of it, which is dropped afterwards.

In: a table. Out: for each scenario what was expected, and what happened.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from sluice.cli import output
from sluice.cli.arguments import (
    add_command,
    add_json,
    add_patience,
    add_table,
    load_contracts,
    new_run_id,
    positive_int,
)
from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.rehearse.rehearse import Outcome


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "rehearse",
        _rehearse,
        "rehearse failures of a table on a copy of it, which is dropped afterwards",
        ["shop.orders", "shop.orders --scenario kill-after-publish --scenario rollback --records 1000"],
    )
    parser.description = (
        "Rehearses failures of a table on a copy, in namespaces rehearsal_…, with the last records of its topic.\n"
        "The copy is dropped afterwards; the table and the topic stay as they are. Spark runs on this machine.\n"
        "Exit code 0: each outcome is as expected, or its scenario is not possible here; 3: one is not."
    )
    add_table(parser)
    parser.add_argument(
        "--scenario", action="append", default=[], metavar="NAME", help="one of them; repeat it for more; default: all"
    )
    parser.add_argument(
        "--records",
        type=positive_int,
        default=10_000,
        metavar="N",
        help="the copy begins so many records before the end of each partition (default %(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the copy for a look at it")
    parser.add_argument(
        "--drop-left", action="store_true", help="first drop what an earlier rehearsal of this table left behind"
    )
    add_json(parser)
    add_patience(parser)


def _rehearse(given: argparse.Namespace) -> int:
    from sluice.cli import spark
    from sluice.iceberg import availability
    from sluice.kafka import airflow_connections, broker
    from sluice.plan import resolve_topics
    from sluice.rehearse import rehearse
    from sluice.rehearse.rehearse import Request, State

    known = load_contracts()
    client = broker.connect(given.patience)
    airflow_connections.export(airflow_connections.REGISTRY)
    spark.set_java()
    catalog = availability.open_catalog(given.patience)
    request = Request(
        given.table,
        given.scenario,
        given.records,
        given.keep,
        given.drop_left,
        environment=rehearse.without_reports(os.environ),
        who=operator_input.current_user(),
        run_id=new_run_id(),
    )

    def report(outcome: Outcome) -> None:
        if not given.json:
            output.print_lines(rehearse.lines(outcome))

    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, client)
        found = rehearse.rehearse(request, known, catalog, client, report)
    output.show(given, {"table": given.table, "run_id": request.run_id, "scenarios": found}, lambda: None)
    return 3 if any(each.state == State.FAILED for each in found) else 0
