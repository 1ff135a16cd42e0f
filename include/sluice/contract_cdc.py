"""What a contract says of change events: which envelope they come in, what their operations mean, where the order is.

`sluice.cdc` reads them by it. Light, as all of the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from sluice.contract_fields import KEY_SOURCE, VALUE_SOURCE, Flaws, ListField, Source, Strict

if TYPE_CHECKING:
    from sluice.contract import Contract, Input

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


def rows_at(contract: Contract) -> tuple[tuple[str, ...], ...]:
    """Where in the value a row's fields may stand."""
    return (("after",), ("before",)) if contract.cdc and contract.cdc.format == "debezium" else ((),)


def check_cdc(contract: Contract, flaws: Flaws) -> None:
    """Note in `flaws` what contradicts itself in what the contract says of change events."""
    cdc = contract.cdc
    for index, column in enumerate([*contract.columns, *contract.inputs]):
        at = ("columns", index) if index < len(contract.columns) else ("inputs", index - len(contract.columns))
        if column.special:
            _check_special(column, cdc, (*at, "source"), flaws)
    soft = [c for c in contract.columns if c.source == DELETED_SOURCE]
    if contract.deletes in ("hard", "soft") and cdc is None:
        flaws.add("deletes", message=f"{contract.deletes} is for change events: add cdc:, or use tombstone or ignore")
    elif contract.deletes == "soft" and not soft:
        message = f"soft needs a column with source: '{DELETED_SOURCE}', of type boolean or timestamptz"
        flaws.add("deletes", message=message)
    if cdc is None:
        return
    if contract.deletes == "tombstone" and "deletes" in contract.model_fields_set:
        message = "with cdc:, deletes are hard, soft or ignore; what tombstones do is said by cdc.tombstones"
        flaws.add("deletes", message=message)
    if contract.deletes == "soft" and cdc.tombstones_delete:
        message = "must be ignore with deletes: soft: a tombstone has no row that could be kept"
        flaws.add("cdc", "tombstones", message=message)
    if (cdc.format == "op_field") != (cdc.op is not None):
        does = "needs op: the field that names the operation" if cdc.op is None else "knows its operations by itself"
        flaws.add("cdc", "op", message=f"format {cdc.format} {does}")
    elif cdc.op is not None and cdc.op.startswith("$"):
        flaws.add("cdc", "op", message="must be a field of the value")
    if cdc.ops and cdc.format != "op_field":
        flaws.add("cdc", "ops", message=f"format {cdc.format} knows its operations by itself")
    if cdc.ops and (both := {w.lower() for w in cdc.ops.upsert} & {w.lower() for w in cdc.ops.delete}):
        flaws.add("cdc", "ops", message=f"{sorted(both)[0]!r} cannot mean both")


def _check_special(column: Input, cdc: Cdc | None, at: tuple[str | int, ...], flaws: Flaws) -> None:
    name, *rest = column.source.split(".")
    takes: tuple[str, ...] = ()
    if cdc is None:
        known = (
            f"those with a $ are '{KEY_SOURCE}', '{KEY_SOURCE}.field', '{VALUE_SOURCE}' (did you mean '{KEY_SOURCE}'?)"
        )
        known += "; others need cdc:"
        flaws.add(*at, message=f"{column.source!r} is no source: {known}")
    elif name == DELETED_SOURCE:
        takes = ("boolean", "timestamptz")
    elif name == OP_SOURCE:
        takes = ("string",)
    elif cdc.format != "debezium":
        flaws.add(*at, message=f"{column.source!r} is in Debezium's envelope alone; name the field of the value")
    elif name in ("$before", "$after", "$payload", "$schema"):
        flaws.add(*at, message=f"{column.source!r} is read by the names of its fields, without a $")
    if takes and rest:
        flaws.add(*at, message=f"{name!r} has no fields")
    elif takes and str(column.type) not in takes:
        flaws.add(*at[:-1], "type", message=f"{name!r} needs {' or '.join(takes)}, not {column.type}")
