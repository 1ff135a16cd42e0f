"""Mode history: every version of a row stays, and ends where one of its key begins that comes after it.

Which comes next is found by looking at all versions of a batch's keys, those in the table among them. So a version that
comes late ends, and is ended, as if it had come in time, and what is applied twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from sluice.contract.contract import Contract
from sluice.contract.values import KAFKA_COLUMNS
from sluice.iceberg.sql_literals import quoted
from sluice.ingest.merge import ORDER_MARK, PARTITION_COLUMN, TOPIC_COLUMN, Bound, assigned, columns, order_columns

UNTIL, _NEW = "_sluice_until", "_sluice_new"
PLACES = KAFKA_COLUMNS[:3]


def of_keys(
    session: SparkSession, target: str, contract: Contract, rows: DataFrame, bounds: Sequence[Bound]
) -> DataFrame:
    """All versions that a table has of the keys of some rows: their keys, places and times, and nothing else.

    Args:
        bounds: of the keys, to read no more of the table than they may be in.
    """
    there = session.table(target).alias("h")
    for bound in bounds:
        there = there.where(F.expr(bound.of("h")))
    keys = rows.select(*map(quoted, contract.identifier))
    times = (contract.valid_from, contract.valid_to or "")
    told = dict.fromkeys([*contract.identifier, *order_columns(contract), *PLACES, *times])
    return there.join(keys, list(contract.identifier), "left_semi").select(*map(quoted, told))


def ended(rows: DataFrame, contract: Contract) -> DataFrame:
    """All versions of some keys, with when each ended as `UNTIL`: where the first of those begins that come after it.

    That is the next one, unless times and order contradict each other (a record that was sent again, or late): then
    one that begins after its successor is valid at no moment, and at none are two.

    Without an order of its own a key must stay in one partition; one that does not fails the write by name.
    """
    newest_first = [F.col(quoted(c)).desc_nulls_last() for c in order_columns(contract)]
    ordered = Window.partitionBy(*map(quoted, contract.identifier)).orderBy(*newest_first)
    after = ordered.rowsBetween(Window.unboundedPreceding, -1)
    until = F.min(F.col(quoted(contract.valid_from))).over(after)
    if not contract.order:
        apart = F.lit(False)
        for place in (TOPIC_COLUMN, PARTITION_COLUMN):
            apart = apart | (F.lag(place).over(ordered) != F.col(place))
        raised = F.raise_error(F.lit(ORDER_MARK)).cast(rows.schema[contract.valid_from].dataType)
        until = F.when(apart, raised).otherwise(until)
    return rows.withColumn(UNTIL, until)


def merge(
    rows: DataFrame, there: DataFrame, target: str, contract: Contract, bounds: Sequence[Bound], *, fresh: bool
) -> None:
    """Insert the versions that are not there yet, and end those that another follows now.

    Args:
        there: what the table has of the keys of the rows.
        fresh: the table has none of the rows.
    """
    end = contract.valid_to or ""
    if not fresh:
        rows = rows.join(there.select(*PLACES), list(PLACES), "left_anti")
    # Of what is there only the end is written, so that its other columns need not even be read.
    both = rows.withColumn(_NEW, F.lit(True)).unionByName(
        there.withColumn(_NEW, F.lit(False)), allowMissingColumns=True
    )
    changed = ended(both, contract).where(F.col(_NEW) | ~F.col(UNTIL).eqNullSafe(F.col(quoted(end))))
    changed = changed.withColumn(end, F.col(UNTIL)).select(*map(quoted, columns(contract)), _NEW)
    on = [f"{target}.{quoted(c)} = s.{quoted(c)}" for c in (*contract.identifier, *PLACES)]
    writer = changed.alias("s").mergeInto(target, F.expr(" AND ".join([*on, *(b.of(target) for b in bounds)])))
    writer = writer.whenMatched().update(assigned([end]))
    writer.whenNotMatched(F.expr(f"s.{_NEW}")).insert(assigned(columns(contract))).merge()
