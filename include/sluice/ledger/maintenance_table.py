"""Table `sluice.maintenance`: what each maintenance action did to each table. In: results. Out: results, by filter.

Maintenance reads it to know when a table was last cleaned and where its files are; the pages show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, TimestamptzType

from sluice.iceberg import own_table, table_names, tables
from sluice.iceberg.filters import above, equal, one_of
from sluice.ledger.newest_rows import read_last_rows, read_newest

COUNTS = ("data_files", "delete_files", "bytes", "manifests", "snapshots")


class Action(StrEnum):
    """A maintenance action, by the name of Iceberg's procedure; DAG ids end with it."""

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

SUMMARY_COLUMNS = (
    *("at", "run_id", "table", "action", "state", "reason", "seconds", "result", "error"),
    *(f"{name}_{when}" for name in COUNTS for when in ("before", "after")),
)
"""The columns that `ActionResult.summary` needs: all but the names of orphan files."""

_KEY_COLUMNS = ("at", "table", "action", "state")


@dataclass
class FileCounts:
    """Files of a table's current snapshot, and its number of snapshots."""

    data_files: int
    delete_files: int
    bytes: int
    manifests: int
    snapshots: int


@dataclass
class ActionResult:
    """What one action did to one table.

    Attributes:
        state: `begun` (the last state if the application was killed); `done`; `idle`: nothing was needed any more;
            `left` to the next run, because another writer came first or another table cannot be read; `failed`;
            `seen`: nothing was done, `result` records where the table's files are; `waits`: the first table that a run
            had no time for.
    """

    table: str
    action: str
    state: str
    reason: str | None = None
    before: FileCounts | None = None
    after: FileCounts | None = None
    seconds: float | None = None
    result: str | None = None
    listing: list[str] = field(default_factory=list)
    error: str | None = None
    run_id: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def failed(self) -> bool:
        """Whether the action failed."""
        return self.state == "failed"

    @property
    def summary(self) -> str:
        """The result in one line."""
        parts = [self.state, self.reason]
        if self.before and self.after:
            pairs = {n: (getattr(self.before, n), getattr(self.after, n)) for n in COUNTS}
            parts += [f"{n.replace('_', ' ')} {was:,} → {now:,}" for n, (was, now) in pairs.items() if was != now]
        if found := json.loads(self.result or "{}").get("listed"):
            parts.append(f"{found:,} orphan files")
        if self.seconds is not None:
            parts.append(f"{self.seconds:.1f} s")
        return ", ".join(part for part in (*parts, self.error) if part)


def write_results(catalog: Catalog, results: Iterable[ActionResult], *, run_id: str) -> None:
    """Write results in one commit; those without a run id get `run_id`.

    Raises:
        CommitFailedException: other writers came first, at each attempt.
    """
    records = []
    for result in results:
        record = asdict(result) | {"run_id": result.run_id or run_id}
        for when in ("before", "after"):
            counts = record.pop(when) or {}
            record |= {f"{name}_{when}": counts.get(name) for name in COUNTS}
        records.append(record)
    if records:
        table = tables.ensure_table(catalog, table_names.MAINTENANCE, SCHEMA)
        own_table.append(table, pa.Table.from_pylist(records, schema=table.schema().as_arrow()))


@dataclass(frozen=True)
class ResultFilter:
    """Which results to read; None: all.

    Attributes:
        since: only results that ended later.
    """

    run_id: str | None = None
    action: Action | None = None
    tables: Iterable[str] | None = None
    states: Iterable[str] | None = None
    since: datetime | None = None

    def apply(self, scan: DataScan) -> DataScan:
        """Return the scan with the filter; it is evaluated per file, as the table has many rows, some of them large."""
        if self.run_id is not None:
            scan = scan.filter(equal("run_id", self.run_id))
        if self.action is not None:
            scan = scan.filter(equal("action", str(self.action)))
        if self.tables is not None:
            scan = scan.filter(one_of("table", self.tables))
        if self.states is not None:
            scan = scan.filter(one_of("state", self.states))
        if self.since is not None:
            scan = scan.filter(above("at", self.since.isoformat()))
        return scan


def read_results(
    catalog: Catalog,
    where: ResultFilter = ResultFilter(),
    *,
    columns: tuple[str, ...] = ("*",),
    newest_only: bool = False,
    limit: int | None = None,
) -> list[ActionResult]:
    """Read results, oldest first.

    Args:
        catalog: the catalog.
        where: which results.
        columns: the columns to read; the fields of the others have their defaults.
        newest_only: only the newest result per table and action.
        limit: only so many of the newest results.
    """
    table = tables.load(catalog, table_names.MAINTENANCE)
    if table is None or table.current_snapshot() is None:
        return []
    names = where.tables if where.tables is None else list(where.tables)
    scan = replace(where, tables=names).apply(table.scan(selected_fields=columns))
    if newest_only:
        actions = tuple(Action) if where.action is None else (where.action,)
        groups = None if names is None else [(name, str(action)) for name in names for action in actions]
        rows = read_newest(scan, ("table", "action"), groups, ("state",))
    elif limit is not None:
        rows = read_last_rows(scan, limit)
    else:
        rows = scan.to_arrow().sort_by([("at", "ascending")])
    return [_result_from_record(record) for record in rows.to_pylist()]


def last_results(catalog: Catalog, names: Iterable[str] | None = None) -> dict[tuple[str, str], ActionResult]:
    """Return the last `done` or `failed` result per table and action, of all tables or of these."""
    where = ResultFilter(tables=names, states=("done", "failed"))
    results = read_results(catalog, where, columns=SUMMARY_COLUMNS, newest_only=True)
    return {(r.table, r.action): r for r in results}


def last_attempts(catalog: Catalog, action: Action) -> dict[str, datetime]:
    """Return when the action was last tried, per table, whatever the result, including a killed application."""
    where = ResultFilter(action=action, states=(BEGUN, *ENDED))
    return {r.table: r.at for r in read_results(catalog, where, columns=_KEY_COLUMNS, newest_only=True)}


def find_tables_without_result(catalog: Catalog, action: Action, names: Iterable[str], *, run_id: str) -> list[str]:
    """Return those of the tables without a result of the action in this run: an earlier application ran out of time."""
    where = ResultFilter(run_id=run_id, action=action, states=ENDED)
    tried = {r.table for r in read_results(catalog, where, columns=_KEY_COLUMNS)}
    return [name for name in names if name not in tried]


@dataclass(frozen=True)
class LastCleanup:
    """When a table's orphan files were last removed.

    Attributes:
        at: when.
        begun: when another action last began to write to the table; if it was killed, it may have left orphan files.
    """

    at: datetime
    begun: datetime | None = None


def read_last_cleanups(catalog: Catalog) -> dict[str, LastCleanup]:
    """Return when orphan files were last removed, per table."""
    begun: dict[str, datetime] = {}
    for result in read_results(catalog, ResultFilter(states=(BEGUN,)), columns=_KEY_COLUMNS, newest_only=True):
        if result.action != Action.ORPHANS:
            begun[result.table] = max(result.at, begun.get(result.table, result.at))
    where = ResultFilter(action=Action.ORPHANS, states=("done", "idle"))
    cleanups = read_results(catalog, where, columns=_KEY_COLUMNS, newest_only=True)
    return {r.table: LastCleanup(r.at, begun.get(r.table)) for r in cleanups}


@dataclass(frozen=True)
class KnownFolders:
    """Where a table's files were when they were last listed.

    Attributes:
        folders: all folders that the table ever had: files stay where they were written.
        at: all files that the table had written until then are in these folders.
        id: the table's uuid; None if it is unknown, or if not all files were listed.
        run_id: the run that listed them.
    """

    folders: tuple[str, ...]
    at: datetime
    id: str | None = None
    run_id: str = ""


def read_known_folders(catalog: Catalog) -> dict[str, KnownFolders]:
    """Return where files were when orphan removal last listed them, by table name and, for renamed ones, by uuid."""
    columns = (*_KEY_COLUMNS, "run_id", "seconds", "result")
    where = ResultFilter(action=Action.ORPHANS, states=(SEEN, "done", "left"))
    found: dict[str, KnownFolders] = {}
    for result in read_results(catalog, where, columns=columns):
        details = json.loads(result.result or "{}")
        if not (folders := details.get("folders")):
            continue
        uuid, at = details.get("id"), result.at - timedelta(seconds=result.seconds or 0)
        for key in filter(None, (result.table, uuid)):
            before = found.get(key)
            # A table that was created again under the name has none of the earlier table's files.
            is_same_table = before and (before.id == uuid or None in (before.id, uuid))
            all_folders = {*folders, *(before.folders if before and is_same_table else ())}
            found[key] = KnownFolders(tuple(sorted(all_folders)), at, uuid, result.run_id)
    return found


def read_table_ids(catalog: Catalog, name: str) -> set[str]:
    """Return the uuids of the tables that maintenance found under a name; a table created again has another one."""
    where = ResultFilter(tables=[name], states=("done", "left"))
    details = (json.loads(r.result or "{}") for r in read_results(catalog, where, columns=(*_KEY_COLUMNS, "result")))
    return {each["id"] for each in details if "id" in each}


def _result_from_record(record: dict[str, Any]) -> ActionResult:
    sizes: dict[str, Any] = {}
    for when in ("before", "after"):
        counts = {name: record.pop(f"{name}_{when}", None) for name in COUNTS}
        sizes[when] = None if None in counts.values() else FileCounts(**counts)
    record["listing"] = record.get("listing") or []
    return ActionResult(**record, **sizes)
