"""One JSON object, whole, and nothing after it: the parse that all formats of JSON share.

Spark's parser stops where an object ends, whatever comes after it, be it another object. In a text with one closing
brace, at its end, nothing can. Into any other a last member is written before that brace: where the parser has not seen
the member, the object ended before.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.internal_columns import CORRUPT, MARK, NO_PROBLEM, SPARE, Side, problem

READ = "_sluice_read"
"""What was parsed: the wanted fields, and whether that was all."""
TEXT, _MARKED, _FLAW = "_sluice_text", "_sluice_marked", "_sluice_flaw"
ADDED = (READ, TEXT, _MARKED, _FLAW)
"""The columns of a frame `with_object`, to be dropped when it is opened."""
_RAW, _TRIMMED = "_sluice_payload", "_sluice_trimmed"
_LAST = MARK.hex()
_MEMBER = f',"{_LAST}":true}}'
_PARSER = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE", "allowSingleQuotes": "false"}
_SPACES = " \t\r\n"
_ABSENT = "absent"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = rf"(?<!\\)(?:\\\\){{0,99}}{_HIGH}"  # whose backslash is none that stands for itself
_HALF = rf"(?<!\\)(?:\\\\)*(?:{_HIGH}(?!{_LOW})|(?<!{_WHOLE}){_LOW})"


def with_object(frame: DataFrame, raw: Column, wanted: T.StructType, side: Side) -> DataFrame:
    """Add what was parsed of each text, with the wanted fields (`READ`), and what `unread` is told by.

    Args:
        raw: the bytes of the text.
    """
    # The bytes themselves are asked about before the parse, so that Spark need not carry them through it.
    frame = frame.withColumn(_RAW, raw)
    frame = frame.withColumns({_TRIMMED: _trimmed(F.col(_RAW)), _FLAW: _flaw(F.col(_RAW), side)}).drop(_RAW)
    frame = frame.withColumn(TEXT, _text(F.col(_TRIMMED))).drop(_TRIMMED)
    # Named twice, or Spark would make the text within the parse, where nothing is compiled.
    return frame.withColumns({READ: _parsed(wanted), _MARKED: F.endswith(F.col(TEXT), F.lit(_MEMBER))})


def unread(side: Side, wanted: T.StructType, words: str, flaws: Iterable[tuple[Column, Column]]) -> Column:
    """Why a text is no JSON object with the wanted fields, of a frame `with_object`; or null.

    What is wrong with a field that is to spare alone is told if there is nothing else: what it hid would be lost.

    Args:
        words: what it is not.
        flaws: what else may be wrong, and why, in the order of the fields.
    """
    words, flaw, corrupt = f"the {side.raw} is not {words}", F.col(_FLAW), _broken(F.col(READ))
    found = F.when(flaw == _ABSENT, F.lit(None).cast(NO_PROBLEM)).when(flaw.isNotNull(), problem(flaw))
    needed, spared = _needed(wanted)
    # Looked at again only where something is wrong.
    found = found.when(corrupt & _broken(_parsed(needed)) if spared else corrupt, problem(words))
    for applies, why in flaws:
        found = found.when(applies, why)
    return found.when(corrupt, problem(words, spared)) if spared else found


def _trimmed(raw: Column) -> Column:
    """The bytes, without what spaces follow them."""
    return F.when(_ends(raw), raw).otherwise(F.rtrim(raw.cast("string"), F.lit(_SPACES)).cast("binary"))


def _ends(raw: Column) -> Column:
    return F.endswith(raw, F.lit(b"}"))


def _text(raw: Column) -> Column:
    """The text of trimmed bytes, with a last member if it has more than one closing brace; null if it ends in none."""
    before = F.substring(raw, F.lit(1), F.length(raw) - 1)
    alone = ~F.contains(before, F.lit(b"}"))  # of bytes: Spark looks through a text for three times as long
    return F.when(_ends(raw), F.when(alone, raw).otherwise(F.concat(before, F.lit(_MEMBER.encode())))).cast("string")


def _flaw(raw: Column, side: Side) -> Column:
    """What is wrong with the text whatever its fields; null where nothing is."""
    text = raw.cast("string")
    # What is framed is cut out for few records.
    escaped = F.contains(F.col(side.raw), F.lit(b"\\u"))
    return (
        F.when(F.col(side.raw).isNull(), F.lit(_ABSENT))
        # Spark's parser would put a replacement character for each byte that is no UTF-8, and go on.
        .when(~F.is_valid_utf8(text), F.lit(f"the {side.raw} is not UTF-8 text"))
        # And "?" for each half of a character that another half should follow.
        .when(escaped & text.rlike(_HALF), F.lit(f"the {side.raw} has half of a character (a surrogate) in a text"))
    )


def _parsed(wanted: T.StructType) -> Column:
    """The parse of a text, with the member that may be written behind its own; null where there is no object."""
    told = [T.StructField(_LAST, T.BooleanType()), T.StructField(CORRUPT, T.StringType())]
    return F.from_json(F.col(TEXT), T.StructType([*wanted.fields, *told]), _PARSER)


def _broken(read: Column) -> Column:
    """Whether what was parsed is not one JSON object whose wanted fields could be read."""
    whole = read.isNotNull() & read[CORRUPT].isNull() & (~F.col(_MARKED) | read[_LAST])
    return ~F.coalesce(whole, F.lit(False))


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
