"""What a contract says of change events: which envelope they come in, what their operations mean, where the order is.

`sluice.formats.change_events` reads them by it. Light, as all of the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from sluice.contract.values import ListField, Source, Strict

if TYPE_CHECKING:
    pass

DELETED_SOURCE, OP_SOURCE = "$deleted", "$op"
"""Sources of columns that hold whether, or when, the row was deleted, and the operation as its source wrote it."""

_Words = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], ListField, Field(min_length=1)]


class Operations(Strict):
    """Which values of the operation's field mean what, whatever their case. Any other is an error of its record."""

    upsert: _Words = ("c", "r", "u", "i", "create", "insert", "read", "update", "upsert")
    delete: _Words = ("d", "delete")


class Cdc(Strict):
    """How change events are read.

    Attributes:
        format: `debezium` is the whole envelope (before, after, source, op); `debezium_unwrapped` what
            ExtractNewRecordState leaves of it; `op_field` a flat record with a field that names the operation.
        op: That field, for `op_field`: a name, or a dotted path. It may not be left out there.
        ops: What its values mean, for `op_field`.
        tombstones: What a record without a value does: `delete` by its key, or `ignore`, where an event before it
            has done the work. Default: ignore for `debezium` and in mode append, delete for the others.
    """

    format: Literal["debezium", "debezium_unwrapped", "op_field"]
    op: Source | None = None
    ops: Operations | None = None
    tombstones: Literal["delete", "ignore"] | None = None

    @property
    def tombstones_delete(self) -> bool:
        """Whether a record without a value deletes."""
        return (self.tombstones or ("ignore" if self.format == "debezium" else "delete")) == "delete"

    @property
    def op_path(self) -> tuple[str, ...]:
        """Where in the value the operation stands, if it does: after Debezium's unwrap only where it is asked to."""
        return tuple({"debezium": "op", "debezium_unwrapped": "__op"}.get(self.format, self.op or "").split("."))
