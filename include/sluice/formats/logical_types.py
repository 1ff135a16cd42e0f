"""Types that Kafka Connect and Debezium have beside a schema's own: a number or a text whose name says what it is."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.internal_columns import from_text

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
MOMENTS = {f"{CONNECT}Timestamp": 1000, f"{DEBEZIUM}Timestamp": 1000, f"{DEBEZIUM}MicroTimestamp": 1}
"""Numbers of so many microseconds. Debezium's have no zone; they are the clock's face as if it were UTC's."""
FIRST_MOMENT_US, LAST_MOMENT_US = -62_135_596_800_000_000, 253_402_300_799_999_999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999: what lies beyond, many a reader of the table can't read."""
_DAY = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_FACE = rf"{_DAY}(?:[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:[.][0-9]{{1,9}})?)?)?"
_ISO: dict[type[T.DataType], str] = {
    T.DateType: _DAY,
    T.TimestampNTZType: _FACE,
    T.TimestampType: rf"{_FACE}(?:[Zz]| ?UTC|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?",
}
"""What is read. Spark alone would drop a zone, or a time, and read a time without a day as today's."""
_FIRST_DAY, _LAST_DAY = "0001-01-01", "9999-12-31"
_SECONDS = r"^-?[0-9]{1,12}\z"


def date(days: Column) -> Column:
    """A number of days since 1970 as a date; null where it is none."""
    return F.date_from_unix_date(F.when(days.between(FIRST_DAY, LAST_DAY), days).cast("int"))


def moment(units: Column, micros: Column, want: T.DataType) -> Column:
    """A number of units, of so many microseconds each, as a timestamp; null where it is none."""
    since = F.try_multiply(units.cast("long"), micros)
    return F.timestamp_micros(F.when(since.between(FIRST_MOMENT_US, LAST_MOMENT_US), since)).cast(want)


def within(given: Column, kind: T.DataType) -> Column:
    """A date or a timestamp; null where it lies beyond the years 1 to 9999."""
    if isinstance(kind, T.DateType):
        first, last = (F.date_from_unix_date(F.lit(each)) for each in (FIRST_DAY, LAST_DAY))
    else:
        first, last = (F.timestamp_micros(F.lit(each)).cast(kind) for each in (FIRST_MOMENT_US, LAST_MOMENT_US))
    return F.when(given.between(first, last), given)


def number(given: Column, want: T.DataType) -> Column:
    """A whole number as the wanted type, of which a timestamptz has as many seconds since 1970; null where it is none.

    Milliseconds are beyond the year 9999, and none.
    """
    return moment(given, F.lit(1_000_000), want) if isinstance(want, T.TimestampType) else given.try_cast(want)


def read_json(text: Column, want: T.DataType) -> Column:
    """The text of a JSON string or number as the wanted type, null where it is none: of a timestamptz also seconds."""
    read = read_text(text, want)
    if not isinstance(want, T.TimestampType):
        return read
    return F.coalesce(read, number(F.when(text.rlike(_SECONDS), text).cast("long"), want))


def read_text(text: Column, want: T.DataType) -> Column:
    """An ISO 8601 text, or a number's, as the wanted type; null where it is none, or has a zone that would be lost."""
    shape = _ISO.get(type(want))
    if shape is None:
        return from_text(text, want)
    text = text.cast("string")
    if isinstance(want, T.TimestampType):  # Spark knows no small one
        text = F.when(F.endswith(text, F.lit("z")), F.upper(text)).otherwise(text)
    made = from_text(F.when(text.rlike(rf"^{shape}\z"), text), want)
    if not isinstance(want, T.TimestampType):
        return made
    # A zone leads out of the years from their first and last day alone. Asked of all, Spark would work each moment out
    # once for every time that the plan names it.
    edge = text.startswith(_FIRST_DAY) | text.startswith(_LAST_DAY)
    first, last = (F.timestamp_micros(F.lit(each)) for each in (FIRST_MOMENT_US, LAST_MOMENT_US))
    return F.when(edge & ~made.between(first, last), None).otherwise(made)


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
