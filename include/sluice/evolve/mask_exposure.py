"""Finds columns of a changed contract that would expose a field which is masked, or was in an earlier version. No I/O.

Fields are compared by their path in the record. Where a change affects how records are read, the same field may have
another path: then the ends of the paths are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sluice.contract.change_events import OP_SOURCE
from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.fields import fields_read, row_paths
from sluice.contract.types import IcebergType, ListOf, MapOf, Struct
from sluice.contract.values import KEY_SOURCE, VALUE_SOURCE, split_path

Path = tuple[str, ...]
"""Field names from the outside in, in lower case, as Spark compares them; a path in the record starts with `$key` or
`$value`."""


@dataclass(frozen=True)
class Masks:
    """The fields that a contract masks.

    Attributes:
        hidden: the fields that the table shows only masked, each with a column that masks it.
        clear: the paths that the table shows unmasked.
        past: whether the contract is an earlier version.
    """

    contract: Contract
    hidden: Mapping[str, str]
    clear: frozenset[Path]
    past: bool = False

    @classmethod
    def from_contract(cls, contract: Contract) -> Masks:
        """The masks of a contract."""
        found = {field: c.name for c in contract.columns if c.mask for field in fields_read(contract, c)}
        in_clear = {c.source for c in contract.columns if c.source and not c.mask}
        hidden = {field: name for field, name in found.items() if field not in in_clear}
        return cls(contract, hidden, frozenset(p for source in in_clear for p in _paths_in_record(contract, source)))

    def describe_exposure(self, active: Contract, new: Contract, was: Column | None, now: Column) -> str | None:
        """Describe which hidden fields an unmasked column of a new contract would read; None where none.

        Args:
            active: the active contract.
            new: the new contract.
            was: the column in the active contract; None where it is new.
            now: the column in the new contract.
        """
        as_before = was if was and was.expression == now.expression else None
        before = self._read(active, as_before) if as_before else set()
        subject = f"column {now.name}" if was else f"adds column {now.name}, which"
        if read := self._read(new, now) - before:
            does = "comes to read" if was else "reads"
        elif read := self._maybe_read(active, new, as_before, now) - before:
            does = "may come to read, as records are read differently," if was else "may read"
        masks = "masked before" if self.past else "masks"
        fields = ", and ".join(f"field {name} that column {self.hidden[name]} {masks}" for name in sorted(read))
        return f"{subject} {does} {fields}" if read else None

    def _read(self, contract: Contract, column: Column) -> set[str]:
        """The hidden fields that the column reads, directly or with a field that contains them."""
        read = [p for source in fields_read(contract, column) for p in _paths_in_record(contract, source)]
        return {f for f in self.hidden if any(_overlap(p, q) for p in _paths_in_record(self.contract, f) for q in read)}

    def _maybe_read(self, active: Contract, new: Contract, was: Column | None, column: Column) -> set[str]:
        """The hidden fields that the column reads if paths now start at another place of the record."""
        read_before = fields_read(active, was) if was else ()
        known = self.clear | {p for source in read_before for p in _paths_in_record(active, source)}
        types = {c.source: c.type for c in (*new.columns, *new.inputs) if c.source}
        found = set[str]()
        for source in fields_read(new, column):
            side = KEY_SOURCE if _in_key(source) else VALUE_SOURCE
            if (
                _side_settings(self.contract, side) == _side_settings(new, side)
                or _paths_in_record(new, source) <= known
            ):
                continue
            read = [(*p, *inner) for p in _inner_paths(new, source) for inner in _leaf_paths(types[source])]
            found |= {
                field
                for field in self.hidden
                if _in_key(field) == _in_key(source)
                and any(_suffixes_overlap(p, q) for p in _inner_paths(self.contract, field) for q in read)
            }
        return found


def find_past_masks(before: Iterable[Contract], active: Contract) -> list[Masks]:
    """What earlier versions masked, the active contract does not mask, and no version in between showed.

    Args:
        before: the versions before the active one, newest first.
        active: the active contract.
    """
    now = Masks.from_contract(active)
    shown, known = now.clear, {_record_paths(active, field) for field in now.hidden}
    found = []
    for contract in before:
        masks = Masks.from_contract(contract)
        mine = {}
        for field, column in masks.hidden.items():
            at = _record_paths(contract, field)
            if at not in known and not all(any(p[: len(q)] == q for q in shown) for p in at):
                mine[field] = column
                known.add(at)
        shown |= masks.clear
        if mine:
            found.append(replace(masks, hidden=mine, clear=now.clear, past=True))
    return found


def _record_paths(contract: Contract, field: str) -> frozenset[Path]:
    return frozenset(_paths_in_record(contract, field))


def _in_key(source: str) -> bool:
    return split_path(source)[0] == KEY_SOURCE


def _side_settings(contract: Contract, side: str) -> object:
    """The settings that decide, together with its path, where a field is in the record."""
    if side == KEY_SOURCE:
        return contract.key.format
    cdc = contract.cdc
    return contract.value.format, set(contract.value.types), (cdc.format, cdc.op) if cdc else None


def _paths_in_record(contract: Contract, source: str) -> set[Path]:
    """The paths of a source in the record: in a change event, in the row after the change and in the one before it."""
    first, *rest = split_path(source.lower())
    side = contract.key if first == KEY_SOURCE else contract.value
    payload = ("payload",) if side.format == "json_connect" else ()
    if first in (KEY_SOURCE, VALUE_SOURCE):
        return {(first, *payload, *rest)}
    if source == OP_SOURCE and contract.cdc and contract.cdc.op:
        return {(VALUE_SOURCE, *payload, *split_path(contract.cdc.op.lower()))}
    if source.startswith("$"):
        return {(VALUE_SOURCE, *payload, first.removeprefix("$"), *rest)}
    return {(VALUE_SOURCE, *payload, *outer, first, *rest) for outer in row_paths(contract)}


def _inner_paths(contract: Contract, source: str) -> set[Path]:
    """The paths that a field may have: as the contract writes it, and from the root of the value."""
    written = split_path(source.lower().removeprefix("$"))
    own = {written[1:]} if split_path(source)[0] in (KEY_SOURCE, VALUE_SOURCE) else {written}
    return own | {place[1:] for place in _paths_in_record(contract, source)}


def _leaf_paths(kind: IcebergType) -> Iterator[Path]:
    """The paths of the leaf fields of a type."""
    if isinstance(kind, Struct):
        for name, inner in kind.fields:
            yield from ((name.lower(), *path) for path in _leaf_paths(inner))
    elif isinstance(kind, ListOf):
        yield from _leaf_paths(kind.element)
    elif isinstance(kind, MapOf):
        yield from _leaf_paths(kind.value)
    else:
        yield ()


def _overlap(one: Path, other: Path) -> bool:
    """Whether the paths are equal, or one contains the other."""
    return one[: len(other)] == other[: len(one)]


def _suffixes_overlap(one: Path, other: Path) -> bool:
    """Whether the paths overlap when leading names of one of them are left out."""
    return any(_overlap(a[i:], b) for a, b in ((one, other), (other, one)) for i in range(len(a) or 1))
