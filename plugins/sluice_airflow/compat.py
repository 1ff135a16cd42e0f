"""Uses of provider internals: no public API as of apache-airflow-providers-apache-spark 6.3.4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from asgiref.sync import sync_to_async

# Printed by the launcher and the JVM on every start; they need no action.
STARTUP_WARNINGS = ("WARNING: Using incubator modules", "WARNING: package sun.security.action not in java.base")


async def count_active_runs(dag_id: str) -> int:
    """Return how many runs of a DAG are queued or running; for a trigger. Airflow's own triggers ask in this way."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return await sync_to_async(RuntimeTaskInstance.get_dr_count)(dag_id=dag_id, states=["queued", "running"])


class ExitCodeHook(SparkSubmitHook):
    """The provider's hook with the exit code of spark-submit, and without warnings of every start in the log."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of spark-submit; None before it ends. The provider has it only in the text of its error."""
        return self._submit_sp.returncode if self._submit_sp else None

    @property
    def master(self) -> str:
        """The master that the connection names, as spark-submit gets it."""
        return str(self._connection["master"])

    def use(self, *, conf: dict[str, Any], jars: str | None, class_path: str | None, py_files: str | None) -> None:
        """Set what depends on the master: the hook reads its connection only when it is made."""
        self._conf, self._jars, self._driver_class_path, self._py_files = conf, jars, class_path, py_files

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        lines = (line for line in itr if line.strip() and not line.startswith(STARTUP_WARNINGS))
        super()._process_spark_submit_log(lines)
