"""Whether a table's folder is its own, which clean-up lists to its last leaf.

What this table does not name is an orphan there: of another table whose files lie in it, nothing would be left.
Another's files may get there by a catalog that lays out `warehouse/namespace/table` (`shop.orders.items` lies in the
folder of `shop.orders`), or by a location or a property that somebody set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from posixpath import normpath

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from sluice import tables, upkeep
from sluice.contracts import Contracts
from sluice.errors import FolderSharedError, first_line

log = logging.getLogger(__name__)

PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")

Folders = Mapping[str, tuple[str, ...]]


def known(contracts: Contracts, catalog: Catalog) -> Folders:
    """Per table where its files go: Sluice's own, and all others in the namespaces that these are in, or below them.

    Raises:
        TableDamagedError: one of Sluice's own can't be read, so that nobody knows where its files are.
    """
    own = {s.identifier for s in upkeep.subjects(contracts)}
    found = {".".join(i): _written(table) for i in sorted(own) if (table := tables.load(catalog, i))}
    others = {i for n in sorted({i[:-1] for i in own}) for i in _listed(catalog, n)} - own
    for identifier in sorted(others):
        try:
            table = tables.load(catalog, identifier)
        except Exception as error:  # noqa: BLE001 - no table of ours, and perhaps none of Iceberg's
            log.warning("%s: not known where its files are: %s", ".".join(identifier), first_line(error))
            continue
        if table:
            found[".".join(identifier)] = _written(table)
    return found


def _listed(catalog: Catalog, namespace: Identifier) -> Iterator[Identifier]:
    try:
        yield from (tuple(i) for i in catalog.list_tables(namespace))
        below = catalog.list_namespaces(namespace)
    except NoSuchNamespaceError:
        return
    for each in below:
        yield from _listed(catalog, tuple(each))


def _written(table: Table) -> tuple[str, ...]:
    return (table.location(), *(table.properties[name] for name in PATHS if name in table.properties))


def check_own(name: str, folder: str, found: Folders) -> None:
    """Refuse to clean up a folder in which another table's files lie.

    Raises:
        FolderSharedError: with the tables and their folders.
    """
    inside = {o: f for o, each in sorted(found.items()) if o != name for f in each if _within(f, folder)}
    if inside:
        told = ", ".join(f"{other} in {its}" for other, its in inside.items())
        raise FolderSharedError(f"Files of other tables lie in this one's folder {folder}: {told}.", table=name)


def _within(inner: str, outer: str) -> bool:
    """Whether a folder is another one or lies below it."""
    (host, path), (other, above) = _place(inner), _place(outer)
    return (host == other or not host or not other) and f"{path}/".startswith(f"{above.rstrip('/')}/")


def _place(address: str) -> tuple[str, str]:
    """Host or bucket, and path. The scheme does not count: s3 and s3a are the same place."""
    _, named, rest = address.partition("://")
    host, _, path = rest.partition("/") if named else ("", "", address.removeprefix("file:").lstrip("/"))
    return host, normpath(f"/{path}")
