"""What a table holds in storage, by its snapshots' summaries alone: no manifest and no file is read.

In: a table, or a contract. Out: bytes of live files, and of files that only older snapshots need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.iceberg import snapshots, table_names, tables

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from sluice.contract.contract import Contract


@dataclass(frozen=True)
class Held:
    """What one table holds.

    Attributes:
        kind: typed, staging, quarantine or deletes.
        table: its name.
        live: bytes of the current snapshot's files.
        files: how many these are.
        older: bytes of files that only older snapshots need; expiry frees them.
    """

    kind: str
    table: str
    live: int
    files: int
    older: int

    @property
    def stored(self) -> int:
        """All bytes."""
        return self.live + self.older


def read_held(catalog: Catalog, contract: Contract) -> list[Held]:
    """What the table and its staging, quarantine and deletes tables hold, as far as they exist."""
    named = [("typed", table_names.typed(contract))]
    named += [("staging", table_names.staging(topic)) for topic in contract.topics]
    named.append(("quarantine", table_names.quarantine(contract)))
    named += [("deletes", table_names.deletes(contract))] if contract.upsert else []
    found = []
    for kind, identifier in named:
        if table := tables.load(catalog, identifier):
            found.append(measure(kind, table))
    return found


def measure(kind: str, table: Table) -> Held:
    """What one table holds.

    A file that a snapshot removed is still needed by the snapshot before, until that one expires.
    """
    history = list(snapshots.ancestors(table.metadata))
    totals = snapshots.read_totals(history[0] if history else None)
    removed = sum(int(snapshots.summary(each).get("removed-files-size", "0")) for each in history[:-1])
    files = totals.get("files", 0) + totals.get("delete files", 0)
    return Held(kind, ".".join(table.name()), totals.get("bytes", 0), files, removed)
