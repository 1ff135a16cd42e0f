"""The Spark session of an ingest application: the catalog, and the settings that many small commits want."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

from sluice.errors import ConfigError
from sluice.iceberg.catalog import spark_conf
from sluice.jvm import STACK

# What rows hold hangs on these: they are no defaults, whatever a cluster's own are.
MEANING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # A map may hold a key twice on the wire, by damage or by Protobuf's leave; the last one counts, as Protobuf has it.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
DEFAULTS = {
    **MEANING,
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    # Or each call of a function on a column asks the JVM seven times more, to tell its line of Python in an error.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark writes each plan out for its UI and event log, and again at the end of each stage, whether there is one or
    # not: in full, that is a tenth of what the JVM does for a small batch.
    "spark.sql.ui.explainMode": "simple",
    # Spark's default without Kafka, whose older interface makes an object of each field, and a row of these again.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Small inputs: one task per core is plenty, and AQE coalesces what is left over.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.iceberg.planning.preserve-data-grouping": "false",
    # Each batch reads with consumers of its own: the last one's, and what they fetched ahead, are only in the way.
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "2s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "2s",
    # Spark's own, and the client's key: at level debug the Kafka source logs its options.
    "spark.redaction.regex": "(?i)secret|password|token|credential|access[.]?key|keystore[.]key",
}

# A damaged record may announce gigabytes: Avro would make room for them before it reads on, and the JVM would end.
AVRO_LIMITS = {
    "org.apache.avro.limits.string.maxLength": str(64 << 20),
    "org.apache.avro.limits.bytes.maxLength": str(64 << 20),
    "org.apache.avro.limits.collectionItems.maxLength": str(16 << 20),
}
EXECUTOR_OPTIONS = "spark.executor.defaultJavaOptions"
# Spark puts these before a group's `extraJavaOptions`, which would otherwise stand in their place. The driver's are for
# a JVM that is yet to start, where Python is first.
DEFAULTS["spark.driver.defaultJavaOptions"] = STACK
DEFAULTS[EXECUTOR_OPTIONS] = " ".join([STACK, *(f"-D{name}={value}" for name, value in AVRO_LIMITS.items())])


class _Known(JavaClass):  # type: ignore[misc]
    """A class in the JVM that is asked once for each of its members, not at each call."""

    def __getattr__(self, name: str) -> object:
        member = super().__getattr__(name)
        self.__dict__[name] = member
        return member


def log_to_stdout() -> None:
    """What a job says goes to its standard output, which is the task's log; the chatter of libraries does not."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s sluice %(message)s", stream=sys.stdout)
    for name in ("py4j", "pyiceberg"):
        logging.getLogger(name).setLevel(logging.WARNING)


def jars(folder: str | None = None) -> list[str]:
    """The Spark jars in `folder`, or in the folder that `SLUICE_JARS` names.

    Raises:
        ConfigError: the folder is not set, or holds no jars.
    """
    folder = folder or os.environ.get("SLUICE_JARS")
    found = sorted(str(p) for p in Path(folder).glob("*.jar")) if folder else []
    if not found:
        raise ConfigError(
            "No Spark jars were found.",
            way_out="Set SLUICE_JARS to their folder (`make jars` fills one, and prints it).",
        )
    return found


def defaults(given: Mapping[str, str]) -> dict[str, str]:
    """Our settings beside those that spark-submit was given, which win: of a JVM's options the last counts."""
    ours = {key: value for key, value in DEFAULTS.items() if key not in given}
    if own := given.get(EXECUTOR_OPTIONS):
        ours[EXECUTOR_OPTIONS] = f"{DEFAULTS[EXECUTOR_OPTIONS]} {own}"
    return ours


def build(app: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The application's session.

    What spark-submit was given wins over our defaults; the catalog is always ours, and what rows hold hangs on.
    """
    builder = SparkSession.Builder().appName(app)
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit's JVM knows what it was given; nobody else does
        SparkContext._ensure_initialized()
    given = dict(SparkConf().getAll())
    if str({**given, **(conf or {})}.get("spark.master", "")).startswith("local"):
        # Protobuf is read in Python processes of Spark's own: the same Python as this one, and it knows the package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.executorEnv.PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    own = {**defaults(given), **(conf or {}), **MEANING}
    # Where Python is first, it starts a JVM with all it knows on the command line: of the catalog that is told later.
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(own.items())))
    for key, value in {**own, **spark_conf()}.items():
        builder = builder.config(key, value)
    built = builder.getOrCreate()
    jvm = built.sparkContext._jvm
    for limit, most in AVRO_LIMITS.items():
        jvm.System.setProperty(limit, most)  # type: ignore[union-attr]
    # PySpark asks for these by name at each function on a column, and each time the JVM looks for a class of that name
    # in one package, and jar, after the other: some two hundred times per table and batch.
    for name in ("org.apache.spark.sql.functions", "functions", "PythonUtils"):
        known = getattr(jvm, name)
        known.__class__ = _Known
        setattr(jvm, name, known)
    return built
