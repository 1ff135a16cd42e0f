"""The logical types of all formats in one table, and the conversions from numbers, texts and bytes to them.

Used by all readers, by `columns: auto` and by plan's warnings; `.ci/type_tables.py` writes it into
docs/reference/types.md. Each conversion returns null for a value that is not of the wanted type.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats.internal_columns import (
    ExactDecimalType,
    ExactTimestampNTZType,
    ExactTimestampType,
    Expression,
    nanos_of,
)

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


@dataclass(frozen=True)
class LogicalType:
    """What a schema's name for a type means.

    Attributes:
        base: The type of the values that have it: int or long, string, or binary.
        columns: The column types that it is read as. The first is that of `columns: auto`. Where the base is among
            them, so are the types that the base widens to.
        nanos: Nanoseconds of one unit, if the values count time, of a day or since 1970; else 0.
        note: What the documentation says of it.
    """

    base: str
    columns: tuple[str, ...]
    nanos: int = 0
    note: str = ""

    def reader(self, want: T.DataType) -> Expression | None:
        """The conversion to a wanted type; None if the base is read like any other value of its type."""
        if nanos_of(want) and self.nanos and self.base in self.columns:
            return lambda units: _in_unit_of(want, units.cast("long"), self.nanos)
        if not any(isinstance(want, type(_PRIMITIVES[name])) for name in self.columns if name != self.base):
            return None
        if self.base == "string":
            # A date and a local time have no zone: the Z is part of the notation.
            is_local = isinstance(want, (T.DateType, T.TimestampNTZType))
            return (lambda text: read_text(F.regexp_replace(text, r"Z\z", ""), want)) if is_local else None
        if isinstance(want, T.DateType):
            return date_from_days
        if isinstance(want, (T.TimestampType, T.TimestampNTZType)):
            return lambda units: _timestamp_from_nanos(units.cast("long"), self.nanos, want)
        return None

    @property
    def unit(self) -> str | None:
        """The unit of the column that `columns: auto` makes of it; None if that is no number, or counts no time."""
        return _UNITS.get(self.nanos) if self.columns[0] in ("int", "long") else None


@dataclass(frozen=True)
class NamedType(Primitive):
    """The type of a field whose schema names a logical type.

    Attributes:
        logical: What the name means.
    """

    logical: LogicalType


def unit_of(kind: IcebergType | None) -> str | None:
    """The unit of a field of that type as a column."""
    return kind.logical.unit if isinstance(kind, NamedType) else None


CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
VARIABLE_SCALE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
DECIMAL, CONNECT_DECIMAL = "decimal", f"{CONNECT}Decimal"
"""Avro's and Kafka Connect's name for a decimal's unscaled number in two's complement; the schema has its scale."""
_DAY, _MILLI, _MICRO, _NANO = 86_400_000_000_000, 1_000_000, 1000, 1
_UNITS = {_MILLI: "millis", _MICRO: "micros", _NANO: "nanos"}
AVRO_TYPES = {
    "date": LogicalType("int", ("date",), _DAY, "days since 1970"),
    "time-millis": LogicalType("int", ("int",), _MILLI, "milliseconds of the day"),
    "time-micros": LogicalType("long", ("long",), _MICRO, "microseconds of the day"),
    "timestamp-millis": LogicalType("long", ("timestamptz",), _MILLI),
    "timestamp-micros": LogicalType("long", ("timestamptz",), _MICRO),
    "timestamp-nanos": LogicalType("long", ("long", "timestamptz"), _NANO, "a timestamp has microseconds"),
    "local-timestamp-millis": LogicalType("long", ("timestamp",), _MILLI),
    "local-timestamp-micros": LogicalType("long", ("timestamp",), _MICRO),
    "local-timestamp-nanos": LogicalType("long", ("long", "timestamp"), _NANO, "a timestamp has microseconds"),
    "uuid": LogicalType("string", ("uuid", "string")),
}
"""Avro's `logicalType` on a schema of the base type; see `avro_schema.valid_logical_type`."""
_LOCAL = "no zone: local time"
CONNECT_TYPES = {
    f"{CONNECT}Date": LogicalType("int", ("date", "int"), _DAY, "days since 1970"),
    f"{CONNECT}Time": LogicalType("int", ("int",), _MILLI, "milliseconds of the day"),
    f"{CONNECT}Timestamp": LogicalType("long", ("timestamptz", "timestamp", "long"), _MILLI, "milliseconds"),
    f"{DEBEZIUM}Date": LogicalType("int", ("date", "int"), _DAY, "days since 1970"),
    f"{DEBEZIUM}Time": LogicalType("int", ("int",), _MILLI, "milliseconds of the day"),
    f"{DEBEZIUM}MicroTime": LogicalType("long", ("long",), _MICRO, "microseconds of the day"),
    f"{DEBEZIUM}NanoTime": LogicalType("long", ("long",), _NANO, "nanoseconds of the day"),
    f"{DEBEZIUM}Timestamp": LogicalType(
        "long", ("timestamp", "timestamptz", "long"), _MILLI, f"milliseconds; {_LOCAL}"
    ),
    f"{DEBEZIUM}MicroTimestamp": LogicalType(
        "long", ("timestamp", "timestamptz", "long"), _MICRO, f"microseconds; {_LOCAL}"
    ),
    f"{DEBEZIUM}NanoTimestamp": LogicalType(
        "long", ("long", "timestamp", "timestamptz"), _NANO, f"nanoseconds; {_LOCAL}; a timestamp has microseconds"
    ),
    f"{DEBEZIUM}ZonedTimestamp": LogicalType("string", ("timestamptz", "string")),
    f"{DEBEZIUM}ZonedTime": LogicalType("string", ("string",)),
    f"{DEBEZIUM}IsoDate": LogicalType("string", ("date", "string"), note="`2017-09-15Z`"),
    f"{DEBEZIUM}IsoTimestamp": LogicalType(
        "string", ("timestamp", "timestamptz", "string"), note=f"`2017-09-15T15:55:21Z`; {_LOCAL}"
    ),
    f"{DEBEZIUM}IsoTime": LogicalType("string", ("string",), note="`15:55:21Z`"),
}
"""Kafka Connect's and Debezium's names. They are `connect.name` in Avro, `name` in an embedded schema, and `title` in
JSON Schema."""
JSON_SCHEMA_FORMATS = {
    "date": LogicalType("string", ("date", "string")),
    "date-time": LogicalType("string", ("timestamptz", "string")),
    "uuid": LogicalType("string", ("uuid", "string")),
}
"""JSON Schema's `format` of a string."""
FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US = -62_135_596_800_000_000, 253_402_300_799_999_999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999: many query engines cannot read dates beyond them."""
_DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]+)?)?"
_ZONE = r"(?:[Zz]| ?UTC|[+-][0-9]{2}(?::?[0-9]{2})?)"
_ISO: dict[type[T.DataType], str] = {
    T.DateType: _DATE,
    T.TimestampNTZType: rf"{_DATE}(?:{_TIME})?",
    T.TimestampType: rf"{_DATE}(?:{_TIME}{_ZONE}?)?",
}
"""Accepted texts. Spark's cast would drop a zone or a time of day, and would read a time without a date as today's."""
_LACKS_SECONDS = r"^(.{16})(?=[^:])"
"""A text that goes on after the minutes, but not with seconds."""
_FIRST_DATE, _LAST_DATE = "0001-01-01", "9999-12-31"
_SECONDS = r"^-?[0-9]{1,12}(?:[.]0{1,9})?\z|^-?[0-9][.][0-9]{1,15}E1?[0-9]\z"
"""A whole number, or a double as Spark's JSON parser writes one into a text."""
_NUMBER = r"^\s*[+-]?[0-9.]{1,200}([eE][+-]?[0-9]{1,3})?\s*\z"
JAVA_NUMBER = r"[xX]|[0-9.][dDfF][\x00-\x20]*\z"
"""A number as Java's source has it: Spark's cast reads `1d` as 1.0."""
_FEW_DIGITS = r"^\s*[+-]?0*+[.]?0*+(?:[0-9][.]?){0,15}0*(?:[.]0*)?(?:[eE][+-]?[0-9]+)?\s*\z"
"""A number that a double keeps exactly enough to tell it from others. Zeros before it are taken once (`*+`): tried in
all ways, a key of a thousand zeros and a letter would take minutes."""
_EXACT_TIMESTAMPS = (ExactTimestampType, ExactTimestampNTZType)
BELOW_MICROS = r"[.][0-9]{6}0*[1-9]"
"""A fraction of a second that a timestamp has no room for."""
_MAX_NANOS, _MAX_DURATION_S = 999_999_999, 315_576_000_000
MAX_DIGITS, _DECIMAL_BYTES = 38, 16
_WIDE_HEX = r"^(?:0+[0-7]|F+[89A-F])[0-9A-F]{31}\z"
"""More than 16 bytes in hexadecimal, of which those before the last 16 only repeat the sign."""


def may_be_named(want: T.DataType) -> bool:
    """Whether Connect's names say how to read a value of a wanted type, or a part of it."""
    match want:
        case T.StructType(fields=fields):
            return any(may_be_named(f.dataType) for f in fields)
        case T.ArrayType(elementType=inner) | T.MapType(valueType=inner):
            return may_be_named(inner)
    return isinstance(want, T.DecimalType | T.DateType | T.TimestampType | T.TimestampNTZType) or nanos_of(want) > 0


def to_decimal(text: Column, want: T.DecimalType) -> Column:
    """The number in a text, rounded to the decimal's scale; null if it is none or too large.

    Longer exponents are rejected before the cast: the JVM would expand them to gigabytes of digits.
    """
    number = F.when(text.rlike(_NUMBER), text).try_cast(want)
    if not isinstance(want, ExactDecimalType):
        return number
    has_room = text.rlike(rf"^\s*[+-]?[0-9]*(?:[.][0-9]{{0,{want.scale}}}0*)?\s*\z")
    is_tiny = (number == 0) & text.rlike(r"^[^eE]*[1-9]")  # a double does not tell 1e-400 from zero
    same = text.rlike(_FEW_DIGITS) & (text.try_cast("double") == number.cast("double")) & ~is_tiny
    return F.when(number.isNotNull() & (has_room | same), number)


def decimal_from_unscaled(raw: Column, scale: Column, want: T.DecimalType) -> Column:
    """The decimal that bytes and a scale stand for; null if its own digits do not fit: it is never rounded.

    Args:
        raw: The unscaled number in two's complement, the most significant byte first.
        scale: How many of its digits are after the point.
        want: The wanted type.
    """

    def from_digits(given: Column) -> Column:
        digits, width = given["digits"], 2 * _DECIMAL_BYTES
        sign = F.when(F.substring(digits, 1, 1) >= "8", "F").otherwise("0")
        short = F.when(F.length(digits).between(1, width), digits)
        short = short.when(digits.rlike(_WIDE_HEX), F.right(digits, F.lit(width)))
        padded = F.lpad(short, width, sign)
        half = F.lit(str(2**64)).cast(T.DecimalType(20, 0))
        high, low = F.conv(F.substring(padded, 1, 16), 16, -10), F.conv(F.substring(padded, 17, 16), 16, 10)
        # A negative number borrows one from its upper half, which alone could have more digits than a decimal holds.
        borrow = F.when(sign == "F", 1).otherwise(0)
        number = F.try_add(F.try_multiply((high + borrow).cast(wide), half), low.cast(wide) - half * borrow)
        return let(F.struct(number.cast("string").alias("text"), given["scale"].alias("scale")), from_text)

    def from_text(given: Column) -> Column:
        text, scale = given["text"], given["scale"]
        fits = (text == "0") | F.endswith(text, F.repeat(F.lit("0"), scale - want.scale))
        return F.when(fits, F.concat(text, F.lit("E"), (-scale).cast("string"))).try_cast(want)

    wide = T.DecimalType(MAX_DIGITS, 0)
    scale = F.when(scale.between(-MAX_DIGITS, want.scale + MAX_DIGITS), scale).cast("int")
    return let(F.struct(F.hex(raw).alias("digits"), scale.alias("scale")), from_digits)


def let(value: Column, use: Expression) -> Column:
    """A large expression of a value: the value is computed once, and Spark generates no code for the expression.

    Code grows with each mention of a value; with a dozen such columns it would exceed what the JVM compiles.
    """
    return F.get(F.transform(F.array(value), use), F.lit(0))


def date_from_days(days: Column) -> Column:
    """Days since 1970 as a date; null beyond the years 1 to 9999."""
    return F.date_from_unix_date(F.when(days.between(FIRST_DAY, LAST_DAY), days).cast("int"))


def within_calendar(value: Column, kind: T.DataType) -> Column:
    """A date or a timestamp; null beyond the years 1 to 9999."""
    if isinstance(kind, T.DateType):
        first, last = (F.date_from_unix_date(F.lit(each)) for each in (FIRST_DAY, LAST_DAY))
    else:
        first, last = (F.timestamp_micros(F.lit(each)).cast(kind) for each in (FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US))
    return F.when(value.between(first, last), value)


def timestamp_from_units(units: Column, micros: Column, want: T.DataType) -> Column:
    """Units of `micros` microseconds each since 1970 as a timestamp; null beyond the years 1 to 9999."""
    return _timestamp_from_micros(F.try_multiply(units.cast("long"), micros), want)


def timestamp_from_seconds(seconds: Column, nanos: Column, want: T.DataType) -> Column:
    """Protobuf's Timestamp: seconds since 1970 and 0 to 999,999,999 nanoseconds after them; null if it is invalid."""
    valid = F.when(nanos.between(0, _MAX_NANOS), nanos)
    if isinstance(want, _EXACT_TIMESTAMPS):
        valid = F.when(nanos % _MICRO == 0, valid)
    return _timestamp_from_micros(_to_micros(seconds, valid), want)


def duration_from_seconds(seconds: Column, nanos: Column, want: T.DataType) -> Column:
    """Protobuf's Duration in microseconds: seconds and nanoseconds of one sign, up to 10,000 years; null if invalid."""
    in_range = seconds.between(-_MAX_DURATION_S, _MAX_DURATION_S) & nanos.between(-_MAX_NANOS, _MAX_NANOS)
    is_valid = in_range & (F.signum(seconds) * F.signum(nanos) >= 0)
    return F.when(is_valid, _to_micros(seconds, nanos)).try_cast(want)


def _to_micros(seconds: Column, nanos: Column) -> Column:
    micros = F.call_function("div", nanos, F.lit(_MICRO))
    return F.try_add(F.try_multiply(seconds, F.lit(1_000_000).cast("long")), micros)


def _timestamp_from_micros(since: Column, want: T.DataType) -> Column:
    return F.timestamp_micros(F.when(since.between(FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US), since)).cast(want)


def _timestamp_from_nanos(units: Column, nanos: int, want: T.DataType) -> Column:
    """Units of `nanos` nanoseconds each since 1970 as a timestamp; what is below a microsecond is cut off."""
    if nanos > _MICRO:
        return timestamp_from_units(units, F.lit(nanos // _MICRO).cast("long"), want)
    if nanos == _MICRO:
        return _timestamp_from_micros(units, want)
    rest = F.pmod(units, F.lit(_MICRO))
    if isinstance(want, _EXACT_TIMESTAMPS):
        units = F.when(rest == 0, units)
    return _timestamp_from_micros(F.call_function("div", F.try_subtract(units, rest), F.lit(_MICRO)), want)


def _in_unit_of(want: T.DataType, units: Column, nanos: int) -> Column:
    """Units of `nanos` nanoseconds each in the unit of a wanted type; null if it has no room for them as they are."""
    wanted = nanos_of(want)
    if nanos >= wanted:
        return F.try_multiply(units, F.lit(nanos // wanted).cast("long")).try_cast(want)
    factor = F.lit(wanted // nanos).cast("long")
    return F.when(units % factor == 0, F.call_function("div", units, factor)).try_cast(want)


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
    number = F.when(text.rlike(_SECONDS), text).try_cast(T.DecimalType(38, 16))
    seconds = number.try_cast("long")
    return F.coalesce(read, convert_number(F.when(seconds == number, seconds), want))


def read_text(text: Column, want: T.DataType) -> Column:
    """An ISO 8601 text or a number's text as the wanted type; null if a zone in it would be lost."""
    if isinstance(want, T.DecimalType):
        return to_decimal(text, want)
    pattern = next((each for kind, each in _ISO.items() if isinstance(want, kind)), None)
    if isinstance(want, T.FloatType | T.DoubleType):
        text = F.when(~text.rlike(JAVA_NUMBER), text)
    if pattern is None:
        return text.try_cast(want)
    text = text.cast("string")
    if isinstance(want, _EXACT_TIMESTAMPS):
        text = F.when(~text.rlike(BELOW_MICROS), text)
    text = F.when(text.rlike(rf"^{pattern}\z"), text)
    read = text.try_cast(want)
    if isinstance(want, T.DateType):
        return read
    read = F.coalesce(read, _castable_timestamp(text).try_cast(want))  # most texts need no completion
    if not isinstance(want, T.TimestampType):
        return read
    # A zone shifts a timestamp out of the calendar only on its first and last day. Other texts are not compared: Spark
    # would parse each timestamp once for every mention in the plan.
    at_edge = text.startswith(_FIRST_DATE) | text.startswith(_LAST_DATE)
    first, last = (F.timestamp_micros(F.lit(each)) for each in (FIRST_TIMESTAMP_US, LAST_TIMESTAMP_US))
    return F.when(at_edge & ~read.between(first, last), None).otherwise(read)


def _castable_timestamp(text: Column) -> Column:
    """A timestamp's text as Spark's cast accepts it: with a capital T and Z, and with seconds before a zone.

    Java's `OffsetDateTime` leaves out seconds that are zero. The text is mentioned once: each mention would read it
    from the record anew.
    """
    return F.upper(F.regexp_replace(text, _LACKS_SECONDS, "$1:00"))


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
