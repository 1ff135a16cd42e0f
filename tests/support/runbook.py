"""Runs the SQL statements and commands of docs/operating.md as written there, so that the page stays correct."""

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

TEXT = (REPOSITORY / "docs" / "operating.md").read_text()
# Markdown's code spans: they end with as many backticks as they begin with, and may contain fewer.
CODE = [re.sub(r"\s+", " ", each) for _, each in re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", TEXT, re.DOTALL)]
SQL = sorted({each for each in CODE if re.match(r"(SELECT|CALL|ALTER TABLE|DROP TABLE|DELETE|UPDATE|INSERT) \S", each)})
COMMANDS = sorted({each.removeprefix("python -m sluice ") for each in CODE if each.startswith("python -m sluice ")})


def run_sql(it: Lake, beginning: str, **names: Any) -> list[Row]:
    """Run the page's statement with this beginning, in a session like that of `python -m sluice sql`.

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


def run_command(it: Lake, text: str, *more: str, **names: str) -> str:
    """Run a command of the page; return its output.

    Args:
        it: The tables.
        text: The command without `python -m sluice`.
        more: Further options.
        names: The values for the names in capitals.
    """
    assert text in COMMANDS, f"docs/operating.md has no `python -m sluice {text}`"
    arguments = [names.get(each, each) for each in shlex.split(text)]
    assert not [each for each in arguments if re.fullmatch("[A-Z_]+", each)], arguments
    settings = {"SLUICE_CONTRACTS": str(it.folder), "KAFKA_BOOTSTRAP_SERVERS": it.bootstrap}
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, settings), redirect_stdout(out), redirect_stderr(err):
        code = main.main([*arguments, *more])
    assert code == 0, (arguments, code, out.getvalue(), err.getvalue())
    return out.getvalue()
