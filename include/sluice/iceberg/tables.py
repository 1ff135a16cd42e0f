"""Load and create the tables of a topic and a contract, and plan the files of a scan. No JVM is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar, cast

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Identifier
from pyiceberg.types import NestedField, PrimitiveType

from sluice.batch import TOPIC
from sluice.contract.contract import Contract
from sluice.errors import EqualityDeletesError, NameCollisionError, SchemaMissingError, TableDamagedError, first_line
from sluice.iceberg import own_table, schema, snapshots, table_names
from sluice.iceberg.active_contract import (
    CONTRACT_PROPERTY,
    ContractVersion,
    promise_properties,
    resolve_active_contract,
)
from sluice.iceberg.filters import BooleanExpression

T = TypeVar("T", int, float)

TRIMMED_THROUGH = "sluice.trimmed-through"
"""Property of a staging table: the last batch whose raw records were deleted after their retention."""

OWNING_TABLE = "sluice.table"
"""Property of a quarantine or deletes table: its typed table."""

TYPED_TABLE_UUID = "sluice.table-uuid"
"""Property of a deletes table: the uuid of its typed table."""

SLICES_SINCE = "sluice.slices-since"
"""Property of a typed table: when it was created or last rolled back (epoch ms). Older slices may be missing in it."""

# Many small commits: keep few metadata files, and merge manifests.
SERVICE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.manifest-merge.enabled": "true",
}
# Raw bytes need no bounds, and values and offsets rarely repeat: statistics and dictionaries would cost 5 % of staging.
STAGING_PROPERTIES = {
    **schema.LARGE_RECORDS,
    "write.distribution-mode": "none",
    **{f"write.parquet.stats-enabled.column.{name}": "false" for name in ("key", "value")},
    **{f"write.parquet.dict-encoding-enabled.column.{name}": "false" for name in ("value", "_kafka_offset")},
}


def load(catalog: Catalog, identifier: Identifier) -> Table | None:
    """Load a table; return None if it does not exist.

    Raises:
        TableDamagedError: the table's metadata file is missing or cannot be read.
    """
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None
    except FileNotFoundError as error:
        raise TableDamagedError(f"The metadata of {'.'.join(identifier)} is gone: {error}") from error
    except ValidationError as error:
        raise TableDamagedError(f"The metadata of {'.'.join(identifier)} can't be read: {first_line(error)}") from error


def load_staging(catalog: Catalog, topic: str) -> Table | None:
    """Load the topic's staging table; return None if it does not exist.

    Raises:
        NameCollisionError: the table is that of another topic.
        TableDamagedError: as `load`.
    """
    table = load(catalog, table_names.staging(topic))
    return table and check_owner(table, TOPIC, topic)


def load_quarantine(catalog: Catalog, contract: Contract) -> Table | None:
    """Load the table's quarantine; return None if it does not exist.

    Raises:
        NameCollisionError: the quarantine is that of another table.
        TableDamagedError: as `load`.
    """
    table = load(catalog, table_names.quarantine(contract))
    return table and check_owner(table, OWNING_TABLE, contract.table)


def load_deletes(catalog: Catalog, contract: Contract) -> Table | None:
    """Load the table's deletes table; return None if it does not exist.

    Raises:
        NameCollisionError: the deletes table is that of another table.
        TableDamagedError: as `load`.
    """
    table = load(catalog, table_names.deletes(contract))
    return table and check_owner(table, OWNING_TABLE, contract.table)


def check_owner(table: Table, name: str, expected: str) -> Table:
    """Check that a staging, quarantine or deletes table is that of this topic or typed table, and return it.

    Their names are not distinct for all topics and tables, and some catalogs ignore case. Existing tables are found by
    their names, so the names can't change; the property with the whole name decides.

    Args:
        table: a staging, quarantine or deletes table.
        name: the property that names its owner; a table without it passes.
        expected: the topic, or the typed table.

    Raises:
        NameCollisionError: it is that of another.
    """
    owner = table.properties.get(name, expected)
    if owner != expected:
        kind = "topic" if name == TOPIC else "table"
        raise NameCollisionError(
            f"{'.'.join(table.name())} belongs to {kind} {owner!r}, and {kind} {expected!r} would have the same.",
            **{kind: expected},
        )
    return table


def plan_files(table: Table, wanted: BooleanExpression) -> list[FileScanTask]:
    """Return the current snapshot's data files that may hold such rows, each with its delete files.

    Raises:
        TableDamagedError: a manifest is missing or cannot be read.
        EqualityDeletesError: the table has equality deletes, which PyIceberg cannot read.
    """
    name = ".".join(table.name())
    if snapshots.has_equality_deletes(table):
        raise EqualityDeletesError(f"Another engine wrote equality deletes into {name}.")
    try:
        return list(table.scan(row_filter=wanted).plan_files())
    except FileNotFoundError as error:
        raise TableDamagedError(f"A manifest of {name} is gone: {error}") from error
    except OSError:  # the storage does not answer: retryable
        raise
    except Exception as error:
        raise TableDamagedError(f"A manifest of {name} can't be read: {first_line(error)}") from error


def trimmed_through(table: Table | None) -> int:
    """Return the last batch that maintenance trimmed from a staging table; 0 if none."""
    return int(table.properties.get(TRIMMED_THROUGH, "0")) if table else 0


def ensure_table(
    catalog: Catalog,
    identifier: Identifier,
    wanted: Schema,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    properties: dict[str, str] | None = None,
) -> Table:
    """Load the table; create it and its namespace if they are missing. Two callers may do so at once."""
    found = load(catalog, identifier)
    if found is not None:
        return found
    for depth in range(1, len(identifier)):
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(identifier[:depth], _folder_of(catalog, identifier[:depth]))
    try:
        return catalog.create_table(
            identifier, schema=wanted, partition_spec=spec, properties={**SERVICE_PROPERTIES, **(properties or {})}
        )
    except TableAlreadyExistsError:
        return catalog.load_table(identifier)


def _folder_of(catalog: Catalog, namespace: Identifier) -> dict[str, str]:
    """Hive's metastore would choose a folder of its own; Iceberg in Java takes one in the warehouse that is set."""
    warehouse = catalog.properties.get("warehouse", "").rstrip("/")
    if catalog.properties.get("type") != "hive" or not warehouse:
        return {}
    return {"location": f"{warehouse}/{'.'.join(namespace)}.db"}


def decode_bound(bounds: Mapping[int, bytes] | None, column: NestedField, default: T) -> int | T:
    """Return a file's lower or upper bound of a column: a whole number, or a timestamp in µs; `default` if missing."""
    bound = (bounds or {}).get(column.field_id)
    return default if bound is None else int(from_bytes(cast(PrimitiveType, column.field_type), bound))


def ensure_staging(catalog: Catalog, topic: str) -> Table:
    """Load or create the topic's staging table.

    Raises:
        NameCollisionError: the table is that of another topic.
    """
    wanted, spec = schema.staging_schema()
    properties = {TOPIC: topic, **STAGING_PROPERTIES}
    table = check_owner(ensure_table(catalog, table_names.staging(topic), wanted, spec, properties), TOPIC, topic)
    return _allow_large_records(own_table.add_missing_columns(table, wanted))


def ensure_quarantine(catalog: Catalog, contract: Contract) -> Table:
    """Load or create the table's quarantine.

    Raises:
        NameCollisionError: the quarantine is that of another table.
    """
    wanted, spec = schema.quarantine_schema()
    properties = {OWNING_TABLE: contract.table, **schema.LARGE_RECORDS}
    table = ensure_table(catalog, table_names.quarantine(contract), wanted, spec, properties)
    check_owner(table, OWNING_TABLE, contract.table)
    return _allow_large_records(own_table.add_missing_columns(table, wanted))


def _allow_large_records(table: Table) -> Table:
    """Set `schema.LARGE_RECORDS` on a table that was created without them."""
    if missing := {n: v for n, v in schema.LARGE_RECORDS.items() if n not in table.properties}:
        # If another commit came first, the next batch sets them.
        with suppress(CommitFailedException), table.transaction() as transaction:
            transaction.set_properties(missing)
    return table


def ensure_typed(catalog: Catalog, contract: Contract) -> Table:
    """Create the typed table from its contract, or load it and check it against the active contract.

    Raises:
        SchemaChangeError: the table does not fit the active contract.
        SchemaMissingError: the table does not exist, and only a plan can find out its columns.
    """
    if contract.auto:
        found = load(catalog, table_names.typed(contract))
        if found is None:
            raise SchemaMissingError("The table does not exist yet; the next plan creates it.", table=contract.table)
        resolve_active_contract(found, contract)
        return found
    wanted = schema.typed_schema(contract)
    version = ContractVersion.initial(contract)
    properties = {
        **schema.table_properties(contract),
        **promise_properties(contract, version.version),
        CONTRACT_PROPERTY: version.to_json(),
        SLICES_SINCE: str(int(time.time() * 1000)),
    }
    table = ensure_table(
        catalog, table_names.typed(contract), wanted, schema.partition_spec(contract, wanted), properties
    )
    resolve_active_contract(table, contract)
    return table
