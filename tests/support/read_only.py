"""Runs a command for which all is read-only but some folders, as in a container with a read-only image.

`python read_only.py FOLDER… -- COMMAND…`: by Landlock, Linux's access control without privileges. Child processes, such
as workers and Spark drivers, inherit it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on all architectures
VERSION_FLAG, BENEATH, NO_NEW_PRIVILEGES = 1, 1, 38
TRUNCATE_VERSION = 3
# Of LANDLOCK_ACCESS_FS_…: WRITE_FILE, REMOVE_DIR to MAKE_SYM, REFER (rename to another folder), TRUNCATE.
WRITE = 1 << 1 | sum(1 << bit for bit in range(4, 13)) | 1 << 13 | 1 << 14
WRITE_TO_FILE = 1 << 1 | 1 << 14
_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def is_possible() -> bool:
    """Whether this kernel has Landlock."""
    return sys.platform == "linux" and _libc.syscall(CREATE_RULESET, None, 0, VERSION_FLAG) >= TRUNCATE_VERSION


def command(writable: Iterable[Path], inner: Sequence[str]) -> list[str]:
    """The command that runs `inner`, which can write in these folders, and to devices and /proc."""
    return [sys.executable, __file__, *map(str, writable), "--", *inner]


def _restrict(folders: Sequence[str]) -> None:
    ruleset = _check(_libc.syscall(CREATE_RULESET, ctypes.byref(_Ruleset(WRITE)), ctypes.sizeof(_Ruleset), 0))
    for folder in (*folders, "/dev", "/proc"):
        handle = os.open(folder, os.O_PATH)
        rule = _Beneath(WRITE, handle)
        _check(_libc.syscall(ADD_RULE, ruleset, BENEATH, ctypes.byref(rule), 0))
        os.close(handle)
    _check(_libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(_libc.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


if __name__ == "__main__":
    end = sys.argv.index("--")
    _restrict(sys.argv[1:end])
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])
