"""Runs the SQL statements and commands of docs/operate and docs/guides as written there, so that they stay correct."""

from __future__ import annotations

import io
import os
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

from pyspark.sql import Row

from sluice.cli import main
from sluice.embedded.home import REPOSITORY
from sluice.iceberg import table_names
from tests.support.lake import Lake

PAGES = {
    page: page.read_text("utf-8")
    for name in ("operate", "guides")
    for page in sorted((REPOSITORY / "docs" / name).glob("*.md"))
}
TEXT = "\n".join(PAGES.values())
REPAIRS = "\n".join(text for page, text in PAGES.items() if page.parent.name == "operate")
# Blocks of code with their language, and code spans. A span ends with as many backticks as it begins with, and may
# contain fewer.
_BLOCK = re.compile(r"^```(\w*)$\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of code in this language."""
    return [block for name, block in _BLOCK.findall(text) if name == language]


def spans(text: str) -> list[str]:
    """Return the code spans, each on one line."""
    return [re.sub(r"\s+", " ", each) for _, each in _SPAN.findall(_BLOCK.sub("", text))]


_STATEMENT = re.compile(r"(SELECT|CALL|ALTER TABLE|DROP TABLE|DELETE|UPDATE|INSERT) \S")
_COMMAND = re.compile(r"(?:python -m )?sluice (?=[a-z])")
_SHELL = re.compile(r" (?:>|\||&&) ")
SQL = sorted({each for each in (*spans(REPAIRS), *map(str.strip, blocks(REPAIRS, "sql"))) if _STATEMENT.match(each)})
"""The statements of docs/operate, which repair tables; those of the guides show what is in one."""
_LINES = [line for block in blocks(TEXT, "") for line in block.splitlines()]
COMMANDS = sorted(
    {_SHELL.split(_COMMAND.sub("", each, count=1))[0] for each in (*spans(TEXT), *_LINES) if _COMMAND.match(each)}
)


def run_sql(it: Lake, beginning: str, **names: Any) -> list[Row]:
    """Run the pages' statement with this beginning, in a session like that of `sluice sql`.

    Args:
        it: The tables.
        beginning: The beginning of the statement.
        names: The values for the names in angle brackets.
    """
    (statement,) = (each for each in SQL if each.startswith(beginning))
    for name, value in names.items():
        assert f"<{name}>" in statement, f"{statement} has no <{name}>"
        statement = statement.replace(f"<{name}>", str(value))
    assert not re.search(r"<\w+>|…", statement), statement
    session = it.spark.newSession()
    session.conf.set("spark.sql.defaultCatalog", table_names.catalog_name())
    return session.sql(statement).collect()


def run_command(it: Lake, text: str, *more: str, refused: bool = False, **names: str) -> str:
    """Run a command of the pages; return its output, or if it is to be refused, the error.

    Args:
        it: The tables.
        text: The command without `sluice`.
        more: Further options.
        refused: It ends with an error.
        names: The values for the names in capitals.
    """
    assert text in COMMANDS, f"docs/operate and docs/guides have no `sluice {text}`"
    arguments = [names.get(each, each) for each in shlex.split(text)]
    assert not [each for each in arguments if re.fullmatch("[A-Z_]+", each)], arguments
    settings = {"SLUICE_CONTRACTS": str(it.folder), "KAFKA_BOOTSTRAP_SERVERS": it.bootstrap}
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, settings), redirect_stdout(out), redirect_stderr(err):
        code = main.main([*arguments, *more])
    assert (code != 0) == refused, (arguments, code, out.getvalue(), err.getvalue())
    return err.getvalue() if refused else out.getvalue()
