"""Where the files of all tables lie, as their metadata tells it and as it was when a clean-up saw them last.

A table's location and properties tell where its next files go. Those of before stay where they were written, and are no
less alive: so `sluice.maintenance` remembers each folder that a table was ever seen to have, by its id, until it is
dropped; and of a table that it does not know yet, or has elsewhere, each manifest is read once.

A table that can't be read does not tell where its files are. What is remembered of it does, for those that it had
written by then: so files that are older than that can be told from orphans, and younger ones are left.
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
from sluice.ledger.maintenance_table import Action, Effect, Seen
from sluice.maintain import subjects

log = logging.getLogger(__name__)

PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
# So young no file is taken for an orphan (ORPHAN_FLOOR): the turns of a run load others' tables once.
FRESH = timedelta(hours=12)
# Of tables by the thousand, what was looked at is kept though the application be killed at the next.
PORTION = 500
# A partition, or a hash before the file's name: where there is one there are thousands.
_LEAF = re.compile(r"/([^/]*=[^/]*|[01]{4})(/.*)?$")

_DENIED = re.compile(r"access_?denied", re.IGNORECASE)


@dataclass(frozen=True)
class Folders:
    """Where the files of tables lie: Sluice's own, and all others in the catalog.

    Attributes:
        read: per table that can be read, every folder that it is known to have had.
        damaged: per table that can't be read, what was last seen of it; None: nothing, and it is one of Iceberg's, or
            nobody answered.
        unknown: what the catalog lists, does not show and never has: perhaps no table of Iceberg's.
    """

    read: Mapping[str, tuple[str, ...]]
    damaged: Mapping[str, Seen | None] = field(default_factory=dict)
    unknown: Collection[str] = ()


def known(contracts: Contracts, catalog: Catalog, run_id: str) -> Folders:
    """Look where the files of all tables lie, as far as they can be read, and remember it."""
    own = {s.identifier for s in subjects.subjects(contracts)}
    before = maintenance_table.seen(catalog)
    read: dict[str, tuple[str, ...]] = {}
    damaged: dict[str, Seen | None] = {}
    unknown: set[str] = set()
    every = sorted(own | _all(catalog, {i[:-1] for i in own}))
    for start in range(0, len(every), PORTION):
        fresh: dict[str, Seen] = {}
        for identifier in every[start : start + PORTION]:
            name, at = ".".join(identifier), datetime.now(UTC)
            was = before.get(name)
            if identifier not in own and was and was.run_id == run_id and was.at > at - FRESH:
                read[name] = was.folders
                continue
            try:
                table = tables.load(catalog, identifier)
            except Exception as error:
                if isinstance(error, TableDamagedError) or (was and identifier not in own):
                    damaged[name] = was
                elif identifier in own:
                    raise
                elif isinstance(error, OSError | ServerError | ServiceUnavailableError) and not _forbidden(error):
                    damaged[name] = None  # another time it may be read
                else:
                    unknown.add(name)
                log.warning("%s: not known where its files are: %s", name, first_line(error))
                continue
            if table:
                now = _seen(name, table, before, at)
                read[name] = now.folders
                # Those of Sluice's own tables are kept with what is done to each, too.
                if identifier not in own or not was or (was.id, was.folders) != (now.id, now.folders):
                    fresh[name] = now
        effects = [
            Effect(
                name,
                Action.ORPHANS,
                maintenance_table.SEEN,
                result=json.dumps({"folders": s.folders, "id": s.id}),
                at=s.at,
            )
            for name, s in fresh.items()
        ]
        maintenance_table.keep(catalog, effects, run_id=run_id)
    return Folders(read, damaged, frozenset(unknown))


def _all(catalog: Catalog, must: Collection[Identifier]) -> set[Identifier]:
    """Every table that the catalog lists: a LOCATION may be in any folder, whatever the namespace.

    Args:
        must: the namespaces that have to be listed; others Sluice's user may not be allowed to see.
    """
    found = set(_below(catalog, (), must))
    missed = sorted(set(must) - {i[:-1] for i in found})  # empty, or where namespaces can't be listed from the top
    return found | {i for namespace in missed for i in _below(catalog, namespace, must)}


def _below(catalog: Catalog, namespace: Identifier, must: Collection[Identifier]) -> Iterator[Identifier]:
    try:
        found = [tuple(i) for i in catalog.list_tables(namespace)] if namespace else []
        spaces = catalog.list_namespaces(namespace)
    except NoSuchNamespaceError:
        return
    except Exception as error:
        if namespace in must or not _forbidden(error):
            raise
        log.warning("%s: not known where its tables' files are: %s", ".".join(namespace) or "/", first_line(error))
        return
    yield from found
    for each in spaces:
        yield from _below(catalog, tuple(each), must)


def _forbidden(error: Exception) -> bool:
    """Whether it is Sluice's user who may not see it; Amazon's catalog and PyArrow's storage say so in words alone."""
    return isinstance(error, ForbiddenError | PermissionError) or bool(_DENIED.search(str(error)))


def written(table: Table) -> tuple[str, ...]:
    """The folders that a table's next files go to."""
    return (table.location(), *(table.properties[name] for name in PATHS if name in table.properties))


def _seen(name: str, table: Table, before: Mapping[str, Seen], at: datetime) -> Seen:
    """Every folder that a table is known to have had: now, by its metadata, and as remembered."""
    identity = str(table.metadata.table_uuid)
    was = before.get(identity)
    if was is None and (unnamed := before.get(name)) and unnamed.id is None:
        was = unnamed  # kept by a version of Sluice that remembered no ids
    meta, now = table.metadata, written(table)
    logs = (table.metadata_location, *(e.metadata_file for e in meta.metadata_log))
    folders = {*now, *beyond((*logs, *(s.manifest_list for s in meta.snapshots)), now), *(was.folders if was else ())}
    if was and was.id == identity and folders <= set(was.folders):
        return Seen(was.folders, at, identity)
    try:
        folders |= beyond(_files(table), folders)
    except Exception as error:  # noqa: BLE001 - one of another format, or somebody else's: the rest of it is known
        log.warning("%s: its manifests can't be read, to see where its files are: %s", name, first_line(error))
        return Seen(tuple(sorted(folders)), at)  # without its id, so that it is tried again
    return Seen(tuple(sorted(folders)), at, identity)


def _files(table: Table) -> Iterator[str]:
    """Every file that any snapshot names."""
    manifests = {m.manifest_path: m for s in table.metadata.snapshots for m in s.manifests(table.io)}
    for path, manifest in manifests.items():
        yield path
        yield from (e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io))


def beyond(files: Iterable[str], folders: Collection[str]) -> set[str]:
    """The folders of files that lie in none of these folders."""
    found = {_LEAF.sub("", file.rpartition("/")[0]) for file in files if file}
    return {each for each in found if not any(within(each, folder) for folder in folders)}


def within(inner: str, outer: str) -> bool:
    """Whether a folder or file is a folder or lies below it."""
    (host, path), (other, above) = _place(inner), _place(outer)
    return (host == other or not host or not other) and f"{path}/".startswith(f"{above.rstrip('/')}/")


@lru_cache(1 << 16)  # each table's folders are held against those of all others
def _place(address: str) -> tuple[str, str]:
    """Host or bucket, and path. The scheme does not count: s3 and s3a are the same place."""
    _, named, rest = address.partition("://")
    host, _, path = rest.partition("/") if named else ("", "", address.removeprefix("file:").lstrip("/"))
    return host, normpath(f"/{path}")
