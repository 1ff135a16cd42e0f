"""Uses of provider internals: no public API as of apache-airflow-providers-apache-spark 6.3.4."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from airflow import __version__
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from asgiref.sync import sync_to_async

# Printed by the launcher and the JVM on every start; they need no action.
STARTUP_WARNINGS = ("WARNING: Using incubator modules", "WARNING: package sun.security.action not in java.base")
# How YARN's diagnostics and the state of a pod, which the provider quotes in its error, give the driver's exit code.
_REPORTED_EXIT_CODE = re.compile(r"User application exited with status (\d+)|phase=Failed exit_code=(\d+)")
_SUBMITTED_POD = re.compile(r"submission ID [^\s:]+:(\S+-driver)\b")
# The provider keeps a finished pod's state, and would take it for the state of a later pod of the same task.
POD_STATE_KEY = "k8s_driver_status"


async def count_active_runs(dag_id: str) -> int:
    """Return how many runs of a DAG are queued or running; for a trigger. Airflow's own triggers ask in this way."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return await sync_to_async(RuntimeTaskInstance.get_dr_count)(dag_id=dag_id, states=["queued", "running"])


def has_asset_state() -> bool:
    """Whether a trigger can store state with its asset, as since Airflow 3.3; remove it with the support of 3.2."""
    return tuple(int(each) for each in __version__.split(".")[:2]) >= (3, 3)


class ExitCodeHook(SparkSubmitHook):
    """The provider's hook with the driver's exit code, and without warnings of every start in the log."""

    submit_env: dict[str, str] | None = None
    """The environment of spark-submit."""

    def exit_code(self, error: Exception) -> int | None:
        """The driver's exit code; None if it is not known. The provider has it only in the text of its error."""
        if self.in_cluster:
            found = _REPORTED_EXIT_CODE.search(str(error))
            return int(found[1] or found[2]) if found else None
        return self._submit_sp.returncode if self._submit_sp else None

    @property
    def master(self) -> str:
        """The master that the connection names, as spark-submit gets it."""
        return str(self._connection["master"])

    @property
    def in_cluster(self) -> bool:
        """Whether the driver runs on the cluster."""
        return self._connection["deploy_mode"] == "cluster"

    def use(self, **settings: Any) -> None:
        """Set what depends on the master: the hook reads its connection only when it is made.

        Args:
            settings: conf, jars, driver_class_path, py_files, files: as the hook's constructor takes them.
        """
        for name, value in settings.items():
            setattr(self, f"_{name}", value)

    def track_application(self) -> None:
        """Poll the state of an application on the cluster, so that spark-submit ends when it is submitted.

        Raises:
            ValueError: the connection lacks a setting for that.
        """
        if self._is_kubernetes:
            self._track_driver_via_k8s_api = True
            self._validate_track_driver_via_k8s_api_config()
        else:
            self._yarn_track_via_rm_api = True
            self._validate_yarn_track_via_rm_api_config()

    def adopt(self, external_id: str) -> None:
        """Take over an application that an earlier try has submitted: the provider's `on_kill` would not end it."""
        if self._is_yarn:
            self._yarn_application_id = external_id

    def log_location(self, external_id: str) -> str:
        """Where the driver's log is."""
        if self._is_yarn:
            return f"{self._get_yarn_rm_base_url()}/cluster/app/{external_id}"
        namespace, _, pod = external_id.partition(":")
        return f"kubectl logs --namespace {namespace} {pod}"

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run spark-submit in its own environment."""
        found: str | None = super().submit(application, env=self.submit_env, **kwargs)
        return found

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        lines = (line for line in itr if line.strip() and not line.startswith(STARTUP_WARNINGS))
        super()._process_spark_submit_log(self._find_pod(lines) if self._is_kubernetes else lines)

    def _find_pod(self, lines: Iterator[str]) -> Iterator[str]:
        """Note the driver's pod: the provider finds it in namespace `spark` only."""
        for line in lines:
            if found := _SUBMITTED_POD.search(line):
                self._kubernetes_driver_pod = found[1]
            yield line


def is_unknown_application(error: RuntimeError) -> bool:
    """Whether YARN has forgotten the application, as after a restart of its ResourceManager."""
    return "returned HTTP 404" in str(error)
