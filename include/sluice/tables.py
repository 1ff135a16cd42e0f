"""Which Iceberg tables there are, what they are called, and their creation. No JVM is needed for any of it."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
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

from sluice import schema
from sluice.contract import Contract
from sluice.errors import (
    EqualityDeletesError,
    SchemaChangeError,
    SchemaMissingError,
    StagingTrimmedError,
    TableDamagedError,
    first_line,
)
from sluice.evolve_force import CONTRACT, InForce, effective
from sluice.filters import BooleanExpression
from sluice.model import Batch, joined_ranges

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T", int, float)

log = logging.getLogger(__name__)

STAGING, QUARANTINE, DELETES = "sluice_staging", "sluice_quarantine", "sluice_deletes"
LEDGER: Identifier = ("sluice", "offsets")
MAINTENANCE: Identifier = ("sluice", "maintenance")
QUALITY: Identifier = ("sluice", "quality")
SCHEMAS: Identifier = ("sluice", "schemas")

TRIMMED_THROUGH = "sluice.trimmed-through"
"""Property of a staging table: the last batch whose raw records were deleted after their retention."""

OF = "sluice.table-uuid"
"""Property of a memory of deletes: the uuid of the typed table that it is of."""

SLICES_SINCE = "sluice.slices-since"
"""Property of a typed table: when it was made or last rolled back, in ms. It may lack slices that landed before."""

OWN_AGE, OWN_LEAST = timedelta(hours=1), 100
"""How long snapshots of Sluice's own tables stay, and how many at least. What they tell of the past stands in their
rows: an old snapshot is for who began to read it, and each commit reads and writes the metadata of all there are."""

SPARE, DROPPED = 2_000, 1_000
"""From so many more snapshots on whoever writes drops the oldest, so many at once; see `drop_spare`."""

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


def safe(name: str) -> str:
    """A topic's or table's name as one Iceberg identifier, distinct for distinct names."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return plain
    # A file's name, and a name in Hive's or Glue's catalog, has 255 characters at most; a topic's has 249.
    return f"{plain[:248]}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


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
    """The error that names the first batches whose raw records a table lacks, and their offsets.

    Args:
        gone: in order. What lies apart from the first ones gets a word of its own.
    """
    gone = [b for number, b in enumerate(gone) if b.seq == gone[0].seq + number]
    return StagingTrimmedError(
        f"The raw records of batches {gone[0].seq} to {gone[-1].seq} were deleted from staging, and the table does "
        "not hold them.",
        table=table,
        topic=gone[0].topic,
        topic_id=gone[0].topic_id,
        lost={p: tuple(r) for p, r in sorted(joined_ranges(gone).items())},
    )


def history_unknown(table: str, first: Batch) -> StagingTrimmedError:
    """The error of a new table on a topic whose batches before this one neither ledger nor snapshots tell of."""
    return StagingTrimmedError(
        f"Nothing tells of the batches before {first}, and the table is new.",
        table=table,
        topic=first.topic,
        topic_id=first.topic_id,
        lost=first.skips({}),
        way_out="Run `python -m sluice ledger rebuild`, which may find them in other tables. Else give their offsets "
        "up for this table (DAG accept_gap, or `python -m sluice gap accept TABLE`): it begins behind them, and DAG "
        "backfill brings them, from Kafka or from staging.",
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


def ready_to_append(table: Table) -> None:
    """Prepare this process's copy of one of Sluice's own tables for a small append; the catalog's metadata stays.

    PyIceberg copies all that the metadata holds twenty times per append, and of snapshots needs the head alone. Readers
    open each manifest: of a hundred small ones, where Iceberg would merge them first, that takes half a second.
    """
    known = table.metadata
    properties = {**known.properties, "commit.manifest.min-count-to-merge": "10"}
    head = [s for s in known.snapshots if s.snapshot_id == known.current_snapshot_id]
    # Not the log of metadata files: by it PyIceberg knows, after the commit, which of them to delete.
    table.metadata = known.model_copy(update={"properties": properties, "snapshots": head, "snapshot_log": []})


def append(table: Table, data: pa.Table, **properties: str) -> None:
    """Append a few rows to one of Sluice's own tables.

    Args:
        properties: of the commit's summary.

    Raises:
        CommitFailedException: another writer came first, each time that PyIceberg tried.
    """
    ready_to_append(table)
    table.append(data, snapshot_properties=properties)
    drop_spare(table)


def drop_spare(table: Table) -> None:
    """Drop the oldest snapshots of one of Sluice's own tables where there are far too many, right after a commit.

    They are maintenance's to expire, which deletes their files as well. But while it is paused, or waits for Spark, a
    commit would come to take seconds, and planners would lose one to another. Their files, which PyIceberg leaves, are
    orphans from then on. The head stays, and is all that others' commits require.
    """
    known = sorted(table.metadata.snapshots, key=lambda s: s.timestamp_ms)
    if len(known) < SPARE + OWN_LEAST:
        return
    if known[SPARE].timestamp_ms / 1000 > time.time() - OWN_AGE.total_seconds():
        return
    # Not all at once: PyIceberg compares each that goes with each that is there. And of those that stay this process's
    # copy needs the head alone, see `ready_to_append`.
    whole, going, head = table.metadata, known[:DROPPED], table.current_snapshot()
    shown = [*going, *([head] if head and head not in going else [])]
    stays = datetime.fromtimestamp(known[DROPPED].timestamp_ms / 1000, UTC)
    name = ".".join(table.name())
    try:
        table.metadata = whole.model_copy(update={"snapshots": shown, "snapshot_log": []})
        table.maintenance.expire_snapshots().older_than(stays).commit()
    except Exception as error:  # noqa: BLE001 - what was written is written; others dropped them, or will
        table.metadata = whole
        log.info("%s: old snapshots are left to the next commit: %s", name, type(error).__name__)
    else:
        log.info("%s: snapshots from before %s were dropped, maintenance has not come for long", name, stays)


def bound(bounds: Mapping[int, bytes] | None, column: NestedField, without: T) -> int | T:
    """The least or greatest whole number, or moment in µs, of a column in a file, as far as the file's bounds tell."""
    told = (bounds or {}).get(column.field_id)
    return without if told is None else int(from_bytes(cast(PrimitiveType, column.field_type), told))


def commit_once(table: Table) -> None:
    """Make the head that this process's copy of a table names a requirement of its next commit.

    PyIceberg moves a commit onto a new head by itself; without retries, the head that its snapshot names as parent is a
    requirement.
    """
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


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
    return _for_large(ensure(catalog, staging(topic), wanted, spec, {"sluice.topic": topic, **STAGING_PROPERTIES}))


def ensure_quarantine(catalog: Catalog, contract: Contract) -> Table:
    """The table's quarantine."""
    wanted, spec = schema.quarantine_schema()
    properties = {"sluice.table": contract.table, **schema.LARGE_RECORDS}
    return _for_large(ensure(catalog, quarantine(contract), wanted, spec, properties))


def _for_large(table: Table) -> Table:
    """A table of raw records that may be large, also where it was made before `schema.LARGE_RECORDS`."""
    if missing := {n: v for n, v in schema.LARGE_RECORDS.items() if n not in table.properties}:
        # Somebody else does it at this moment, or the next batch does.
        with suppress(CommitFailedException), table.transaction() as transaction:
            transaction.set_properties(missing)
    return table


def ensure_deletes(catalog: Catalog, contract: Contract, base: Table | None = None) -> Table:
    """The memory of deleted keys; `base` is the typed table that it is of, where it is known: see `known_deletes`."""
    wanted = schema.deletes_schema(contract)
    if base is not None and (known := known_deletes(catalog, contract, base)):
        return widened(known, wanted)
    of = {OF: str(base.metadata.table_uuid)} if base is not None else {}
    table = ensure(catalog, deletes(contract), wanted, properties={"sluice.table": contract.table, **of})
    return widened(fitted_deletes(table, contract), wanted)


def known_deletes(catalog: Catalog, contract: Contract, base: Table) -> Table | None:
    """The typed table's memory of deleted keys, as the contract in force has it; None where there is none (yet).

    One of a table that had the name before is dropped: what was deleted of that is nothing to this one.

    Raises:
        SchemaChangeError: as `fitted_deletes`.
    """
    memory = load(catalog, deletes(contract))
    if memory is None:
        return None
    of, mine = memory.properties.get(OF), str(base.metadata.table_uuid)
    if of is None:  # made before memories told
        with suppress(CommitFailedException), memory.transaction() as transaction:
            transaction.set_properties({OF: mine})
    elif of != mine:
        now = load(catalog, typed(contract))
        if now is not None and str(now.metadata.table_uuid) == mine:  # else a driver of the old one is still at work
            log.warning("%s is of another table that had this name, %s: dropped", ".".join(deletes(contract)), of)
            with suppress(NoSuchTableError):
                catalog.drop_table(deletes(contract))
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
            way_out=f"Rename its columns by hand: ALTER TABLE {'.'.join(deletes(contract))} RENAME COLUMN … TO ….",
        )
    with table.update_schema() as update:
        for was, now in names.items():
            update.rename_column(was, now)
        for name, kind in wider.items():
            update.update_column(name, kind)
    return table.refresh()


def ensure_typed(catalog: Catalog, contract: Contract) -> Table:
    """The typed table, created from its contract, or checked against the contract in force.

    Raises:
        SchemaChangeError: the table exists and does not fit it.
        SchemaMissingError: it does not exist, and its columns are the plan's to find out.
    """
    if contract.auto:
        found = load(catalog, typed(contract))
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
    table = ensure(catalog, typed(contract), wanted, schema.partition_spec(contract, wanted), properties)
    effective(table, contract)
    return table
