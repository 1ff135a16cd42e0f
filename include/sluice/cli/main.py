"""The command line `sluice`, or `python -m sluice`: parses arguments, runs a command, turns errors into exit codes.

Each group of commands has a module with `add_commands`. Commands import what they need when they run, so that `--help`
and `contract check` start fast.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout

from sluice import __version__
from sluice.cli import (
    airflow,
    backfill,
    completion,
    cost,
    demo,
    doctor,
    ledger,
    maintain,
    operate,
    pilot,
    plan,
    quarantine,
    rehearse,
    schema,
    sql,
    status,
)
from sluice.cli.arguments import Command, Parser, check_decision, is_completing, program_name
from sluice.cli.contract import commands as contract_commands
from sluice.cli.output import Printable
from sluice.errors import SluiceError, exit_code
from sluice.kafka import airflow_connections

DEBUG = "SLUICE_DEBUG"
GROUPS = (
    status,
    plan,
    contract_commands,
    quarantine,
    schema,
    operate,
    backfill,
    maintain,
    rehearse,
    pilot,
    ledger,
    cost,
    sql,
    airflow,
    doctor,
    demo,
    completion,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 done; 1 a bug; 2 a service did not answer, try again; 3 action required; 64 wrong usage.
    """
    with redirect_stdout(Printable(sys.stdout)), redirect_stderr(Printable(sys.stderr)):
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(given: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    parser = make_parser()
    if is_completing():
        import argcomplete

        argcomplete.autocomplete(parser)
    try:
        chosen = parser.parse_args(given)
        check_decision(chosen)
    except SystemExit as stop:  # argparse exits with 2, which means "try again" here
        return 64 if stop.code else 0
    command: Command = chosen.run
    with airflow_connections.allow_lookup():
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
    if error.where:
        print(f"  where: {error.where}", file=sys.stderr)
    if error.next_step:
        print(f"  next step: {error.next_step}", file=sys.stderr)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog=program_name(),
        description="Kafka topics into Iceberg tables, exactly once.\n\n"
        "The folder of contracts is SLUICE_CONTRACTS; the catalog PYICEBERG_CATALOG__LAKE__… or .pyiceberg.yaml;\n"
        "Kafka SLUICE_KAFKA_CONFIG or KAFKA_BOOTSTRAP_SERVERS; the registry SCHEMA_REGISTRY_URL.\n"
        "Without these, Airflow's connections sluice_kafka and sluice_registry are used, where it is configured.\n"
        "`doctor` shows which source was used.",
        epilog="examples:\n  %(prog)s doctor\n  %(prog)s status\n  %(prog)s COMMAND --help\n\n"
        "exit codes: 0 done, 2 a service did not answer (try again), 3 action required, 64 wrong usage",
    )
    parser.add_argument("--version", action="version", version=f"sluice {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in GROUPS:
        group.add_commands(commands)
    return parser
