"""The meter: each step's share of the driver's CPU time, and rows that never fail what they measure."""

from __future__ import annotations

import logging
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from sluice.usage import process_cpu
from sluice.usage.costs_table import Cost, read_costs
from sluice.usage.meter import Meter, StepUsage, driver_cpu

pytestmark = pytest.mark.unit


class _Spark:
    """A session without a JVM: this process stands in for it, and there are no jobs."""

    def __init__(self) -> None:
        nothing = SimpleNamespace(addJobTag=lambda _: None, removeJobTag=lambda _: None, master="local[2]")
        nothing.appName, nothing._jsc = "sluice ingest g", SimpleNamespace(sc=self.ended)
        process = SimpleNamespace(current=lambda: SimpleNamespace(pid=os.getpid))
        nothing._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(ProcessHandle=process)))
        self.sparkContext = nothing

    @staticmethod
    def ended() -> Any:
        raise ConnectionError("the JVM has ended")


def _spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _by_step(costs: list[Cost]) -> dict[tuple[str, str | None], Cost]:
    return {(cost.step, cost.table): cost for cost in costs}


def test_each_step_has_its_own_cpu_time_and_the_rest_is_the_applications() -> None:
    meter: Any = Meter(_Spark(), "run")  # type: ignore[arg-type]
    with meter.step("warm", "t"):
        pass
    meter.take_costs()
    began = process_cpu.own_cpu_seconds()
    with meter.step("stage", "staging", "topic") as usage:
        _spin(0.1)
        usage.add_records(5)
    with meter.step("publish", "db.t", "topic") as usage:
        _spin(0.2)
        with meter.step("check", "db.t", "topic"):
            _spin(0.1)
        usage.add_records(3)
        usage.add_records(None)
        meter.add_commit({"added-files-size": "10", "added-data-files": "2", "removed-delete-files": "1"})
    _spin(0.1)
    found = _by_step(meter.take_costs())
    used = 2 * (process_cpu.own_cpu_seconds() - began)  # the process is counted for Python and for the JVM
    assert {key: (cost.times, cost.records) for key, cost in found.items()} == {
        ("stage", "staging"): (1, 5), ("publish", "db.t"): (1, 3), ("check", "db.t"): (1, None),
        ("application", None): (1, None),
    }  # fmt: skip
    publish, check = found["publish", "db.t"], found["check", "db.t"]
    assert (publish.bytes_added, publish.files_added, publish.files_removed, publish.commits) == (10, 2, 1, 1)
    assert publish.driver_cpu_seconds and check.driver_cpu_seconds and not publish.is_split
    assert publish.driver_cpu_seconds > 1.3 * check.driver_cpu_seconds
    assert sum(cost.driver_cpu_seconds or 0 for cost in found.values()) <= used + 0.05
    assert found["application", None].tables == 2 and found["application", None].driver_cpu_seconds
    assert publish.executor_cpu_seconds is None  # the JVM has ended: unknown, not none


def test_steps_that_overlap_are_split_and_marked() -> None:
    meter: Any = Meter(_Spark(), "run")  # type: ignore[arg-type]
    together = threading.Barrier(2, timeout=10)

    def work(name: str) -> None:
        with meter.step("publish", name):
            together.wait()
            _spin(0.05)
            together.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = _by_step(meter.take_costs())
    assert found["publish", "a"].is_split and found["publish", "b"].is_split
    assert not found["application", None].is_split


def test_tasks_in_the_drivers_jvm_count_once() -> None:
    alone = StepUsage("stage", "s", None, "1", process_cpu=5.0, task_cpu=3.0)
    shared = [
        StepUsage("publish", "a", None, "2", process_cpu=4.0, task_cpu=1.0, is_split=True, wall_seconds=3.0),
        StepUsage("publish", "b", None, "3", process_cpu=4.0, task_cpu=3.0, is_split=True, wall_seconds=1.0),
    ]
    # Of the 8 s of the steps that overlapped, 4 s were tasks; the rest is split 3 to 1 by elapsed time.
    assert driver_cpu([alone, *shared], local=True) == [2.0, 3.0, 1.0]
    assert driver_cpu([alone, *shared], local=False) == [5.0, 6.0, 2.0]


def test_calls_of_the_catalog_count_for_the_step_that_makes_them(catalog: Catalog) -> None:
    meter: Any = Meter(_Spark(), "run")  # type: ignore[arg-type]
    meter.count_catalog_calls(catalog)
    with meter.step("publish", "db.t"):
        catalog.create_namespace_if_not_exists("db")
        assert not catalog.table_exists("db.t")
    catalog.list_tables("db")
    found = _by_step(meter.take_costs())
    assert (found["publish", "db.t"].catalog_calls, found["application", None].catalog_calls) == (2, 1)


def test_rows_are_written_once_and_no_failure_of_measuring_fails_a_step(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    meter: Any = Meter(_Spark(), "run")  # type: ignore[arg-type]
    meter.count_run()
    meter.count_run()
    with meter.step("publish", "db.t"):
        pass
    meter.write(catalog, every=60.0)
    assert read_costs(catalog, meter._since) == []
    meter.write(catalog)
    rows = read_costs(catalog, meter._since.replace(year=2020))
    assert [(row.step, row.times, row.run_id, row.application) for row in rows] == [
        ("publish", 1, "run", "sluice ingest g"),
        ("application", 2, "run", "sluice ingest g"),
    ]
    meter._spark.sparkContext = None  # as when the JVM is gone
    with meter.step("publish", "db.t") as usage:
        usage.add_records(1)
    meter.write(None)
    assert "costs are not recorded" in caplog.text
