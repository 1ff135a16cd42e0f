"""Readings that never keep a page waiting: what was read last, while the next is read in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, TypeVar

from sluice.errors import SluiceError, discreet, first_line

T = TypeVar("T")

FRESH_S = 10.0
REST = 4  # however many tables there are, and pages open: reading takes a fifth of the time at most
# A page that is open asks every half a minute. What is known of one table takes some 6 MB where it has many snapshots.
IDLE_S = 900.0
MOST = 250
# A catalog may take a connection and never answer, and some clients wait for ever. It is given up ever
# more seldom: days are few threads. What takes long by itself hangs after three times as long as it took last.
HANGS_S, GIVEN_UP_S = 120.0, 600.0
SLOW = 3
AT_ONCE = 4


@dataclass(frozen=True)
class Reading(Generic[T]):
    """What is known.

    Attributes:
        value: what was read last; None before the first time.
        seconds: how long that took.
        error: why the last attempt failed; the value is then older than that.
        busy: it is being read right now.
    """

    value: T | None = None
    seconds: float = 0.0
    error: str | None = None
    busy: bool = False


class Slots:
    """How many readings by name may be under way at once; one that hangs has its slot until it is given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[object, tuple[float, float]] = {}

    def take(self, who: object, now: float, much: float) -> bool:
        """A slot, if one is free.

        Args:
            much: how many times as long as others it has until it is given up.
        """
        with self._lock:
            self._taken = {each: (at, m) for each, (at, m) in self._taken.items() if now - at < GIVEN_UP_S * m}
            if len(self._taken) >= AT_ONCE:
                return False
            self._taken[who] = now, much
            return True

    def leave(self, who: object) -> None:
        """Give it back."""
        with self._lock:
            self._taken.pop(who, None)


_SLOTS = Slots()


class Feed(Generic[T]):
    """One reading, renewed when somebody asks and it is older than `fresh` seconds; asking never waits long."""

    def __init__(self, read: Callable[[], T], *, fresh: float = FRESH_S, slots: Slots | None = None) -> None:
        self._read = read
        self._fresh = fresh
        self._slots = slots
        self._lock = threading.Condition()
        self._tried = self._began = self._read_at = -inf
        self._waits: float | None = None  # for a slot, since when
        self._took = 0.0
        self._given_up = 0
        self._reading: Reading[T] = Reading()

    @property
    def last(self) -> T | None:
        """What was read last."""
        return self._reading.value

    def get(self, *, wait: float = 0.0, until: float | None = None) -> Reading[T]:
        """What is known; a new reading begins if it is due.

        Args:
            wait: seconds to wait for the very first reading.
            until: so long, by the monotonic clock, who does not look again waits for one that is due. What stays old
                all the same is told with an error.
        """
        with self._lock:
            now = time.monotonic()
            rest = max(self._fresh, REST * self._took)  # what failed at once is tried again soon
            much = max(1.0, SLOW * self._reading.seconds / HANGS_S)
            hangs = self._reading.busy and now - self._began >= GIVEN_UP_S * much * (1 + self._given_up)
            busy = self._reading.busy and not hangs
            due = not busy and now - self._tried >= rest
            taken = due and (self._slots is None or self._slots.take((self, now), now, much))
            self._waits = (self._waits or now) if due and not taken else None
            if taken:
                self._given_up += hangs  # its thread stays, as long as it hangs
                self._reading, self._began = replace(self._reading, busy=True), now
                threading.Thread(target=self._renew, args=(now,), name="sluice-pages", daemon=True).start()
            if self._reading.value is None:
                self._lock.wait_for(lambda: not self._reading.busy, wait)
            elif until is not None and now - self._tried >= rest and now - self._began < HANGS_S * much:
                self._lock.wait_for(lambda: not self._reading.busy, max(until - now, 0.0))
        waited, long = now - self._began, HANGS_S * much
        if self._reading.busy and waited >= long:
            return replace(self._reading, error=f"What is being read has not answered for {waited:.0f} s.")
        if self._waits is not None and now - self._waits >= long:
            late = f"It could not be read anew for {now - self._waits:.0f} s: what is read before it does not answer."
            return replace(self._reading, error=late)
        found, age = self._reading, now - self._read_at
        if until is not None and found.value is not None and not found.error and age >= max(HANGS_S, 2 * rest):
            return replace(found, error=f"What is known is {age:.0f} s old, and being read anew: ask again.")
        return found

    def _renew(self, began: float) -> None:
        try:
            value = self._read()
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says it
            told = str(error) if isinstance(error, SluiceError) else first_line(error)
            made = replace(self._reading, error=discreet(told), busy=False)
        else:
            made = Reading(value, time.monotonic() - began)
        with self._lock:
            if began == self._began:  # else it was given up
                self._reading, self._tried, self._given_up = made, time.monotonic(), 0
                self._took = self._tried - began
                self._read_at = self._read_at if made.error else self._tried
                self._lock.notify_all()
        if self._slots is not None:
            self._slots.leave((self, began))


class Feeds(Generic[T]):
    """A feed per name, a few read at once. Those nobody asks for are forgotten, and the longest idle of too many.

    Args:
        slots: of their own, where others that hang must not keep them from being read.
    """

    def __init__(self, read: Callable[[str], T], *, fresh: float = FRESH_S, slots: Slots = _SLOTS) -> None:
        self._read = read
        self._fresh = fresh
        self._slots = slots
        self._lock = threading.Lock()
        self._feeds: dict[str, tuple[Feed[T], float]] = {}

    def of(self, name: str) -> Feed[T]:
        """The feed of a name."""
        now = time.monotonic()
        with self._lock:
            self._feeds = {n: (feed, asked) for n, (feed, asked) in self._feeds.items() if now - asked < IDLE_S}
            known, _ = self._feeds.pop(name, (None, now))
            feed = known or Feed(lambda: self._read(name), fresh=self._fresh, slots=self._slots)
            self._feeds[name] = (feed, now)  # the last one is the one asked for last
            if len(self._feeds) > MOST:
                del self._feeds[next(iter(self._feeds))]
        return feed
