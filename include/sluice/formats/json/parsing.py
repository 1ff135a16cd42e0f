"""Parses JSON for all JSON formats: in, the bytes of a text; out, the fields of its one object, or a problem.

Spark's parser ignores what follows an object, even another object. A text whose only closing brace is its last byte has
nothing after its object. Into any other text a marker member is inserted before the last brace: if the parser did not
see the marker, the object ended earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.formats.convert import keep_last_of_each_key
from sluice.formats.internal_columns import (
    BEST_EFFORT,
    CORRUPT,
    END_MARKER,
    FLAT_NAME,
    PROBLEM_TYPE,
    ExactDecimalType,
    RecordPart,
    join_path,
    problem,
)
from sluice.formats.logical_types import let, to_decimal

PARSED = "_sluice_read"
"""Struct of the wanted fields, the marker member and Spark's corrupt-record column."""
TEXT, _HAS_MARKER, _FLAW = "_sluice_text", "_sluice_marked", "_sluice_flaw"
NOT_PARSED = "cannot be parsed as"
"""In the problem of a text that is not an object with the wanted fields; whoever has the record may say which."""
WORK_COLUMNS = (PARSED, TEXT, _HAS_MARKER, _FLAW)
"""The columns that `add_parsed_object` adds; readers drop them."""
_RAW, _TRIMMED = "_sluice_payload", "_sluice_trimmed"
_MARKER = END_MARKER.hex()
_MARKER_MEMBER = f',"{_MARKER}":true}}'
_PARSER_OPTIONS = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE", "allowSingleQuotes": "false"}
_WHITESPACE = " \t\r\n"
_ABSENT = "absent"
_PAIR_OR_BACKSLASH = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATE = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"


def add_parsed_object(frame: DataFrame, raw: Column, wanted: T.StructType, part: RecordPart) -> DataFrame:
    """Parse a text once and add `WORK_COLUMNS`.

    Args:
        frame: The staged records.
        raw: The bytes of the text.
        wanted: The fields to parse.
        part: The key or the value that the text is taken from.
    """
    # The bytes are checked before the parse, so that Spark need not carry them through it.
    frame = frame.withColumn(_RAW, raw)
    frame = frame.withColumns({_TRIMMED: _trimmed(F.col(_RAW)), _FLAW: _flaw(F.col(_RAW), part)}).drop(_RAW)
    frame = frame.withColumn(TEXT, _text_to_parse(F.col(_TRIMMED))).drop(_TRIMMED)
    # A second use of the text: with only one, Spark would inline it into the parse, which is not compiled.
    frame = frame.withColumns({PARSED: _parsed_strictly(wanted), _HAS_MARKER: _has_marker()})
    if not WHOLE_NUMBERS.within(wanted):
        return frame
    return frame.withColumn(PARSED, _parsed_again(F.col(PARSED), wanted))


def _with_whole_numbers(parsed: Column, wanted: T.StructType) -> Column:
    """The parse with numbers such as `42.0` and `1e3` as integers; corrupt if another number stands for an integer."""

    def checked(numbers: Column) -> Column:
        lost = [F.coalesce(lost, F.lit(False)) for *_, lost in WHOLE_NUMBERS.find_lost_values(parsed, numbers, wanted)]
        corrupt = F.when(reduce(or_, lost), "").otherwise(parsed[CORRUPT])
        fields = [numbers[f.name].alias(f.name) for f in wanted]
        return F.struct(*fields, parsed[_MARKER].alias(_MARKER), corrupt.alias(CORRUPT))

    return let(WHOLE_NUMBERS.convert(parsed, None, wanted), checked)


def find_parse_problem(
    part: RecordPart, wanted: T.StructType, expected: str, checks: Iterable[tuple[Column, Column]]
) -> Column:
    """Why a text is not a JSON object with the wanted fields, or null; for frames of `add_parsed_object`.

    The problem of a `BEST_EFFORT` field is reported last, since it would hide the others.

    Args:
        part: The key or the value that was parsed.
        wanted: The fields that were parsed.
        expected: What the text should be, for the error text.
        checks: Further conditions and the problem of each, in the order of the fields.
    """
    detail, flaw, corrupt = f"the {part.raw} {NOT_PARSED} {expected}", F.col(_FLAW), _is_corrupt(F.col(PARSED))
    found = F.when(flaw == _ABSENT, F.lit(None).cast(PROBLEM_TYPE)).when(flaw.isNotNull(), problem(flaw))
    required, best_effort = _without_best_effort(wanted)
    # Only corrupt records are parsed a second time.
    found = found.when(corrupt & _is_corrupt(_parsed(required)) if best_effort else corrupt, problem(detail))
    for applies, reason in checks:
        found = found.when(applies, reason)
    return found.when(corrupt, problem(detail, best_effort)) if best_effort else found


def _trimmed(raw: Column) -> Column:
    """The bytes without trailing whitespace."""
    return F.when(_ends_in_brace(raw), raw).otherwise(F.rtrim(raw.cast("string"), F.lit(_WHITESPACE)).cast("binary"))


def _ends_in_brace(raw: Column) -> Column:
    return F.endswith(raw, F.lit(b"}"))


def _text_to_parse(raw: Column) -> Column:
    """The text, with the marker member if it has more than one closing brace; null if it does not end in one."""
    before = F.substring(raw, F.lit(1), F.length(raw) - 1)
    single_brace = ~F.contains(before, F.lit(b"}"))  # on bytes: searching a string takes three times as long
    marked = F.concat(before, F.lit(_MARKER_MEMBER.encode()))
    return F.when(_ends_in_brace(raw), F.when(single_brace, raw).otherwise(marked)).cast("string")


def _flaw(raw: Column, part: RecordPart) -> Column:
    """What is wrong with the text regardless of its fields; null if nothing is."""
    text = raw.cast("string")
    # Checked on the staged bytes: a payload behind a prefix would have to be cut out for each record.
    has_escape = F.contains(F.col(part.raw), F.lit(b"\\u"))
    # An escaped backslash may stand before a "u"; a space keeps what is left apart.
    unpaired = F.regexp_replace(text, _PAIR_OR_BACKSLASH, " ")
    return (
        F.when(F.col(part.raw).isNull(), F.lit(_ABSENT))
        # Spark's parser would replace each byte that is not UTF-8, without an error.
        .when(~F.is_valid_utf8(text), F.lit(f"the {part.raw} is not UTF-8 text"))
        # And each lone surrogate by a question mark.
        .when(has_escape & unpaired.rlike(_SURROGATE), F.lit(f"the {part.raw} contains a lone surrogate"))
    )


def _parsed(wanted: T.StructType) -> Column:
    """The parse of the text with the marker member; null if there is no object."""
    strict = _parsed_strictly(wanted)
    if not WHOLE_NUMBERS.within(wanted):
        return strict
    return let(strict, lambda each: _parsed_again(each, wanted))


def _parsed_again(strict: Column, wanted: T.StructType) -> Column:
    """The strict parse; for the few records that it refuses, the parse with all numbers that are integers."""
    again = _parsed_strictly(WHOLE_NUMBERS.parse_fields(wanted))
    lenient = let(again, lambda each: F.when(each.isNotNull(), _with_whole_numbers(each, wanted)))
    return F.when(_is_corrupt(strict), lenient).otherwise(strict)


def _parsed_strictly(wanted: T.StructType) -> Column:
    """The parse with integers that have neither a fraction nor an exponent."""
    added = [T.StructField(_MARKER, T.BooleanType()), T.StructField(CORRUPT, T.StringType())]
    return F.from_json(F.col(TEXT), T.StructType([*wanted.fields, *added]), _PARSER_OPTIONS)


def _has_marker() -> Column:
    return F.endswith(F.col(TEXT), F.lit(_MARKER_MEMBER))


def _is_corrupt(parsed: Column) -> Column:
    """Whether the text is not exactly one JSON object whose wanted fields could be read."""
    complete = parsed.isNotNull() & parsed[CORRUPT].isNull() & (~_has_marker() | parsed[_MARKER])
    return ~F.coalesce(complete, F.lit(False))


def has_only_member(name: str) -> Column:
    """Whether the parsed text, if it is an object, has no other member."""
    known = (F.array(*map(F.lit, names)) for names in ([name], [name, _MARKER]))
    return F.coalesce(F.json_object_keys(F.col(TEXT)).isin(*known), F.lit(False))


def _without_best_effort(schema: T.StructType) -> tuple[T.StructType, str]:
    """The schema without its `BEST_EFFORT` field, and that field's name; an empty name if there is none."""
    required, best_effort = [], ""
    for f in schema.fields:
        if BEST_EFFORT in f.metadata:
            best_effort = f.name
            continue
        kind = f.dataType
        if isinstance(kind, T.StructType):
            kind, inner = _without_best_effort(kind)
            best_effort = inner or best_effort
        required.append(T.StructField(f.name, kind))
    return T.StructType(required), best_effort


class DeferredTypes(NamedTuple):
    """The types that Spark's JSON parser does not read directly, and how they are converted after the parse.

    Attributes:
        parse_type: From the wanted type to the type to parse; None if Spark reads the wanted type directly.
        convert_scalar: From the parsed value, the record's own schema for it (if the format has one) and the wanted
            type to the value; null if it is not of that type.
    """

    parse_type: Callable[[T.DataType], T.DataType | None]
    convert_scalar: Callable[[Column, Column | None, T.DataType], Column]

    def within(self, want: T.DataType) -> bool:
        """Whether a type is or contains a deferred type."""
        return self.parse_schema(want) != want

    def parse_schema(self, want: T.DataType) -> T.DataType:
        """The type to parse JSON as."""
        match want:
            case T.StructType():
                return self.parse_fields(want)
            case T.ArrayType(elementType=element):
                return T.ArrayType(self.parse_schema(element))
            case T.MapType(keyType=key, valueType=value):
                return T.MapType(key, self.parse_schema(value))
        return self.parse_type(want) or want

    def parse_fields(self, wanted: T.StructType) -> T.StructType:
        """The fields to parse JSON as."""
        return T.StructType(
            [T.StructField(f.name, self.parse_schema(f.dataType), metadata=f.metadata) for f in wanted.fields]
        )

    def convert(self, value: Column, schema: Column | None, want: T.DataType) -> Column:
        """Convert a parsed value; scalars that are not of the wanted type become null.

        Args:
            value: What was parsed as `parse_schema(want)`.
            schema: The record's own schema for the value, if its format has one.
            want: The wanted type.
        """
        if not self.within(want) and not _contains_map(want):
            return value
        match want:
            case T.StructType(fields=fields):
                members = [self.convert(value[f.name], of_field(schema, f), f.dataType).alias(f.name) for f in fields]
                return F.when(value.isNotNull(), F.struct(*members))
            case T.ArrayType(elementType=element):
                return F.transform(value, lambda each: self.convert(each, _of_part(schema, "items"), element))
            case T.MapType(valueType=inner):
                value = keep_last_of_each_key(value)
                if not self.within(inner) and not _contains_map(inner):
                    return value
                return F.transform_values(value, lambda _, each: self.convert(each, _of_part(schema, "values"), inner))
        return self.convert_scalar(value, schema, want)

    def find_lost_values(
        self, parsed: Column, converted: Column, want: T.DataType, path: str = ""
    ) -> Iterator[tuple[str, str, Column]]:
        """Each path whose value `convert` may turn into null: path, wanted type, and whether it did in a record."""
        if not self.within(want):
            return
        match want:
            case T.StructType(fields=fields):
                for f in fields:
                    inner = join_path(path, f.name)
                    yield from self.find_lost_values(parsed[f.name], converted[f.name], f.dataType, inner)
            case T.ArrayType(elementType=element):
                yield f"{path}[]", element.simpleString(), self._any_lost(parsed, converted, element)
            case T.MapType(valueType=value):
                values = F.map_values(keep_last_of_each_key(parsed))
                yield f"{path}{{}}", value.simpleString(), self._any_lost(values, F.map_values(converted), value)
            case _:
                present = parsed.isNotNull()
                if isinstance(self.parse_type(want), T.VariantType):  # JSON's null is a variant, too
                    present = present & ~F.is_variant_null(parsed)
                yield path, want.simpleString(), present & converted.isNull()

    def _any_lost(self, parsed: Column, converted: Column, element: T.DataType) -> Column:
        def is_lost(one: Column, other: Column) -> Column:
            checks = self.find_lost_values(one, other, element)
            return reduce(or_, (F.coalesce(lost, F.lit(False)) for _, _, lost in checks))

        return F.exists(F.zip_with(parsed, converted, is_lost), lambda it: it)


def find_flat_names(found: Column, wanted: T.StructType, path: str = "") -> Iterator[tuple[Column, Column]]:
    """Whether a record has a field whose name is a source's, with its dots, and not the nested field; and the problem.

    Args:
        found: The fields that were read.
        wanted: Their types; `FLAT_NAME` marks such fields.
        path: The path of the struct.
    """
    for f in wanted.fields:
        if names := f.metadata.get(FLAT_NAME):
            joined = next(n for n in range(2, len(names) + 1) if ".".join(names[:n]) == f.name)
            rest = "".join(f"['{name}']" for name in names[joined:])
            flat = F.get_json_object(found[f.name], f"${rest}") if rest else found[f.name]
            nested = reduce(lambda at, name: at[name], names, found)
            meant, source = (reduce(join_path, each, path) for each in (names, [f.name, *names[joined:]]))
            detail = f"the record has a field with a dot in its name: to read it, write source: {source!r}"
            yield flat.isNotNull() & nested.isNull(), problem(detail, meant)
        elif isinstance(f.dataType, T.StructType):
            yield from find_flat_names(found[f.name], f.dataType, join_path(path, f.name))


def of_field(schema: Column | None, field: T.StructField) -> Column | None:
    """A field's schema within a struct's."""
    return None if schema is None else F.get(F.filter(schema["fields"], lambda each: each["field"] == field.name), 0)


def _of_part(schema: Column | None, part: str) -> Column | None:
    return None if schema is None else schema[part]


def _contains_map(kind: T.DataType) -> bool:
    match kind:
        case T.StructType(fields=fields):
            return any(_contains_map(f.dataType) for f in fields)
        case T.ArrayType(elementType=element):
            return _contains_map(element)
    return isinstance(kind, T.MapType)


def variant_is(value: Column, kind: str) -> Column:
    """Whether the name of a variant's type begins with `kind`."""
    return F.schema_of_variant(value).startswith(kind)


def variant_text(value: Column) -> Column:
    """The string or number in a variant, as a string; null if it is neither."""
    return F.try_variant_get(value, "$", "string")


_AT_MOST_15_DIGITS = r"^-?0*[.]?0*(?:[0-9][.]?){1,15}0*(?:[.]0*)?(?:E-?[0-9]+)?$"
_LONG_NUMBER = r"[:,\[]\s*-?(?:(?:[0-9]{16}|[0-9.]{17})[0-9.]*[eE]|[0-9.]{40,})"
"""A number with more digits than a double keeps, though the double may look like fewer."""
_NUMBERS = r"[:,\[]\s*(-?[0-9.]{16,}(?:[eE][+-]?[0-9]+)?)"
"""The numbers among which those of `_LONG_NUMBER` are."""


def variant_decimal(value: Column, want: T.DecimalType) -> Column:
    """A variant's string or number as a decimal; null if it is none, or if it has lost digits.

    A variant keeps 38 digits, but stores a number with an exponent or more digits as a double. Up to 15 digits of a
    double are exact, unless the parsed text contains a longer number that is the same double.
    """
    text, double = variant_text(value), F.try_variant_get(value, "$", "double")
    numbers = F.transform(F.regexp_extract_all(F.col(TEXT), F.lit(_NUMBERS), 1), lambda each: each.try_cast("double"))
    is_cut = F.col(TEXT).rlike(_LONG_NUMBER) & F.coalesce(F.array_contains(numbers, double), F.lit(False))
    if isinstance(want, ExactDecimalType):
        is_cut |= _may_be_tiny(double)
    exact = ~variant_is(value, "DOUBLE") | (text.rlike(_AT_MOST_15_DIGITS) & ~is_cut)
    return to_decimal(F.when(exact, text), want)


def _whole_number_type(want: T.DataType) -> T.DataType | None:
    return T.VariantType() if isinstance(want, (T.IntegerType, T.LongType)) else None


def whole_number(value: Column, _: Column | None, want: T.DataType) -> Column:
    """The integer that a variant's number is; null if it has a fraction, or lost digits that it may have had."""
    text, double = variant_text(value), F.try_variant_get(value, "$", "double")
    is_whole = text.rlike(_PLAIN_INTEGER) | (variant_is(value, "DOUBLE") & (F.rint(double) == double))
    number = variant_decimal(value, T.DecimalType(38, 0)).try_cast(want)
    return F.when(~variant_is(value, "STRING") & is_whole & ~_may_be_tiny(double), number)


def _may_be_tiny(double: Column) -> Column:
    """Whether a zero may be another number of the parsed text."""
    return (double == 0) & F.col(TEXT).rlike(_TINY_NUMBER)


_TINY_NUMBER = r"[1-9][0-9.]*[eE]-[0-9]{3}"
"""A number that a double may not tell from zero."""
_PLAIN_INTEGER = r"^-?[0-9]+(?:[.]0*)?\z"
WHOLE_NUMBERS = DeferredTypes(_whole_number_type, whole_number)
"""Integers, for records that write one with a fraction or an exponent: Spark's parser takes neither."""
