"""What commands share: help with examples, the options `--json` and `--patience`, completion, contracts."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.dag_ids import COMMAND_RUN_PREFIX
from sluice.errors import RefusedError
from sluice.operate import operator_input

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.contract.folder import Contracts

Command = Callable[[argparse.Namespace], int]
Number = TypeVar("Number", int, float)
MAX_PATIENCE = 86_400.0
UNCHANGED = "Nothing was changed. Add --why REASON --yes to apply it."


def program_name() -> str:
    """How the command line was started: by its console script, or by Python's `-m`."""
    return "sluice" if Path(sys.argv[0]).name in ("sluice", "sluice.exe") else "python -m sluice"


class Parser(argparse.ArgumentParser):
    """A parser that shows its description and examples line by line, and takes no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **settings})


def add_group(commands: Any, name: str, about: str) -> Any:
    """Add a group of commands; returns argparse's subparsers.

    Args:
        commands: argparse's subparsers.
        name: the group's name.
        about: one line of help.
    """
    parser = commands.add_parser(name, help=about, description=f"{about}.")
    return parser.add_subparsers(required=True, metavar="COMMAND")


def add_command(commands: Any, name: str, run: Command, about: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        commands: argparse's subparsers.
        name: the command's name.
        run: carries it out and returns the exit code.
        about: one line of help.
        examples: arguments of the command, as one would type them.
    """
    lines = [f"  %(prog)s {each}".replace("%", "%%").replace("%%(prog)s", "%(prog)s").rstrip() for each in examples]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.".replace("%", "%%"),
        epilog="\n".join([f"example{'s' if len(lines) > 1 else ''}:", *lines]),
    )
    parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that prints facts."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs; errors still go to stderr")


def add_patience(parser: argparse.ArgumentParser, seconds: float = 10.0) -> None:
    """Add the option of a command that asks services."""
    parser.add_argument(
        "--patience",
        type=positive_seconds,
        default=seconds,
        metavar="SECONDS",
        help=f"wait this long for a first answer (default {seconds:g})",
    )


def add_decision(command: argparse.ArgumentParser) -> None:
    """Add the options of a command that changes something by hand: the reason, and that it is to be done."""
    command.add_argument("--why", default="", metavar="REASON", help="the reason for --yes; recorded with your name")
    command.add_argument("--yes", action="store_true", help="apply it; without it, only show what would be done")
    command.set_defaults(refuse=command.error)


def check_decision(given: argparse.Namespace) -> None:
    """Ask for a reason where something is done by hand; a preview needs none."""
    if getattr(given, "yes", False) and not given.why.strip():
        given.refuse("--yes needs --why REASON: it is recorded with your name")


def add_table(parser: argparse.ArgumentParser, *, optional: bool = False, about: str | None = None) -> None:
    """Add the argument `table`, which a shell completes from the contracts."""
    named = parser.add_argument("table", metavar="TABLE", help=about, **({"nargs": "?"} if optional else {}))  # type: ignore[arg-type]
    named.completer = lambda **_: _names("tables")  # type: ignore[attr-defined]


def add_ingest_group(parser: argparse.ArgumentParser) -> None:
    """Add the argument `group`, which a shell completes from the contracts."""
    named = parser.add_argument("group", metavar="GROUP", help="a group of contracts")
    named.completer = lambda **_: _names("groups")  # type: ignore[attr-defined]


def _names(kind: str) -> list[str]:
    from sluice.contract import folder as contract_folder

    return list(getattr(contract_folder.load_contracts(strict=False), kind))


def positive_int(text: str) -> int:
    """Parse a whole number above 0."""
    return _positive_number(text, int, "whole number above 0")


def positive_seconds(text: str) -> float:
    """Parse seconds. Clients take a negative number for "no limit", and can't handle infinity."""
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


def ranges(text: str) -> dict[int, tuple[int, int]]:
    """Parse offsets per partition from JSON."""
    try:
        return operator_input.parse_ranges_json(text)
    except RefusedError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def next_offsets(text: str) -> dict[str, dict[int, int]]:
    """Parse the next offset of each topic and partition from JSON."""
    try:
        return operator_input.parse_offsets_json(text)
    except RefusedError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def load_contracts() -> Contracts:
    """The valid contracts; a broken file causes a warning."""
    from sluice.contract import folder as contract_folder

    found = contract_folder.load_contracts(strict=False)
    for problem in found.problems:
        print(f"warning: {problem}", file=sys.stderr)
    return found


@contextmanager
def open_tables(patience: float) -> Iterator[tuple[Catalog, Contracts]]:
    """Yield the catalog, and the contracts with the topics that it knows. Errors of the catalog become Sluice's."""
    from sluice.iceberg import availability
    from sluice.plan import resolve_topics

    known = load_contracts()
    catalog = availability.open_catalog(patience)
    with availability.translate_catalog_errors():
        yield catalog, resolve_topics.resolve(known, catalog, None)


def new_run_id() -> str:
    """The id of a run that a command starts, as Airflow's ids say what started theirs."""
    return f"{COMMAND_RUN_PREFIX}{datetime.now(UTC).isoformat()}"


def is_completing() -> bool:
    """Whether a shell asks for completions."""
    return "_ARGCOMPLETE" in os.environ
