"""`airflow setup` on an Airflow of its own: pools that are missing are made, others keep their size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.airflow_process import isolated_airflow_env

pytestmark = pytest.mark.system

CONTRACT = "table: {0}.orders\ntopic: {0}\ngroup: {0}\nowner: me\ncolumns: [{{name: id, type: long}}]\n"
GROUPS = "shop: {pool: shop spark, maintenance: {pool: --tidy}}\n"


def run(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], env=env, capture_output=True, text=True, check=False)


def test_missing_pools_are_made_and_existing_ones_stay(tmp_path: Path) -> None:
    contracts, database = tmp_path / "contracts", tmp_path / "airflow.db"
    contracts.mkdir()
    for group in ("crm", "shop"):
        (contracts / f"{group}.yaml").write_text(CONTRACT.format(group))
    (contracts / "groups.yaml").write_text(GROUPS)
    env = {
        **isolated_airflow_env(tmp_path),
        "SLUICE_CONTRACTS": str(contracts),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
    }
    refused = run("sluice", "airflow", "setup", env=env)
    assert refused.returncode == 3
    assert "next step: See the message of `airflow pools list`." in refused.stderr
    migrated = run("airflow", "db", "migrate", env=env)
    assert migrated.returncode == 0, migrated.stderr
    assert run("airflow", "pools", "set", "sluice_spark", "4", "ours", env=env).returncode == 0

    made = run("sluice", "airflow", "setup", "--slots", "2", env=env)
    assert (made.returncode, made.stdout.splitlines()) == (
        0,
        [
            "pool --tidy: created, slots: 2",
            "pool shop spark: created, slots: 2",
            "pool sluice_spark: exists, slots: 4",
        ],
    )
    assert run("sluice", "airflow", "setup", env=env).stdout.splitlines() == [
        "pool --tidy: exists, slots: 2",
        "pool shop spark: exists, slots: 2",
        "pool sluice_spark: exists, slots: 4",
    ]
    run("airflow", "pools", "export", str(tmp_path / "pools.json"), env=env)
    found = json.loads((tmp_path / "pools.json").read_text())
    assert found["sluice_spark"]["description"] == "ours"
    assert {name: each["slots"] for name, each in found.items() if name != "default_pool"} == {
        "--tidy": 2,
        "shop spark": 2,
        "sluice_spark": 4,
    }
