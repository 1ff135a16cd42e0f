"""Every command, DAG, task and form field that docs/operate and docs/guides name exists; their code is valid."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cli import main
from sluice.contract.document import Problem
from sluice.contract.groups import AlertSettings, read_groups
from sluice.embedded.home import REPOSITORY
from sluice.errors import RetryableError
from sluice.offsets import OffsetRange, encode_ranges
from sluice.pages.table_operations import TableOperations
from tests.support.airflow_process import isolated_airflow_env, run_in_airflow
from tests.support.runbook import COMMANDS, SQL, TEXT, blocks
from tests.unit.dags.test_dags import LOAD
from tests.unit.pages.test_operations import EVERYTHING, every, table

pytestmark = pytest.mark.unit

WITH_A_LAKE = REPOSITORY / "tests" / "spark"
# By command: the test that runs it otherwise than by `tests.support.runbook`, and how. The shell is started once, with
# a statement; pools need an Airflow; others have services of their own.
ELSEWHERE = {
    "sql": ("tests/spark/ingest/test_main_path.py", 'main.main(["sql", '),
    "airflow setup": ("tests/system/cli/test_airflow_setup.py", 'run("sluice", "airflow", "setup", '),
    "backfill run": ("tests/system/cli/test_run.py", 'sluice("backfill", "run", '),
    "maintain run": ("tests/system/cli/test_run.py", 'sluice("maintain", "run", '),
    "compare": ("tests/system/cli/test_run.py", 'sluice("compare", '),
    "contract init": ("tests/system/cli/test_contract_init.py", 'main.main(["contract", "init", '),
    "contract import": ("tests/unit/odcs/test_odcs.py", 'run("import", '),
    "contract export": ("tests/unit/odcs/test_odcs.py", 'run("export", '),
    "contract test": ("tests/spark/cli/test_contract_test.py", 'main.main(["contract", "test", '),
    "contract diff": ("tests/system/cli/test_run.py", 'sluice("contract", "diff", '),
    "quarantine": ("tests/system/cli/test_run.py", 'sluice("quarantine", '),
    "run": ("tests/system/cli/test_run.py", 'sluice("run", '),
    "schema": ("tests/unit/evolve/test_evolve.py", 'sluice("schema", '),
    "schema reject": ("tests/unit/evolve/test_evolve.py", 'sluice("schema", "reject", '),
    "tables": ("tests/system/cli/test_run.py", 'sluice("tables")'),
    "rehearse": ("tests/system/cli/test_rehearse.py", 'main.main(["rehearse", '),
    "cost": ("tests/system/cli/test_run.py", 'sluice("cost", '),
    "doctor": ("tests/system/cli/test_doctor.py", 'main.main(["doctor", '),
}
# By page: the DAG whose form it describes.
FORMS = {
    "gaps.md": "accept_gap",
    "blocked-tables.md": "publish_blocked",
    "rollback.md": "rollback",
    "backfill.md": "backfill",
}
OPERATE = REPOSITORY / "docs" / "operate"
GUIDES = REPOSITORY / "docs" / "guides"


def wanting_nothing(parser: argparse.ArgumentParser, *, bare: bool) -> argparse.ArgumentParser:
    """The parser without the options that it requires: the pages name a command before they say what to give it.

    Args:
        parser: The parser.
        bare: Whether arguments are not required either.
    """
    for action in parser._actions:
        if action.option_strings:
            action.required = False
        elif isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                wanting_nothing(each, bare=bare)
        elif bare:
            action.nargs = "*" if action.nargs == "+" else "?"
    for group in parser._mutually_exclusive_groups:
        group.required = False
    return parser


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one(command: str) -> None:
    words = shlex.split(command)
    wanting_nothing(main.make_parser(), bare=shape(words)[0] == command).parse_args(words)


def shape(words: list[str]) -> tuple[str, set[str]]:
    """The command's name, and its options."""
    name = " ".join(itertools.takewhile(re.compile("[a-z][a-z-]*").fullmatch, words))
    return name, {word.partition("=")[0] for word in words if word.startswith("--")}


def test_each_statement_and_command_is_run_by_a_test_in_the_state_that_it_is_about() -> None:
    calls = [
        (node.func.attr, [each.value for each in node.args[1:] if isinstance(each, ast.Constant)])
        for file in WITH_A_LAKE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1
        if ast.unparse(node.func.value) == "runbook" and isinstance(node.args[1], ast.Constant)
    ]
    assert len(SQL) > 8 and len(COMMANDS) > 12
    run_sql = tuple(str(texts[0]) for kind, texts in calls if kind == "run_sql")
    assert [each for each in SQL if not each.startswith(run_sql)] == []
    ran = [shape([*shlex.split(first), *more]) for kind, (first, *more) in calls if kind == "run_command"]
    left = set()
    for command in COMMANDS:
        name, options = shape(shlex.split(command))
        if not any(name == other and options <= more for other, more in ran):
            left.add(name)
    assert left - set(ELSEWHERE) == set()
    for file, call in ELSEWHERE.values():
        assert call in (REPOSITORY / file).read_text()


def test_each_error_has_a_row_in_the_runbook() -> None:
    sys.path.insert(0, str(REPOSITORY / ".ci"))
    import references

    text = (OPERATE / "runbook.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+Error)` \| (yes|no) \|", text, re.MULTILINE))
    assert rows == {
        each.__name__: "yes" if issubclass(each, RetryableError) else "no" for each in references.error_classes()
    }


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("airflow")
    (folder / "contracts").mkdir()
    (folder / "contracts" / "shop.orders.yaml").write_text(
        "table: shop.orders\ntopic: orders\ngroup: shop\nowner: me\ncolumns: [{name: id, type: long}]\n"
    )
    (folder / "contracts" / "groups.yaml").write_text("alerts: {}\nshop: {asset_events: table}\n")
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
    assert {t.replace("<group>", "shop") for t in re.findall(r"\b[Tt]ask `([a-z_<>]+)`", TEXT)} <= tasks


@pytest.mark.parametrize("page", FORMS)
def test_each_field_of_a_form_is_on_its_page(dags: dict[str, Any], page: str) -> None:
    rows = (OPERATE / page).read_text("utf-8").partition("| field of the form |")[2].partition("\n\n")[0].splitlines()
    fields = {name for row in rows[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert fields == set(dags[FORMS[page]]["params"])


def test_the_values_that_a_guide_gives_to_copy_fit_the_form(dags: dict[str, Any]) -> None:
    text = (GUIDES / "backfill.md").read_text("utf-8")
    given = [json.loads(each) for each in blocks(text, "json")]
    given += [json.loads(each) for each in re.findall(r"airflow dags trigger backfill --conf '(.*)'", text)]
    assert len(given) > 4
    assert [value for value in given if set(value) - set(dags["backfill"]["params"])] == []


def test_what_the_buttons_of_the_pages_send_fits_the_forms(dags: dict[str, Any]) -> None:
    for each in every(TableOperations(table(), EVERYTHING, "review__1")):
        if each.method == "POST":
            fields = {field.name for field in each.fields} if each.values_in else set()
            assert set(each.body["conf"]) | fields <= set(dags[each.dag.replace("ingest_g", "ingest_shop")]["params"])


def test_the_settings_of_alerts_in_the_guide_are_valid(tmp_path: Path) -> None:
    for block in blocks((GUIDES / "alerts.md").read_text("utf-8"), "yaml"):
        (tmp_path / "groups.yaml").write_text(block)
        problems: list[Problem] = []
        _, _, common = read_groups(tmp_path, set(), problems)
        assert problems == [] and common.alerts
    assert common.alerts == AlertSettings()  # the last block has the defaults


def test_the_dags_of_the_guide_are_airflow_s(tmp_path: Path) -> None:
    """They load, are started by the table's asset, and select the rows of an event."""
    (tmp_path / "dags").mkdir()
    found = []
    for number, block in enumerate(blocks((GUIDES / "downstream.md").read_text("utf-8"), "python")):
        (tmp_path / "dags" / f"guide_{number}.py").write_text(block)
        found.append(block)
    assert len(found) == 2
    program = f"""
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={str(tmp_path / "dags")!r}, bundle_name="dags")
schedules = {{name: repr(dag.schedule) for name, dag in bag.dags.items()}}
print(json.dumps({{"errors": bag.import_errors, "schedules": schedules}}))
"""
    loaded = run_in_airflow(program, {**isolated_airflow_env(tmp_path), "AIRFLOW__CORE__UNIT_TEST_MODE": "True"})
    assert loaded["errors"] == {}
    assert set(loaded["schedules"]) == {"orders_models", "orders_increment"}
    assert all("shop.orders" in schedule for schedule in loaded["schedules"].values()), loaded
    code = found[1].partition("def content")
    names: dict[str, Any] = {"json": json}
    exec(f"def content{code[2].partition('with DAG')[0]}", names)
    about = {"ranges": {"orders": [encode_ranges({0: OffsetRange(0, 5), 3: OffsetRange(7, 9)})]}}
    for extra in (about, {"from_trigger": True, "payload": about}):  # a task's, and a watcher's
        assert names["rows_of"](SimpleNamespace(extra=extra)) == (
            "(_kafka_topic = 'orders' AND _kafka_partition = 0 AND _kafka_offset >= 0 AND _kafka_offset < 5) OR "
            "(_kafka_topic = 'orders' AND _kafka_partition = 3 AND _kafka_offset >= 7 AND _kafka_offset < 9)"
        )
    assert names["rows_of"](SimpleNamespace(extra={"ranges": {}})) == "FALSE"


def test_what_maintenance_is_given_by_hand_is_there(dags: dict[str, Any]) -> None:
    for action in ("rewrite_data_files", "expire_snapshots", "remove_orphan_files"):
        lists = ["dry_run"] if action == "remove_orphan_files" else []
        assert dags[f"maintain_{action}"]["params"] == ["tables", *lists]
    assert "each takes `tables`" in TEXT.replace("\n", " ")


def test_next_steps_name_the_command_as_it_is_installed() -> None:
    """Only the command line itself says how it is started without its entry point."""
    itself = {"cli/main.py", "cli/arguments.py", "__main__.py"}
    found = [
        str(path)
        for folder in ("include", "plugins", "dags", "jobs")
        for path in (REPOSITORY / folder).rglob("*.py")
        if re.search(r"python -m sluice\b(?!\.)", path.read_text()) and not str(path).endswith(tuple(itself))
    ]
    assert found == []
