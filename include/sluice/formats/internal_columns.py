"""Where a format leaves what it read: the names that formats and decode share."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

OP, ERROR, DETAIL, FIELD = "_sluice_op", "_sluice_error", "_sluice_detail", "_sluice_field"
UPSERT, DELETE, IGNORE = "u", "d", "i"


class Side(NamedTuple):
    """The key or the value of a record.

    Attributes:
        raw: The staged column with its bytes.
        fields: The struct of fields that a format adds; null where there are none.
        problem: Why the bytes could not be read, a struct of `detail` and `field` that a format adds; else null.
        whole: The source, and the field, of a key or value that is one thing and no object with fields.
        types: The names of the only types that are read; empty for all. Of others `OTHER` is true.
    """

    raw: str
    fields: str
    problem: str
    whole: str
    types: tuple[str, ...] = ()


STAGED = {name: f"_sluice_{name}" for name in ("key", "value", "headers", "batch_seq")}
"""What decode calls the record as it was staged: the contract's own columns may have these names."""

OTHER = "_sluice_other"
"""Whether a record is of a type that is not asked for, a column that formats add where a side names types."""

SPARE = "sluice.spare"
"""In a field's metadata: what is wrong with it alone may not matter, and is told by its name."""

FIELDS, CORRUPT = "_sluice_fields", "_sluice_corrupt"
VALUE = Side("value", FIELDS, "_sluice_problem", "$value")
KEY = Side("key", "_sluice_key_fields", "_sluice_key_problem", "$key")


def dotted(path: str, name: str) -> str:
    """The path of a field within another."""
    return f"{path}.{name}" if path else name


def problem(detail: str | Column, field: str | None = None) -> Column:
    """Why a record could not be read; never with a value of it in it."""
    said = F.lit(detail) if isinstance(detail, str) else detail
    return F.struct(said.alias("detail"), F.lit(field).cast("string").alias("field"))


NO_PROBLEM = "struct<detail: string, field: string>"

MARK = secrets.token_bytes(6)
"""Stands behind what is parsed, as parsers stop where a record ends. No producer knows it: else one could write it."""

_NUMBER = r"^[+-]?[0-9.]{1,200}([eE][+-]?[0-9]{1,3})?\z"


def decimal_of(text: Column, want: T.DecimalType) -> Column:
    """The number that a text is, rounded to the decimal's scale; null where it is none, or too large.

    An exponent of nine digits is no number to look at: the JVM would write it out, for minutes and gigabytes.
    """
    return F.when(text.rlike(_NUMBER), text).try_cast(want)


def from_text(text: Column, want: T.DataType) -> Column:
    """A text as a value of the wanted type, null where it is none."""
    return decimal_of(text, want) if isinstance(want, T.DecimalType) else text.try_cast(want)


def last_of_each(value: Column) -> Column:
    """A map with each key once, the last value of each: parsers leave one that stands twice twice in the map.

    It rests on `spark.sql.mapKeyDedupPolicy`, which `sluice.ingest.session` sets.
    """
    keys = F.map_keys(value)
    once = F.size(F.array_distinct(keys)) == F.size(keys)
    return F.when(once, value).otherwise(F.map_from_entries(F.map_entries(value)))
