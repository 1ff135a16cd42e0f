"""The draft of a contract: its proposals, each with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contract.values import KEY_SOURCE


@dataclass(frozen=True)
class DraftColumn:
    """One proposed column.

    Attributes:
        name: Its name.
        type: Its type, as the contract has it.
        source: Where its values come from; empty if that is the field of its name.
        unit: The unit of a number that counts time, by its schema; None for others.
        expression: The expression that computes it, instead of a source.
        required: Whether null is an error.
        evidence: What the proposal rests on.
        personal: Why it may hold personal data; empty if nothing suggests that.
        always: Whether each record of the sample has a value.
    """

    name: str
    type: str
    source: str = ""
    expression: str = ""
    required: bool = False
    evidence: tuple[str, ...] = ()
    personal: str = ""
    always: bool = False
    unit: str | None = None

    @property
    def from_key(self) -> bool:
        """Whether it is read from the record's key."""
        return self.source.startswith(KEY_SOURCE)

    def entry(self) -> dict[str, Any]:
        """The column as the contract has it."""
        found: dict[str, Any] = {"name": self.name, "type": self.type}
        if self.expression:
            found["expression"] = self.expression
        elif self.source and self.source != self.name:
            found["source"] = self.source
        if self.unit:
            found["unit"] = self.unit
        return {**found, "required": True} if self.required else found

    def with_evidence(self, *more: str) -> DraftColumn:
        """The column with more evidence."""
        return replace(self, evidence=(*self.evidence, *more))


@dataclass(frozen=True)
class DraftInput:
    """A field that an expression needs."""

    name: str
    type: str
    source: str

    def entry(self) -> dict[str, str]:
        """The input as the contract has it."""
        return {"name": self.name, "type": self.type, "source": self.source}


@dataclass(frozen=True)
class KeyDraft:
    """What the records' keys are.

    Attributes:
        format: Their format; None if no record has a key.
        fields: Name, type and source of what identifies a row; the name is empty for a key without fields.
        evidence: What that rests on.
        complete: Whether each record has a key, and each field a value.
        steady: Whether each key has all fields; a few records may have no key, as an event that truncates has none.
    """

    format: str | None = None
    fields: tuple[DraftColumn, ...] = ()
    evidence: str = "no record of the sample has a key"
    complete: bool = False
    steady: bool = False


@dataclass(frozen=True)
class ValueDraft:
    """What the records' values are.

    Attributes:
        format: Their format.
        columns: The columns.
        inputs: The fields that expressions read.
        evidence: What the format rests on.
        cdc: The format of change events, if they are some.
        notes: What else the author should know, a line each.
        follows_schema: Whether `columns: auto` would make the same columns.
    """

    format: str
    columns: tuple[DraftColumn, ...]
    inputs: tuple[DraftInput, ...] = ()
    evidence: str = ""
    cdc: str = ""
    notes: tuple[str, ...] = ()
    follows_schema: bool = False


class Lines(tuple[tuple[dict[str, Any], str], ...]):
    """A setting's entries, each with its evidence, that are written on lines of their own."""


@dataclass(frozen=True)
class Proposal:
    """A setting with its evidence.

    Attributes:
        value: As the contract has it.
        evidence: What it rests on.
    """

    value: Any
    evidence: str = ""


@dataclass(frozen=True)
class Draft:
    """A contract to be written.

    Attributes:
        head: Comments at the top.
        settings: Fields of the contract before the columns, in order.
        columns: The columns.
        inputs: The inputs.
        closing: Fields of the contract after the columns, in order.
        options: Fields that are written as comments, with their evidence.
        notes: Comments at the end.
    """

    head: tuple[str, ...]
    settings: dict[str, Proposal]
    columns: tuple[DraftColumn, ...]
    inputs: tuple[DraftInput, ...] = ()
    closing: dict[str, Proposal] = field(default_factory=dict)
    options: tuple[tuple[dict[str, Any], str], ...] = ()
    notes: tuple[str, ...] = ()
