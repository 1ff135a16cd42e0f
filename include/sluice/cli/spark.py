"""Starts Spark on this machine for a command: its shell, or a job of `jobs/` as Airflow's tasks start it.

Credentials go into a private file or the environment, never onto the command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sluice import jvm
from sluice.errors import ConfigError
from sluice.kafka import airflow_connections

if TYPE_CHECKING:
    from sluice.contract.groups import GroupSettings

MASTER = "local[*]"
INCLUDE = Path(__file__).resolve().parents[2]


def set_java() -> None:
    """Set JAVA_HOME and Spark's address for this process, where they are not set.

    Raises:
        StackError: no Java was found.
    """
    from sluice.embedded.home import cache_folder
    from sluice.embedded.java import find_java

    if not os.environ.get("JAVA_HOME"):
        os.environ["JAVA_HOME"] = str(find_java(cache_folder()).home)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def spark_program(name: str) -> Path:
    """The path of one of Spark's programs, such as `spark-submit`."""
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "bin" / name


@contextmanager
def properties_file(conf: Mapping[str, str]) -> Iterator[Path]:
    """A file for `--properties-file`, readable by its owner only, in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="sluice-spark-") as folder:
        properties = Path(folder, "spark.conf")
        properties.touch(0o600)
        properties.write_text("".join(f"{key} {_escaped(value)}\n" for key, value in conf.items()), encoding="utf-8")
        yield properties


def _escaped(value: str) -> str:
    """Escape a value for java.util.Properties in a UTF-8 file: a second line would be another setting."""
    plain = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{plain}" if plain[:1] in {" ", "\t", "\f"} else plain


def job_file(name: str) -> Path:
    """The path of a Spark job: in the checkout, or in the installed package of the Airflow part.

    Raises:
        ConfigError: it is in neither.
    """
    folders = [INCLUDE.parent / "jobs"]
    installed = find_spec("sluice_airflow")  # found, and not imported: it needs Airflow
    folders += [Path(each) / "jobs" for each in (installed.submodule_search_locations or ())] if installed else []
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(
        f"The Spark job {name} was not found in {' or '.join(map(str, folders))}.",
        next_step="Run the command from a checkout, or where Sluice's wheel is installed.",
    )


def run_job(
    name: str, arguments: Sequence[str], settings: GroupSettings, *, small: bool = False, what: str = "Spark"
) -> int:
    """Run a job on this machine by spark-submit, with a group's settings, and wait for it.

    Args:
        name: the job's file in `jobs/`.
        arguments: its arguments.
        settings: the group's. Its Airflow connection is not used: the master is this machine.
        small: whether the application ends before optimised compilation pays off.
        what: what the application does, for the warning if it is stopped.

    Returns:
        The job's exit code: 0 it ended, 2 a retry may help, or it was stopped after the group's `timeout`, 3 action
        required, 4 out of time.

    Raises:
        ConfigError: Spark's jars, Java or the job were not found, or Airflow can't be asked for connections.
        RetryableError: Airflow did not answer in time.
    """
    from sluice.embedded import class_archive
    from sluice.ingest import session

    job = job_file(name)
    for each in (airflow_connections.KAFKA, airflow_connections.REGISTRY):
        airflow_connections.export(each)  # the driver can't ask
    set_java()
    found = session.spark_jars()
    home = class_archive.spark_home(Path(found[0]).parent.parent, found)  # with it, Spark starts in half of the time
    with tempfile.TemporaryDirectory(prefix="sluice-log-") as logs:
        archive = class_archive.driver_archive_options(home) if home else ()
        conf = {
            **jvm.driver_conf(settings.spark.conf, job.with_name("log4j2.properties"), archive, small=small),
            "spark.master": MASTER,
            "spark.driver.memory": settings.spark.driver_memory,
            "spark.driver.extraClassPath": os.pathsep.join(found),
        }
        path = [str(INCLUDE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
            **({"SPARK_HOME": str(home)} if home else {}),
            "SLUICE_SPARK_LOG": os.environ.get("SLUICE_SPARK_LOG") or str(Path(logs, "spark.log")),
        }
        with properties_file(conf) as properties:
            submit = home / "bin" / "spark-submit" if home else spark_program("spark-submit")
            command = [str(submit), "--properties-file", str(properties), str(job), *arguments]
            # The job's log is progress, so that standard output holds what the command found and nothing else.
            try:
                seconds = settings.timeout.total_seconds()
                return subprocess.run(command, env=env, check=False, stdout=_log_stream(), timeout=seconds).returncode
            except subprocess.TimeoutExpired:
                print(f"warning: {what} was stopped after the group's timeout of {settings.timeout}", file=sys.stderr)
                return 2


def _log_stream() -> int | None:
    """Where the job's lines go: to this process's standard error."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):  # a test has replaced it by a text buffer
        return subprocess.DEVNULL
