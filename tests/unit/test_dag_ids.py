"""The prefix of Sluice's DAG ids: where it comes from, and that nothing names a DAG without it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import dag_ids
from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit

PRINT = "from sluice import dag_ids; print(*dag_ids.OPERATOR_DAGS, dag_ids.ingest_dag('shop'))"
NAMED = """
import re
from sluice import errors
from sluice.pages import render
page = render._ENVIRONMENT.from_string(
    "{% from 'macros.html' import dag_link %}{{ dag_link(dag_ids.ROLLBACK) }}{{ dag_link(dag_ids.ingest_dag('a/b')) }}"
).render()
print(*re.findall(r"DAG ([a-z_]+)", errors.OffsetsLostError.advice + errors.OrderUnknownError.advice))
print(page)
"""


def run(code: str, **env: str) -> str:
    env = {"PYTHONPATH": str(REPOSITORY / "include"), **env}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_a_checkout_has_no_prefix_and_an_installed_package_has_one(tmp_path: Path) -> None:
    plain = ["backfill", "rollback", "accept_gap", "review_schema", "publish_blocked", "ingest_shop"]
    assert run(PRINT).split() == plain
    (tmp_path / "sluice").mkdir()
    for name in ("__init__.py", "dag_ids.py"):
        shutil.copy(REPOSITORY / "include" / "sluice" / name, tmp_path / "sluice")
    (tmp_path / "sluice-0.1.0.dist-info").mkdir()
    assert run(PRINT, PYTHONPATH=str(tmp_path)).split() == [f"sluice_{name}" for name in plain]
    assert run(PRINT, PYTHONPATH=str(tmp_path), SLUICE_DAG_PREFIX="").split() == plain
    assert run(PRINT, SLUICE_DAG_PREFIX="kafka.").split() == [f"kafka.{name}" for name in plain]


def test_messages_and_pages_name_the_dags_with_the_prefix() -> None:
    named, page = run(NAMED, SLUICE_DAG_PREFIX="kafka_").splitlines()
    assert named.split() == ["kafka_accept_gap", "kafka_review_schema"]
    assert re.findall(r'data-airflow-path="([^"]+)" href="#">([^<]+)<', page) == [
        ("/dags/kafka_rollback", "kafka_rollback"),
        ("/dags/kafka_ingest_a%2Fb", "kafka_ingest_a/b"),
    ]


def test_no_text_of_the_product_names_a_dag_without_the_prefix() -> None:
    names = "|".join((*dag_ids.OPERATOR_DAGS, *dag_ids.MAINTENANCE_DAGS))
    wrong = re.compile(rf'DAG ({names})\b|"(ingest|maintain)_["{{]|/dags/({names}|ingest_|maintain_)')
    docstring_or_comment = re.compile(r'""".*?"""|#[^\n]*', re.DOTALL)  # they call the DAGs by their names alone
    found = []
    for folder in ("include/sluice", "plugins"):
        for path in (REPOSITORY / folder).rglob("*.*"):
            if path.suffix in (".py", ".html", ".js") and path.name != "dag_ids.py":
                text = docstring_or_comment.sub("", path.read_text(encoding="utf-8"))
                found += [f"{path.name}: {each[0]}" for each in wrong.finditer(text)]
    assert found == []
