"""The Spark session of an application: the catalog's settings, and defaults that suit many small commits."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from sluice.errors import ConfigError, printable
from sluice.iceberg.catalog import spark_conf
from sluice.ingest import compat
from sluice.jvm import DEFAULT_OPTIONS, THREAD_STACK_SIZE

# What rows contain depends on these, so a cluster's or a group's own settings do not override them.
FIXED_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # A map on the wire may hold a key twice, if damaged or in Protobuf; the last one counts, as Protobuf defines it.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
DEFAULTS = {
    **FIXED_SETTINGS,
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    # Otherwise each function on a column costs seven more calls to the JVM, to name the Python line in an error.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark renders each plan for its UI and event log, and again after each stage, even if both are off. The full text
    # takes a tenth of the JVM's time for a small batch.
    "spark.sql.ui.explainMode": "simple",
    # Spark's default without Kafka: the V1 source makes an object of each field, and then a row of them.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Inputs are small: one task per core is enough, and adaptive execution coalesces the rest.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.iceberg.planning.preserve-data-grouping": "false",
    # A MERGE names its keys or their bounds (`merge.find_key_bounds`). To derive filters from its join, these rules
    # would expand the expressions that decode each key, which takes half of the time of the driver.
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    # HotSpot interprets larger methods. Above this size Spark generates a method for each operator instead.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Each batch reads with new consumers: cached ones, and the records that they fetched ahead, only take memory.
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "2s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "2s",
    # Spark's default, and the client's key: at debug level the Kafka source logs its options.
    "spark.redaction.regex": "(?i)secret|password|token|credential|access[.]?key|(keystore|account|sse)[.]key",
}

# A damaged record may announce gigabytes. Without limits Avro allocates them before it reads on, and the JVM dies.
AVRO_LIMITS = {
    "org.apache.avro.limits.string.maxLength": str(64 << 20),
    "org.apache.avro.limits.bytes.maxLength": str(64 << 20),
    "org.apache.avro.limits.collectionItems.maxLength": str(16 << 20),
}
EXECUTOR_OPTIONS = "spark.executor.defaultJavaOptions"
# Spark puts default options before a group's `extraJavaOptions`, instead of replacing one by the other. The driver's
# apply to a JVM that Python starts.
DEFAULTS[DEFAULT_OPTIONS] = THREAD_STACK_SIZE
DEFAULTS[EXECUTOR_OPTIONS] = " ".join(
    [THREAD_STACK_SIZE, *(f"-D{name}={value}" for name, value in AVRO_LIMITS.items())]
)


class _OneRecord(logging.Formatter):
    """Indents further lines of a record: none looks like a record of its own, whatever the text holds."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")


def log_to_stdout() -> None:
    """Log to standard output, which becomes the task's log; of some libraries warnings only."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_OneRecord("%(levelname)s sluice %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in ("py4j", "pyiceberg"):
        logging.getLogger(name).setLevel(logging.WARNING)


def spark_jars(folder: str | None = None) -> list[str]:
    """The jars in `folder`, or in the folder that `SLUICE_JARS` names.

    Raises:
        ConfigError: no folder is set, or it holds no jars.
    """
    folder = folder or os.environ.get("SLUICE_JARS")
    found = sorted(str(p) for p in Path(folder).glob("*.jar")) if folder else []
    if not found:
        raise ConfigError(
            "No Spark jars were found.",
            next_step="Set SLUICE_JARS to their folder (`make jars` fills one and prints its path).",
        )
    return found


def merge_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """The defaults that `given` settings do not override; Java options are joined, and the last one wins."""
    ours = {key: value for key, value in DEFAULTS.items() if key not in given}
    if own := given.get(EXECUTOR_OPTIONS):
        ours[EXECUTOR_OPTIONS] = f"{DEFAULTS[EXECUTOR_OPTIONS]} {own}"
    return ours


def use_this_python(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Have local Python workers, which decode Protobuf, use this interpreter and this package."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder.config("spark.executorEnv.PYTHONPATH", str(Path(__file__).resolve().parents[2]))


def build_session(app: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Build the application's session.

    Settings given to spark-submit, and `conf`, override the defaults, but not `FIXED_SETTINGS` and the catalog's.
    """
    builder = SparkSession.Builder().appName(app)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # only spark-submit's JVM knows the settings that it was given
        compat.start_jvm()
    given = dict(SparkConf().getAll())
    if str({**given, **(conf or {})}.get("spark.master", "")).startswith("local"):
        builder = use_this_python(builder)
    own = {**merge_defaults(given), **(conf or {}), **FIXED_SETTINGS}
    compat.start_jvm(own)  # the catalog's settings, which may be secret, follow later
    for key, value in {**own, **spark_conf()}.items():
        builder = builder.config(key, value)
    built = builder.getOrCreate()
    compat.import_helper_classes(built)
    compat.set_system_properties(built, AVRO_LIMITS)
    return built
