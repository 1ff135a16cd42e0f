"""Which tables are maintained and by which settings; and `sluice.maintenance`, which keeps what each action did."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.typedef import Identifier
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, TimestamptzType

from sluice import tables
from sluice.contract import Maintenance
from sluice.contract_checks import nearest
from sluice.contracts import Contracts
from sluice.errors import ConfigError
from sluice.facts import COUNTS, Size
from sluice.filters import above, equal, one_of
from sluice.newest import last_of, newest_of

log = logging.getLogger(__name__)


class Action(StrEnum):
    """What maintenance does; also the end of the DAG's name."""

    REWRITE = "rewrite_data_files"
    EXPIRE = "expire_snapshots"
    ORPHANS = "remove_orphan_files"


OWN = Maintenance(
    min_input_files=50,
    target_file_size=1 << 20,
    strategy="sort",
    sort_by=("at",),
    snapshot_age=tables.OWN_AGE,
    min_snapshots=tables.OWN_LEAST,
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
        found.append(Subject(tables.typed(contract), Kind.TYPED, contract.maintenance, group))
        settings = unsorted(contract.maintenance)
        found.append(Subject(tables.quarantine(contract), Kind.QUARANTINE, settings, group))
        if contract.upsert:
            found.append(Subject(tables.deletes(contract), Kind.DELETES, settings, group))
    for topic, shared in contracts.topics.items():
        cautious = _cautious(contracts.tables[name].maintenance for name in shared.tables)
        found.append(Subject(tables.staging(topic), Kind.STAGING, cautious, shared.group, topic))
    found += [Subject(own, Kind.OWN, OWN) for own in (tables.LEDGER, tables.SCHEMAS)]
    history = contracts.common.maintenance.history if contracts.common.maintenance else None
    found += [Subject(own, Kind.OWN, OWN, history=history) for own in (tables.MAINTENANCE, tables.QUALITY)]
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


SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType(), required=True, doc="when the action ended"),
    NestedField(2, "run_id", StringType(), required=True, doc="the Airflow run"),
    NestedField(3, "table", StringType(), required=True),
    NestedField(4, "action", StringType(), required=True, doc=", ".join(Action)),
    NestedField(
        5, "state", StringType(), required=True, doc="begun; done, idle (nothing was needed), left, failed; seen, waits"
    ),
    NestedField(6, "reason", StringType(), doc="why it was needed, with the figure"),
    *(NestedField(10 + i, f"{name}_before", LongType()) for i, name in enumerate(COUNTS)),
    *(NestedField(20 + i, f"{name}_after", LongType()) for i, name in enumerate(COUNTS)),
    NestedField(30, "seconds", DoubleType(), doc="how long it took"),
    NestedField(31, "result", StringType(), doc="what the engine reported, as JSON"),
    NestedField(32, "listing", ListType(33, StringType(), element_required=True), doc="the first orphan files"),
    NestedField(34, "error", StringType()),
)

BEGUN, SEEN, WAITS, ENDED = "begun", "seen", "waits", ("done", "idle", "left", "failed")

TOLD = (
    *("at", "run_id", "table", "action", "state", "reason", "seconds", "result", "error"),
    *(f"{name}_{when}" for name in COUNTS for when in ("before", "after")),
)
"""The columns that `Effect.told` needs: not the thousand names of files."""


@dataclass
class Effect:
    """What one action did to one table.

    Attributes:
        state: begun, which stays the last where the application was killed; done; idle, when nothing was needed any
            more; left to the next run, because another writer came first or another table can't be read; failed. Or
            seen: nothing was done to it, and `result` remembers where its files are. Or waits: it is the first that
            there was no time to look at.
    """

    table: str
    action: str
    state: str
    reason: str | None = None
    before: Size | None = None
    after: Size | None = None
    seconds: float | None = None
    result: str | None = None
    listing: list[str] = field(default_factory=list)
    error: str | None = None
    run_id: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def red(self) -> bool:
        """Whether somebody has to look."""
        return self.state == "failed"

    @property
    def told(self) -> str:
        """The effect in one line."""
        parts = [self.state, self.reason]
        if self.before and self.after:
            pairs = {n: (getattr(self.before, n), getattr(self.after, n)) for n in COUNTS}
            parts += [f"{n.replace('_', ' ')} {was:,} → {now:,}" for n, (was, now) in pairs.items() if was != now]
        if found := json.loads(self.result or "{}").get("listed"):
            parts.append(f"{found:,} orphan files")
        if self.seconds is not None:
            parts.append(f"{self.seconds:.1f} s")
        return ", ".join(part for part in (*parts, self.error) if part)


def keep(catalog: Catalog, effects: Iterable[Effect], *, run_id: str) -> None:
    """Write effects into `sluice.maintenance`, in one commit.

    Raises:
        CommitFailedException: somebody else committed first, each of many times.
    """
    records = []
    for effect in effects:
        record = asdict(effect) | {"run_id": effect.run_id or run_id}
        for when in ("before", "after"):
            counts = record.pop(when) or {}
            record |= {f"{name}_{when}": counts.get(name) for name in COUNTS}
        records.append(record)
    if records:
        table = tables.ensure(catalog, tables.MAINTENANCE, SCHEMA)
        tables.append(table, pa.Table.from_pylist(records, schema=table.schema().as_arrow()))


def kept(
    catalog: Catalog,
    *,
    run_id: str | None = None,
    action: Action | None = None,
    names: Iterable[str] | None = None,
    states: Iterable[str] | None = None,
    since: datetime | None = None,
    fields: tuple[str, ...] = ("*",),
    last: bool = False,
    most: int | None = None,
) -> list[Effect]:
    """The effects that were kept, oldest first; all, or those of a run, an action, some tables, some states.

    Args:
        since: only those that ended later.
        fields: which columns are read; the others are as in an effect that says nothing of them.
        last: of each table and action the newest alone.
        most: the newest alone, so many.
    """
    names = names if names is None else list(names)
    table = tables.load(catalog, tables.MAINTENANCE)
    if table is None or table.current_snapshot() is None:
        return []
    # Not only in memory: a year of maintenance is many rows, and some hold a thousand file names.
    scan = table.scan(selected_fields=fields)
    if run_id is not None:
        scan = scan.filter(equal("run_id", run_id))
    if action is not None:
        scan = scan.filter(equal("action", str(action)))
    if names is not None:
        scan = scan.filter(one_of("table", names))
    if states is not None:
        scan = scan.filter(one_of("state", states))
    if since is not None:
        scan = scan.filter(above("at", since.isoformat()))
    if last:
        actions = tuple(Action) if action is None else (action,)
        asked = None if names is None else [(name, str(each)) for name in names for each in actions]
        rows = newest_of(scan, ("table", "action"), asked, ("state",))
    elif most is not None:
        rows = last_of(scan, most)
    else:
        rows = scan.to_arrow().sort_by([("at", "ascending")])
    return [_effect(record) for record in rows.to_pylist()]


def last(catalog: Catalog, names: Iterable[str] | None = None) -> dict[tuple[str, str], Effect]:
    """Per table and action the last effect that tells something: neither idle nor for the next run to do."""
    states = ("done", "failed")
    return {(e.table, e.action): e for e in kept(catalog, names=names, states=states, fields=TOLD, last=True)}


@dataclass(frozen=True)
class Cleaned:
    """When a table's orphan files were last removed.

    Attributes:
        begun: when maintenance last began to write to it; killed, it leaves files, and the table as it was.
    """

    at: datetime
    begun: datetime | None = None


def last_cleaned(catalog: Catalog) -> dict[str, Cleaned]:
    """Per table when its orphan files were last removed."""
    fields = ("at", "table", "action", "state")
    begun: dict[str, datetime] = {}
    for each in kept(catalog, states=(BEGUN,), fields=fields, last=True):
        if each.action != Action.ORPHANS:
            begun[each.table] = max(each.at, begun.get(each.table, each.at))
    done = kept(catalog, action=Action.ORPHANS, states=("done", "idle"), fields=fields, last=True)
    return {e.table: Cleaned(e.at, begun.get(e.table)) for e in done}


def turns(catalog: Catalog, action: Action) -> dict[str, datetime]:
    """Per table when the action was last tried on it, whatever came of that: also where it killed the application."""
    fields, states = ("at", "table", "action", "state"), (BEGUN, *ENDED)
    return {e.table: e.at for e in kept(catalog, action=action, states=states, fields=fields, last=True)}


def in_turn(subjects: list[Subject], catalog: Catalog, action: Action) -> list[Subject]:
    """All of them in a circle, from the one on that the last run had no time to look at; see `keep_turn`."""
    fields = ("at", "table", "action", "state")
    waits = {e.table: e.at for e in kept(catalog, action=action, states=(WAITS,), fields=fields, last=True)}
    waiting = [s for s in subjects if s.name in waits]
    first = subjects.index(max(waiting, key=lambda s: waits[s.name])) if waiting else 0
    return subjects[first:] + subjects[:first]


def keep_turn(catalog: Catalog, subject: Subject, action: Action, *, run_id: str) -> None:
    """Remember the table that the next run begins with, as there was no time left to look at it."""
    try:
        keep(catalog, [Effect(subject.name, action, WAITS)], run_id=run_id)
    except CommitFailedException as error:  # it begins where this one did, which is better than to look at all again
        log.warning("%s: it is not kept that %s waits: %s", action, subject.name, error)


@dataclass(frozen=True)
class Seen:
    """Where a table's files were when it was last looked at.

    Attributes:
        folders: all that it was ever seen to have, as files stay where they were written.
        at: until when all that it had written is in these folders.
        id: the table's; None: not kept, or not all of its files were looked at.
        run_id: the run that saw it.
    """

    folders: tuple[str, ...]
    at: datetime
    id: str | None = None
    run_id: str = ""


def seen(catalog: Catalog) -> dict[str, Seen]:
    """Where tables' files were when a clean-up of orphan files last read them: by name, and by id, for renamed ones."""
    fields = ("at", "run_id", "table", "action", "state", "seconds", "result")
    found: dict[str, Seen] = {}
    for effect in kept(catalog, action=Action.ORPHANS, states=(SEEN, "done", "left"), fields=fields):
        told = json.loads(effect.result or "{}")
        if not (folders := told.get("folders")):
            continue
        identity, at = told.get("id"), effect.at - timedelta(seconds=effect.seconds or 0)
        for key in filter(None, (effect.table, identity)):
            before = found.get(key)
            # A table that was made anew under the name has none of the files of before.
            same = before and (before.id == identity or None in (before.id, identity))
            ever = {*folders, *(before.folders if before and same else ())}
            found[key] = Seen(tuple(sorted(ever)), at, identity, effect.run_id)
    return found


def known_ids(catalog: Catalog, name: str) -> set[str]:
    """The ids of the tables that maintenance found under a name: one that was made anew has another."""
    fields = ("at", "table", "action", "state", "result")
    found = kept(catalog, names=[name], states=("done", "left"), fields=fields)
    return {told["id"] for told in (json.loads(each.result or "{}") for each in found) if "id" in told}


def untried(catalog: Catalog, action: Action, names: Iterable[str], *, run_id: str) -> list[str]:
    """Of these tables those that have not had their turn in this run: an application before it ran out of time."""
    fields = ("at", "table", "action", "state")
    had = {e.table for e in kept(catalog, run_id=run_id, action=action, states=ENDED, fields=fields)}
    return [name for name in names if name not in had]


def _effect(record: dict[str, Any]) -> Effect:
    sizes: dict[str, Any] = {}
    for when in ("before", "after"):
        counts = {name: record.pop(f"{name}_{when}", None) for name in COUNTS}
        sizes[when] = None if None in counts.values() else Size(**counts)
    record["listing"] = record.get("listing") or []
    return Effect(**record, **sizes)
