"""Registers all tables in another catalog, by their present metadata files. No file is copied.

In: two catalogs. Out: a preview; then one registration per table. Each may be repeated. No JVM.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.typedef import Identifier

from sluice.contract.folder import Contracts
from sluice.errors import RefusedError
from sluice.iceberg import table_names, tables
from sluice.operate.operator_input import Decision

REGISTERED = "sluice.registered"
"""Property of a namespace: from which catalog its tables came, by whose decision and why, as JSON."""


@dataclass(frozen=True)
class Registration:
    """The tables of a catalog, by what another one has of them.

    Attributes:
        missing: with the metadata file by which each is registered.
        same: those that are registered by that file already.
        differing: those that the other catalog has by another metadata file.
    """

    missing: dict[Identifier, str]
    same: tuple[Identifier, ...]
    differing: tuple[Identifier, ...]

    def lines(self) -> list[str]:
        """The preview as text."""
        return [
            *(f"register  {'.'.join(name)}  {file}" for name, file in self.missing.items()),
            *(f"done      {'.'.join(name)}" for name in self.same),
            *(f"differs   {'.'.join(name)}" for name in self.differing),
        ]


def find_tables(contracts: Contracts, catalog: Catalog, other: Catalog) -> Registration:
    """Compare the typed tables of the contracts, and all of Sluice's own tables, with those of another catalog.

    Args:
        contracts: those whose tables move.
        catalog: the one that has the tables.
        other: the one that is to have them.
    """
    missing: dict[Identifier, str] = {}
    same, differing = list[Identifier](), list[Identifier]()
    names = [*map(table_names.typed, contracts.tables.values()), *_own_tables(catalog)]
    for name in dict.fromkeys(names):
        here, there = tables.load(catalog, name), tables.load(other, name)
        if here is None:
            continue
        if there is None:
            missing[name] = here.metadata_location
        else:
            (same if there.metadata_location == here.metadata_location else differing).append(name)
    return Registration(missing, tuple(same), tuple(differing))


def register(found: Registration, catalog: Catalog, other: Catalog, decision: Decision) -> None:
    """Register what is missing, and record the decision as a property of the other catalog's namespace `sluice`.

    Raises:
        RefusedError: the other catalog has a table in another state; nothing was registered.
    """
    if found.differing:
        raise RefusedError(
            f"Catalog {other.name!r} has another state of {len(found.differing)} tables.",
            tables=[".".join(name) for name in found.differing],
            next_step="Compare them. If that catalog's are older: drop them there, without PURGE, and run this again.",
        )
    for name, file in found.missing.items():
        other.create_namespace_if_not_exists(name[:-1], catalog.load_namespace_properties(name[:-1]))
        other.register_table(name, file)
    if found.missing:
        note = {"from": catalog.name, "who": decision.who, "why": decision.why, "at": datetime.now(UTC).isoformat()}
        other.update_namespace_properties(table_names.LEDGER[:1], updates={REGISTERED: json.dumps(note)})


def _own_tables(catalog: Catalog) -> list[Identifier]:
    found: list[Identifier] = []
    for namespace in (table_names.LEDGER[0], table_names.STAGING, table_names.QUARANTINE, table_names.DELETES):
        try:
            found += catalog.list_tables(namespace)
        except NoSuchNamespaceError:
            continue
    return found
