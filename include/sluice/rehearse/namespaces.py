"""The namespaces of a rehearsal: their prefix, and dropping them with their files.

Whatever is dropped here must begin with a rehearsal's prefix; everything else raises an error.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchNamespaceError

from sluice.contract.values import NAMESPACE_PREFIX
from sluice.doctor import lake
from sluice.errors import TableDamagedError
from sluice.iceberg import tables

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.typedef import Identifier

log = logging.getLogger(__name__)

_PREFIX = re.compile(r"rehearsal_[0-9a-f]{8}_([a-z]+_)?")


def prefix_of(table: str) -> str:
    """Return the prefix of the namespaces in which a table is rehearsed: the same each time, so that leftovers show."""
    return f"rehearsal_{hashlib.sha256(f'{NAMESPACE_PREFIX} {table}'.encode()).hexdigest()[:8]}_"


def find(catalog: Catalog, prefix: str) -> list[Identifier]:
    """Return the namespaces of a rehearsal, inner ones first."""
    check(prefix, (prefix,))
    tops = sorted({each[:1] for each in map(tuple, catalog.list_namespaces()) if each[0].startswith(prefix)})
    return [each for top in tops for each in _inner_first(catalog, top)]


def _inner_first(catalog: Catalog, namespace: Identifier) -> Iterator[Identifier]:
    for child in catalog.list_namespaces(namespace):
        if len(child) > len(namespace):
            yield from _inner_first(catalog, tuple(child))
    yield namespace


def check(prefix: str, identifier: Identifier) -> None:
    """Check that a table or a namespace belongs to a rehearsal.

    Raises:
        ValueError: it does not; this is a bug, and nothing of it may be touched.
    """
    if not _PREFIX.fullmatch(prefix) or not identifier or not identifier[0].startswith(prefix):
        raise ValueError(f"{'.'.join(identifier)!r} does not belong to a rehearsal with the prefix {prefix!r}")


def drop(catalog: Catalog, prefix: str) -> None:
    """Drop all tables of a rehearsal with their files, and its namespaces.

    Raises:
        ValueError: the prefix is not that of a rehearsal, or the catalog lists something else below it.
    """
    for namespace in find(catalog, prefix):
        check(prefix, namespace)
        dropped = [_drop_table(catalog, prefix, tuple(each)) for each in catalog.list_tables(namespace)]
        # What a purge leaves. The folder of the namespace may hold the metadata of all its tables.
        for table in filter(None, dropped):
            lake.remove_folder(table, namespace[0])
        try:
            catalog.drop_namespace(namespace)
        except NoSuchNamespaceError:  # some catalogs have namespaces only as long as these hold tables
            log.info("%s is gone already", ".".join(namespace))


def _drop_table(catalog: Catalog, prefix: str, identifier: Identifier) -> Table | None:
    check(prefix, identifier)
    try:
        table = tables.load(catalog, identifier)
    except TableDamagedError:  # an earlier attempt has removed its files
        catalog.drop_table(identifier)
        return None
    # It warns of each file that is gone already, such as one that two snapshots name.
    purging = logging.getLogger("pyiceberg.catalog")
    level = purging.level
    purging.setLevel(logging.ERROR)
    try:
        catalog.purge_table(identifier)
    finally:
        purging.setLevel(level)
    return table
