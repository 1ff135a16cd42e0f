"""Decode: raw key and value bytes become the contract's columns, or an error that says why not.

A decoder is one function from a frame of staged records to the same frame with the value's fields added; the formats
are a dictionary of such functions, so that a new one joins without a change to any step. All of it runs in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract import KAFKA_COLUMNS, Contract
from sluice.iceberg_types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct

FIELDS, CORRUPT = "_sluice_fields", "_sluice_corrupt"
OP, ERROR, DETAIL, FIELD = "_sluice_op", "_sluice_error", "_sluice_detail", "_sluice_field"
UPSERT, DELETE, IGNORE = "u", "d", "i"

_PRIMITIVES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampNTZType(),
    "timestamptz": T.TimestampType(),
    "string": T.StringType(),
    "uuid": T.StringType(),
    "binary": T.BinaryType(),
}
_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"


def spark_type(kind: IcebergType) -> T.DataType:
    """The Spark type that a column of `kind` is written from."""
    match kind:
        case Primitive(name):
            return _PRIMITIVES[name]
        case Decimal(precision, scale):
            return T.DecimalType(precision, scale)
        case Fixed(_):
            return T.BinaryType()
        case ListOf(element):
            return T.ArrayType(spark_type(element))
        case MapOf(key, value):
            return T.MapType(spark_type(key), spark_type(value))
        case Struct(fields):
            return T.StructType([T.StructField(n, spark_type(inner)) for n, inner in fields])


def json_fields(frame: DataFrame, contract: Contract) -> DataFrame:
    """Add the fields of a JSON object: one parse with a schema, whatever the number of columns."""
    tree: dict[str, Any] = {}
    for column in contract.columns:
        if column.path:
            *outer, name = column.path
            node = reduce(lambda at, part: at.setdefault(part, {}), outer, tree)
            node[name] = spark_type(column.type)
    schema = _struct(tree).add(CORRUPT, T.StringType())
    options = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE"}
    return frame.withColumn(FIELDS, F.from_json(F.col("value").cast("string"), schema, options))


def _struct(tree: dict[str, Any]) -> T.StructType:
    return T.StructType(
        [T.StructField(name, _struct(node) if isinstance(node, dict) else node) for name, node in tree.items()]
    )


DECODERS: dict[str, Callable[[DataFrame, Contract], DataFrame]] = {"json": json_fields}


def decode(staged: DataFrame, contract: Contract, topic: str) -> DataFrame:
    """Staged records of one topic → the same rows with typed columns, what each does, and what is wrong with it.

    Returns:
        The contract's columns and the four Kafka coordinates; `key`, `value`, `headers`, `batch_seq` as staged; and
        `_sluice_op` (u, d, i), `_sluice_error` (class or null), `_sluice_detail`, `_sluice_field`.
    """
    frame = DECODERS[contract.value.format](staged, contract)
    tombstone = F.col("value").isNull()
    key = F.col("key") if contract.key.format == "bytes" else F.col("key").cast("string")
    tombstone_column = contract.tombstone_column
    columns: list[Column] = []
    for column in contract.columns:
        target = spark_type(column.type)
        from_key = key if isinstance(target, T.BinaryType) else key.try_cast(target)
        if column.from_key:
            value = from_key
        else:
            value = reduce(lambda at, part: at[part], column.path, F.col(FIELDS))
            if column.name == tombstone_column:
                value = F.when(tombstone, from_key).otherwise(value)
        columns.append(value.alias(column.name))
    frame = frame.select(
        *columns,
        F.lit(topic).alias("_kafka_topic"),
        *KAFKA_COLUMNS[1:],
        "key", "value", "headers", "batch_seq", FIELDS,
    )  # fmt: skip
    op, tombstone_error = _tombstones(contract, tombstone)
    corrupt = F.col(FIELDS).isNotNull() & F.col(FIELDS)[CORRUPT].isNotNull()
    misfit = _misfit(contract)
    error = (
        F.when(tombstone, tombstone_error)
        .when(F.col(FIELDS).isNull() | corrupt, F.lit("malformed"))
        .when(misfit.isNotNull(), F.lit("misfit"))
    )
    return frame.select(
        *[c for c in frame.columns if c != FIELDS],
        op.alias(OP),
        error.alias(ERROR),
        F.when(tombstone, F.lit(None)).otherwise(misfit).alias(FIELD),
        F.when(corrupt, F.lit("the value is not a JSON object with fields of the contract's types")).alias(DETAIL),
    )


def _tombstones(contract: Contract, tombstone: Column) -> tuple[Column, Column]:
    """What a record does, and why a record without a value is an error, if it is."""
    none = F.lit(None).cast("string")
    if not contract.upsert:
        return F.lit(UPSERT), F.lit("null_value")
    if contract.deletes == "ignore":
        return F.when(tombstone, F.lit(IGNORE)).otherwise(F.lit(UPSERT)), none
    op = F.when(tombstone, F.lit(DELETE)).otherwise(F.lit(UPSERT))
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
    text = F.col("value").cast("string")
    checks = []
    for column in contract.columns:
        if column.path:
            path = "$" + "".join("['" + part.replace("'", "") + "']" for part in column.path)
            there = F.get_json_object(text, path)
            checks.append(F.when(there.isNotNull() & F.col(column.name).isNull(), F.lit(".".join(column.path))))
    return F.coalesce(F.col(FIELD), *checks)
