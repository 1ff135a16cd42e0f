"""Proposes how a table keeps its rows: the mode, the columns of the key, and what deletes do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sluice.contract.types import parse_type
from sluice.contract.values import KEY_SOURCE, quote_name, split_path
from sluice.draft.model import DraftColumn, KeyDraft, Proposal, ValueDraft
from sluice.draft.naming import ColumnNames
from sluice.draft.observe import NotJsonError, parse_json
from sluice.draft.sample import Sample
from sluice.draft.values import is_scalar

Settings = dict[str, Proposal]
_MERGE_SEARCH = "a merge looks for its keys in all partitions, unless these are by columns of the key"
_NO_PARTITIONS = f"there is no partition_by: {_MERGE_SEARCH}"


@dataclass(frozen=True)
class Rows:
    """How a table keeps its rows.

    Attributes:
        settings: Fields of the contract.
        columns: All columns, those of the key first.
        options: What the author may set instead, and why.
        notes: What else the author should know.
    """

    settings: Settings
    columns: tuple[DraftColumn, ...]
    options: tuple[tuple[dict[str, Any], str], ...] = ()
    notes: tuple[str, ...] = ()


def propose_rows(sample: Sample, key: KeyDraft, value: ValueDraft) -> Rows:
    """Return a proposal for a sample's keys and values."""
    if value.cdc:
        return _change_events(sample, key, value)
    usable = key.complete and bool(key.fields) and all(is_scalar(parse_type(each.type)) for each in key.fields)
    names = ColumnNames((*(each.name for each in value.columns), *(each.name for each in value.inputs)))
    columns, identifier = _key_columns(sample, key, value, names)
    why = []
    if sample.tombstones:
        why.append(
            f"{sample.tombstones} of {sample.count} records have a key and no value: they delete the row of their key"
        )
    if sample.compacted:
        why.append("the topic is compacted: Kafka keeps the newest record of a key")
    if why and usable:
        identifier_why = "the record's key, which a tombstone has, too"
        settings = {"mode": Proposal("upsert", "; ".join(why)), "identifier": Proposal(identifier, identifier_why)}
        return Rows(settings, columns, _upsert_options(columns, identifier), (_NO_PARTITIONS,))
    notes = []
    if sample.tombstones:
        notes.append(f"{sample.tombstones} records have no value: mode append quarantines them (null_value)")
    settings = {"mode": Proposal("append", "every record becomes a row")}
    if not usable:
        return Rows(settings, value.columns, notes=tuple(notes))
    settings["mode"] = Proposal(
        "append", "every record becomes a row; the topic is not compacted, and no record deletes"
    )
    repeated = sample.count - len({each.key for each in sample.records})
    reason = (
        f"{repeated} records of the sample have the key of another one: if a record replaces the earlier one of its key"
    )
    reason = reason if repeated else "if a record replaces the earlier one of its key"
    reason += f". Remove partition_by then: {_MERGE_SEARCH}"
    options: tuple[tuple[dict[str, Any], str], ...] = (({"mode": "upsert", "identifier": identifier}, reason),)
    return Rows(settings, columns, options, tuple(notes))


def _upsert_options(columns: tuple[DraftColumn, ...], identifier: list[str]) -> tuple[tuple[dict[str, Any], str], ...]:
    options: list[tuple[dict[str, Any], str]] = []
    versions = [c.name for c in columns if c.type in ("timestamptz", "timestamp") and c.name not in identifier]
    preferred = next((name for name in versions if "updated" in name.lower() or "modified" in name.lower()), None)
    if preferred:
        why = "orders versions by the record itself, if keys move between partitions (the column needs required: true)"
        options.append(({"order": [preferred], "deletes": "ignore"}, why))
    options.append(
        ({"maintenance": {"strategy": "sort", "sort_by": identifier}}, "for a large table: a merge then skips files")
    )
    return tuple(options)


def _key_columns(
    sample: Sample, key: KeyDraft, value: ValueDraft, names: ColumnNames
) -> tuple[tuple[DraftColumn, ...], list[str]]:
    """The columns with those of the key, and the names of the latter."""
    columns = list(value.columns)
    identifier: list[str] = []
    for each in reversed(key.fields):
        field = each.name or _same_field(sample, value)
        at = next((i for i, c in enumerate(columns) if field and c.source == quote_name(field)), None)
        same = columns[at] if at is not None else None
        kind = each.type
        if same and not each.name and same.type in ("long", "int"):
            kind = "long"  # the text of the key is a whole number in each record
        name = same.name if same else names.make(each.name or "key")
        why = "the record's key" if not each.name else f"field {each.name} of the record's key"
        if same and not each.name:
            why = f"the record's key, which equals the field {field} of the value in every record"
        hints = each.evidence[1:] if kind == each.type else ()
        made = replace(each, name=name, type=kind, evidence=(why, *hints), personal=same.personal if same else "")
        if at is not None:
            columns[at] = made
        else:
            columns.insert(0, made)
        identifier.insert(0, name)
    return tuple(columns), identifier


def _same_field(sample: Sample, value: ValueDraft) -> str:
    """The outermost field of JSON values that equals the key's text in every record; empty if there is none."""
    if value.format not in ("json", "json_connect"):
        return ""
    paths = [split_path(c.source) for c in value.columns if c.source and not c.source.startswith("$")]
    candidates = {path[0] for path in paths if len(path) == 1}
    compared = 0
    for each in sample.records:
        if each.value is None or each.key is None:
            continue
        try:
            document = parse_json(each.value)
        except NotJsonError:
            continue
        if value.format == "json_connect" and isinstance(document, dict):
            document = document.get("payload")
        if not isinstance(document, dict):
            continue
        compared += 1
        candidates = {name for name in candidates if _as_key(document.get(name)) == each.key}
    return min(candidates, key=lambda name: ("id" not in name.lower(), name)) if candidates and compared else ""


def _as_key(value: object) -> bytes | None:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value).encode()


def _change_events(sample: Sample, key: KeyDraft, value: ValueDraft) -> Rows:
    """Change events: the key's fields are the source's primary key."""
    cdc: dict[str, Any] = {"format": value.cdc}
    wanted = [each.name for each in key.fields if each.name]
    by_field = {split_path(c.source)[0]: c for c in value.columns if c.source and not c.source.startswith("$")}
    from_key = value.cdc != "debezium" or sample.compacted
    known = [name for name in wanted if name in by_field and is_scalar(parse_type(by_field[name].type))]
    if not key.steady or not wanted or (len(known) < len(wanted) and value.cdc != "debezium_mongodb"):
        operation = ColumnNames(c.name for c in value.columns).make("operation")
        column = DraftColumn(operation, "string", "$op", evidence=("c, u, r, d: what the event did",))
        why = "the keys do not name the row's primary key, so the table is a log of changes"
        settings = {"mode": Proposal("append", why), "cdc": Proposal(cdc, value.evidence)}
        return Rows(settings, (*value.columns, column))
    columns, identifier = list(value.columns), list[str]()
    names = ColumnNames((*(c.name for c in columns), *(each.name for each in value.inputs)))
    for each in key.fields:
        known_column = by_field.get(each.name)
        column = known_column or replace(each, name=names.make(each.name))
        if known_column is None:
            columns.insert(0, column)
        elif from_key:
            at = columns.index(column)
            source = f"{KEY_SOURCE}.{quote_name(each.name)}"
            column = replace(column, type=each.type, source=source, unit=each.unit, expression="")
            columns[at] = column
        identifier.append(column.name)
    notes = []
    if sample.compacted and value.cdc == "debezium":
        cdc["tombstones"] = "delete"
        notes.append("the topic is compacted, so a delete may be gone and only its tombstone left: it deletes, too")
    settings = {
        "mode": Proposal("upsert", "one row for each row of the source"),
        "cdc": Proposal(cdc, value.evidence),
        "identifier": Proposal(identifier, "the source's primary key: the fields of the record's key"),
    }
    notes.append(_NO_PARTITIONS)
    options = (({"deletes": "soft"}, "keeps deleted rows; needs a column {source: $deleted, type: boolean}"),)
    return Rows(settings, tuple(columns), options, tuple(notes))
