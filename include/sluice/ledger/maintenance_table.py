"""TODO docstring of sluice.ledger.maintenance_table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, TimestamptzType

from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.filters import above, equal, one_of
from sluice.ledger.newest_rows import last_of, newest_of

COUNTS = ("data_files", "delete_files", "bytes", "manifests", "snapshots")


class Action(StrEnum):
    """What maintenance does; also the end of the DAG's name."""

    REWRITE = "rewrite_data_files"
    EXPIRE = "expire_snapshots"
    ORPHANS = "remove_orphan_files"


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
class Size:
    """What an action's effect is told in; counts of the table's head, and of all its snapshots."""

    data_files: int
    delete_files: int
    bytes: int
    manifests: int
    snapshots: int


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
        table = tables.ensure(catalog, table_names.MAINTENANCE, SCHEMA)
        own_table.append(table, pa.Table.from_pylist(records, schema=table.schema().as_arrow()))


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
    table = tables.load(catalog, table_names.MAINTENANCE)
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
