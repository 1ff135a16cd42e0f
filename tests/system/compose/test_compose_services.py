"""The services of docker-compose.yaml, without containers: their settings, statements and health checks on real parts.

Kafka's health check is a script of its image and is not run here; those of Airflow are in `tests/system/airflow`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg2
import pytest

from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.ports import HOST
from sluice.embedded.schema_registry import unpack_application
from tests.support.compose import COMPOSE, health_check, interpolate
from tests.support.services.java_server import JavaServer
from tests.support.services.postgres import Postgres
from tests.support.services.spark_cluster import SparkCluster

pytestmark = pytest.mark.system

SECRETS = {"ICEBERG_PASSWORD": "iceberg1", "REGISTRY_PASSWORD": "registry1"}


def is_healthy(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server with the databases of the file, and Airflow's, which the image's own variables create."""
    with Postgres() as running:
        connection = psycopg2.connect(host=HOST, port=running.port, user="admin", dbname="postgres")
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("CREATE ROLE airflow SUPERUSER")
            cursor.execute("CREATE DATABASE airflow OWNER airflow")
            (config,) = COMPOSE["services"]["postgres"]["configs"]
            statements = interpolate(COMPOSE["configs"][config["source"]]["content"], SECRETS)
            for statement in filter(None, map(str.strip, statements.split(";"))):
                cursor.execute(statement)
        connection.close()
        yield running


class Registry(JavaServer):
    """The application of the registry's image, with the environment of the file."""

    NAME, HEAP = "registry", "512m"

    def __init__(self, folder: Path, postgres_port: int) -> None:
        super().__init__(folder)
        self._postgres_port = postgres_port

    def command(self) -> tuple[list[str], dict[str, str]]:
        given = COMPOSE["services"]["registry"]["environment"]
        settings = {name: interpolate(value, SECRETS) for name, value in given.items()}
        settings["APICURIO_DATASOURCE_URL"] = settings["APICURIO_DATASOURCE_URL"].replace(
            "postgres:5432", f"{HOST}:{self._postgres_port}"
        )
        options = {"host": HOST, "port": str(self.port)}
        application = unpack_application(find_java(cache_folder()))
        return [
            *(f"-Dquarkus.http.{name}={value}" for name, value in options.items()),
            *("-Dquarkus.management.enabled=false", "-jar", str(application / "quarkus-run.jar")),
        ], settings

    def answers(self) -> bool:
        return is_healthy(health_check("registry", {"127.0.0.1:8080": f"{HOST}:{self.port}"}))


def test_the_registry_keeps_its_schemas_in_its_own_database(postgres: Postgres, tmp_path: Path) -> None:
    with Registry(tmp_path, postgres.port):
        pass  # it answers its health check
    connection = psycopg2.connect(
        host=HOST, port=postgres.port, user="registry", password="registry1", dbname="registry"
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
        assert cursor.fetchone()[0] > 10
    connection.close()


@pytest.mark.parametrize("role", ["iceberg", "registry"])
def test_a_role_reaches_its_own_database_alone(postgres: Postgres, role: str) -> None:
    for database in ("airflow", "iceberg", "registry", "postgres"):
        login = {"host": HOST, "port": postgres.port, "user": role, "password": f"{role}1", "dbname": database}
        if database == role:
            psycopg2.connect(**login).close()
        else:
            with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
                psycopg2.connect(**login)


def test_postgres_is_healthy_when_it_answers(postgres: Postgres) -> None:
    program, *arguments = health_check("postgres", {})
    here = [str(postgres.binaries / program), *arguments, "-h", HOST, "-p"]
    assert is_healthy([*here, str(postgres.port)])
    assert not is_healthy([*here, "1"])


def test_sparks_master_and_worker_are_healthy_when_their_pages_answer(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster", workers=1) as cluster:
        (worker,) = cluster.workers
        checks = [
            health_check("spark-master", {"127.0.0.1:8080": f"{HOST}:{cluster.page}"}),
            health_check("spark-worker", {"127.0.0.1:8081": f"{HOST}:{worker.page}"}),
        ]
        assert all(map(is_healthy, checks))
    assert not any(map(is_healthy, checks))


def test_the_programs_of_the_spark_services_start(tmp_path: Path) -> None:
    """Their entry points, with `spark-class` of the installed PySpark: a mistyped class or option fails at once."""
    for name in ("spark-master", "spark-worker"):
        *shell, script = COMPOSE["services"][name]["entrypoint"]
        env = {**os.environ, "JAVA_HOME": str(find_java(cache_folder()).home), "SPARK_LOCAL_IP": HOST}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        told = subprocess.run(
            [*shell, f"{script} --help"],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert "Usage: " in told.stdout + told.stderr, told
        assert "Unrecognized" not in told.stderr and "Unknown" not in told.stderr
