"""What tables cost, for the command line, the pages and the metrics: by day and step, with what they hold in storage.

In: the catalog and contracts. Out: plain values; no JVM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Self

from sluice.ledger import maintenance_table
from sluice.usage import storage, table_costs
from sluice.usage.costs_table import read_costs
from sluice.usage.storage import Held
from sluice.usage.table_costs import TableRun, Used

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.contract.contract import Contract
    from sluice.contract.folder import Contracts
    from sluice.usage.prices import Prices


@dataclass(frozen=True)
class DayFacts:
    """What a table used on a day, UTC, or in several.

    Attributes:
        day: the date; null: of all days that were read.
        runs: runs of applications, or rounds of a continuous group.
        records: records published or replayed.
        cpu_seconds: CPU time of drivers and executors.
        cpu_seconds_by_step: the same by step of `sluice.costs`.
        staged_bytes: bytes of files added to staging.
        written_bytes: bytes of files added to the table and those that belong to it.
        files: data and delete files added.
        catalog_calls: calls of the catalog by PyIceberg in drivers.
        price: of CPU time, files and calls of the catalog; null without a price file.
    """

    day: str | None
    runs: int
    records: int
    cpu_seconds: float
    cpu_seconds_by_step: dict[str, float]
    staged_bytes: float
    written_bytes: float
    files: float
    catalog_calls: float
    price: float | None

    @classmethod
    def of(cls, used: Used, prices: Prices | None, *, day: str | None = None) -> Self:
        """What was used, as plain values."""
        return cls(
            day, used.runs, used.records, used.cpu_seconds, dict(used.cpu), used.staged_bytes, used.written_bytes,
            used.files, used.catalog_calls, used.price(prices) if prices else None,
        )  # fmt: skip


@dataclass(frozen=True)
class StorageFacts:
    """What one table holds in storage.

    Attributes:
        kind: typed, staging, quarantine or deletes.
        table: its name.
        live_bytes: of the current snapshot's files.
        older_bytes: of files that only older snapshots need.
        files: how many the current snapshot has.
        price_per_month: of all its bytes; null without a price file.
    """

    kind: str
    table: str
    live_bytes: int
    older_bytes: int
    files: int
    price_per_month: float | None


@dataclass(frozen=True)
class CostFacts:
    """What one table cost, and what it holds in storage.

    Attributes:
        table: its name.
        at: when it was read.
        days: what it used, oldest day first.
        storage: the table and those that belong to it.
        orphan_files: files of no snapshot that the last clean-up found; null if there was none.
        currency: of the prices; null without a price file.
    """

    table: str
    at: datetime
    days: list[DayFacts]
    storage: list[StorageFacts]
    orphan_files: int | None
    currency: str | None


@dataclass(frozen=True)
class TableCost:
    """What one table cost.

    Attributes:
        days: how many days were read.
        runs: oldest first.
        held: what the table and those that belong to it hold in storage.
        orphans: files of no snapshot that the last clean-up found in these tables; None if it never ran.
    """

    name: str
    at: datetime
    days: int
    runs: Sequence[TableRun]
    held: Sequence[Held]
    orphans: int | None

    @property
    def by_day(self) -> dict[date, Used]:
        """By day, UTC, oldest first."""
        return table_costs.sum_by_day(self.runs)

    def facts(self, prices: Prices | None) -> CostFacts:
        """All of it as plain values, in money too where there are prices."""
        return CostFacts(
            self.name,
            self.at,
            [DayFacts.of(used, prices, day=day.isoformat()) for day, used in self.by_day.items()],
            [
                StorageFacts(
                    each.kind, each.table, each.live, each.older, each.files,
                    prices.storage_month(each.stored) if prices else None,
                )
                for each in self.held
            ],
            self.orphans,
            prices.currency if prices else None,
        )  # fmt: skip


def read_table(catalog: Catalog, contract: Contract, contracts: Contracts, days: int) -> TableCost:
    """Read what one table cost in the last days, and what it holds."""
    now = datetime.now(UTC)
    owners = table_costs.find_owners(contracts)
    names = [name for name, owned_by in owners.items() if contract.table in owned_by]
    rows = read_costs(catalog, now - timedelta(days=days), names)
    runs = table_costs.divide(rows, owners).get(contract.table, [])
    held = storage.read_held(catalog, contract)
    return TableCost(contract.table, now, days, runs, held, _count_orphans(catalog, [each.table for each in held]))


def read_all(catalog: Catalog, contracts: Contracts, days: int) -> dict[str, Used]:
    """Read what each table cost in the last days; those without a cost are left out."""
    rows = read_costs(catalog, datetime.now(UTC) - timedelta(days=days))
    divided: Mapping[str, Sequence[Used]] = table_costs.divide(rows, table_costs.find_owners(contracts))
    return {name: table_costs.total(runs) for name, runs in divided.items()}


def _count_orphans(catalog: Catalog, names: Sequence[str]) -> int | None:
    """The orphan files that the last clean-up of each of these tables listed."""
    where = maintenance_table.ResultFilter(action=maintenance_table.Action.ORPHANS, tables=names, states=("done",))
    found = maintenance_table.read_results(
        catalog, where, columns=("at", "table", "action", "state", "result"), newest_only=True
    )
    return sum(json.loads(each.result or "{}").get("listed", 0) for each in found) if found else None
