"""The consumers of a topic: the typed tables that read it, kept as properties of the topic's staging table.

Contracts may be absent for a while, and another installation has contracts of its own: the catalog knows all consumers.
Maintenance keeps raw records until each of them has published them, or an operator retires it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from sluice.iceberg import refs

PREFIX = "sluice.consumer."
"""Each consumer has a property, `sluice.consumer.<table>`, whose value is the time when it was recorded. Iceberg sets a
property without a condition: of two writers of one list, the second would drop what the first has added."""

RENAMED = "sluice.renamed."
"""Property `sluice.renamed.<table>` of a staging table: the name that a typed table has since it was renamed."""

ATTEMPTS = 10


def read_consumers(staging: Table | None) -> frozenset[str]:
    """Return the names of the typed tables that the staging table records as consumers of its topic."""
    properties = staging.properties if staging else {}
    return frozenset(name.removeprefix(PREFIX) for name in properties if name.startswith(PREFIX))


def read_renamed(staging: Table | None) -> dict[str, str]:
    """Return the new names of typed tables that were renamed, by their old names."""
    properties = staging.properties if staging else {}
    return {old.removeprefix(RENAMED): new for old, new in properties.items() if old.startswith(RENAMED)}


def record_consumers(catalog: Catalog, staging: Table, names: Iterable[str]) -> None:
    """Add typed tables to the consumers of a topic, in one commit; none if they are all there.

    A name that a table had before it was renamed is left out.

    Raises:
        CommitFailedException: other commits came first, at each attempt.
    """
    wanted = frozenset(names)

    def missing(table: Table) -> SetPropertiesUpdate | None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        new = {PREFIX + name: now for name in sorted(wanted - read_consumers(table) - read_renamed(table).keys())}
        return SetPropertiesUpdate(updates=new) if new else None

    _commit(catalog, staging, missing)


def record_renaming(catalog: Catalog, staging: Table, old: str, new: str) -> None:
    """Record the new name of a typed table that reads the topic; the new one may be a name that it had before.

    Raises:
        CommitFailedException: other commits came first, at each attempt.
    """

    def had_before(table: Table) -> RemovePropertiesUpdate | None:
        return RemovePropertiesUpdate(removals=[RENAMED + new]) if new in read_renamed(table) else None

    def missing(table: Table) -> SetPropertiesUpdate | None:
        known = table.properties.get(RENAMED + old) == new
        return None if known else SetPropertiesUpdate(updates={RENAMED + old: new})

    _commit(catalog, staging, had_before)
    _commit(catalog, catalog.load_table(staging.name()), missing)


def remove_consumer(catalog: Catalog, staging: Table, name: str) -> None:
    """Remove a typed table from the consumers of a topic.

    Raises:
        CommitFailedException: other commits came first, at each attempt.
    """

    def present(table: Table) -> RemovePropertiesUpdate | None:
        return RemovePropertiesUpdate(removals=[PREFIX + name]) if name in read_consumers(table) else None

    _commit(catalog, staging, present)


def _commit(catalog: Catalog, staging: Table, find_update: Callable[[Table], TableUpdate | None]) -> None:
    """Commit what a function finds to change in the newest state of the table; again if another commit came first."""
    for attempt in range(ATTEMPTS):
        update = find_update(staging)
        if update is None:
            return
        try:
            refs.commit(catalog, staging, (), (update,))
            return
        except CommitFailedException:
            if attempt == ATTEMPTS - 1:
                raise
            staging = catalog.load_table(staging.name())
