"""Mode history: every version of a row is kept, and ends when the next version of its key begins.

The next version is found among all versions of the batch's keys, those in the table included. So a late version is
ended, and ends another, as if it had arrived in time, and applying a batch twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.iceberg.sql_literals import quote_identifier
from sluice.ingest.merge import (
    ORDER_MARK,
    PARTITION_COLUMN,
    TOPIC_COLUMN,
    KeyBound,
    order_columns,
    source_values,
    typed_columns,
)

UNTIL, _NEW = "_sluice_until", "_sluice_new"
COORDINATES = KAFKA_COLUMNS[:3]


def versions_of_keys(
    session: SparkSession, target: str, contract: Contract, rows: DataFrame, bounds: Sequence[KeyBound]
) -> DataFrame:
    """All versions that a table holds of the keys of `rows`: keys, coordinates and times only.

    Args:
        bounds: bounds of the keys, which prune the scan.
    """
    existing = session.table(target).alias("h")
    for bound in bounds:
        existing = existing.where(F.expr(bound.condition("h")))
    keys = rows.select(*map(quote_identifier, contract.identifier))
    times = (contract.valid_from, contract.valid_to or "")
    names = dict.fromkeys([*contract.identifier, *order_columns(contract), *COORDINATES, *times])
    return existing.join(keys, list(contract.identifier), "left_semi").select(*map(quote_identifier, names))


def add_end_times(rows: DataFrame, contract: Contract) -> DataFrame:
    """Add the end of each version as `UNTIL`: the earliest start among the versions of its key that come after it.

    That is the start of the next version, unless times and order contradict each other (a record sent again, or late):
    a version that begins after its successor is then never valid, and no two versions are valid at once.

    Without an order in the contract a key must stay in one partition; otherwise the write fails with `ORDER_MARK`.
    """
    newest_first = [F.col(quote_identifier(c)).desc_nulls_last() for c in order_columns(contract)]
    ordered = Window.partitionBy(*map(quote_identifier, contract.identifier)).orderBy(*newest_first)
    after = ordered.rowsBetween(Window.unboundedPreceding, -1)
    until = F.min(F.col(quote_identifier(contract.valid_from))).over(after)
    if not contract.order:
        apart = F.lit(False)
        for place in (TOPIC_COLUMN, PARTITION_COLUMN):
            apart = apart | (F.lag(place).over(ordered) != F.col(place))
        raised = F.raise_error(F.lit(ORDER_MARK)).cast(rows.schema[contract.valid_from].dataType)
        until = F.when(apart, raised).otherwise(until)
    return rows.withColumn(UNTIL, until)


def drop_existing(rows: DataFrame, existing: DataFrame) -> DataFrame:
    """The rows whose coordinates are not among the existing versions."""
    return rows.join(existing.select(*COORDINATES), list(COORDINATES), "left_anti")


def merge_versions(
    rows: DataFrame, existing: DataFrame, target: str, contract: Contract, bounds: Sequence[KeyBound]
) -> None:
    """Insert new versions, and end those that have a successor now.

    Args:
        rows: the versions that the table does not hold.
        existing: `versions_of_keys` of the rows.
        bounds: bounds of the rows' keys.
    """
    end = contract.valid_to or ""
    # Existing versions only get another end, so their other columns need not be read.
    both = rows.withColumn(_NEW, F.lit(True)).unionByName(
        existing.withColumn(_NEW, F.lit(False)), allowMissingColumns=True
    )
    changed = add_end_times(both, contract).where(F.col(_NEW) | ~F.col(UNTIL).eqNullSafe(F.col(quote_identifier(end))))
    changed = changed.withColumn(end, F.col(UNTIL)).select(*map(quote_identifier, typed_columns(contract)), _NEW)
    on = [f"{target}.{quote_identifier(c)} = s.{quote_identifier(c)}" for c in (*contract.identifier, *COORDINATES)]
    writer = changed.alias("s").mergeInto(target, F.expr(" AND ".join([*on, *(b.condition(target) for b in bounds)])))
    writer = writer.whenMatched().update(source_values([end]))
    writer.whenNotMatched(F.expr(f"s.{_NEW}")).insert(source_values(typed_columns(contract))).merge()
