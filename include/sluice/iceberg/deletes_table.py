"""TODO docstring of sluice.iceberg.deletes_table."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from sluice.contract.contract import Contract
from sluice.errors import SchemaChangeError
from sluice.iceberg import own_table, schema, table_names, tables
from sluice.iceberg.tables import OF


def ensure_deletes(catalog: Catalog, contract: Contract, base: Table | None = None) -> Table:
    """The memory of deleted keys; `base` is the typed table that it is of, where it is known: see `known_deletes`."""
    wanted = schema.deletes_schema(contract)
    if base is not None and (known := known_deletes(catalog, contract, base)):
        return own_table.widened(known, wanted)
    of = {OF: str(base.metadata.table_uuid)} if base is not None else {}
    table = tables.ensure(
        catalog, table_names.deletes(contract), wanted, properties={"sluice.table": contract.table, **of}
    )
    return own_table.widened(fitted_deletes(table, contract), wanted)


def known_deletes(catalog: Catalog, contract: Contract, base: Table) -> Table | None:
    """The typed table's memory of deleted keys, as the contract in force has it; None where there is none (yet).

    One of a table that had the name before is dropped: what was deleted of that is nothing to this one.

    Raises:
        SchemaChangeError: as `fitted_deletes`.
    """
    memory = tables.load(catalog, table_names.deletes(contract))
    if memory is None:
        return None
    of, mine = memory.properties.get(OF), str(base.metadata.table_uuid)
    if of is None:  # made before memories told
        with suppress(CommitFailedException), memory.transaction() as transaction:
            transaction.set_properties({OF: mine})
    elif of != mine:
        now = tables.load(catalog, table_names.typed(contract))
        if now is not None and str(now.metadata.table_uuid) == mine:  # else a driver of the old one is still at work
            tables.log.warning(
                "%s is of another table that had this name, %s: dropped", ".".join(table_names.deletes(contract)), of
            )
            with suppress(NoSuchTableError):
                catalog.drop_table(table_names.deletes(contract))
        return None
    return fitted_deletes(memory, contract)


def fitted_deletes(table: Table, contract: Contract) -> Table:
    """The memory of deleted keys, its key named and typed as the contract in force has it.

    The typed table is changed first. So whoever comes next, after a kill between the two, makes good for it here.

    Raises:
        SchemaChangeError: it is not told which column became which.
    """
    wanted = {f.name: f.field_type for f in schema.deletes_schema(contract).fields}
    keys = table.schema().identifier_field_names()
    gone, new = keys - set(contract.identifier), set(contract.identifier) - keys
    names = dict(zip(gone, new, strict=False))
    targets = {f.name: wanted.get(names.get(f.name, f.name), f.field_type) for f in table.schema().fields}
    wider = {
        f.name: t
        for f in table.schema().fields
        if isinstance(t := targets[f.name], PrimitiveType) and t != f.field_type
    }
    if not gone and not new and not wider:
        return table
    if len(gone) != len(new) or len(gone) > 1:
        raise SchemaChangeError(
            f"The memory of deleted keys is by {', '.join(sorted(keys))}.",
            table=contract.table,
            identifier=list(contract.identifier),
            way_out=f"Rename its columns by hand: ALTER TABLE {'.'.join(table_names.deletes(contract))} "
            "RENAME COLUMN … TO ….",
        )
    with table.update_schema() as update:
        for was, now in names.items():
            update.rename_column(was, now)
        for name, kind in wider.items():
            update.update_column(name, kind)
    return table.refresh()
