"""`python -m sluice schema`: lists the versions of a table's contract, or answers a review.

In: arguments and the contracts. Out: the versions, or the review; with `--yes`, the answer.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice import dag_ids
from sluice.cli.operate import UNCHANGED
from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.contract.contract import Contract
    from sluice.contract.folder import Contracts


def add_commands(commands: Any, contracts: Callable[[], Contracts]) -> argparse.ArgumentParser:
    """Add the command; returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "schema", help="list the versions of a table's contract; approve or reject a change under review"
    )
    parser.add_argument("answer", nargs="?", choices=["approve", "reject"], help="default: list the versions")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("--why", default="", metavar="REASON", help="recorded in sluice.schemas with your name")
    parser.add_argument(
        "--republish",
        action="store_true",
        help="approve: also publish again, under the new contract, what was published since the review began",
    )
    parser.add_argument("--yes", action="store_true", help="apply it; without it, only show the review")
    parser.set_defaults(run=partial(_schema, contracts))
    return parser


def _schema(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.evolve.pending_change import ReviewDecision
    from sluice.iceberg import availability
    from sluice.operate import review_schema
    from sluice.plan import resolve_topics

    known = contracts()
    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, None)
        file = known.table(given.table)
        if given.answer is None:
            print("\n".join(review_schema.list_versions(catalog, file)) or f"{file.table}: no version is recorded yet.")
            return 0
        if not given.yes:
            review = review_schema.load_review(catalog, file, include_rejected=given.answer == "approve")
            print("\n".join([*review.lines(), UNCHANGED]))
            return 0
        user = operator_input.current_user()
        decision = ReviewDecision(
            approve=given.answer == "approve", who=user, why=given.why, run_id=f"schema {given.answer} by {user}"
        )
        done = review_schema.answer_review(catalog, known, file.table, decision, republish=given.republish)
    print("\n".join(done.lines))
    for form in done.forms():
        command = f"airflow dags trigger {shlex.quote(dag_ids.BACKFILL)} --conf {shlex.quote(json.dumps(form))}"
        print(f"Replay quarantined records: {command}")
    return 0


def print_new_columns(contract: Contract) -> int:
    """Print the columns that a table to be created would get; returns 1 if they can't be determined."""
    from sluice.errors import RetryableError, SluiceError
    from sluice.evolve import auto_columns

    try:
        columns = auto_columns.resolve_columns(contract).columns
        print(f"{contract.table}: columns {', '.join(f'{c.name} {c.type}' for c in columns)}")
    except SluiceError as error:
        print(f"{contract.table}: {error}")
        return int(not isinstance(error, RetryableError))
    return 0
