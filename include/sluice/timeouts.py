"""Ask Kafka and the catalog with patience that ends, and say in one sentence when they do not answer.

For the command line; the steps of a run have patience of their own. And tell one table's failure from the catalog's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE_S = 10.0
AGAIN_S = 30.0
# Questions without an answer yet, maybe for ever, and since when they are not waited for: each holds a connection.
_hanging: list[tuple[threading.Thread, float]] = []
_lock = threading.Lock()


def within(seconds: float, step: Callable[[], Result]) -> Result:
    """Run `step` and give up on it after so many seconds; what it then still does is no longer waited for.

    While some still do, the next is not begun before as many times `AGAIN_S` have passed as there are of them: whoever
    asks for days, as the pages do, has some hundred threads and connections at most, and asks again all the same.

    Raises:
        TimeoutError: it took longer, or has not begun.
    """
    with _lock:
        _hanging[:] = [each for each in _hanging if each[0].is_alive()]
        if _hanging and time.monotonic() - _hanging[-1][1] < AGAIN_S * len(_hanging):
            raise TimeoutError(f"{len(_hanging)} earlier questions are without an answer yet")
    done: list[Result] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(step())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        with _lock:
            _hanging.append((thread, time.monotonic()))
        raise TimeoutError(f"no answer within {seconds:g} s")
    return done[0]
