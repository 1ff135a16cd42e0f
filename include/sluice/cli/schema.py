"""`python -m sluice schema TABLE`: the versions of its contract; `schema approve|reject TABLE`: answer a review."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice.cli.operate import UNCHANGED
from sluice.operate import operator_input

if TYPE_CHECKING:
    from sluice.contract.contract import Contract
    from sluice.contract.folder import Contracts


def add(commands: Any, contracts: Callable[[], Contracts]) -> argparse.ArgumentParser:
    """Add the command; returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "schema", help="the versions of a table's contract; approve or reject a change that is under review"
    )
    parser.add_argument("answer", nargs="?", choices=["approve", "reject"], help="left out: list the versions")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("--why", default="", metavar="REASON", help="kept in sluice.schemas, with your name")
    parser.add_argument(
        "--republish", action="store_true", help="approve: publish again from staging what came since the review began"
    )
    parser.add_argument("--yes", action="store_true", help="do it; without it, only tell what would be done")
    parser.set_defaults(run=partial(_schema, contracts))
    return parser


def _schema(contracts: Callable[[], Contracts], given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.operate import review_schema
    from sluice.plan import resolve_topics

    known = contracts()
    catalog = availability.open_catalog(given.patience)
    with availability.catalog_errors():
        known = resolve_topics.resolve(known, catalog, None)
        file = known.table(given.table)
        if given.answer is None:
            print("\n".join(review_schema.listed(catalog, file)) or f"{file.table}: no version yet.")
            return 0
        if not given.yes:
            print("\n".join(review_schema.look(catalog, file, again=given.answer == "approve").lines()))
            print(UNCHANGED)
            return 0
        user = operator_input.user()
        done = review_schema.answer(
            catalog,
            known,
            file.table,
            approve=given.answer == "approve",
            who=user,
            why=given.why,
            run_id=f"schema {given.answer} by {user}",
            republish=given.republish,
        )
    print("\n".join(done.lines))
    for form in done.forms():
        print(f"Bring what was set apart: airflow dags trigger backfill --conf {shlex.quote(json.dumps(form))}")
    return 0


def would_list(contract: Contract) -> int:
    """Say which columns a table that is not there yet would get; 1 where it can get none."""
    from sluice.errors import RetryableError, SluiceError
    from sluice.evolve import auto_columns

    try:
        columns = auto_columns.resolved(contract).columns
        print(f"{contract.table}: columns {', '.join(f'{c.name} {c.type}' for c in columns)}")
    except SluiceError as error:
        print(f"{contract.table}: {error}")
        return int(not isinstance(error, RetryableError))
    return 0
