"""The contract in force beside the contract's file: batches are published by the first, whatever the second says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import yaml

from sluice.errors import SchemaChangeError
from sluice.evolve import evolve
from sluice.iceberg import active_contract

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from sluice.contract.contract import Contract
    from sluice.evolve.diff import Change
    from sluice.evolve.pending_change import Outlook


@dataclass(frozen=True)
class Held:
    """The contract in force.

    Attributes:
        contract: with `columns: auto` the columns that the table has now, and `auto` as in the file.
        text: as YAML, without what is left to its default.
        version: counted from 1; None where there is no table yet, or one that is too old to tell.
        differs: what the file says otherwise, and what becomes of that; empty where it is the same. With `columns:
            auto` nothing is said: that takes the registry, and the status tells of it.
    """

    contract: Contract
    text: str
    version: int | None = None
    differs: str = ""


def written(file: Contract) -> Held:
    """The contract's file alone."""
    told = file.model_dump(mode="json", exclude_defaults=True)
    return Held(file, yaml.safe_dump(told, sort_keys=False, allow_unicode=True))


def look(catalog: Catalog, table: Table | None, file: Contract) -> Held:
    """Find the contract in force; before there is a table it is the file's.

    Raises:
        SchemaChangeError: which one is in force can't be told.
    """
    if table is None:
        return written(file)
    told = active_contract.InForce.of(table)
    held = replace(written(active_contract.published_by(table, file)), version=told.version if told else None)
    if file.auto:
        return replace(held, contract=held.contract.model_copy(update={"auto": file.auto}))
    try:
        differs = _told(evolve.look(catalog, table, file))
    except SchemaChangeError as error:
        differs = f"The contract's file differs from it: {error}"
    return replace(held, differs=differs)


def _told(found: Outlook) -> str:
    becomes = {
        "open": " and waits for an answer",
        "rejected": ", which was rejected",
        "approved": ", which was approved and comes into force with the next run",
        None: ", which comes into force with the next run",
    }
    changes = [c for c in found.changes if c not in found.ignored]
    parts = [f"The contract's file differs{becomes[found.review]}: {_words(changes)}."] if changes else []
    if found.ignored:
        parts.append(f"What it says otherwise and schema_policy ignores: {_words(found.ignored)}.")
    return " ".join(parts)


def _words(changes: Sequence[Change]) -> str:
    return "; ".join(change.words for change in changes)
