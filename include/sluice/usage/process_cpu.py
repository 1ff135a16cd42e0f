"""CPU time of the driver: of this Python process, and of its JVM by Linux's `/proc`. Reading it calls no JVM."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def read_cpu_seconds(pid: int) -> float:
    """CPU seconds of a process since its start, without its children, in steps of 10 ms.

    Raises:
        OSError: there is no such process.
    """
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def seconds_since_start(pid: int) -> float:
    """How long ago a process started.

    Raises:
        OSError: there is no such process.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat_fields(pid)[19]) / _TICKS


def own_cpu_seconds() -> float:
    """CPU seconds of this process since its start, without its children."""
    times = os.times()
    return times.user + times.system


def _stat_fields(pid: int) -> list[str]:
    # The second field is the program's name in brackets, which may hold any character.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
