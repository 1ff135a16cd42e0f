"""What a Spark driver gets on its start: jars, JVM options, log file, environment, and the package for executors."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import sluice
from sluice import driver_files as files_of_driver
from sluice.contract import folder as contract_folder
from sluice.embedded.failure import StackError
from sluice.embedded.private_files import private_folder
from sluice_airflow import driver_variables
from sluice_airflow.connections import kafka_config, registry_config
from sluice_airflow.sdk import AirflowFailException

_HERE = Path(__file__).resolve().parent
JOBS = _HERE / "jobs" if (_HERE / "jobs").is_dir() else _HERE.parents[1] / "jobs"  # the wheel's, or the checkout's
INCLUDE = Path(sluice.__file__).resolve().parents[1]


def spark_jars() -> list[str]:
    """List the jars in the folder `SLUICE_JARS`; none if Spark has its own."""
    folder = os.environ.get("SLUICE_JARS")
    return sorted(str(path) for path in Path(folder).glob("*.jar")) if folder else []


def spark_log(name: str) -> Path:
    """The path of Spark's log file."""
    return own_folder("logs") / f"spark-{name}.log"


def own_folder(name: str) -> Path:
    """Make a folder in SLUICE_HOME; without SLUICE_HOME, in the temporary folder of the current user.

    Raises:
        AirflowFailException: The folder can't be created, or another user could read or replace its files.
    """
    home = os.environ.get("SLUICE_HOME")
    base = Path(home) if home else Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}"
    try:
        return private_folder(private_folder(base.expanduser().absolute()) / name)
    except StackError as error:
        raise AirflowFailException(str(error)) from error
    except OSError as error:
        raise AirflowFailException(
            f"The folder {base} can't be used: {error}. Set SLUICE_HOME to one that the worker's user may write."
        ) from error


def driver_env(log: Path, spark_home: Path | None = None) -> dict[str, str]:
    """Make the driver's environment: what it needs of the worker's, Kafka's settings, the paths of Spark and log.

    The driver runs in this Python, unless `PYSPARK_DRIVER_PYTHON` names another. `PYSPARK_PYTHON` is the executors'.
    """
    env = {"PYSPARK_DRIVER_PYTHON": sys.executable, **driver_variables.select_variables(os.environ)}
    path = [str(INCLUDE), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    env["SLUICE_SPARK_LOG"] = str(log)
    if spark_home:
        env["SPARK_HOME"] = str(spark_home)
    return env | _service_variables()


def cluster_variables() -> dict[str, str]:
    """Make the environment of a driver on another machine: settings of Kafka, registry, catalog and storage."""
    return driver_variables.select_for_cluster(os.environ) | _service_variables()


def _service_variables() -> dict[str, str]:
    """The settings of Kafka and the registry, of those that Airflow has a connection for."""
    settings = {"SLUICE_KAFKA_CONFIG": kafka_config(), "SLUICE_REGISTRY_CONFIG": registry_config()}
    return {name: json.dumps(each) for name, each in settings.items() if each}


def driver_files(folder: Path, variables: Mapping[str, str]) -> Path:
    """Pack the settings and contracts for a driver on another machine."""
    places = (Path(place) for place in (os.environ.get("PYICEBERG_HOME"), Path.home(), Path.cwd()) if place)
    catalogs = next((file for place in places if (file := place / ".pyiceberg.yaml").exists()), None)
    return files_of_driver.pack(folder, variables, contract_folder.default_folder(), catalogs)


def package_zip(folder: Path) -> str:
    """Zip `include/sluice` for executors on other machines, once per version of its files."""
    files = sorted(p for p in (INCLUDE / "sluice").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    version = hashlib.sha256()
    for path in files:
        version.update(f"{path.relative_to(INCLUDE)}\0".encode() + path.read_bytes())
    target = folder / f"sluice-{version.hexdigest()[:16]}" / "sluice.zip"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        handle, made = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(INCLUDE))
        Path(made).rename(target)  # atomic: another task may make it at the same time
    return str(target)
