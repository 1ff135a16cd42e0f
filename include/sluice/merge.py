"""The MERGE statements: append by Kafka coordinates, upsert by key in the contract's order, and the memory of deletes.

A MERGE prunes its target only by literals in the ON clause. Each bound here follows from the batch's own join key, so it
can never turn a match into an insert.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from sluice.contract import Contract
from sluice.decode import DELETE, OP
from sluice.literals import literal, quoted
from sluice.model import Batch
from sluice.contract import KAFKA_COLUMNS

KEYS_INLINE = 20_000
PARTITIONS_INLINE = 64
ORDER_MARK = "SLUICE_ORDER_UNKNOWN"
TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN = KAFKA_COLUMNS[:3]


def columns(contract: Contract) -> list[str]:
    """The typed table's columns, in order."""
    return [*(c.name for c in contract.columns), *KAFKA_COLUMNS]


def order_columns(contract: Contract) -> list[str]:
    """What places two versions of one key: the contract's order, then the coordinates, so that it is total."""
    return [*contract.order, *(c for c in KAFKA_COLUMNS[:3] if c not in contract.order)]


def latest(rows: DataFrame, contract: Contract) -> DataFrame:
    """The last version of each key in the batch, in the contract's order.

    Without an order of its own a key must stay in one partition; one that does not fails the write by name.
    """
    by_key = Window.partitionBy(*contract.identifier)
    ordered = by_key.orderBy(*[F.col(c).desc_nulls_last() for c in order_columns(contract)])
    if not contract.order:
        home = F.struct(TOPIC_COLUMN, PARTITION_COLUMN)
        apart = F.min(home).over(by_key) != F.max(home).over(by_key)
        rows = rows.withColumn("_sluice_apart", apart)
        rows = rows.withColumn(OP, F.when(F.col("_sluice_apart"), F.raise_error(F.lit(ORDER_MARK))).otherwise(F.col(OP)))
    return rows.withColumn("_sluice_rank", F.row_number().over(ordered)).where(F.col("_sluice_rank") == 1).drop(
        "_sluice_rank", "_sluice_apart"
    )


def without_deleted(rows: DataFrame, contract: Contract, deletes: DataFrame) -> DataFrame:
    """Drop the rows whose key is known to have been deleted later."""
    d = deletes.select(
        *[F.col(c).alias(f"_d_{c}") for c in contract.identifier], F.struct(*order_columns(contract)).alias("_d_order"),
        *[F.col(c).alias(f"_d_{c}") for c in KAFKA_COLUMNS[:2]],
    )  # fmt: skip
    same: Column = F.struct(*order_columns(contract)) < F.col("_d_order")
    for c in contract.identifier:
        same = same & (F.col(c) == F.col(f"_d_{c}"))
    if not contract.order:
        for c in KAFKA_COLUMNS[:2]:
            same = same & (F.col(c) == F.col(f"_d_{c}"))
    return rows.join(d, same, "left_anti")


def append_sql(target: str, source: str, contract: Contract, batch: Batch) -> str:
    """Insert what the table does not have yet, by (topic, partition, offset)."""
    names = columns(contract)
    bounds = [
        f"(t.{PARTITION_COLUMN} = {p} AND t.{OFFSET_COLUMN} >= {r.start}L AND t.{OFFSET_COLUMN} < {r.end}L)"
        for p, r in sorted(batch.ranges.items())
    ]
    low, high = min(r.start for r in batch.ranges.values()), max(r.end for r in batch.ranges.values())
    near = [f"t.{OFFSET_COLUMN} >= {low}L", f"t.{OFFSET_COLUMN} < {high}L", f"t.{TOPIC_COLUMN} = {literal(batch.topic)}"]
    if len(bounds) <= PARTITIONS_INLINE:
        near.append("(" + " OR ".join(bounds) + ")")
    on = [f"t.{c} = s.{c}" for c in (PARTITION_COLUMN, OFFSET_COLUMN)] + near
    return (
        f"MERGE INTO {target} t USING {source} s ON {' AND '.join(on)} "
        f"WHEN NOT MATCHED THEN INSERT ({_list(names)}) VALUES ({_list(names, 's')})"
    )


def upsert_sql(target: str, source: str, contract: Contract, bounds: Sequence[str]) -> str:
    """Insert, update or delete by key; a row only moves forward in the contract's order."""
    names = columns(contract)
    on = [f"t.{quoted(c)} = s.{quoted(c)}" for c in contract.identifier] + list(bounds)
    newer = f"{_struct(order_columns(contract), 's')} > {_struct(order_columns(contract), 't')}"
    guard = ""
    if not contract.order:
        apart = " OR ".join(f"t.{c} <> s.{c}" for c in KAFKA_COLUMNS[:2])
        guard = (
            f"WHEN MATCHED AND ({apart}) THEN UPDATE SET "
            f"t.{OFFSET_COLUMN} = CAST(raise_error('{ORDER_MARK}') AS BIGINT) "
        )
    sets = ", ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in names)
    return (
        f"MERGE INTO {target} t USING {source} s ON {' AND '.join(on)} {guard}"
        f"WHEN MATCHED AND s.{OP} = '{DELETE}' AND {newer} THEN DELETE "
        f"WHEN MATCHED AND s.{OP} <> '{DELETE}' AND {newer} THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND s.{OP} <> '{DELETE}' THEN INSERT ({_list(names)}) VALUES ({_list(names, 's')})"
    )


def deletes_sql(target: str, source: str, contract: Contract) -> str:
    """Remember the latest delete of each key."""
    names = [*contract.identifier, *KAFKA_COLUMNS]
    on = " AND ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in contract.identifier)
    newer = f"{_struct(order_columns(contract), 's')} > {_struct(order_columns(contract), 't')}"
    sets = ", ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in names)
    return (
        f"MERGE INTO {target} t USING {source} s ON {on} WHEN MATCHED AND {newer} THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED THEN INSERT ({_list(names)}) VALUES ({_list(names, 's')})"
    )


def key_bounds(rows: DataFrame, contract: Contract, records: int) -> list[str]:
    """Literal bounds of the batch's own keys: all of them where they are few, else their least and greatest.

    Returns:
        SQL conditions on the target `t`; empty where the batch has no keys.
    """
    names = list(contract.identifier)
    keys = rows.select(*names)
    if records <= KEYS_INLINE:
        found = [tuple(row) for row in keys.distinct().collect()]
        if not found:
            return []
        per_column = [sorted({row[i] for row in found}) for i in range(len(names))]
        within = [(values[0], values[-1]) for values in per_column]
    else:
        per_column = []
        row = keys.agg(*[f(c).alias(f"{n}{i}") for i, c in enumerate(names) for n, f in (("lo", F.min), ("hi", F.max))])
        found_row = row.collect()[0]
        within = [(found_row[f"lo{i}"], found_row[f"hi{i}"]) for i in range(len(names))]
        if any(low is None for low, _ in within):
            return []
    bounds = [
        f"t.{quoted(c)} >= {literal(low)} AND t.{quoted(c)} <= {literal(high)}"
        for c, (low, high) in zip(names, within, strict=True)
    ]
    for c, values in zip(names, per_column, strict=False):
        bounds.append(f"t.{quoted(c)} IN ({', '.join(map(literal, values))})")
    return bounds


def _list(names: Sequence[str], alias: str | None = None) -> str:
    return ", ".join((f"{alias}." if alias else "") + quoted(name) for name in names)


def _struct(names: Sequence[str], alias: str) -> str:
    return f"struct({_list(names, alias)})"
