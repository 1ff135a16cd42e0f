"""Column types and partition transforms in contracts."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract.partitioning import TRANSFORMS, PartitionField, parse_partition, type_mismatch
from sluice.contract.types import (
    PRIMITIVES,
    Decimal,
    Fixed,
    ListOf,
    MapOf,
    Primitive,
    Struct,
    TypeSyntaxError,
    parse_type,
    walk_types,
)

pytestmark = pytest.mark.unit

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
SCALARS = st.one_of(
    st.sampled_from(sorted(PRIMITIVES)).map(Primitive),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: Decimal(p, s))),
    st.integers(1, 2**31 - 1).map(Fixed),
)


def structs(inner):
    fields = st.lists(st.tuples(NAMES, inner), min_size=1, max_size=4, unique_by=lambda f: f[0].lower())
    return fields.map(lambda each: Struct(tuple(each)))


def nested(inner):
    return st.one_of(inner.map(ListOf), st.tuples(inner, inner).map(lambda kv: MapOf(*kv)), structs(inner))


TYPES = st.recursive(SCALARS, nested, max_leaves=12)


@given(TYPES)
def test_text_of_a_type_parses_to_the_type(kind):
    assert parse_type(str(kind)) == kind
    assert parse_type(f"  {kind} ") == kind


@given(TYPES)
def test_white_space_means_nothing(kind):
    assert parse_type(str(kind).replace(" ", "")) == kind
    spaced = "".join(f" {c}\n" if c in "<>,:()[]" else c for c in str(kind))
    assert parse_type(spaced) == kind


@given(st.text(max_size=40))
def test_any_text_is_a_type_or_a_syntax_error(text):
    with contextlib.suppress(TypeSyntaxError):
        assert parse_type(str(parse_type(text))) == parse_type(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("decimal(10,2)", "decimal(10, 2)"),
        ("fixed(4)", "fixed[4]"),
        ("fixed[ 4 ]", "fixed[4]"),
        ("map<string,list<long>>", "map<string, list<long>>"),
        ("struct<a:int,b:struct<c:date>>", "struct<a: int, b: struct<c: date>>"),
        ("struct<list: int, int: list<int>>", "struct<list: int, int: list<int>>"),
    ],
)
def test_canonical_text(text, canonical):
    assert str(parse_type(text)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a type, found the end at character 1 of ''"),
        ("bigint", "unknown type 'bigint' (did you mean 'long'?) at character 1 of 'bigint'"),
        ("list<bigint>", "(did you mean 'long'?) at character 6 of 'list<bigint>'"),
        ("STRING", "did you mean 'string'?"),
        ("varchar", "did you mean 'string'?"),
        ("array", "did you mean 'list<type>'?"),
        ("numeric", "did you mean 'decimal(p, s)'?"),
        ("timestampz", "did you mean 'timestamp"),
        ("decimel", "did you mean 'decimal(p, s)'?"),
        ("qqqqqq", "(known: binary, boolean, date, decimal(p, s),"),
        ("decimal", "expected '(', found the end at character 8"),
        ("decimal(10)", "expected ',', found ')' at character 11"),
        ("decimal(39, 0)", "precision must be a whole number from 1 to 38 at character 9"),
        ("decimal(5, 6)", "scale must be a whole number from 0 to 5 at character 12"),
        ("decimal(99999999999999999999, 6)", "precision must be"),
        ("fixed[0]", "length must be a whole number from 1 to 2147483647"),
        ("fixed[4)", "expected ']', found ')'"),
        ("list", "expected '<', found the end"),
        ("list<int", "expected '>', found the end"),
        ("list<>", "expected a type, found '>'"),
        ("list<int>>", "unexpected '>' after the type at character 10"),
        ("map<int>", "expected ',', found '>'"),
        ("struct<>", "expected a field name"),
        ("struct<a int>", "expected ':', found 'int'"),
        ("struct<a: int, A: int>", "field 'A' is defined twice in one struct at character 16"),
        ("int; drop", "unexpected ';' at character 4"),
        ("int  é", "unexpected 'é' at character 6"),
        ("list<" * 40 + "int" + ">" * 40, "more than 32 levels"),
        ("list<" * 4000 + "int" + ">" * 4000, "too long"),
    ],
)
def test_syntax_errors_say_where_and_what_was_meant(text, message):
    with pytest.raises(TypeSyntaxError) as error:
        parse_type(text)
    assert message in str(error.value)
    assert len(str(error.value)) < 400


def test_parts_reach_every_level():
    inside = list(map(str, walk_types(parse_type("struct<a: list<map<string, time>>>"))))
    assert inside[-3:] == ["map<string, time>", "string", "time"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("carrier", PartitionField("carrier")),
        ("identity(carrier)", PartitionField("carrier")),
        (" month( d ) ", PartitionField("d", "month")),
        ("bucket(16, id)", PartitionField("id", "bucket", 16)),
        ("bucket(id,16)", PartitionField("id", "bucket", 16)),
        ("truncate(8, name)", PartitionField("name", "truncate", 8)),
        ("month", PartitionField("month")),
    ],
)
def test_transforms_parse(text, expected):
    field = parse_partition(text)
    assert field == expected
    assert parse_partition(str(field)) == field


def test_partition_fields_are_named_as_iceberg_names_them():
    names = [parse_partition(t).name for t in ("c", "year(c)", "hour(c)", "bucket(4, c)", "truncate(4, c)")]
    assert names == ["c", "c_year", "c_hour", "c_bucket", "c_trunc"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("months(d)", "unknown transform 'months' (did you mean 'month'?)"),
        ("zzz(d)", "known: identity, year"),
        ("day(a, b)", "day takes one column: day(col)"),
        ("day()", "day takes one column"),
        ("bucket(id)", "bucket takes a whole number and a column: bucket(16, col)"),
        ("bucket(4, 4)", "bucket takes"),
        ("bucket(0, id)", "must be from 1 to 2147483647"),
        ("truncate(99999999999, id)", "must be from 1"),
        ("a b", "neither a column nor a transform"),
        ("day(d) or 1=1", "neither a column nor a transform"),
        ("", "neither a column nor a transform"),
    ],
)
def test_transform_errors(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_partition(text)


SCALAR_TEXTS = [*sorted(PRIMITIVES - {"time"}), "decimal(9, 2)", "fixed[4]"]
FITTING = {
    "identity": set(SCALAR_TEXTS) - {"uuid", "fixed[4]"},
    "year": {"date", "timestamp", "timestamptz"},
    "month": {"date", "timestamp", "timestamptz"},
    "day": {"date", "timestamp", "timestamptz"},
    "hour": {"timestamp", "timestamptz"},
    "bucket": set(SCALAR_TEXTS) - {"boolean", "float", "double"},
    "truncate": {"int", "long", "decimal(9, 2)", "string", "binary"},
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", SCALAR_TEXTS)
def test_transforms_fit_the_types_that_iceberg_says(transform, kind):
    argument = 4 if transform in {"bucket", "truncate"} else None
    wrong = type_mismatch(PartitionField("c", transform, argument), parse_type(kind))
    assert (wrong is None) == (kind in FITTING[transform])


def test_nested_types_are_no_partitions():
    assert "must be a primitive type" in (type_mismatch(PartitionField("c"), parse_type("list<int>")) or "")
