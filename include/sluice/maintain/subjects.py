"""Which tables are maintained and by which settings; and `sluice.maintenance`, which keeps what each action did."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.typedef import Identifier

from sluice.contract.folder import Contracts
from sluice.contract.settings import Maintenance
from sluice.contract.values import nearest
from sluice.errors import ConfigError
from sluice.iceberg import own_table, table_names
from sluice.ledger import maintenance_table
from sluice.ledger.maintenance_table import WAITS, Action, Effect

log = logging.getLogger(__name__)


OWN = Maintenance(
    min_input_files=50,
    target_file_size=1 << 20,
    strategy="sort",
    sort_by=("at",),
    snapshot_age=own_table.OWN_AGE,
    min_snapshots=own_table.OWN_LEAST,
)
"""Settings of Sluice's own tables: every run leaves small files there, and they are read for what is new. So what is
old is put away by time, in files that readers pass over and no later rewrite takes up again."""


class Kind(StrEnum):
    """What a table is to Sluice. The order is that of the work, among those that had their turn at the same time."""

    TYPED = "typed"
    QUARANTINE = "quarantine"
    DELETES = "deletes"
    STAGING = "staging"
    OWN = "own"


@dataclass(frozen=True)
class Subject:
    """A table to maintain.

    Attributes:
        group: None for Sluice's own.
        topic: of staging alone.
        history: how long its rows stay, told by their `at`; None: for ever, or by another rule.
    """

    identifier: Identifier
    kind: Kind
    settings: Maintenance
    group: str | None = None
    topic: str | None = None
    history: timedelta | None = None

    @property
    def name(self) -> str:
        """The table's name with dots: none of its parts can hold one."""
        return ".".join(self.identifier)


STAGING_RETENTION, PERSONAL_RETENTION = timedelta(days=30), timedelta(days=14)
"""How long staging keeps raw records where no contract says; the latter where a table hides what they hold. It must be
time enough to repair what was set apart and to answer a review: the quarantine of such a table has no raw records."""


def staging_retention(contracts: Contracts, topic: str) -> timedelta:
    """How long staging keeps a topic's raw records after they are published: the longest that one of its tables wants.

    A table whose contract does not say wants the default, and no less than a rollback may need.
    """
    given = [contracts.tables[name] for name in contracts.topics[topic].tables]
    usual = PERSONAL_RETENTION if any(c.personal for c in given) else STAGING_RETENTION
    said = ((c.maintenance.staging_retention, c.maintenance.snapshot_age) for c in given)
    return max(kept or max(usual, window) for kept, window in said)


def subjects(contracts: Contracts, names: Collection[str] = ()) -> list[Subject]:
    """Every table that the contracts bring about, and Sluice's own, whether it exists yet or not.

    Args:
        names: only these; none: all.

    Raises:
        ConfigError: one is not among them.
    """
    if not contracts.resolved:
        raise ValueError("topics.resolve comes first")  # or staging would be left alone, or trimmed too early
    found: list[Subject] = []
    for contract in contracts.tables.values():
        group = contract.group
        found.append(Subject(table_names.typed(contract), Kind.TYPED, contract.maintenance, group))
        settings = unsorted(contract.maintenance)
        found.append(Subject(table_names.quarantine(contract), Kind.QUARANTINE, settings, group))
        if contract.upsert:
            found.append(Subject(table_names.deletes(contract), Kind.DELETES, settings, group))
    for topic, shared in contracts.topics.items():
        cautious = _cautious(contracts.tables[name].maintenance for name in shared.tables)
        found.append(Subject(table_names.staging(topic), Kind.STAGING, cautious, shared.group, topic))
    found += [Subject(own, Kind.OWN, OWN) for own in (table_names.LEDGER, table_names.SCHEMAS)]
    history = contracts.common.maintenance.history if contracts.common.maintenance else None
    found += [Subject(own, Kind.OWN, OWN, history=history) for own in (table_names.MAINTENANCE, table_names.QUALITY)]
    if unknown := sorted(set(names) - {s.name for s in found}):
        raise ConfigError(
            f"Not maintained by these contracts: {', '.join(unknown)}{nearest(unknown[0], (s.name for s in found))}."
        )
    order = list(Kind)
    chosen = (s for s in found if not names or s.name in names)
    return sorted(chosen, key=lambda s: (order.index(s.kind), s.name))


def unsorted(settings: Maintenance) -> Maintenance:
    """The settings for tables that lack the columns to sort by."""
    return settings.model_copy(update={"strategy": "binpack", "sort_by": ()})


def _cautious(all_settings: Iterable[Maintenance]) -> Maintenance:
    """Of each setting the greatest: it keeps most, and starts least; but for what `staging_retention` tells."""
    given = [unsorted(settings) for settings in all_settings]
    names = Maintenance.model_fields.keys() - {"staging_retention"}
    return Maintenance(**{name: max(getattr(s, name) for s in given) for name in names})


def in_turn(subjects: list[Subject], catalog: Catalog, action: Action) -> list[Subject]:
    """All of them in a circle, from the one on that the last run had no time to look at; see `keep_turn`."""
    fields = ("at", "table", "action", "state")
    waits = {
        e.table: e.at for e in maintenance_table.kept(catalog, action=action, states=(WAITS,), fields=fields, last=True)
    }
    waiting = [s for s in subjects if s.name in waits]
    first = subjects.index(max(waiting, key=lambda s: waits[s.name])) if waiting else 0
    return subjects[first:] + subjects[:first]


def keep_turn(catalog: Catalog, subject: Subject, action: Action, *, run_id: str) -> None:
    """Remember the table that the next run begins with, as there was no time left to look at it."""
    try:
        maintenance_table.keep(catalog, [Effect(subject.name, action, WAITS)], run_id=run_id)
    except CommitFailedException as error:  # it begins where this one did, which is better than to look at all again
        log.warning("%s: it is not kept that %s waits: %s", action, subject.name, error)
