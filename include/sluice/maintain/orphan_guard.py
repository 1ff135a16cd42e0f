"""Refuses to clean up a folder that another table shares: there, all files of the other table would count as orphans.

In: a table and the folders of all tables. Out: an error, or the time from which files must stay. Tables share a folder
after `shop.orders` / `shop.orders.items`, a changed location, a second registration, or in another catalog.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection
from datetime import datetime
from gzip import BadGzipFile
from posixpath import basename
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table

from sluice.errors import FolderSharedError, TableDamagedError, first_line
from sluice.maintain.table_locations import TableFolders, is_within, write_folders

log = logging.getLogger(__name__)

METADATA_FILE = ".metadata.json"
# A table references its newest metadata files and removes older ones: the rest is of commits that failed.
MAX_METADATA_READS = 100
# Iceberg's writers put one into the name of every file.
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def folders_to_list(table: Table) -> tuple[str, ...]:
    """The folders to list for a table's orphan files, without those that lie in another of them."""
    found: list[str] = []
    for folder in write_folders(table):
        if not any(is_within(folder, other) for other in found):
            found = [*(other for other in found if not is_within(other, folder)), folder]
    return tuple(found)


def may_belong_to(path: str, table: Table) -> bool:
    """Whether an unreferenced file may be this table's.

    Files beside `data` and `metadata` are not. A folder that a table property names may hold other programs' files:
    there the file's name must contain a UUID, as names by Iceberg's writers do.
    """
    folder = table.location().rstrip("/")
    if is_within(path, f"{folder}/data") or is_within(path, f"{folder}/metadata"):
        return True
    return bool(_UUID.search(basename(path))) and any(is_within(path, other) for other in write_folders(table)[1:])


def check_folders(name: str, table: Table, folders: TableFolders, former_ids: Collection[str]) -> datetime | None:
    """Refuse to clean up if another table's files lie, or may lie, in one of this table's folders.

    Args:
        former_ids: see `check_other_catalogs`.

    Returns:
        See `check_other_tables`.
    """
    limits = [check_other_tables(name, folder, folders) for folder in folders_to_list(table)]
    check_other_catalogs(table, former_ids)
    return limits[0]


def check_other_tables(name: str, folder: str, folders: TableFolders) -> datetime | None:
    """Refuse to clean up a folder if files of another table of this catalog lie, or may lie, in it.

    Returns:
        The time from which files may belong to a table that can't be read now; None: all tables can be read.

    Raises:
        FolderSharedError: with the other tables and their folders.
        TableDamagedError: with the tables that can't be read and have no recorded folders.
    """
    unreadable = {other: known for other, known in sorted(folders.unreadable.items()) if other != name}
    if unrecorded := [other for other, known in unreadable.items() if known is None]:
        raise TableDamagedError(
            "Files of tables that can't be read and have no recorded folders may lie in this table's folder "
            f"{folder}: {', '.join(unrecorded)}.",
            table=name,
            next_step="Nothing was removed. Restore their metadata, register them again (catalog.register_table), or "
            "drop them from the catalog. Until then this table's orphan files stay.",
        )
    recorded = {other: known for other, known in unreadable.items() if known}
    everywhere = {**folders.readable, **{other: known.folders for other, known in recorded.items()}}
    inside = {
        other: path
        for other, paths in sorted(everywhere.items())
        if other != name
        for path in paths
        if is_within(path, folder)
    }
    # Where the catalog's folders follow the tables' names.
    inside |= {other: f"{folder}, perhaps" for other in sorted(folders.unknown) if other.startswith(f"{name}.")}
    if inside:
        found = ", ".join(f"{other} in {path}" for other, path in inside.items())
        raise FolderSharedError(f"Files of other tables lie in this table's folder {folder}: {found}.", table=name)
    return min((known.at for known in recorded.values()), default=None)


def check_other_catalogs(table: Table, former_ids: Collection[str]) -> None:
    """Refuse to clean up if a table that this catalog does not know writes to the table's metadata folder.

    A catalog that is a copy of another can't be detected: both hold the same tables.

    Args:
        former_ids: ids of dropped tables that had this table's name.

    Raises:
        FolderSharedError: with the metadata file.
    """
    entries = table.metadata.metadata_log
    own = {basename(path) for path in (table.metadata_location, *(entry.metadata_file for entry in entries))}
    known = {str(table.metadata.table_uuid), *former_ids}
    standard = f"{table.location().rstrip('/')}/metadata"
    for folder in dict.fromkeys((standard, table.properties.get("write.metadata.path", standard).rstrip("/"))):
        for name in [n for n in _metadata_files(table.io, folder) if n not in own][:MAX_METADATA_READS]:
            metadata = _read_metadata(table.io, f"{folder}/{name}")
            # A table without snapshots: of two attempts to create a table the one that lost.
            if metadata.get("snapshots") and (uuid := metadata.get("table-uuid")) not in known:
                raise FolderSharedError(
                    f"Another table, {uuid}, writes to this table's folder, and this catalog does not know it: "
                    f"{folder}/{name}.",
                    table=".".join(table.name()),
                    next_step="Nothing was removed. If another catalog uses the same warehouse, give each catalog its "
                    "own folder. If that table is gone for good, say because this one was dropped and created again, "
                    "delete its metadata files manually: its other files then count as orphans.",
                )


def _metadata_files(io: FileIO, folder: str) -> list[str]:
    """The names of the metadata files in a folder, newest first."""
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        log.warning("%s: %s can't list files: tables of other catalogs are not detected", folder, type(io).__name__)
        return []
    scheme, host, path = io.parse_location(folder, io.properties)
    found = io.fs_by_scheme(scheme, host).get_file_info(FileSelector(path, allow_not_found=True))
    files = [each for each in found if each.base_name.endswith(METADATA_FILE)]
    return [each.base_name for each in sorted(files, key=lambda each: each.mtime_ns or 0, reverse=True)]


def _read_metadata(io: FileIO, path: str) -> dict[str, Any]:
    """A metadata file's content; empty if the file is gone or incomplete.

    Raises:
        OSError: the storage does not answer.
    """
    file = io.new_input(path)
    try:
        with file.open() as opened, Compressor.get_compressor(path).stream_decompressor(opened) as plain:
            return dict(json.load(plain))
    except (ValueError, EOFError, BadGzipFile, FileNotFoundError) as error:
        log.info("%s can't be read: %s", path, first_line(error))
        return {}
