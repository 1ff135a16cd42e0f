"""Writes the tables of types into docs/reference/types.md: which column types each type of a format can be read as.

`make type-tables` runs it. Every row is the answer of the code that a plan asks, which is the decoder's own. A unit
test fails when the tables are out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "include"))

from pyspark.sql import types as T  # noqa: E402

from sluice.contract.types import parse_type  # noqa: E402
from sluice.formats.convert import SchemaField  # noqa: E402
from sluice.formats.inferred_columns import FIELD_READERS  # noqa: E402
from sluice.formats.logical_types import AVRO_TYPES, CONNECT_TYPES, JSON_SCHEMA_FORMATS, spark_type  # noqa: E402
from sluice.formats.schema_compat import find_incompatible_field, find_incompatible_json_field  # noqa: E402
from sluice.kafka.registry import WriterSchema  # noqa: E402

PAGE = REPOSITORY / "docs" / "reference" / "types.md"
END = "<!-- end of types -->"
COLUMNS = {
    **{n: n for n in ("boolean", "int", "long", "float", "double")},
    "decimal(p, s)": "decimal(38, 2)",
    **{n: n for n in ("date", "timestamp", "timestamptz", "string", "uuid", "binary")},
    "fixed[n]": "fixed[3]",
}
"""Column types as the page writes them, and an example of each."""
DECIMAL = {"type": "bytes", "logicalType": "decimal", "scale": 2}
AVRO: dict[str, Any] = {
    **{n: n for n in ("boolean", "int", "long", "float", "double", "string", "bytes")},
    "fixed(n)": {"type": "fixed", "name": "F", "size": 3},
    "enum": {"type": "enum", "name": "E", "symbols": ["A"]},
    "decimal of up to 38 digits": {**DECIMAL, "precision": 9},
    "decimal of more digits": {**DECIMAL, "precision": 64},
    **{n: {"type": kind.base, "logicalType": n} for n, kind in AVRO_TYPES.items()},
}
VARIABLE = {
    "type": "record",
    "name": "V",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}
NAMES: dict[str, Any] = {
    "org.apache.kafka.connect.data.Decimal": {**DECIMAL, "precision": 64},
    **{n: {"type": "bytes" if k.base == "binary" else k.base, "connect.name": n} for n, k in CONNECT_TYPES.items()},
    "io.debezium.data.VariableScaleDecimal": VARIABLE,
}
PROTOBUF = (
    *("int32", "sint32", "sfixed32", "int64", "sint64", "sfixed64", "uint32", "fixed32", "uint64", "fixed64"),
    *("float", "double", "bool", "string", "bytes"),
    *(f"google.protobuf.{name}" for name in ("Timestamp", "Duration", "StringValue")),
    *("confluent.type.Decimal", "google.type.Date"),
)
IMPORTS = (
    *(f"google/protobuf/{name}" for name in ("timestamp", "duration", "wrappers")),
    *("google/type/date", "confluent/type/decimal"),
)
JSON: dict[str, Any] = {
    **{n: {"type": n} for n in ("boolean", "integer", "number", "string")},
    **{f"string, format {n}": {"type": "string", "format": n} for n in JSON_SCHEMA_FORMATS},
    "string, connect.type bytes": {"type": "string", "connect.type": "bytes"},
}


def schemas() -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Table, format and text of each schema, and its fields: the row of the table and the field's name."""
    for table, kinds in (("avro", AVRO), ("names", NAMES)):
        for name, kind in kinds.items():
            record = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
            yield table, "avro", json.dumps(record), {name: "x"}
    imports = "".join(f'import "{each}.proto"; ' for each in IMPORTS)
    fields = {kind: f"x{number}" for number, kind in enumerate(PROTOBUF, start=1)}
    body = " ".join(f"{kind} {name} = {name[1:]};" for kind, name in fields.items())
    yield "protobuf", "protobuf", f'syntax = "proto3"; {imports}message M {{ {body} }}', fields
    named = {name: f"x{number}" for number, name in enumerate(JSON)}
    text = json.dumps({"properties": {named[name]: kind for name, kind in JSON.items()}})
    yield "json", "json_schema", text, named


def readable(form: str, schema: WriterSchema, field: SchemaField) -> tuple[str, str]:
    """The column type with `columns: auto`, and the other types that the field can be read as."""
    others = []
    for shown, example in COLUMNS.items():
        wanted = T.StructType([T.StructField(field.name, spark_type(parse_type(example)))])
        misfit = (
            find_incompatible_json_field({field.name: field.type}, wanted)
            if form == "json_schema"
            else find_incompatible_field(form, schema, wanted)
        )
        if misfit is None:
            others.append(shown)
    first = str(field.type).replace("(9, 2)", "(p, s)").replace("(38, 2)", "(38, s)").replace("[3]", "[n]")
    # Every text can be a uuid, and Spark's type of both is the same.
    left_out = {first} if "date" in others else {first, "uuid"}
    return first, ", ".join(each for each in others if each not in left_out)


def tables() -> dict[str, str]:
    """The tables as Markdown, by name."""
    notes = {name: kind.note for name, kind in {**AVRO_TYPES, **CONNECT_TYPES}.items()}
    rows: dict[str, dict[tuple[str, str, str], list[str]]] = {}
    for table, form, text, fields in schemas():
        kind, read = FIELD_READERS[form]
        schema = WriterSchema(1, kind, text)
        found = {each.name: each for each in read(schema, ())}
        for row, name in fields.items():
            cells = (*readable(form, schema, found[name]), notes.get(row, ""))
            rows.setdefault(table, {}).setdefault(cells, []).append(row)
    heads = {"avro": "Avro", "names": "name", "protobuf": "Protobuf", "json": "JSON Schema"}
    made = {}
    for table, found_rows in rows.items():
        lines = [f"| {heads[table]} | column with `auto` | or | note |", "| --- | --- | --- | --- |"]
        for cells, names in found_rows.items():
            lines.append("".join(f"| {each} ".replace("|  ", "| ") for each in (", ".join(names), *cells)) + "|")
        made[table] = "\n".join(lines)
    return made


def with_tables(text: str) -> str:
    """The page with the parts between the markers written anew."""
    for name, table in tables().items():
        begin = f"<!-- types of {name}: written by .ci/type_tables.py -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{END}{rest.partition(END)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
