"""One JSON object, whole, and nothing after it: the parse that all formats of JSON share.

Spark's parser stops where an object ends, whatever comes after it, be it another object. So a last member is written
into each text, before the brace that ends it: where the parser has not seen that member, the object ended before.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.fields import CORRUPT, MARK, NO_PROBLEM, SPARE, Side, problem

READ = "_sluice_read"
"""What was parsed: the wanted fields, and whether that was all."""
_TEXT, _FLAW = "_sluice_text", "_sluice_flaw"
ADDED = (READ, _TEXT, _FLAW)
"""The columns of a frame `with_object`, to be dropped when it is opened."""
_RAW = "_sluice_payload"
_LAST = MARK.hex()
_PARSER = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE", "allowSingleQuotes": "false"}
_SPACES = " \t\r\n"
_BEFORE_THE_END = [f"{c}}}".encode() for c in f"{_SPACES}{{"]
_EMPTY = rf"^[{_SPACES}]*\{{[{_SPACES}]*\}}\z"
_ABSENT = "absent"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = rf"(?<!\\)(?:\\\\)*(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})"


def with_object(frame: DataFrame, raw: Column, wanted: T.StructType, side: Side) -> DataFrame:
    """Add what was parsed of each text, with the wanted fields (`READ`), and what `unread` is told by.

    Args:
        raw: the bytes of the text.
    """
    # The bytes themselves are asked about before the parse, so that Spark need not carry them through it.
    frame = frame.withColumn(_RAW, raw)
    frame = frame.withColumns({_TEXT: _trimmed(F.col(_RAW)), _FLAW: _flaw(F.col(_RAW), side)}).drop(_RAW)
    return frame.withColumn(READ, _parsed(wanted))


def unread(side: Side, wanted: T.StructType, words: str) -> Column:
    """Why a text is no JSON object with the wanted fields, of a frame `with_object`; or null.

    Args:
        words: what it is not.
    """
    words, flaw, corrupt = f"the {side.raw} is not {words}", F.col(_FLAW), _broken(F.col(READ))
    found = F.when(flaw == _ABSENT, F.lit(None).cast(NO_PROBLEM)).when(flaw.isNotNull(), problem(flaw))
    needed, spared = _needed(wanted)
    if spared:  # looked at again only where something is wrong
        found = found.when(corrupt & ~_broken(_parsed(needed)), problem(words, spared))
    return found.when(corrupt, problem(words))


def _trimmed(raw: Column) -> Column:
    """The bytes from an object's first brace to its last, with a member at least, if they are an object."""
    ready = F.endswith(raw, F.lit(b"}")) & ~F.substring(raw, F.lit(-2), F.lit(2)).isin(*map(F.lit, _BEFORE_THE_END))
    text = F.rtrim(raw.cast("string"), F.lit(_SPACES))
    other = F.when(text.rlike(_EMPTY), F.lit('{"":null}')).otherwise(text)
    return F.when(ready, raw).otherwise(other.cast("binary"))


def _flaw(raw: Column, side: Side) -> Column:
    """What is wrong with the text whatever its fields; null where nothing is."""
    text = raw.cast("string")
    # What is framed is cut out for few records.
    escaped = F.contains(F.col(side.raw).cast("string"), F.lit("\\u"))
    return (
        F.when(F.col(side.raw).isNull(), F.lit(_ABSENT))
        # Spark's parser would put a replacement character for each byte that is no UTF-8, and go on.
        .when(~F.is_valid_utf8(text), F.lit(f"the {side.raw} is not UTF-8 text"))
        # And "?" for each half of a character that another half should follow.
        .when(escaped & text.rlike(_HALF), F.lit(f"the {side.raw} has half of a character (a surrogate) in a text"))
    )


def _parsed(wanted: T.StructType) -> Column:
    """The parse of a trimmed text, and the member that is written behind its own; null where there is no object."""
    raw = F.col(_TEXT)
    told = [T.StructField(_LAST, T.BooleanType()), T.StructField(CORRUPT, T.StringType())]
    schema = T.StructType([*wanted.fields, *told])
    open_ = F.substring(raw, F.lit(1), F.length(raw) - 1)
    text = F.concat(open_, F.lit(f',"{_LAST}":true}}'.encode())).cast("string")
    return F.from_json(F.when(F.endswith(raw, F.lit(b"}")), text), schema, _PARSER)


def _broken(read: Column) -> Column:
    """Whether what was parsed is not one JSON object whose wanted fields could be read."""
    return ~F.coalesce(read[CORRUPT].isNull() & read[_LAST], F.lit(False))


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
