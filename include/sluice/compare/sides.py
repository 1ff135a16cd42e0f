"""Opens the two tables of a comparison in Spark, each at one snapshot, with its last commits.

In: names. Out: DataFrames. Iceberg's metadata tables say what a table is, and when it was committed to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.utils.config import Config
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.compare.request import CompareRequest
from sluice.compare.result import Commit
from sluice.errors import RefusedError, first_line
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import table_names
from sluice.iceberg.sql_literals import quote_identifier
from sluice.timestamps import utc_from_micros

COMMITS = 20
TIMES = (T.TimestampType, T.TimestampNTZType)


@dataclass(frozen=True)
class OpenTable:
    """One of the two tables.

    Attributes:
        frame: its rows, at `snapshot_id`.
        snapshot_id: None: a view, or no Iceberg table.
        renamed: its names of columns, by the names that these have in Sluice's table.
        commits: the last ones that added rows, oldest first.
    """

    name: str
    frame: DataFrame
    snapshot_id: int | None
    renamed: Mapping[str, str]
    commits: tuple[Commit, ...]

    def column(self, name: str) -> Column:
        """A column by its name in Sluice's table.

        Raises:
            RefusedError: the table has none.
        """
        field = _find_field(self.frame, self.renamed.get(name, name))
        if field is None:
            raise RefusedError(
                f"{self.name} has no column {self.renamed.get(name, name)!r} to choose rows by.",
                next_step="Name another one by `--time-column`, or the other table's name of it by `--columns`.",
            )
        return F.col(quote_identifier(field.name))

    def has_time(self, name: str) -> bool:
        """Whether a column is a timestamp."""
        field = _find_field(self.frame, self.renamed.get(name, name))
        return field is not None and isinstance(field.dataType, TIMES)


def open_own(spark: SparkSession, catalog: str, request: CompareRequest) -> OpenTable:
    """Open Sluice's table.

    Raises:
        RefusedError: it does not exist.
    """
    name = table_names.spark_name(catalog, tuple(request.table.split(".")))
    return _open(spark, name, request.table, {}, request.time_column)


def open_other(spark: SparkSession, catalog: str, request: CompareRequest) -> OpenTable:
    """Open the other table or view.

    Raises:
        RefusedError: Spark can't read it.
    """
    parts = request.other.split(".")
    if len(parts) > 2 and _use_catalog(spark, parts[0]):
        catalog, *parts = parts
    renamed = {name: other for other, name in request.columns.items()}
    return _open(spark, table_names.spark_name(catalog, tuple(parts)), request.other, renamed, request.time_column)


def _use_catalog(spark: SparkSession, name: str) -> bool:
    """Whether it is a catalog, of Spark's settings or of PyIceberg's, whose settings Spark then gets."""
    setting = f"spark.sql.catalog.{name}"
    if name == "spark_catalog" or spark.conf.get(setting, None) is not None:
        return True
    if Config().get_catalog_config(name) is None:
        return False
    for key, value in iceberg_catalog.spark_conf(name).items():
        if key.startswith(setting):
            spark.conf.set(key, value)
    return True


def _open(spark: SparkSession, name: str, shown: str, renamed: Mapping[str, str], time_column: str) -> OpenTable:
    try:
        head = spark.table(f"{name}.refs").filter("name = 'main'").first()
    except AnalysisException:  # a view, or another format
        head = None
    try:
        if head is None:
            return OpenTable(shown, spark.table(name), None, renamed, ())
        frame = spark.read.option("versionAsOf", head["snapshot_id"]).table(name)
    except AnalysisException as error:
        raise RefusedError(
            f"Spark can't read {shown}: {first_line(error)}",
            next_step="Name it as namespace.table or catalog.namespace.table. Another catalog needs settings: "
            "PYICEBERG_CATALOG__NAME__…, or spark.sql.catalog.NAME… in `spark.conf` of the group.",
        ) from error
    field = _find_field(frame, renamed.get(time_column, time_column))
    return OpenTable(shown, frame, head["snapshot_id"], renamed, _read_commits(spark, name, field))


def _find_field(frame: DataFrame, name: str) -> T.StructField | None:
    return next((field for field in frame.schema.fields if field.name.lower() == name.lower()), None)


def _read_commits(spark: SparkSession, name: str, field: T.StructField | None) -> tuple[Commit, ...]:
    """The last commits of main that added rows, and the newest time in the files of each that are left."""
    commits = spark.table(f"{name}.snapshots").filter(
        "operation <> 'replace' AND CAST(summary['added-records'] AS BIGINT) > 0"
    )
    rows = (
        spark.table(f"{name}.history")
        .filter("is_current_ancestor")
        .join(commits, "snapshot_id", "left_semi")
        .orderBy(F.desc("made_current_at"))
        .limit(COMMITS)
        .select("snapshot_id", F.unix_micros("made_current_at").alias("at"))
        .collect()
    )
    newest = {}
    if rows and field is not None and isinstance(field.dataType, TIMES):
        bound = F.col(f"readable_metrics.{quote_identifier(field.name)}.upper_bound")
        found = (
            spark.table(f"{name}.entries")
            .filter("status <> 2 AND data_file.content = 0")
            .filter(F.col("snapshot_id").isin([row["snapshot_id"] for row in rows]))
            .groupBy("snapshot_id")
            .agg(F.unix_micros(F.max(bound).cast("timestamp")).alias("newest"))
            .filter("newest IS NOT NULL")
        )
        newest = {row["snapshot_id"]: utc_from_micros(row["newest"]) for row in found.collect()}
    return tuple(Commit(at=utc_from_micros(row["at"]), newest=newest.get(row["snapshot_id"])) for row in reversed(rows))
