"""Compares two contracts of one table. In: two contracts. Out: changes, each with a kind and a description. No I/O.

Only the shape is compared: columns, key, partitions, and how records are read. `schema_policy` decides per kind what
becomes of a change. Operational settings (`contract.shape.OPERATIONAL`) take effect at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.contract import shape
from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.partitioning import PartitionField
from sluice.contract.types import Decimal, IcebergType, ListOf, MapOf, Primitive, Struct, is_primitive
from sluice.contract.values import format_duration
from sluice.evolve.mask_exposure import Masks, find_past_masks

READ = "read"
"""The kind of a change that only affects how records are read, not the table: it takes effect at once."""

TYPE_KINDS = ("widen", "change_type", "change_nested", "reorder")
_WIDER = {"int": "long", "float": "double"}
READING = frozenset(Column.model_fields) - {"name", "type", "required", "doc", "renamed_from"}
"""Fields of a column that define how it is read."""

_KEEP_ORDER = "existing rows keep their old value, and new rows are compared with it"
_KEEP_KEY = "existing rows keep their old key, and a record whose key is now different gets a second row"


@dataclass(frozen=True)
class ContractChange:
    """One change.

    Attributes:
        kind: a key of `schema_policy`, or `READ`. `change_key` with a column changes only how that column is read.
        description: what changes, without a subject: "adds column x (int)".
        column: its name in the new contract; the old name of a dropped one; empty for the table as a whole.
    """

    kind: str
    description: str
    column: str = ""


@dataclass(frozen=True)
class NestedStep:
    """A change inside a nested column: `add` or `widen` to `type`, or `drop`, at a PyIceberg path."""

    action: str
    path: tuple[str, ...]
    type: IcebergType | None = None


def compare_contracts(old: Contract, new: Contract, before: Sequence[Contract] = ()) -> tuple[ContractChange, ...]:
    """The changes, column by column, then of the table as a whole.

    Args:
        old: the active contract.
        new: the requested one.
        before: the versions before the old one, newest first: to unmask what they masked is a change as well.
    """
    known = shape.previous_columns(old, new)
    keys = {*new.identifier, *(name for name, c in known.items() if c.name in old.identifier)}
    places = {*_placing(new), *(name for name, c in known.items() if c.name in _placing(old))}
    masks = [Masks.from_contract(old), *find_past_masks(before, old)]
    found: list[ContractChange] = []
    for column in new.columns:
        was = known.get(column.name)
        found += (
            _added(column)
            if was is None
            else _altered(was, column, key=column.name in keys, place=column.name in places)
        )
        masked = column.mask or (was and was.mask)  # `_altered` reports a change of the column's own mask
        shown = [text for each in masks if not masked and (text := each.describe_exposure(old, new, was, column))]
        if shown:
            found.append(ContractChange("change_mask", "; ".join(shown), column.name))
    remaining = {c.name for c in known.values()}
    found += [
        ContractChange("drop_column", f"drops column {c.name} ({c.described_type})", c.name)
        for c in old.columns
        if c.name not in remaining
    ]
    found += _whole(old, new, known)
    return tuple(found)


def _added(column: Column) -> Iterator[ContractChange]:
    yield ContractChange("add_column", f"adds column {column.name} ({column.described_type})", column.name)
    if column.required:
        why = "records without it are quarantined, and existing rows have no value"
        yield ContractChange("make_required", f"new column {column.name} is required: {why}", column.name)


def _placing(contract: Contract) -> set[str | None]:
    """The columns that order the versions of a key."""
    return {*contract.order, contract.valid_from}


def _altered(was: Column, now: Column, *, key: bool, place: bool) -> Iterator[ContractChange]:
    if was.name != now.name:
        yield ContractChange("rename_column", f"renames column {was.name} to {now.name}", now.name)
    if kind := classify_column_change(was, now):
        does = {"widen": "widens", "change_nested": "changes inside", "reorder": "reorders the fields of"}.get(
            kind, "changes the unit of" if was.unit and was.unit != now.unit else "changes the type of"
        )
        yield ContractChange(kind, f"{does} column {now.name}: {was.described_type} to {now.described_type}", now.name)
    if was.required != now.required and not key:  # a change of the key reports its own
        if now.required:
            yield ContractChange("make_required", f"column {now.name} becomes required", now.name)
        else:
            yield ContractChange("make_optional", f"column {now.name} becomes optional", now.name)
    if was.doc != now.doc:
        yield ContractChange("document", f"changes the doc of column {now.name}", now.name)
    known = {"unit"} if kind == "change_type" else set()
    differing = dict.fromkeys(name for name, _ in sorted(_reading(was) ^ _reading(now)) if name not in known)
    if "mask" in differing:
        yield from _mask_change(was, now, key=key)
        if not key:  # a key with another mask is also read differently
            del differing["mask"]
    if differing:
        names = ", ".join(differing)
        if key:
            yield ContractChange("change_key", f"reads the key {now.name} differently ({names}): {_KEEP_KEY}", now.name)
        elif place:
            what = f"reads {now.name}, which orders the versions of a key, differently ({names})"
            yield ContractChange("change_key", f"{what}: {_KEEP_ORDER}", now.name)
        else:
            yield ContractChange(READ, f"reads column {now.name} differently ({names})", now.name)


def _mask_change(was: Column, now: Column, *, key: bool) -> Iterator[ContractChange]:
    if was.mask:
        shown = f"{was.mask} to {now.mask}" if now.mask else f"removes {was.mask}, so that its values can be read"
        yield ContractChange("change_mask", f"changes the mask of column {now.name}: {shown}", now.name)
    elif not key:
        stay = "existing rows and raw records in quarantine stay as they are"
        yield ContractChange(READ, f"masks column {now.name} ({now.mask}) from now on: {stay}", now.name)


def _reading(column: Column) -> set[tuple[str, str]]:
    body = column.model_dump(mode="json", include=set(READING))
    return {(name, json.dumps(value, sort_keys=True)) for name, value in body.items()}


def _whole(old: Contract, new: Contract, known: dict[str, Column]) -> Iterator[ContractChange]:
    before = [c.name for c in old.columns]
    order = [before.index(known[c.name].name) for c in new.columns if c.name in known]
    if order != sorted(order):
        yield ContractChange("reorder", "reorders the columns")
    now_called = {c.name: name for name, c in known.items()}
    identifier = {now_called.get(name, name) for name in old.identifier}
    times = [now_called.get(name or "", name) for name in (old.valid_from, old.valid_to)]
    if (old.mode, identifier, *times) != (new.mode, set(new.identifier), new.valid_from, new.valid_to):
        was, now = (_key(c) for c in (old, new))
        yield ContractChange("change_key", f"changes the key: {was} to {now}")
    fields = [PartitionField(now_called.get(f.column, f.column), f.transform, f.argument) for f in old.partitioning]
    if fields != list(new.partitioning):
        was, now = (", ".join(c.partition_by) or "none" for c in (old, new))
        yield ContractChange("change_partitioning", f"changes the partitions: {was} to {now}, for new files")
    kept = old.retention
    if kept and kept.column in now_called:
        kept = kept.model_copy(update={"column": now_called[kept.column]})
    if kept != new.retention:
        was, now = (f"{r.column} is {format_duration(r.keep)} old" if r else "never" for r in (kept, new.retention))
        yield ContractChange("change_retention", f"changes when rows are deleted: {now}, before: {was}")
    if old.format_version < new.format_version:
        upgrade = f"changes Iceberg's format version from {old.format_version} to {new.format_version}"
        yield ContractChange("upgrade_format", f"{upgrade}: every reader must support it, and it can't be undone")
    elif old.format_version > new.format_version:
        back = f"asks for format version {new.format_version}, but the table has {old.format_version}"
        yield ContractChange("upgrade_format", f"{back}, and Iceberg can't change it back")
    a, b = ({k: v for k, v in shape.shape(c).items() if k not in _ELSEWHERE} for c in (old, new))
    changed = {k for k in a.keys() | b.keys() if a.get(k) != b.get(k) and not _renamed(k, a, b, now_called)}
    if "key" in changed and (read := [n for n in new.identifier if n in known and new.column(n).from_key]):
        changed.remove("key")
        yield ContractChange("change_key", f"reads the key {read[0]} differently (key): {_KEEP_KEY}", read[0])
    if changed:
        yield ContractChange(READ, f"reads records differently ({', '.join(sorted(changed))})")


_ELSEWHERE = {"columns", "mode", "identifier", "partition_by", "retention", "valid_from", "format_version"}


def _key(contract: Contract) -> str:
    times = f", valid from {contract.valid_from} to {contract.valid_to}" if contract.valid_to else ""
    return f"{contract.mode} by {', '.join(contract.identifier) or 'no key'}{times}"


def _renamed(name: str, a: dict[str, Any], b: dict[str, Any], now_called: dict[str, str]) -> bool:
    """Whether a list of columns differs only because columns were renamed."""
    return name == "order" and [now_called.get(c, c) for c in a.get(name, ())] == b.get(name, [])


def classify_column_change(was: Column, now: Column) -> str | None:
    """The kind of a change of a column's type or unit, one of `TYPE_KINDS`; None where neither changes.

    In another unit, or in one where there was none and the type changes, the old values mean something else. A unit
    alone is no such change: it says what the column was meant to hold.
    """
    if was.unit != now.unit and (was.unit or was.type != now.type):
        return "change_type"
    return classify_type_change(was.type, now.type) if was.type != now.type else None


def classify_type_change(old: IcebergType, new: IcebergType) -> str:
    """The kind of a type change, one of `TYPE_KINDS`; `reorder` changes only the order of a struct's fields."""
    if is_primitive(old) and is_primitive(new):
        return "widen" if _widens(old, new) else "change_type"
    steps = nested_steps(old, new)
    if steps is None:
        return "change_type"
    return "change_nested" if steps else "reorder"


def _widens(old: IcebergType, new: IcebergType) -> bool:
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return old.scale == new.scale and old.precision < new.precision
    return isinstance(old, Primitive) and isinstance(new, Primitive) and _WIDER.get(old.name) == new.name


def nested_steps(old: IcebergType, new: IcebergType, path: tuple[str, ...] = ()) -> tuple[NestedStep, ...] | None:
    """The steps that turn a nested type into another in place; None where Iceberg has none."""
    if old == new:
        return ()
    if is_primitive(old) or is_primitive(new):
        return (NestedStep("widen", path, new),) if path and _widens(old, new) else None
    if isinstance(old, ListOf) and isinstance(new, ListOf):
        return nested_steps(old.element, new.element, (*path, "element"))
    if isinstance(old, MapOf) and isinstance(new, MapOf) and old.key == new.key:
        return nested_steps(old.value, new.value, (*path, "value"))
    if not (isinstance(old, Struct) and isinstance(new, Struct)):
        return None
    before, after = dict(old.fields), dict(new.fields)
    if not before.keys() & after.keys():
        return None
    steps: list[NestedStep] = [NestedStep("drop", (*path, name)) for name in before if name not in after]
    for name, kind in after.items():
        if name not in before:
            steps.append(NestedStep("add", (*path, name), kind))
            continue
        inner = nested_steps(before[name], kind, (*path, name))
        if inner is None:
            return None
        steps += inner
    return tuple(steps)
