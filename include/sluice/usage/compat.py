"""Use of Spark's internals that have no public equivalent (PySpark 4.1): task metrics of jobs, the JVM's process id.

`tests/unit/usage/test_compat.py` fails when PySpark offers a public way, or Spark lacks what is relied on here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_WAIT_MS = 500


@dataclass(frozen=True)
class TaskTotals:
    """What the tasks of some jobs used: CPU seconds of their threads, and bytes that they read from files."""

    cpu_seconds: float
    bytes_read: int


def driver_pid(session: SparkSession) -> int:
    """The process id of the driver's JVM, whoever started it."""
    jvm: Any = session.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def wait_for_events(session: SparkSession) -> None:
    """Wait for the metrics of tasks that have ended: Spark passes them on by a queue. Gives up after half a second."""
    context: Any = session.sparkContext._jsc
    context.sc().listenerBus().waitUntilEmpty(EVENTS_WAIT_MS)


def sum_task_metrics(session: SparkSession, tag: str) -> TaskTotals:
    """Sum up the metrics of all tasks of the jobs with a tag, failed attempts included.

    They come from the store of Spark's UI, which is filled even if the UI is off.
    """
    context: Any = session.sparkContext._jsc
    jvm: Any = session.sparkContext._jvm
    scala = context.sc()
    tracker, store = scala.statusTracker(), scala.statusStore()
    stages: set[int] = set()
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        if info.isDefined():
            stages |= set(info.get().stageIds())
    gateway: Any = session.sparkContext._gateway
    nothing, no_quantiles = jvm.java.util.Collections.emptyList(), gateway.new_array(jvm.double, 0)
    nanoseconds = bytes_read = 0
    for stage in sorted(stages):
        attempts = store.stageData(stage, False, nothing, False, no_quantiles)
        for number in range(attempts.size()):
            each = attempts.apply(number)
            nanoseconds += each.executorCpuTime() + each.executorDeserializeCpuTime()
            bytes_read += each.inputBytes()
    return TaskTotals(nanoseconds / 1e9, bytes_read)
