"""The active contract: the contract that a table's schema was last changed to, stored as a property of the table.

The commit that changes the schema also writes the property. Batches are published by it until a plan applies the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote

from pydantic import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType as PyIcebergType
from pyiceberg.types import ListType, MapType, StructType

from sluice.contract.checks_expectations import is_valid_for
from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.shape import OPERATIONAL, previous_columns, shape, shape_id
from sluice.contract.types import Primitive
from sluice.contract.values import format_duration
from sluice.errors import SchemaChangeError
from sluice.iceberg import schema

CONTRACT_PROPERTY = "sluice.contract"
"""Property of a typed table: the active contract version, as JSON."""

COMMENT = "comment"
"""Iceberg's property for the description of a table, which Spark and other engines show."""

FRESHNESS = "sluice.freshness"
"""Property of a typed table: its freshness target, as the contract writes it."""

URL_VARIABLE = "SLUICE_CONTRACT_URL"
"""Environment variable with the address of a table's contract, for readers; `{table}` stands for the table's name."""


@dataclass(frozen=True)
class ContractVersion:
    """A version of a table's contract.

    Attributes:
        version: 1 for the version that created the table.
        id: the shape's id, see `sluice.contract.shape.shape_id`.
        shape: the contract's fields that decide the table's content, as JSON.
        at: when it was applied, in ISO 8601.
        words: the changes it made, one sentence each.
        kinds: the kinds of these changes, as in `schema_policy`.
        offsets: the first offset published by it, per topic and partition.
        snapshot_id: the table's current snapshot when it was applied; None for an empty table.
        schema_id: the Iceberg schema id.
        who, why: the operator who approved it and the reason, if approval was needed.
    """

    version: int
    id: str
    shape: Mapping[str, Any]
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    words: Sequence[str] = ()
    kinds: Sequence[str] = ()
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    snapshot_id: int | None = None
    schema_id: int = 0
    who: str | None = None
    why: str | None = None

    @classmethod
    def initial(cls, contract: Contract) -> Self:
        """Return the version that creates a table."""
        return cls(1, shape_id(contract), shape(contract), words=("creates the table",), kinds=("create",))

    @classmethod
    def from_table(cls, table: Table) -> Self | None:
        """Return the table's active version, or None if the table has no such property.

        Raises:
            SchemaChangeError: the property cannot be parsed.
        """
        text = table.properties.get(CONTRACT_PROPERTY)
        if text is None:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise SchemaChangeError(
                f"Table property {CONTRACT_PROPERTY} cannot be parsed: {error}.",
                table=".".join(table.name()),
                next_step="Only Sluice may write it. Remove it (ALTER TABLE … UNSET TBLPROPERTIES "
                f"('{CONTRACT_PROPERTY}')): the contract file then becomes the active contract, if it fits the table.",
            ) from error

    def to_json(self) -> str:
        """Return the property's value."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def to_contract(self, file: Contract) -> Contract:
        """Return this version's shape with the file's operational settings (topics, group, owner, …).

        Raises:
            SchemaChangeError: the shape is not a valid contract for this version of Sluice.
        """
        # "any" is replaced below: the file's topics are operational, and a pattern may match none of them now.
        required = {"table": file.table, "topic": "any", "group": file.group, "owner": file.owner}
        try:
            active = Contract.model_validate({**self.shape, **required})
        except ValidationError as error:
            raise SchemaChangeError(
                f"The active contract, version {self.version}, is not valid: {error.errors()[0]['msg']}.",
                table=file.table,
                next_step="Another version of Sluice wrote it: run that version, or upgrade.",
            ) from error
        # An expectation on a column whose rename is pending applies under the old name; on a missing column, not yet.
        renamed = {new: old.name for new, old in previous_columns(active, file).items() if old.name != new}
        expectations = (e if is_valid_for(e, active) else e.with_columns(renamed) for e in file.expectations)
        valid = tuple(e for e in expectations if is_valid_for(e, active))
        # What the file does not set stays unset, so that the contract is written as briefly as its file.
        taken = {f: getattr(file, f) for f in OPERATIONAL & file.model_fields_set}
        return active.model_copy(update=taken | ({"expectations": valid} if file.expectations else {}))


def promise_properties(contract: Contract, version: int) -> dict[str, str]:
    """Return what readers may rely on, as properties of the typed table; `properties` of the contract come first.

    Args:
        contract: the active contract, with the operational settings of its file.
        version: the number of the active version.
    """
    found = {
        "sluice.owner": contract.owner,
        "sluice.mode": contract.mode,
        "sluice.deletes": contract.deletes if contract.keyed else "none",
        "sluice.contract-version": str(version),
    }
    if contract.doc and COMMENT not in contract.properties:
        found[COMMENT] = contract.doc
    if contract.freshness:
        found[FRESHNESS] = format_duration(contract.freshness)
    if address := os.environ.get(URL_VARIABLE):
        found["sluice.contract-url"] = address.replace("{table}", quote(contract.table, safe=""))
    return found


def describe_promise(table: Table, file: Contract) -> dict[str, Any]:
    """Return what readers may rely on as JSON values: description, owner, properties, and the mask of each column.

    Empty if another engine has altered the table: the next plan reports it.
    """
    try:
        version, active = ContractVersion.from_table(table), resolve_publish_contract(table, file)
    except SchemaChangeError:
        return {}
    return {
        "doc": active.doc,
        "owner": active.owner,
        "properties": promise_properties(active, version.version if version else 1),
        "masks": {c.name: c.mask for c in active.columns if c.mask},
        "personal_data": active.has_personal_data,
    }


def resolve_active_contract(table: Table, file: Contract) -> Contract:
    """Return the table's active contract; the file's contract if the table stores none.

    Raises:
        SchemaChangeError: the table's schema does not match the active contract.
    """
    version = ContractVersion.from_table(table)
    if version is None and file.auto:
        raise SchemaChangeError(
            "The table stores no contract, so columns: auto has no columns to start from.",
            table=file.table,
            next_step="An older version of Sluice or another engine created the table. List its columns in the "
            "contract; the next run stores them, and `auto` can be used again.",
        )
    contract = file if version is None or version.id == shape_id(file) else version.to_contract(file)
    if problems := find_schema_mismatches(table.schema(), contract):
        raise SchemaChangeError(
            "The contract does not fit the table: " + "; ".join(problems) + ".",
            table=file.table,
            next_step="Another engine altered the table: alter it back. If another writer filled the table, and Sluice "
            "is to continue it: `sluice adopt`. Else use a new table name.",
        )
    return contract


def resolve_publish_contract(table: Table, file: Contract) -> Contract:
    """Return the active contract with the masks that the file adds.

    Raises:
        SchemaChangeError: as `resolve_active_contract`.
    """
    return add_masks(resolve_active_contract(table, file), file)


def add_masks(active: Contract, file: Contract) -> Contract:
    """Return the active contract with the masks that the file adds; a mask applies at once, other changes may wait."""
    masks = {old.name: mask for name, old in previous_columns(active, file).items() if (mask := file.column(name).mask)}

    def masked(column: Column) -> Column:
        unmaskable = column.mask or column.is_valid_to or column.name in (*active.identifier, *active.order)
        if unmaskable or column.type != Primitive("string") or column.name not in masks:
            return column
        return column.model_copy(update={"mask": masks[column.name]})

    return active.model_copy(update={"columns": tuple(map(masked, active.columns))})


def find_schema_mismatches(have: Schema, contract: Contract) -> list[str]:
    """Return why rows of the contract cannot be written into the table; extra optional columns are no reason."""
    existing = {f.name: f for f in have.fields}
    wanted = schema.typed_schema(contract)
    problems = []
    for column in wanted.fields:
        there = existing.get(column.name)
        if there is None:
            problems.append(f"the table has no column {column.name}")
        elif normalize_type(there.field_type) != normalize_type(column.field_type):
            problems.append(
                f"column {column.name} is {there.field_type} in the table, {column.field_type} in the contract"
            )
        elif there.required and not column.required:
            problems.append(f"column {column.name} is required in the table, not in the contract")
    in_contract = {f.name for f in wanted.fields}
    problems += [
        f"required column {name} of the table is not in the contract"
        for name, field in existing.items()
        if field.required and name not in in_contract
    ]
    identifier = set(have.identifier_field_names())
    if contract.upsert and identifier != set(contract.identifier):
        problems.append(f"identifier is {sorted(identifier)} in the table, {list(contract.identifier)} in the contract")
    return problems


def normalize_type(kind: PyIcebergType) -> Any:
    """Return a type in a comparable form: without field ids and without the order of a struct's fields."""
    if isinstance(kind, StructType):
        return {f.name: normalize_type(f.field_type) for f in kind.fields}
    if isinstance(kind, ListType):
        return [normalize_type(kind.element_type)]
    if isinstance(kind, MapType):
        return (normalize_type(kind.key_type), normalize_type(kind.value_type))
    return str(kind)
