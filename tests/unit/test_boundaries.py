"""The import rules of docs/design.md, which ruff checks only partly."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit

HEAVY = {"pyspark", "great_expectations", "pyiceberg"}


class Rule(NamedTuple):
    """What a folder must not import: anywhere, and at the top of a module."""

    never: set[str]
    top: set[str]
    only: set[str] | None = None  # third-party roots that are allowed; None: not limited


RULES = {
    "dags": Rule(never={"jobs", "plugins"}, top=HEAVY),
    "jobs": Rule(never={"airflow", "dags", "plugins"}, top=set(), only={"pyspark", "sluice"}),
    "include/sluice": Rule(never={"airflow", "dags", "jobs", "plugins"}, top={"great_expectations"}),
    "plugins": Rule(never={"pyspark", "dags", "jobs"}, top=HEAVY),
}
# What DAG files and pages import at the top: these must stay light.
LIGHT = [
    "sluice",
    "sluice.errors",
    "sluice.contract.contract",
    "sluice.contract.folder",
    "sluice.kafka.connections",
    "sluice.status.verdicts",
]
LIGHT += [f"sluice.pages.{name}" for name in ("failed_runs", "feed", "render", "table_operations")]


class Import(NamedTuple):
    """One import: its root package, its line, and whether it is paid when the module is loaded."""

    root: str
    line: int
    top: bool


def imports(tree: ast.Module) -> Iterator[Import]:
    def walk(node: ast.AST, top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name.split(".")[0], child.lineno, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"relative import in line {child.lineno}"
                yield Import((child.module or "").split(".")[0], child.lineno, top)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                # Never executed: for the type checker alone. Who may be known at all still holds.
                yield from (each._replace(top=False) for each in walk(child, top))
            else:
                inner = top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, inner)

    yield from walk(tree, True)


def modules(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).rglob("*.py"))


def breaches(source: str, rule: Rule) -> list[str]:
    found = []
    for each in imports(ast.parse(source)):
        if each.root in rule.never:
            found.append(f"line {each.line}: {each.root} is out of bounds")
        elif each.top and each.root in rule.top:
            found.append(f"line {each.line}: {each.root} only inside a function")
        elif rule.only is not None and each.root not in rule.only | sys.stdlib_module_names:
            found.append(f"line {each.line}: {each.root} is not one of {', '.join(sorted(rule.only))}")
    return found


@pytest.mark.parametrize("folder", RULES)
def test_every_module_keeps_the_boundaries_of_its_folder(folder):
    found = {str(path): breaches(path.read_text(), RULES[folder]) for path in modules(folder)}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_package_is_there_to_be_checked():
    assert modules("include/sluice")


@pytest.mark.parametrize(
    ("folder", "source", "count"),
    [
        ("dags", "import pyspark.sql", 1),
        ("dags", "def task():\n    import pyspark", 0),
        ("dags", "def task():\n    from jobs.ingest import main", 1),
        ("dags", "class A:\n    import pyiceberg", 1),
        ("dags", "try:\n    import great_expectations as gx\nexcept ImportError: pass", 1),
        ("jobs", "def f():\n    from airflow.sdk import dag", 1),
        ("jobs", "import json, pyspark\nfrom sluice.ingest import run", 0),
        ("jobs", "import requests", 1),
        ("include/sluice", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import airflow", 1),
        ("include/sluice", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import great_expectations", 0),
        ("plugins", "def f():\n    import pyspark", 1),
    ],
)
def test_the_check_sees_a_breach(folder, source, count):
    assert len(breaches(source, RULES[folder])) == count


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module):
    code = f"import sys, {module}; print(*sorted({HEAVY | {'airflow', 'confluent_kafka'}!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(REPOSITORY / "include")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_the_map_of_the_rooms_is_what_the_code_is() -> None:
    sys.path.insert(0, str(REPOSITORY / ".ci"))
    import rooms

    for page, text in rooms.pages().items():
        assert page.read_text(encoding="utf-8") == text, "run: make rooms"


def test_the_tables_of_types_are_what_the_decoders_do() -> None:
    sys.path.insert(0, str(REPOSITORY / ".ci"))
    import type_tables

    text = type_tables.PAGE.read_text(encoding="utf-8")
    assert type_tables.with_tables(text) == text, "run: make type-tables"


def test_the_page_of_the_commands_is_what_their_help_says() -> None:
    sys.path.insert(0, str(REPOSITORY / ".ci"))
    import cli_reference

    assert cli_reference.PAGE.read_text(encoding="utf-8") == cli_reference.page(), "run: make cli-reference"
