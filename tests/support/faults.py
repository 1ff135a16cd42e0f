"""Things that go wrong on purpose, at a point that is hit for certain: pauses, lost answers, a catalog that is away."""

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
    """One of two drivers that are at work at the same time: a step in a thread of its own, with what came of it."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self.result = step()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.error = error

        self._thread = InheritableThread(target=work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until it is done."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the driver never came to an end"

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


class PausedCall:
    """Holds the first call of a function for which `when` is true, until `go` is called.

    The function is replaced in `owner` until the test's end; other calls, and later ones, pass.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True
    ) -> None:
        self._reached, self._go, self._used = threading.Event(), threading.Event(), threading.Lock()
        original = getattr(owner, name)

        def held(*arguments: Any, **named: Any) -> Any:
            if when(*arguments, **named) and self._used.acquire(blocking=False):
                self._reached.set()
                assert self._go.wait(PATIENCE_S), "nobody let the paused driver go on"
            return original(*arguments, **named)

        patch.setattr(owner, name, held)

    def reached(self, driver: StepThread | None = None) -> None:
        """Wait until the call is there."""
        until = time.monotonic() + PATIENCE_S
        while not self._reached.wait(0.2):
            assert driver is None or driver.alive, (
                f"the driver ended before the pause: {driver.result!r} {driver.error!r}"
            )
            assert time.monotonic() < until, "the pause was never reached"

    def go(self) -> None:
        """Let it go on."""
        self._go.set()


def by_run(run_id: str) -> Callable[..., bool]:
    """Only attempts of the driver with this run id."""
    return lambda attempt, *_, **__: attempt.context.run_id == run_id


def lose_commit(
    patch: pytest.MonkeyPatch, catalog: Catalog, *, applied: bool, times: int = 1, when: Callable[..., bool]
) -> list[int]:
    """Break the connection around `times` commits that PyIceberg makes: after they were applied, or before.

    Args:
        when: of the table's identifier and the updates, whether it is one of them.

    Returns:
        A list that gets one entry for each commit that was broken.
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
    """Take the SQLite catalog away: nobody, in Python or the JVM, can open it or write to it until the block ends."""
    hidden = database.with_suffix(".away")
    database.rename(hidden)
    database.mkdir()  # or SQLite would make a new, empty database
    try:
        yield
    finally:
        database.rmdir()
        hidden.rename(database)
