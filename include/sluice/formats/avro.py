"""Reads Avro with spark-avro in the JVM: in, staged bytes in Confluent's wire format; out, the wanted fields.

Each record is read with the schema that it was written with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from sluice.contract.types import Decimal, Fixed, IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.formats import logical_types
from sluice.formats.avro_schema import (
    NamedTypes,
    SchemaBuilder,
    invalid_schema_as_mismatch,
    is_decimal,
    is_unlimited_decimal,
    logical_type,
    parse_schema,
    root_type_name,
    select_fields,
    union_branches,
    widened_decimal,
)
from sluice.formats.convert import (
    MAX_FIELDS,
    LogicalConversion,
    SchemaField,
    SchemaMismatchError,
    all_leaves,
    is_utf8,
    restore_precision,
    schema_failures_as_mismatch,
    too_many_fields,
)
from sluice.formats.internal_columns import BEST_EFFORT, END_MARKER, Expression, RecordPart, join_path, problem
from sluice.formats.wire_format import (
    Decoded,
    RecordGroup,
    RegistryFormat,
    SchemaIds,
    add_registry_fields,
    split_by_schema_id,
)
from sluice.kafka.registry import WriterSchema

_RECORD, _END = "_sluice_whole", "_sluice_end"
_COLUMN_TYPES = {"bytes": "binary", "enum": "string"}
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}


def add_avro_fields(frame: DataFrame, wanted: T.StructType, part: RecordPart) -> DataFrame:
    """Add the wanted fields of Avro in Confluent's wire format."""
    registry_format = RegistryFormat(
        "AVRO",
        decode=lambda group: _decode(group, wanted, part),
        type_name=lambda group: root_type_name(group.schema),
        split=split_by_schema_id if part.root in wanted.names else _split_by_union_branch,
    )
    frame = add_registry_fields(frame, wanted, part, registry_format)
    # Spark accepts any bytes as a string, but not every reader of the table can read strings that are not UTF-8.
    # These problems come first: a record with fields has at most one other, which may be of a best-effort field.
    required: list[Column] = []
    best_effort: list[Column] = []
    for f in wanted.fields:
        if (is_text := all_leaves(F.col(part.fields)[f.name], f.dataType, is_utf8)) is not None:
            invalid = F.when(~is_text, problem(f"field {f.name!r} is not UTF-8 text", f.name))
            (best_effort if BEST_EFFORT in f.metadata else required).append(invalid)
    return frame.withColumn(part.problem, F.coalesce(*required, F.col(part.problem), *best_effort))


def _split_by_union_branch(frame: DataFrame, ids: SchemaIds) -> Iterator[RecordGroup]:
    """One group per schema, or per branch if the root is a union: a record begins with its branch's index."""
    for group in split_by_schema_id(frame, ids):
        try:
            with schema_failures_as_mismatch():
                branches = union_branches(group.schema)
        except SchemaMismatchError:
            branches = []  # reported when the group is decoded
        for index, schema in branches:
            applies = group.applies & (F.substring(group.payload, 1, len(index)) == F.lit(index))
            value = F.substring(group.payload, F.lit(len(index) + 1), F.length(group.payload))
            yield RecordGroup(schema, applies, value)
        if not branches:
            yield group


def _decode(group: RecordGroup, wanted: T.StructType, part: RecordPart) -> Decoded:
    root, names = parse_schema(group.schema)
    with invalid_schema_as_mismatch():
        is_scalar = part.root in wanted.names
        if not is_scalar:
            _check_record(root, names, wanted)
        want = wanted[part.root].dataType if is_scalar else wanted
        writer = _with_end_marker(SchemaBuilder(names).build(root))
        reader = _with_end_marker(SchemaBuilder(names, strict=True).build(root, want=want))
    decoded = from_avro(
        F.concat(group.payload, F.lit(END_MARKER)), json.dumps(writer), {**_OPTIONS, "avroSchema": json.dumps(reader)}
    )

    def extract(it: Column) -> Column:
        # Spark yields a record of nulls for unreadable bytes, and ignores bytes after the record.
        record = it.getField(_RECORD)
        return F.when(
            it.getField(_END) == F.lit(END_MARKER), F.struct(record.alias(part.root)) if is_scalar else record
        )

    return Decoded(decoded, extract, logical_conversions(root, names, part.root if is_scalar else ""))


def logical_conversions(root: Any, names: NamedTypes, root_path: str = "") -> LogicalConversion:
    """Conversions for logical types: Spark's reader is given their base types, and some decimals with more digits.

    Args:
        root: The schema's root.
        names: Its named types.
        root_path: The root's path within the wanted fields.
    """

    def conversion(path: str, have: T.DataType, want: T.DataType) -> Expression | None:
        schema = names.type_at(root, path.removeprefix(root_path).removeprefix("."))
        if is_decimal(schema):
            return _decimal_conversion(schema, have, want, path)
        kind = logical_type(schema)
        if kind is None:
            return None
        reader = kind.reader(want)
        if reader is None and kind.base not in kind.columns:
            raise SchemaMismatchError(path, f"is {kind.columns[0]}, but its column is {want.simpleString()}")
        return reader

    return conversion


def _decimal_conversion(schema: dict[str, Any], have: T.DataType, want: T.DataType, path: str) -> Expression | None:
    """The conversion of a decimal, read as such or as bytes, to a decimal or its text; None to the bytes themselves."""
    scale = schema.get("scale", 0)
    if is_unlimited_decimal(schema) and isinstance(want, (T.DecimalType, T.StringType)):
        kind = (
            want
            if isinstance(want, T.DecimalType)
            else T.DecimalType(logical_types.MAX_DIGITS, min(scale, logical_types.MAX_DIGITS))
        )
        read: Expression = lambda raw: logical_types.decimal_from_unscaled(raw, F.lit(scale), kind)  # noqa: E731
        return read if kind is want else lambda raw: read(raw).cast("string")
    if not isinstance(have, T.DecimalType):
        return None
    declared = widened_decimal(schema) or have
    if isinstance(want, T.StringType):
        return lambda value: value.try_cast(declared).cast("string")
    return restore_precision(declared, want, path) if declared != have else None


def infer_avro_fields(schema: WriterSchema, skip: Collection[str]) -> Iterator[SchemaField]:
    """The fields of an Avro record; those to skip have no type."""
    root, names = parse_schema(schema)
    record = names.types.get(root) if isinstance(root, str) else None
    if record is None or record["type"] != "record":
        raise SchemaMismatchError("", "the root is not a record with fields; list a column with source: $value")
    checker = SchemaBuilder(names, strict=True, enclosing=(str(root),))
    fields = 0
    with invalid_schema_as_mismatch():
        for each in record["fields"]:
            if each["name"] in skip:
                yield SchemaField(each["name"], None)
                continue
            fields += 1 + checker.size(checker.build(each["type"], each["name"]))
            if fields > MAX_FIELDS:
                raise too_many_fields(each["name"])
            yield SchemaField(
                each["name"], iceberg_type_from_avro(each["type"], names.types, each["name"]), each["doc"]
            )


def iceberg_type_from_avro(schema: Any, named: dict[str, dict[str, Any]], path: str = "") -> IcebergType:
    """The Iceberg type of a schema that a strict SchemaBuilder accepts: no recursion, one branch besides null."""
    if isinstance(schema, list):
        return iceberg_type_from_avro(next(each for each in schema if each != "null"), named, path)
    if isinstance(schema, str):
        known = named.get(schema)
        return iceberg_type_from_avro(known, named, path) if known else Primitive(_COLUMN_TYPES.get(schema, schema))
    if is_decimal(schema):
        if schema.get("scale", 0) > logical_types.MAX_DIGITS:
            raise SchemaMismatchError(
                path, f"is a decimal of scale {schema['scale']}, but Iceberg holds {logical_types.MAX_DIGITS}"
            )
        return Decimal(min(schema["precision"], logical_types.MAX_DIGITS), schema.get("scale", 0))
    logical = logical_type(schema)
    match logical.columns[0] if logical else schema["type"]:
        case "array":
            return ListOf(iceberg_type_from_avro(schema["items"], named, f"{path}[]"))
        case "map":
            return MapOf(Primitive("string"), iceberg_type_from_avro(schema["values"], named, f"{path}{{}}"))
        case "record":
            fields = ((f["name"], f["type"], join_path(path, f["name"])) for f in schema["fields"])
            return Struct(tuple((name, iceberg_type_from_avro(kind, named, at)) for name, kind, at in fields))
        case "fixed":
            return Fixed(schema["size"])
        case kind:
            name = _COLUMN_TYPES.get(kind, kind)
            return logical_types.NamedType(name, logical) if logical else Primitive(name)


def _with_end_marker(schema: Any) -> dict[str, Any]:
    """A schema for its value followed by the end marker."""
    marker = {"type": "fixed", "name": _END, "size": len(END_MARKER)}
    return {
        "type": "record",
        "name": _RECORD,
        "fields": [{"name": _RECORD, "type": schema}, {"name": _END, "type": marker}],
    }


def _check_record(root: Any, names: NamedTypes, wanted: T.StructType) -> None:
    """Refuse a root that is not a record, or has none of the wanted fields."""
    found = names.types.get(root, root) if isinstance(root, str) else root
    if not isinstance(found, dict) or found.get("type") != "record":
        kind = found.get("type") if isinstance(found, dict) else found
        raise SchemaMismatchError("", f"the root is not a record with fields but {kind}")
    # A record of another kind would otherwise become a row of nulls.
    if wanted.names and not select_fields(found["fields"], wanted):
        raise SchemaMismatchError("", f"record {found['name']} has none of the fields that columns read")
