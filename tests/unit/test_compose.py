"""docker-compose.yaml and its Dockerfile, without containers: services, images, loopback ports, no secrets."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from sluice.embedded.home import REPOSITORY, cache_folder
from tests.support.compose import COMPOSE

pytestmark = pytest.mark.unit

FILE = REPOSITORY / "docker-compose.yaml"
PASSWORDS = ("POSTGRES_PASSWORD", "ICEBERG_PASSWORD", "REGISTRY_PASSWORD", "AIRFLOW_ADMIN_PASSWORD")
SECRETS = (*PASSWORDS, "AIRFLOW_FERNET_KEY", "AIRFLOW_JWT_SECRET")
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
# Of https://github.com/compose-spec/compose-spec, schema/compose-spec.json.
SCHEMA = json.loads((REPOSITORY / "tests" / "data" / "compose-spec.json").read_text())


def test_the_file_is_valid_by_the_schema_of_compose():
    errors = [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(COMPOSE)]
    assert not errors
    broken = {"services": {"kafka": {"imagee": "apache/kafka"}}}
    assert list(jsonschema.Draft7Validator(SCHEMA).iter_errors(broken)), "the schema refuses what it does not know"


def test_each_lasting_service_has_a_limit_a_restart_and_a_health_check():
    for name, service in COMPOSE["services"].items():
        assert service["mem_limit"], name
        if name == "migrate":
            assert service["restart"] == "no"
        else:
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"], name


def test_the_image_finds_its_jars_and_its_java(tmp_path):
    """The last command of the Dockerfile, with this machine's cache: names that match more than once would fail."""
    (command,) = re.findall(r"^RUN (export SLUICE_CACHE=.*?)\n\n?\Z", DOCKERFILE, re.DOTALL | re.MULTILINE)
    places = {"/home/airflow/sluice": str(cache_folder()), "/home/airflow": str(tmp_path)}
    for place, here in {**places, "/opt/build/include": str(REPOSITORY / "include")}.items():
        command = command.replace(place, shlex.quote(here))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "JAVA_HOME": ""}
    subprocess.run(["/bin/bash", "-ec", command], env=env, check=True, capture_output=True)
    assert list((tmp_path / "spark-jars").glob("iceberg-spark-runtime-*.jar"))
    assert (tmp_path / "java" / "bin" / "java").exists()


def test_the_services_are_those_of_the_embedded_stack_and_a_spark_cluster():
    expected = {"kafka", "registry", "postgres", "migrate", "api-server", "scheduler", "dag-processor", "triggerer"}
    assert set(COMPOSE["services"]) == expected | {"spark-master", "spark-worker"}
    assert COMPOSE["services"]["kafka"]["image"] == "apache/kafka:4.3.1"


def test_every_image_has_a_version_and_it_is_the_pinned_one():
    requirements = (REPOSITORY / "requirements.txt").read_text()
    for name, service in COMPOSE["services"].items():
        assert re.search(r":\d", service["image"]), name
    airflow = DOCKERFILE
    assert re.search(r"^apache-airflow==(\S+) ", requirements, re.M).group(1) in airflow
    assert "requirements.txt" in airflow
    assert {service["image"] for name, service in COMPOSE["services"].items() if "spark" in name} == {
        COMPOSE["services"]["scheduler"]["image"]
    }


def test_ports_are_published_on_loopback_only():
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_volumes_and_dependencies_exist():
    for name, service in COMPOSE["services"].items():
        assert set(service.get("depends_on", [])) <= set(COMPOSE["services"]), name
        named = {each.split(":")[0] for each in service.get("volumes", []) if not each.startswith(".")}
        assert named <= set(COMPOSE["volumes"]), name


def test_what_is_to_stay_lies_in_a_volume_that_its_user_may_write():
    kafka = COMPOSE["services"]["kafka"]
    assert f"kafka-data:{kafka['environment']['KAFKA_LOG_DIRS']}" in kafka["volumes"]
    folder = COMPOSE["services"]["scheduler"]["environment"]["PYICEBERG_CATALOG__LAKE__WAREHOUSE"].removeprefix(
        "file://"
    )
    assert f"warehouse:{folder}" in COMPOSE["services"]["scheduler"]["volumes"]
    assert re.search(rf"USER root\nRUN install -d -o airflow .* {folder}\nUSER airflow\n", DOCKERFILE)


def test_secrets_come_from_the_environment_and_are_required():
    text = FILE.read_text()
    for secret in SECRETS:
        assert f"${{{secret}:?" in text
    for service in COMPOSE["services"].values():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD$|SECRET$|KEY$|CONN$|URI$", key):
                assert re.search(r"\$\{[A-Z_]+:(\?|-\})", str(value)), key


def test_the_catalog_has_a_role_that_may_not_connect_to_airflows_database():
    for name, service in COMPOSE["services"].items():
        uri = service.get("environment", {}).get("PYICEBERG_CATALOG__LAKE__URI", "")
        assert "POSTGRES_PASSWORD" not in uri and "//airflow:" not in uri, name
    (config,) = COMPOSE["services"]["postgres"]["configs"]
    statements = COMPOSE["configs"][config["source"]]["content"]
    assert "CREATE DATABASE iceberg OWNER iceberg;" in statements
    (revoked,) = re.findall(r"REVOKE CONNECT ON DATABASE (.+) FROM PUBLIC;", statements)
    assert COMPOSE["services"]["postgres"]["environment"]["POSTGRES_DB"] in revoked.split(", ")
    role = re.search(r"CREATE ROLE (\w+) LOGIN PASSWORD", statements)
    assert role is not None and "SUPERUSER" not in statements
    environments = [service.get("environment", {}) for service in COMPOSE["services"].values()]
    uris = [each["PYICEBERG_CATALOG__LAKE__URI"] for each in environments if "PYICEBERG_CATALOG__LAKE__URI" in each]
    assert uris and all(f"//{role[1]}:" in uri for uri in uris)


def test_compose_itself_accepts_the_file():
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("no docker compose here: Compose itself did NOT read the file, only its schema did")
    env = {**os.environ, **dict.fromkeys(SECRETS, "from-the-environment")}
    command = [docker, "compose", "-f", str(FILE), "config", "--quiet"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    env.pop("POSTGRES_PASSWORD")
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode != 0


def test_the_override_for_a_rest_catalog_and_s3_fits_the_file():
    page = (REPOSITORY / "docs" / "deploy" / "containers.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(x-lake.*?)```", page, re.DOTALL)
    override = yaml.safe_load(text)
    assert not list(jsonschema.Draft7Validator(SCHEMA).iter_errors(override))
    on_the_catalog = {
        name
        for name, service in COMPOSE["services"].items()
        if "PYICEBERG_CATALOG__LAKE__URI" in service.get("environment", {}) and service["restart"] != "no"
    }
    assert set(override["services"]) == on_the_catalog
    for name in ("CREDENTIAL", "S3__SECRET_ACCESS_KEY"):
        assert re.fullmatch(r"\$\{\w+:\?.*\}", override["x-lake"]["environment"][f"PYICEBERG_CATALOG__LAKE__{name}"])
