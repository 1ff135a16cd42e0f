"""Writes docs/reference/cli.md: every command with its arguments and examples, as the parsers have them.

`make cli-reference` runs it. A unit test fails when the page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "include"))

from sluice.cli import main  # noqa: E402
from sluice.cli.arguments import program_name  # noqa: E402

PAGE = REPOSITORY / "docs" / "reference" / "cli.md"
INTRODUCTION = """\
# Commands

`sluice COMMAND`, or `python -m sluice COMMAND` where only the package is on `PYTHONPATH`. This page is generated from
the commands' own help (`make cli-reference`).

- **Settings** come from the environment: the folder of contracts from `SLUICE_CONTRACTS`, the catalog from PyIceberg's
  configuration, Kafka from `SLUICE_KAFKA_CONFIG` or `KAFKA_BOOTSTRAP_SERVERS`, the registry from `SCHEMA_REGISTRY_URL`
  ([all of them](environment.md)). Without settings of Kafka or the registry in the environment,
  and where Airflow is installed and configured, its connections `sluice_kafka` and `sluice_registry` are used;
  `sluice doctor` shows which source was used.
- **Exit codes**: 0 done; 2 a service did not answer, try again; 3 action required; 64 wrong usage; 1 a bug in Sluice.
  `status` exits with 0 if all services answered, even if a table is blocked: its text says so, and `--json` has it as
  `problems` and `last_error`. It exits with 3 if a [template's](../guides/routing.md#a-table-for-each-topic) pattern
  matches no topic, or one whose name can't be a table's. `plan` exits with 3 if a table would stop.
- **`--json`** prints one JSON document on standard output. Times are ISO 8601 in UTC, offset ranges are
  `[start, end)`. Warnings, errors and progress go to standard error.
- **`--yes`** carries out an operator's decision; without it, the command only shows what it would do. `--yes` needs
  `--why`: the reason is recorded with your name.
- **On a terminal** there are tables and colours; `NO_COLOR=1` turns the colours off. In a pipe the text is plain.
  Control characters in records and names are always escaped.
- **Completion**: `sluice completion bash` (or `zsh`, `fish`) prints the script for your shell. It completes tables and
  groups too.
- **Without Airflow**: `run`, `backfill run` and `maintain run` do the work of one DAG run, with Spark on this machine
  and the group's memory, settings and timeout. The group's Airflow connection and pool are not used.
"""


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands that can be run, in the order of the help."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for each in action.choices.values():
            yield from commands(each)


def page() -> str:
    """The whole page, as Markdown."""
    started = program_name()
    parts = [INTRODUCTION]
    for command in commands(main.make_parser()):
        # The usage line is wrapped by the terminal's width; the table has its parts.
        command.prog = command.prog.replace(started, "sluice")
        parts.append("\n".join(_section(command)))
    return "\n".join(parts)


def _section(command: argparse.ArgumentParser) -> list[str]:
    lines = [f"## {command.prog}", "", *(command.description or "").split("\n"), ""]
    rows = [_row(action) for action in command._actions if not isinstance(action, argparse._HelpAction)]
    if rows:
        lines += ["| argument | meaning |", "| --- | --- |", *rows, ""]
    examples = (command.epilog or "").replace("%(prog)s", command.prog).replace("%%", "%").split("\n")[1:]
    return [*lines, "```", *(each.strip() for each in examples), "```", ""]


def _row(action: argparse.Action) -> str:
    name = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if action.option_strings:
        text = " ".join(filter(None, [action.option_strings[0], None if action.nargs == 0 else str(name)]))
    else:
        text = {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), str(name))
    choices = f"one of {', '.join(map(str, action.choices))}" if action.choices and action.metavar is None else ""
    described = argparse.HelpFormatter("sluice")._expand_help(action) if action.help else ""  # with its default
    about = "; ".join(filter(None, [described, choices])) or f"the {action.dest}"
    return f"| `{_cell(text)}` | {_cell(about)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
