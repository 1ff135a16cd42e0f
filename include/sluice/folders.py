"""Whether a table's folder is its own, which clean-up lists to its last leaf.

What this table does not name is an orphan there: of another table whose files lie in it, nothing would be left.
Another's files may get there by a catalog that lays out `warehouse/namespace/table` (`shop.orders.items` lies in the
folder of `shop.orders`), or by a location or a property that somebody set.

A table that can't be read does not tell where its files are. What `sluice.maintenance` remembers of it does, for those
that it had written by then: so files that are older than that can be told from orphans, and younger ones are left.

Another catalog on the same warehouse may have a table of the same name, hence in the same folder, of which nothing is
known here but its metadata files, which say whose they are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from gzip import BadGzipFile
from posixpath import basename, normpath
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice import tables, upkeep
from sluice.contracts import Contracts
from sluice.errors import FolderSharedError, TableDamagedError, first_line
from sluice.upkeep import Seen

log = logging.getLogger(__name__)

METADATA_FILE = ".metadata.json"
# A table names its last fifty, and removes older ones: what else lies there, attempts at commits have left.
MOST_READ = 100
PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


@dataclass(frozen=True)
class Folders:
    """Where the files of tables go: Sluice's own, and all others in the namespaces that these are in, or below them.

    Attributes:
        read: per table that can be read.
        others: of these the ones that are not Sluice's own, which nobody but this remembers.
        damaged: per table whose metadata is not there or can't be read, what was last seen of it; None: nothing.
        unknown: what the catalog lists and does not show: perhaps no table of Iceberg's.
        at: when the first of them was read.
    """

    read: Mapping[str, tuple[str, ...]]
    others: frozenset[str] = frozenset()
    damaged: Mapping[str, Seen | None] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


def known(contracts: Contracts, catalog: Catalog) -> Folders:
    """Look where the files of all tables go, as far as they can be read."""
    at = datetime.now(UTC)
    own = {s.identifier for s in upkeep.subjects(contracts)}
    others = {i for n in sorted({i[:-1] for i in own}) for i in _listed(catalog, n)} - own
    read: dict[str, tuple[str, ...]] = {}
    damaged: set[str] = set()
    unknown: set[str] = set()
    for identifier in sorted(own | others):
        name = ".".join(identifier)
        try:
            if table := tables.load(catalog, identifier):
                read[name] = written(table)
        except TableDamagedError as error:
            log.warning("%s", error)
            damaged.add(name)
        except Exception as error:
            if identifier in own:
                raise
            log.warning("%s: not known where its files are: %s", name, first_line(error))
            unknown.add(name)
    seen = upkeep.seen(catalog, damaged) if damaged else {}
    named = frozenset(".".join(i) for i in others)
    return Folders(read, named & read.keys(), {name: seen.get(name) for name in damaged}, frozenset(unknown), at)


def _listed(catalog: Catalog, namespace: Identifier) -> Iterator[Identifier]:
    try:
        yield from (tuple(i) for i in catalog.list_tables(namespace))
        below = catalog.list_namespaces(namespace)
    except NoSuchNamespaceError:
        return
    for each in below:
        yield from _listed(catalog, tuple(each))


def written(table: Table) -> tuple[str, ...]:
    """The folders that a table's files go to."""
    return (table.location(), *(table.properties[name] for name in PATHS if name in table.properties))


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
    inside = {o: f for o, each in sorted(everywhere.items()) if o != name for f in each if _within(f, folder)}
    # Where the catalog lays out tables by their names.
    inside |= {o: f"{folder}, perhaps" for o in sorted(found.unknown) if o.startswith(f"{name}.")}
    if inside:
        told = ", ".join(f"{other} in {its}" for other, its in inside.items())
        raise FolderSharedError(f"Files of other tables lie in this one's folder {folder}: {told}.", table=name)
    return min((seen.at for seen in remembered.values()), default=None)


def check_alone(table: Table, catalog: Catalog, before: Collection[str]) -> None:
    """Refuse to clean up a folder to which another table writes: one that this catalog does not know, or has elsewhere.

    Two catalogs of which one was copied from the other can't be told apart so: both have the same tables.

    Args:
        before: the ids of tables that had the name and are gone: made anew, a table has another.

    Raises:
        FolderSharedError: with the metadata file.
    """
    own = {basename(f) for f in (table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log))}
    mine, folder = str(table.metadata.table_uuid), f"{table.location().rstrip('/')}/metadata"
    known, earlier = {mine, *before}, set[str]()
    for name in [n for n in _metadata_files(table.io, folder) if n not in own][:MOST_READ]:
        theirs = _read(table.io, f"{folder}/{name}")
        earlier |= {str(theirs.get("table-uuid"))} & known - {mine}
        # Of two that make a table at once, the one that came second leaves the file of a table that never was.
        if theirs.get("snapshots") and (uuid := theirs.get("table-uuid")) not in known:
            raise FolderSharedError(
                f"Another table, {uuid}, writes to this one's folder, and this catalog does not know it: "
                f"{folder}/{name}.",
                table=".".join(table.name()),
                way_out="Nothing was removed. Does another catalog use the same warehouse? Each needs a folder of its "
                "own. If that table is gone for good, say because this one was dropped and made anew, delete its "
                "metadata files by hand: then its other files are orphans.",
            )
    if earlier:
        _check_not_renamed(table, catalog, earlier)


def _check_not_renamed(table: Table, catalog: Catalog, earlier: Collection[str]) -> None:
    """Refuse where a table that had the name is still there under another, in whatever namespace: its files are here.

    Renamed, or dropped and registered anew, it keeps its folder; ours was then made anew beside it.
    """
    for identifier in (i for n in catalog.list_namespaces() for i in _listed(catalog, tuple(n))):
        try:
            other = tables.load(catalog, identifier) if identifier != table.name() else None
        except Exception as error:  # noqa: BLE001 - a table of another kind, or of somebody else's
            log.info("%s: not known whether it was %s once: %s", identifier, table.name(), first_line(error))
            continue
        if other and str(other.metadata.table_uuid) in earlier:
            raise FolderSharedError(
                f"{'.'.join(identifier)} had this one's name once, and its files lie in the same folder, "
                f"{table.location()}.",
                table=".".join(table.name()),
                way_out=f"Nothing was removed. Write {'.'.join(identifier)} anew to a folder of its own (CREATE TABLE "
                "… AS SELECT) and drop it without PURGE; until then this one's orphan files stay.",
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


def _within(inner: str, outer: str) -> bool:
    """Whether a folder is another one or lies below it."""
    (host, path), (other, above) = _place(inner), _place(outer)
    return (host == other or not host or not other) and f"{path}/".startswith(f"{above.rstrip('/')}/")


def _place(address: str) -> tuple[str, str]:
    """Host or bucket, and path. The scheme does not count: s3 and s3a are the same place."""
    _, named, rest = address.partition("://")
    host, _, path = rest.partition("/") if named else ("", "", address.removeprefix("file:").lstrip("/"))
    return host, normpath(f"/{path}")
