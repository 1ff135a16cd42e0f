"""Divides what applications used among typed tables, per run and per day. In: rows of `sluice.costs`, contracts.

What several tables share is divided equally: the read of a topic among the tables that it feeds; and what an
application used outside its steps, its start above all, among the tables of its steps, staging tables included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from sluice.iceberg import table_names
from sluice.usage.costs_table import APPLICATION, Cost

if TYPE_CHECKING:
    from sluice.contract.folder import Contracts
    from sluice.usage.prices import Prices

INGEST_STEPS = ("stage", "check", "publish")
BACKFILL = "backfill"
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass
class Used:
    """What a table used in some time.

    Attributes:
        cpu: CPU seconds by step.
        records: records published into the table, or replayed.
        runs: runs of applications, or rounds of a continuous group.
        files: files that commits added.
        catalog_calls: calls of the catalog by PyIceberg in the driver.
    """

    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    runs: int = 0
    records: int = 0
    staged_bytes: float = 0.0
    written_bytes: float = 0.0
    removed_bytes: float = 0.0
    files: float = 0.0
    catalog_calls: float = 0.0

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all steps."""
        return sum(self.cpu.values())

    def add(self, row: Cost, share: float) -> None:
        """Add a share of a row."""
        self.cpu[row.step] += row.cpu_seconds * share
        if row.step in ("publish", BACKFILL):
            self.records += row.records or 0
        if row.step == "stage":
            self.staged_bytes += row.bytes_added * share
        else:
            self.written_bytes += row.bytes_added * share
            self.removed_bytes += row.bytes_removed * share
        self.files += row.files_added * share
        self.catalog_calls += row.catalog_calls * share

    def price(self, prices: Prices) -> float:
        """The price of the work, without storage."""
        return prices.work(self.cpu_seconds, self.files, self.catalog_calls)


@dataclass
class TableRun(Used):
    """What one run of an application used for a table; of a continuous group, what a minute of rounds did.

    Attributes:
        kind: `ingest`, `backfill` or `maintain`.
    """

    at: datetime = _NEVER
    since: datetime = _NEVER
    run_id: str = ""
    kind: str = "ingest"


def find_owners(contracts: Contracts) -> dict[str, tuple[str, ...]]:
    """The typed tables that each table serves: itself, or those of a staging, quarantine or deletes table."""
    found: dict[str, tuple[str, ...]] = {}
    for name, contract in contracts.tables.items():
        own = (table_names.typed(contract), table_names.quarantine(contract), table_names.deletes(contract))
        found |= {".".join(each): (name,) for each in own}
    for topic, shared in contracts.topics.items():
        found[".".join(table_names.staging(topic))] = tuple(shared.tables)
    return found


def divide(rows: Iterable[Cost], owners: Mapping[str, Sequence[str]]) -> dict[str, list[TableRun]]:
    """What each run used for each table, oldest first. Rows of tables without a contract are left out.

    Args:
        rows: all rows of a table, and those of the applications.
        owners: as `find_owners` returns them.
    """
    found: dict[str, list[TableRun]] = defaultdict(list)

    def application(row: Cost) -> tuple[datetime, str, str]:
        return row.at, row.run_id, row.application

    for _, together in groupby(sorted(rows, key=application), key=application):
        for name, run in _divide_run([*together], owners).items():
            found[name].append(run)
    return dict(found)


def _divide_run(rows: Sequence[Cost], owners: Mapping[str, Sequence[str]]) -> dict[str, TableRun]:
    """The rows that one application wrote together, by typed table."""
    outside = next((row for row in rows if row.step == APPLICATION), None)
    steps = [row for row in rows if row is not outside]
    kinds = {row.step for row in steps}
    kind = "ingest" if kinds & {*INGEST_STEPS} else BACKFILL if BACKFILL in kinds else "maintain"
    found: dict[str, TableRun] = {}
    for row in steps:
        for name in owners.get(row.table or "", ()):
            run = found.setdefault(name, TableRun(runs=1, at=row.at, since=row.since, run_id=row.run_id, kind=kind))
            run.add(row, 1 / len(owners[row.table or ""]))
    if outside:
        shares: dict[str, float] = defaultdict(float)
        for table in {row.table or "" for row in steps}:
            for name in owners.get(table, ()):
                shares[name] += 1 / len(owners[table]) / max(outside.tables or 1, 1)
        for name, run in found.items():
            run.add(outside, shares[name])
            run.runs = outside.times
    return found


def sum_by_day(runs: Iterable[TableRun]) -> dict[date, Used]:
    """What a table used per day, UTC, oldest first."""
    days: dict[date, Used] = defaultdict(Used)
    for run in sorted(runs, key=lambda each: each.at):
        merge(days[run.at.date()], run)
    return dict(days)


def total(runs: Iterable[Used]) -> Used:
    """The sum."""
    found = Used()
    for run in runs:
        merge(found, run)
    return found


def merge(into: Used, other: Used) -> None:
    """Add what another one used."""
    for step, seconds in other.cpu.items():
        into.cpu[step] += seconds
    for name in ("runs", "records", "staged_bytes", "written_bytes", "removed_bytes", "files", "catalog_calls"):
        setattr(into, name, getattr(into, name) + getattr(other, name))
