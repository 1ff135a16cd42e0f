"""Fixtures for tests with Spark: one session and one catalog for all; each test has its own topic, group and tables."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from sluice import jvm
from sluice.embedded import jars
from sluice.embedded.home import REPOSITORY, cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import table_names
from sluice.ingest import session
from sluice.ingest.context import Context
from tests.support import pinned_jars
from tests.support.lake import Lake
from tests.support.services import s3
from tests.support.services.spark_cluster import SparkCluster
from tests.support.thorough import THOROUGH

# Without code generation and adaptive execution: for small tables they take a quarter and a tenth of the time. Tests of
# expressions and of the main path run with production's settings (`generated_code`), and in a thorough run all tests.
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
AS_IN_PRODUCTION = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}
SETTINGS = AS_IN_PRODUCTION if THOROUGH else QUICK


@pytest.fixture(scope="session")
def lake_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of catalog and warehouse; sets the environment for them.

    `SLUICE_TEST_REST` is the address of a REST catalog to use instead; see docs/dev/testing.md.
    """
    folder = tmp_path_factory.mktemp("lake")
    patch = pytest.MonkeyPatch()
    rest = os.environ.get("SLUICE_TEST_REST")
    patch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest" if rest else "sql")
    patch.setenv("PYICEBERG_CATALOG__LAKE__URI", rest or f"sqlite:///{folder}/iceberg.db?timeout=60")
    if not rest:
        patch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{folder}/warehouse")
    # A new folder of jars has no class archive, so drivers start slowly; it is only made if a test needs S3.
    on_s3 = any("catalog" in getattr(item, "fixturenames", ()) for item in request.session.items)
    patch.setenv("SLUICE_JARS", str(s3.link_spark_jars(folder / "jars") if on_s3 else jars.ensure_jars(jars.SPARK)))
    patch.setenv("JAVA_HOME", str(find_java(cache_folder()).home))
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    (folder / "warehouse").mkdir()
    yield folder
    patch.undo()


@pytest.fixture(scope="session")
def spark_cluster(lake_folder: Path) -> Iterator[SparkCluster | None]:
    """A standalone cluster that all tests of the run use; only with `SLUICE_TEST_CLUSTER=1`, else Spark is one JVM."""
    if os.environ.get("SLUICE_TEST_CLUSTER") != "1":
        yield None
        return
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    with SparkCluster(lake_folder / "cluster") as cluster:
        yield cluster
    patch.undo()


@pytest.fixture(scope="session")
def spark(lake_folder: Path, spark_cluster: SparkCluster | None) -> Iterator[SparkSession]:
    """The Spark session of the test run."""
    settings = {
        "spark.master": spark_cluster.master if spark_cluster else "local[2]",
        "spark.jars": ",".join(session.spark_jars()),
        "spark.sql.warehouse.dir": str(lake_folder / "spark"),
        "spark.driver.memory": "2g",
        **pinned_jars.FAST_FILE_SETTINGS,
    }
    (files,) = pinned_jars.jars_in_set(pinned_jars.LOCAL_FILES)
    options = f'--driver-memory 2g --driver-class-path {files} --driver-java-options "{" ".join(jvm.DRIVER_OPTIONS)}"'
    if spark_cluster:
        package = shutil.make_archive(str(lake_folder / "sluice"), "zip", REPOSITORY / "include", "sluice")
        options += f" --master {spark_cluster.master} --py-files {package}"
        settings |= {
            "spark.executor.memory": "768m",
            "spark.cores.max": "2",
            "spark.executor.extraClassPath": str(files),
        }
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{options} pyspark-shell"
    spark = session.build_session("sluice tests", settings)
    spark.sparkContext.setLogLevel("OFF")
    _set(spark, SETTINGS)
    patch = pytest.MonkeyPatch()
    patch.setattr(Context, "session", _with_the_same_code(Context.session))
    yield spark
    patch.undo()
    spark.stop()


def _with_the_same_code(
    lend: Callable[..., AbstractContextManager[SparkSession]],
) -> Callable[..., AbstractContextManager[SparkSession]]:
    """Make the sessions that steps use have the current settings of the test session."""

    @contextmanager
    def lent(context: Context, properties: Mapping[str, str]) -> Iterator[SparkSession]:
        with lend(context, properties) as found:
            for setting in QUICK:
                found.conf.set(setting, context.spark.conf.get(setting))
            yield found

    return lent


def _set(spark: SparkSession, settings: Mapping[str, str]) -> None:
    for setting, value in settings.items():
        spark.conf.set(setting, value)


@pytest.fixture
def generated_code(spark: SparkSession) -> Iterator[None]:
    """Run a test with code generation and adaptive execution, as in production."""
    _set(spark, AS_IN_PRODUCTION)
    yield
    _set(spark, SETTINGS)


@pytest.fixture
def lake(spark: SparkSession, broker: EmbeddedBroker, lake_folder: Path, tmp_path: Path) -> Callable[..., Lake]:
    """Return a function that makes a `Lake` with its own topic, group and contracts."""
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    if jvm.poll() is not None:
        pytest.exit(f"Spark's JVM has ended (exit code {jvm.returncode}); no test can run without it", 1)
    # Drop Sluice's own tables of earlier tests, which would slow down every read, and their files, which a clean-up of
    # orphan files could take for those of another catalog's table.
    own = (table_names.LEDGER, table_names.COSTS, table_names.MAINTENANCE, table_names.PILOT, table_names.QUALITY)
    for identifier in (*own, table_names.SCHEMAS, table_names.WRITER_SCHEMAS):
        with suppress(NoSuchTableError):
            folder = iceberg_catalog.load().load_table(identifier).location().removeprefix("file://")
            iceberg_catalog.load().drop_table(identifier)
            shutil.rmtree(folder, ignore_errors=True)  # the files may be on S3

    def make(**values: Any) -> Lake:
        folder = tmp_path / f"contracts{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Lake(spark, iceberg_catalog.load(), broker.bootstrap, folder, **values)

    return make
