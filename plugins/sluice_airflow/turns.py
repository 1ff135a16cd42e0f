"""Turns in a pool: the application of a continuous group ends early if the group's maintenance or a backfill waits."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice import dag_ids
from sluice.contract.groups import GroupSettings
from sluice_airflow import spark_driver

log = logging.getLogger(__name__)

LOOK_S = 15.0


@contextmanager
def watch_pool(group: str, settings: GroupSettings, ti: Any) -> Iterator[Path]:
    """Yield the path of a file that is created when tasks of the group wait for a slot of the pool.

    The application then ends as after its `stay`, and the waiting task gets the slot: the group's next run is not there
    yet. By then ingestion has had a turn as long as a task of maintenance has.

    Args:
        group: its name.
        settings: of the group.
        ti: the task instance that holds the slot, from its context.
    """
    began = time.monotonic()
    ended = threading.Event()
    with tempfile.TemporaryDirectory(prefix="turn-", dir=spark_driver.own_folder("driver")) as folder:
        file = Path(folder, "end")

        def look() -> None:
            waited = False
            while not ended.wait(LOOK_S):
                waits = _is_waited_for(group, settings, ti)
                # A task that gets a free slot waits for a moment as well.
                if waits and waited and time.monotonic() - began >= settings.maintenance_seconds:
                    log.info("Maintenance or a backfill of the group waits for the slot: the application ends.")
                    file.touch()
                    return
                waited = waits

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield file
        finally:
            ended.set()
            thread.join()


def _is_waited_for(group: str, settings: GroupSettings, ti: Any) -> bool:
    """Whether a Spark task of the group's maintenance or backfills waits for a slot of the group's pool."""
    dags = [dag_ids.BACKFILL]
    if settings.maintenance_pool == settings.pool:
        dags += dag_ids.MAINTENANCE_DAGS
    try:
        return any(ti.get_ti_count(dag_id=dag, task_ids=[f"spark_{group}"], states=["scheduled"]) for dag in dags)
    except Exception as error:  # noqa: BLE001 - ingestion must not fail for it
        log.warning("Airflow could not be asked which tasks wait: %s", type(error).__name__)
        return False
