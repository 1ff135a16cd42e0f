"""Measures what the steps of a Spark application use, in the driver, and appends it to `sluice.costs`.

In: the beginning and end of each step, its commits and its calls of the catalog. Out: one row per step and table. A
failure to measure or to write is logged, and fails nothing else.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sluice.usage import compat, process_cpu
from sluice.usage.costs_table import APPLICATION, Cost, write_costs

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

WRITE_EVERY_S = 60.0
READ_TASKS_EVERY_S = 30.0
"""Spark keeps the metrics of the last thousand jobs and stages only."""
_CATALOG_CALLS = (
    *("load_table", "commit_table", "create_table", "table_exists", "drop_table", "list_tables"),
    *("create_namespace", "create_namespace_if_not_exists", "namespace_exists", "list_namespaces"),
)


@dataclass(eq=False)
class StepUsage:
    """What one step and table used since rows were last written.

    Attributes:
        tag: of its Spark jobs whose tasks are not in `task_cpu` yet.
        task_cpu: CPU seconds of its tasks; None if unknown.
        process_cpu: CPU seconds of the driver's processes while it ran; where steps overlapped, an equal share.
    """

    step: str
    table: str | None
    topic: str | None
    tag: str
    times: int = 0
    records: int | None = None
    wall_seconds: float = 0.0
    process_cpu: float = 0.0
    task_cpu: float | None = None
    bytes_read: int | None = None
    is_split: bool = False
    counts: dict[str, Any] = field(default_factory=dict)

    def add_records(self, records: int | None) -> None:
        """Add records that the step has staged, published or replayed."""
        if records is not None:
            self.records = (self.records or 0) + records

    def add(self, name: str, count: int) -> None:
        """Add to a count, by the name of its column."""
        self.counts[name] = self.counts.get(name, 0) + count


class Meter:
    """Measures an application's steps. Threads may run steps at the same time, and a step may contain others."""

    def __init__(self, spark: SparkSession, run_id: str) -> None:
        self._spark, self._run_id = spark, run_id
        self._lock = threading.RLock()
        self._own = threading.local()
        self._id = uuid.uuid4().hex[:8]
        self._pid: int | None = None
        self._runs = self._numbers = 0
        self._tasks_read = time.monotonic()
        self._running: list[StepUsage] = []
        self._begin(None)

    def _begin(self, cpu: float | None) -> None:
        """Begin to count; `cpu` is what the processes have used until then, as far as that is known."""
        self._since, self._began = datetime.now(UTC), time.monotonic()
        self._last, self._last_cpu = self._began, cpu
        self._outside = StepUsage(APPLICATION, None, None, "")
        self._steps: dict[tuple[str, str | None, str | None], StepUsage] = {}

    def count_from_start(self) -> None:
        """Count from the start of the driver's processes on: starting is part of an application's price."""
        with _only_logged():
            self._pid = compat.driver_pid(self._spark)
            self._last_cpu = 0.0
            ago = process_cpu.seconds_since_start(self._pid)
            self._since = datetime.now(UTC) - timedelta(seconds=ago)
            self._last = self._began = time.monotonic() - ago

    def count_catalog_calls(self, catalog: Catalog) -> None:
        """Count the calls of this catalog from now on; the object is changed, not its class."""
        for name in _CATALOG_CALLS:
            setattr(catalog, name, self._counted(getattr(catalog, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*arguments: Any, **named: Any) -> Any:
            if getattr(self._own, "in_call", False):  # PyIceberg calls itself
                return call(*arguments, **named)
            self._own.in_call = True
            try:
                return call(*arguments, **named)
            finally:
                self._own.in_call = False
                with self._lock:
                    self._current.add("catalog_calls", 1)

        return counted

    @property
    def _stack(self) -> list[StepUsage]:
        if not hasattr(self._own, "stack"):
            self._own.stack = []
        found: list[StepUsage] = self._own.stack
        return found

    @property
    def _current(self) -> StepUsage:
        """The step of this thread."""
        return self._stack[-1] if self._stack else self._outside

    def count_run(self) -> None:
        """Count a run, or a round of a continuous group."""
        self._runs += 1

    def add_commit(self, summary: Mapping[str, str]) -> None:
        """Add a snapshot of this thread's step, by its summary."""

        def read(*names: str) -> int:
            return sum(int(summary.get(name, "0")) for name in names)

        with _only_logged(), self._lock:
            current = self._current
            current.add("commits", 1)
            current.add("bytes_added", read("added-files-size"))
            current.add("files_added", read("added-data-files", "added-delete-files"))
            current.add("bytes_removed", read("removed-files-size"))
            current.add("files_removed", read("deleted-data-files", "removed-delete-files"))

    @contextmanager
    def step(self, name: str, table: str | None, topic: str | None = None) -> Iterator[StepUsage]:
        """Measure a step of this thread. A step within another one counts for itself alone."""
        outer = self._stack[-1] if self._stack else None
        with self._lock:
            usage = self._steps.get((name, table, topic))
            if usage is None:
                usage = StepUsage(name, table, topic, self._new_tag())
                self._steps[name, table, topic] = usage
            usage.times += 1
        self._switch(outer, usage)
        self._stack.append(usage)
        try:
            yield usage
        finally:
            self._stack.pop()
            self._switch(usage, outer)
            if time.monotonic() - self._tasks_read > READ_TASKS_EVERY_S:
                with self._lock:
                    self._read_tasks([each for each in self._steps.values() if each not in self._running])

    def _new_tag(self) -> str:
        self._numbers += 1
        return f"sluice-{self._id}-{self._numbers}"

    def _switch(self, before: StepUsage | None, after: StepUsage | None) -> None:
        """Note that this thread goes from one step to another; None: outside steps."""
        with _only_logged():  # while it is among those that run, its tag stays
            if before:
                self._spark.sparkContext.removeJobTag(before.tag)
        with _only_logged(), self._lock:
            self._note_use()
            if before in self._running:
                self._running.remove(before)
            if after:
                self._running.append(after)
        with _only_logged():
            if after:
                self._spark.sparkContext.addJobTag(after.tag)

    def _note_use(self) -> None:
        """Add time and CPU since the last change of steps to the steps that ran in between."""
        now, cpu = time.monotonic(), self._read_cpu()
        running = self._running or [self._outside]
        used = max(cpu - self._last_cpu, 0.0) if cpu is not None and self._last_cpu is not None else 0.0
        for usage in running:
            usage.wall_seconds += now - self._last
            usage.process_cpu += used / len(running)
            usage.is_split = usage.is_split or len(running) > 1
        self._last, self._last_cpu = now, cpu

    def _read_cpu(self) -> float | None:
        try:
            if self._pid is None:
                self._pid = compat.driver_pid(self._spark)
            return process_cpu.own_cpu_seconds() + process_cpu.read_cpu_seconds(self._pid)
        except OSError:  # the JVM has ended
            return None

    def write(self, catalog: Catalog, *, every: float = 0.0) -> None:
        """Append what was measured to `sluice.costs`, unless the last time was less than so many seconds ago."""
        if time.monotonic() - self._began < every:
            return
        with _only_logged():
            began = time.monotonic()
            costs = self.take_costs()
            write_costs(catalog, costs)
            log.info("costs: %s rows in %.2f s", len(costs), time.monotonic() - began)

    def take_costs(self) -> list[Cost]:
        """Return what was measured since the last time."""
        with self._lock:
            self._note_use()
            steps, outside, runs = [*self._steps.values()], self._outside, self._runs
            common: dict[str, Any] = {"at": datetime.now(UTC), "since": self._since, "run_id": self._run_id}
            last_cpu, self._runs = self._last_cpu, 0
            self._begin(last_cpu)
        known = last_cpu is not None
        outside.times, outside.task_cpu = max(runs, 1), 0.0
        local = str(self._spark.sparkContext.master).partition("[")[0] == "local"
        self._read_tasks(steps)
        common["application"] = str(self._spark.sparkContext.appName)
        rows = []
        for usage, driver in zip([*steps, outside], driver_cpu([*steps, outside], local=local), strict=True):
            rows.append(
                Cost(
                    **common, step=usage.step, table=usage.table, topic=usage.topic, times=usage.times,
                    records=usage.records, wall_seconds=usage.wall_seconds, is_split=usage.is_split,
                    driver_cpu_seconds=driver if known else None, executor_cpu_seconds=usage.task_cpu,
                    bytes_read=usage.bytes_read, **usage.counts,
                    tables=len({step.table for step in steps}) if usage is outside else None,
                )
            )  # fmt: skip
        return rows

    def _read_tasks(self, steps: Iterable[StepUsage]) -> None:
        """Add the metrics of the tasks of these steps; none of them runs."""
        with _only_logged():
            compat.wait_for_events(self._spark)
            for usage in steps:
                found = compat.sum_task_metrics(self._spark, usage.tag)
                usage.task_cpu = (usage.task_cpu or 0.0) + found.cpu_seconds
                usage.bytes_read = (usage.bytes_read or 0) + found.bytes_read
                usage.tag = self._new_tag()
        self._tasks_read = time.monotonic()


def driver_cpu(steps: Sequence[StepUsage], *, local: bool) -> list[float]:
    """CPU seconds of the driver by step, without those of tasks that ran in the driver's JVM.

    Exact where a step ran alone. The steps that overlapped share what is left of them, in proportion to elapsed time:
    no counter tells whom the JVM's threads worked for.

    Args:
        local: whether tasks ran in the driver's JVM.
    """
    own = [each.process_cpu - ((each.task_cpu or 0.0) if local else 0.0) for each in steps]
    left = max(sum(cpu for cpu, each in zip(own, steps, strict=True) if each.is_split), 0.0)
    elapsed = sum(each.wall_seconds for each in steps if each.is_split) or 1.0
    return [
        left * each.wall_seconds / elapsed if each.is_split else max(cpu, 0.0)
        for cpu, each in zip(own, steps, strict=True)
    ]


@contextmanager
def _only_logged() -> Iterator[None]:
    """Log an error of measuring: it must not fail a step."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever Spark or the catalog raises
        log.warning("costs are not recorded: %s: %s", type(error).__name__, str(error)[:300])
