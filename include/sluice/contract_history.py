"""What a contract says of a history: every version of a row, each with the time from which and to which it was valid.

Dimensional modelling calls it a slowly changing dimension of type 2. Light, as all of the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.contract_fields import KAFKA_COLUMNS, Flaws
from sluice.iceberg_types import IcebergType, Primitive, is_primitive

if TYPE_CHECKING:
    from sluice.contract import Contract

VALID_TO_SOURCE = "$valid_to"
"""Source of the column that holds when a version ended: where the next of its key begins; null while there is none."""

KAFKA_TIMESTAMP = KAFKA_COLUMNS[3]


def check_history(contract: Contract, flaws: Flaws) -> None:
    """Note in `flaws` what contradicts itself in mode history, and what is asked for outside of it."""
    ends = [i for i, c in enumerate(contract.columns) if c.ends]
    for index, each in enumerate(contract.inputs):
        if each.ends:
            flaws.add("inputs", index, "source", message=f"{VALID_TO_SOURCE} is no field of a record: it is a column")
    if contract.mode != "history":
        for index in ends:
            flaws.add("columns", index, "source", message=f"{VALID_TO_SOURCE} is for mode history")
        if contract.valid_from != KAFKA_TIMESTAMP:
            flaws.add("valid_from", message="is for mode history; leave it out")
        return
    kind = _begins(contract, flaws)
    if not ends:
        wanted = f"of type {kind}" if kind else "of the type of valid_from"
        flaws.add("columns", message=f"mode history needs a column with source: '{VALID_TO_SOURCE}', {wanted}")
    _check_ends(contract, ends, kind, flaws)
    if contract.deletes not in ("soft", "ignore"):
        message = (
            f"mode history removes nothing, so it can't be {contract.deletes}: soft keeps each delete as a version "
            "(of change events), ignore passes them over"
        )
        flaws.add("deletes", message=message)


def _begins(contract: Contract, flaws: Flaws) -> IcebergType | None:
    """The type of `valid_from`; None where it is not known, or wrong."""
    name = contract.valid_from
    if name == KAFKA_TIMESTAMP:
        return Primitive("timestamptz")
    column = next((c for c in contract.columns if c.name == name), None)
    if column is None:
        if not contract.auto:  # else the registry may know it
            flaws.add("valid_from", message=f"there is no column {name!r}; {KAFKA_TIMESTAMP} is there always")
        return None
    if column.ends or not is_primitive(column.type) or column.mask:
        flaws.add("valid_from", message=f"{name!r} does not say when a version begins")
    elif not column.required:
        flaws.add("valid_from", message=f"{name!r} must be required: a version without it has no beginning")
    else:
        return column.type
    return None


def _check_ends(contract: Contract, ends: Sequence[int], kind: IcebergType | None, flaws: Flaws) -> None:
    for index in ends[1:]:
        flaws.add("columns", index, "source", message=f"{VALID_TO_SOURCE} stands twice")
    for index in ends[:1]:
        column = contract.columns[index]
        if kind and column.type != kind:
            message = f"ends where the next version begins, so it needs the type of {contract.valid_from}: {kind}"
            flaws.add("columns", index, "type", message=message)
        if column.required:
            flaws.add("columns", index, "required", message="can't be required: the version that is valid has no end")
        if column.mask:
            flaws.add("columns", index, "mask", message="hides what a record holds, and this is in none")
        for part in ("identifier", "order"):
            if column.name in getattr(contract, part):
                flaws.add(part, message=f"{column.name!r} changes when the next version comes, so it can't stand here")
