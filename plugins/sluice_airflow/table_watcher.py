"""Emits the asset events of tables from Airflow's triggerer (`asset_events: table`): one per snapshot that publishes.

All tables share one catalog. They are looked at when the ledger has changed, because each run writes to it after it has
published; and from time to time, for what a killed application has published.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from sluice.errors import SluiceError
from sluice.iceberg import availability
from sluice_airflow.assets import plain_asset
from sluice_airflow.connections import CATALOG_TIMEOUT_S

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.ledger.offsets_table import Ledger
    from sluice.ledger.table_events import Position, TableEvent

EVERY_S = 3.0
"""How often the ledger's head is read."""
TABLE_EVERY_S = 30.0
"""How often a table is looked at though the ledger is unchanged."""
COUNTS_WAIT_S = 60.0
"""How long an event waits for the ledger to have the counts of records."""
AFTER_ERROR_S = 15.0
STATE = "sluice.reported"
"""The key in the asset's state store."""


class _Lake:
    """The catalog and the ledger that all triggers of this process share."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.catalog: Catalog | None = None
        self.ledger: Ledger | None = None
        self.read_at = -float("inf")

    async def read_ledger_head(self) -> int | None:
        """Return the id of the ledger's snapshot, at most `EVERY_S` old; None without a ledger."""
        async with self.lock:
            if time.monotonic() - self.read_at > EVERY_S * 0.9:
                await sync_to_async(self._refresh)()
                self.read_at = time.monotonic()
        return self.ledger.table.metadata.current_snapshot_id if self.ledger else None

    def _refresh(self) -> None:
        from sluice.ledger import offsets_table

        self.ledger = offsets_table.load_ledger(self._open())

    def look(self, table: str, since: Position | None) -> tuple[Position | None, list[TableEvent], list[TableEvent]]:
        """Read a table: its head, its new events, and those of them whose counts are not in the ledger yet."""
        from sluice.iceberg import tables
        from sluice.ledger import table_events

        with availability.translate_catalog_errors():
            found = tables.load(self._open(), tuple(table.split(".")))
            events = table_events.find_events(found, table, since) if found and since else []
            uncounted = table_events.add_counts(self.ledger, events) if events else []
        return table_events.read_head(found) if found else None, events, uncounted

    def _open(self) -> Catalog:
        self.catalog = self.catalog or availability.open_catalog(CATALOG_TIMEOUT_S)
        return self.catalog


_lake_by_loop: dict[Any, _Lake] = {}


class TableSnapshotsTrigger(BaseEventTrigger):
    """Fires for each snapshot that publishes something to a table.

    Args:
        table: The table's name.
    """

    def __init__(self, table: str) -> None:
        super().__init__()
        self.table = table

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return f"{__name__}.{type(self).__name__}", {"table": self.table}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each new snapshot, oldest first."""
        lake = _lake_by_loop.setdefault(asyncio.get_running_loop(), _Lake())
        watch = _Watch(lake, self.table, self.asset_state_store)
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                events = await watch.look()
            except (SluiceError, AirflowRuntimeError) as error:  # the second: from Airflow's API server
                self.log.warning("%s: its snapshots can't be read: %s", self.table, error)
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            for event in events:
                self.log.info("%s: %s", self.table, event.payload)
                yield TriggerEvent(event.payload)
                watch.emitted(event)


class _Watch:
    """How far one table's snapshots are reported, in memory and in the asset's state store."""

    def __init__(self, lake: _Lake, table: str, store: Any) -> None:
        self.lake, self.table, self.store = lake, table, store
        self.position: Position | None = None
        self.unsaved: Position | None = None
        self.ledger_head: int | None = None
        self.look_at = -float("inf")
        self.waiting_since: dict[int, float] = {}

    async def look(self) -> list[TableEvent]:
        """Return the events to emit, oldest first."""
        # At the look after they were emitted: Airflow stores an event within about a second.
        if self.unsaved:
            await self.store.aset(STATE, asdict(self.unsaved))
            self.unsaved = None
        if self.position is None:
            await self._start()
        head = await self.lake.read_ledger_head()
        now = time.monotonic()
        if head == self.ledger_head and now < self.look_at:
            return []
        at_head, events, uncounted = await sync_to_async(self.lake.look)(self.table, self.position)
        self.ledger_head, self.look_at = head, now + TABLE_EVERY_S
        if ready := self._count_ready(events, uncounted, now):
            return events[:ready]
        if at_head and not events:  # a table that was dropped may come back
            self.position = at_head
        return []

    def emitted(self, event: TableEvent) -> None:
        """Note that an event was emitted."""
        self.position = self.unsaved = event.position
        self.look_at = -float("inf")  # there may be more

    async def _start(self) -> None:
        """Continue where the last trigger ended; the first one begins at the table's head."""
        from sluice.ledger.table_events import Position

        if stored := await self.store.aget(STATE):
            self.position = Position(**stored)
            return
        at_head, _, _ = await sync_to_async(self.lake.look)(self.table, None)
        position = at_head or Position()
        await self.store.aset(STATE, asdict(position))
        self.position = position

    def _count_ready(self, events: list[TableEvent], uncounted: list[TableEvent], now: float) -> int:
        """How many events can be emitted in order; the others wait for their counts."""
        ids = {each.position.snapshot_id for each in uncounted}
        self.waiting_since = {each: self.waiting_since.get(each, now) for each in ids}
        ready = 0
        for event in events:
            since = self.waiting_since.get(event.position.snapshot_id)
            if since is not None and now - since < COUNTS_WAIT_S:
                self.look_at = min(self.look_at, since + COUNTS_WAIT_S)
                break
            ready += 1
        return ready


def watched_asset(table: str) -> Asset:
    """Make the asset of a table with the watcher that emits its events."""
    asset = plain_asset(table)
    watcher = AssetWatcher(name=f"{table}.snapshots", trigger=TableSnapshotsTrigger(table))
    return Asset(name=asset.name, uri=asset.uri, watchers=[watcher])
