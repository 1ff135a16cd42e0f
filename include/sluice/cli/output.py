"""Prints what a command found: JSON with `--json`, else text; on a terminal with tables and colours by rich.

Control characters are escaped: a record, a schema or a contract could drive the terminal by them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sluice.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    **dict.fromkeys(("blocked", "stopped", "failed", "late", "missing", "FAILED", "stop", "!"), "bold red"),
    **dict.fromkeys(("review", "doubtful", "at risk", "backfill refused", "behind", "no answer", "warn"), "yellow"),
    **dict.fromkeys(("reading", "fresh", "published", "ok", "done", "passed"), "green"),
    **dict.fromkeys(("unknown", "new", "idle", "skipped"), "dim"),
}
"""The colour of a state, where it is a whole cell or the first word of a line."""


class Printable:
    """A stream that escapes control characters."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        return int(self.stream.write(printable(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def show(given: argparse.Namespace, facts: Any, text: Callable[[], None]) -> None:
    """Print facts as JSON if `--json` was given, else call `text`, which prints them for people.

    Args:
        given: the parsed arguments.
        facts: dataclasses, maps, lists and plain values; times and ranges become JSON's types.
        text: prints.
    """
    if given.json:
        from sluice.status.text import to_json_types

        print(json.dumps(to_json_types(facts), indent=2))
    else:
        text()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; on a terminal, one that begins with a state has its colour.

    A line feed within a line is shown as such: what an error or another engine's property holds is no line of its own.
    """
    terminal = _terminal()
    for line in (each.replace("\n", "\\n") for each in lines):
        style = STYLES.get(line.split(maxsplit=1)[0].rstrip(":")) if line.strip() else None
        if terminal and style:
            terminal.print(_styled(line, style), soft_wrap=True)
        else:
            print(line)


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """Print a table: on a terminal as wide as it is, else with aligned columns and one line per row.

    Args:
        head: the columns' names.
        rows: the cells.
        right: the columns that are aligned to the right.
    """
    cells = [[printable(str(each)) for each in row] for row in rows]
    numbers = set(right)
    if terminal := _terminal():
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i in numbers else "left", overflow="fold")
        for row in cells:
            table.add_row(*(_styled(each, STYLES.get(each, "")) for each in row))
        terminal.print(table)
        return
    from sluice.status.text import format_grid

    flat = [[" ".join(each.split("\n")) for each in row] for row in cells]
    print(format_grid([list(head), *flat], left=[i for i in range(len(head)) if i not in numbers]))


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show what is being done, and for how long, if standard error is a terminal; erase it at the end."""
    stream = sys.stderr.stream if isinstance(sys.stderr, Printable) else sys.stderr
    if not stream.isatty():
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=_console(stream),
        transient=True,
        redirect_stdout=False,  # else what is printed meanwhile would go to standard error
        redirect_stderr=False,
    ) as shown:
        shown.add_task(printable(text), total=None)
        yield


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair per line."""
    for name, value in facts.items():
        print(f"  {name:17} {value}")


def _styled(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(printable(text), style=style)


def _terminal() -> Console | None:
    """Rich's console if standard output is a terminal. It writes past `Printable`, which would escape its colours."""
    stream = sys.stdout.stream if isinstance(sys.stdout, Printable) else sys.stdout
    return _console(stream) if stream.isatty() else None


def _console(stream: Any) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)
