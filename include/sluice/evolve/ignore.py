"""Leaves changes out of a contract: what `schema_policy: ignore` means. In: two contracts. Out: a third one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.fields import fields_read
from sluice.contract.partitioning import PartitionField
from sluice.contract.shape import previous_columns
from sluice.evolve.diff import READING, TYPE_KINDS, ContractChange

Skipped = set[tuple[str, str]]
_FIELDS = {
    "name": ("rename_column",),
    "type": TYPE_KINDS,
    "unit": ("change_type",),
    "required": ("make_optional", "make_required"),
    "doc": ("document",),
    "mask": ("change_mask",),
}


def omit_changes(old: Contract, new: Contract, ignored: Iterable[ContractChange]) -> Contract:
    """The new contract without the ignored changes.

    Raises:
        pydantic.ValidationError: the result contradicts itself.
    """
    skipped = {(c.kind, c.column) for c in ignored}
    known = previous_columns(old, new)
    columns = [
        _column(c, known.get(c.name), new, skipped)
        for c in new.columns
        if c.name in known or not {("add_column", c.name), ("change_mask", c.name)} & skipped
    ]
    _restore_columns(columns, old, known, skipped)
    if ("reorder", "") in skipped:
        place = {c.name: i for i, c in enumerate(old.columns)}
        at = {name: place[was.name] for name, was in known.items()}
        columns.sort(key=lambda c: at.get(c.name, place.get(c.name, len(place))))
    body = new.model_dump(mode="json", exclude_unset=True)
    body.pop("valid_from", None)
    body |= _names(old, new, known, skipped)
    body["columns"] = [c.model_dump(mode="json", exclude_defaults=True) for c in columns]
    body["inputs"] = _inputs(columns, old, new, known, skipped)
    if ("upgrade_format", "") in skipped:
        body["format_version"] = old.format_version
    if any(("change_key", name) in skipped and was.from_key for name, was in known.items()):
        body["key"] = old.key.model_dump(mode="json", exclude_unset=True)
    if ("change_key", "") in skipped and not old.keyed:
        body.pop("deletes")
    return Contract.model_validate({**body, "start": new.start})


def _column(column: Column, was: Column | None, new: Contract, skipped: Skipped) -> Column:
    changed: dict[str, Any] = {}
    if was is None:
        changed = {"required": False} if ("make_required", column.name) in skipped else {}
        return column.model_copy(update={**changed, "renamed_from": None})
    for field, kinds in _FIELDS.items():
        if any((kind, column.name) in skipped for kind in kinds):
            changed[field] = getattr(was, field)
    if ("change_key", column.name) in skipped or (("change_mask", column.name) in skipped and not was.mask):
        changed |= {field: getattr(was, field) for field in READING}
    if ("change_key", "") in skipped and column.name in new.identifier:  # a key column is always required
        changed["required"] = was.required
    if was.name == column.name or "name" in changed:
        changed["renamed_from"] = None
    return column.model_copy(update=changed)


def _inputs(
    columns: Iterable[Column], old: Contract, new: Contract, known: Mapping[str, Column], skipped: Skipped
) -> list[dict[str, Any]]:
    """The inputs; old ones where a column keeps its old expression; none where no column has an expression."""
    if not new.where and not any(c.expression for c in columns):
        return []
    restored = [c for c in old.columns if ("drop_column", c.name) in skipped]
    for name, was in known.items():
        if ("change_key", name) in skipped or (("change_mask", name) in skipped and not was.mask):
            restored.append(was)
    read = {source for c in restored if c.expression for source in fields_read(old, c)}
    there = {(c.name, c.source, c.type) for c in columns}
    before = {i.name: i for i in old.inputs if i.source in read and (i.name, i.source, i.type) not in there}
    return [i.model_dump(mode="json") for i in ({i.name: i for i in new.inputs} | before).values()]


def _restore_columns(columns: list[Column], old: Contract, known: Mapping[str, Column], skipped: Skipped) -> None:
    """Insert the columns whose drop is ignored after the columns that preceded them."""
    for index, column in enumerate(old.columns):
        if ("drop_column", column.name) in skipped:
            before = {c.name for c in old.columns[:index]}
            at = [i for i, c in enumerate(columns) if known.get(c.name, c).name in before]
            columns.insert(max(at, default=-1) + 1, column)


def _names(old: Contract, new: Contract, known: Mapping[str, Column], skipped: Skipped) -> dict[str, Any]:
    """Key and partitions, with the old names of columns whose renaming is ignored."""
    names = {now: was.name for now, was in known.items() if ("rename_column", now) in skipped}
    fields = [PartitionField(names.get(f.column, f.column), f.transform, f.argument) for f in new.partitioning]
    body: dict[str, Any] = {
        "identifier": [names.get(n, n) for n in new.identifier],
        "order": [names.get(n, n) for n in new.order],
        "partition_by": [str(field) for field in fields],
    }
    keyed_as = old if ("change_key", "") in skipped else new
    if keyed_as.mode == "history":
        body["valid_from"] = old.valid_from if keyed_as is old else names.get(new.valid_from, new.valid_from)
    if ("change_key", "") in skipped:
        body |= {"mode": old.mode, "deletes": old.deletes}
        body |= {"identifier": list(old.identifier), "order": list(old.order)}
    if ("change_partitioning", "") in skipped:
        body["partition_by"] = list(old.partition_by)
    kept, called = new.retention, names
    if ("change_retention", "") in skipped:
        kept, called = old.retention, {was.name: names.get(now, now) for now, was in known.items()}
    body["retention"] = kept and {**kept.model_dump(mode="json"), "column": called.get(kept.column, kept.column)}
    return body
