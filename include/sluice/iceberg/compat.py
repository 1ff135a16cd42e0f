"""Workarounds for what PyIceberg 0.12 has no public way to do: commits on one head, format version 3, Hive's commits.

Each function says what is missing; `tests/unit/iceberg/test_compat.py` fails once it is no longer missing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV3
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    UpgradeFormatVersionUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)
from pyiceberg.typedef import IcebergBaseModel

from sluice.errors import TableUnavailableError


def without_commit_retries(table: Table) -> Table:
    """Return a copy whose next commit requires main to be at the snapshot that the copy names.

    PyIceberg moves a commit onto a new snapshot by itself, as often as the table's metadata says. There is no option
    per commit (as of 0.12), and the stored property must stay, because Spark's maintenance needs its retries.
    """
    return _copy(table, properties={**table.metadata.properties, "commit.retry.num-retries": "0"})


def with_current_snapshot_only(table: Table) -> Table:
    """Return a copy for a small append, with the current snapshot alone; the catalog's metadata stays complete.

    PyIceberg (as of 0.12) copies all metadata several times per append: with 2,000 snapshots an append took 3.3 s,
    through this copy 0.4 s. Its manifests are merged from 10 on instead of 100: readers open each one.
    """
    metadata = table.metadata
    # The log of metadata files stays: by it PyIceberg decides, after the commit, which of them to delete.
    return _copy(
        table,
        properties={**metadata.properties, "commit.manifest.min-count-to-merge": "10"},
        snapshots=[s for s in metadata.snapshots if s.snapshot_id == metadata.current_snapshot_id],
        snapshot_log=[],
    )


V3 = 3
_FIELDS = {f.name: at for at, f in enumerate(DATA_FILE_TYPE[V3].fields)}
_LISTED = {f.name: at for at, f in enumerate(MANIFEST_LIST_FILE_SCHEMAS[V3].fields)}


class _WritableMetadata(TableMetadataV3):
    """Metadata of version 3, written as that of version 2 is."""

    def model_dump_json(self, *arguments: Any, **options: Any) -> str:
        return IcebergBaseModel.model_dump_json(self, *arguments, **options)


def with_version_3(catalog: Catalog) -> Catalog:
    """Return the catalog; if its client writes the metadata, it writes that of format version 3, too, from now on.

    PyIceberg (as of 0.12) reads all of it and refuses to write it (apache/iceberg-python#1551; #3551 removes the
    refusal). A field that its model does not know would be lost: such a commit is refused here.
    """
    if isinstance(catalog, MetastoreCatalog):
        write = catalog._write_metadata

        def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
            if isinstance(metadata, TableMetadataV3):
                if metadata.metadata_log:
                    _check_fields_kept(io, metadata.metadata_log[-1].metadata_file)
                fields = {"next_row_id": 0} if metadata.next_row_id is None and not metadata.snapshots else {}
                metadata = _WritableMetadata.model_construct(**{**dict(metadata), **fields})
            write(metadata, io, metadata_path)

        catalog._write_metadata = write_metadata  # type: ignore[method-assign]
    return catalog


def _check_fields_kept(io: FileIO, path: str) -> None:
    """Refuse to replace a metadata file that has fields which PyIceberg's model would drop.

    Raises:
        TableUnavailableError: it has such fields.
    """
    with io.new_input(path).open() as file, Compressor.get_compressor(path).stream_decompressor(file) as plain:
        before = json.load(plain)
    after = json.loads(IcebergBaseModel.model_dump_json(TableMetadataUtil.parse_obj(before)))
    if lost := sorted(set(_missing_fields(before, after))):
        raise TableUnavailableError(
            f"PyIceberg would drop these fields of the table's metadata: {', '.join(lost)}.",
            metadata=path,
            next_step="Another engine set them. Remove what they describe there; encrypted tables are not supported.",
        )


def _missing_fields(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The fields of a JSON document, by path, that another lacks; a field without a value is none."""
    if isinstance(before, dict):
        for name, value in before.items():
            if value is not None and (not isinstance(after, dict) or name not in after):
                yield f"{path}{name}"
            elif value is not None:
                yield from _missing_fields(value, after[name], f"{path}{name}.")
    elif isinstance(before, list):
        for index, value in enumerate(before):
            yield from _missing_fields(value, after[index] if index < len(after) else None, path)


_upgrade = _apply_table_update.dispatch(UpgradeFormatVersionUpdate)


@_apply_table_update.register(UpgradeFormatVersionUpdate)
def _upgrade_to_version_3(
    update: UpgradeFormatVersionUpdate, base_metadata: TableMetadata, context: _TableMetadataUpdateContext
) -> TableMetadata:
    """PyIceberg (as of 0.12) refuses to upgrade to version 3 (apache/iceberg-python#3622). Row ids begin at 0."""
    if (base_metadata.format_version, update.format_version) != (2, V3):
        return _upgrade(update, base_metadata, context)
    context.add_update(update)
    upgraded = base_metadata.model_copy(update={"format_version": V3, "next_row_id": 0})
    return TableMetadataUtil._construct_without_validation(upgraded)


def add_empty_snapshot(transaction: Transaction, properties: Mapping[str, str]) -> None:
    """Stage a snapshot of main that adds no files.

    PyIceberg (as of 0.12) can't write the manifest list of version 3 (apache/iceberg-python#3620). In an upgraded table
    the rows of files that have no row ids yet get theirs here, as in any first snapshot after the upgrade.
    """
    append = transaction.update_snapshot(dict(properties)).fast_append()
    metadata, table = transaction.table_metadata, transaction._table
    if not isinstance(metadata, TableMetadataV3):
        append.commit()
        return
    parent, first = metadata.current_snapshot(), metadata.next_row_id or 0
    manifests = list(_read_manifest_list(table.io, parent.manifest_list)) if parent else []
    following = first
    for each in manifests:
        if each.content == ManifestContent.DATA and each[_LISTED["first_row_id"]] is None:
            each[_LISTED["first_row_id"]] = following
            following += (each.added_rows_count or 0) + (each.existing_rows_count or 0)
    parent_id, number = parent and parent.snapshot_id, metadata.next_sequence_number()
    path = table.location_provider().new_metadata_location(f"snap-{append.snapshot_id}-0-{append.commit_uuid}.avro")
    with AvroOutputFile[ManifestFile](
        table.io.new_output(path),
        MANIFEST_LIST_FILE_SCHEMAS[V3],
        "manifest_file",
        metadata={
            "snapshot-id": str(append.snapshot_id),
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
            "sequence-number": str(number),
            "first-row-id": str(first),
            "format-version": str(V3),
        },
    ) as writer:
        writer.write_block(manifests)
    snapshot = Snapshot(
        snapshot_id=append.snapshot_id,
        parent_snapshot_id=parent_id,
        sequence_number=number,
        manifest_list=path,
        summary=append._summary(dict(properties)),
        schema_id=metadata.current_schema_id,
        first_row_id=first,
        added_rows=following - first,
    )
    head = SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot.snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    unmoved = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=parent_id)
    transaction._apply((AddSnapshotUpdate(snapshot=snapshot), head), (unmoved,))


def _read_manifest_list(io: FileIO, path: str) -> Iterator[ManifestFile]:
    with AvroFile[ManifestFile](
        io.new_input(path),
        MANIFEST_LIST_FILE_SCHEMAS[V3],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as reader:
        yield from reader


def read_live_entries(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """Return a manifest's live entries, with the fields of version 3, which PyIceberg (as of 0.12) leaves out."""
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[V3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        entries = [entry for entry in reader if entry.status != ManifestEntryStatus.DELETED]
    return [_inherit_from_manifest(entry, manifest) for entry in entries]


def referenced_data_file(file: DataFile) -> str | None:
    """Return the one data file that a deletion vector is about; `file` is of `read_live_entries`."""
    path: str | None = file[_FIELDS["referenced_data_file"]]
    return path


HIVE_LOCKS = "hadoop.iceberg.engine.hive.lock-enabled"
"""The setting of Iceberg in Java by which Hive's metastore compares commits instead of locking tables."""

HIVE_COLUMNS_BY_POSITION = "hive.metastore.disallow.incompatible.col.type.changes"
"""The metastore's setting by which a column must keep its place."""


class HiveConnections:
    """A Hive catalog's connections: one per use, whose commits are refused if another commit came first.

    PyIceberg (as of 0.12) has one connection for all threads. Its commits rely on the metastore's lock alone, which may
    expire before the commit, and which writers without locks do not take. A metastore with HIVE-26882 compares the
    metadata file that a commit replaces; others ignore the request. PyIceberg has no commit without a lock.
    """

    def __init__(self, catalog: Any) -> None:
        self._catalog, self._own = catalog, threading.local()

    def __enter__(self) -> Any:
        from hive_metastore import ttypes  # needs Thrift

        connection = self._catalog._create_hive_client(self._catalog.properties)
        client = connection.__enter__()
        self._own.open = [*getattr(self._own, "open", []), connection]
        alter = client.alter_table_with_environment_context

        def alter_if_unchanged(dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any) -> None:
            replaced = new_tbl.parameters.get("previous_metadata_location")
            renamed = f"{dbname}.{tbl_name}".lower() != f"{new_tbl.dbName}.{new_tbl.tableName}".lower()
            if replaced and not renamed:
                environment_context.properties |= {
                    "expected_parameter_key": "metadata_location",
                    "expected_parameter_value": replaced,
                }
            try:
                alter(dbname, tbl_name, new_tbl, environment_context)
            except ttypes.MetaException as error:
                if "table has been modified" in str(error):
                    raise CommitFailedException(f"{dbname}.{tbl_name} has been changed meanwhile.") from error
                raise
            except ttypes.InvalidOperationException as error:
                if "incompatible" in str(error):
                    raise TableUnavailableError(
                        f"Hive's metastore refuses the new columns: {error}",
                        table=f"{dbname}.{tbl_name}",
                        next_step=f"Set {HIVE_COLUMNS_BY_POSITION} to false in the metastore.",
                    ) from error
                raise

        client.alter_table_with_environment_context = alter_if_unchanged
        if self._catalog.properties.get(HIVE_LOCKS) == "false":
            client.lock = lambda _: ttypes.LockResponse(lockid=0, state=ttypes.LockState.ACQUIRED)
            client.unlock = lambda _: None
        return client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.open.pop().__exit__(kind, error, trace)


def with_hive_connections(catalog: Catalog) -> Catalog:
    """Return the catalog; if it is Hive's, it has `HiveConnections` from now on. Others are not changed."""
    if type(catalog).__module__ == "pyiceberg.catalog.hive":
        catalog._client = HiveConnections(catalog)  # type: ignore[attr-defined]
    return catalog


def _copy(table: Table, properties: dict[str, str], **changes: Any) -> Table:
    # PyIceberg warns of this property, which is for Spark, at each write.
    kept = {name: value for name, value in properties.items() if name != "write.parquet.row-group-size-bytes"}
    metadata = table.metadata.model_copy(update={"properties": kept, **changes})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)
