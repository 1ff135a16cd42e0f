"""Changes a table to another contract: schema, partitions, layout and the stored active contract, in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import PrimitiveType

from sluice import dag_ids
from sluice.batch import RUN_ID, STEP
from sluice.contract.columns import Column
from sluice.contract.contract import Contract
from sluice.contract.shape import previous_columns
from sluice.contract.types import is_primitive
from sluice.contract.values import KAFKA_COLUMNS
from sluice.evolve.compat import staged_commit
from sluice.evolve.diff import ContractChange, classify_column_change, nested_steps
from sluice.evolve.pending_change import PendingChange
from sluice.iceberg import compat, refs, schema
from sluice.iceberg.active_contract import (
    CONTRACT_PROPERTY,
    FRESHNESS,
    ContractVersion,
    normalize_type,
    promise_properties,
)

CONTRACT_STEP = "contract"
"""The step that the snapshot of a contract change names."""


def find_obstacle(table: Table, old: Contract, new: Contract, changes: Sequence[ContractChange]) -> str | None:
    """Why the table can't be changed in place, and what to do instead; None where it can."""
    instead = f"Write to a new table name, load the history by DAG {dag_ids.BACKFILL}, then drop {old.table}."
    if why := _find_refusal(old, new, changes):
        return f"{why} {instead}"
    before = previous_columns(old, new)
    renamed = {n: c.name for n, c in before.items() if c.name != n}
    existing = {c.name for c in old.columns}
    if taken := [f"{was} to {n}" for n, was in renamed.items() if n in existing]:
        return f"The table already has a column of the new name: {', '.join(taken)}. Rename or drop that column first."
    renamed_keys = [n for n in new.identifier if n in renamed]
    if len(renamed_keys) > 1:
        return f"Only one key column can be renamed at a time, not {', '.join(renamed_keys)}. {instead}"
    if old.upsert and old.deletes != "ignore" and (moved := [renamed[n] for n in new.order if n in renamed]):
        return f"The deletes table is ordered by {', '.join(moved)}, which can't be renamed. {instead}"
    partitioned = {table.schema().find_column_name(f.source_id) for s in table.specs().values() for f in s.fields}
    versioned = (old.valid_from, old.valid_to) if old.valid_to else ()
    for change in changes:
        if change.kind not in {"drop_column", "change_type"}:
            continue
        was = before[change.column].name if change.column in before else change.column
        if was in partitioned:
            return f"Column {was} partitions the table's files, or did before. {instead}"
        if was in (*old.identifier, *old.order, *versioned):
            return f"Column {was} is part of the key, or orders the versions of a key. {instead}"
        if change.kind == "change_type" and backup_name(was, table) is None:
            return f"No name is free to keep the old values of {was}: {was}_before_1 to _99 are taken. {instead}"
    return _name_conflict(table, old, new)


def _find_refusal(old: Contract, new: Contract, changes: Sequence[ContractChange]) -> str | None:
    if any(c.kind == "change_key" and not c.column for c in changes):
        return "The key of existing rows can't be changed."
    if new.format_version < old.format_version:
        return f"A table of format version {old.format_version} can't become one of version {new.format_version}."
    return None


def _name_conflict(table: Table, old: Contract, new: Contract) -> str | None:
    """Why a column can't have its name: the table has a column or partition of that name; None where it can."""
    before, mine = previous_columns(old, new), {*(c.name for c in old.columns), *KAFKA_COLUMNS}
    beside = {f.name.lower(): f for f in table.schema().fields if f.name not in mine}
    partitions = {f.name: f for s in table.specs().values() for f in s.fields}
    for column in new.columns:
        is_new = column.name not in before
        if not is_new and before[column.name].name == column.name:
            continue
        if found := beside.get(column.name.lower()):
            same = found.name == column.name and normalize_type(found.field_type) == normalize_type(
                schema.iceberg_type(column.type)
            )
            if not (is_new and same):
                return (
                    f"The table has a column {found.name} ({found.field_type}) that is not in its contract. "
                    f"Rename it: ALTER TABLE {old.table} RENAME COLUMN {found.name} TO …."
                )
        field = partitions.get(column.name)
        if field and not (is_new and isinstance(field.transform, IdentityTransform) and column.name in beside):
            return f"{column.name} is the name of a partition field of the table, or was. Give the column another name."
    return None


def backup_name(name: str, table: Table) -> str | None:
    """The new name of a column whose name a column of another type takes; None where all such names are taken."""
    taken = {n.lower() for n in table.schema().column_names}
    return next((n for i in range(1, 100) if (n := f"{name}_before_{i}").lower() not in taken), None)


def commit_change(catalog: Catalog, change: PendingChange, version: ContractVersion, run_id: str) -> None:
    """Apply a change in one commit, provided that the table's schema and main are still as they were read.

    It adds a snapshot without rows to main: a batch that is being published by the old contract is refused then, even
    if the schema stays the same.

    Args:
        catalog: where the table is.
        change: what to change.
        version: what the table stores as its active contract; `schema_id` is filled in.
        run_id: the run that the snapshot names.

    Raises:
        CommitFailedException: another commit came first; nothing was changed.
    """
    table, old, new = change.base, change.old, change.new
    transaction = table.transaction()
    if names := _backup_names(table, old, new):
        # The old name must be free before a column of another type gets it.
        with transaction.update_schema() as update:
            for was, backup in names.items():
                update.rename_column(was, backup)
                update.make_column_optional(was)
    with transaction.update_schema() as update:
        _update_columns(update, transaction, old, new, names)
    _reorder_columns(transaction, new)
    if old.partition_by != new.partition_by:
        _update_partitions(transaction, new)
    if table.metadata.current_snapshot_id is not None:
        compat.add_empty_snapshot(transaction, {STEP: CONTRACT_STEP, RUN_ID: run_id})
    active = replace(version, schema_id=transaction.table_metadata.schema().schema_id)
    wanted = {**_layout_properties(new), **_described_properties(table, new, version.version)}
    transaction.set_properties({CONTRACT_PROPERTY: active.to_json(), **wanted})
    if stale := [n for n in (*_layout_properties(old), FRESHNESS) if n not in wanted and n in table.properties]:
        transaction.remove_properties(*stale)
    commit_as_read(catalog, table, transaction, new.format_version)


def commit_as_read(catalog: Catalog, table: Table, transaction: Transaction, format_version: int) -> None:
    """Commit a staged transaction, provided that the table's schema and main are still as they were read.

    Args:
        catalog: where the table is.
        table: as it was read.
        transaction: what to commit.
        format_version: Iceberg's, which the table gets if its own is lower.

    Raises:
        CommitFailedException: another commit came first; nothing was changed.
    """
    updates, requirements = staged_commit(transaction)
    if format_version > table.format_version:
        updates = (*updates, UpgradeFormatVersionUpdate(format_version=format_version))
    as_read = (
        AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=table.metadata.current_snapshot_id),
        AssertCurrentSchemaId(current_schema_id=table.schema().schema_id),
    )
    others = (r for r in requirements if not isinstance(r, AssertCurrentSchemaId))
    refs.commit(catalog, table, (*as_read, *others), updates)


def describe_table(table: Table, active: Contract, version: int) -> list[str]:
    """Set the properties and the columns' comments of the contract, where the table has others, in one commit.

    Other properties and comments are left as they are, whoever wrote them.

    Args:
        table: the typed table, as it is now.
        active: the active contract, with the operational settings of its file.
        version: the number of the active version.

    Returns:
        The names of what was set or removed; empty if nothing was committed.

    Raises:
        CommitFailedException: another commit came first; nothing was changed.
    """
    wanted = _described_properties(table, active, version)
    differing = {n: v for n, v in wanted.items() if table.properties.get(n) != v}
    stale = [FRESHNESS] if FRESHNESS in table.properties and FRESHNESS not in wanted else []
    documented = {f.name: f.doc for f in table.schema().fields}
    docs = {c.name: c.doc for c in active.columns if c.doc and documented.get(c.name) != c.doc}
    if not (differing or stale or docs):
        return []
    with table.transaction() as transaction:
        if docs:
            with transaction.update_schema() as update:
                for name, doc in docs.items():
                    update.update_column(name, doc=doc)
        if differing:
            transaction.set_properties(differing)
        if stale:
            transaction.remove_properties(*stale)
    return sorted([*differing, *stale, *(f"comment of {name}" for name in docs)])


def _described_properties(table: Table, contract: Contract, version: int) -> dict[str, str]:
    """The contract's own properties, what it promises, and those for large records on tables that lack them."""
    late = {n: v for n, v in schema.LARGE_RECORDS.items() if n not in table.properties}
    return {**late, **contract.properties, **promise_properties(contract, version)}


def _backup_names(table: Table, old: Contract, new: Contract) -> dict[str, str]:
    """The new names of columns whose type or unit can't be changed in place."""
    present = set(table.schema().column_names)
    found = {}
    for name, was in previous_columns(old, new).items():
        if classify_column_change(was, new.column(name)) == "change_type" and was.name in present:
            found[was.name] = backup_name(was.name, table) or ""
    return found


def _update_columns(
    update: UpdateSchema, transaction: Transaction, old: Contract, new: Contract, backups: dict[str, str]
) -> None:
    """Drop, rename, add and alter columns; what the table already has, also by another engine, is left as it is."""
    have = {f.name: f for f in transaction.table_metadata.schema().fields}
    known = previous_columns(old, new)
    remaining = {c.name for c in known.values()}
    for column in old.columns:
        if column.name not in remaining and column.name in have:
            update.delete_column(column.name)
    for column in new.columns:
        was = known.get(column.name)
        if was is None or was.name in backups:
            if column.name not in have:
                update.add_column(column.name, schema.iceberg_type(column.type), doc=column.doc)
            continue
        at = was.name if was.name in have else column.name
        if at not in have:
            update.add_column(column.name, schema.iceberg_type(column.type), doc=column.doc)
            continue
        _alter_column(update, at, was, column, have[at].field_type)
        if not column.required:
            update.make_column_optional(at)
        # A comment that no contract has written stays.
        if (column.doc or was.doc) and (have[at].doc or "") != (column.doc or ""):
            update.update_column(at, doc=column.doc or "")
        if at != column.name:
            update.rename_column(at, column.name)


def _alter_column(update: UpdateSchema, at: str, was: Column, now: Column, have: object) -> None:
    target = schema.iceberg_type(now.type)
    if isinstance(target, PrimitiveType):
        if have != target:
            update.update_column(at, target)
        return
    if is_primitive(was.type):
        return
    for step in nested_steps(was.type, now.type) or ():
        path = (at, *step.path)
        if step.action == "drop":
            update.delete_column(path)
        elif step.type is not None and step.action == "add":
            update.add_column(path, schema.iceberg_type(step.type))
        elif step.type is not None:
            update.update_column(path, schema.iceberg_type(step.type))


def _reorder_columns(transaction: Transaction, new: Contract) -> None:
    """Put the contract's columns first, in its order, then the Kafka coordinates, then the table's other columns."""
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


def _update_partitions(transaction: Transaction, new: Contract) -> None:
    """Partition new files as the contract says."""
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
        for each, wanted_field in zip(wanted.fields, new.partitioning, strict=True):
            if (each.source_id, str(each.transform)) not in present:
                # A name that once meant another field would be ambiguous in the `partitions` metadata table.
                name = each.name
                if name in taken:
                    name = f"{name}_{wanted_field.argument or len(transaction.table_metadata.partition_specs)}"
                update.add_field(wanted_field.column, each.transform, name)


def _layout_properties(contract: Contract) -> dict[str, str]:
    """The table properties that follow from partitions and columns, where the contract does not set them."""
    return {n: v for n, v in schema.layout_properties(contract).items() if n not in contract.properties}
