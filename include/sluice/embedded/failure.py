"""The embedded stack's error class, its progress output, and the tail of a service's log for error messages."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sluice.errors import TerminalError


class StackError(TerminalError):
    """A part of the embedded stack failed; `message` says what happened and `next_step` what to do."""


def say(text: str) -> None:
    """Print one line of progress to stderr, unbuffered."""
    print(text, file=sys.stderr, flush=True)


def exit_on_signals() -> None:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that the services which this process started are stopped too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)


def last_lines(log: Path, count: int = 12) -> str:
    """Return the last lines of a log, indented, without Java's stack frames."""
    if not log.is_file():
        return f"    (no log at {log})"
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 16_384))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    shown = [line for line in lines if line.strip() and not line.startswith("\tat ")][-count:]
    return "\n".join(f"    {line[:300]}" for line in shown) or "    (the log is empty)"
