"""Dates, timestamps and decimals from the numbers and texts that Kafka Connect, Debezium and JSON write for them.

Used by all readers. Each function returns null for a value that is not of the wanted type.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct

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

CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
DECIMAL = f"{CONNECT}Decimal"
DATES = (f"{CONNECT}Date", f"{DEBEZIUM}Date")
TIMESTAMP_UNITS = {f"{CONNECT}Timestamp": 1000, f"{DEBEZIUM}Timestamp": 1000, f"{DEBEZIUM}MicroTimestamp": 1}
"""Microseconds per unit. Debezium's timestamps have no zone: they are local time counted as if it were UTC."""
FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US = -62_135_596_800_000_000, 253_402_300_799_999_999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999: many query engines cannot read dates beyond them."""
_DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_LOCAL_TIMESTAMP = rf"{_DATE}(?:[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:[.][0-9]{{1,9}})?)?)?"
_ISO: dict[type[T.DataType], str] = {
    T.DateType: _DATE,
    T.TimestampNTZType: _LOCAL_TIMESTAMP,
    T.TimestampType: rf"{_LOCAL_TIMESTAMP}(?:[Zz]| ?UTC|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?",
}
"""Accepted texts. Spark's cast would drop a zone or a time of day, and would read a time without a date as today's."""
_FIRST_DATE, _LAST_DATE = "0001-01-01", "9999-12-31"
_SECONDS = r"^-?[0-9]{1,12}\z"
_NUMBER = r"^[+-]?[0-9.]{1,200}([eE][+-]?[0-9]{1,3})?\z"


def to_decimal(text: Column, want: T.DecimalType) -> Column:
    """The number in a text, rounded to the decimal's scale; null if it is none or too large.

    Longer exponents are rejected before the cast: the JVM would expand them to gigabytes of digits.
    """
    return F.when(text.rlike(_NUMBER), text).try_cast(want)


def date_from_days(days: Column) -> Column:
    """Days since 1970 as a date; null beyond the years 1 to 9999."""
    return F.date_from_unix_date(F.when(days.between(FIRST_DAY, LAST_DAY), days).cast("int"))


def timestamp_from_units(units: Column, micros: Column, want: T.DataType) -> Column:
    """Units of `micros` microseconds each since 1970 as a timestamp; null beyond the years 1 to 9999."""
    since = F.try_multiply(units.cast("long"), micros)
    return F.timestamp_micros(F.when(since.between(FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US), since)).cast(want)


def within_calendar(value: Column, kind: T.DataType) -> Column:
    """A date or a timestamp; null beyond the years 1 to 9999."""
    if isinstance(kind, T.DateType):
        first, last = (F.date_from_unix_date(F.lit(each)) for each in (FIRST_DAY, LAST_DAY))
    else:
        first, last = (F.timestamp_micros(F.lit(each)).cast(kind) for each in (FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US))
    return F.when(value.between(first, last), value)


def convert_number(value: Column, want: T.DataType) -> Column:
    """A whole number as the wanted type; a timestamptz is read from seconds since 1970."""
    if isinstance(want, T.TimestampType):
        return timestamp_from_units(value, F.lit(1_000_000), want)
    return value.try_cast(want)


def read_json_scalar(text: Column, want: T.DataType) -> Column:
    """The text of a JSON string or number as the wanted type; a timestamptz may also be seconds since 1970."""
    read = read_text(text, want)
    if not isinstance(want, T.TimestampType):
        return read
    return F.coalesce(read, convert_number(F.when(text.rlike(_SECONDS), text).cast("long"), want))


def read_text(text: Column, want: T.DataType) -> Column:
    """An ISO 8601 text or a number's text as the wanted type; null if a zone in it would be lost."""
    if isinstance(want, T.DecimalType):
        return to_decimal(text, want)
    pattern = _ISO.get(type(want))
    if pattern is None:
        return text.try_cast(want)
    text = text.cast("string")
    if isinstance(want, T.TimestampType):  # Spark does not accept a lower-case z
        text = F.when(F.endswith(text, F.lit("z")), F.upper(text)).otherwise(text)
    read = F.when(text.rlike(rf"^{pattern}\z"), text).try_cast(want)
    if not isinstance(want, T.TimestampType):
        return read
    # A zone shifts a timestamp out of the calendar only on its first and last day. Other texts are not compared: Spark
    # would parse each timestamp once for every mention in the plan.
    at_edge = text.startswith(_FIRST_DATE) | text.startswith(_LAST_DATE)
    first, last = (F.timestamp_micros(F.lit(each)) for each in (FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US))
    return F.when(at_edge & ~read.between(first, last), None).otherwise(read)


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
