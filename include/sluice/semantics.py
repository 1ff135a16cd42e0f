"""Types that Kafka Connect and Debezium have beside a schema's own: a number or a text whose name says what it is."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.fields import from_text

_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
DECIMAL = f"{_CONNECT}Decimal"
DATES = (f"{_CONNECT}Date", f"{_DEBEZIUM}Date")
MOMENTS = {f"{_CONNECT}Timestamp": 1000, f"{_DEBEZIUM}Timestamp": 1000, f"{_DEBEZIUM}MicroTimestamp": 1}
"""Numbers of so many microseconds. Debezium's have no zone; they are the clock's face as if it were UTC's."""
_ZONE = r"(?:[Zz]|[+-]\d\d:?\d\d)$"


def moment(units: Column, micros: Column, want: T.DataType) -> Column:
    """A number of units, of so many microseconds each, as a timestamp; null where it is none."""
    return F.timestamp_micros(F.try_multiply(units.cast("long"), micros)).cast(want)


def read_text(text: Column, want: T.DataType) -> Column:
    """An ISO 8601 text, or a number's, as the wanted type; null where it is none, or has a zone that would be lost."""
    if isinstance(want, T.TimestampNTZType):
        text = F.when(~text.rlike(_ZONE), text)
    return from_text(text, want)
