"""What the files of jobs/ have in common: a Spark application from its start to its exit code."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sluice.errors import SluiceError, exit_code
from sluice.iceberg import availability, table_names
from sluice.iceberg import catalog as iceberg_catalog
from sluice.ingest import session
from sluice.ingest.landing import Context

Main = Callable[[list[str] | None], int]


def exits(main: Main) -> Main:
    """A job's main function whose errors become an exit code: 2 a retry may help, 3 somebody must act; 1 is a bug."""

    @functools.wraps(main)
    def job(argv: list[str] | None = None) -> int:
        session.log_to_stdout()
        _end_with_spark_submit()
        began = time.monotonic()
        try:
            with availability.catalog_errors():
                code = main(argv)
        except SluiceError as error:
            logging.error("%s", error)
            return exit_code(error)
        logging.info("done after %.1f s", time.monotonic() - began)
        return code

    return job


def _end_with_spark_submit() -> None:
    """End when the JVM that started this process is gone, as after a task's timeout: nobody waits for it any more."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(2)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def spark(name: str, run_id: str, kafka: Mapping[str, object]) -> Iterator[Context]:
    """The application, and what its steps are given."""
    began = time.monotonic()
    built = session.build(name)
    built.sparkContext.setLogLevel("WARN")
    logging.info("Spark is up after %.1f s", time.monotonic() - began)
    yield Context(built, iceberg_catalog.load(), table_names.catalog_name(), kafka, run_id)
    built.stop()
