"""Folders and files that only their owner may change: a stack's home, its secrets, a driver's files."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from sluice.embedded.failure import StackError

ROOT = 0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(folder: Path) -> Path:
    """Return the folder; create it with mode 0700 if it is missing, else check it.

    Raises:
        StackError: Somebody else could replace its files.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(folder)
    return folder


def check_private(folder: Path, *, variable: str = "SLUICE_HOME", may_be_roots: bool = False) -> None:
    """Check that nobody but this user (and root) may place files in a folder.

    Args:
        folder: The folder.
        variable: The environment variable that names another one.
        may_be_roots: Whether it may belong to root, such as one that is part of an image.

    Raises:
        StackError: The folder is a symbolic link, belongs to another user, or its group or everybody may write to it.
    """
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise StackError(
            f"{folder} is a symbolic link, which its owner could point elsewhere",
            next_step=f"name the folder that it points to ({folder.resolve()}), or remove the link",
        )
    if found.st_uid != os.geteuid() and not (may_be_roots and found.st_uid == ROOT):
        raise StackError(
            f"{folder} belongs to another user (uid {found.st_uid}), who could read or replace its files",
            next_step=f"choose another folder with {variable}, or chown {os.geteuid()} {folder}",
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise StackError(
            f"{folder} has mode {stat.S_IMODE(found.st_mode):04o}: other users could replace its files",
            next_step=f"look at what is in it, then: chmod go-w {folder}",
        )


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, with mode 0600; a link at its path is replaced, not followed.

    Raises:
        StackError: The folder is not private.
    """
    check_private(path.parent)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(text)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
