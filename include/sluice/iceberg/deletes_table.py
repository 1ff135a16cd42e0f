"""The deletes table of an upsert table: its creation, and its key columns as the active contract has them. No JVM.

Publish records each deleted key with its offset there, so that a replay of older records does not bring the key back.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from sluice.contract.contract import Contract
from sluice.errors import SchemaChangeError
from sluice.iceberg import own_table, schema, table_names, tables
from sluice.iceberg.tables import TYPED_TABLE_UUID

log = logging.getLogger(__name__)


def ensure_deletes_table(catalog: Catalog, contract: Contract, base: Table | None = None) -> Table:
    """Load or create the deletes table.

    Args:
        catalog: the catalog.
        contract: the active contract.
        base: the typed table, if the caller has it; a deletes table of an earlier table of that name is then dropped.
    """
    wanted = schema.deletes_schema(contract)
    if base is not None and (existing := load_deletes_table(catalog, contract, base)):
        return own_table.add_missing_columns(existing, wanted)
    properties = {tables.OWNING_TABLE: contract.table}
    if base is not None:
        properties[TYPED_TABLE_UUID] = str(base.metadata.table_uuid)
    table = tables.ensure_table(catalog, table_names.deletes(contract), wanted, properties=properties)
    tables.check_owner(table, tables.OWNING_TABLE, contract.table)
    return own_table.add_missing_columns(align_key_columns(table, contract), wanted)


def load_deletes_table(catalog: Catalog, contract: Contract, base: Table) -> Table | None:
    """Load the typed table's deletes table, with its keys as in the active contract; None if there is none.

    A deletes table of an earlier typed table of that name is dropped: its deletes do not concern this one.

    Raises:
        SchemaChangeError: as `align_key_columns`.
    """
    name = table_names.deletes(contract)
    table = tables.load_deletes(catalog, contract)
    if table is None:
        return None
    recorded_uuid, base_uuid = table.properties.get(TYPED_TABLE_UUID), str(base.metadata.table_uuid)
    if recorded_uuid is None:  # created before the uuid was recorded
        with suppress(CommitFailedException), table.transaction() as transaction:
            transaction.set_properties({TYPED_TABLE_UUID: base_uuid})
    elif recorded_uuid != base_uuid:
        current = tables.load(catalog, table_names.typed(contract))
        # Otherwise `base` was dropped, and this is a Spark driver that still works on it.
        if current is not None and str(current.metadata.table_uuid) == base_uuid:
            log.warning("%s: dropped, it belongs to an earlier table of that name, %s", ".".join(name), recorded_uuid)
            with suppress(NoSuchTableError):
                catalog.drop_table(name)
        return None
    return align_key_columns(table, contract)


def align_key_columns(table: Table, contract: Contract) -> Table:
    """Rename and widen the deletes table's key columns to those of the active contract.

    The typed table is altered first. If the process dies in between, the next caller does the rest here.

    Raises:
        SchemaChangeError: several key columns differ, so it is unknown which was renamed to which.
    """
    wanted = {f.name: f.field_type for f in schema.deletes_schema(contract).fields}
    keys = table.schema().identifier_field_names()
    removed, added = keys - set(contract.identifier), set(contract.identifier) - keys
    renames = dict(zip(removed, added, strict=False))
    targets = {f.name: wanted.get(renames.get(f.name, f.name), f.field_type) for f in table.schema().fields}
    wider = {
        f.name: target
        for f in table.schema().fields
        if isinstance(target := targets[f.name], PrimitiveType) and target != f.field_type
    }
    if not removed and not added and not wider:
        return table
    if len(removed) != len(added) or len(removed) > 1:
        raise SchemaChangeError(
            f"The deletes table has the key columns {', '.join(sorted(keys))}.",
            table=contract.table,
            identifier=list(contract.identifier),
            next_step=f"Rename its columns: ALTER TABLE {'.'.join(table_names.deletes(contract))} "
            "RENAME COLUMN … TO ….",
        )
    with table.update_schema() as update:
        for old, new in renames.items():
            update.rename_column(old, new)
        for name, target in wider.items():
            update.update_column(name, target)
    return table.refresh()
