"""Injects faults at exact points: paused calls, lost commit answers, an unavailable catalog."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyspark import InheritableThread

PATIENCE_S = 120.0


class StepThread:
    """A step in its own thread, as one of two drivers that run at the same time; has its result or error."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self.result = step()
            except BaseException as error:  # noqa: BLE001 - the test checks it
                self.error = error

        self._thread = InheritableThread(target=work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until the step has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the step did not end"

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


class PausedCall:
    """Pauses the first call of a function for which `when` is true, until `go` is called; other calls pass.

    The function is replaced in `owner` until the end of the test.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True
    ) -> None:
        self._reached, self._go, self._used = threading.Event(), threading.Event(), threading.Lock()
        original = getattr(owner, name)

        def held(*arguments: Any, **named: Any) -> Any:
            if when(*arguments, **named) and self._used.acquire(blocking=False):
                self._reached.set()
                assert self._go.wait(PATIENCE_S), "the paused call was not released"
            return original(*arguments, **named)

        patch.setattr(owner, name, held)

    def reached(self, driver: StepThread | None = None) -> None:
        """Wait until the call is paused."""
        until = time.monotonic() + PATIENCE_S
        while not self._reached.wait(0.2):
            assert driver is None or driver.alive, (
                f"the step ended before the paused call: {driver.result!r} {driver.error!r}"
            )
            assert time.monotonic() < until, "the paused call was not reached"

    def go(self) -> None:
        """Release the call."""
        self._go.set()


def by_run(run_id: str) -> Callable[..., bool]:
    """Match only the branch writes of the driver with this run id."""
    return lambda attempt, *_, **__: attempt.context.run_id == run_id


def lose_commit(
    patch: pytest.MonkeyPatch, catalog: Catalog, *, applied: bool, times: int = 1, when: Callable[..., bool]
) -> list[int]:
    """Break the connection during PyIceberg's commits, after (`applied`) or before the catalog applies them.

    Args:
        patch: Restores the catalog after the test.
        catalog: The catalog.
        applied: Whether the commits take effect.
        times: The number of commits to break.
        when: Called with the table's identifier and the updates; whether to break this commit.

    Returns:
        A list that gets one entry for each broken commit.
    """
    original = catalog.commit_table
    broken: list[int] = []

    def commit(table: Any, requirements: Any, updates: Any) -> Any:
        if len(broken) >= times or not when(table.name(), updates):
            return original(table, requirements, updates)
        if applied:
            original(table, requirements, updates)
        broken.append(1)
        raise ConnectionError("connection reset by peer")

    patch.setattr(catalog, "commit_table", commit)
    return broken


@contextmanager
def catalog_away(database: Path) -> Iterator[None]:
    """Make the SQLite catalog unavailable, to Python and the JVM, until the block ends."""
    hidden = database.with_suffix(".away")
    database.rename(hidden)
    database.mkdir()  # otherwise SQLite would create a new database
    try:
        yield
    finally:
        database.rmdir()
        hidden.rename(database)
