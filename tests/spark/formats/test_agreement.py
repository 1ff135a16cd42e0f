"""What a plan says of a schema is what the decoder does with its records: random schemas and contracts.

Nothing is decoded for Avro and Protobuf: Spark only says which types it would read. `SLUICE_FUZZ_EXAMPLES` makes more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.contract.types import parse_type
from sluice.formats import avro, protobuf, wire_format
from sluice.formats.convert import SchemaMismatchError
from sluice.formats.inferred_columns import FIELD_READERS
from sluice.formats.internal_columns import FIELDS, VALUE, exact
from sluice.formats.json import records as json_format
from sluice.formats.logical_types import AVRO_TYPES, CONNECT_TYPES, spark_type
from sluice.formats.schema_compat import find_incompatible_field, find_incompatible_json_field
from sluice.kafka.registry import WriterSchema
from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / ".ci"))
from type_tables import COLUMNS, JSON

pytestmark = pytest.mark.spark

EXAMPLES = int(os.environ.get("SLUICE_FUZZ_EXAMPLES", "30"))
BASES = ("boolean", "int", "long", "float", "double", "bytes", "string")
SCALARS = [spark_type(parse_type(each)) for each in (*COLUMNS.values(), "decimal(9, 2)", "decimal(20, 0)")]
KEYS = [exact(each) for each in SCALARS]
RAW = "key binary, value binary, headers array<struct<key: string, value: binary>>"
NUMBERS = st.sampled_from([0, 1, 2, 9, 18, 19, 38, 39, 64, -1, "9", None, True])


def logical(base: Any) -> st.SearchStrategy[Any]:
    """A type with a logical type or a name, often one that is not allowed on it."""
    names = st.sampled_from([*AVRO_TYPES, "decimal", "duration"])
    connect = st.sampled_from([*CONNECT_TYPES, "x.Y"])
    more = {"logicalType": names, "connect.name": connect, "precision": NUMBERS, "scale": NUMBERS}
    return st.fixed_dictionaries({}, optional=more).map(lambda it: {**base, **it})


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> Any:
    """An Avro type; named ones have names of their own."""
    form = draw(
        st.sampled_from(["scalar"] * 4 + ["fixed", "enum", "scaled"] + ["array", "map", "record"] * (depth > 0))
    )
    name = f"N{draw(st.integers(0, 10**9))}"
    if form == "scalar":
        made = draw(st.sampled_from(BASES).flatmap(lambda base: logical({"type": base})))
    elif form == "fixed":
        made = draw(logical({"type": "fixed", "name": name, "size": draw(st.sampled_from([1, 4, 12, 16, 30]))}))
    elif form == "enum":
        made = {"type": "enum", "name": name, "symbols": ["A"]}
    elif form == "scaled":
        fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
        made = {"type": "record", "name": name, "fields": fields}
    elif form == "record":
        fields = [{"name": n, "type": draw(types(depth - 1))} for n in ("a", "b")]
        made = {"type": "record", "name": name, "fields": fields}
    else:
        made = {"type": form, {"array": "items", "map": "values"}[form]: draw(types(depth - 1))}
    return draw(st.sampled_from([made, ["null", made], [made, "null"]]))


def columns(depth: int = 2) -> st.SearchStrategy[T.DataType]:
    scalar = st.sampled_from([*SCALARS, *KEYS])
    if not depth:
        return scalar
    inner = columns(depth - 1)
    struct = st.lists(inner, min_size=2, max_size=2).map(lambda it: T.StructType([*map(T.StructField, "ab", it)]))
    return st.one_of(
        scalar, scalar, inner.map(T.ArrayType), inner.map(lambda it: T.MapType(T.StringType(), it)), struct
    )


PROTO_KINDS = (
    *("int32", "uint32", "int64", "fixed64", "float", "double", "bool", "string", "bytes", "E", "In"),
    *("google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.BytesValue", "confluent.type.Decimal"),
)
PROTO = """
syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto"; import "confluent/type/decimal.proto";
message M { %s x = 1; } enum E { NONE = 0; } message In { int32 a = 1; string b = 2; }
"""


@st.composite
def schemas(draw: st.DrawFn) -> tuple[str, str]:
    if draw(st.integers(0, 4)):
        fields = [{"name": "x", "type": draw(types())}]
        return "avro", json.dumps({"type": "record", "name": "R", "fields": fields})
    kind = draw(st.sampled_from(PROTO_KINDS))
    return "protobuf", PROTO % draw(st.sampled_from([kind, f"repeated {kind}", f"map<string, {kind}>"]))


@pytest.fixture
def decoded(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, WriterSchema, T.StructType], Any]:
    """Why the decoder refuses all records of a schema; None if it does not."""
    frame = spark.createDataFrame([], RAW)

    def decode(form: str, schema: WriterSchema, wanted: T.StructType) -> str | None:
        found: list[str] = []
        ids = wire_format.SchemaIds(VALUE, F.lit(1), {1: schema})
        ids.add_problem = lambda _, __, error: found.append(error.message)  # type: ignore[method-assign]
        group = wire_format.RecordGroup(schema, F.lit(True), F.col("value"), (0,))
        monkeypatch.setattr(wire_format, "look_up_schemas", lambda *_: ids)
        monkeypatch.setattr(protobuf, "_split_by_message", lambda *_: [group])
        {"avro": avro.add_avro_fields, "protobuf": protobuf.add_protobuf_fields}[form](frame, wanted, VALUE)
        # What only some records are refused for is told after the schema.
        return next((each for each in found if " is not a " not in each), None)

    return decode


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="SLUICE_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(schema=schemas(), column=columns())
def test_plan_and_decoder_agree_on_every_column(decoded: Any, schema: tuple[str, str], column: T.DataType) -> None:
    form, text = schema
    kind, read = FIELD_READERS[form]
    registered = WriterSchema(1, kind, text)
    wanted = [column]
    try:
        (field,) = read(registered, ())
        assert field.type
        own = spark_type(field.type)
        wanted.append(own)
        one = T.StructType([T.StructField("x", own)])
        assert find_incompatible_field(form, registered, one) is None, "a column of `auto` can be read"
    except SchemaMismatchError:
        pass
    for each in wanted:
        one = T.StructType([T.StructField("x", each)])
        planned = find_incompatible_field(form, registered, one)
        assert decoded(form, registered, one) == (planned and planned.message), each


CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
NAMED = [
    {"type": "number", "title": f"{CONNECT}Decimal", "connect.parameters": {"scale": "1"}},
    *(
        {"type": "integer", "title": each}
        for each in (f"{CONNECT}Timestamp", f"{CONNECT}Date", f"{DEBEZIUM}NanoTimestamp")
    ),
    *({"type": "string", "title": f"{DEBEZIUM}{each}"} for each in ("IsoDate", "IsoTimestamp", "ZonedTimestamp")),
]
WANTED = [
    spark_type(parse_type(each)) for each in ("long", "decimal(9, 2)", "date", "timestamp", "timestamptz", "binary")
]
VALUES: dict[str, list[Any]] = {
    "boolean": [True],
    "integer": [0, 17_000],
    "number": [0, 1.5],
    "string": ["2013-01-31", "2013-01-31T08:00:00", "2013-01-31T08:00:00Z", "1.5", "AAEC"],
}
NAMED.append(
    {
        "type": "object",
        "title": "io.debezium.data.VariableScaleDecimal",
        "properties": {"scale": {"type": "integer"}, "value": {"type": "string", "connect.type": "bytes"}},
    }
)
VALUES["object"] = [{"scale": 1, "value": "AA=="}]
OF_DECIMAL = [1.5, "AA=="]


def test_plan_and_decoder_agree_on_every_type_of_a_json_schema(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan warns if no value of the schema's type can be read."""
    kinds = [*JSON.values(), *NAMED]
    places = {f"x{i}_{j}": (k, w) for i, k in enumerate(kinds) for j, w in enumerate(WANTED)}
    text = json.dumps({"properties": {place: kind for place, (kind, _) in places.items()}})
    schema = WriterSchema(1, "JSON", text)
    wanted = T.StructType([T.StructField(place, want) for place, (_, want) in places.items()])
    ids = wire_format.SchemaIds(VALUE, F.lit(1), {1: schema})
    monkeypatch.setattr(json_format, "look_up_schemas", lambda *_: ids)
    records = []
    for number in range(max(map(len, VALUES.values()))):
        values = {
            place: (OF_DECIMAL if kind.get("title") == f"{CONNECT}Decimal" else VALUES[kind["type"]])[
                number : number + 1
            ]
            for place, (kind, _) in places.items()
        }
        records.append(json.dumps({place: value[0] for place, value in values.items() if value}).encode())
    frame: DataFrame = spark.createDataFrame([(None, bytes(5) + each, None) for each in records], RAW)
    rows = [row[FIELDS] for row in json_format.add_json_schema_fields(frame, wanted, VALUE).collect()]
    have = {each.name: each.type for each in FIELD_READERS["json_schema"][1](schema, ())}
    for place, (kind, want) in places.items():
        planned = find_incompatible_json_field(have, T.StructType([T.StructField(place, want)]))
        is_read = any(row[place] is not None for row in rows)
        assert is_read == (planned is None), (kind, want, planned)
