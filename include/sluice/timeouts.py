"""Calls to clients that have no timeout of their own (Kafka, the catalog), bounded in time.

For pages and the command line; the steps of a run are bounded by Airflow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

DEFAULT_TIMEOUT_S = 10.0
RETRY_INTERVAL_S = 30.0
# Calls that have not returned, perhaps never will, and when their timeout passed: each holds a thread and a connection.
_unanswered: list[tuple[threading.Thread, float]] = []
_lock = threading.Lock()


def call_with_timeout(seconds: float, step: Callable[[], Result]) -> Result:
    """Run `step` in a thread and return its result; after `seconds` the thread is abandoned.

    While n abandoned calls still run, no call starts within n times `RETRY_INTERVAL_S` of the last timeout, so that a
    page that polls for days holds some hundred threads and connections at most.

    Raises:
        TimeoutError: the step took longer, or was not started.
    """
    with _lock:
        _unanswered[:] = [each for each in _unanswered if each[0].is_alive()]
        if _unanswered and time.monotonic() - _unanswered[-1][1] < RETRY_INTERVAL_S * len(_unanswered):
            raise TimeoutError(f"{len(_unanswered)} earlier calls have not returned yet")
    done: list[Result] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(step())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        with _lock:
            _unanswered.append((thread, time.monotonic()))
        raise TimeoutError(f"no answer within {seconds:g} s")
    return done[0]
