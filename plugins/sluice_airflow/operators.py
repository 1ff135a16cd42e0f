"""Operators that start a group's Spark applications; based on the Spark provider's operator.

A missing connection is an error (the provider falls back to YARN). Kafka settings travel in the driver's environment,
never on a command line or in a rendered field. Spark's own log goes to a file. Terminal exit codes are not retried.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection

from sluice import jvm
from sluice.contract.groups import GroupSettings
from sluice.embedded import class_archive
from sluice_airflow import spark_driver
from sluice_airflow.compat import ExitCodeHook
from sluice_airflow.connections import deploy_mode
from sluice_airflow.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from sluice_airflow.spark_driver import JOBS

EXIT_TERMINAL, EXIT_UNFINISHED = 3, 4
# The scheduler must see the end of this try first; else it would take it for the end of the next one.
RESCHEDULE_DELAY = timedelta(seconds=20)
# The masters that Spark and Sluice know. Spark takes any name that begins with "local" for its own machine.
MASTER = re.compile(r"local(\[[\d*]+(,\d+)?\])?|yarn|(spark|k8s)://.+")
# Linux limits an argument to 128 KiB.
MAX_ARGUMENT_BYTES = 64 << 10


class JobOperator(SparkSubmitOperator):
    """Runs a script of `jobs/` with the settings of a group.

    Args:
        job: Name of the script.
        arguments: Its arguments.
        group: Name of the group.
        settings: Settings of the group.
        log: Name of Spark's log file; empty: the group's name.
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
        self.spark = settings.spark
        self.log_name = log or group
        self.spark_home: Path | None = None

    def skip_reason(self) -> str | None:
        """Why no application is started; None if one is."""
        return None

    def is_small(self) -> bool:
        """Whether the application is so short that JIT compilation for speed does not pay."""
        return False

    def execute(self, context: Any) -> None:  # noqa: ARG002 - Airflow's signature
        """Submit the job and wait for it.

        Raises:
            AirflowSkipException: There is nothing to do.
            AirflowRescheduleException: The job did a part; it starts again in its next slot, without counting a retry.
            AirflowFailException: The connection is missing or unusable, or the job failed with a terminal error.
            AirflowException: The job failed; a retry may help.
        """
        if reason := self.skip_reason():
            raise AirflowSkipException(reason)
        hook = self.ready_hook()
        log = spark_driver.spark_log(self.log_name)
        self.log.info("Spark log: %s", log)
        try:
            hook.submit(self.application, env=spark_driver.driver_env(log, self.spark_home))
        except AirflowException as error:
            if hook.exit_code == EXIT_UNFINISHED:
                self.log.info(
                    "The time of this turn is over. The slot goes to waiting tasks; then the remaining tables follow."
                )
                raise AirflowRescheduleException(datetime.now(UTC) + RESCHEDULE_DELAY) from error
            if hook.exit_code == EXIT_TERMINAL:
                raise AirflowFailException(
                    f"The job failed, and a retry does not help. See its last log lines. {error}"
                ) from error
            raise

    def ready_hook(self) -> ExitCodeHook:
        """Make the hook, with all settings that depend on the connection.

        Raises:
            AirflowFailException: The connection is missing, or names a master or deploy mode that can't be used.
        """
        self._check_deploy_mode()
        given = self.conf or {}
        try:
            hook = ExitCodeHook(
                conf=given,
                conn_id=self.spark.connection,
                executor_memory=self.spark.executor_memory,
                driver_memory=self.spark.driver_memory,
                name=self.name,
                application_args=self.application_args,
                deploy_mode="client",  # a site's spark-defaults.conf may have another
            )
        except NameError as error:  # the provider's import of Kubernetes failed, and it goes on without
            raise AirflowFailException(
                f"Connection {self.spark.connection!r} names Kubernetes, and {error}. "
                "Install apache-airflow-providers-cncf-kubernetes on the worker."
            ) from error
        self._check_master(hook.master)
        local = hook.master.startswith("local")
        jars = spark_driver.spark_jars()
        # Next to the folder of the jars, which it is made from. A cluster has its own class path.
        self.spark_home = class_archive.spark_home(Path(jars[0]).parent.parent, jars) if local and jars else None
        archive = class_archive.driver_archive_options(self.spark_home) if self.spark_home else ()
        # On a cluster the executors do the work: the driver is always small.
        small = not local or self.is_small()
        self.conf = jvm.driver_conf(given, JOBS / "log4j2.properties", archive, small=small)
        hook.use(
            conf=self.conf,
            # In one JVM, jars on the class path are not copied, and the class archive covers them.
            class_path=os.pathsep.join(jars) or None if local else None,
            jars=None if local else ",".join(jars) or None,
            py_files=None if local else spark_driver.package_zip(spark_driver.own_folder("cache")),
        )
        self._hook = hook  # the provider's on_kill ends it
        return hook

    def _check_deploy_mode(self) -> None:
        name = self.spark.connection
        try:
            connection = Connection.get(name)
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"The Airflow connection {name!r} does not exist, so group {self.group!r} has no Spark to run on. "
                "Create it (type spark, host such as local[2] or spark://host:7077), or set spark.connection in "
                "groups.yaml to another."
            ) from error
        mode = deploy_mode(connection)
        if mode != "client":
            raise AirflowFailException(
                f"Connection {name!r} has deploy mode {mode!r}. Set it to client: the driver must run on the worker, "
                "where it gets its settings by environment, without secrets on a command line."
            )

    def _check_master(self, master: str) -> None:
        if not MASTER.fullmatch(master):
            raise AirflowFailException(
                f"Connection {self.spark.connection!r} gives Spark the master {master!r}, which Sluice can't use. "
                "Set the host to local[2] without a port, to spark://host with port 7077, to yarn, or to k8s://https://host."
            )


class IngestOperator(JobOperator):
    """Runs `jobs/ingest.py` for a group.

    Args:
        promised: The plan's expected work (`sluice.ingest.outcome`); without work the task is skipped.
    """

    template_fields = (*JobOperator.template_fields, "promised")

    def __init__(self, *, group: str, promised: Any = None, **kwargs: Any) -> None:
        arguments = [f"--group={group}", "--run-id={{ run_id }}"]
        super().__init__(job="ingest.py", arguments=arguments, group=group, **kwargs)
        self.promised = promised

    def skip_reason(self) -> str | None:
        """Skip if the plan has no work."""
        if self.promised is None or self.promised["has_work"]:
            return None
        return "Nothing to stage or to publish: no Spark application is started."

    def is_small(self) -> bool:
        """Whether the plan is small."""
        return bool(self.promised and self.promised["is_small"])


class MaintainOperator(JobOperator):
    """Runs `jobs/maintain.py` for the tables of a group that need an action.

    Args:
        action: The maintenance action.
        seconds: After this time the job starts no further table, and gives its slot to waiting tasks.
        needs: The assessments of `assess`, a list of maps; without a need in this group the task is skipped.
        dry_run: "True" to only list orphan files.
    """

    template_fields = (*JobOperator.template_fields, "needs", "dry_run")

    def __init__(
        self, *, action: str, group: str, seconds: int, needs: Any = None, dry_run: str = "", **kwargs: Any
    ) -> None:
        arguments = [f"--action={action}", "--run-id={{ run_id }}", f"--seconds={seconds}"]
        log = f"{group}-{action}"
        super().__init__(job="maintain.py", arguments=arguments, group=group, log=log, **kwargs)
        self.needs, self.dry_run = needs, dry_run

    def skip_reason(self) -> str | None:
        """Skip if no table needs anything; else pass the tables as an argument."""
        due = [need["table"] for need in self.needs or () if need["group"] == self.group and need["steps"]]
        tables = json.dumps(due)
        if len(tables) > MAX_ARGUMENT_BYTES:
            self.listing = tempfile.NamedTemporaryFile("w", prefix="sluice-", suffix=".json")  # noqa: SIM115 - as long as the operator
            self.listing.write(tables)
            self.listing.flush()
            tables = f"@{self.listing.name}"
        flags = ["--dry-run"] if self.dry_run == "True" else []
        self.application_args = [*(self.application_args or []), "--tables", tables, *flags]
        return None if due else "No table needs anything: no Spark application is started."


class BackfillOperator(JobOperator):
    """Runs `jobs/backfill.py` for one slice of a backfill.

    Args:
        piece: The slice: table, topic, origin, slice number and run id.
    """

    def __init__(self, *, piece: Mapping[str, Any], group: str, **kwargs: Any) -> None:
        fields_by_option = {
            "table": "table",
            "topic": "topic",
            "slice": "slice",
            "source": "origin",
            "run-id": "run_id",
        }
        # As `--option=value`: a topic may begin with a dash.
        arguments = [f"--{option}={piece[field]}" for option, field in fields_by_option.items()]
        log = f"{group}-backfill{piece['slice']}"
        super().__init__(job="backfill.py", arguments=arguments, group=group, log=log, **kwargs)
        self.map_name = f"slice {piece['slice']}"
