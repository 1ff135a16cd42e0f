"""When a command asks Airflow for connections; what Airflow answers is in tests/system/cli/test_doctor.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.kafka import airflow_connections, broker
from sluice.kafka.airflow_connections import KAFKA, REGISTRY
from sluice.kafka.registry_settings import registry_config

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An Airflow that is configured here and can't be started; returns its AIRFLOW_HOME."""
    for name in list(os.environ):
        if name.startswith("AIRFLOW") or name in (*KAFKA.variables, *REGISTRY.variables):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    (tmp_path / "airflow.cfg").touch()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    return tmp_path


def test_settings_of_the_environment_win_and_airflow_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "here:1")
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://here")
    with airflow_connections.allow_lookup():
        assert broker.librdkafka_config() == {"bootstrap.servers": "here:1"}
        assert registry_config() == {"url": "http://here"}
        assert airflow_connections.source(KAFKA) == "variable KAFKA_BOOTSTRAP_SERVERS"
        assert not airflow_connections.needs_lookup(KAFKA)


def test_no_process_starts_without_an_airflow_or_outside_of_commands(
    airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(ConfigError, match="No Kafka cluster is configured"):
        broker.librdkafka_config()  # a task, a page or a driver
    (airflow / "airflow.cfg").unlink()
    with airflow_connections.allow_lookup():
        with pytest.raises(ConfigError, match="No Kafka cluster is configured"):
            broker.librdkafka_config()
        monkeypatch.setenv("AIRFLOW_CONN_SLUICE_KAFKA", "kafka://")
        with pytest.raises(FileNotFoundError, match="/no/python"):
            broker.librdkafka_config()


def test_an_airflow_that_fails_is_an_error_with_a_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with airflow_connections.allow_lookup():
        with pytest.raises(ConfigError, match="Airflow can't be asked for connection sluice_kafka") as raised:
            broker.librdkafka_config()
        assert "SLUICE_KAFKA_CONFIG or SLUICE_REGISTRY_CONFIG" in raised.value.next_step
        monkeypatch.setattr(sys, "executable", "/no/python")
        with pytest.raises(ConfigError, match="can't be asked"):  # and is not started again
            registry_config()
