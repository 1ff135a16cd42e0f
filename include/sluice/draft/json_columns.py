"""Columns for observed JSON objects.

An object within an object becomes a column for each of its fields (`customer.id` becomes `customer_id`), so that each
can be masked, filtered and partitioned by. Lists of objects become lists of structs, objects with ever new names maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sluice.contract.values import KEY_SOURCE, VALUE_SOURCE, join_names
from sluice.draft.json_types import infer_type, is_map
from sluice.draft.model import DraftColumn, DraftInput
from sluice.draft.naming import ColumnNames
from sluice.draft.observe import Field
from sluice.draft.personal import personal_evidence, words

MAX_COLUMNS = 500
MAX_LEVELS = 6
_TIME_WORDS = words("at created date epoch millis modified ms time timestamp ts updated when")
_EPOCHS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_FUNCTIONS = {
    "milliseconds": ("ms", "timestamp_millis({})"),
    "microseconds": ("us", "timestamp_micros({})"),
    "nanoseconds": ("ns", "timestamp_micros({} div 1000)"),
}
_FROM, _TO = 631_152_000, 4_102_444_800  # the years 1990 to 2100, in seconds


@dataclass
class JsonColumns:
    """The columns of a value, and what they need.

    Attributes:
        nested: Whether objects within objects become structs instead of columns.
        epochs: Whether whole numbers may be times; not where a schema says what they are.
        names: Gives each column a name of its own.
        inputs: The fields that expressions read.
        notes: What could not become a column.
    """

    nested: bool = False
    epochs: bool = True
    names: ColumnNames = field(default_factory=ColumnNames)
    inputs: list[DraftInput] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, seen: Field, records: int, skip: Iterable[str] = ()) -> list[DraftColumn]:
        """Return the columns of an object's fields.

        Args:
            seen: What the objects were.
            records: How many there were.
            skip: Outermost fields that become no column.
        """
        found: list[DraftColumn] = []
        leaves = list(self._leaves(seen, (), frozenset(skip)))
        for path, each in leaves[:MAX_COLUMNS]:
            found.append(self._column(path, each, records))
        if len(leaves) > MAX_COLUMNS:
            self.notes.append(f"{len(leaves) - MAX_COLUMNS} further fields are left out: a draft has {MAX_COLUMNS}")
        return found

    def _leaves(
        self, seen: Field, path: tuple[str, ...], skip: frozenset[str]
    ) -> Iterator[tuple[tuple[str, ...], Field]]:
        """Yield path and observations of each field that becomes a column."""
        known: dict[str, str] = {}
        for name, each in seen.fields.items():
            at = (*path, name)
            if name in skip:
                continue
            if why := _unreadable(at):
                self.notes.append(f"the field {join_names(at) if name else '(without a name)'} {why}")
            elif (first := known.setdefault(name.lower(), name)) != name:
                self.notes.append(f"the field {join_names(at)} is left out: it differs from {first} only by case")
            elif self._becomes_columns(each, at):
                yield from self._leaves(each, at, frozenset())
            else:
                yield at, each

    def _becomes_columns(self, seen: Field, path: tuple[str, ...]) -> bool:
        only_objects = {kind for kind, count in seen.kinds.items() if count} <= {"object", "null"}
        looked_into = bool(seen.fields) and not seen.too_deep and len(path) < MAX_LEVELS
        return not self.nested and only_objects and looked_into and not is_map(seen, seen.kinds["object"])

    def _column(self, path: tuple[str, ...], seen: Field, records: int) -> DraftColumn:
        # `$oid`, `$date` and the like are MongoDB's words for types.
        name = self.names.make("_".join(each for each in path if path[0] == each or not each.startswith("$")))
        source = join_names(path)
        kind, why = infer_type(seen, path[-1])
        missing = records - seen.values
        nulls = f"null or missing in {missing} of {records} records" if missing else f"never null in {records} records"
        always = not missing
        personal = personal_evidence("_".join(path), seen)
        if path[-1] == "$numberLong" and len(path) > 1 and seen.texts.keys() == {"integer"}:
            read = DraftInput(self.names.make(f"{name}_text"), "string", source)
            self.inputs.append(read)
            evidence = ("whole numbers of 64 bits, as MongoDB writes them", nulls)
            return DraftColumn(name, "long", "", f"CAST({read.name} AS BIGINT)", evidence=evidence, always=always)
        unit = epoch_unit(seen, path[-1]) if self.epochs else ""
        if unit == "seconds":
            return DraftColumn(name, "timestamptz", source, evidence=("seconds since 1970", nulls), always=always)
        if unit:
            suffix, function = _FUNCTIONS[unit]
            read = DraftInput(self.names.make(f"{name}_{suffix}"), "long", source)
            self.inputs.append(read)
            evidence = (f"whole numbers, by their size {unit} since 1970", nulls)
            expression = function.format(read.name)
            return DraftColumn(name, "timestamptz", "", expression, evidence=evidence, always=always)
        return DraftColumn(name, str(kind), source, evidence=(why, nulls), personal=personal, always=always)


def epoch_unit(seen: Field, name: str) -> str:
    """Return the unit of whole numbers that are times since 1970 by their name and size; empty if they are not."""
    kinds = {kind for kind, count in seen.kinds.items() if count and kind != "null"}
    if kinds != {"integer"} or not words(name) & _TIME_WORDS:
        return ""
    fits = (unit for unit, factor in _EPOCHS.items() if _FROM * factor <= seen.low and seen.high < _TO * factor)
    return next(fits, "")


def _unreadable(path: tuple[str, ...]) -> str:
    """Why no column can read a field; empty if one can."""
    name = path[-1]
    if not name or not name.isprintable() or name != name.strip():
        return "is left out: its name begins or ends with white space, or has characters that can't be printed"
    if len(path) == 1 and name in (KEY_SOURCE, VALUE_SOURCE):
        return "is left out: a field of that name can't be read"
    if len(name) > 1000:
        return "is left out: its name is too long"
    return ""
