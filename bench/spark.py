"""The Spark session of a driver, its CPU time, and one run of Sluice's steps in it."""

from __future__ import annotations

import logging
import os
import time
from itertools import pairwise
from typing import Any

from pyspark.sql import SparkSession

from bench.lab import MASTER


def session(conf: dict[str, str] | None = None) -> SparkSession:
    """Return the session of Sluice's own applications, with further settings."""
    from sluice.ingest import session as sessions

    spark = sessions.build_session(
        "bench",
        {
            "spark.master": MASTER,
            "spark.sql.warehouse.dir": os.environ["BENCH_FOLDER"] + "/spark-warehouse",
            **(conf or {}),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def cpu_seconds() -> float:
    """Return the CPU seconds of this driver (Python and JVM), which vary less than the clock on a shared machine."""
    import psutil

    me = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in [me, *me.children(recursive=True)])


class Steps(logging.Handler):
    """A log handler that adds up the seconds of each step from the run's log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {"stage": 0.0, "publish": 0.0}

    def emit(self, record: logging.LogRecord) -> None:
        """Add the seconds of a log line to its step."""
        message = str(record.msg)
        for step in self.seconds:
            if message.startswith(step) and "in %.1f s" in message and record.args:
                self.seconds[step] += next(a for a in record.args if isinstance(a, float))  # type: ignore[union-attr]


def run(spark: SparkSession, run_id: str, *, group: str = "bench") -> dict[str, Any]:
    """Plan, stage, check, publish and settle the group once; return the seconds of each part.

    Raises:
        RuntimeError: A table failed.
    """
    from sluice.contract import folder as contract_folder
    from sluice.iceberg import catalog as iceberg_catalog
    from sluice.iceberg import table_names
    from sluice.ingest import outcome, settle
    from sluice.ingest import run as runs
    from sluice.ingest.context import Context
    from sluice.kafka import broker
    from sluice.plan import plan
    from sluice.plan.model import PlanInputs

    promises = contract_folder.load_contracts()
    promised = promises.group(group)
    lake, kafka = iceberg_catalog.load(), broker.librdkafka_config()
    client = broker.make_admin_client(kafka)
    steps = Steps()
    logging.getLogger("sluice.ingest.run").addHandler(steps)
    marks = [time.monotonic()]
    planned = plan.write_plan(promised, PlanInputs(promises, lake, client), run_id=run_id)
    marks.append(time.monotonic())
    context = Context(spark, lake, table_names.catalog_name(), kafka, run_id)
    report = runs.run(context, promised, promises, client, deadline=time.monotonic() + 3600)
    marks.append(time.monotonic())
    logging.getLogger("sluice.ingest.run").removeHandler(steps)
    if report.failed:
        raise RuntimeError(str(report.failed))
    settle.settle(promised, lake, outcome.summarize_plan(planned), run_id=run_id)
    marks.append(time.monotonic())
    plan_s, run_s, settle_s = (b - a for a, b in pairwise(marks))
    return {"plan": plan_s, "run": run_s, "settle": settle_s, **steps.seconds}
