"""Use of library internals that have no public equivalent (PySpark 4.1, Great Expectations 1.x).

`tests/unit/ingest/test_compat.py` fails when a library offers a public way, or changes what is relied on here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import java_import
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from great_expectations.validator.validator import Validator

HELPER_CLASSES = ("org.apache.spark.api.python.PythonUtils", "org.apache.spark.sql.api.python.PythonSQLUtils")
BOUND_PORTS = "org.apache.spark.deploy.master.MasterMessages$BoundPortsRequest$"


def start_jvm(settings: Mapping[str, str] | None = None) -> None:
    """Start the JVM, or connect to the one of spark-submit, before there is a Spark context.

    PySpark starts it with the context, with all settings on its command line, where the catalog's secrets would be
    visible. And only after this does `SparkConf()` return what spark-submit was given. No public API as of PySpark 4.1.

    Args:
        settings: Spark settings for the command line of a JVM that is started.
    """
    conf = SparkConf().setAll(list(settings.items())) if settings is not None else None
    SparkContext._ensure_initialized(conf=conf)


def set_system_properties(session: SparkSession, properties: Mapping[str, str]) -> None:
    """Set Java system properties in the driver, whoever started it. No public API as of PySpark 4.1."""
    jvm: Any = session.sparkContext._jvm
    for name, value in properties.items():
        jvm.System.setProperty(name, value)


def has_java_module(session: SparkSession, name: str) -> bool:
    """Ask the driver's Java whether it has a module. No public API as of PySpark 4.1."""
    jvm: Any = session.sparkContext._jvm
    return bool(jvm.java.lang.ModuleLayer.boot().findModule(name).isPresent())


def count_executors(session: SparkSession) -> int | None:
    """How many executors have registered with the driver; None if Spark has ended the application.

    PySpark 4.1 has no equivalent of `SparkStatusTracker.getExecutorInfos`, which counts the driver too.
    """
    context: Any = session.sparkContext._jsc
    try:
        scala = context.sc()
        return None if scala.isStopped() else len(scala.statusTracker().getExecutorInfos()) - 1
    except (Py4JError, OSError):  # the JVM is ending
        return None


def find_page_port(session: SparkSession, host: str, port: int) -> int | None:
    """Ask a standalone master for the port of its page; None if it does not answer. No public API as of Spark 4.1."""
    jvm: Any = session.sparkContext._jvm
    context: Any = session.sparkContext._jsc
    try:
        scala = context.sc()
        request = jvm.java.lang.Class.forName(BOUND_PORTS).getField("MODULE$")
        master = scala.env().rpcEnv().setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(host, port), "Master")
        return int(master.askSync(request.get(None), jvm.scala.reflect.ClassTag.Any()).webUIPort())
    except (Py4JError, OSError):
        return None


def import_helper_classes(session: SparkSession) -> None:
    """Tell py4j the packages of two classes that PySpark asks for by their short names, thousands of times a batch.

    Otherwise py4j looks for each in all jars, for every package that PySpark imports as a whole before the right one.
    """
    for name in HELPER_CLASSES:
        java_import(session.sparkContext._jvm, name)


def make_validator(
    frame: DataFrame, known: Mapping[Any, Any] | None, always_unexpected: Callable[[Any], Column | None]
) -> Validator:
    """A validator of Great Expectations without a data context.

    No public API as of Great Expectations 1.x to give an engine computed metrics, to ask it for conditions and metrics
    without a query, or to turn off progress bars without a data context.

    Args:
        known: values by metric id. Then no query runs: the engine's `asked` lists the metrics that it needed, and
            `conditions` holds row conditions by metric id.
        always_unexpected: returns for a metric the condition that a row is unexpected whatever its own condition says.
    """
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
    from great_expectations.util import convert_to_json_serializable
    from great_expectations.validator.validator import Validator

    class QuietValidator(Validator):
        def _determine_progress_bars(self) -> bool:
            return False

    class Engine(SparkDFExecutionEngine):
        def resolve_metrics(
            self, metrics_to_resolve: Iterable[Any], metrics: Any = None, runtime_configuration: Any = None
        ) -> Any:
            wanted = list(metrics_to_resolve)
            found = super().resolve_metrics(wanted, metrics, runtime_configuration)
            for each in wanted:
                unexpected = always_unexpected(each)
                if unexpected is not None:
                    condition, *rest = found[each.id]
                    found[each.id] = (F.when(unexpected, True).otherwise(condition), *rest)
            return found

    class KnownMetricsEngine(Engine):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.asked: list[Any] = []
            self.conditions: dict[Any, Column] = {}

        def resolve_metrics(
            self, metrics_to_resolve: Iterable[Any], metrics: Any = None, runtime_configuration: Any = None
        ) -> Any:
            found = super().resolve_metrics(metrics_to_resolve, metrics, runtime_configuration)
            self.conditions |= {i: v[0] for i, v in found.items() if i.metric_name.endswith(".condition")}
            return found

        def resolve_metric_bundle(self, metric_fn_bundle: Iterable[Any]) -> Any:
            wanted = [each.metric_configuration for each in metric_fn_bundle]
            self.asked += wanted
            return {each.id: convert_to_json_serializable((known or {}).get(each.id)) for each in wanted}

    # The session is given because by itself the engine picks one, and there are several.
    engine = (Engine if known is None else KnownMetricsEngine)(spark=frame.sparkSession, persist=False)
    engine.load_batch_data("batch", frame)
    return QuietValidator(execution_engine=engine)


def delete_whole_files(
    spark: SparkSession, table: str, condition: tuple[str, str], properties: Mapping[str, str]
) -> bool:
    """Remove the files all of whose rows are below a value, if no other file has such rows; returns whether it was so.

    Spark's DELETE does the same, but its commit then lacks the session's properties (Iceberg 1.11).
    `tests/spark/maintain/test_retention.py` fails once it has them.

    Args:
        spark: a session.
        table: Spark's name of it.
        condition: a column, and the value as Iceberg's literal.
        properties: of the snapshot.
    """
    jvm: Any = spark._jvm
    below = jvm.org.apache.iceberg.expressions.Expressions.lessThan(*condition)
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
    delete = loaded.newDelete().deleteFromRowFilter(below)
    for name, value in properties.items():
        delete.set(name, value)
    try:
        delete.commit()
    except Py4JJavaError as error:
        if "Cannot delete file where some, but not all, rows match" in str(error.java_exception):
            return False
        raise
    return True
