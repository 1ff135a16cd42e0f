"""docs/deploy/helm-values.yaml, and what the chart of Airflow makes of it where Helm and the chart are there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from sluice.embedded.home import REPOSITORY

pytestmark = pytest.mark.unit

FILE = REPOSITORY / "docs" / "deploy" / "helm-values.yaml"
VALUES = yaml.safe_load(FILE.read_text("utf-8"))
PLAIN = {each["name"]: each["value"] for each in VALUES["env"]}
SECRET = {each["envName"]: (each["secretName"], each["secretKey"]) for each in VALUES["secret"]}
AIRFLOWS_KEYS = {
    "AIRFLOW__CORE__FERNET_KEY": "fernet-key",
    "AIRFLOW__API__SECRET_KEY": "api-secret-key",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "connection",
}
HOLDS_A_SECRET = re.compile(r"KEY$|SECRET|PASSWORD|CREDENTIAL|TOKEN|SQL_ALCHEMY_CONN|^AIRFLOW_CONN_SLUICE_")
CHART = "SLUICE_TEST_AIRFLOW_CHART"
(VERSION,) = re.findall(r"apache-airflow/airflow (\d\S+),", FILE.read_text("utf-8"))

Pods = Mapping[str, Mapping[str, Any]]


def test_the_values_hold_no_secret_and_know_the_variables() -> None:
    known = (REPOSITORY / "docs" / "reference" / "environment.md").read_text("utf-8")
    assert all(f"`{name}`" in known for name in (*PLAIN, *SECRET) if name.startswith("SLUICE_"))
    assert not list(filter(HOLDS_A_SECRET.search, PLAIN))


def test_the_page_names_the_chart_and_the_keys_of_the_values() -> None:
    page = (REPOSITORY / "docs" / "deploy" / "containers.md").read_text("utf-8")
    assert set(re.findall(r"apache-airflow/airflow --version (\S+)", page)) == {VERSION}
    given = re.findall(r"^([a-z-]+)=", page, re.MULTILINE)
    assert sorted(given) == sorted([*AIRFLOWS_KEYS.values(), "jwt-secret", *(key for _, key in SECRET.values())])


@pytest.fixture(scope="module")
def pods() -> Pods:
    """The pods that the chart makes of the values: by component of Airflow, and `task` for those of tasks."""
    helm, chart = shutil.which("helm"), os.environ.get(CHART)
    if not helm or not chart:
        pytest.skip(
            f"the values were NOT rendered: helm must be on PATH, and {CHART} must name the file that "
            f"'helm pull apache-airflow/airflow --version {VERSION}' writes"
        )
    command = [helm, "template", "airflow", chart, "--version", VERSION, "--values", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for manifest in filter(None, yaml.safe_load_all(done.stdout)):
        metadata = manifest["metadata"]
        if manifest["kind"] == "ConfigMap" and "pod_template_file.yaml" in manifest["data"]:
            found["task"] = yaml.safe_load(manifest["data"]["pod_template_file.yaml"])["spec"]
        elif manifest["kind"] in {"Deployment", "StatefulSet", "Job"}:
            assert metadata["labels"]["chart"] == f"airflow-{VERSION}"
            found[metadata["labels"]["component"]] = manifest["spec"]["template"]["spec"]
    return found


def container(pods: Pods, component: str) -> Mapping[str, Any]:
    """The container of a pod that runs Airflow, not one of those beside it."""
    name = "base" if component == "task" else component
    (found,) = (each for each in pods[component]["containers"] if each["name"] == name)
    return found


def variables(each: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {given["name"]: given for given in each.get("env") or []}


def images(pods: Pods) -> Sequence[str]:
    every = [each for pod in pods.values() for each in (pod.get("initContainers") or []) + pod["containers"]]
    return [each["image"] for each in every]


COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer", "task")


@pytest.mark.infra
@pytest.mark.parametrize("component", COMPONENTS)
def test_each_part_of_airflow_gets_every_variable_and_secrets_by_reference(pods: Pods, component: str) -> None:
    given = variables(container(pods, component))
    assert {name: given[name].get("value") for name in PLAIN} == PLAIN
    expected = SECRET | {name: ("airflow-keys", key) for name, key in AIRFLOWS_KEYS.items()}
    references = {name: given[name]["valueFrom"]["secretKeyRef"] for name in expected}
    assert {name: (each["name"], each["key"]) for name, each in references.items()} == expected


@pytest.mark.infra
@pytest.mark.parametrize("component", COMPONENTS)
def test_each_part_has_the_contracts_and_a_place_for_sluice_home(pods: Pods, component: str) -> None:
    mounts = {each["mountPath"]: each for each in container(pods, component)["volumeMounts"]}
    volumes = {each["name"]: each for each in pods[component]["volumes"]}
    assert volumes[mounts[PLAIN["SLUICE_CONTRACTS"]]["name"]]["configMap"] == {"name": "sluice-contracts"}
    # The mount itself belongs to root, which Sluice refuses: its folder must be one below.
    assert "emptyDir" in volumes[mounts[str(PurePosixPath(PLAIN["SLUICE_HOME"]).parent)]["name"]]


@pytest.mark.infra
def test_no_container_has_a_secret_in_its_manifest(pods: Pods) -> None:
    for pod in pods.values():
        for each in (pod.get("initContainers") or []) + pod["containers"]:
            named = [given for name, given in variables(each).items() if HOLDS_A_SECRET.search(name)]
            assert all("value" not in given for given in named), each["name"]
            assert "-p" not in (each.get("args") or []), "a password on a command line"


@pytest.mark.infra
def test_all_of_airflow_runs_the_image_that_has_sluice(pods: Pods) -> None:
    own = f"{VALUES['defaultAirflowRepository']}:{VALUES['defaultAirflowTag']}"
    assert {image for image in images(pods) if "airflow" in image} == {own}


@pytest.mark.infra
def test_a_tasks_pod_writes_to_its_volumes_alone_and_has_a_limit(pods: Pods) -> None:
    task = container(pods, "task")
    assert task["securityContext"]["readOnlyRootFilesystem"] is True
    assert task["securityContext"]["allowPrivilegeEscalation"] is False
    writable = {each["mountPath"] for each in task["volumeMounts"] if not each.get("readOnly")}
    assert writable == {"/opt/airflow/logs", "/sluice", "/tmp"}
    assert task["resources"]["limits"]["memory"] == "4Gi"
    assert pods["task"]["securityContext"]["runAsUser"] == 50000
