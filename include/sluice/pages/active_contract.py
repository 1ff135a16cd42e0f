"""The active contract of a table, as YAML, and how the contract file differs from it."""

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
    from sluice.evolve.diff import ContractChange
    from sluice.evolve.pending_change import PendingChange


@dataclass(frozen=True)
class ActiveContract:
    """The contract that batches are published with.

    Attributes:
        contract: with `columns: auto`, it has the table's current columns, and `auto` as in the file.
        text: the non-default settings as YAML.
        version: counted from 1; None without a table, or for a table that records no version.
        difference: whether the file differs, and when that takes effect; empty if it does not. Always empty with
            `columns: auto`: the status reports those changes, with the help of the registry.
        changes: how it differs, a line each.
    """

    contract: Contract
    text: str
    version: int | None = None
    difference: str = ""
    changes: Sequence[str] = ()


def from_file(file: Contract) -> ActiveContract:
    """Take the contract file as the active contract."""
    settings = file.model_dump(mode="json", exclude_defaults=True)
    return ActiveContract(file, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def read_active_contract(catalog: Catalog, table: Table | None, file: Contract) -> ActiveContract:
    """Read the active contract; without a table it is the file.

    Raises:
        SchemaChangeError: The table's properties do not tell the active contract.
    """
    if table is None:
        return from_file(file)
    version = active_contract.ContractVersion.from_table(table)
    active = from_file(active_contract.resolve_publish_contract(table, file))
    active = replace(active, version=version.version if version else None)
    if file.auto:
        return replace(active, contract=active.contract.model_copy(update={"auto": file.auto}))
    try:
        found = evolve.find_pending_change(catalog, table, file)
    except SchemaChangeError as error:
        return replace(active, difference=f"The contract file differs from the active contract: {error}")
    changes = [f"{c.description} ({c.kind})" for c in found.changes if c not in found.ignored]
    return replace(active, difference=_describe_difference(found, changes), changes=changes)


def _describe_difference(found: PendingChange, changes: Sequence[str]) -> str:
    effects = {
        "open": " and waits for approval",
        "rejected": f", and the change was rejected{found.answer_text}",
        "approved": ", and the approved change takes effect with the next run",
        None: ", and the change takes effect with the next run",
    }
    parts = [f"The contract file differs from the active contract{effects[found.review]}."] if changes else []
    if found.ignored:
        parts.append(f"schema_policy ignores these differences: {_join_descriptions(found.ignored)}.")
    return " ".join(parts)


def _join_descriptions(changes: Sequence[ContractChange]) -> str:
    return "; ".join(change.description for change in changes)
