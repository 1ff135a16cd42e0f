"""What all jobs share: a Spark application from its start to its exit code."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from sluice import driver_files, spark_cluster
from sluice.errors import ExecutorsUnavailableError, RetryableError, SluiceError, exit_code, first_line
from sluice.iceberg import availability, table_names
from sluice.iceberg import catalog as iceberg_catalog
from sluice.ingest import compat, session
from sluice.ingest.context import Context
from sluice.spark_cluster import ExecutorSearch

FIRST_LOOK, LOOKS_APART, LOGS_APART = 5.0, 5.0, 30.0

Main = Callable[[list[str] | None], int]


def as_job(main: Main) -> Main:
    """Wrap a job's main function: an error becomes exit code 2 (retry may help) or 3 (action required), a bug 1."""

    @functools.wraps(main)
    def job(argv: list[str] | None = None) -> int:
        session.log_to_stdout()
        _exit_with_spark_submit()
        began = time.monotonic()
        try:
            driver_files.unpack()
            with availability.translate_catalog_errors():
                code = main(argv)
        except SluiceError as error:
            logging.error("%s", error)
            return exit_code(error)
        logging.info("done after %.1f s", time.monotonic() - began)
        return code

    return job


def _exit_with_spark_submit() -> None:
    """Exit when the JVM that started this process has died, as after a task's timeout."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(2)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def start_spark(name: str, run_id: str, kafka: Mapping[str, object]) -> Iterator[Context]:
    """Start an application, stop it at the end, and yield what its steps need. Then it writes what they cost.

    Args:
        kafka: librdkafka settings.
    """
    began = time.monotonic()
    with _translate_ended_jvm():
        built = session.build_session(name)
        built.sparkContext.setLogLevel("WARN")
    context = Context(built, iceberg_catalog.load(), table_names.catalog_name(), kafka, run_id)
    context.meter.count_from_start()
    context.meter.count_catalog_calls(context.catalog)
    with _translate_ended_jvm():
        _wait_for_executor(built)
    logging.info("Spark is up after %.1f s", time.monotonic() - began)
    try:
        yield context
    except RetryableError:  # the catalog may be away, and the retry should not wait for it
        raise
    except Exception:
        context.meter.write(context.catalog)
        raise
    context.meter.write(context.catalog)
    built.stop()


@contextmanager
def _translate_ended_jvm() -> Iterator[None]:
    """Raise ExecutorsUnavailableError if the JVM ends, as YARN ends one whose executors fail."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise ExecutorsUnavailableError(
            f"Spark's JVM has ended before the application had an executor: {first_line(error)}.",
            next_step=spark_cluster.CAUSES,
        ) from error


def _wait_for_executor(built: SparkSession) -> None:
    """Wait until an executor has registered.

    Raises:
        ExecutorsUnavailableError: none has, and none will.
    """
    conf = dict(built.sparkContext.getConf().getAll())
    if not spark_cluster.asks_for_executors(conf):
        return
    search = ExecutorSearch(conf, functools.partial(compat.find_page_port, built))
    began = time.monotonic()
    next_look, next_log = FIRST_LOOK, LOGS_APART
    while not (registered := compat.count_executors(built)):
        waited = time.monotonic() - began
        if registered is None:
            raise search.error("Spark has ended the application before it had an executor")
        if waited >= next_look:
            search.look(waited)
            next_look = time.monotonic() - began + LOOKS_APART
        if waited >= next_log:
            logging.warning("No executor for %.0f s: %s", waited, search)
            next_log += LOGS_APART
        time.sleep(0.1)
