"""The operators that start a group's Spark applications: the Spark provider's, made strict about where and with what.

What it adds: a connection that is missing is an error (the provider would fall back to YARN), the Kafka settings travel
in the driver's environment and never on a command line or in a rendered field, Spark's own log goes to a file, and an
exit code that says "somebody must act" is not retried.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSkipException,
)

import sluice
from sluice import jvm
from sluice.contract.groups import GroupSettings
from sluice.embedded import archive
from sluice_airflow.connections import kafka_config, registry_config

JOBS = Path(__file__).resolve().parents[2] / "jobs"
INCLUDE = Path(sluice.__file__).resolve().parents[1]
SOMEBODY_MUST_ACT, TABLES_WAIT = 3, 4
# Were the task running again before the scheduler has heard of its end, that would be taken for the end of the new one.
BETWEEN_TURNS = timedelta(seconds=20)
# Spark puts these before a group's own `spark.driver.extraJavaOptions`, which stand in place of ours.
DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
# Linux takes no argument of 128 KiB or more.
MOST_ARGUMENT = 64 << 10
# What the launcher and the JVM say on every start, and nobody can act on.
BANNERS = ("WARNING: Using incubator modules", "WARNING: package sun.security.action not in java.base")


class QuietSparkSubmitHook(SparkSubmitHook):
    """The provider's hook without the lines that every start prints."""

    @property
    def exit_code(self) -> int | None:
        """What spark-submit ended with."""
        return self._submit_sp.returncode if self._submit_sp else None

    @property
    def master(self) -> str:
        """The master that the connection names."""
        return str(self._connection["master"])

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(iter(_without_banners(itr)))


def _without_banners(lines: Iterable[Any]) -> Iterator[Any]:
    return (line for line in lines if line.strip() and not line.startswith(BANNERS))


class JobOperator(SparkSubmitOperator):
    """Starts a file of `jobs/` with the settings of a group.

    Args:
        job: The file's name.
        arguments: Its arguments.
        group: The group.
        settings: Its settings.
        log: Name of Spark's own log. Default: the group's.
    """

    def __init__(
        self, *, job: str, arguments: list[str], group: str, settings: GroupSettings, log: str = "", **kwargs: Any
    ) -> None:
        super().__init__(
            application=str(JOBS / job),
            application_args=arguments,
            name=f"sluice-{log or group}",
            conn_id=settings.spark.connection,
            conf=dict(settings.spark.conf),
            driver_memory=settings.spark.driver_memory,
            executor_memory=settings.spark.executor_memory,
            durable=False,
            **kwargs,
        )
        self.group = group
        self.log_name = log or group
        self.spark_home: Path | None = None

    def nothing_due(self) -> str | None:
        """Why no application is started; None where one is."""
        return None

    def is_small(self) -> bool:
        """Whether the application is over before a JVM has gained what it spends on compiling for speed."""
        return False

    def execute(self, context: Any) -> None:  # noqa: ARG002 - Airflow's signature
        """Submit the job and wait for it.

        Raises:
            AirflowSkipException: There is nothing to do.
            AirflowRescheduleException: The job did a part; it is started again when it gets a slot, which is no retry.
            AirflowFailException: The connection is missing or unusable, or the job says that somebody must act.
            AirflowException: The job failed; a further try may help.
        """
        if reason := self.nothing_due():
            raise AirflowSkipException(reason)
        hook = self.ready_hook()
        log = spark_log(self.log_name)
        self.log.info("Spark's own log: %s", log)
        try:
            hook.submit(self.application, env=driver_env(log, self.spark_home))
        except AirflowException as error:
            if hook.exit_code == TABLES_WAIT:
                self.log.info("The time was used up: the slot goes to whoever waits, then the other tables follow.")
                raise AirflowRescheduleException(datetime.now(UTC) + BETWEEN_TURNS) from error
            if hook.exit_code == SOMEBODY_MUST_ACT:
                raise AirflowFailException(
                    f"The job says that somebody must act; its last lines tell. {error}"
                ) from error
            raise

    def ready_hook(self) -> QuietSparkSubmitHook:
        """The hook, with all that depends on the connection.

        Raises:
            AirflowFailException: The connection is missing, or asks for a deploy mode other than client.
        """
        try:
            connection = Connection.get(self._conn_id)
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"The Airflow connection {self._conn_id!r} does not exist, so it is not known on which Spark to run "
                f"{self.group!r}. Create it (type spark, host such as local[2] or spark://host:7077), or name another "
                "in groups.yaml under spark.connection."
            ) from error
        mode = connection.extra_dejson.get("deploy-mode") or "client"
        if mode != "client":
            raise AirflowFailException(
                f"Connection {self._conn_id!r} asks for deploy mode {mode!r}. The driver must run beside the worker "
                "(client): there it gets its settings by environment, without a secret on a command line."
            )
        local = (connection.host or "").startswith("local")
        jars = spark_jars()
        # Beside the folder of the jars, as it is made from them; a cluster brings its own class path.
        self.spark_home = archive.spark_home(Path(jars[0]).parent.parent, jars) if local and jars else None
        # On a cluster the executors do the work: a driver by itself is always small.
        given = self.conf or {}
        ours = jvm_options(self.spark_home, small=not local or self.is_small())
        defaults = " ".join(filter(None, [ours[DEFAULT_OPTIONS], given.get(DEFAULT_OPTIONS)]))
        self.conf = {**ours, **given, DEFAULT_OPTIONS: defaults}
        if local:
            # One JVM: on its class path, the jars are neither copied nor left out of the class archive.
            self.driver_class_path = os.pathsep.join(jars) or None
        else:
            self.jars = ",".join(jars) or None
            self.py_files = package_zip(own_folder("cache"))
        self._hook = self._get_hook()
        return self._hook  # type: ignore[return-value]

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        hook.__class__ = QuietSparkSubmitHook
        return hook


class IngestOperator(JobOperator):
    """Starts `jobs/ingest.py` for a group.

    Args:
        promised: What the plan promises (`sluice.ingest.outcome.expected`); without work the task is skipped.
    """

    template_fields = (*JobOperator.template_fields, "promised")

    def __init__(self, *, group: str, promised: Any = None, **kwargs: Any) -> None:
        arguments = [f"--group={group}", "--run-id={{ run_id }}"]
        super().__init__(job="ingest.py", arguments=arguments, group=group, **kwargs)
        self.promised = promised

    def nothing_due(self) -> str | None:
        """Nothing is due where the plan holds no work."""
        if self.promised is None or self.promised["has_work"]:
            return None
        return "Nothing to stage or to publish: no Spark application is started."

    def is_small(self) -> bool:
        """As the plan has it."""
        return bool(self.promised and self.promised["is_small"])


class MaintainOperator(JobOperator):
    """Starts `jobs/maintain.py` for those tables of a group that need an action.

    Args:
        action: The action.
        seconds: After so many no further table is begun before whoever waits for the slot had it.
        needs: What `assess` found, a list of maps; without a table of this group that needs something it is skipped.
        dry_run: "True" where orphan files are to be listed, and to stay.
    """

    template_fields = (*JobOperator.template_fields, "needs", "dry_run")

    def __init__(
        self, *, action: str, group: str, seconds: int, needs: Any = None, dry_run: str = "", **kwargs: Any
    ) -> None:
        arguments = [f"--action={action}", "--run-id={{ run_id }}", f"--seconds={seconds}"]
        log = f"{group}-{action}"
        super().__init__(job="maintain.py", arguments=arguments, group=group, log=log, **kwargs)
        self.needs, self.dry_run = needs, dry_run

    def nothing_due(self) -> str | None:
        """Nothing is due where no table needs anything; else the tables become an argument."""
        due = [need["table"] for need in self.needs or () if need["group"] == self.group and need["steps"]]
        tables = json.dumps(due)
        if len(tables) > MOST_ARGUMENT:
            self.listing = tempfile.NamedTemporaryFile("w", prefix="sluice-", suffix=".json")  # noqa: SIM115 - as long as the operator
            self.listing.write(tables)
            self.listing.flush()
            tables = f"@{self.listing.name}"
        more = ["--dry-run"] if self.dry_run == "True" else []
        self.application_args = [*(self.application_args or []), "--tables", tables, *more]
        return None if due else "No table needs anything: no Spark application is started."


class BackfillOperator(JobOperator):
    """Starts `jobs/backfill.py` for one slice of a backfill.

    Args:
        piece: The slice: table, topic, origin, its number and the run's id.
    """

    def __init__(self, *, piece: Mapping[str, Any], group: str, **kwargs: Any) -> None:
        named = {"table": "table", "topic": "topic", "slice": "slice", "source": "origin", "run-id": "run_id"}
        # As one text each: a topic may begin with a dash.
        arguments = [f"--{option}={piece[field]}" for option, field in named.items()]
        log = f"{group}-backfill{piece['slice']}"
        super().__init__(job="backfill.py", arguments=arguments, group=group, log=log, **kwargs)
        self.map_name = f"slice {piece['slice']}"


def spark_jars() -> list[str]:
    """The jars in the folder that `SLUICE_JARS` names; none where Spark has its own."""
    folder = os.environ.get("SLUICE_JARS")
    return sorted(str(path) for path in Path(folder).glob("*.jar")) if folder else []


def jvm_options(home: Path | None, *, small: bool = False) -> dict[str, str]:
    """Where the driver logs to, and its stack; then how it is tuned, with an archive of classes for a quick start.

    Args:
        home: the Spark home that the archive is kept in.
        small: whether it is over before compiling for speed has paid.
    """
    tuning = [*jvm.DRIVER, *(jvm.SMALL if small else ()), *(archive.options(home) if home else ())]
    return {
        DEFAULT_OPTIONS: shlex.join([jvm.STACK, f"-Dlog4j2.configurationFile={JOBS / 'log4j2.properties'}"]),
        "spark.driver.extraJavaOptions": shlex.join(tuning),
    }


def spark_log(name: str) -> Path:
    """The file that keeps what Spark says."""
    return own_folder("logs") / f"spark-{name}.log"


def own_folder(name: str) -> Path:
    """A folder of that name in SLUICE_HOME; without one the user's own in the temporary folder.

    Raises:
        AirflowFailException: Somebody else has made that one, who could read, or direct, what is written there.
    """
    home = os.environ.get("SLUICE_HOME")
    folder = Path(home) / name if home else Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not home and (folder.is_symlink() or folder.stat().st_uid != os.getuid()):
        raise AirflowFailException(f"{folder} belongs to somebody else: remove it, or set SLUICE_HOME.")
    return folder


def driver_env(log: Path, spark_home: Path | None = None) -> dict[str, str]:
    """The driver's environment: the worker's, the Kafka settings, and where to find Spark, the package and the log."""
    env = dict(os.environ)
    path = [str(INCLUDE), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    env["SLUICE_SPARK_LOG"] = str(log)
    if spark_home:
        env["SPARK_HOME"] = str(spark_home)
    if settings := kafka_config():
        env["SLUICE_KAFKA_CONFIG"] = json.dumps(settings)
    if settings := registry_config():
        env["SLUICE_REGISTRY_CONFIG"] = json.dumps(settings)
    return env


def package_zip(folder: Path) -> str:
    """`include/sluice` as a zip in a folder, for executors on other machines; one for each version of it."""
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
        Path(made).rename(target)  # as a whole: another task may make it at the same time
    return str(target)
