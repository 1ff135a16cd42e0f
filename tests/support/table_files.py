"""The files of a table: those on disk, those that its metadata references, and their age."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyiceberg.table import Table


def files_on_disk(table: Table) -> set[Path]:
    """Return the data, delete and manifest files below the table's location; metadata files are left out."""
    folder = Path(table.location().removeprefix("file://"))
    return {path for path in folder.rglob("*") if path.suffix in (".parquet", ".avro")}


def referenced_files(table: Table) -> set[Path]:
    """Return the files that any snapshot references."""
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return {Path(path.removeprefix("file:").replace("///", "/")) for path in found}


def age_files(table: Table, days: int = 4) -> None:
    """Set the modification time of all files to some days ago."""
    modified = time.time() - days * 86_400
    for path in Path(table.location().removeprefix("file://")).rglob("*"):
        if path.is_file():
            os.utime(path, (modified, modified))


def read_all_snapshots(table: Table) -> None:
    """Read all rows of every remaining snapshot, which fails if a file is missing."""
    for snapshot in table.metadata.snapshots:
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
