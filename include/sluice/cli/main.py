"""The command line: `python -m sluice status|at|plan|contract|ledger|gap|rollback|backfill|schema|sql|demo`.

Each command imports what it needs when it runs, so that `--help` and `contract check` stay quick.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sluice.cli import ledger, operate, schema, sql
from sluice.errors import SluiceError, exit_code

if TYPE_CHECKING:
    from sluice.contract.folder import Contracts

Command = Callable[[argparse.Namespace], int]
Number = TypeVar("Number", int, float)
DEBUG = "SLUICE_DEBUG"
MOST_PATIENCE = 86_400.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 done; 2 something did not answer, and a later try may help; 3 somebody must act; 1 a bug; 64 wrong usage.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        chosen = _parser().parse_args(given)
    except SystemExit as stop:  # argparse's 2 would read as "try again"
        return 64 if stop.code else 0
    command: Command = chosen.run
    return _guarded(lambda: command(chosen))


def _guarded(command: Callable[[], int]) -> int:
    try:
        code = command()
        sys.stdout.flush()
    except SluiceError as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        _complain(error)
        return exit_code(error)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - the last line of defence: one message instead of a page
        if os.environ.get(DEBUG):
            traceback.print_exc()
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"This is a bug in Sluice; {DEBUG}=1 shows where.", file=sys.stderr)
        return 1
    return code


def _complain(error: SluiceError) -> None:
    print(f"error: {error.message}", file=sys.stderr)
    where = ", ".join(f"{name} {value}" for name, value in error.fields.items() if value is not None)
    if where:
        print(f"  where: {where}", file=sys.stderr)
    if error.way_out:
        print(f"  way out: {error.way_out}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sluice",
        description="Kafka topics into Iceberg tables, exactly once. Contracts: SLUICE_CONTRACTS; the catalog: "
        "PYICEBERG_CATALOG__LAKE__…; Kafka: SLUICE_KAFKA_CONFIG or KAFKA_BOOTSTRAP_SERVERS.",
        epilog="Exit codes: 0 done, 2 something did not answer (try again), 3 somebody must act, 64 wrong usage.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    status = commands.add_parser("status", help="where each table stands: cursor, lag, last snapshot, what is open")
    status.add_argument("table", nargs="?", metavar="TABLE", help="one table, with its partitions")
    status.add_argument("--details", action="store_true", help="the partitions of every table")
    status.add_argument("--json", action="store_true", help="everything, for programs")
    status.set_defaults(run=_status)

    at = commands.add_parser("at", help="which offsets a table held at a moment, and in which snapshot")
    at.add_argument("table", metavar="TABLE")
    at.add_argument("moment", metavar="MOMENT", help="with its time zone, like 2026-11-22T09:30:00Z")
    at.add_argument("--json", action="store_true", help="for programs")
    at.set_defaults(run=_at)

    plan = commands.add_parser("plan", help="what the next run of a group would do; changes nothing")
    plan.add_argument("group", metavar="GROUP")
    plan.set_defaults(run=_plan)

    contract = commands.add_parser("contract", help="contracts").add_subparsers(required=True, metavar="COMMAND")
    check = contract.add_parser("check", help="name every problem as file:line, and what would be created")
    check.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="default: SLUICE_CONTRACTS")
    check.set_defaults(run=_contract_check)

    test = contract.add_parser("test", help="what becomes of sample records; writes nothing")
    test.add_argument("table", metavar="TABLE")
    source = test.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, metavar="JSONL", help='a record per line: {"key": …, "value": …}')
    source.add_argument("--from-topic", type=_at_least_one, metavar="N", help="the newest N records of the topic")
    test.add_argument("--topic", default="", metavar="TOPIC", help="where several feed the table, or a pattern does")
    test.set_defaults(run=_contract_test)

    sql.add(commands)
    demo = commands.add_parser(
        "demo",
        help="the main job on real records, start to end, checked (make demo)",
        description="Real records through a real broker, Airflow and Spark into tables, and checked. Uses the stack of "
        "SLUICE_HOME: starts it if it does not run, and then stops it again. The data stays.",
    )
    demo.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    demo.set_defaults(run=_demo)
    acting = (*operate.add(commands, _contracts), schema.add(commands, _contracts))
    for each in (status, at, plan, test, *ledger.add(commands, _contracts, _at_least_one), *acting):
        each.add_argument(
            "--patience",
            type=_patience,
            default=10.0,
            metavar="SECONDS",
            help="wait this long for a first answer (default 10)",
        )
    return parser


def _at_least_one(text: str) -> int:
    return _above_zero(text, int, "whole number above 0")


def _patience(text: str) -> float:
    """Seconds; clients take a number below zero for "as long as it takes", and can't count to infinity."""
    said = f"number of seconds above 0, up to {MOST_PATIENCE:,.0f}"
    return _above_zero(text, float, said, most=MOST_PATIENCE)


def _above_zero(text: str, kind: Callable[[str], Number], said: str, most: float = math.inf) -> Number:
    try:
        number = kind(text)
    except ValueError:
        number = kind("0")
    if not 0 < number <= most:  # nor is `nan`
        raise argparse.ArgumentTypeError(f"{text!r} is no {said}")
    return number


def _contracts() -> Contracts:
    """The contracts that are sound; a broken file is named, and does not hide the others."""
    from sluice.contract import folder as contract_folder

    found = contract_folder.load(strict=False)
    for problem in found.problems:
        print(f"warning: {problem}", file=sys.stderr)
    return found


def _status(given: argparse.Namespace) -> int:
    from sluice.status import status, text

    only = [given.table] if given.table else None
    found = status.look(_contracts(), only, patience=given.patience)
    if given.json:
        print(json.dumps(text.as_json(found) | {"unclaimed": found.unclaimed}, indent=2))
    else:
        print(text.as_text(found, details=bool(given.table) or given.details))
    return max((exit_code(e) for e in found.errors), default=0)


def _at(given: argparse.Namespace) -> int:
    from sluice.backfill.ranges import moment
    from sluice.iceberg import availability, table_names, tables
    from sluice.plan import resolve_topics
    from sluice.status import text, timeline

    asked = moment(given.moment, "MOMENT") or datetime.now(UTC)
    catalog = availability.open_catalog(given.patience)
    with availability.catalog_errors():
        contract = resolve_topics.resolve(_contracts(), catalog, None).table(given.table)
        table = tables.load(catalog, table_names.typed(contract))
        found = timeline.standing(table, asked) if table else None
    if given.json:
        print(json.dumps(text.plain(found), indent=2))
    else:
        print(text.standing_text(given.table, asked, found))
    return 0


def _plan(given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.kafka import broker
    from sluice.ledger import offsets_table
    from sluice.ledger.offsets_table import Ledger
    from sluice.plan import plan, resolve_topics

    known = _contracts()
    known.group(given.group)
    client = broker.open_broker(given.patience)
    catalog = availability.open_catalog(given.patience)
    existing = offsets_table.existing_ledger_table(catalog)
    with availability.catalog_errors():
        known = resolve_topics.resolve(known, catalog, client)
        ledger = Ledger(catalog, existing) if existing else None
        found = plan.look(known.group(given.group), known, catalog, client, ledger)
    print("\n".join(found.lines()))
    return max(map(exit_code, found.stops.values()), default=0)


def _contract_check(given: argparse.Namespace) -> int:
    from sluice.contract import folder as contract_folder

    found = contract_folder.load(given.folder, strict=False)
    for problem in found.problems:
        print(problem)
    number = len(found.tables) + len(found.templates)
    good = f"{number} of the contracts in {found.folder} are sound" if found.problems else (
        f"{number} contract(s) in {found.folder}, all sound"
    )  # fmt: skip
    print(f"{good}; groups: {', '.join(found.groups) or 'none'}")
    for contract in (*found.tables.values(), *found.templates.values()):
        if contract.matching:
            print(f"{contract.table}: `plan {contract.group}` tells which topics match `{contract.matching.pattern}`")
    misfits = _compare(found)
    return 3 if found.problems or misfits else 0


def _contract_test(given: argparse.Namespace) -> int:
    from sluice.cli import contract_test
    from sluice.evolve import auto_columns
    from sluice.plan import resolve_topics

    contract = auto_columns.resolved(resolve_topics.named(_contracts(), given.table, given.topic))
    return contract_test.command(contract, given.file, given.from_topic or 0, given.topic, given.patience)


def _demo(given: argparse.Namespace) -> int:
    from sluice import demo

    return demo.main(keep=given.keep)


def _compare(found: Contracts) -> int:
    """Say which tables would be created, and which do not fit; the number of the latter."""
    from sluice.errors import ConfigError, RetryableError, SchemaChangeError
    from sluice.evolve import evolve
    from sluice.iceberg import availability, table_names, tables

    try:
        catalog = availability.open_catalog()
    except (ConfigError, RetryableError) as error:
        print(f"The tables were not looked at: {error.message}")
        return 0
    misfits = 0
    wanted = {".".join(table_names.typed(c)): table_names.typed(c) for c in found.tables.values()}
    wanted |= {".".join(table_names.staging(t)): table_names.staging(t) for t in found.topics}
    with availability.catalog_errors():
        present = {name for name, identifier in wanted.items() if tables.load(catalog, identifier) is not None}
        for name in wanted:
            if name not in present:
                print(f"would create {name}")
        for contract in found.tables.values():
            if contract.table in present:
                try:
                    asked = evolve.look(catalog, catalog.load_table(table_names.typed(contract)), contract).line()
                    if asked:
                        print(f"{contract.table}: {asked}")
                except SchemaChangeError as error:
                    misfits += 1
                    print(f"{contract.table}: {error.message} {error.way_out}")
            elif contract.auto:
                misfits += schema.would_list(contract)
    print(f"{len(present)} tables exist, {len(wanted) - len(present)} would be created by the first run")
    return misfits
