"""What changed between two contracts of one table: kinds, and words. Pure: no catalog, no PyIceberg, no JVM.

The contract that is in force is the one that the table was last changed to (`iceberg.active_contract`). A change of its
*shape* (columns, key, partitions, and how records are read) goes by the policy of its kind; what only says how the
table is run (`OPERATIONAL`) holds at once.
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
from sluice.evolve.unmasked import Masks, remembered

READ = "read"
"""The kind of a change that alters no table, only how records are read: always in force at once."""

TYPE_KINDS = ("widen", "change_type", "change_nested", "reorder")
_WIDER = {"int": "long", "float": "double"}
READING = frozenset(Column.model_fields) - {"name", "type", "required", "doc", "renamed_from"}
"""Fields of a column that say how it is read."""

_PLACED = "rows that are there keep theirs, and new ones are compared with these"
_SECOND = "rows that are there keep theirs, and one whose key comes out otherwise gets a second row"


@dataclass(frozen=True)
class Change:
    """One change. `column` is its name in the new contract, of a dropped one its old name; empty: the table's.

    A `change_key` with a column alters no table, only how that column is read, of the key or of what orders versions.
    """

    kind: str
    words: str
    column: str = ""


@dataclass(frozen=True)
class Step:
    """A change inside a nested column: `add` or `widen` to `type`, or `drop`, at a path as PyIceberg names it."""

    what: str
    path: tuple[str, ...]
    type: IcebergType | None = None


def compare(old: Contract, new: Contract, before: Sequence[Contract] = ()) -> tuple[Change, ...]:
    """What changed, column by column, then the table as a whole.

    Args:
        before: the versions before the old one, newest first: what they masked is not shown unasked either.
    """
    known = shape.origins(old, new)
    keys = {*new.identifier, *(name for name, c in known.items() if c.name in old.identifier)}
    places = {*_placing(new), *(name for name, c in known.items() if c.name in _placing(old))}
    masks = [Masks.of(old), *remembered(before, old)]
    found: list[Change] = []
    for column in new.columns:
        was = known.get(column.name)
        found += (
            _added(column)
            if was is None
            else _altered(was, column, key=column.name in keys, place=column.name in places)
        )
        masked = column.mask or (was and was.mask)  # where its own mask goes, that is told
        shown = [words for each in masks if not masked and (words := each.shown_by(old, new, was, column))]
        if shown:
            found.append(Change("change_mask", "; ".join(shown), column.name))
    kept = {c.name for c in known.values()}
    found += [
        Change("drop_column", f"drops column {c.name} ({c.type})", c.name) for c in old.columns if c.name not in kept
    ]
    found += _whole(old, new, known)
    return tuple(found)


def _added(column: Column) -> Iterator[Change]:
    yield Change("add_column", f"adds column {column.name} ({column.type})", column.name)
    if column.required:
        why = "records without it are rejected, and rows that are there have none"
        yield Change("make_required", f"new column {column.name} is required: {why}", column.name)


def _placing(contract: Contract) -> set[str | None]:
    """The columns that say which of two versions of a key is the later one."""
    return {*contract.order, contract.valid_from}


def _altered(was: Column, now: Column, *, key: bool, place: bool) -> Iterator[Change]:
    if was.name != now.name:
        yield Change("rename_column", f"renames column {was.name} to {now.name}", now.name)
    if was.type != now.type:
        kind = type_change(was.type, now.type)
        does = {"widen": "widens", "change_nested": "changes inside", "reorder": "orders the fields of"}.get(
            kind, "changes the type of"
        )
        yield Change(kind, f"{does} column {now.name}: {was.type} to {now.type}", now.name)
    if was.required != now.required and not key:  # of a key, the change of the key says it
        if now.required:
            yield Change("make_required", f"column {now.name} may no longer be null", now.name)
        else:
            yield Change("make_optional", f"column {now.name} may be null", now.name)
    if was.doc != now.doc:
        yield Change("document", f"comments column {now.name} differently", now.name)
    differing = dict.fromkeys(name for name, _ in sorted(_reading(was) ^ _reading(now)))
    if was.mask and "mask" in differing and not key:
        del differing["mask"]
        shown = f"{was.mask} to {now.mask}" if now.mask else f"{was.mask} is gone, and its values can be read"
        yield Change("change_mask", f"masks column {now.name} differently: {shown}", now.name)
    elif now.mask and "mask" in differing and not key:
        del differing["mask"]
        stay = "rows that are there stay as they are, and so do raw records in quarantine"
        yield Change(READ, f"masks column {now.name} ({now.mask}) from now on: {stay}", now.name)
    if differing:
        names = ", ".join(differing)
        if key:
            yield Change("change_key", f"reads the key {now.name} differently ({names}): {_SECOND}", now.name)
        elif place:
            what = f"reads {now.name}, which orders the versions of a key, differently ({names})"
            yield Change("change_key", f"{what}: {_PLACED}", now.name)
        else:
            yield Change(READ, f"reads column {now.name} differently ({names})", now.name)


def _reading(column: Column) -> set[tuple[str, str]]:
    body = column.model_dump(mode="json", include=set(READING))
    return {(name, json.dumps(value, sort_keys=True)) for name, value in body.items()}


def _whole(old: Contract, new: Contract, known: dict[str, Column]) -> Iterator[Change]:
    before = [c.name for c in old.columns]
    order = [before.index(known[c.name].name) for c in new.columns if c.name in known]
    if order != sorted(order):
        yield Change("reorder", "orders the columns differently")
    now_called = {c.name: name for name, c in known.items()}
    identifier = {now_called.get(name, name) for name in old.identifier}
    times = [now_called.get(name or "", name) for name in (old.valid_from, old.valid_to)]
    if (old.mode, identifier, *times) != (new.mode, set(new.identifier), new.valid_from, new.valid_to):
        was, now = (_key(c) for c in (old, new))
        yield Change("change_key", f"changes the key: {was} to {now}")
    fields = [PartitionField(now_called.get(f.column, f.column), f.transform, f.argument) for f in old.partitioning]
    if fields != list(new.partitioning):
        was, now = (", ".join(c.partition_by) or "none" for c in (old, new))
        yield Change("change_partitioning", f"changes the partitions: {was} to {now}, for what is written from then on")
    a, b = ({k: v for k, v in shape.shape(c).items() if k not in _ELSEWHERE} for c in (old, new))
    changed = {k for k in a.keys() | b.keys() if a.get(k) != b.get(k) and not _renamed(k, a, b, now_called)}
    if "key" in changed and (read := [n for n in new.identifier if n in known and new.column(n).from_key]):
        changed.remove("key")
        yield Change("change_key", f"reads the key {read[0]} differently (key): {_SECOND}", read[0])
    if changed:
        yield Change(READ, f"reads records differently ({', '.join(sorted(changed))})")


_ELSEWHERE = {"columns", "mode", "identifier", "partition_by", "valid_from"}


def _key(contract: Contract) -> str:
    times = f", valid from {contract.valid_from} to {contract.valid_to}" if contract.valid_to else ""
    return f"{contract.mode} by {', '.join(contract.identifier) or 'no key'}{times}"


def _renamed(name: str, a: dict[str, Any], b: dict[str, Any], now_called: dict[str, str]) -> bool:
    """Whether a list of columns differs only by their new names."""
    return name == "order" and [now_called.get(c, c) for c in a.get(name, ())] == b.get(name, [])


def type_change(old: IcebergType, new: IcebergType) -> str:
    """The kind of a change from one type to another: one of `TYPE_KINDS`; `reorder` is of a struct's fields alone."""
    if is_primitive(old) and is_primitive(new):
        return "widen" if _widens(old, new) else "change_type"
    steps = nested(old, new)
    if steps is None:
        return "change_type"
    return "change_nested" if steps else "reorder"


def _widens(old: IcebergType, new: IcebergType) -> bool:
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return old.scale == new.scale and old.precision < new.precision
    return isinstance(old, Primitive) and isinstance(new, Primitive) and _WIDER.get(old.name) == new.name


def nested(old: IcebergType, new: IcebergType, path: tuple[str, ...] = ()) -> tuple[Step, ...] | None:
    """The steps that turn a nested type into another in place; None where Iceberg can't."""
    if old == new:
        return ()
    if is_primitive(old) or is_primitive(new):
        return (Step("widen", path, new),) if path and _widens(old, new) else None
    if isinstance(old, ListOf) and isinstance(new, ListOf):
        return nested(old.element, new.element, (*path, "element"))
    if isinstance(old, MapOf) and isinstance(new, MapOf) and old.key == new.key:
        return nested(old.value, new.value, (*path, "value"))
    if not (isinstance(old, Struct) and isinstance(new, Struct)):
        return None
    before, after = dict(old.fields), dict(new.fields)
    if not before.keys() & after.keys():
        return None
    steps: list[Step] = [Step("drop", (*path, name)) for name in before if name not in after]
    for name, kind in after.items():
        if name not in before:
            steps.append(Step("add", (*path, name), kind))
            continue
        inner = nested(before[name], kind, (*path, name))
        if inner is None:
            return None
        steps += inner
    return tuple(steps)
