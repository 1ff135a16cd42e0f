"""Change a table to another contract: schema, partitions, layout and the contract in force, in one catalog commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import PrimitiveType

from sluice.batch import RUN_ID, STEP
from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.shape import origins
from sluice.contract.types import is_primitive
from sluice.contract.values import KAFKA_COLUMNS
from sluice.evolve.diff import Change, nested, type_change
from sluice.iceberg import refs, schema
from sluice.iceberg.active_contract import CONTRACT, InForce, alike

CHANGED = "contract"
"""What the snapshot says by which main moves on when the contract in force changes."""


def impossible(table: Table, old: Contract, new: Contract, changes: Sequence[Change]) -> str | None:
    """Why the table can't be changed so where it stands, and what to do instead; None where it can."""
    instead = f"Write to a new table name, bring the history by DAG backfill, then drop {old.table}."
    if any(c.kind == "change_key" and not c.column for c in changes):
        return f"The rows of a table can't be given another key. {instead}"
    known = origins(old, new)
    held = {table.schema().find_column_name(f.source_id) for s in table.specs().values() for f in s.fields}
    there = {c.name for c in old.columns}
    if taken := [f"{known[n].name} to {n}" for n in known if n in there and known[n].name != n]:
        return f"{', '.join(taken)} can't be renamed, as the table has a column of that name: rename or drop it before."
    renamed = [n for n in new.identifier if n in known and known[n].name != n]
    if len(renamed) > 1:
        return f"Of the key only one column at a time can be renamed, not {', '.join(renamed)}. {instead}"
    if (
        old.upsert
        and old.deletes != "ignore"
        and (moved := [n for n in new.order if n in known and known[n].name != n])
    ):
        return f"The memory of deleted keys is ordered by {', '.join(known[n].name for n in moved)}. {instead}"
    for change in changes:
        was = known[change.column].name if change.column in known else change.column
        if change.kind not in {"drop_column", "change_type"}:
            continue
        if was in held:
            return f"The table is, or was, partitioned by {was}, which its files need. {instead}"
        if was in (*old.identifier, *old.order, *((old.valid_from, old.valid_to) if old.valid_to else ())):
            return f"{was} is a part of the key, or places its versions. {instead}"
        if change.kind == "change_type" and aside(was, table) is None:
            return f"The old values of {was} can't be set aside: there are too many columns of such a name. {instead}"
    return _taken(table, old, new)


def _taken(table: Table, old: Contract, new: Contract) -> str | None:
    """Why a column can't have its name, of what the table holds beside its contract's columns; None where it can."""
    known, mine = origins(old, new), {*(c.name for c in old.columns), *KAFKA_COLUMNS}
    beside = {f.name.lower(): f for f in table.schema().fields if f.name not in mine}
    partitions = {f.name: f for s in table.specs().values() for f in s.fields}
    for column in new.columns:
        is_new = column.name not in known
        if not is_new and known[column.name].name == column.name:
            continue
        if found := beside.get(column.name.lower()):
            same = found.name == column.name and alike(found.field_type) == alike(schema.iceberg_type(column.type))
            if not (is_new and same):
                told = f"The table has a column {found.name} ({found.field_type}) beside its contract's."
                return f"{told} Rename it: ALTER TABLE {old.table} RENAME COLUMN {found.name} TO …."
        field = partitions.get(column.name)
        if field and not (is_new and isinstance(field.transform, IdentityTransform) and column.name in beside):
            return f"{column.name} is what the table's partitions are, or were, called. Give the column another name."
    return None


def aside(name: str, table: Table) -> str | None:
    """What a column is called when one of another type takes its name; None where all such names are taken."""
    taken = {n.lower() for n in table.schema().column_names}
    return next((n for i in range(1, 100) if (n := f"{name}_before_{i}").lower() not in taken), None)


def commit(catalog: Catalog, table: Table, old: Contract, new: Contract, version: InForce, run_id: str) -> None:
    """One commit, which holds if the table's schema and head are still what was read.

    Main moves on with it, by a snapshot without rows: a batch that is being published by the old contract is refused
    then, though the schema may be the same, or the same again.

    Args:
        version: what to keep of it; `schema_id` is filled in.

    Raises:
        CommitFailedException: another commit came first; nothing was changed.
    """
    transaction = table.transaction()
    if names := _set_aside(table, old, new):
        # Two columns of one name in turn: the name must be free before it is given again.
        with transaction.update_schema() as update:
            for was, kept in names.items():
                update.rename_column(was, kept)
                update.make_column_optional(was)
    with transaction.update_schema() as update:
        _columns(update, transaction, old, new, names)
    _order(transaction, new)
    if old.partition_by != new.partition_by:
        _partitions(transaction, new)
    if table.metadata.current_snapshot_id is not None:
        with transaction.update_snapshot({STEP: CHANGED, RUN_ID: run_id}).fast_append():
            pass
    made = transaction.table_metadata.schema()
    told = replace(version, schema_id=made.schema_id)
    transaction.set_properties({CONTRACT: told.text(), **_layout(new)})
    stale = tuple(n for n in _layout(old) if n not in _layout(new) and n in table.properties)
    updates: tuple[TableUpdate, ...] = transaction._updates
    if stale:
        updates += (RemovePropertiesUpdate(removals=list(stale)),)
    requirements: tuple[TableRequirement, ...] = (
        AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=table.metadata.current_snapshot_id),
        AssertCurrentSchemaId(current_schema_id=table.schema().schema_id),
        *(r for r in transaction._requirements if not isinstance(r, AssertCurrentSchemaId)),
    )
    refs.commit(catalog, table, requirements, updates)


def _set_aside(table: Table, old: Contract, new: Contract) -> dict[str, str]:
    """Columns whose type can't be changed in place: what they are called from now on."""
    present = set(table.schema().column_names)
    found = {}
    for name, was in origins(old, new).items():
        target = new.column(name)
        if type_change(was.type, target.type) == "change_type" and was.type != target.type and was.name in present:
            found[was.name] = aside(was.name, table) or ""
    return found


def _columns(
    update: UpdateSchema, transaction: Transaction, old: Contract, new: Contract, set_aside: dict[str, str]
) -> None:
    """Drop, rename, add and alter columns. What the table has already, by whatever hands, is left as it is."""
    have = {f.name: f for f in transaction.table_metadata.schema().fields}
    known = origins(old, new)
    kept = {c.name for c in known.values()}
    for column in old.columns:
        if column.name not in kept and column.name in have:
            update.delete_column(column.name)
    for column in new.columns:
        was = known.get(column.name)
        if was is None or was.name in set_aside:
            if column.name not in have:
                update.add_column(column.name, schema.iceberg_type(column.type), doc=column.doc)
            continue
        at = was.name if was.name in have else column.name
        if at not in have:
            update.add_column(column.name, schema.iceberg_type(column.type), doc=column.doc)
            continue
        _alter(update, at, was, column, have[at].field_type)
        if not column.required:
            update.make_column_optional(at)
        if (have[at].doc or "") != (column.doc or ""):
            update.update_column(at, doc=column.doc or "")
        if at != column.name:
            update.rename_column(at, column.name)


def _alter(update: UpdateSchema, at: str, was: Column, now: Column, have: object) -> None:
    target = schema.iceberg_type(now.type)
    if isinstance(target, PrimitiveType):
        if have != target:
            update.update_column(at, target)
        return
    if is_primitive(was.type):
        return
    for step in nested(was.type, now.type) or ():
        path = (at, *step.path)
        if step.what == "drop":
            update.delete_column(path)
        elif step.type is not None and step.what == "add":
            update.add_column(path, schema.iceberg_type(step.type))
        elif step.type is not None:
            update.update_column(path, schema.iceberg_type(step.type))


def _order(transaction: Transaction, new: Contract) -> None:
    """The contract's columns in its order, the coordinates, then what the table has besides."""
    have = list(transaction.table_metadata.schema().as_struct().fields)
    names = [f.name for f in have]
    wanted = [*(c.name for c in new.columns), *KAFKA_COLUMNS]
    wanted += [n for n in names if n not in wanted]
    if names == wanted:
        return
    with transaction.update_schema() as update:
        for before, name in zip([None, *wanted], wanted, strict=False):
            if before is None:
                update.move_first(name)
            else:
                update.move_after(name, before)


def _partitions(transaction: Transaction, new: Contract) -> None:
    """Make the contract's partitions those of what is written from now on."""
    columns = transaction.table_metadata.schema()
    wanted = schema.partition_spec(new, columns)
    have = transaction.table_metadata.spec()
    keys = {(f.source_id, str(f.transform)) for f in wanted.fields}
    present = {(f.source_id, str(f.transform)) for f in have.fields}
    taken = {f.name for s in transaction.table_metadata.partition_specs for f in s.fields}
    with transaction.update_spec() as update:
        for each in have.fields:
            if (each.source_id, str(each.transform)) not in keys:
                update.remove_field(each.name)
        for each, told in zip(wanted.fields, new.partitioning, strict=True):
            if (each.source_id, str(each.transform)) not in present:
                # A name that stood for something else once would be ambiguous in the table of partitions.
                name = each.name
                if name in taken:
                    name = f"{name}_{told.argument or len(transaction.table_metadata.partition_specs)}"
                update.add_field(told.column, each.transform, name)


def _layout(contract: Contract) -> dict[str, str]:
    """The defaults that go with the table's partitions and columns."""
    return {n: v for n, v in schema.layout(contract).items() if n not in contract.properties}
