"""`cdc:` of a contract: the envelope of change events, their operations, and what tombstones do.

`formats.change_events` decodes events by these settings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sluice.contract.values import ListField, Source, StrictModel, split_path

DELETED_SOURCE, OP_SOURCE = "$deleted", "$op"
"""Sources of columns that hold whether or when the row was deleted, and the operation as the source wrote it."""

_Values = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], ListField, Field(min_length=1)]


class Operations(StrictModel):
    """The values of the operation's field, in any case. A record with another value is an error.

    Attributes:
        upsert: Values that write the row.
        delete: Values that delete it.
    """

    upsert: _Values = ("c", "r", "u", "i", "create", "insert", "read", "update", "upsert")
    delete: _Values = ("d", "delete")


class Cdc(StrictModel):
    """How change events are read.

    Attributes:
        format: `debezium` is Debezium's envelope, `debezium_mongodb` that of its connector for MongoDB,
            `debezium_unwrapped` what `ExtractNewRecordState` leaves of it, `op_field` a flat record with a field for
            the operation.
        op: For `op_field`: the field that names the operation, `a.b` for a nested one.
        ops: For `op_field`: what the field's values mean, ignoring case.
        tombstones: Whether a record without a value deletes the row of its key. Default: `ignore` with an envelope and
            in mode append, else `delete`.
    """

    format: Literal["debezium", "debezium_mongodb", "debezium_unwrapped", "op_field"]
    op: Source | None = None
    ops: Operations | None = None
    tombstones: Literal["delete", "ignore"] | None = None

    @property
    def tombstones_delete(self) -> bool:
        """Whether a record without a value deletes a row."""
        return (self.tombstones or ("ignore" if self.has_envelope else "delete")) == "delete"

    @property
    def has_envelope(self) -> bool:
        """Whether the row is in the envelope's `after` or `before`."""
        return self.format in ("debezium", "debezium_mongodb")

    @property
    def op_path(self) -> tuple[str, ...]:
        """Path of the operation in the value; Debezium's unwrap adds it only if configured to."""
        if self.has_envelope:
            return ("op",)
        return ("__op",) if self.format == "debezium_unwrapped" else split_path(self.op or "")
