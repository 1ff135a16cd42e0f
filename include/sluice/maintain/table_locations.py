"""Finds the folders that hold the files of all tables in the catalog, before orphan files are removed.

In: the catalog. Out: `TableFolders`. A table's metadata names the folders of its next files only, so
`sluice.maintenance` records every folder a table ever had. Of a table not recorded yet, all manifests are read once.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from posixpath import normpath

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, ServerError, ServiceUnavailableError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice.contract.folder import Contracts
from sluice.errors import TableDamagedError, first_line
from sluice.iceberg import tables
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import Action, ActionResult, KnownFolders
from sluice.maintain import targets

log = logging.getLogger(__name__)

PATH_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
# How long the applications of one run share what one of them read. No file this young counts as an orphan
# (MIN_ORPHAN_AGE).
REUSE_AGE = timedelta(hours=12)
# After so many tables the folders are recorded, so that an application that is killed has not read them in vain.
CHUNK = 500
# A folder of a partition, or of object storage's hashes: recording each would make thousands.
_LEAF = re.compile(r"/([^/]*=[^/]*|[01]{4})(/.*)?$")

_DENIED = re.compile(r"access_?denied", re.IGNORECASE)


@dataclass(frozen=True)
class TableFolders:
    """The folders that hold the files of all tables in the catalog.

    Attributes:
        readable: per table that can be read, every folder that it is known to have had.
        unreadable: per table that can't be read, the folders recorded for it; None: none are recorded, and it is an
            Iceberg table, or may be one.
        unknown: tables that the catalog lists but never could load: perhaps not Iceberg tables.
    """

    readable: Mapping[str, tuple[str, ...]]
    unreadable: Mapping[str, KnownFolders | None] = field(default_factory=dict)
    unknown: Collection[str] = ()


def find_folders(contracts: Contracts, catalog: Catalog, run_id: str) -> TableFolders:
    """Find the folders of all tables, as far as these can be read, and record them in `sluice.maintenance`."""
    own = {target.identifier for target in targets.list_targets(contracts)}
    known = maintenance_table.read_known_folders(catalog)
    readable: dict[str, tuple[str, ...]] = {}
    unreadable: dict[str, KnownFolders | None] = {}
    unknown: set[str] = set()
    every = sorted(own | _list_all_tables(catalog, {i[:-1] for i in own}))
    for start in range(0, len(every), CHUNK):
        changed: dict[str, KnownFolders] = {}
        for identifier in every[start : start + CHUNK]:
            name, now = ".".join(identifier), datetime.now(UTC)
            before = known.get(name)
            if identifier not in own and before and before.run_id == run_id and before.at > now - REUSE_AGE:
                readable[name] = before.folders
                continue
            try:
                table = tables.load(catalog, identifier)
            except Exception as error:
                if isinstance(error, TableDamagedError) or (before and identifier not in own):
                    unreadable[name] = before
                elif identifier in own:
                    raise
                elif isinstance(error, OSError | ServerError | ServiceUnavailableError) and not _is_forbidden(error):
                    unreadable[name] = None  # temporary: it may be an Iceberg table
                else:
                    unknown.add(name)
                log.warning("%s: its folders are unknown: %s", name, first_line(error))
                continue
            if table:
                found = _folders_of(name, table, known, now)
                readable[name] = found.folders
                # For Sluice's own targets the result of each clean-up records them as well.
                if identifier not in own or not before or (before.id, before.folders) != (found.id, found.folders):
                    changed[name] = found
        _record(catalog, changed, run_id)
    return TableFolders(readable, unreadable, frozenset(unknown))


def _record(catalog: Catalog, found: Mapping[str, KnownFolders], run_id: str) -> None:
    results = [
        ActionResult(
            name,
            Action.ORPHANS,
            maintenance_table.SEEN,
            result=json.dumps({"folders": each.folders, "id": each.id}),
            at=each.at,
        )
        for name, each in found.items()
    ]
    maintenance_table.write_results(catalog, results, run_id=run_id)


def _list_all_tables(catalog: Catalog, required: Collection[Identifier]) -> set[Identifier]:
    """Every table that the catalog lists: a table of any namespace may have its LOCATION in any folder.

    Args:
        required: namespaces that must be listed. Sluice's user need not have access to the others.
    """
    found = set(_list_tables(catalog, (), required))
    # Namespaces that are empty, or in a catalog that does not list namespaces from the top.
    missing = sorted(set(required) - {i[:-1] for i in found})
    return found | {i for namespace in missing for i in _list_tables(catalog, namespace, required)}


def _list_tables(catalog: Catalog, namespace: Identifier, required: Collection[Identifier]) -> Iterator[Identifier]:
    try:
        found = [tuple(i) for i in catalog.list_tables(namespace)] if namespace else []
        children = catalog.list_namespaces(namespace)
    except NoSuchNamespaceError:
        return
    except Exception as error:
        if namespace in required or not _is_forbidden(error):
            raise
        log.warning("%s: the folders of its tables are unknown: %s", ".".join(namespace) or "/", first_line(error))
        return
    yield from found
    for child in children:
        yield from _list_tables(catalog, tuple(child), required)


def _is_forbidden(error: Exception) -> bool:
    """Whether Sluice's user lacks access. Glue and PyArrow's S3 file system say so in the error's text only."""
    return isinstance(error, ForbiddenError | PermissionError) or bool(_DENIED.search(str(error)))


def write_folders(table: Table) -> tuple[str, ...]:
    """The folders that a table's next files are written to."""
    return (table.location(), *(table.properties[name] for name in PATH_PROPERTIES if name in table.properties))


def _folders_of(name: str, table: Table, known: Mapping[str, KnownFolders], now: datetime) -> KnownFolders:
    """Every folder that a table is known to have had: current ones, those in its metadata, and recorded ones."""
    table_id = str(table.metadata.table_uuid)
    before = known.get(table_id)
    if before is None and (without_id := known.get(name)) and without_id.id is None:
        before = without_id  # its manifests could not be read, or an old version of Sluice recorded it
    metadata, current = table.metadata, write_folders(table)
    files = (
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(s.manifest_list for s in metadata.snapshots),
    )
    folders = {*current, *folders_outside(files, current), *(before.folders if before else ())}
    if before and before.id == table_id and folders <= set(before.folders):
        return KnownFolders(before.folders, now, table_id)
    try:
        folders |= folders_outside(_all_files(table), folders)
    except Exception as error:  # noqa: BLE001 - another engine's table or an unknown format: the other folders are known
        log.warning("%s: its manifests can't be read to find its folders: %s", name, first_line(error))
        return KnownFolders(tuple(sorted(folders)), now)  # without the id, so that the next run tries again
    return KnownFolders(tuple(sorted(folders)), now, table_id)


def _all_files(table: Table) -> Iterator[str]:
    """Every file that any snapshot references."""
    manifests = {m.manifest_path: m for s in table.metadata.snapshots for m in s.manifests(table.io)}
    for path, manifest in manifests.items():
        yield path
        yield from (e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io))


def folders_outside(files: Iterable[str], folders: Collection[str]) -> set[str]:
    """The folders of those files that lie in none of `folders`."""
    found = {_LEAF.sub("", file.rpartition("/")[0]) for file in files if file}
    return {each for each in found if not any(is_within(each, folder) for folder in folders)}


def is_within(inner: str, outer: str) -> bool:
    """Whether a folder or file equals `outer` or lies below it."""
    (host, path), (other, above) = _host_and_path(inner), _host_and_path(outer)
    return (host == other or not host or not other) and f"{path}/".startswith(f"{above.rstrip('/')}/")


@lru_cache(1 << 16)  # the folders of each table are compared with those of all others
def _host_and_path(address: str) -> tuple[str, str]:
    """Host or bucket, and path. The scheme is ignored: s3 and s3a are the same place."""
    _, scheme, rest = address.partition("://")
    host, _, path = rest.partition("/") if scheme else ("", "", address.removeprefix("file:").lstrip("/"))
    return host, normpath(f"/{path}")
