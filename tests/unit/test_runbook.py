"""Every command, DAG, task and form field that docs/operating.md names exists."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import main
from sluice.contract.contract import Contract
from sluice.embedded.home import REPOSITORY
from sluice.errors import RetryableError, SluiceError, TerminalError
from sluice.iceberg import schema
from sluice.ledger import ledger_rows, maintenance_table, quality_table, schemas_table, writer_schemas_table
from tests.support.airflow_process import isolated_airflow_env, run_in_airflow
from tests.support.runbook import COMMANDS, SQL, TEXT
from tests.unit.dags.test_dags import LOAD

pytestmark = pytest.mark.unit

WITH_A_LAKE = REPOSITORY / "tests" / "spark"
# By command: the test that runs it, and how. The shell is started once, with a statement; pools need an Airflow.
ELSEWHERE = {
    "sql": ("tests/spark/ingest/test_main_path.py", 'main.main(["sql", '),
    "airflow setup": ("tests/system/cli/test_airflow_setup.py", 'run("sluice", "airflow", "setup", '),
}
BY_HAND = {"Accept a gap": "accept_gap", "Roll a table back": "rollback", "Backfill": "backfill"}


def wanting_nothing(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser without what it requires by option: the page names a command before it says what to give it."""
    for action in parser._actions:
        if action.option_strings:
            action.required = False
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                wanting_nothing(each)
    for group in parser._mutually_exclusive_groups:
        group.required = False
    return parser


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one(command: str) -> None:
    wanting_nothing(main.make_parser()).parse_args(shlex.split(command))


def test_each_statement_and_command_is_run_by_a_test_in_the_state_that_it_is_about() -> None:
    calls = [
        (node.func.attr, node.args[1].value)
        for file in WITH_A_LAKE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1
        if ast.unparse(node.func.value) == "runbook" and isinstance(node.args[1], ast.Constant)
    ]
    assert len(SQL) > 8 and len(COMMANDS) > 12
    # Of a command that the page names before it says what to give it, the whole is run.
    ran = {kind: [text for each, text in calls if each == kind] for kind in ("run_sql", "run_command")}
    assert [each for each in SQL if not any(each.startswith(text) for text in ran["run_sql"])] == []
    left = {each for each in COMMANDS if not any(text.startswith(each) for text in ran["run_command"])}
    assert left == set(ELSEWHERE)
    for file, call in ELSEWHERE.values():
        assert call in (REPOSITORY / file).read_text()


def test_each_error_is_on_the_page() -> None:
    def below(family: type[SluiceError]) -> Iterator[type[SluiceError]]:
        for each in family.__subclasses__():
            yield from (each, *below(each))

    # Terminal ones of maintenance stand in its section.
    for family, where in ((RetryableError, section("Retryable", "##")), (TerminalError, TEXT)):
        own = [each.__name__ for each in below(family) if not each.__module__.startswith("sluice.embedded")]
        assert len(own) > 10
        assert [name for name in own if f"`{name}`" not in where] == []


def test_the_variables_that_a_driver_gets_are_those_on_the_page() -> None:
    file = REPOSITORY / "plugins" / "sluice_airflow" / "driver_variables.py"
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Tuple)
    }
    (line,) = [each for each in TEXT.splitlines() if "A Spark driver gets only these" in each]
    assert re.findall(r"`([^`]+)`", line) == [*values["NAMES"], *(f"{each}*" for each in values["PREFIXES"])]


def test_the_columns_of_sluices_own_tables_are_those_that_they_have() -> None:
    keys = {"table": "a.b", "topic": "t", "group": "g", "owner": "me", "mode": "upsert", "identifier": ["id"]}
    contract = Contract.model_validate({**keys, "columns": [{"name": "id", "type": "long", "source": "$key"}]})
    schemas_of = {
        "sluice.offsets": ledger_rows.SCHEMA,
        "sluice.quality": quality_table.SCHEMA,
        "sluice.maintenance": maintenance_table.SCHEMA,
        "sluice.schemas": schemas_table.SCHEMA,
        "sluice.writer_schemas": writer_schemas_table.SCHEMA,
        "sluice_staging.<topic>": schema.staging_schema()[0],
        "sluice_quarantine.<table>": schema.quarantine_schema()[0],
        "sluice_deletes.<table>": schema.deletes_schema(contract),
    }
    rows = re.findall(r"^\| `([^`]+)` \| .*? \| (.*) \|$", section("Sluice's own tables", "##"), re.MULTILINE)
    # What a column means stands in brackets, which a link may have within.
    told = {name: re.findall(r"`(\w+)`", re.sub(r"\((?:[^()]|\([^()]*\))*\)", "", cell)) for name, cell in rows}
    there = {name: [n for n in each.column_names if n != "id" and "." not in n] for name, each in schemas_of.items()}
    assert told == there
    for name, states in (("sluice.offsets", ledger_rows.LedgerState), ("sluice.schemas", schemas_table.SchemaState)):
        assert f"`state` ({', '.join(states)})" in dict(rows)[name]


def section(title: str, level: str = "###") -> str:
    """What stands under a heading, without what is general to all that is done by hand."""
    found = re.search(rf"^{level} {title}$(.*?)^#", TEXT, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("airflow")
    (folder / "contracts").mkdir()
    (folder / "contracts" / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    (folder / "contracts" / "groups.yaml").write_text("alerts: {}\n")
    env = {
        **isolated_airflow_env(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "SLUICE_CONTRACTS": str(folder / "contracts"),
    }
    found = run_in_airflow(LOAD, env)
    assert found["errors"] == {}
    return dict(found["dags"])


def test_each_dag_and_task_is_there(dags: dict[str, Any]) -> None:
    lists = re.findall(r"\bDAGs?((?:(?:,|\s+and)?\s+`[a-z_<>]+`(?: \(\w+\))?)+)", TEXT)
    named = {name for each in lists for name in re.findall(r"`([a-z_<>]+)`", each)}
    named |= set(re.findall(r"`((?:ingest|maintain)_[a-z_<>]+)`", TEXT))
    there = {name.replace("<group>", "shop") for name in named}
    assert there >= {"alerts", "accept_gap", "rollback", "backfill", "review_schema", "ingest_shop"}
    assert there <= set(dags)
    tasks = {task for dag in dags.values() for task in dag["tasks"]}
    assert {t.replace("<group>", "shop") for t in re.findall(r"\btask `([a-z_<>]+)`", TEXT)} <= tasks


@pytest.mark.parametrize("title", BY_HAND)
def test_each_field_of_a_form_is_told_of_and_is_there(dags: dict[str, Any], title: str) -> None:
    fields = {dag: set(dags[dag]["params"]) for dag in BY_HAND.values()}
    mine = fields[BY_HAND[title]]
    general = re.search(r"^## By hand$(.*?)^#", TEXT, re.MULTILINE | re.DOTALL)
    assert general
    words = set(re.findall(r"`([a-z_]+)`", section(title)))
    assert mine - words - set(re.findall(r"`([a-z_]+)`", general[1])) == set()
    others = {each for dag in fields.values() for each in dag} - mine
    assert words & others == set()


def test_what_maintenance_is_given_by_hand_is_there(dags: dict[str, Any]) -> None:
    for action in ("rewrite_data_files", "expire_snapshots", "remove_orphan_files"):
        lists = ["dry_run"] if action == "remove_orphan_files" else []
        assert dags[f"maintain_{action}"]["params"] == ["tables", *lists]
    assert "each takes `tables`" in TEXT.replace("\n", " ")
