"""Decode: the fields of a record become the contract's columns, what the record does, or an error that says why not."""

from __future__ import annotations

from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract import KAFKA_COLUMNS, Contract
from sluice.fields import FIELDS, KEY, VALUE, Side, problem
from sluice.formats import FORMATS, spark_type
from sluice.iceberg_types import Fixed, Primitive
from sluice.wire import PREFIX

OP, ERROR, DETAIL, FIELD = "_sluice_op", "_sluice_error", "_sluice_detail", "_sluice_field"
UPSERT, DELETE, IGNORE = "u", "d", "i"

_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"


def wanted(contract: Contract, side: Side = VALUE) -> T.StructType:
    """The fields of the value, or of the key, that the contract's columns are taken from, with the columns' types."""
    tree: dict[str, Any] = {}
    for column in contract.columns:
        if path := column.key_path if side is KEY else column.path:
            *outer, name = path
            node = reduce(lambda at, part: at.setdefault(part, {}), outer, tree)
            node[name] = spark_type(column.type)
    return _struct(tree)


def _struct(tree: dict[str, Any]) -> T.StructType:
    return T.StructType(
        [T.StructField(name, _struct(node) if isinstance(node, dict) else node) for name, node in tree.items()]
    )


def decode(staged: DataFrame, contract: Contract, topic: str) -> DataFrame:
    """Staged records of one topic → the same rows with typed columns, what each does, and what is wrong with it.

    Returns:
        The contract's columns and the four Kafka coordinates; `key`, `value`, `headers`, `batch_seq` as staged; and
        `_sluice_op` (u, d, i), `_sluice_error` (class or null), `_sluice_detail`, `_sluice_field`.
    """
    frame = FORMATS[contract.value.format](staged, wanted(contract), VALUE)
    # A key that is the column, as it is or as text, is simply cast; others are read as values are.
    fields_of_key = contract.key.format not in ("string", "bytes") and any(c.from_key for c in contract.columns)
    if fields_of_key:
        frame = FORMATS[contract.key.format](frame, wanted(contract, KEY), KEY)
    tombstone = F.col("value").isNull()
    text = F.col("key").cast("string")
    key = F.col("key") if contract.key.format == "bytes" else F.when(F.is_valid_utf8(text), text)
    if contract.key.format == "string":
        garbled = F.col("key").isNotNull() & ~F.is_valid_utf8(text) & F.lit(any(c.from_key for c in contract.columns))
        frame = frame.withColumn(KEY.problem, F.when(garbled, problem("the key is not UTF-8 text", KEY.whole)))
    key_problem = [KEY.problem] if KEY.problem in frame.columns else []
    tombstone_column = contract.tombstone_column
    columns: list[Column] = []
    for column in contract.columns:
        target = spark_type(column.type)
        from_key = key if isinstance(target, T.BinaryType) else key.try_cast(target)
        if column.from_key:
            value = reduce(lambda at, part: at[part], column.key_path, F.col(KEY.fields)) if fields_of_key else from_key
        else:
            value = reduce(lambda at, part: at[part], column.path, F.col(FIELDS))
            if column.name == tombstone_column:
                value = F.when(tombstone, from_key).otherwise(value)
        columns.append(value.alias(column.name))
    frame = frame.select(
        *columns,
        F.lit(topic).alias("_kafka_topic"),
        *KAFKA_COLUMNS[1:],
        "key", "value", "headers", "batch_seq", VALUE.problem, *key_problem,
    )  # fmt: skip
    op, tombstone_error = _tombstones(contract, tombstone)
    unread = F.coalesce(F.col(VALUE.problem), *map(F.col, key_problem))
    misfit = _misfit(contract)
    error = (
        F.when(tombstone, tombstone_error)
        .when(unread.isNotNull(), F.lit("malformed"))
        .when(misfit.isNotNull(), F.lit("misfit"))
    )
    return frame.select(
        *[c for c in frame.columns if c not in (VALUE.problem, KEY.problem)],
        op.alias(OP),
        error.alias(ERROR),
        F.when(tombstone, F.lit(None)).otherwise(F.coalesce(unread["field"], misfit)).alias(FIELD),
        F.when(~tombstone, unread["detail"]).alias(DETAIL),
    )


def _tombstones(contract: Contract, tombstone: Column) -> tuple[Column, Column]:
    """What a record does, and why a record without a value is an error, if it is."""
    none = F.lit(None).cast("string")
    if not contract.upsert:
        return F.lit(UPSERT), F.lit("null_value")
    if contract.deletes == "ignore":
        return F.when(tombstone, F.lit(IGNORE)).otherwise(F.lit(UPSERT)), none
    op = F.when(tombstone, F.lit(DELETE)).otherwise(F.lit(UPSERT))
    if contract.key_names_rows:
        unnamed = reduce(lambda a, b: a | b, [F.col(name).isNull() for name in contract.identifier])
        return op, F.when(unnamed, F.lit("tombstone_key"))
    name = contract.tombstone_column
    if name is None:
        return op, F.lit("tombstone_key")
    return op, F.when(F.col(name).isNull(), F.lit("tombstone_key"))


def _misfit(contract: Contract) -> Column:
    """The first column whose value is absent though required, or does not fit its type; null where all is well."""
    checks = []
    for column in contract.columns:
        value, name = F.col(column.name), F.lit(column.name)
        if column.required:
            checks.append(F.when(value.isNull(), name))
        if column.type == Primitive("uuid"):
            checks.append(F.when(~value.rlike(_UUID), name))
        if isinstance(column.type, Fixed):
            checks.append(F.when(F.length(value) != column.type.length, name))
    return F.coalesce(*checks, F.lit(None).cast("string"))


def failed_field(contract: Contract) -> Column:
    """For a record that did not parse: the first field that is there but could not be read as the contract's type."""
    if contract.value.format not in ("json", "json_schema"):
        return F.col(FIELD)
    skipped = 1 if contract.value.format == "json" else PREFIX + 1
    text = F.expr(f"substring(value, {skipped})").cast("string")
    checks = []
    for column in contract.columns:
        if column.path:
            path = "$" + "".join("['" + part.replace("'", "") + "']" for part in column.path)
            there = F.get_json_object(text, path)
            checks.append(F.when(there.isNotNull() & F.col(column.name).isNull(), F.lit(".".join(column.path))))
    return F.coalesce(F.col(FIELD), *checks)
