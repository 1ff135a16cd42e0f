"""Offset ranges as an operator names them, in a form or in a command: taken as they stand, or refused; and who asks."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from sluice.errors import RefusedError

PARTITION = "(0|[1-9][0-9]{0,9})"
"""One way to write each partition: else two names of one would be one range."""

LAST_PARTITION, LAST_OFFSET = 2**31 - 1, 2**63 - 1
SHOWN = 60


def ranges(given: Any) -> dict[int, tuple[int, int]]:
    """What was parsed from `{"partition": [first, end]}`.

    Raises:
        RefusedError: with the partition and what is wrong with it.
    """
    if not isinstance(given, Mapping):
        raise _refused(f"{_shown(given)} names no ranges.")
    return {_partition(name): _bounds(name, bounds) for name, bounds in given.items()}


def read(text: str) -> dict[int, tuple[int, int]]:
    """The same from JSON, of which there must be some.

    Raises:
        RefusedError: as `ranges`; or it is no JSON, or names a partition twice.
    """
    try:
        found = ranges(json.loads(text, object_pairs_hook=_once))
    except (ValueError, RecursionError) as error:
        raise _refused(f"{_shown(text)} can't be read as JSON.") from error
    if not found:
        raise _refused("No range is named.")
    return found


def user() -> str:
    """Whose word a command is: the login name, or its number where the machine knows no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise _refused(f"Partition {_shown(twice)} is named twice.")
    return found


def _partition(name: Any) -> int:
    if not re.fullmatch(PARTITION, str(name)) or int(name) > LAST_PARTITION:
        raise _refused(f"{_shown(name)} is no partition: it is a number from 0, without zeros before it.")
    return int(name)


def _bounds(name: Any, given: Any) -> tuple[int, int]:
    # No `isinstance`: to Python true is a number as well.
    if not (isinstance(given, list | tuple) and len(given) == 2 and all(type(each) is int for each in given)):
        raise _refused(f"Partition {name}: {_shown(given)} is no range: it is two whole numbers, first and end.")
    first, end = given
    if not (0 <= first <= LAST_OFFSET and 0 <= end <= LAST_OFFSET):
        raise _refused(f"Partition {name}: {_shown(given)} is no range: offsets are numbers from 0 to {LAST_OFFSET}.")
    return first, end


def _shown(given: Any) -> str:
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def _refused(message: str) -> RefusedError:
    return RefusedError(message, way_out='Write it as {"0": [100, 5000]}: the offsets 100 to 4999 of partition 0.')
