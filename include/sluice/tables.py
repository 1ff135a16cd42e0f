"""Which Iceberg tables there are, what they are called, and their creation. No JVM is needed for any of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice import schema
from sluice.contract import Contract
from sluice.errors import SchemaChangeError, StagingTrimmedError
from sluice.model import Batch, joined_ranges

STAGING, QUARANTINE, DELETES = "sluice_staging", "sluice_quarantine", "sluice_deletes"
LEDGER: Identifier = ("sluice", "offsets")
MAINTENANCE: Identifier = ("sluice", "maintenance")
QUALITY: Identifier = ("sluice", "quality")

TRIMMED_THROUGH = "sluice.trimmed-through"
"""Property of a staging table: the last batch whose raw records were deleted after their retention."""

# Small commits are many: keep their metadata files few, and their manifests merged.
SERVICE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.manifest-merge.enabled": "true",
}


def safe(name: str) -> str:
    """A topic's or table's name as one Iceberg identifier, distinct for distinct names."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return plain
    return f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def typed(contract: Contract) -> Identifier:
    """The table that people query."""
    return tuple(contract.table.split("."))


def staging(topic: str) -> Identifier:
    """The topic's raw records, one partition per batch."""
    return (STAGING, safe(topic))


def quarantine(contract: Contract) -> Identifier:
    """The records that could not enter the typed table."""
    return (QUARANTINE, safe(contract.table))


def deletes(contract: Contract) -> Identifier:
    """Upsert tables: which keys were deleted, and at which offset."""
    return (DELETES, safe(contract.table))


def spark_name(catalog: str, identifier: Identifier, branch: str | None = None) -> str:
    """The quoted name that Spark's SQL and DataFrame APIs take, of a table or of a branch of it."""
    parts = [catalog, *identifier, *([f"branch_{branch}"] if branch else [])]
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def load(catalog: Catalog, identifier: Identifier) -> Table | None:
    """The table, or None where it does not exist (yet)."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def trimmed_through(table: Table | None) -> int:
    """The last batch that a staging table no longer holds; 0 where it holds all."""
    return int(table.properties.get(TRIMMED_THROUGH, "0")) if table else 0


def check_not_trimmed(table: Table | None, contract: Contract, batches: Iterable[Batch]) -> None:
    """Refuse to read batches from staging that it no longer holds: they would come as empty, in silence.

    Raises:
        StagingTrimmedError: with the numbers of the batches.
    """
    through = trimmed_through(table)
    # A batch with nothing to read has no records to lose: it only pins where a topic starts, or was given up.
    gone = [b for b in batches if b.seq <= through and b.span]
    if gone:
        raise no_longer_staged(contract.table, gone)


def no_longer_staged(table: str, gone: Sequence[Batch]) -> StagingTrimmedError:
    """The error that names the successive batches whose raw records a table lacks, and their offsets."""
    return StagingTrimmedError(
        f"The raw records of batches {gone[0].seq} to {gone[-1].seq} were deleted from staging, and the table does "
        "not hold them.",
        table=table,
        topic=gone[0].topic,
        topic_id=gone[0].topic_id,
        lost={p: tuple(r) for p, r in sorted(joined_ranges(gone).items())},
    )


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


def widened(table: Table, wanted: Schema) -> Table:
    """The table with the columns that were added to its schema since it was made."""
    if {f.name for f in wanted.fields} <= set(table.schema().column_names):
        return table
    with suppress(CommitFailedException), table.update_schema() as update:  # somebody else does it at this moment
        update.union_by_name(wanted)
    return table.refresh()


def ensure_staging(catalog: Catalog, topic: str) -> Table:
    """The topic's staging table."""
    wanted, spec = schema.staging_schema()
    properties = {"sluice.topic": topic, "write.distribution-mode": "none"}
    return ensure(catalog, staging(topic), wanted, spec, properties)


def ensure_quarantine(catalog: Catalog, contract: Contract) -> Table:
    """The table's quarantine."""
    wanted, spec = schema.quarantine_schema()
    return ensure(catalog, quarantine(contract), wanted, spec, {"sluice.table": contract.table})


def ensure_deletes(catalog: Catalog, contract: Contract) -> Table:
    """The table's memory of deleted keys."""
    wanted = schema.deletes_schema(contract)
    return widened(ensure(catalog, deletes(contract), wanted, properties={"sluice.table": contract.table}), wanted)


def ensure_typed(catalog: Catalog, contract: Contract) -> Table:
    """The typed table, created from its contract, or checked against it.

    Raises:
        SchemaChangeError: the table exists and does not fit the contract.
    """
    wanted = schema.typed_schema(contract)
    table = ensure(
        catalog, typed(contract), wanted, schema.partition_spec(contract, wanted), schema.table_properties(contract)
    )
    have = {f.name: f for f in table.schema().fields}
    problems = []
    for field in wanted.fields:
        if field.name not in have:
            problems.append(f"the table has no column {field.name}")
        elif _shape(have[field.name].field_type) != _shape(field.field_type):
            problems.append(
                f"column {field.name} is {have[field.name].field_type} in the table, {field.field_type} in the contract"
            )
    named = {f.name for f in wanted.fields}
    problems += [
        f"required column {n} of the table is not in the contract"
        for n, f in have.items()
        if f.required and n not in named
    ]
    identifier = set(table.schema().identifier_field_names())
    if contract.mode == "upsert" and identifier != set(contract.identifier):
        problems.append(f"identifier is {sorted(identifier)} in the table, {contract.identifier} in the contract")
    if problems:
        raise SchemaChangeError(
            "The contract does not fit the table: " + "; ".join(problems) + ".", table=contract.table
        )
    return table


def _shape(field_type: object) -> str:
    """A type without field ids, as the catalog may have given others than we asked for."""
    return re.sub(r"\b\d+: ", "", str(field_type))
