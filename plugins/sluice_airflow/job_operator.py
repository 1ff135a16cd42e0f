"""The operator that starts a Spark application and waits for it; based on the Spark provider's operator.

A missing connection is an error (the provider falls back to YARN). Kafka settings travel in the driver's environment,
or with deploy mode cluster in a file; never on a command line or in a rendered field. The result is read from Sluice's
own tables, and the exit code only says whether a retry helps.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection

from sluice import dag_ids, driver_files, jvm
from sluice.contract.groups import GroupSettings
from sluice.embedded import class_archive
from sluice_airflow import driver_variables, spark_driver
from sluice_airflow.compat import POD_STATE_KEY, ExitCodeHook, is_unknown_application
from sluice_airflow.connections import deploy_mode
from sluice_airflow.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from sluice_airflow.services import Application, SparkService, State
from sluice_airflow.spark_driver import JOBS

EXIT_TERMINAL = 3
# The scheduler must have seen that this try ended before the next try starts; else it ends the next try for it.
RESCHEDULE_DELAY = timedelta(seconds=20)
# The masters that Spark and Sluice know. Spark takes any name that begins with "local" for its own machine.
MASTER = re.compile(r"local(\[[\d*]+(,\d+)?\])?|yarn|(spark|k8s)://.+")
JOBS_EXTRA = "sluice-jobs"
"""Field of a connection's extra: the folder of the main programs on the cluster, such as `local:///opt/sluice/jobs`."""


class JobOperator(SparkSubmitOperator):
    """Runs a script of `jobs/` with the settings of a group.

    Args:
        command: Name of the script, and its arguments.
        group: Name of the group.
        settings: Settings of the group.
        log: Name of Spark's log file; empty: the group's name.
        service: What submits the application instead of spark-submit.
    """

    def __init__(
        self,
        *,
        command: list[str],
        group: str,
        settings: GroupSettings,
        log: str = "",
        service: SparkService | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            application=str(JOBS / command[0]),
            application_args=command[1:],
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
        self.service = service
        self.spark_home: Path | None = None
        self.sent_files: list[str] = []  # beside the settings, for a driver on another machine
        self.began = datetime.now(UTC)
        self._application_id: str | None = None
        self._ready: ExitCodeHook

    def skip_reason(self) -> str | None:
        """Why no application is started; None if one is."""
        return None

    def is_small(self) -> bool:
        """Whether the application is so short that JIT compilation for speed does not pay."""
        return False

    def is_unfinished(self, context: Any) -> bool:  # noqa: ARG002 - for subclasses
        """Whether an application that has succeeded left work to another one."""
        return False

    def needs_action(self, error: Exception) -> bool:
        """Whether the application failed in a way that a retry does not cure."""
        return self.service is None and self._ready.exit_code(error) == EXIT_TERMINAL

    def execute(self, context: Any) -> None:
        """Submit the job and wait for it; on a retry, wait for the application that the cluster still runs.

        Raises:
            AirflowSkipException: There is nothing to do.
            AirflowRescheduleException: The job did a part; it starts again in its next slot, without counting a retry.
            AirflowFailException: The connection is missing or unusable, or the job failed with a terminal error.
            AirflowException: The job failed; a retry may help.
        """
        if reason := self.skip_reason():
            raise AirflowSkipException(reason)
        self.began = datetime.now(UTC)
        hook = None if self.service else self.ready_hook()
        try:
            if hook is None or hook.in_cluster:
                self.durable = True  # a retry finds the application again
                self.execute_resumable(context)
            else:
                hook.submit(self.application)
        except (AirflowException, RuntimeError) as error:
            if self.needs_action(error):
                raise AirflowFailException(
                    f"The job failed, and a retry does not help. See its last log lines. {error}"
                ) from error
            raise
        # Else a task that is cleared, or that goes on in its next slot, would take this success for its own.
        if store := context.get("task_state_store"):
            store.delete(self.external_id_key)
            store.delete(POD_STATE_KEY)
        if self.is_unfinished(context):
            self.log.info(
                "The time of this turn is over. The slot goes to waiting tasks; then the remaining tables follow."
            )
            raise AirflowRescheduleException(datetime.now(UTC) + RESCHEDULE_DELAY)

    def ready_hook(self) -> ExitCodeHook:
        """Make the hook, with all settings that depend on the connection.

        Raises:
            AirflowFailException: The connection is missing, or names a master or deploy mode that can't be used.
        """
        connection = self._connection()
        try:
            hook = ExitCodeHook(
                conf=self.conf or {},
                conn_id=self.spark.connection,
                executor_memory=self.spark.executor_memory,
                driver_memory=self.spark.driver_memory,
                name=self.name,
                application_args=self.application_args,
                deploy_mode=deploy_mode(connection),  # a site's spark-defaults.conf may have another
            )
        except (NameError, RuntimeError) as error:  # the provider's import of Kubernetes failed, and it goes on without
            raise AirflowFailException(
                f"Connection {self.spark.connection!r} names Kubernetes, and {error}. "
                "Install apache-airflow-providers-cncf-kubernetes on the worker."
            ) from error
        self._check_master(hook)
        if hook.in_cluster:
            self._use_cluster_driver(hook, connection.extra_dejson.get(JOBS_EXTRA))
        else:
            self._use_own_driver(hook)
        self._hook = self._ready = hook  # the provider's on_kill ends it
        return hook

    def _use_own_driver(self, hook: ExitCodeHook) -> None:
        """Let the driver run on this worker, which gives it its environment."""
        given = self.conf or {}
        local = hook.master.startswith("local")
        jars = spark_driver.spark_jars()
        beside = Path(jars[0]).parent.parent if jars else None
        if beside and local:
            self.spark_home = class_archive.spark_home(beside, jars)
        elif beside and hook.master.startswith("spark://"):
            # What --jars sends is not on the JVM's class path, so this archive is another; each folder keeps one.
            self.spark_home = class_archive.spark_home(beside / "cluster", ())
        archive = class_archive.driver_archive_options(self.spark_home) if self.spark_home else ()
        # On a cluster the executors do the work: the driver is always small.
        small = not local or self.is_small()
        self.conf = jvm.driver_conf(given, JOBS / "log4j2.properties", archive, small=small)
        hook.use(
            conf=self.conf,
            # In one JVM, jars on the class path are not copied, and the class archive covers them.
            driver_class_path=os.pathsep.join(jars) or None if local else None,
            jars=None if local else ",".join(jars) or None,
            py_files=None if local else spark_driver.package_zip(spark_driver.own_folder("cache")),
        )
        log = spark_driver.spark_log(self.log_name)
        self.log.info("Spark log: %s", log)
        hook.submit_env = spark_driver.driver_env(log, self.spark_home)

    def _use_cluster_driver(self, hook: ExitCodeHook, jobs: str | None) -> None:
        """Let the driver run on the cluster.

        Args:
            jobs: The folder of the main programs there, of an image that has the package; None: they are sent.
        """
        self.conf = self._cluster_conf()
        if hook.master == "yarn":
            # Airflow counts the tries, and starts the next one.
            self.conf.setdefault("spark.yarn.maxAppAttempts", "1")
            self.conf |= {f"spark.yarn.appMasterEnv.{n}": v for n, v in self._plain_variables().items()}
        if jobs:
            self.application = f"{jobs.rstrip('/')}/{Path(self.application).name}"
        hook.use(
            conf=self.conf,
            jars=",".join(spark_driver.spark_jars()) or None,
            py_files=None if jobs else spark_driver.package_zip(spark_driver.own_folder("cache")),
        )
        hook.submit_env = driver_variables.select_variables(os.environ)
        try:
            hook.track_application()
        except ValueError as error:
            raise AirflowFailException(
                f"Connection {self.spark.connection!r} has deploy mode 'cluster', and the application can't be "
                f"followed: {error}"
            ) from error

    def _cluster_conf(self) -> dict[str, Any]:
        """The Spark settings of a driver on another machine, which has its own log4j."""
        return jvm.driver_conf(self.conf or {}, None, small=True)

    @staticmethod
    def _plain_variables() -> dict[str, str]:
        """The variables of a driver that are needed before it has read its settings. They are no secrets."""
        prefix = {dag_ids.PREFIX_VARIABLE: dag_ids.PREFIX} if dag_ids.PREFIX else {}
        return {driver_files.VARIABLE: driver_files.NAME, **prefix}

    def submit_job(self, context: Any) -> str | None:
        """Submit to a cluster or a service; the file with secrets is only there meanwhile. Returns the id."""
        with tempfile.TemporaryDirectory(dir=spark_driver.own_folder("driver")) as folder:
            if self.service:
                self._application_id = self.service.submit(self._describe(Path(folder)))
                self.log.info("Submitted: %s", self._application_id)
                return self._application_id
            hook = self._ready
            files = list(self.sent_files)
            if hook.master == "yarn":  # on Kubernetes, Secrets have the settings
                files.append(str(spark_driver.driver_files(Path(folder), spark_driver.cluster_variables())))
            given = [value for name in ("spark.files", "spark.yarn.dist.files") if (value := hook._conf.pop(name, ""))]
            hook.use(files=",".join([*files, *given]) or None, application_args=self._remote_arguments())
            found: str | None = super().submit_job(context)
        return found

    def _remote_arguments(self) -> list[str]:
        """The arguments, with sent files named as they are in the driver's working folder."""
        names = {f"@{path}": f"@{Path(path).name}" for path in self.sent_files}
        return [names.get(each, each) for each in self.application_args or ()]

    def _describe(self, folder: Path) -> Application:
        secrets = spark_driver.cluster_variables()
        return Application(
            name=self.name,
            program=Path(self.application),
            arguments=tuple(self._remote_arguments()),
            conf=self._cluster_conf(),
            driver_memory=self.spark.driver_memory,
            executor_memory=self.spark.executor_memory,
            py_files=Path(spark_driver.package_zip(spark_driver.own_folder("cache"))),
            jars=tuple(Path(jar) for jar in spark_driver.spark_jars()),
            files=(spark_driver.driver_files(folder, secrets), *map(Path, self.sent_files)),
            variables=self._plain_variables(),
            secrets=secrets,
        )

    def get_job_status(self, external_id: Any, context: Any) -> str:
        """The state of the application that an earlier try has submitted."""
        if self.service:
            return self.service.state(external_id)[0]
        try:
            return str(super().get_job_status(external_id, context))
        except RuntimeError as error:
            if is_unknown_application(error):
                return "FAILED"
            raise

    def is_job_active(self, status: str) -> bool:
        """Whether an application in this state goes on."""
        return status == State.ACTIVE if self.service else super().is_job_active(status)

    def is_job_succeeded(self, status: str) -> bool:
        """Whether an application in this state has done its work."""
        return status == State.SUCCEEDED if self.service else super().is_job_succeeded(status)

    def poll_until_complete(self, external_id: Any, context: Any) -> None:
        """Wait for the application.

        Raises:
            RuntimeError: It failed.
        """
        if self.service:
            self._application_id = external_id
            self._wait_for_service(self.service, external_id)
            return
        self._ready.adopt(external_id)
        self.log.info("The driver's log: %s", self._ready.log_location(external_id))
        super().poll_until_complete(external_id, context)

    def _wait_for_service(self, service: SparkService, external_id: str) -> None:
        told = ""
        while True:
            state, text = service.state(external_id)
            if text != told:
                self.log.info("%s is %s. %s", external_id, state, text)
                told = text
            if state == State.FAILED:
                raise AirflowException(f"{external_id} failed. {text}")
            if state == State.SUCCEEDED:
                return
            time.sleep(service.poll_seconds)

    def on_kill(self) -> None:
        """End the application, also one on a cluster."""
        if self.service is None:
            super().on_kill()
        elif self._application_id:
            self.service.cancel(self._application_id)

    def _connection(self) -> Connection:
        name = self.spark.connection
        try:
            return Connection.get(name)
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"The Airflow connection {name!r} does not exist, so group {self.group!r} has no Spark to run on. "
                "Create it (type spark, host such as local[2] or spark://host:7077), or set spark.connection in "
                "groups.yaml to another."
            ) from error

    def _check_master(self, hook: ExitCodeHook) -> None:
        name, master = self.spark.connection, hook.master
        if not MASTER.fullmatch(master):
            raise AirflowFailException(
                f"Connection {name!r} gives Spark the master {master!r}, which Sluice can't use. "
                "Set the host to local[2] without a port, to spark://host with port 7077, to yarn, or to k8s://https://host."
            )
        mode = hook._connection["deploy_mode"]
        if mode != "client" and not (mode == "cluster" and (master == "yarn" or master.startswith("k8s://"))):
            raise AirflowFailException(
                f"Connection {name!r} has deploy mode {mode!r} with master {master!r}. Set it to client. Spark starts "
                "a Python driver by deploy mode cluster on YARN and Kubernetes only."
            )
