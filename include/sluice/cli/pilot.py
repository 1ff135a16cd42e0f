"""`sluice compare` and `sluice decide`: compare a table with that of another writer, and decide to rely on it.

In: two tables. Out: the verdict, and a report; with `decide`, the stages of the pilot and a decision on record.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from sluice.cli import output
from sluice.cli.arguments import (
    UNCHANGED,
    add_command,
    add_decision,
    add_json,
    add_patience,
    add_table,
    new_run_id,
    open_tables,
    ranges,
)
from sluice.operate import operator_input


def add_commands(commands: Any) -> None:
    """Add the commands."""
    compare = add_command(
        commands,
        "compare",
        _compare,
        "compare a table with another table or view, in Spark on this machine; exit code 3 if they differ",
        [
            "shop.orders --with old.orders",
            "shop.orders --with lake2.old.orders --key id --time-column at --to 2026-11-29T12:00:00Z",
            "shop.orders --with old.orders --tolerance amount=0.01 --columns order_id=id --output report.html",
        ],
    )
    add_table(compare)
    compare.add_argument(
        "--with", dest="other", required=True, metavar="OTHER", help="namespace.table or catalog.namespace.table"
    )
    compare.add_argument(
        "--key", nargs="+", metavar="COL", help="columns that identify a row; default: the contract's, or the offsets"
    )
    compare.add_argument("--from", dest="since", metavar="TIME", help="only rows from this time on")
    compare.add_argument("--to", dest="until", metavar="TIME", help="only rows before this time")
    compare.add_argument(
        "--time-column", metavar="COL", help="the column of these times, and of freshness (default _kafka_timestamp)"
    )
    compare.add_argument(
        "--offsets", type=ranges, metavar="JSON", help='only these offsets, where both have them: {"0": [start, end]}'
    )
    compare.add_argument("--ignore", nargs="+", metavar="COL", help="columns that are not compared")
    compare.add_argument(
        "--tolerance", nargs="+", default=[], metavar="COL=NUMBER", help="so far apart is equal; times in seconds"
    )
    compare.add_argument(
        "--columns", nargs="+", default=[], metavar="OTHER=NAME", help="the other table's names of columns"
    )
    compare.add_argument(
        "--masked-alike", nargs="+", metavar="COL", help="masked columns that the other table masks in the same way"
    )
    compare.add_argument("--output", metavar="FILE", help="write a report: .html or .json")
    add_json(compare)
    add_patience(compare)
    decide = add_command(
        commands,
        "decide",
        _decide,
        "show the stages of a table's pilot, and record the decision to rely on the table",
        ["shop.orders", "shop.orders --why 'equal for a week, all failures rehearsed' --yes"],
    )
    add_table(decide)
    decide.add_argument("--against", action="store_true", help="with --yes: the decision is not to rely on it")
    add_decision(decide)
    add_json(decide)
    add_patience(decide)


def _compare(given: argparse.Namespace) -> int:
    """A comparison, by the job that DAG `compare` starts."""
    from sluice.cli import spark
    from sluice.compare.request import make_request, parse_pairs
    from sluice.compare.result import Comparison
    from sluice.pages import comparison_report

    names = ("table", "other", "key", "since", "until", "time_column", "offsets", "ignore", "masked_alike")
    request = make_request(
        {name: getattr(given, name) for name in names}
        | {"tolerance": parse_pairs(given.tolerance, "--tolerance")}
        | {"columns": parse_pairs(given.columns, "--columns")}
    )
    report = [comparison_report.check_address(given.output)] if given.output else []
    with open_tables(given.patience) as (_, known):
        settings = known.group(known.table(request.table).group).settings
    with tempfile.TemporaryDirectory(prefix="sluice-compare-") as folder:
        file = Path(folder, "result.json")
        arguments = [f"--request={request.model_dump_json()}", f"--run-id={new_run_id()}"]
        arguments += [f"--who={operator_input.current_user()}", *(f"--output={each}" for each in (file, *report))]
        code = spark.run_job("compare.py", arguments, settings, what="the comparison")
        if code:
            return code
        found = Comparison.model_validate_json(file.read_text(encoding="utf-8"))
    facts = json.loads(found.model_dump_json()) | {"equal": found.equal, "verdict": found.verdict}
    output.show(given, facts, lambda: output.print_lines(found.lines()))
    return 0 if found.equal else 3


def _decide(given: argparse.Namespace) -> int:
    from sluice.ledger import pilot_table
    from sluice.ledger.pilot_table import PilotRow, Stage
    from sluice.status import pilot

    with open_tables(given.patience) as (catalog, known):
        contract, user = known.table(given.table), operator_input.current_user()
        if given.yes:
            found = {each.subject: each.ready for each in pilot.check_pilot(contract, catalog)}
            verdict = "not relied on" if given.against else "relied on"
            decision = (not given.against, verdict, found, user, given.why, f"decide by {user}")
            pilot_table.record(catalog, PilotRow(given.table, Stage.DECIDED, *decision))
        stages = pilot.check_pilot(contract, catalog)

    def text() -> None:
        for each in stages:
            state = {True: "done", False: "missing", None: "new"}[each.ready]
            output.print_lines([f"{state:8} {each.subject}: {each.evidence}"])
            if each.step:
                output.print_lines([f"         next step: {each.step}"])
        print("The decision is recorded." if given.yes else UNCHANGED)

    output.show(given, {"applied": given.yes, "stages": stages}, text)
    return 0
