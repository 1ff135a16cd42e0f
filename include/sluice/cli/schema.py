"""`sluice schema`: lists the versions of a table's contract, or answers a review.

In: arguments and the contracts. Out: the versions, or the review; with `--yes`, the answer.
"""

from __future__ import annotations

import argparse
import json
import shlex
from typing import TYPE_CHECKING, Any

from sluice import dag_ids
from sluice.cli import output
from sluice.cli.arguments import (
    UNCHANGED,
    add_command,
    add_decision,
    add_json,
    add_patience,
    add_table,
    load_contracts,
)
from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.contract.contract import Contract


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "schema",
        _schema,
        "list the versions of a table's contract; approve or reject a change under review",
        ["shop.orders", "approve shop.orders", "approve shop.orders --why 'agreed with the shop' --yes"],
    )
    parser.add_argument("answer", nargs="?", choices=["approve", "reject"], help="default: list the versions")
    add_table(parser)
    parser.add_argument(
        "--republish",
        action="store_true",
        help="approve: also publish again, under the new contract, what was published since the review began",
    )
    add_decision(parser)
    add_json(parser)
    add_patience(parser)


def _schema(given: argparse.Namespace) -> int:
    from sluice.evolve import evolve
    from sluice.evolve.pending_change import ReviewDecision
    from sluice.iceberg import availability
    from sluice.operate import review_schema
    from sluice.plan import resolve_topics

    known = load_contracts()
    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, None)
        file = known.table(given.table)
        if given.answer is None:
            versions = review_schema.list_versions(catalog, file)
            rows = evolve.list_versions(catalog, file) if given.json else ()
            none = f"{file.table}: no version is recorded yet."
            output.show(given, {"table": file.table, "versions": rows}, lambda: output.print_lines(versions or [none]))
            return 0
        if not given.yes:
            review = review_schema.load_review(catalog, file, include_rejected=given.answer == "approve")
            _show(given, [*review.lines(), UNCHANGED], [])
            return 0
        user = operator_input.current_user()
        decision = ReviewDecision(
            approve=given.answer == "approve", who=user, why=given.why, run_id=f"schema {given.answer} by {user}"
        )
        done = review_schema.answer_review(catalog, known, file.table, decision, republish=given.republish)
    _show(given, done.lines, done.forms())
    return 0


def _show(given: argparse.Namespace, lines: list[str], backfills: list[dict[str, object]]) -> None:
    """Print a review, or what an answer did.

    Args:
        backfills: parameters of DAG `backfill`, to replay quarantined records.
    """

    def text() -> None:
        output.print_lines(lines)
        for form in backfills:
            command = f"airflow dags trigger {shlex.quote(dag_ids.BACKFILL)} --conf {shlex.quote(json.dumps(form))}"
            print(f"Replay quarantined records: {command}")

    facts = {"table": given.table, "answer": given.answer, "applied": given.yes, "lines": lines}
    output.show(given, facts | {"backfills": backfills}, text)


def describe_new_columns(contract: Contract) -> tuple[str, bool]:
    """The columns that a table to be created would get, or why they can't be determined; and whether that is final."""
    from sluice.errors import RetryableError, SluiceError
    from sluice.evolve import auto_columns

    try:
        columns = auto_columns.resolve_columns(contract).columns
    except SluiceError as error:
        return str(error), not isinstance(error, RetryableError)
    return f"columns {', '.join(f'{c.name} {c.described_type}' for c in columns)}", False
