"""One Spark session and one catalog for all tests that need Spark; each test has its own topic, group and tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from sluice import catalog, session, tables
from sluice.embedded import jars
from sluice.embedded.broker import Broker
from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from tests.support.lake import Lake


@pytest.fixture(scope="session")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Catalog and warehouse, and the environment that names them, for as long as Spark tests run."""
    folder = tmp_path_factory.mktemp("lake")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    patch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{folder}/iceberg.db?timeout=60")
    patch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{folder}/warehouse")
    patch.setenv("SLUICE_JARS", str(jars.ensure(jars.SPARK)))
    patch.setenv("JAVA_HOME", str(find_java(cache_folder()).home))
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    (folder / "warehouse").mkdir()
    yield folder
    patch.undo()


@pytest.fixture(scope="session")
def spark(lake_folder: Path) -> Iterator[SparkSession]:
    """The one session."""
    settings = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(session.jars()),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(lake_folder / "spark"),
        "spark.driver.memory": "2g",
    }
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 2g --driver-java-options -XX:+UseParallelGC pyspark-shell"
    spark = session.build("sluice tests", settings)
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture
def lake(spark: SparkSession, broker: Broker, lake_folder: Path, tmp_path: Path) -> Callable[..., Lake]:
    """Make a `Lake` of one's own."""
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    if jvm.poll() is not None:
        pytest.exit(f"Spark's JVM has ended (exit code {jvm.returncode}); no test can run without it", 1)
    # What earlier tests wrote there is read again and again, as nothing expires it.
    for identifier in (tables.LEDGER, tables.MAINTENANCE, tables.QUALITY, tables.SCHEMAS):
        with suppress(NoSuchTableError):
            catalog.load().drop_table(identifier)

    def make(**values: Any) -> Lake:
        folder = tmp_path / f"contracts{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Lake(spark, catalog.load(), broker.bootstrap, folder, **values)

    return make
