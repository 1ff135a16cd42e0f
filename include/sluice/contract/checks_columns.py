"""Checks of a contract's columns: change events, `auto`, expressions, masks, and mode history.

Called by `contract.checks`; each check adds all errors it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.contract import columns
from sluice.contract.change_events import DELETED_SOURCE, OP_SOURCE, Cdc
from sluice.contract.columns import (
    INTEGER_FORMATS,
    KAFKA_TIMESTAMP,
    OBJECT_FORMATS,
    REGISTRY_FORMATS,
    TEXT_AND_BYTES,
    UNIT_FORMATS,
    VALID_TO_SOURCE,
)
from sluice.contract.suggestions import did_you_mean
from sluice.contract.types import IcebergType, Primitive, is_primitive
from sluice.contract.values import KEY_SOURCE, VALUE_SOURCE, FieldErrors, split_path

if TYPE_CHECKING:
    from sluice.contract.columns import Input
    from sluice.contract.fields import ContractFields


def check_cdc(contract: ContractFields, errors: FieldErrors) -> None:
    """Add to `errors` what is wrong with `cdc` and `deletes`."""
    cdc = contract.cdc
    for index, column in enumerate([*contract.columns, *contract.inputs]):
        at = ("columns", index) if index < len(contract.columns) else ("inputs", index - len(contract.columns))
        if column.from_envelope:
            _check_special(column, cdc, (*at, "source"), errors)
    soft = [c for c in contract.columns if c.source == DELETED_SOURCE]
    if contract.deletes in ("hard", "soft") and cdc is None:
        errors.add("deletes", message=f"{contract.deletes} needs change events: add cdc:, or use tombstone or ignore")
    elif contract.deletes == "soft" and not soft:
        message = f"soft needs a column with source: '{DELETED_SOURCE}', of type boolean or timestamptz"
        errors.add("deletes", message=message)
    if cdc is None:
        return
    if contract.deletes == "tombstone" and "deletes" in contract.model_fields_set:
        message = "with cdc:, use hard, soft or ignore; cdc.tombstones says what tombstones do"
        errors.add("deletes", message=message)
    if contract.deletes == "soft" and cdc.tombstones_delete:
        message = "must be ignore with deletes: soft: a tombstone has no row to keep"
        errors.add("cdc", "tombstones", message=message)
    if (cdc.format == "op_field") != (cdc.op is not None):
        problem = "needs op: the field that names the operation" if cdc.op is None else "has fixed operations"
        errors.add("cdc", "op", message=f"format {cdc.format} {problem}")
    elif cdc.op is not None and cdc.op.startswith("$"):
        errors.add("cdc", "op", message="must be a field of the value")
    if cdc.ops and cdc.format != "op_field":
        errors.add("cdc", "ops", message=f"format {cdc.format} has fixed operations")
    if cdc.ops and (both := {w.lower() for w in cdc.ops.upsert} & {w.lower() for w in cdc.ops.delete}):
        errors.add("cdc", "ops", message=f"{sorted(both)[0]!r} cannot mean both upsert and delete")


def _check_special(column: Input, cdc: Cdc | None, at: tuple[str | int, ...], errors: FieldErrors) -> None:
    name, *rest = split_path(column.source)
    takes: tuple[str, ...] = ()
    if cdc is None:
        known = f"with a $ there are '{KEY_SOURCE}', '{KEY_SOURCE}.field', '{VALUE_SOURCE}'; others need cdc:"
        hint = did_you_mean(name, (KEY_SOURCE, VALUE_SOURCE))
        errors.add(*at, message=f"{column.source!r} is not a source{hint}: {known}")
    elif name == DELETED_SOURCE:
        takes = ("boolean", "timestamptz")
    elif name == OP_SOURCE:
        takes = ("string",)
    elif not cdc.has_envelope:
        errors.add(*at, message=f"{column.source!r} exists only in Debezium's envelope; name a field of the value")
    elif name in ("$before", "$after", "$payload", "$schema"):
        errors.add(*at, message=f"{column.source!r} is not needed: name its fields, without a $")
    if takes and rest:
        errors.add(*at, message=f"{name!r} has no fields")
    elif takes and str(column.type) not in takes:
        errors.add(*at[:-1], "type", message=f"{name!r} needs {' or '.join(takes)}, not {column.type}")


def check_auto(contract: ContractFields, errors: FieldErrors) -> None:
    """Add to `errors` what can't be combined with `auto`."""
    auto = contract.auto
    if auto is None:
        if not contract.columns:
            errors.add("columns", message="must not be empty")
        return
    if contract.value.format not in REGISTRY_FORMATS:
        formats = ", ".join(REGISTRY_FORMATS)
        errors.add("columns", message=f"auto needs a schema registry's format ({formats}), not {contract.value.format}")
    if contract.cdc and contract.cdc.has_envelope:
        message = "auto takes the fields of the value, which is Debezium's envelope: list the columns"
        errors.add("columns", message=message)
    if auto.subject is None and (contract.reads_several_topics or contract.value.types):
        errors.add("auto", message="with several topics or types, name the subject: - auto: {subject: …}")


def check_columns(contract: ContractFields, errors: FieldErrors) -> None:
    """Add to `errors` what is wrong with inputs, units, expressions and masks."""
    names = {column.name.lower() for column in contract.columns}
    for index, each in enumerate(contract.inputs):
        if each.name.lower() in names:
            errors.add("inputs", index, "name", message=f"{each.name!r} is a duplicate among columns and inputs")
        names.add(each.name.lower())
        _check_unit(contract, each, ("inputs", index), errors)
    for index, column in enumerate(contract.columns):
        at = ("columns", index)
        _check_unit(contract, column, at, errors)
        if column.expression and column.source:
            errors.add(
                *at, "expression", message="a column has either a source or an expression: use an input for the source"
            )
        if column.mask and column.type != Primitive("string"):
            errors.add(
                *at, "mask", message=f"only masks text: read the field as string, not {column.type}, or omit the column"
            )
        if column.mask == "redact" and column.name in contract.identifier:
            errors.add(*at, "mask", message="redact would make all keys equal: use sha256")
        if column.mask and column.name in contract.order:
            errors.add(*at, "mask", message="a masked column can't be used in order")
    if contract.where and contract.deletes == "soft":
        message = "can't be combined with deletes: soft: a delete may lack the fields that the condition reads"
        errors.add("where", message=message)
    if contract.inputs and not contract.has_expressions:
        errors.add("inputs", message="are only read for expressions and where, and there are none")


def _check_unit(contract: ContractFields, each: Input, at: tuple[str | int, ...], errors: FieldErrors) -> None:
    if each.unit is None:
        return
    types = ("int", "long") if each.unit == "millis" else ("long",)
    side, form = ("key", contract.key.format) if each.from_key else ("value", contract.value.format)
    mongodb = contract.cdc and contract.cdc.format == "debezium_mongodb"
    if str(each.type) not in types:
        errors.add(*at, "unit", message=f"{each.unit} needs type {' or '.join(types)}, not {each.type}")
    elif each.header is not None or not (each.path or each.from_key):
        errors.add(*at, "unit", message="needs a field of the record: give an expression's inputs their units")
    elif form not in UNIT_FORMATS or (mongodb and not each.from_key and not each.from_envelope):
        message = f"needs a {side} whose schema names units, of format {', '.join(UNIT_FORMATS)}"
        found = "documents of MongoDB, which have none" if form in UNIT_FORMATS else form
        errors.add(*at, "unit", message=f"{message}, not {found}")


def check_whole_source(column: Input, side: str, form: str, errors: FieldErrors, at: tuple[str | int, ...]) -> None:
    """Add to `errors` why the column can't be read from a key or value of that format.

    Args:
        column: the column or input.
        side: `key` or `value`.
        form: its format.
        errors: where to add.
        at: the column's location in the contract.
    """
    whole = column.source in (KEY_SOURCE, VALUE_SOURCE)
    if whole and form in OBJECT_FORMATS:
        errors.add(*at, "source", message=f"a {side} of format {form} is an object: name one of its fields")
    elif not whole and form in (*TEXT_AND_BYTES, *INTEGER_FORMATS):
        source = KEY_SOURCE if side == "key" else VALUE_SOURCE
        errors.add(*at, "source", message=f"a {side} of format {form} has no fields: use source: {source}")
    elif whole and not columns.is_readable_as(column.type, form):
        takes = {"bytes": "binary or fixed[n]", "string": "a primitive type other than binary"}.get(
            form, " or ".join(INTEGER_FORMATS.get(form, ()))
        )
        errors.add(*at, "type", message=f"a {side} of format {form} needs {takes}, not {column.type}")


def check_header(column: Input, errors: FieldErrors, at: tuple[str | int, ...]) -> None:
    """Add to `errors` why the column can't be read from a header: a header is bytes, or a text as a key is."""
    several = str(column.type) in ("list<string>", "list<binary>")
    if not (several or any(columns.is_readable_as(column.type, form) for form in TEXT_AND_BYTES)):
        message = f"a header needs a primitive type, list<string> or list<binary>, not {column.type}"
        errors.add(*at, "type", message=message)


def check_history(contract: ContractFields, errors: FieldErrors) -> None:
    """Add to `errors` what is wrong with mode history, or only possible in it."""
    ends = [i for i, c in enumerate(contract.columns) if c.is_valid_to]
    for index, each in enumerate(contract.inputs):
        if each.is_valid_to:
            errors.add("inputs", index, "source", message=f"{VALID_TO_SOURCE} can only be the source of a column")
    if contract.mode != "history":
        for index in ends:
            errors.add("columns", index, "source", message=f"{VALID_TO_SOURCE} needs mode history")
        if contract.valid_from != KAFKA_TIMESTAMP:
            errors.add("valid_from", message="needs mode history: remove it")
        return
    kind = _check_valid_from(contract, errors)
    if not ends:
        wanted = f"of type {kind}" if kind else "of the type of valid_from"
        errors.add("columns", message=f"mode history needs a column with source: '{VALID_TO_SOURCE}', {wanted}")
    _check_valid_to(contract, ends, kind, errors)
    if contract.deletes not in ("soft", "ignore"):
        message = (
            f"mode history never removes rows, so it can't be {contract.deletes}: use soft to keep each delete as a "
            "version (of change events), or ignore to skip them"
        )
        errors.add("deletes", message=message)


def _check_valid_from(contract: ContractFields, errors: FieldErrors) -> IcebergType | None:
    """Return the type of `valid_from`; None if it is wrong, or a column from the registry."""
    name = contract.valid_from
    if name == KAFKA_TIMESTAMP:
        return Primitive("timestamptz")
    column = next((c for c in contract.columns if c.name == name), None)
    if column is None:
        if not contract.auto:  # else it may be a column from the registry
            errors.add("valid_from", message=f"there is no column {name!r}; {KAFKA_TIMESTAMP} always exists")
        return None
    if column.is_valid_to or not is_primitive(column.type) or column.mask:
        errors.add("valid_from", message=f"{name!r} can't be valid_from: use an unmasked column of a primitive type")
    elif not column.required:
        errors.add("valid_from", message=f"{name!r} must be required: every version needs a start")
    else:
        return column.type
    return None


def _check_valid_to(
    contract: ContractFields, ends: Sequence[int], kind: IcebergType | None, errors: FieldErrors
) -> None:
    for index in ends[1:]:
        errors.add("columns", index, "source", message=f"{VALID_TO_SOURCE} is used twice")
    for index in ends[:1]:
        column = contract.columns[index]
        if kind and column.type != kind:
            message = f"must have the type of valid_from ({contract.valid_from}): {kind}"
            errors.add("columns", index, "type", message=message)
        if column.required:
            errors.add("columns", index, "required", message="can't be required: the current version has no end")
        if column.mask:
            errors.add("columns", index, "mask", message="masks fields of records, and this column is not one")
        for part in ("identifier", "order"):
            if column.name in getattr(contract, part):
                errors.add(
                    part, message=f"{column.name!r} changes when the next version arrives, so it can't be used here"
                )
