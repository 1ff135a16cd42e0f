"""Formats: raw key and value bytes become fields, read as the types that the contract wants of them.

A format is one function from a frame of staged records and the wanted fields to the same frame with the struct FIELDS
added; FORMATS names them, so that a new one joins without a change to any step. None of it runs row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.iceberg_types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct

FIELDS, CORRUPT = "_sluice_fields", "_sluice_corrupt"

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


def json_fields(frame: DataFrame, wanted: T.StructType) -> DataFrame:
    """Add the wanted fields of a JSON object: one parse with a schema, whatever the number of columns."""
    schema = T.StructType([*wanted.fields, T.StructField(CORRUPT, T.StringType())])
    options = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE"}
    return frame.withColumn(FIELDS, F.from_json(F.col("value").cast("string"), schema, options))


FORMATS: dict[str, Callable[[DataFrame, T.StructType], DataFrame]] = {"json": json_fields}
"""By the contract's `value.format`. FIELDS is null, or CORRUPT in it set, where a value is not of the format."""
