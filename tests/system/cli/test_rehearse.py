"""`rehearse` on a real broker, catalog and Spark: each outcome is as expected, and nothing of production is touched."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from pyiceberg.catalog import Catalog

from sluice.cli import main
from sluice.embedded import jars
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.embedded.ports import HOST, free_port
from sluice.iceberg import table_names
from sluice.iceberg.catalog import load
from sluice.kafka import broker as brokers
from sluice.ledger import pilot_table
from sluice.offsets import OffsetRange
from sluice.rehearse.scenarios import SCENARIOS
from tests.support.light_lake import LightLake

pytestmark = pytest.mark.system

COLUMNS = [
    {"name": "id", "type": "string", "source": "$key"},
    {"name": "n", "type": "long"},
    {"name": "text", "type": "string"},
]
MODES: dict[str, dict[str, Any]] = {
    "append": {"mode": "append"},
    "upsert": {"mode": "upsert", "identifier": ["id"], "order": ["_kafka_timestamp"]},
}


def send(lake: LightLake, count: int) -> None:
    producer, chance = Producer({"bootstrap.servers": lake.bootstrap}), random.Random(7)
    for n in range(count):
        value = None if n % 17 == 0 else "{" if n % 50 == 1 else json.dumps({"n": n, "text": f"record {n}"})
        key = f"k{chance.randrange(count // 4)}"
        producer.produce(lake.topic, value, key=key, partition=n % 2, timestamp=1_790_000_000_000 + n)
    assert producer.flush(30) == 0


def metadata(catalog: Catalog) -> dict[str, str]:
    names = [tuple(name) for each in catalog.list_namespaces() for name in catalog.list_tables(each)]
    return {".".join(name): catalog.load_table(name).metadata_location for name in names}


def watermarks(lake: LightLake) -> Mapping[int, OffsetRange]:
    state = brokers.describe_topics(lake.admin, [lake.topic])[lake.topic]
    assert isinstance(state, brokers.TopicState)
    return state.watermarks


def all_files(lake: LightLake) -> set[Path]:
    folder = Path(str(lake.catalog.properties["warehouse"]).removeprefix("file://"))
    return {path for path in folder.rglob("*") if "pilot" not in path.parts}


def rehearse(
    lake: LightLake, capfd: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Rehearse scenarios of a table; returns the exit code, and the outcomes by scenario. All else stays as it was."""
    before, marks, files = metadata(lake.catalog), watermarks(lake), all_files(lake)
    assert {"db.events", "sluice.offsets", f"sluice_staging.{table_names.safe_identifier(lake.topic)}"} <= set(before)
    code = main.main(["rehearse", "db.events", "--records", "200", "--json", *arguments])
    told = capfd.readouterr()
    assert told.out, told.err
    after = metadata(lake.catalog)
    assert after.pop("sluice.pilot") and after == before
    assert (watermarks(lake), all_files(lake)) == (marks, files)
    assert not [each for each in lake.catalog.list_namespaces() if "rehearsal" in each[0]]
    return code, {each["scenario"]: each for each in json.loads(told.out)["scenarios"]}


@pytest.fixture(autouse=True)
def spark_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_JARS", str(jars.ensure_jars(jars.SPARK)))


def publish(lake: LightLake) -> None:
    """Publish a batch of the table in production."""
    for partition in (0, 1):
        lake.send(partition, 300)
    (batch,) = lake.plan().topics[lake.topic].to_stage
    lake.stage(batch)
    lake.publish(batch)


def test_a_killed_driver_is_rehearsed_and_production_is_not_touched(
    light_lake: LightLake, capfd: pytest.CaptureFixture[str]
) -> None:
    publish(light_lake)
    code, found = rehearse(light_lake, capfd, "--scenario", "kill-after-publish")
    outcome = found.pop("kill-after-publish")
    assert (code, outcome["state"], found) == (0, "passed", {}), outcome
    assert "killed with the batch published" in outcome["actual"]
    assert outcome["actual"].endswith("400 rows equal those of an undisturbed table")


@pytest.mark.infra
@pytest.mark.parametrize("mode", MODES)
def test_every_scenario_ends_as_expected(light_lake: LightLake, mode: str, capfd: pytest.CaptureFixture[str]) -> None:
    groups = {"events": {"spark": {"driver_memory": "768m"}}, "alerts": {}}
    (light_lake.folder / "groups.yaml").write_text(yaml.safe_dump(groups))
    properties = {"write.data.path": f"{light_lake.catalog.properties['warehouse']}/shared"}
    light_lake.contract(columns=COLUMNS, errors={"max_ratio": 1.0}, properties=properties, **MODES[mode])
    send(light_lake, 600)
    assert main.main(["run", "events"]) == 0
    deleted = light_lake.admin.delete_records([TopicPartition(light_lake.topic, 0, 20)])
    assert [each.result(30) for each in deleted.values()]
    capfd.readouterr()
    began = time.monotonic()
    code, found = rehearse(light_lake, capfd)
    with capfd.disabled():
        for each in found.values():
            print(f"\n{each['state']} {each['scenario']} {each['seconds']:.0f} s: {each['actual']}", end="")
        print(f"\n{mode}: {time.monotonic() - began:.0f} s in all")
    assert code == 0, found
    states = {name: each["state"] for name, each in found.items()}
    assert states == {**dict.fromkeys(SCENARIOS, "passed"), "deny-access": "skipped"}
    rows = pilot_table.read(light_lake.catalog, "db.events")
    assert [each.evidence["scenario"] for each in rows] == list(SCENARIOS) and all(each.ok for each in rows)


@pytest.mark.infra
def test_a_wrong_password_is_rehearsed_where_there_is_one(
    tmp_path: Path, sluice_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_sluice="right";'
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas,
    }
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "sluice", "sasl.password": "right"}
    config = {"bootstrap.servers": f"{HOST}:{port}", "security.protocol": "SASL_PLAINTEXT", **login}
    (tmp_path / "contracts").mkdir()
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path / "contracts"))
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS")
    monkeypatch.setenv("SLUICE_KAFKA_CONFIG", json.dumps(config))
    with EmbeddedBroker(tmp_path / "broker", settings=settings, listeners={"LOGIN": port}) as own, load() as catalog:
        lake = LightLake(tmp_path / "contracts", own.bootstrap, catalog)
        publish(lake)
        code, found = rehearse(lake, capfd, "--scenario", "deny-access")
    outcome = found["deny-access"]
    assert (code, outcome["state"]) == (0, "passed"), outcome
    assert outcome["actual"].startswith("exit code 2, nothing changed (error: Login to Kafka failed")
