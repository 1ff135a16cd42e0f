"""Lists the tables to maintain, each with its settings, and orders them so that every table gets its turn.

In: contracts. Out: `Target`s: typed, quarantine, deletes and staging tables, and Sluice's own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.typedef import Identifier

from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts
from sluice.contract.settings import Maintenance
from sluice.contract.suggestions import did_you_mean
from sluice.errors import ConfigError
from sluice.iceberg import own_table, table_names
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import WAITS, Action, ActionResult

log = logging.getLogger(__name__)


OWN_SETTINGS = Maintenance(
    min_input_files=50,
    target_file_size=1 << 20,
    strategy="sort",
    sort_by=("at",),
    snapshot_age=own_table.MAX_SNAPSHOT_AGE,
    min_snapshots=own_table.MIN_SNAPSHOTS,
)
"""Settings for Sluice's own tables. Every run adds small files there, and readers want the newest rows: sorted by time,
old rows end up in files that readers skip and later rewrites leave alone."""


class TableKind(StrEnum):
    """What a table holds. Tables that are equally due are maintained in this order."""

    TYPED = "typed"
    QUARANTINE = "quarantine"
    DELETES = "deletes"
    STAGING = "staging"
    OWN = "own"


@dataclass(frozen=True)
class Target:
    """A table to maintain.

    Attributes:
        group: None for Sluice's own tables.
        topic: set for staging tables only.
        history: rows whose `at` is older than this are deleted; None: no such rule.
        contract: of a typed table.
    """

    identifier: Identifier
    kind: TableKind
    settings: Maintenance
    group: str | None = None
    topic: str | None = None
    history: timedelta | None = None
    contract: Contract | None = None

    @property
    def name(self) -> str:
        """The table's dotted name. No part of it may contain a dot."""
        return ".".join(self.identifier)


STAGING_RETENTION, PERSONAL_RETENTION = timedelta(days=30), timedelta(days=14)
"""Default retention of raw records in staging; the shorter one where a table masks personal data. Quarantine holds no
raw records of such a table, so staging must keep them long enough to repair records and to answer a review."""


def staging_retention(contracts: Contracts, topic: str) -> timedelta:
    """How long staging keeps a topic's raw records after they are published: the longest that any of its tables needs.

    A table whose contract names no retention needs the default, and at least its rollback window.
    """
    readers = [contracts.tables[name] for name in contracts.topics[topic].tables]
    default = PERSONAL_RETENTION if any(c.has_personal_data for c in readers) else STAGING_RETENTION
    settings = [c.maintenance for c in readers]
    return max(s.staging_retention or max(default, s.snapshot_age) for s in settings)


def list_targets(contracts: Contracts, names: Collection[str] = ()) -> list[Target]:
    """Every table that the contracts define, and Sluice's own, whether it exists yet or not.

    Args:
        names: only these tables; empty: all.

    Raises:
        ConfigError: `names` holds a table that is not among them.
    """
    if not contracts.resolved:  # with topics missing, staging would not be maintained, or trimmed too early
        raise ValueError("the contracts' topics must be resolved first")
    found: list[Target] = []
    for contract in contracts.tables.values():
        group = contract.group
        typed = table_names.typed(contract)
        found.append(Target(typed, TableKind.TYPED, contract.maintenance, group, contract=contract))
        settings = without_sorting(contract.maintenance)
        found.append(Target(table_names.quarantine(contract), TableKind.QUARANTINE, settings, group))
        if contract.upsert:
            found.append(Target(table_names.deletes(contract), TableKind.DELETES, settings, group))
    for topic, shared in contracts.topics.items():
        cautious = _most_cautious(contracts.tables[name].maintenance for name in shared.tables)
        found.append(Target(table_names.staging(topic), TableKind.STAGING, cautious, shared.group, topic))
    kept_forever = (table_names.LEDGER, table_names.PILOT, table_names.SCHEMAS, table_names.WRITER_SCHEMAS)
    found += [Target(own, TableKind.OWN, OWN_SETTINGS) for own in kept_forever]
    history = contracts.common.maintenance.history if contracts.common.maintenance else None
    found += [
        Target(own, TableKind.OWN, OWN_SETTINGS, history=history)
        for own in (table_names.COSTS, table_names.MAINTENANCE, table_names.QUALITY)
    ]
    if unknown := sorted(set(names) - {s.name for s in found}):
        raise ConfigError(
            f"No contract defines {', '.join(unknown)}{did_you_mean(unknown[0], (s.name for s in found))}."
        )
    order = list(TableKind)
    chosen = (s for s in found if not names or s.name in names)
    return sorted(chosen, key=lambda s: (order.index(s.kind), s.name))


def without_sorting(settings: Maintenance) -> Maintenance:
    """The settings for tables that lack the columns to sort by."""
    return settings.model_copy(update={"strategy": "binpack", "sort_by": ()})


def _most_cautious(all_settings: Iterable[Maintenance]) -> Maintenance:
    """The greatest value of each setting: keeps most, starts least. `staging_retention` has its own rule."""
    given = [without_sorting(settings) for settings in all_settings]
    names = Maintenance.model_fields.keys() - {"staging_retention"}
    return Maintenance(**{name: max(getattr(s, name) for s in given) for name in names})


def order_by_turn(targets: list[Target], catalog: Catalog, action: Action) -> list[Target]:
    """Rotate the tables so that the first is the one that the last run saved by `save_turn`."""
    where = maintenance_table.ResultFilter(action=action, states=(WAITS,))
    columns = ("at", "table", "action", "state")
    results = maintenance_table.read_results(catalog, where, columns=columns, newest_only=True)
    waits = {each.table: each.at for each in results}
    waiting = [target for target in targets if target.name in waits]
    first = targets.index(max(waiting, key=lambda target: waits[target.name])) if waiting else 0
    return targets[first:] + targets[:first]


def save_turn(catalog: Catalog, target: Target, action: Action, *, run_id: str) -> None:
    """Record the first table that this run had no time to assess: the next run begins with it."""
    try:
        maintenance_table.write_results(catalog, [ActionResult(target.name, action, WAITS)], run_id=run_id)
    except CommitFailedException as error:  # the next run begins where this one did: some tables just wait longer
        log.warning("%s: could not record that the next run begins with %s: %s", action, target.name, error)
