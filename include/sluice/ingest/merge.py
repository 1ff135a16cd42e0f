"""The MERGEs: append by Kafka coordinates, upsert by key in the contract's order, and the memory of deletes.

They go through the DataFrame API: a temporary view over an Iceberg table, as SQL would need, can't be planned inside a
copy-on-write MERGE by Spark 4.1.

A MERGE prunes its target only by literals in the ON clause. Each bound here follows from the batch's own join key, so
that it can never turn a match into an insert.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, DateType, StringType, TimestampNTZType, TimestampType

from sluice.batch import Batch
from sluice.contract.contract import Contract
from sluice.contract.types import IcebergType, Primitive
from sluice.contract.values import KAFKA_COLUMNS
from sluice.formats.internal_columns import DELETE, OP
from sluice.iceberg.sql_literals import literal, quoted

KEYS_INLINE = 20_000
BYTES_INLINE = 4 << 20
KEY_INLINE = 256
"""Of a longer key (in characters, or bytes) only the beginning reaches the driver, which bounds it as well."""
PARTITIONS_INLINE = 64
ENDS = {"least": F.min, "greatest": F.max}
FROM_LEAST: dict[IcebergType, int] = {Primitive("int"): 0, Primitive("long"): (1 << 31) - (1 << 63)}
"""Of a whole number below this no lower end is asked for. Where the table is, or was, partitioned by `truncate`,
Iceberg asks for partitions from that of the least key on, and near the least of all numbers that one overflows to the
greatest: no file is left, and what is there is inserted again. No width is greater than 2^31 - 1."""
PLACES_SHOWN = 3
ORDER_MARK = "SLUICE_ORDER_UNKNOWN"
ORDER_RAISED = f"[USER_RAISED_EXCEPTION] {ORDER_MARK}"
TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN = KAFKA_COLUMNS[:3]


@dataclass(frozen=True)
class Bound:
    """What is known of one key column of a batch.

    Attributes:
        column: its name.
        values: SQL literals, in order.
        every: they are all that the batch has, not only ones that none is below, and none above.
        from_least: the table may be asked for what is not below the first: see `FROM_LEAST`.
    """

    column: str
    values: Sequence[str]
    every: bool
    from_least: bool = True

    def of(self, table: str) -> str:
        """The SQL condition on a table, or an alias."""
        at = f"{table}.{quoted(self.column)}"
        least = [f"{at} >= {self.values[0]}"] if self.from_least else []
        every = [f"{at} IN ({', '.join(self.values)})"] if self.every else []
        return " AND ".join([*least, f"{at} <= {self.values[-1]}", *every])


def columns(contract: Contract) -> list[str]:
    """The typed table's columns, in order."""
    return [*(c.name for c in contract.columns), *KAFKA_COLUMNS]


def order_columns(contract: Contract) -> list[str]:
    """What places two versions of one key: the contract's order, then the coordinates, so that it is total."""
    return [*contract.order, *(c for c in KAFKA_COLUMNS[:3] if c not in contract.order)]


def latest(rows: DataFrame, contract: Contract) -> DataFrame:
    """The last version of each key among rows of one topic, in the contract's order.

    Without an order of its own a key must stay in one partition; one that does not fails the write by name.
    """
    ordered = Window.partitionBy(*contract.identifier).orderBy(
        *[F.col(c).desc_nulls_last() for c in order_columns(contract) if c != TOPIC_COLUMN]
    )
    rows = rows.withColumn("_sluice_rank", F.row_number().over(ordered))
    first = F.col("_sluice_rank") == 1
    if not contract.order:
        # A key's rows are sorted by their partition before anything else, so of a key in two partitions two neighbours
        # differ: the guard rides on the window that ranks them, instead of a second one over the whole batch.
        rows = rows.withColumn("_sluice_before", F.lag(PARTITION_COLUMN).over(ordered))
        apart = F.col("_sluice_before") != F.col(PARTITION_COLUMN)
        first = F.when(apart, F.raise_error(F.lit(ORDER_MARK)).cast("boolean")).otherwise(first)
    return rows.where(first).drop("_sluice_rank", "_sluice_before")


def places_apart(rows: DataFrame, others: Sequence[str], contract: Contract) -> str:
    """Where the first few keys stand that were met in two partitions; never the keys.

    Args:
        others: tables that the rows' keys may stand in as well: the typed one, and its memory of deletes.
    """
    key = list(contract.identifier)
    placed: list[Column | str] = [*map(quoted, key), F.struct(*KAFKA_COLUMNS[:3]).alias("_sluice_place")]
    met = rows.select(*placed)
    for name in others:
        there = rows.sparkSession.table(name).select(*placed)
        met = met.unionByName(there.join(rows.select(*map(quoted, key)), key, "left_semi"))
    ends = {f"_sluice_{name}": f("_sluice_place").alias(f"_sluice_{name}") for name, f in ENDS.items()}
    both = met.groupBy(*map(quoted, key)).agg(*ends.values())
    apart = F.expr(" OR ".join("{}.{c} <> {}.{c}".format(*ends, c=c) for c in KAFKA_COLUMNS[:2]))
    found = both.where(apart).orderBy(*ends).select(*ends).limit(PLACES_SHOWN).collect()
    return "; ".join(" and ".join(f"{t} partition {p} offset {o}" for t, p, o in pair) for pair in found)


def without_deleted(
    rows: DataFrame, contract: Contract, deletes: DataFrame, bounds: Sequence[Bound] = (), *, live: bool = False
) -> DataFrame:
    """Drop the rows whose key is known to have been deleted later.

    Without an order of the contract's own a key that was deleted in another partition fails the write by name.

    Args:
        bounds: of the rows' keys.
        live: what comes after all that was read before; without an order no row is dropped then.
    """
    names = dict.fromkeys([*contract.identifier, *order_columns(contract)])
    deletes = deletes.alias("d")
    for bound in bounds:
        deletes = deletes.where(F.expr(bound.of("d")))
    d = deletes.select(*[F.col(c).alias(f"_d_{c}") for c in names]).alias("d")
    same = [f"s.{quoted(c)} = d.{quoted('_d_' + c)}" for c in contract.identifier]
    # The remembered delete comes after the row: its columns stand under other names, as both sides have the same.
    after = later(contract, ("d", "_d_"), ("s", ""))
    if not contract.order:
        if live:
            after = f"d._d_{OFFSET_COLUMN} < 0"  # none; of a plain `false` Spark would raise before it compares
        apart = " OR ".join(f"s.{c} <> d._d_{c}" for c in KAFKA_COLUMNS[:2])
        after = f"CASE WHEN {apart} THEN CAST(raise_error('{ORDER_MARK}') AS BOOLEAN) ELSE {after} END"
    return rows.alias("s").join(d, F.expr(" AND ".join([*same, after])), "left_anti")


def remembered(contract: Contract) -> list[str]:
    """The columns that are kept of a delete."""
    return [*contract.identifier, *KAFKA_COLUMNS, *(c for c in contract.order if c not in KAFKA_COLUMNS)]


def append(rows: DataFrame, target: str, contract: Contract, batch: Batch) -> None:
    """Insert what the table does not have yet, by (topic, partition, offset)."""
    writer = rows.alias("s").mergeInto(target, _same_place(target, batch))
    writer.whenNotMatched().insert(assigned(columns(contract))).merge()


def reject(rows: DataFrame, target: str, batch: Batch) -> None:
    """Bring rejected records into the quarantine, each once; what is there already learns why it is rejected now."""
    writer = rows.alias("s").mergeInto(target, _same_place(target, batch))
    why = assigned(["error_class", "error", "field"])
    writer.whenMatched().update(why).whenNotMatched().insert(assigned(rows.columns)).merge()


def release(rows: DataFrame, target: str, batch: Batch, of: Sequence[int] | None = None) -> None:
    """Take records out of the quarantine, by their coordinates.

    Args:
        of: rows of these batches alone.
    """
    on = _same_place(target, batch)
    if of is not None:
        on &= F.col(f"{target}.batch_seq").isin(list(of))
    rows.alias("s").mergeInto(target, on).whenMatched().delete().merge()


def _same_place(target: str, batch: Batch) -> Column:
    """The ON clause by coordinates, with the batch's bounds as literals."""
    on = [f"{target}.{c} = s.{c}" for c in (PARTITION_COLUMN, OFFSET_COLUMN)]
    ends = f"{target}.{OFFSET_COLUMN}"
    on.append(f"{ends} >= {min(r.start for r in batch.ranges.values())}L")
    on.append(f"{ends} < {max(r.end for r in batch.ranges.values())}L")
    if len(batch.ranges) <= PARTITIONS_INLINE:
        on.append(within(batch, f"{target}."))
    else:
        on.append(f"{target}.{TOPIC_COLUMN} = {literal(batch.topic)}")
    return F.expr(" AND ".join(on))


def within(batch: Batch, prefix: str = "") -> str:
    """The SQL condition that a row's coordinates lie in the batch's ranges."""
    if len(batch.ranges) > PARTITIONS_INLINE:
        return _within_many(batch, prefix)
    bounds = [
        f"({prefix}{PARTITION_COLUMN} = {p} AND {prefix}{OFFSET_COLUMN} >= {r.start}L"
        f" AND {prefix}{OFFSET_COLUMN} < {r.end}L)"
        for p, r in sorted(batch.ranges.items())
    ]
    return f"{prefix}{TOPIC_COLUMN} = {literal(batch.topic)} AND ({' OR '.join(bounds)})"


def _within_many(batch: Batch, prefix: str) -> str:
    """The same with the ranges in lists by partition: a term for each took Spark seconds, and code that Java refuses.

    Tables are pruned by the least and the greatest offset.
    """
    ranges, offset = batch.ranges, f"{prefix}{OFFSET_COLUMN}"
    none = (0, 0)
    starts, ends = zip(*(ranges.get(p, none) for p in range(max(ranges) + 1)), strict=True)
    listed = [f"get(array({', '.join(f'{n}L' for n in each)}), {prefix}{PARTITION_COLUMN})" for each in (starts, ends)]
    return (
        f"{prefix}{TOPIC_COLUMN} = {literal(batch.topic)}"
        f" AND {offset} >= {min(r.start for r in ranges.values())}L AND {offset} < {max(ends)}L"
        f" AND {offset} >= {listed[0]} AND {offset} < {listed[1]}"
    )


def upsert(rows: DataFrame, target: str, contract: Contract, bounds: Sequence[Bound]) -> None:
    """Insert, update or delete by key; a row only moves forward in the contract's order."""
    on = [f"{target}.{quoted(c)} = s.{quoted(c)}" for c in contract.identifier] + [b.of(target) for b in bounds]
    newer = later(contract, ("s", ""), (target, ""))
    everything = assigned(columns(contract))
    writer = rows.alias("s").mergeInto(target, F.expr(" AND ".join(on)))
    if not contract.order:
        apart = " OR ".join(f"{target}.{c} <> s.{c}" for c in KAFKA_COLUMNS[:2])
        raised = F.expr(f"CAST(raise_error('{ORDER_MARK}') AS BIGINT)")
        writer = writer.whenMatched(F.expr(apart)).update({OFFSET_COLUMN: raised})
    (
        writer.whenMatched(F.expr(f"s.{OP} = '{DELETE}' AND {newer}"))
        .delete()
        .whenMatched(F.expr(f"s.{OP} <> '{DELETE}' AND {newer}"))
        .update(everything)
        .whenNotMatched(F.expr(f"s.{OP} <> '{DELETE}'"))
        .insert(everything)
        .merge()
    )


def remember_deletes(rows: DataFrame, target: str, contract: Contract) -> None:
    """Keep the latest delete of each key; without an order of the contract's own, of each partition that it was in.

    What the memory has of an order before this one is kept of a delete as well, where its event tells: that order may
    come back.
    """
    known = remembered(contract)
    told = {field.name: field.dataType for field in rows.schema}
    others = [field for field in rows.sparkSession.table(target).schema if field.name not in known]
    rows = rows.select(
        *map(quoted, known),
        *(
            quoted(f.name) if told.get(f.name) == f.dataType else F.lit(None).cast(f.dataType).alias(f.name)
            for f in others
        ),
    )
    everything = assigned(rows.columns)
    names = [*contract.identifier, *(() if contract.order else KAFKA_COLUMNS[:2])]
    on = " AND ".join(f"{target}.{quoted(c)} = s.{quoted(c)}" for c in names)
    writer = rows.alias("s").mergeInto(target, F.expr(on))
    newer = F.expr(later(contract, ("s", ""), (target, "")))
    writer.whenMatched(newer).update(everything).whenNotMatched().insert(everything).merge()


def key_bounds(rows: DataFrame, contract: Contract, records: int) -> list[Bound]:
    """Literal bounds of the batch's own keys: all of them where they are few and short, else their least and greatest.

    Args:
        rows: every record of the batch, bad ones too: bounds that are too wide cost little, and telling the bad ones
            apart would parse each value once more.

    Returns:
        One per key column; none where the batch has no keys, or one that no literal can stand for, and none for a
        uuid: Iceberg compares those as Java does, with a sign, and Parquet's bounds of a file without one, so that a
        file whose keys are on both sides would be passed over, and its rows inserted again.
    """
    names = list(contract.identifier)
    kinds = [rows.schema[c].dataType for c in names]
    text = [isinstance(kind, StringType) for kind in kinds]
    keys = rows.select(*[_exact(F.col(c), kind).alias(c) for c, kind in zip(names, kinds, strict=True)])
    # No filter on whole keys: Spark would take it below the reading, with a copy of that for each column.
    if few := records <= KEYS_INLINE:
        found = [row for row in map(tuple, keys.distinct().collect()) if None not in row]  # a Row holds its names
    else:
        whole = reduce(and_, (F.col(c).isNotNull() for c in names))
        ends = keys.agg(
            *[f(F.when(whole, F.col(c))).alias(f"{n}{i}") for n, f in ENDS.items() for i, c in enumerate(names)]
        )
        row = ends.collect()[0]
        found = [tuple(row[f"{n}{i}"] for i in range(len(names))) for n in ENDS]
    if not found or found[0][0] is None:
        return []
    bounds = []
    for i, c in enumerate(names):
        if contract.column(c).type == Primitive("uuid"):
            continue
        values = sorted({row[i] for row in found})
        every = few
        if isinstance(kinds[i], StringType | BinaryType):
            every = few and sum(map(len, values)) <= BYTES_INLINE
            if text[i]:
                try:
                    values = [bytes(value).decode("utf-8") for value in values]
                except UnicodeDecodeError:
                    return []
            if max(map(len, values)) > KEY_INLINE:
                every, values[-1] = False, _above(values[-1])
                if not values[-1]:
                    continue
        if not every:
            values = [values[0], values[-1]]
        from_least = values[0] >= FROM_LEAST.get(contract.column(c).type, values[0])
        bounds.append(Bound(c, [_literal(each, kinds[i]) for each in values], every, from_least))
    return bounds


def _above(key: str | bytes) -> str | bytes:
    """The least key that is above all that begin so; empty where there is none."""
    if isinstance(key, bytes):
        key = key.rstrip(b"\xff")
        return key and key[:-1] + bytes([key[-1] + 1])
    key = key.rstrip(chr(sys.maxunicode))
    last = key and chr(0xE000 if key[-1] == "\ud7ff" else ord(key[-1]) + 1)  # there are no surrogates in a text
    return key and key[:-1] + last


def _exact(key: Column, kind: DataType) -> Column:
    """A key as what reaches Python unaltered; of a long one the beginning, too long to be taken for a whole one.

    Text that is not UTF-8 would not, nor would days and moments: Python's end with the year 9999, and PySpark turns
    moments to the machine's own time zone.
    """
    match kind:
        case StringType():
            return F.substring(key, 1, KEY_INLINE + 1).cast("binary")
        case BinaryType():
            return F.substring(key, 1, KEY_INLINE + 1)
        case DateType():
            return F.unix_date(key)
        case TimestampType() | TimestampNTZType():
            return F.unix_micros(key.cast("timestamp"))
    return key


def _literal(value: object, kind: DataType) -> str:
    match kind:
        case DateType():
            return f"date_from_unix_date({value})"
        case TimestampType() | TimestampNTZType():
            return f"CAST(timestamp_micros({value}L) AS {kind.simpleString()})"
    return literal(value)


def assigned(names: Sequence[str]) -> dict[str, Column]:
    """What a MERGE sets these columns to: the values of the source."""
    return {quoted(name): F.expr(f"s.{quoted(name)}") for name in names}


def later(contract: Contract, a: tuple[str, str], b: tuple[str, str]) -> str:
    """The condition that version `a` of a row comes after `b`; each is (alias, column prefix), null is earliest.

    Without an order of the contract's own both are known to be in one partition, and the offset alone decides.
    """
    names = order_columns(contract) if contract.order else [OFFSET_COLUMN]
    condition = "false"
    for name in reversed(names):
        x, y = (f"{alias}.{quoted(prefix + name)}" for alias, prefix in (a, b))
        condition = f"({x} > {y} OR ({y} IS NULL AND {x} IS NOT NULL) OR ({x} <=> {y} AND {condition}))"
    return condition
