"""Drafts the columns of a topic's values; recognises the envelopes of Debezium, Kafka Connect and CloudEvents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.contract.types import IcebergType, ListOf, MapOf, Primitive, Struct
from sluice.contract.values import VALUE_SOURCE, quote_name
from sluice.draft.connect_types import connect_fields, connect_type
from sluice.draft.forms import Form
from sluice.draft.json_columns import JsonColumns
from sluice.draft.json_types import infer_type
from sluice.draft.model import DraftColumn, ValueDraft
from sluice.draft.naming import ColumnNames
from sluice.draft.observe import Field, NotJsonError, parse_json
from sluice.draft.personal import personal_evidence
from sluice.draft.registry_columns import root_fields, row_columns, scalar_type, schema_columns
from sluice.formats.change_events import UNAVAILABLE
from sluice.formats.logical_types import unit_of

_UNWRAP_FIELDS = ("__op", "__deleted")
_CLOUD_EVENT = ("specversion", "id", "source", "type")
_ATTRIBUTES = (*_CLOUD_EVENT, "time", "subject", "datacontenttype", "dataschema")


def draft_value(form: Form, *, nested: bool) -> ValueDraft:
    """Return the draft for values of a form.

    Args:
        form: What the values are.
        nested: Whether objects within JSON objects become structs instead of columns.
    """
    if form.schema:
        return _from_registry(form)
    if form.format in ("json", "json_connect"):
        return _from_json(form, nested)
    kind = "binary" if form.format == "bytes" else "string"
    column = DraftColumn("value", kind, VALUE_SOURCE, evidence=("the whole value",), always=True)
    return ValueDraft(form.format or "json", (column,), evidence=form.evidence)


def _from_json(form: Form, nested: bool) -> ValueDraft:
    objects = [each for each in form.documents if isinstance(each, dict)]
    if not objects:
        whole = Field()
        for each in form.documents:
            whole.add(each)
        kind, why = infer_type(whole)
        column = DraftColumn("value", str(kind), VALUE_SOURCE, evidence=("the whole value", why), always=True)
        return ValueDraft(str(form.format), (column,), evidence=form.evidence)
    columns = JsonColumns(nested=nested, epochs=form.format == "json")
    if _most(objects, _is_change_event):
        return _change_events(form, objects, columns)
    if _most(objects, lambda each: any(name in each for name in _UNWRAP_FIELDS)):
        return _unwrapped(form, objects, columns)
    if _most(objects, lambda each: all(isinstance(each.get(name), str) for name in _CLOUD_EVENT)):
        return _cloud_events(form, objects, columns)
    found = _object_columns(form.embedded, objects, columns)
    return ValueDraft(str(form.format), tuple(found), tuple(columns.inputs), form.evidence, notes=tuple(columns.notes))


def _most(objects: list[dict[str, Any]], test: Any) -> bool:
    return sum(map(bool, map(test, objects))) * 2 > len(objects)


def _object_columns(
    embedded: Any, objects: Iterable[dict[str, Any]], columns: JsonColumns, skip: Iterable[str] = ()
) -> list[DraftColumn]:
    """The columns of objects: by the schema that is in the records, else by what they are."""
    rows = list(objects)
    fields = connect_fields(embedded)
    seen = Field()
    for row in rows:
        seen.add({name: each for name, each in row.items() if each != UNAVAILABLE and name not in skip})
    if not fields:
        return columns.of(seen, len(rows), skip)
    found = []
    for name, schema in fields:
        if name in skip or not name or not name.isprintable() or name != name.strip():
            continue
        kind = connect_type(schema)
        logical = schema.get("name")
        why = f"by its schema {schema.get('type')}" + (f" ({logical})" if isinstance(logical, str) else "")
        at = seen.fields.get(name, Field())
        missing = len(rows) - at.values
        nulls = f"null in {missing} of {len(rows)} records" if missing else f"never null in {len(rows)} records"
        personal = personal_evidence(name, at)
        source = quote_name(name)
        found.append(
            DraftColumn(
                columns.names.make(name),
                str(kind),
                source,
                evidence=(why, nulls),
                personal=personal,
                always=not missing,
                unit=unit_of(kind),
            )
        )
    return found


def _is_change_event(value: dict[str, Any]) -> bool:
    has_row = "after" in value or "before" in value or "updateDescription" in value
    return isinstance(value.get("op"), str) and has_row and isinstance(value.get("source"), dict)


def _change_events(form: Form, objects: list[dict[str, Any]], columns: JsonColumns) -> ValueDraft:
    events = [each for each in objects if _is_change_event(each)]
    connector = str(events[-1]["source"].get("connector", "unknown"))
    mongodb = connector == "mongodb" or any(isinstance(each.get("after"), str) for each in events)
    rows, schema = [], None
    for each in events:
        row = each.get("before") if each["op"] == "d" else each.get("after")
        if mongodb and isinstance(row, str):
            try:
                row = parse_json(row.encode())
            except NotJsonError:
                continue
        if isinstance(row, dict):
            rows.append(row)
    if not mongodb:
        schema = next((inner for name, inner in connect_fields(form.embedded) if name == "after"), None)
    found = _object_columns(schema, rows, columns)
    evidence = f"{form.evidence}, of which {len(events)} are change events of Debezium's connector for {connector}"
    kind = "debezium_mongodb" if mongodb else "debezium"
    notes = [*columns.notes, *_numbers_note(form, mongodb)]
    return ValueDraft(str(form.format), tuple(found), tuple(columns.inputs), evidence, kind, tuple(notes))


def _numbers_note(form: Form, mongodb: bool) -> list[str]:
    if form.embedded is not None or mongodb:
        return []
    return ["Debezium without schemas sends dates as days and times as numbers: see docs/guides/debezium.md"]


def _unwrapped(form: Form, objects: list[dict[str, Any]], columns: JsonColumns) -> ValueDraft:
    found = _object_columns(form.embedded, objects, columns, _UNWRAP_FIELDS)
    evidence = f"{form.evidence}, with the fields __op or __deleted of Debezium's ExtractNewRecordState"
    return ValueDraft(
        str(form.format),
        tuple(found),
        tuple(columns.inputs),
        evidence,
        "debezium_unwrapped",
        notes=tuple(columns.notes),
    )


def _cloud_events(form: Form, objects: list[dict[str, Any]], columns: JsonColumns) -> ValueDraft:
    events = [{f"ce_{name}" if name in _ATTRIBUTES else name: each for name, each in o.items()} for o in objects]
    seen = Field()
    for each in events:
        seen.add(each)
    data = seen.fields.pop("data", None)
    found = []
    for column in columns.of(seen, len(objects)):
        name = column.source.removeprefix("ce_")
        inner = DraftColumn(**{**column.__dict__, "source": name}) if name in _ATTRIBUTES else column
        found.append(inner)
    outer = Field()
    if data is not None:
        outer.fields["data"] = data
    body = columns.of(outer, len(objects))
    types = {str(each.get("type")) for each in objects}
    notes = list(columns.notes)
    if len(types) > 1:
        notes.append(f"the sample has {len(types)} types of events: `where: \"ce_type = '…'\"` takes one of them")
    notes.append("source and id identify an event: a producer that sends it again sends the same two")
    evidence = f"{form.evidence}, in the envelope of CloudEvents"
    found += body
    return ValueDraft(str(form.format), tuple(found), tuple(columns.inputs), evidence, notes=tuple(notes))


def _from_registry(form: Form) -> ValueDraft:
    schema = form.schema
    assert schema  # noqa: S101 - tells mypy what the caller has checked
    names, notes = ColumnNames(), list[str]()
    fields = root_fields(schema)
    if {"op", "source"} <= fields.keys() and isinstance(fields.get("after"), Struct):
        found = row_columns(fields["after"], names)
        evidence = f"{form.evidence}, with the envelope of Debezium"
        return ValueDraft(str(form.format), tuple(found), (), evidence, "debezium", tuple(notes))
    if (whole := scalar_type(schema)) is not None:
        why = ("the whole value",)
        column = DraftColumn("value", str(whole), VALUE_SOURCE, unit=unit_of(whole), evidence=why, always=True)
        return ValueDraft(str(form.format), (column,), evidence=form.evidence)
    if fields.keys() & set(_UNWRAP_FIELDS):
        found = [each for each in schema_columns(schema, names, notes) if each.source not in _UNWRAP_FIELDS]
        return ValueDraft(str(form.format), tuple(found), (), form.evidence, "debezium_unwrapped", notes=tuple(notes))
    columns = schema_columns(schema, names, notes)
    return ValueDraft(str(form.format), tuple(columns), evidence=form.evidence, notes=tuple(notes), follows_schema=True)


def is_scalar(kind: IcebergType) -> bool:
    """Whether a type may be a key's: no list, map or struct, and no inexact number."""
    return not isinstance(kind, (ListOf, MapOf, Struct)) and kind not in (Primitive("float"), Primitive("double"))
