"""What a changed contract would show of that which is masked, or was by a version before. Pure, as `evolve_diff`.

Fields are compared by where they stand in the record. Where a change says otherwise how records are read, and maybe
what they are, that place may be called by another path: then what a path ends with counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sluice.contract.change_events import OP_SOURCE
from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.fields import rows_at
from sluice.contract.types import IcebergType, ListOf, MapOf, Struct
from sluice.contract.values import KEY_SOURCE, VALUE_SOURCE

Path = tuple[str, ...]
"""Names from the outside in, in small letters, as Spark compares them; of a place `$key` or `$value` is the first."""

_UNNAMED = re.compile(r"--|/\*|(^|[^\w\s)\]'\"`]|\b(all|distinct)\b)\s*\*|\bidentifier\s*\(")
"""What in an expression may read columns without their names: a `*` that multiplies nothing, comments, which may hide
one, and IDENTIFIER()."""


@dataclass(frozen=True)
class Masks:
    """What a contract hides.

    Attributes:
        contract: the contract.
        hidden: the fields that the table shows masked alone, each with a column that masks it.
        clear: the places that it shows.
        past: whether it is no longer in force.
    """

    contract: Contract
    hidden: Mapping[str, str]
    clear: frozenset[Path]
    past: bool = False

    @classmethod
    def of(cls, contract: Contract) -> Masks:
        """What that contract hides."""
        found = {field: c.name for c in contract.columns if c.mask for field in fields_read(contract, c)}
        in_clear = {c.source for c in contract.columns if c.source and not c.mask}
        hidden = {field: name for field, name in found.items() if field not in in_clear}
        return cls(contract, hidden, frozenset(p for source in in_clear for p in _places(contract, source)))

    def shown_by(self, held: Contract, new: Contract, was: Column | None, now: Column) -> str | None:
        """In words what of it a column of a new contract, without a mask, comes to read; None where nothing.

        Args:
            held: the contract in force.
            was: the column that it was in that one.
        """
        as_before = was if was and was.expression == now.expression else None
        before = self._read(held, as_before) if as_before else set()
        subject = f"column {now.name}" if was else f"adds column {now.name}, which"
        if read := self._read(new, now) - before:
            does = "comes to read" if was else "reads"
        elif read := self._maybe_read(held, new, as_before, now) - before:
            does = "may come to read, as records are read differently," if was else "may read"
        masks = "masked before" if self.past else "masks"
        told = ", and ".join(f"field {name} that column {self.hidden[name]} {masks}" for name in sorted(read))
        return f"{subject} {does} {told}" if read else None

    def _read(self, contract: Contract, column: Column) -> set[str]:
        """Those of the hidden fields that are read, by themselves or with what they lie in."""
        read = [p for source in fields_read(contract, column) for p in _places(contract, source)]
        return {f for f in self.hidden if any(_overlap(p, q) for p in _places(self.contract, f) for q in read)}

    def _maybe_read(self, held: Contract, new: Contract, was: Column | None, column: Column) -> set[str]:
        """Those that are read if a path begins otherwise than it did."""
        read_before = fields_read(held, was) if was else ()
        known = self.clear | {p for source in read_before for p in _places(held, source)}
        types = {c.source: c.type for c in (*new.columns, *new.inputs) if c.source}
        found = set[str]()
        for source in fields_read(new, column):
            side = KEY_SOURCE if _in_key(source) else VALUE_SOURCE
            if _reading(self.contract, side) == _reading(new, side) or _places(new, source) <= known:
                continue
            read = [(*p, *inner) for p in _inner_paths(new, source) for inner in _inside(types[source])]
            found |= {
                field
                for field in self.hidden
                if _in_key(field) == _in_key(source)
                and any(_ends_alike(p, q) for p in _inner_paths(self.contract, field) for q in read)
            }
        return found


def remembered(before: Iterable[Contract], held: Contract) -> list[Masks]:
    """What versions of a contract masked that the one in force does not, and that none showed after them.

    Args:
        before: the versions before the one in force, newest first.
    """
    now = Masks.of(held)
    shown, known = now.clear, {_place(held, field) for field in now.hidden}
    found = []
    for contract in before:
        masks = Masks.of(contract)
        mine = {}
        for field, column in masks.hidden.items():
            at = _place(contract, field)
            if at not in known and not all(any(p[: len(q)] == q for q in shown) for p in at):
                mine[field] = column
                known.add(at)
        shown |= masks.clear
        if mine:
            found.append(replace(masks, hidden=mine, clear=now.clear, past=True))
    return found


def _place(contract: Contract, field: str) -> frozenset[Path]:
    return frozenset(_places(contract, field))


def fields_read(contract: Contract, column: Column) -> set[str]:
    """The sources that a column reads; of an expression those of all names in its text, be they in a literal.

    Only Spark can tell what an expression reads, and there is none when contracts are compared: rather one too many.
    """
    if not column.expression:
        return {column.source}
    text = column.expression.lower()
    words, unnamed = set(re.findall(r"\w+", text)), _UNNAMED.search(text)
    read = [c for c in (*contract.columns, *contract.inputs) if c.source and not c.ends]
    return {c.source for c in read if unnamed or c.name.lower() in words}


def _in_key(source: str) -> bool:
    return source.split(".", maxsplit=1)[0] == KEY_SOURCE


def _reading(contract: Contract, side: str) -> object:
    """What says where a field stands in the record, but for its path."""
    if side == KEY_SOURCE:
        return contract.key.format
    cdc = contract.cdc
    return contract.value.format, set(contract.value.types), (cdc.format, cdc.op) if cdc else None


def _places(contract: Contract, source: str) -> set[Path]:
    """Where a source stands in the record: of a row of change events, after the change and before it."""
    first, *rest = source.lower().split(".")
    side = contract.key if first == KEY_SOURCE else contract.value
    payload = ("payload",) if side.format == "json_connect" else ()
    if first in (KEY_SOURCE, VALUE_SOURCE):
        return {(first, *payload, *rest)}
    if source == OP_SOURCE and contract.cdc and contract.cdc.op:
        return {(VALUE_SOURCE, *payload, *contract.cdc.op.lower().split("."))}
    if first.startswith("$"):
        return {(VALUE_SOURCE, *payload, first.removeprefix("$"), *rest)}
    return {(VALUE_SOURCE, *payload, *outer, first, *rest) for outer in rows_at(contract)}


def _inner_paths(contract: Contract, source: str) -> set[Path]:
    """The paths that a field may have wherever records are read from: as it is written, and from the whole value."""
    written = tuple(source.lower().removeprefix("$").split("."))
    own = {written[1:]} if source.split(".", maxsplit=1)[0] in (KEY_SOURCE, VALUE_SOURCE) else {written}
    return own | {place[1:] for place in _places(contract, source)}


def _inside(kind: IcebergType) -> Iterator[Path]:
    """The paths to what a value of that type holds."""
    if isinstance(kind, Struct):
        for name, inner in kind.fields:
            yield from ((name.lower(), *path) for path in _inside(inner))
    elif isinstance(kind, ListOf):
        yield from _inside(kind.element)
    elif isinstance(kind, MapOf):
        yield from _inside(kind.value)
    else:
        yield ()


def _overlap(one: Path, other: Path) -> bool:
    """Whether one is the other, or lies in it."""
    return one[: len(other)] == other[: len(one)]


def _ends_alike(one: Path, other: Path) -> bool:
    """Whether they overlap once a few names are taken from the beginning of one of them."""
    return any(_overlap(a[i:], b) for a, b in ((one, other), (other, one)) for i in range(len(a) or 1))
