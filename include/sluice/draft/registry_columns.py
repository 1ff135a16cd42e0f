"""Columns from a registered schema, by the same inference as `columns: auto`."""

from __future__ import annotations

import json

from sluice.contract.contract import Contract
from sluice.contract.types import IcebergType, Primitive, Struct
from sluice.contract.values import quote_name, root_name
from sluice.draft.forms import FORMATS
from sluice.draft.model import DraftColumn
from sluice.draft.naming import ColumnNames
from sluice.draft.personal import personal_evidence
from sluice.errors import SchemaChangeError
from sluice.evolve.auto_columns import list_columns
from sluice.formats.avro import iceberg_type_from_avro
from sluice.formats.avro_schema import parse_schema
from sluice.formats.convert import SchemaMismatchError, schema_failures_as_mismatch
from sluice.formats.inferred_columns import FIELD_READERS
from sluice.formats.logical_types import unit_of
from sluice.kafka.registry import WriterSchema

_MAX_OMITTED = 50


def schema_columns(schema: WriterSchema, names: ColumnNames, notes: list[str]) -> list[DraftColumn]:
    """Return the columns that `columns: auto` would make of a schema; fields that it refuses are noted and left out.

    Raises:
        SchemaChangeError: No columns can be made of it at all.
    """
    body = {"table": "draft.t", "topic": "t", "group": "draft", "owner": "draft", "columns": ["auto"]}
    form = FORMATS[schema.kind]
    omitted: list[str] = []
    while True:
        auto = {"auto": {"omit": [quote_name(name) for name in omitted]}}
        contract = Contract.model_validate({**body, "value": {"format": form}, "columns": [auto]})
        try:
            columns = list_columns(contract, schema, "").columns
            break
        except SchemaChangeError as error:
            cause = error.__cause__
            name = root_name(cause.path) if isinstance(cause, SchemaMismatchError) else ""
            if not name or name in omitted or len(omitted) == _MAX_OMITTED:
                raise
            omitted.append(name)
            notes.append(f"the field {name} is left out: it {cause.reason}")  # type: ignore[union-attr]
    return [
        DraftColumn(
            names.make(c.name),
            str(c.type),
            c.source,
            unit=c.unit,
            personal=personal_evidence(c.name),
            evidence=(c.doc or "",),
        )
        for c in columns
    ]


def root_fields(schema: WriterSchema) -> dict[str, IcebergType]:
    """Return the fields of a schema's root that columns can hold, with their types; empty if it has none."""
    _, read = FIELD_READERS[FORMATS[schema.kind]]
    refused: list[str] = []
    while True:
        try:
            with schema_failures_as_mismatch():
                return {each.name: each.type for each in read(schema, refused) if each.type is not None}
        except SchemaMismatchError as error:
            name = root_name(error.path)
            if not name or name in refused or len(refused) == _MAX_OMITTED:
                return {}
            refused.append(name)


def scalar_type(schema: WriterSchema) -> IcebergType | None:
    """Return the type of an Avro schema whose root is no record, such as `"string"`; None for others."""
    if schema.kind != "AVRO":
        return None
    try:
        with schema_failures_as_mismatch():
            json.loads(schema.text)
            root, names = parse_schema(schema)
            if isinstance(root, str) and root in names.types:
                return None
            return iceberg_type_from_avro(root, names.types)
    except (SchemaMismatchError, ValueError, StopIteration):
        return None


def row_columns(row: IcebergType, names: ColumnNames) -> list[DraftColumn]:
    """Return the columns of a change event's row."""
    fields = row.fields if isinstance(row, Struct) else ()
    return [
        DraftColumn(names.make(name), str(kind), quote_name(name), unit=unit_of(kind), personal=personal_evidence(name))
        for name, kind in fields
        if kind != Primitive("time")
    ]
