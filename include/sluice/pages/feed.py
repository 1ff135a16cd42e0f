"""Cached values for pages that must not wait: serves the last value, and reads the next in a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import Generic, TypeVar

from sluice.errors import SluiceError, first_line
from sluice.status.redact import without_paths

T = TypeVar("T")

FRESH_S = 10.0
REST_FACTOR = 4  # the pause after a reading, as a multiple of its duration: at most a fifth of the time is reading
# An open page asks every 30 s. The details of a table with many snapshots take some 6 MB of memory.
IDLE_S = 900.0
MAX_FEEDS = 250
# A catalog may accept a connection and never answer. Each abandoned reading keeps its thread, so the pause before the
# next attempt grows. A reading that takes long by nature hangs after SLOW_FACTOR times its last duration.
HANGS_S, GIVEN_UP_S = 120.0, 600.0
SLOW_FACTOR = 3
MAX_CONCURRENT = 4


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The result of a reading.

    Attributes:
        value: the last value; None before the first.
        seconds: how long reading it took.
        error: why the last attempt failed; the value is then older than that attempt.
        busy: whether a reading is under way.
        at: when reading the value began.
    """

    value: T | None = None
    seconds: float = 0.0
    error: str | None = None
    busy: bool = False
    at: datetime | None = None


class Slots:
    """Limits the concurrent readings; one that hangs keeps its slot until it is abandoned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[object, tuple[float, float]] = {}

    def acquire(self, reader: object, now: float, patience: float) -> bool:
        """Take a slot; False if none is free.

        Args:
            patience: factor for the time until this reading is abandoned.
        """
        with self._lock:
            self._taken = {each: (at, m) for each, (at, m) in self._taken.items() if now - at < GIVEN_UP_S * m}
            if len(self._taken) >= MAX_CONCURRENT:
                return False
            self._taken[reader] = now, patience
            return True

    def release(self, reader: object) -> None:
        """Give a slot back."""
        with self._lock:
            self._taken.pop(reader, None)


_SLOTS = Slots()


class Feed(Generic[T]):
    """A cached value that is read again on request once it is older than `fresh` seconds."""

    def __init__(self, read: Callable[[], T], *, fresh: float = FRESH_S, slots: Slots | None = None) -> None:
        self._read = read
        self._fresh = fresh
        self._slots = slots
        self._lock = threading.Condition()
        self._tried_at = self._began_at = self._read_at = -inf
        self._waiting_since: float | None = None  # for a slot
        self._last_attempt = datetime.min.replace(tzinfo=UTC)
        self._took = 0.0
        self._abandoned = 0
        self._reading: Reading[T] = Reading()

    @property
    def last(self) -> T | None:
        """The last value."""
        return self._reading.value

    def get(self, *, wait: float = 0.0, until: float | None = None) -> Reading[T]:
        """Return the last value, and start a new reading if one is due.

        Args:
            wait: seconds to wait for the very first value.
            until: for callers that do not ask again: wait for a reading that is due until this monotonic time; a value
                that is still old comes with an error.
        """
        with self._lock:
            now = time.monotonic()
            rest = max(self._fresh, REST_FACTOR * self._took)  # what failed at once is tried again soon
            patience = max(1.0, SLOW_FACTOR * self._reading.seconds / HANGS_S)
            hangs = self._reading.busy and now - self._began_at >= GIVEN_UP_S * patience * (1 + self._abandoned)
            busy = self._reading.busy and not hangs
            due = not busy and now - self._tried_at >= rest
            taken = due and (self._slots is None or self._slots.acquire((self, now), now, patience))
            self._waiting_since = (self._waiting_since or now) if due and not taken else None
            if taken:
                self._abandoned += hangs  # its thread stays for as long as it hangs
                self._reading, self._began_at = replace(self._reading, busy=True), now
                self._last_attempt = datetime.now(UTC)
                threading.Thread(target=self._renew, args=(now,), name="sluice-pages", daemon=True).start()
            if self._reading.value is None:
                self._lock.wait_for(lambda: not self._reading.busy, wait)
            elif until is not None and now - self._tried_at >= rest and now - self._began_at < HANGS_S * patience:
                self._lock.wait_for(lambda: not self._reading.busy, max(until - now, 0.0))
        waited, long = now - self._began_at, HANGS_S * patience
        if self._reading.busy and waited >= long:
            return replace(self._reading, error=f"No answer for {waited:.0f} s.")
        if self._waiting_since is not None and now - self._waiting_since >= long:
            waiting = now - self._waiting_since
            return replace(self._reading, error=f"Not read for {waiting:.0f} s: earlier readings do not answer.")
        found, age = self._reading, now - self._read_at
        if until is not None and found.value is not None and not found.error and age >= max(HANGS_S, 2 * rest):
            return replace(found, error=f"The data is {age:.0f} s old and being read again. Retry.")
        return found

    def get_since(self, change: datetime | None, *, wait: float) -> Reading[T]:
        """Return a value that was read since a change, or the last one if none comes in time.

        Args:
            change: when what is read has changed; None: as `get` returns it. One reading is tried at once, whatever
                the age of the value.
            wait: seconds to wait for the value, of which a reading under way may use some.
        """
        end = time.monotonic() + wait
        while change is not None:
            with self._lock:
                if self._last_attempt >= change and not self._reading.busy:
                    break  # read since, or in vain
                if not self._reading.busy:
                    self._tried_at = -inf
            if not self.get().busy:
                break  # there is no slot
            with self._lock:
                if not self._lock.wait_for(lambda: not self._reading.busy, max(end - time.monotonic(), 0.0)):
                    break
        return self.get(wait=wait if change is None else 0.0)

    def _renew(self, began: float) -> None:
        at = datetime.now(UTC)
        try:
            value = self._read()
        except Exception as error:  # noqa: BLE001 - the page shows any error
            text = str(error) if isinstance(error, SluiceError) else first_line(error)
            made = replace(self._reading, error=without_paths(text), busy=False)
        else:
            made = Reading(value, time.monotonic() - began, at=at)
        with self._lock:
            if began == self._began_at:  # else this reading was abandoned
                self._reading, self._tried_at, self._abandoned = made, time.monotonic(), 0
                self._took = self._tried_at - began
                self._read_at = self._read_at if made.error else self._tried_at
                self._lock.notify_all()
        if self._slots is not None:
            self._slots.release((self, began))


class Feeds(Generic[T]):
    """A feed per name. Idle feeds are dropped; so is the longest idle of more than `MAX_FEEDS`.

    Args:
        slots: own slots keep these feeds readable while the readings of other feeds hang.
    """

    def __init__(self, read: Callable[[str], T], *, fresh: float = FRESH_S, slots: Slots = _SLOTS) -> None:
        self._read = read
        self._fresh = fresh
        self._slots = slots
        self._lock = threading.Lock()
        self._feeds: dict[str, tuple[Feed[T], float]] = {}

    def get_feed(self, name: str) -> Feed[T]:
        """The feed of this name."""
        now = time.monotonic()
        with self._lock:
            self._feeds = {n: (feed, asked) for n, (feed, asked) in self._feeds.items() if now - asked < IDLE_S}
            known, _ = self._feeds.pop(name, (None, now))
            feed = known or Feed(lambda: self._read(name), fresh=self._fresh, slots=self._slots)
            self._feeds[name] = (feed, now)  # keeps the dict in the order of use
            if len(self._feeds) > MAX_FEEDS:
                del self._feeds[next(iter(self._feeds))]
        return feed
