"""What can go wrong with the embedded stack: one error that says what, and one line that says what to do."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sluice.errors import TerminalError


class StackError(TerminalError):
    """Something of the embedded stack failed: see `message` for what, `way_out` for what to do about it."""


def say(text: str) -> None:
    """Print one line of progress at once, so that it is seen while it is true."""
    print(text, file=sys.stderr, flush=True)


def end_tidily() -> None:
    """A request to end, or a terminal that is closed, ends this process as Ctrl-C does: with what it has started."""
    for asked in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(asked) is not signal.SIG_IGN:  # by nohup
            signal.signal(asked, signal.default_int_handler)


def last_lines(log: Path, count: int = 12) -> str:
    """The end of a log, indented, for an error message."""
    if not log.is_file():
        return f"    (no log at {log})"
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 16_384))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    # Java's stack frames would push the message itself out of sight.
    kept = [line for line in lines if line.strip() and not line.startswith("\tat ")][-count:]
    return "\n".join(f"    {line[:300]}" for line in kept) or "    (the log is empty)"
