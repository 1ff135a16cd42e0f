"""Where a format leaves what it read: the names that formats and decode share."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T


class Side(NamedTuple):
    """The key or the value of a record.

    Attributes:
        raw: The staged column with its bytes.
        fields: The struct of fields that a format adds; null where there are none.
        problem: Why the bytes could not be read, a struct of `detail` and `field` that a format adds; else null.
        whole: The source, and the field, of a key or value that is one thing and no object with fields.
    """

    raw: str
    fields: str
    problem: str
    whole: str


STAGED = {name: f"_sluice_{name}" for name in ("key", "value", "headers", "batch_seq")}
"""What decode calls the record as it was staged: the contract's own columns may have these names."""

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


_ROW, _END = "_sluice_row", "_sluice_end"
_JSON = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE", "allowSingleQuotes": "false"}


def parsed(raw: Column, wanted: T.StructType) -> Column:
    """A JSON object with the wanted fields, to be opened with `row`.

    Spark's parser stops at the object's end, whatever comes after it, be it another object. So the text is put where
    only one object may stand, with a mark behind it.
    """
    fields = [(_ROW, T.ArrayType(wanted)), (_END, T.BooleanType()), (CORRUPT, T.StringType())]
    schema = T.StructType([T.StructField(name, kind) for name, kind in fields])
    text = F.concat(F.lit(f'{{"{_ROW}":['), raw.cast("string"), F.lit(f'],"{_END}":true}}'))
    return F.from_json(text, schema, _JSON)


def row(read: Column) -> Column:
    """The wanted fields of what was parsed; where it was no such object, those that could be read."""
    return F.get(read[_ROW], F.lit(0))


def _broken(read: Column) -> Column:
    """Whether what was parsed is not one JSON object whose wanted fields could be read."""
    whole = read[CORRUPT].isNull() & read[_END] & (F.size(read[_ROW]) == 1) & row(read).isNotNull()
    return ~F.coalesce(whole, F.lit(False))


_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = rf"(?<!\\)(?:\\\\)*(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})"


def unread(raw: Column, side: Side, read: Column, schema: T.StructType, words: str) -> Column:
    """Why a JSON object could not be read, or null.

    Args:
        read: what `parsed` made of it with this schema.
        words: what it is not.
    """
    words = f"the {side.raw} is not {words}"
    # Spark's parser would put a replacement character for each byte that is no UTF-8, and go on.
    found = F.when(~F.is_valid_utf8(raw.cast("string")), problem(f"the {side.raw} is not UTF-8 text"))
    # And "?" for each half of a character that another half should follow. What is framed is cut out for few records.
    escaped = F.contains(F.col(side.raw).cast("string"), F.lit("\\u"))
    found = found.when(
        escaped & raw.cast("string").rlike(_HALF),
        problem(f"the {side.raw} has half of a character (a surrogate) in a text"),
    )
    corrupt = _broken(read)
    needed, spared = _needed(schema)
    if spared:  # looked at again only where something is wrong
        found = found.when(corrupt & ~_broken(parsed(raw, needed)), problem(words, spared))
    return found.when(corrupt, problem(words))


def _needed(schema: T.StructType) -> tuple[T.StructType, str]:
    """The schema without the field that is to spare, and which that is; empty where there is none."""
    kept, spared = [], ""
    for f in schema.fields:
        if SPARE in f.metadata:
            spared = f.name
            continue
        kind = f.dataType
        if isinstance(kind, T.StructType):
            kind, inner = _needed(kind)
            spared = inner or spared
        kept.append(T.StructField(f.name, kind))
    return T.StructType(kept), spared


_NUMBER = r"^[+-]?[0-9.]{1,200}([eE][+-]?[0-9]{1,3})?\z"


def decimal_of(text: Column, want: T.DecimalType) -> Column:
    """The number that a text is, rounded to the decimal's scale; null where it is none, or too large.

    An exponent of nine digits is no number to look at: the JVM would write it out, for minutes and gigabytes.
    """
    return F.when(text.rlike(_NUMBER), text).try_cast(want)


def from_text(text: Column, want: T.DataType) -> Column:
    """A text as a value of the wanted type, null where it is none."""
    return decimal_of(text, want) if isinstance(want, T.DecimalType) else text.try_cast(want)
