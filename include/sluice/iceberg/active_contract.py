"""The contract in force: the one that a table was last changed to, kept as a property of the table itself.

It is written in the very commit that changes the schema, so that the two can't part. A batch is published by it,
whatever the file says meanwhile: the file's contract comes into force when a plan applies it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import ValidationError
from pyiceberg.table import Table
from pyiceberg.types import IcebergType as PyIcebergType
from pyiceberg.types import ListType, MapType, StructType

from sluice.contract.checks_expectations import fits
from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.shape import OPERATIONAL, origins, shape, shape_id
from sluice.contract.types import Primitive
from sluice.errors import SchemaChangeError
from sluice.iceberg import schema

CONTRACT = "sluice.contract"
"""Property of a typed table: the contract in force, as JSON."""


@dataclass(frozen=True)
class InForce:
    """A version of a table's contract.

    Attributes:
        version: counted from 1, with which the table was made.
        id: name of its shape, see `evolve_diff.shape_id`.
        shape: the shape, as JSON.
        at: when it came into force.
        words: what it changed.
        kinds: the kinds of these changes.
        offsets: per topic and partition the first offset that was published by it.
        snapshot_id: the table's head at that moment; None where it had none. What came later was written by it.
        schema_id: Iceberg's id of the table's schema with it.
        who, why: whose decision it was, and the reason, where a person decided.
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
    def first(cls, contract: Contract) -> Self:
        """What a new table is made with."""
        return cls(1, shape_id(contract), shape(contract), words=("creates the table",), kinds=("create",))

    @classmethod
    def of(cls, table: Table) -> Self | None:
        """What the table says of itself; None for one that was made before tables did.

        Raises:
            SchemaChangeError: the property can't be read.
        """
        text = table.properties.get(CONTRACT)
        if text is None:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise SchemaChangeError(
                f"The property {CONTRACT} can't be read: {error}.",
                table=".".join(table.name()),
                way_out="Nobody but Sluice may write it. Take it away (ALTER TABLE … UNSET TBLPROPERTIES "
                f"('{CONTRACT}')): the contract's file is then taken for the one in force, if it fits the table.",
            ) from error

    def text(self) -> str:
        """The property's value."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def contract(self, file: Contract) -> Contract:
        """The contract in force, run as the file says.

        Raises:
            SchemaChangeError: it is no sound contract (any more).
        """
        # Which topics feed it is the file's affair: they are laid over it below, and may be none at this moment.
        about = {"table": file.table, "topic": "any", "group": file.group, "owner": file.owner}
        try:
            held = Contract.model_validate({**self.shape, **about})
        except ValidationError as error:
            raise SchemaChangeError(
                f"The contract in force, version {self.version}, can't be read: {error.errors()[0]['msg']}.",
                table=file.table,
                way_out="It was written by another version of Sluice: run that one, or upgrade.",
            ) from error
        # What is expected of a column that is not there yet waits with it; of one whose new name waits it holds.
        names = {now: was.name for now, was in origins(held, file).items() if was.name != now}
        named = [each if fits(each, held) else each.about(names) for each in file.expectations]
        due = tuple(each for each in named if fits(each, held))
        return held.model_copy(update={f: getattr(file, f) for f in OPERATIONAL} | {"expectations": due})


def effective(table: Table, file: Contract) -> Contract:
    """The contract to publish by: the one in force; the file's, where the table does not tell.

    Raises:
        SchemaChangeError: the table's schema is not the one that the contract in force made.
    """
    told = InForce.of(table)
    if told is None and file.auto:
        raise SchemaChangeError(
            "The table does not tell its contract, so that columns: auto can't go on from it.",
            table=file.table,
            way_out="It is older than that, or was made by other hands. List its columns; with the next run after "
            "that it tells, and auto may come back.",
        )
    contract = file if told is None or told.id == shape_id(file) else told.contract(file)
    if problems := misfits(table, contract):
        raise SchemaChangeError(
            "The contract does not fit the table: " + "; ".join(problems) + ".",
            table=file.table,
            way_out="The table was altered by other hands, or is older than its contract: change it back by hand, or "
            "write to a new table name.",
        )
    return contract


def published_by(table: Table, file: Contract) -> Contract:
    """The contract in force, with the masks that the file adds.

    Raises:
        SchemaChangeError: as `effective`.
    """
    return with_masks(effective(table, file), file)


def with_masks(held: Contract, file: Contract) -> Contract:
    """The contract in force with the masks that the file adds: they hold at once, whatever else of it waits."""
    masks = {was.name: mask for name, was in origins(held, file).items() if (mask := file.column(name).mask)}

    def masked(column: Column) -> Column:
        fixed = column.mask or column.ends or column.name in (*held.identifier, *held.order)
        if fixed or column.type != Primitive("string") or column.name not in masks:
            return column
        return column.model_copy(update={"mask": masks[column.name]})

    return held.model_copy(update={"columns": tuple(map(masked, held.columns))})


def misfits(table: Table, contract: Contract) -> list[str]:
    """Why rows of the contract can't be written into the table; columns it has besides are no reason, if optional."""
    have = {f.name: f for f in table.schema().fields}
    wanted = schema.typed_schema(contract)
    problems = []
    for column in wanted.fields:
        there = have.get(column.name)
        if there is None:
            problems.append(f"the table has no column {column.name}")
        elif alike(there.field_type) != alike(column.field_type):
            is_, says = there.field_type, column.field_type
            problems.append(f"column {column.name} is {is_} in the table, {says} in the contract")
        elif there.required and not column.required:
            problems.append(f"column {column.name} is required in the table, not in the contract")
    named = {f.name for f in wanted.fields}
    problems += [
        f"required column {n} of the table is not in the contract"
        for n, f in have.items()
        if f.required and n not in named
    ]
    identifier = set(table.schema().identifier_field_names())
    if contract.upsert and identifier != set(contract.identifier):
        problems.append(f"identifier is {sorted(identifier)} in the table, {list(contract.identifier)} in the contract")
    return problems


def alike(kind: PyIcebergType) -> Any:
    """A type without field ids, which the catalog gives, and without the order of a struct's fields, as names count."""
    if isinstance(kind, StructType):
        return {f.name: alike(f.field_type) for f in kind.fields}
    if isinstance(kind, ListType):
        return [alike(kind.element_type)]
    if isinstance(kind, MapType):
        return (alike(kind.key_type), alike(kind.value_type))
    return str(kind)
