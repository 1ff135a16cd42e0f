"""The one DAG file of an Airflow that Sluice is installed in: `dags.build` and `dags.check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow_process import isolated_airflow_env, run_in_airflow

pytestmark = pytest.mark.unit

BUILD = "from sluice_airflow import dags\ndags.build(globals(), {})\n"
NAMES = (
    *("accept_gap", "alerts", "backfill", "compare", "doctor", "ingest_crm", "ingest_shop"),
    *("maintain_expire_snapshots", "maintain_remove_orphan_files", "maintain_rewrite_data_files"),
    *("publish_blocked", "rehearse", "review_schema", "rollback"),
)
LOAD = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1], bundle_name="dags")
triggers = {
    task.task_id: task.partial_kwargs["trigger_dag_id"]
    for dag in bag.dags.values() for task in dag.tasks if task.task_id in ("ask", "bring")
}
print(json.dumps({
    "dags": {
        name: [sorted(dag.tags), sorted({t.owner for t in dag.tasks}), dag.fileloc] for name, dag in bag.dags.items()
    },
    "errors": list(bag.import_errors.values()),
    "triggers": triggers,
    "aliases": sorted(o.name for d in bag.dags.values() for t in d.tasks for o in t.outlets if not hasattr(o, "uri")),
    "modules": sorted(m.rpartition(".")[2] for m in sys.modules if m.startswith("sluice_airflow.dags.")),
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of DAGs with two groups of contracts beside its DAG file."""
    contracts = tmp_path / "airflow-dags" / "contracts"
    contracts.mkdir(parents=True)
    for table, group, owner in (
        ("shop.orders", "shop", "a"),
        ("shop.{topic}", "shop", "b"),
        ("crm.people", "crm", "c"),
    ):
        topic = "{pattern: 'o-.*'}" if "{" in table else table
        (contracts / f"{owner}.yaml").write_text(
            f"table: {table}\ntopic: {topic}\ngroup: {group}\nowner: team-{owner}\n"
            "columns: [{name: id, type: long}]\n"
        )
    (contracts / "groups.yaml").write_text("alerts: {}\n")
    return contracts.parent


def load(folder: Path, code: str, **env: str) -> Any:
    (folder / "sluice_dags.py").write_text(code)
    env = {**isolated_airflow_env(folder.parent), "AIRFLOW__CORE__UNIT_TEST_MODE": "True", **env}
    return run_in_airflow(LOAD, env, str(folder))


def test_one_file_has_all_dags_under_the_prefix_with_the_deployments_owner_and_tags(folder: Path) -> None:
    call = BUILD.format('contracts="contracts", prefix="kafka_", owner="data-platform", tags=["lake"]')
    found = load(folder, call, SLUICE_DAG_PREFIX="kafka_")
    assert found["errors"] == []
    assert sorted(found["dags"]) == [f"kafka_{name}" for name in NAMES]
    assert found["triggers"] == {"ask": "kafka_review_schema", "bring": "kafka_backfill"}
    assert found["aliases"] == ["kafka_backfill.table", "kafka_ingest_shop.by_topic"]
    for name, (tags, owners, file) in found["dags"].items():
        assert {"sluice", "lake"} <= set(tags), name
        assert Path(file) == folder / "sluice_dags.py", name
        assert owners == {
            "kafka_ingest_shop": ["data-platform", "team-a"],
            "kafka_ingest_crm": ["team-c"],
        }.get(name, ["data-platform"]), name


def test_without_options_the_folder_and_the_prefix_are_those_of_the_environment(folder: Path) -> None:
    found = load(folder, BUILD.format(""), SLUICE_CONTRACTS=str(folder / "contracts"))
    assert (found["errors"], sorted(found["dags"])) == ([], list(NAMES))  # a checkout has no prefix


@pytest.mark.parametrize(
    ("dag", "part"),
    [
        ("kafka_ingest_shop", "ingest"),
        ("kafka_maintain_expire_snapshots", "maintain"),
        ("kafka_rollback", "operate"),
        ("kafka_alerts", "alerts"),
        ("somebody_elses", None),
    ],
)
def test_a_task_waits_only_for_its_own_part_of_the_file(folder: Path, dag: str, part: str | None) -> None:
    env = {"SLUICE_DAG_PREFIX": "kafka_", "_AIRFLOW_PARSING_CONTEXT_DAG_ID": dag}
    found = load(folder, BUILD.format('contracts="contracts"'), **env)
    assert found["modules"] == ([part] if part else [])
    assert (dag in found["dags"]) == bool(part)


def test_a_setting_that_the_pages_would_not_know_is_an_import_error_with_the_next_step(folder: Path) -> None:
    (error,) = load(folder, BUILD.format('contracts="contracts", prefix="kafka_"'))["errors"]
    assert "Next step: Set SLUICE_DAG_PREFIX=kafka_ in the environment" in error
    (error,) = load(folder, BUILD.format('contracts="contracts"'), SLUICE_CONTRACTS="/elsewhere")["errors"]
    assert f"Next step: Set SLUICE_CONTRACTS={folder / 'contracts'} in the environment" in error
    (error,) = load(folder, BUILD.format('contracts="/not/there"'))["errors"]
    assert "The folder of contracts /not/there does not exist. Next step: Create it, or name another" in error


def test_a_broken_contract_stops_no_other_group_and_the_check_shows_it(folder: Path) -> None:
    (folder / "contracts" / "c.yaml").write_text("table: crm.people\n")
    call = BUILD.format('contracts="contracts"')
    found = load(folder, call)
    assert found["errors"] == [] and "ingest_shop" in found["dags"] and "ingest_crm" not in found["dags"]
    (folder / "sluice_check.py").write_text(
        'from sluice_airflow import dags\ndags.check(globals(), contracts="contracts")\n'
    )
    found = load(folder, call)
    (error,) = found["errors"]
    assert "c.yaml:1" in error and "ingest_shop" in found["dags"]
