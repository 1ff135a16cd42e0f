"""The command line `python -m sluice`: parses arguments, runs a command, turns errors into messages and exit codes.

Each command imports its modules when it runs, so that `--help` and `contract check` start fast.
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
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.cli import airflow, ledger, operate, schema, sql
from sluice.errors import SluiceError, exit_code, printable

if TYPE_CHECKING:
    from sluice.contract.folder import Contracts

Command = Callable[[argparse.Namespace], int]
Number = TypeVar("Number", int, float)
DEBUG = "SLUICE_DEBUG"
MAX_PATIENCE = 86_400.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 done; 1 a bug; 2 a service did not answer, try again; 3 action required; 64 wrong usage.
    """
    with redirect_stdout(_Printable(sys.stdout)), redirect_stderr(_Printable(sys.stderr)):
        return _main(list(sys.argv[1:] if argv is None else argv))


class _Printable:
    """A stream that escapes control characters: a record, a schema or a contract could drive the terminal by them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(printable(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _main(given: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        chosen = _parser().parse_args(given)
    except SystemExit as stop:  # argparse exits with 2, which means "try again" here
        return 64 if stop.code else 0
    command: Command = chosen.run
    return _run_guarded(lambda: command(chosen))


def _run_guarded(command: Callable[[], int]) -> int:
    try:
        code = command()
        sys.stdout.flush()
    except SluiceError as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        _print_error(error)
        return exit_code(error)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - a message instead of a stack trace
        if os.environ.get(DEBUG):
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError) and not (error.name or "sluice").startswith("sluice"):
            print(f"error: the Python module {error.name} is not installed", file=sys.stderr)
            print("  next step: install sluice[airflow], for the demo sluice[embedded]", file=sys.stderr)
            return 3
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"This is a bug in Sluice; Set {DEBUG}=1 to see the stack trace.", file=sys.stderr)
        return 1
    return code


def _print_error(error: SluiceError) -> None:
    print(f"error: {error.message}", file=sys.stderr)
    fields = ", ".join(f"{name} {value}" for name, value in error.fields.items() if value is not None)
    if fields:
        print(f"  where: {fields}", file=sys.stderr)
    if error.next_step:
        print(f"  next step: {error.next_step}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sluice",
        description="Kafka topics into Iceberg tables, exactly once. Contracts: SLUICE_CONTRACTS; the catalog: "
        "PYICEBERG_CATALOG__LAKE__…; Kafka: SLUICE_KAFKA_CONFIG or KAFKA_BOOTSTRAP_SERVERS.",
        epilog="Exit codes: 0 done, 2 a service did not answer (try again), 3 action required, 64 wrong usage.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    status = commands.add_parser(
        "status", help="state of each table: committed offsets, lag, last commit, open problems"
    )
    status.add_argument("table", nargs="?", metavar="TABLE", help="one table, with its partitions")
    status.add_argument("--details", action="store_true", help="the partitions of every table")
    status.add_argument("--json", action="store_true", help="everything, as JSON")
    status.set_defaults(run=_status)

    at = commands.add_parser("at", help="which offsets a table held at a time, and in which snapshot")
    at.add_argument("table", metavar="TABLE")
    at.add_argument("time", metavar="TIME", help="with its time zone, like 2026-11-22T09:30:00Z")
    at.add_argument("--json", action="store_true", help="as JSON")
    at.set_defaults(run=_at)

    plan = commands.add_parser("plan", help="show what the next run of a group would do")
    plan.add_argument("group", metavar="GROUP")
    plan.set_defaults(run=_plan)

    contract = commands.add_parser("contract", help="check and test contracts").add_subparsers(
        required=True, metavar="COMMAND"
    )
    check = contract.add_parser("check", help="show every problem as file:line, and which tables would be created")
    check.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="default: SLUICE_CONTRACTS")
    check.set_defaults(run=_contract_check)

    test = contract.add_parser("test", help="run sample records through a contract; writes nothing")
    test.add_argument("table", metavar="TABLE")
    source = test.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, metavar="JSONL", help='a record per line: {"key": …, "value": …}')
    source.add_argument("--from-topic", type=_positive_int, metavar="N", help="the newest N records of the topic")
    test.add_argument("--topic", default="", metavar="TOPIC", help="if the table reads several topics, or a pattern")
    test.set_defaults(run=_contract_test)

    sql.add_command(commands)
    airflow.add_command(commands, _load_contracts, _positive_int)
    demo = commands.add_parser(
        "demo",
        help="run Sluice on real records, end to end, and check the result (make demo)",
        description="Moves real records through Kafka, Airflow and Spark into tables, and checks them. Uses the "
        "stack in SLUICE_HOME; a stack that was not running is started, and stopped at the end. The data stays.",
    )
    demo.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    demo.set_defaults(run=_demo)
    actions = (*operate.add_commands(commands, _load_contracts), schema.add_commands(commands, _load_contracts))
    for each in (status, at, plan, test, *ledger.add_commands(commands, _load_contracts, _positive_int), *actions):
        each.add_argument(
            "--patience",
            type=_positive_seconds,
            default=10.0,
            metavar="SECONDS",
            help="wait this long for a first answer (default 10)",
        )
    return parser


def _positive_int(text: str) -> int:
    return _positive_number(text, int, "whole number above 0")


def _positive_seconds(text: str) -> float:
    """Seconds. Clients take a negative number for "no limit", and can't handle infinity."""
    expected = f"number of seconds above 0, up to {MAX_PATIENCE:,.0f}"
    return _positive_number(text, float, expected, most=MAX_PATIENCE)


def _positive_number(text: str, kind: Callable[[str], Number], expected: str, most: float = math.inf) -> Number:
    try:
        number = kind(text)
    except ValueError:
        number = kind("0")
    if not 0 < number <= most:  # false for `nan` as well
        raise argparse.ArgumentTypeError(f"{text!r} is not a {expected}")
    return number


def _load_contracts() -> Contracts:
    """The valid contracts; a broken file causes a warning."""
    from sluice.contract import folder as contract_folder

    found = contract_folder.load_contracts(strict=False)
    for problem in found.problems:
        print(f"warning: {problem}", file=sys.stderr)
    return found


def _status(given: argparse.Namespace) -> int:
    from sluice.status import status, text

    only = [given.table] if given.table else None
    found = status.read_status(_load_contracts(), only, patience=given.patience)
    if given.json:
        print(json.dumps(text.as_json(found) | {"unclaimed": found.unclaimed}, indent=2))
    else:
        print(text.as_text(found, details=bool(given.table) or given.details))
    return max((exit_code(e) for e in found.errors), default=0)


def _at(given: argparse.Namespace) -> int:
    from sluice.backfill.ranges import parse_time
    from sluice.iceberg import availability, table_names, tables
    from sluice.plan import resolve_topics
    from sluice.status import text, timeline

    asked = parse_time(given.time, "TIME") or datetime.now(UTC)
    catalog = availability.open_catalog(given.patience)
    with availability.translate_catalog_errors():
        contract = resolve_topics.resolve(_load_contracts(), catalog, None).table(given.table)
        table = tables.load(catalog, table_names.typed(contract))
        found = timeline.find_table_as_of(table, asked) if table else None
    if given.json:
        print(json.dumps(text.to_json_types(found), indent=2))
    else:
        print(text.table_as_of_text(given.table, asked, found))
    return 0


def _plan(given: argparse.Namespace) -> int:
    from sluice.iceberg import availability
    from sluice.kafka import broker
    from sluice.ledger import offsets_table
    from sluice.ledger.offsets_table import Ledger
    from sluice.plan import plan, resolve_topics
    from sluice.plan.model import PlanInputs

    known = _load_contracts()
    known.group(given.group)
    client = broker.connect(given.patience)
    catalog = availability.open_catalog(given.patience)
    existing = offsets_table.load_ledger_table(catalog)
    with availability.translate_catalog_errors():
        known = resolve_topics.resolve(known, catalog, client)
        ledger = Ledger(catalog, existing) if existing else None
        found = plan.make_plan(known.group(given.group), PlanInputs(known, catalog, client, ledger))
    print("\n".join(found.lines()))
    return max(map(exit_code, found.stops.values()), default=0)


def _contract_check(given: argparse.Namespace) -> int:
    from sluice.contract import folder as contract_folder

    found = contract_folder.load_contracts(given.folder, strict=False)
    for problem in found.problems:
        print(problem)
    number = len(found.tables) + len(found.templates)
    valid = f"{number} of the contracts in {found.folder} are valid"
    if not found.problems:
        valid = f"{number} contract(s) in {found.folder}, all valid"
    print(f"{valid}; groups: {', '.join(found.groups) or 'none'}")
    for contract in (*found.tables.values(), *found.templates.values()):
        if contract.topic_pattern:
            print(
                f"{contract.table}: `plan {contract.group}` shows which topics match `{contract.topic_pattern.pattern}`"
            )
    mismatches = _compare_with_tables(found)
    return 3 if found.problems or mismatches else 0


def _contract_test(given: argparse.Namespace) -> int:
    from sluice.cli import contract_test
    from sluice.evolve import auto_columns
    from sluice.plan import resolve_topics

    contract = auto_columns.resolve_columns(
        resolve_topics.resolve_contract(_load_contracts(), given.table, given.topic)
    )
    return contract_test.run_test(contract, given.file, given.from_topic or 0, given.topic, given.patience)


def _demo(given: argparse.Namespace) -> int:
    from sluice import demo

    return demo.main(keep=given.keep)


def _compare_with_tables(found: Contracts) -> int:
    """Print which tables would be created or changed; returns how many do not match their contract."""
    from sluice.errors import ConfigError, RetryableError, SchemaChangeError
    from sluice.evolve import evolve
    from sluice.iceberg import availability, table_names, tables

    try:
        catalog = availability.open_catalog()
    except (ConfigError, RetryableError) as error:
        print(f"The tables were not checked: {error.message}")
        return 0
    mismatches = 0
    wanted = {".".join(table_names.typed(c)): table_names.typed(c) for c in found.tables.values()}
    wanted |= {".".join(table_names.staging(t)): table_names.staging(t) for t in found.topics}
    with availability.translate_catalog_errors():
        present = {name for name, identifier in wanted.items() if tables.load(catalog, identifier) is not None}
        for name in wanted:
            if name not in present:
                print(f"would create {name}")
        for contract in found.tables.values():
            if contract.table in present:
                try:
                    asked = evolve.find_pending_change(
                        catalog, catalog.load_table(table_names.typed(contract)), contract
                    ).summary()
                    if asked:
                        print(f"{contract.table}: {asked}")
                except SchemaChangeError as error:
                    mismatches += 1
                    print(f"{contract.table}: {error.message} {error.next_step}")
            elif contract.auto:
                mismatches += schema.print_new_columns(contract)
    print(f"{len(present)} tables exist, {len(wanted) - len(present)} would be created by the first run")
    return mismatches
