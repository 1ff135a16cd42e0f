"""What lies below a table's location, and what its metadata names of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyiceberg.table import Table


def files_on_disk(table: Table) -> set[Path]:
    """Data, delete and manifest files. Metadata files are left out: commits take care of them."""
    folder = Path(table.location().removeprefix("file://"))
    return {path for path in folder.rglob("*") if path.suffix in (".parquet", ".avro")}


def referenced_files(table: Table) -> set[Path]:
    """The files that any snapshot names."""
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return {Path(path.removeprefix("file:").replace("///", "/")) for path in found}


def age_files(table: Table, days: int = 4) -> None:
    """As if the table had not been touched for so long."""
    moment = time.time() - days * 86_400
    for path in Path(table.location().removeprefix("file://")).rglob("*"):
        if path.is_file():
            os.utime(path, (moment, moment))


def read_all_snapshots(table: Table) -> None:
    """Read every snapshot that is left, to its last file."""
    for snapshot in table.metadata.snapshots:
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
