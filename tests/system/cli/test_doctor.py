"""`doctor` on a real broker, catalog, storage, Spark and Airflow; it leaves nothing behind, and never hangs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from sluice.cli import main
from sluice.doctor import airflow
from sluice.embedded import jars
from sluice.embedded.home import REPOSITORY
from sluice.embedded.ports import HOST, free_port
from sluice.errors import ConfigError
from tests.support.airflow_process import isolated_airflow_env
from tests.support.light_lake import LightLake

pytestmark = pytest.mark.system

Doctor = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str]) -> Doctor:
    def run(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        code = main.main(["doctor", "--json", *arguments])
        out = capfd.readouterr().out
        return code, {each["check"]: each for each in json.loads(out)["checks"]}

    return run


def test_a_sound_installation_is_green_and_as_it_was(
    light_lake: LightLake,
    doctor: Doctor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLUICE_JARS", str(jars.ensure_jars(jars.SPARK)))
    monkeypatch.delenv("SCHEMA_REGISTRY_URL", raising=False)  # another test's
    light_lake.send(0, 2)
    kept = "versions", "java", "jars", "contracts", "kafka", "registry", "catalog", "storage", "spark"
    assert main.main(["doctor", "--patience", "60", *kept]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["skipped" if n == "registry" else "ok", n] for n in kept], lines
    assert "1 topic can be described and read" in lines[4]
    assert "branches, tags and drops work" in lines[6]
    assert light_lake.catalog.list_namespaces() == []
    assert list((tmp_path / "warehouse").iterdir()) == []


def test_what_does_not_answer_is_told_from_what_is_wrong(
    light_lake: LightLake, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer({"bootstrap.servers": light_lake.bootstrap})
    producer.produce(light_lake.topic, b"{}", timestamp=int((time.time() + 3600) * 1000))
    assert producer.flush(30) == 0
    code, found = doctor("kafka")
    assert (
        code == 3
        and "Records are from the future" in found["kafka"]["text"]
        and light_lake.topic in found["kafka"]["text"]
    )
    light_lake.contract(topic=f"{light_lake.topic}-gone")
    code, found = doctor("kafka")
    assert code == 0
    awaited = f"Not created yet: 1 topic of contracts that never ran ({light_lake.topic}-gone)"
    assert found["kafka"]["text"].endswith(awaited)
    light_lake.plan()
    code, found = doctor("kafka", "contracts")
    assert code == 3 and "Kafka has no topic" in found["kafka"]["text"] and found["contracts"]["state"] == "ok"
    assert found["kafka"]["next_step"].startswith("Create the topic")
    (light_lake.folder / "bad.yaml").write_text("table: x\n")
    assert "problem(s); the first: " in doctor("contracts")[1]["contracts"]["text"]
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", f"http://me:registry-pass@{HOST}:{free_port()}")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", f"{HOST}:{free_port()}")
    code, found = doctor("kafka", "registry", "--patience", "4")
    assert (code, found["kafka"]["state"], found["registry"]["state"]) == (2, "no answer", "no answer")
    assert "registry-pass" not in json.dumps(found)


def test_a_catalog_that_lacks_something_is_named_and_nothing_is_left(
    light_lake: LightLake, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table.update import SetSnapshotRefUpdate

    commit = SqlCatalog.commit_table

    def forgetful(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        """A catalog that drops tags and branches of others."""
        kept = tuple(u for u in updates if not (isinstance(u, SetSnapshotRefUpdate) and u.ref_name != "main"))
        return commit(self, table, requirements, kept)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", forgetful)
        code, found = doctor("catalog", "storage")
    assert code == 3 and "kept only a part" in found["catalog"]["text"] and found["storage"]["state"] == "ok"

    def careless(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        return commit(self, table, (), updates)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", careless)
        assert "a commit that must be refused" in doctor("catalog")[1]["catalog"]["text"]
    assert light_lake.catalog.list_namespaces() == [] and list((tmp_path / "warehouse").iterdir()) == []
    (tmp_path / "warehouse").rmdir()
    (tmp_path / "warehouse").write_text("no folder")
    code, found = doctor("catalog", "storage")
    assert code == 3 and {each["state"] for each in found.values()} == {"failed"}
    assert "creating a namespace and a table fails" in found["storage"]["text"]
    assert light_lake.catalog.list_namespaces() == []


def test_a_process_ends_in_time_although_a_catalog_hangs(sluice_env: dict[str, str]) -> None:
    with socket.create_server((HOST, 0)) as deaf:
        env = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "include"),
            "PYICEBERG_CATALOG__LAKE__TYPE": "rest",
            "PYICEBERG_CATALOG__LAKE__URI": f"http://{HOST}:{deaf.getsockname()[1]}",
        }
        command = [sys.executable, "-m", "sluice", "doctor", "catalog", "storage", "--patience", "3"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines() if not line.startswith(" ")] == [
        *(["no", "answer", "catalog"], ["no", "answer", "storage"]),
    ]


def test_airflow_is_asked_for_connections_pools_and_the_plugin(
    light_lake: LightLake, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in os.environ if each.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    mine = isolated_airflow_env(tmp_path)
    settings = {name: value for name, value in mine.items() if name.startswith("AIRFLOW")}
    settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{tmp_path}/airflow.db"
    settings["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(REPOSITORY / "plugins")
    settings["AIRFLOW_CONN_SPARK_DEFAULT"] = "spark://master:7077?deploy-mode=cluster"
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", mine["PYTHONPATH"])
    # A migration takes ten seconds more, and creates the same table.
    create = "from airflow.models.pool import Pool; from airflow.settings import engine; Pool.__table__.create(engine)"
    subprocess.run([sys.executable, "-c", create], capture_output=True, check=True)
    with pytest.raises(ConfigError) as raised:
        airflow.check_airflow(60)
    assert "connection spark_default has deploy mode cluster of spark://master, and" in raised.value.message
    assert "pool sluice_spark does not exist" in raised.value.message
    assert "plugin" not in raised.value.message, raised.value.message
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        airflow.check_airflow(0.1)

    # Its connections are the settings of a command whose environment has none.
    server, port = light_lake.bootstrap.split(":")
    kafka = {"conn_type": "kafka", "host": server, "port": int(port), "extra": {"client.id": "by-airflow"}}
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_KAFKA", json.dumps(kafka))
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_REGISTRY", f"http://me:air-pass@{HOST}:{free_port()}")
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "SCHEMA_REGISTRY_URL", "SLUICE_REGISTRY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    code, found = doctor("kafka", "registry")
    assert found["kafka"]["text"].startswith("answers, by Airflow connection sluice_kafka; 1 topic"), found
    assert (code, found["registry"]["state"]) == (2, "no answer")
    assert "[settings Airflow connection sluice_registry]" in found["registry"]["text"]
    assert "air-pass" not in json.dumps(found)
    assert "SLUICE_KAFKA_CONFIG" not in os.environ
