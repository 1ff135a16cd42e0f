"""The trigger that emits a table's asset events: where it begins, what it waits for, and where it continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow_process import isolated_airflow_env, run_in_airflow

pytestmark = pytest.mark.unit

PROGRAM = """
import asyncio, json
import pyarrow as pa
from sluice.batch import RUN_ID, STEP, Batch
from sluice.iceberg import catalog as catalogs
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange
from sluice_airflow import table_watcher

table_watcher.EVERY_S = 0.05
table_watcher.AFTER_ERROR_S = 0.05
table_watcher.COUNTS_WAIT_S = 1.0
NAME = "db.t"
ROW = pa.table({"n": pa.array([1], pa.int64())})
catalog = catalogs.load()
catalog.create_namespace("db")
ledger = Ledger(catalog)
said = {}


class Store:
    # Airflow's has the same methods, and a row per key.
    def __init__(self):
        self.values = {}

    async def aget(self, key, default=None):
        return self.values.get(key, default)

    async def aset(self, key, value):
        self.values[key] = json.loads(json.dumps(value))


def publish(seq, counted=True):
    batch = Batch("t", "id", seq, {0: OffsetRange(5 * seq - 5, 5 * seq)}, {0: 5 * seq})
    table = catalog.load_table(NAME)
    table.append(ROW, snapshot_properties={STEP: "publish", RUN_ID: "r", **batch.properties()})
    if counted:
        count(seq, table.current_snapshot().snapshot_id)


def count(seq, snapshot_id):
    row = LedgerRow("t", LedgerState.PUBLISHED, "id", seq, table=NAME, snapshots={NAME: snapshot_id}, records=5)
    ledger.append([row], run_id="r")


async def collect(store, seconds, during=None, kill_after=None):
    # What a trigger yields within this time; with `kill_after`, it is killed while its n-th event is handed over.
    trigger = table_watcher.TableSnapshotsTrigger(**made.serialize()[1])
    trigger.asset_state_store = store
    events = []

    async def watch():
        async for event in trigger.run():
            events.append([event.payload["batches"]["t"], event.payload["records"]])
            if len(events) == kill_after:
                return

    task = asyncio.create_task(watch())
    if during:
        await asyncio.sleep(seconds / 2)
        during()
    await asyncio.wait([task], timeout=seconds / 2 if during else seconds)
    task.cancel()
    return events


async def main():
    store = Store()
    said["no table"] = await collect(store, 0.5)
    catalog.create_table(NAME, ROW.schema)
    publish(1)
    said["first"] = await collect(store, 0.6)
    publish(2)
    publish(3)
    said["killed"] = await collect(store, 5, kill_after=2)
    said["after it"] = await collect(store, 0.6)
    said["idle"] = await collect(store, 0.4)
    publish(4, counted=False)
    snapshot = catalog.load_table(NAME).current_snapshot().snapshot_id
    publish(5)
    said["early"] = await collect(store, 0.6)
    said["counted"] = await collect(store, 1.2, during=lambda: count(4, snapshot))
    publish(6, counted=False)
    said["not counted"] = await collect(store, 2.0)
    said["new store"] = await collect(Store(), 0.5)


made = table_watcher.TableSnapshotsTrigger(NAME)
assert made.serialize()[0] == "sluice_airflow.table_watcher.TableSnapshotsTrigger"
asyncio.run(main())
print(json.dumps(said))
"""


def test_each_snapshot_is_one_event_across_restarts(tmp_path: Path) -> None:
    env = {
        **isolated_airflow_env(tmp_path),
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{tmp_path}/iceberg.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}",
    }
    said: dict[str, Any] = run_in_airflow(PROGRAM, env)
    assert said == {
        "no table": [],
        "first": [[[1], 5]],  # the table is newer than the watcher
        "killed": [[[2], 5], [[3], 5]],
        "after it": [[[2], 5], [[3], 5]],  # repeated: Airflow may not have stored them
        "idle": [],
        "early": [],  # the fifth waits behind the fourth, whose counts are not in the ledger
        "counted": [[[4], 5], [[5], 5]],
        "not counted": [[[6], None]],
        "new store": [],  # begins at the table's head
    }
