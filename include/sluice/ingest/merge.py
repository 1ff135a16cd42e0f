"""The MERGE statements: append by Kafka coordinates, upsert by key in the contract's order, deletes, and quarantine.

A MERGE prunes its target only by literals in the ON clause. Each bound here follows from the batch's own join key, so
it can't turn a match into an insert. The DataFrame API is used because Spark 4.1 can't plan a temporary view over an
Iceberg table, which SQL would need, inside a copy-on-write MERGE.
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
from sluice.iceberg.sql_literals import quote_identifier, sql_literal

KEYS_INLINE = 20_000
BYTES_INLINE = 4 << 20
KEY_INLINE = 256
"""Of a longer key (in characters or bytes) only a prefix is collected, which bounds it as well."""
PARTITIONS_INLINE = 64
ENDS = {"least": F.min, "greatest": F.max}
LEAST_BOUND: dict[IcebergType, int] = {Primitive("int"): 0, Primitive("long"): (1 << 31) - (1 << 63)}
"""A key below this value is only found by equality. If the table is, or was, partitioned by `truncate`, Iceberg
truncates values near the type's minimum beyond it, which overflows to the maximum: a lower bound would match no file,
and no upper bound the file of such a key, so that existing rows would be inserted again. The width of `truncate` is at
most 2^31 - 1."""
CONFLICTS_SHOWN = 3
ORDER_MARK = "SLUICE_ORDER_UNKNOWN"
"""Raised by Spark's `raise_error` on a key in two partitions without an order; errors carry it as text only."""
ORDER_RAISED = f"[USER_RAISED_EXCEPTION] {ORDER_MARK}"
TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN = KAFKA_COLUMNS[:3]


@dataclass(frozen=True)
class KeyBound:
    """Bounds of a batch's values of one key column.

    Attributes:
        column: its name.
        values: SQL literals, in order.
        every: the values are all that the batch has, not only the least and the greatest.
        has_ends: the first and the last value may be used as bounds: see `LEAST_BOUND`.
    """

    column: str
    values: Sequence[str]
    every: bool
    has_ends: bool = True

    def condition(self, table: str) -> str:
        """The SQL condition on a table or alias."""
        column = f"{table}.{quote_identifier(self.column)}"
        ends = [f"{column} >= {self.values[0]}", f"{column} <= {self.values[-1]}"] if self.has_ends else []
        every = [f"{column} IN ({', '.join(self.values)})"] if self.every else []
        return " AND ".join([*ends, *every])


def typed_columns(contract: Contract) -> list[str]:
    """The typed table's columns, in order."""
    return [*(c.name for c in contract.columns), *KAFKA_COLUMNS]


def order_columns(contract: Contract) -> list[str]:
    """The columns that order two versions of a key: the contract's order, then the coordinates, which make it total."""
    return [*contract.order, *(c for c in KAFKA_COLUMNS[:3] if c not in contract.order)]


def keep_latest(rows: DataFrame, contract: Contract) -> DataFrame:
    """Keep the last version of each key among rows of one topic, in the contract's order.

    Without an order in the contract, a key that occurs in two partitions fails the write with `ORDER_MARK`.
    """
    ordered = Window.partitionBy(*contract.identifier).orderBy(
        *[F.col(c).desc_nulls_last() for c in order_columns(contract) if c != TOPIC_COLUMN]
    )
    rows = rows.withColumn("_sluice_rank", F.row_number().over(ordered))
    first = F.col("_sluice_rank") == 1
    if not contract.order:
        # A key's rows are sorted by partition first, so a key in two partitions has two neighbours that differ. The
        # window that ranks the rows finds them, without a second one over the whole batch.
        rows = rows.withColumn("_sluice_before", F.lag(PARTITION_COLUMN).over(ordered))
        apart = F.col("_sluice_before") != F.col(PARTITION_COLUMN)
        first = F.when(apart, F.raise_error(F.lit(ORDER_MARK)).cast("boolean")).otherwise(first)
    return rows.where(first).drop("_sluice_rank", "_sluice_before")


def find_conflicts(rows: DataFrame, others: Sequence[str], contract: Contract) -> str:
    """The coordinates of the first few keys that occur in two partitions; never the keys.

    Args:
        others: tables that may hold the keys as well: the typed table and its deletes table.
    """
    key = list(contract.identifier)
    placed: list[Column | str] = [*map(quote_identifier, key), F.struct(*KAFKA_COLUMNS[:3]).alias("_sluice_place")]
    met = rows.select(*placed)
    for name in others:
        there = rows.sparkSession.table(name).select(*placed)
        met = met.unionByName(there.join(rows.select(*map(quote_identifier, key)), key, "left_semi"))
    ends = {f"_sluice_{name}": f("_sluice_place").alias(f"_sluice_{name}") for name, f in ENDS.items()}
    both = met.groupBy(*map(quote_identifier, key)).agg(*ends.values())
    apart = F.expr(" OR ".join("{}.{c} <> {}.{c}".format(*ends, c=c) for c in KAFKA_COLUMNS[:2]))
    found = both.where(apart).orderBy(*ends).select(*ends).limit(CONFLICTS_SHOWN).collect()
    return "; ".join(" and ".join(f"{t} partition {p} offset {o}" for t, p, o in pair) for pair in found)


def drop_deleted(
    rows: DataFrame, contract: Contract, deletes: DataFrame, bounds: Sequence[KeyBound] = (), *, live: bool = False
) -> DataFrame:
    """Drop rows whose key was deleted later, by the deletes table.

    Without an order in the contract, a key that was deleted in another partition fails the write with `ORDER_MARK`.

    Args:
        bounds: bounds of the rows' keys.
        live: the rows come after all that was published before. Then, without an order, an earlier delete drops no row:
            only a delete from another partition matters, which fails the write.
    """
    names = dict.fromkeys([*contract.identifier, *order_columns(contract)])
    deletes = deletes.alias("d")
    for bound in bounds:
        deletes = deletes.where(F.expr(bound.condition("d")))
    d = deletes.select(*[F.col(c).alias(f"_d_{c}") for c in names]).alias("d")
    same = [f"s.{quote_identifier(c)} = d.{quote_identifier('_d_' + c)}" for c in contract.identifier]
    # The delete's columns are renamed, because both sides have the same.
    after = is_later(contract, ("d", "_d_"), ("s", ""))
    if not contract.order:
        if live:
            after = (
                f"d._d_{OFFSET_COLUMN} < 0"  # never true; with a plain `false` Spark would evaluate raise_error early
            )
        apart = " OR ".join(f"s.{c} <> d._d_{c}" for c in KAFKA_COLUMNS[:2])
        after = f"CASE WHEN {apart} THEN CAST(raise_error('{ORDER_MARK}') AS BOOLEAN) ELSE {after} END"
    return rows.alias("s").join(d, F.expr(" AND ".join([*same, after])), "left_anti")


def deletes_columns(contract: Contract) -> list[str]:
    """The columns of the deletes table that a delete fills."""
    return [*contract.identifier, *KAFKA_COLUMNS, *(c for c in contract.order if c not in KAFKA_COLUMNS)]


def insert_missing(rows: DataFrame, target: str, contract: Contract, batch: Batch) -> None:
    """Insert the rows whose (topic, partition, offset) the table does not hold."""
    writer = rows.alias("s").mergeInto(target, _same_coordinates(target, batch))
    writer.whenNotMatched().insert(source_values(typed_columns(contract))).merge()


def upsert_quarantine(rows: DataFrame, target: str, batch: Batch) -> None:
    """Insert rejected records into the quarantine; those that are there get the reason of now."""
    writer = rows.alias("s").mergeInto(target, _same_coordinates(target, batch))
    why = source_values(["error_class", "error", "field"])
    writer.whenMatched().update(why).whenNotMatched().insert(source_values(rows.columns)).merge()


def delete_quarantined(rows: DataFrame, target: str, batch: Batch, batch_seqs: Sequence[int] | None = None) -> None:
    """Delete records from the quarantine, by their coordinates.

    Args:
        batch_seqs: only rows of these batches.
    """
    on = _same_coordinates(target, batch)
    if batch_seqs is not None:
        on &= F.col(f"{target}.batch_seq").isin(list(batch_seqs))
    rows.alias("s").mergeInto(target, on).whenMatched().delete().merge()


def _same_coordinates(target: str, batch: Batch) -> Column:
    """The ON clause by coordinates, with the batch's bounds as literals."""
    on = [f"{target}.{c} = s.{c}" for c in (PARTITION_COLUMN, OFFSET_COLUMN)]
    ends = f"{target}.{OFFSET_COLUMN}"
    on.append(f"{ends} >= {min(r.start for r in batch.ranges.values())}L")
    on.append(f"{ends} < {max(r.end for r in batch.ranges.values())}L")
    if len(batch.ranges) <= PARTITIONS_INLINE:
        on.append(in_ranges(batch, f"{target}."))
    else:
        on.append(f"{target}.{TOPIC_COLUMN} = {sql_literal(batch.topic)}")
    return F.expr(" AND ".join(on))


def in_ranges(batch: Batch, prefix: str = "") -> str:
    """The SQL condition that a row's coordinates lie in the batch's ranges."""
    if len(batch.ranges) > PARTITIONS_INLINE:
        return _in_many_ranges(batch, prefix)
    bounds = [
        f"({prefix}{PARTITION_COLUMN} = {p} AND {prefix}{OFFSET_COLUMN} >= {r.start}L"
        f" AND {prefix}{OFFSET_COLUMN} < {r.end}L)"
        for p, r in sorted(batch.ranges.items())
    ]
    return f"{prefix}{TOPIC_COLUMN} = {sql_literal(batch.topic)} AND ({' OR '.join(bounds)})"


def _in_many_ranges(batch: Batch, prefix: str) -> str:
    """The same with the ranges in arrays, indexed by partition.

    A term for each range takes seconds to plan, and generates code beyond Java's limits. Tables are pruned by the least
    and the greatest offset.
    """
    ranges, offset = batch.ranges, f"{prefix}{OFFSET_COLUMN}"
    none = (0, 0)
    starts, ends = zip(*(ranges.get(p, none) for p in range(max(ranges) + 1)), strict=True)
    listed = [f"get(array({', '.join(f'{n}L' for n in each)}), {prefix}{PARTITION_COLUMN})" for each in (starts, ends)]
    return (
        f"{prefix}{TOPIC_COLUMN} = {sql_literal(batch.topic)}"
        f" AND {offset} >= {min(r.start for r in ranges.values())}L AND {offset} < {max(ends)}L"
        f" AND {offset} >= {listed[0]} AND {offset} < {listed[1]}"
    )


def upsert(rows: DataFrame, target: str, contract: Contract, bounds: Sequence[KeyBound]) -> None:
    """Insert, update or delete by key; a row only moves forward in the contract's order."""
    on = [f"{target}.{quote_identifier(c)} = s.{quote_identifier(c)}" for c in contract.identifier] + [
        b.condition(target) for b in bounds
    ]
    newer = is_later(contract, ("s", ""), (target, ""))
    everything = source_values(typed_columns(contract))
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


def upsert_deletes(rows: DataFrame, target: str, contract: Contract) -> None:
    """Keep the latest delete of each key; without an order in the contract, of each partition that the key was in.

    Columns of an earlier order in the deletes table are filled where the delete's record has them, because the contract
    may return to that order.
    """
    known = deletes_columns(contract)
    types = {field.name: field.dataType for field in rows.schema}
    others = [field for field in rows.sparkSession.table(target).schema if field.name not in known]
    rows = rows.select(
        *map(quote_identifier, known),
        *(
            quote_identifier(f.name) if types.get(f.name) == f.dataType else F.lit(None).cast(f.dataType).alias(f.name)
            for f in others
        ),
    )
    everything = source_values(rows.columns)
    names = [*contract.identifier, *(() if contract.order else KAFKA_COLUMNS[:2])]
    on = " AND ".join(f"{target}.{quote_identifier(c)} = s.{quote_identifier(c)}" for c in names)
    writer = rows.alias("s").mergeInto(target, F.expr(on))
    newer = F.expr(is_later(contract, ("s", ""), (target, "")))
    writer.whenMatched(newer).update(everything).whenNotMatched().insert(everything).merge()


def find_key_bounds(rows: DataFrame, contract: Contract, records: int) -> list[KeyBound]:
    """Find literal bounds of the batch's keys: all values if they are few and short, else the least and the greatest.

    Args:
        rows: all records of the batch. Rejected ones only widen the bounds; leaving them out would decode each value
            once more.
        records: how many records the batch has at most.

    Returns:
        One bound per key column. None at all if the batch has no keys, or one that no literal can express. None for
        a uuid: Iceberg compares uuids signed, Parquet's file statistics unsigned, so a file with keys on both sides
        would be skipped and its rows inserted again.
    """
    names = list(contract.identifier)
    kinds = [rows.schema[c].dataType for c in names]
    text = [isinstance(kind, StringType) for kind in kinds]
    keys = rows.select(*[_exact(F.col(c), kind).alias(c) for c, kind in zip(names, kinds, strict=True)])
    # No filter on null keys: Spark would push it below decoding, with a copy of the decoding for each column.
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
                every, values[-1] = False, _upper_bound(values[-1])
                if not values[-1]:
                    continue
        if not every:
            values = [values[0], values[-1]]
        has_ends = values[0] >= LEAST_BOUND.get(contract.column(c).type, values[0])
        if every or has_ends:
            bounds.append(KeyBound(c, [_literal(each, kinds[i]) for each in values], every, has_ends))
    return bounds


def _upper_bound(key: str | bytes) -> str | bytes:
    """The least value above all that begin with this prefix; empty if there is none."""
    if isinstance(key, bytes):
        key = key.rstrip(b"\xff")
        return key and key[:-1] + bytes([key[-1] + 1])
    key = key.rstrip(chr(sys.maxunicode))
    last = key and chr(0xE000 if key[-1] == "\ud7ff" else ord(key[-1]) + 1)  # there are no surrogates in a text
    return key and key[:-1] + last


def _exact(key: Column, kind: DataType) -> Column:
    """A key in a form that reaches Python unchanged; of a long one a prefix, one longer than a key that is kept whole.

    Text that is not UTF-8 would not, nor would dates and timestamps: Python's end with the year 9999, and PySpark
    converts timestamps to the local time zone.
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
    return sql_literal(value)


def source_values(names: Sequence[str]) -> dict[str, Column]:
    """The assignments of a MERGE that set these columns to the source's values."""
    return {quote_identifier(name): F.expr(f"s.{quote_identifier(name)}") for name in names}


def is_later(contract: Contract, a: tuple[str, str], b: tuple[str, str]) -> str:
    """The SQL condition that version `a` of a row comes after `b`; each is (alias, column prefix), null comes first.

    Without an order in the contract both are in one partition, and the offset alone decides.
    """
    names = order_columns(contract) if contract.order else [OFFSET_COLUMN]
    condition = "false"
    for name in reversed(names):
        x, y = (f"{alias}.{quote_identifier(prefix + name)}" for alias, prefix in (a, b))
        condition = f"({x} > {y} OR ({y} IS NULL AND {x} IS NOT NULL) OR ({x} <=> {y} AND {condition}))"
    return condition
