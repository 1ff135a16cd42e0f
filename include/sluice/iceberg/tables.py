"""Which Iceberg tables there are, what they are called, and their creation. No JVM is needed for any of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

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

from sluice.contract.contract import Contract
from sluice.errors import (
    EqualityDeletesError,
    SchemaMissingError,
    TableDamagedError,
    first_line,
)
from sluice.iceberg import schema, table_names
from sluice.iceberg.active_contract import CONTRACT, InForce, effective
from sluice.iceberg.filters import BooleanExpression

if TYPE_CHECKING:
    pass

T = TypeVar("T", int, float)

log = logging.getLogger(__name__)

TRIMMED_THROUGH = "sluice.trimmed-through"
"""Property of a staging table: the last batch whose raw records were deleted after their retention."""

OF = "sluice.table-uuid"
"""Property of a memory of deletes: the uuid of the typed table that it is of."""

SLICES_SINCE = "sluice.slices-since"
"""Property of a typed table: when it was made or last rolled back, in ms. It may lack slices that landed before."""

# Small commits are many: keep their metadata files few, and their manifests merged.
SERVICE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.manifest-merge.enabled": "true",
}
# Nobody looks for raw bytes by their least and greatest, and hardly a value, and no offset, stands there twice: what
# Parquet would work out of each record for both is a twentieth of staging it.
STAGING_PROPERTIES = {
    **schema.LARGE_RECORDS,
    "write.distribution-mode": "none",
    **{f"write.parquet.stats-enabled.column.{name}": "false" for name in ("key", "value")},
    **{f"write.parquet.dict-encoding-enabled.column.{name}": "false" for name in ("value", "_kafka_offset")},
}


def load(catalog: Catalog, identifier: Identifier) -> Table | None:
    """The table, or None where it does not exist (yet).

    Raises:
        TableDamagedError: the catalog names a metadata file that is not there, or that can't be read.
    """
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None
    except FileNotFoundError as error:
        raise TableDamagedError(f"The metadata of {'.'.join(identifier)} is gone: {error}") from error
    except ValidationError as error:
        raise TableDamagedError(f"The metadata of {'.'.join(identifier)} can't be read: {first_line(error)}") from error


def files(table: Table, wanted: BooleanExpression) -> list[FileScanTask]:
    """The data files of the head that may hold such rows, each with the files of deletes that apply to it.

    Raises:
        TableDamagedError: a manifest is not there or can't be read.
        EqualityDeletesError: another engine deleted rows by their values, which PyIceberg does not read.
    """
    name = ".".join(table.name())
    head = table.current_snapshot()
    if head and head.summary and int(head.summary.additional_properties.get("total-equality-deletes", "0")):
        raise EqualityDeletesError(f"Another engine deleted rows of {name} by their values.")
    try:
        return list(table.scan(row_filter=wanted).plan_files())
    except FileNotFoundError as error:
        raise TableDamagedError(f"A manifest of {name} is gone: {error}") from error
    except OSError:  # the storage is away, which passes
        raise
    except Exception as error:
        raise TableDamagedError(f"A manifest of {name} can't be read: {first_line(error)}") from error


def trimmed_through(table: Table | None) -> int:
    """The last batch that a staging table no longer holds; 0 where it holds all."""
    return int(table.properties.get(TRIMMED_THROUGH, "0")) if table else 0


def ensure(
    catalog: Catalog,
    identifier: Identifier,
    wanted: Schema,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    properties: dict[str, str] | None = None,
) -> Table:
    """Load the table, creating it and its namespace first where they are missing. Two at once do no harm."""
    found = load(catalog, identifier)
    if found is not None:
        return found
    for depth in range(1, len(identifier)):
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(identifier[:depth])
    try:
        return catalog.create_table(
            identifier, schema=wanted, partition_spec=spec, properties={**SERVICE_PROPERTIES, **(properties or {})}
        )
    except TableAlreadyExistsError:
        return catalog.load_table(identifier)


def bound(bounds: Mapping[int, bytes] | None, column: NestedField, without: T) -> int | T:
    """The least or greatest whole number, or moment in µs, of a column in a file, as far as the file's bounds tell."""
    told = (bounds or {}).get(column.field_id)
    return without if told is None else int(from_bytes(cast(PrimitiveType, column.field_type), told))


def ensure_staging(catalog: Catalog, topic: str) -> Table:
    """The topic's staging table."""
    wanted, spec = schema.staging_schema()
    return _for_large(
        ensure(catalog, table_names.staging(topic), wanted, spec, {"sluice.topic": topic, **STAGING_PROPERTIES})
    )


def ensure_quarantine(catalog: Catalog, contract: Contract) -> Table:
    """The table's quarantine."""
    wanted, spec = schema.quarantine_schema()
    properties = {"sluice.table": contract.table, **schema.LARGE_RECORDS}
    return _for_large(ensure(catalog, table_names.quarantine(contract), wanted, spec, properties))


def _for_large(table: Table) -> Table:
    """A table of raw records that may be large, also where it was made before `schema.LARGE_RECORDS`."""
    if missing := {n: v for n, v in schema.LARGE_RECORDS.items() if n not in table.properties}:
        # Somebody else does it at this moment, or the next batch does.
        with suppress(CommitFailedException), table.transaction() as transaction:
            transaction.set_properties(missing)
    return table


def ensure_typed(catalog: Catalog, contract: Contract) -> Table:
    """The typed table, created from its contract, or checked against the contract in force.

    Raises:
        SchemaChangeError: the table exists and does not fit it.
        SchemaMissingError: it does not exist, and its columns are the plan's to find out.
    """
    if contract.auto:
        found = load(catalog, table_names.typed(contract))
        if found is None:
            raise SchemaMissingError("The table does not exist yet: a plan makes it.", table=contract.table)
        effective(found, contract)
        return found
    wanted = schema.typed_schema(contract)
    properties = {
        **schema.table_properties(contract),
        CONTRACT: InForce.first(contract).text(),
        SLICES_SINCE: str(int(time.time() * 1000)),
    }
    table = ensure(catalog, table_names.typed(contract), wanted, schema.partition_spec(contract, wanted), properties)
    effective(table, contract)
    return table
