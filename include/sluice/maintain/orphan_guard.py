"""Whether a table's folders are its own, which clean-up lists to their last leaves, and which files there may be.

What this table does not name is an orphan there: of another table whose files lie in it, nothing would be left.
Another's files may get there by a catalog that lays out `warehouse/namespace/table` (`shop.orders.items` lies in the
folder of `shop.orders`), by a location or a property that somebody set, if only for a while, or with a table that was
registered under a second name.

Another catalog on the same warehouse may have a table of the same name, hence in the same folder, of which nothing is
known here but its metadata files, which say whose they are.
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
from sluice.maintain.table_locations import Folders, within, written

log = logging.getLogger(__name__)

METADATA_FILE = ".metadata.json"
# A table names its last fifty, and removes older ones: what else lies there, attempts at commits have left.
MOST_READ = 100
# All that writers of Iceberg name by themselves bears one.
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def listed(table: Table) -> tuple[str, ...]:
    """The folders to list for a table's orphan files: none lies in another."""
    found: list[str] = []
    for folder in written(table):
        if not any(within(folder, other) for other in found):
            found = [*(other for other in found if not within(other, folder)), folder]
    return tuple(found)


def may_be_ours(path: str, table: Table) -> bool:
    """Whether a file lies where this table's are written to, as far as that can be said of a file that nothing names.

    What lies beside data and metadata is somebody else's, or of before. A folder that a property names may hold what
    is not Iceberg's at all: there the name has to be as its writers make them.
    """
    folder = table.location().rstrip("/")
    if within(path, f"{folder}/data") or within(path, f"{folder}/metadata"):
        return True
    return bool(_UUID.search(basename(path))) and any(within(path, named) for named in written(table)[1:])


def check(name: str, table: Table, found: Folders, before: Collection[str]) -> datetime | None:
    """Refuse to clean up folders in which another table's files lie, or may lie; as `check_own` and `check_alone`."""
    moments = [check_own(name, folder, found) for folder in listed(table)]
    check_alone(table, before)
    return moments[0]


def check_own(name: str, folder: str, found: Folders) -> datetime | None:
    """Refuse to clean up a folder in which another table's files lie, or may lie.

    Returns:
        The moment after which files may be those of a table that can't be read now; None: all can be.

    Raises:
        FolderSharedError: with the tables and their folders.
        TableDamagedError: with the tables that can't be read and that nothing is remembered of.
    """
    damaged = {other: seen for other, seen in sorted(found.damaged.items()) if other != name}
    if strange := [other for other, seen in damaged.items() if seen is None]:
        raise TableDamagedError(
            f"Files of tables that can't be read, and were never seen before, may lie in this one's folder {folder}: "
            f"{', '.join(strange)}.",
            table=name,
            way_out="Nothing was removed. Restore their metadata, register them anew (catalog.register_table), or drop "
            "them from the catalog if nobody wants them any more. Until then this one's orphan files stay.",
        )
    remembered = {other: seen for other, seen in damaged.items() if seen}
    everywhere = {**found.read, **{other: seen.folders for other, seen in remembered.items()}}
    inside = {o: f for o, each in sorted(everywhere.items()) if o != name for f in each if within(f, folder)}
    # Where the catalog lays out tables by their names.
    inside |= {o: f"{folder}, perhaps" for o in sorted(found.unknown) if o.startswith(f"{name}.")}
    if inside:
        told = ", ".join(f"{other} in {its}" for other, its in inside.items())
        raise FolderSharedError(f"Files of other tables lie in this one's folder {folder}: {told}.", table=name)
    return min((seen.at for seen in remembered.values()), default=None)


def check_alone(table: Table, before: Collection[str]) -> None:
    """Refuse to clean up a folder to which another table writes that this catalog does not know.

    Two catalogs of which one was copied from the other can't be told apart so: both have the same tables.

    Args:
        before: the ids of tables that had the name and are gone: made anew, a table has another. One that was renamed
            is known under its present name.

    Raises:
        FolderSharedError: with the metadata file.
    """
    own = {basename(f) for f in (table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log))}
    known = {str(table.metadata.table_uuid), *before}
    standard = f"{table.location().rstrip('/')}/metadata"
    for folder in dict.fromkeys((standard, table.properties.get("write.metadata.path", standard).rstrip("/"))):
        for name in [n for n in _metadata_files(table.io, folder) if n not in own][:MOST_READ]:
            theirs = _read(table.io, f"{folder}/{name}")
            # Of two that make a table at once, the one that came second leaves the file of a table that never was.
            if theirs.get("snapshots") and (uuid := theirs.get("table-uuid")) not in known:
                raise FolderSharedError(
                    f"Another table, {uuid}, writes to this one's folder, and this catalog does not know it: "
                    f"{folder}/{name}.",
                    table=".".join(table.name()),
                    way_out="Nothing was removed. Does another catalog use the same warehouse? Each needs a folder of "
                    "its own. If that table is gone for good, say because this one was dropped and made anew, delete "
                    "its metadata files by hand: then its other files are orphans.",
                )


def _metadata_files(io: FileIO, folder: str) -> list[str]:
    """The names of the metadata files in a folder, the newest first."""
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        log.warning("%s: %s lists no files: not known whether another table writes there", folder, type(io).__name__)
        return []
    scheme, host, path = io.parse_location(folder, io.properties)
    found = io.fs_by_scheme(scheme, host).get_file_info(FileSelector(path, allow_not_found=True))
    files = [each for each in found if each.base_name.endswith(METADATA_FILE)]
    return [each.base_name for each in sorted(files, key=lambda each: each.mtime_ns or 0, reverse=True)]


def _read(io: FileIO, path: str) -> dict[str, Any]:
    """What a metadata file says; nothing where it is gone by now, or was not written to its end.

    Raises:
        OSError: the storage does not tell.
    """
    file = io.new_input(path)
    try:
        with file.open() as opened, Compressor.get_compressor(path).stream_decompressor(opened) as plain:
            return dict(json.load(plain))
    except (ValueError, EOFError, BadGzipFile, FileNotFoundError) as error:
        log.info("%s can't be read: %s", path, first_line(error))
        return {}
