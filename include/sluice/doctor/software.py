"""Checks what is installed: Python and its packages, Java, Spark's jars against the lock.

In: the environment. Out: the versions, or what does not fit.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sluice import __version__
from sluice.doctor.findings import SkippedError
from sluice.embedded import jars, java
from sluice.embedded.home import cache_folder
from sluice.errors import ConfigError

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
AIRFLOW = "apache-airflow-core"
PACKAGES = ("pyspark", "pyiceberg", "confluent-kafka")
SPARK_JAR = "spark-sql-kafka-0-10"


def check_versions() -> str:
    """Check Python, and that Spark's packages have one version, which the locked jars are made for.

    Raises:
        ConfigError: a package is missing, or does not fit.
    """
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        raise ConfigError(
            f"Python {platform.python_version()} is not supported.",
            next_step="Use Python {}.{} to {}.{}.".format(*OLDEST_PYTHON, *NEWEST_PYTHON),
        )
    found = {name: _version(name) for name in (*PACKAGES, "pyspark-client", AIRFLOW)}
    if missing := [name for name in PACKAGES if found[name] is None]:
        raise ConfigError(
            f"Packages are missing: {', '.join(missing)}.", next_step="Install Sluice's requirements (make setup)."
        )
    spark, client, wanted = found["pyspark"], found["pyspark-client"], _locked_spark()
    if client and client != spark:
        raise ConfigError(
            f"pyspark is {spark}, and pyspark-client, which installs over its files, is {client}.",
            next_step="Install both in the same version.",
        )
    if spark and wanted and _minor(spark) != _minor(wanted):
        raise ConfigError(
            f"pyspark is {spark}, but the locked jars are for Spark {wanted}.", next_step=f"Install pyspark {wanted}."
        )
    texts = [f"{name} {text}" for name, text in found.items() if text and name != "pyspark-client"]
    return f"sluice {__version__}, Python {platform.python_version()}, {', '.join(texts)}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _locked_spark() -> str | None:
    revisions = [each.rev for each in jars.read_lock()[jars.SPARK] if each.name.startswith(SPARK_JAR)]
    return revisions[0] if revisions else None


def _minor(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")[:2])


def check_java() -> str:
    """Check that there is a Java that Spark runs on.

    Raises:
        StackError: there is none.
        ConfigError: JAVA_HOME is another version.
    """
    if named := os.environ.get("JAVA_HOME"):
        found = java.java_version(Path(named))
        if found not in java.SUPPORTED:
            what = f"is Java {found}" if found else "has no bin/java that runs"
            raise ConfigError(f"JAVA_HOME={named} {what}.", next_step="Set JAVA_HOME to a Java 17 or 21.")
        return f"Java {found} at {named}"
    packaged = java.find_java(cache_folder())
    return f"Java {packaged.version} at {packaged.home} ({packaged.source})"


def check_jars() -> str:
    """Compare the jars in SLUICE_JARS with the lock, byte by byte.

    Raises:
        SkippedError: no folder is set.
        ConfigError: jars are missing, damaged, or of another version.
    """
    named = os.environ.get("SLUICE_JARS")
    if not named:
        raise SkippedError("SLUICE_JARS is not set: Spark must have the jars itself (`make jars` fetches them)")
    folder = Path(named).expanduser()
    pins = jars.read_lock()[jars.SPARK]
    there = {path.name: path for path in folder.glob("*.jar")} if folder.is_dir() else {}
    problems = []
    for coordinate, digest in pins.items():
        path = there.pop(coordinate.filename, None)
        if path is None:
            others = [name for name in there if name.startswith(f"{coordinate.name}-")]
            problems.append(f"{coordinate.filename} is missing" + (f" (there is {others[0]})" if others else ""))
        elif jars.sha256(path) != digest:
            problems.append(f"{coordinate.filename} differs from the pinned file")
    if problems:
        raise ConfigError(
            f"{folder}: {'; '.join(problems)}.", next_step="Set SLUICE_JARS to the folder that `make jars` prints."
        )
    more = f", and {len(there)} others" if there else ""
    return f"{len(pins)} jars as locked{more}, in {folder}"
