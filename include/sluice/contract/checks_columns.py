"""TODO docstring of sluice.contract.checks_columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.contract import columns
from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE, Cdc
from sluice.contract.columns import KAFKA_TIMESTAMP, OBJECTS, PLAIN, REGISTERED, VALID_TO_SOURCE, WHOLE_NUMBERS
from sluice.contract.types import IcebergType, Primitive, is_primitive
from sluice.contract.values import KEY_SOURCE, VALUE_SOURCE, Flaws

if TYPE_CHECKING:
    from sluice.contract.columns import Input
    from sluice.contract.fields import ContractFields


def check_cdc(contract: ContractFields, flaws: Flaws) -> None:
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


def check_auto(contract: ContractFields, flaws: Flaws) -> None:
    """Note in `flaws` what `auto` can't go with."""
    auto = contract.auto
    if auto is None:
        if not contract.columns:
            flaws.add("columns", message="must not be empty")
        return
    if contract.value.format not in REGISTERED:
        formats = ", ".join(REGISTERED)
        flaws.add("columns", message=f"auto needs a schema registry's format ({formats}), not {contract.value.format}")
    if contract.cdc and contract.cdc.format == "debezium":
        message = "auto takes the value's own fields, which are those of the envelope here: list the columns"
        flaws.add("columns", message=message)
    if auto.subject is None and (contract.mixed or contract.value.types):
        flaws.add("auto", message="with several topics, or types, name the subject: - auto: {subject: …}")


def check_columns(contract: ContractFields, flaws: Flaws) -> None:
    """Note in `flaws` what contradicts itself in inputs, expressions and masks."""
    taken = {column.name.lower() for column in contract.columns}
    for index, each in enumerate(contract.inputs):
        if each.name.lower() in taken:
            flaws.add("inputs", index, "name", message=f"{each.name!r} stands twice among columns and inputs")
        taken.add(each.name.lower())
    for index, column in enumerate(contract.columns):
        at = ("columns", index)
        if column.expression and column.source:
            flaws.add(*at, "expression", message="a column has a source or an expression, not both: name an input")
        if column.mask and column.type != Primitive("string"):
            flaws.add(*at, "mask", message=f"hides text: read the field as string, not {column.type}, or leave it out")
        if column.mask == "redact" and column.name in contract.identifier:
            flaws.add(*at, "mask", message="redact makes all keys the same: use sha256")
        if column.mask and column.name in contract.order:
            flaws.add(*at, "mask", message="what is masked has no order any more")
    if contract.where and contract.deletes == "soft":
        message = "does not go with deletes: soft: a delete may lack the fields that it asks for"
        flaws.add("where", message=message)
    if contract.inputs and not contract.computes:
        flaws.add("inputs", message="are read for expressions and where alone, and there are none")


def check_whole(column: Input, side: str, form: str, flaws: Flaws, at: tuple[str | int, ...]) -> None:
    """Whether a key or value of that format has what the column is to hold of it."""
    whole = column.source in (KEY_SOURCE, VALUE_SOURCE)
    if whole and form in OBJECTS:
        flaws.add(*at, "source", message=f"a {side} of format {form} is an object: name a field of it")
    elif not whole and form in (*PLAIN, *WHOLE_NUMBERS):
        source = KEY_SOURCE if side == "key" else VALUE_SOURCE
        flaws.add(*at, "source", message=f"a {side} of format {form} has no fields: use source: {source}")
    elif whole and not columns.key_holds(column.type, form):
        takes = {"bytes": "binary or fixed[n]", "string": "a primitive type other than binary"}.get(
            form, " or ".join(WHOLE_NUMBERS.get(form, ()))
        )
        flaws.add(*at, "type", message=f"a {side} of format {form} needs {takes}, not {column.type}")


def check_history(contract: ContractFields, flaws: Flaws) -> None:
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


def _begins(contract: ContractFields, flaws: Flaws) -> IcebergType | None:
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


def _check_ends(contract: ContractFields, ends: Sequence[int], kind: IcebergType | None, flaws: Flaws) -> None:
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
