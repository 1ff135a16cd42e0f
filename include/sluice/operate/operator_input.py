"""Parses what an operator enters in a form or a command: offset ranges, a snapshot id; and who decides, and why.

In: text or parsed JSON. Out: ranges per partition, and a `Decision`; wrong input is refused with the reason.
"""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import RefusedError

PARTITION_PATTERN = "(0|[1-9][0-9]{0,9})"
"""No leading zeros: two spellings of a partition would be two keys for one range."""

MAX_PARTITION, MAX_OFFSET = 2**31 - 1, 2**63 - 1
MAX_SHOWN = 60


@dataclass(frozen=True)
class Decision:
    """Who decided, and why, as the ledger records it.

    Attributes:
        run_id: the Airflow run, or the command, that carries it out.
    """

    who: str
    why: str
    run_id: str


def parse_ranges(given: Any) -> dict[int, tuple[int, int]]:
    """Offset ranges by partition, from `{"partition": [first, end]}`.

    Raises:
        RefusedError: with the partition and what is wrong with it.
    """
    if not isinstance(given, Mapping):
        raise _refused(f"{_quote(given)} is not a JSON object of ranges.")
    return {_parse_partition(name): _parse_bounds(name, bounds) for name, bounds in given.items()}


def parse_ranges_json(text: str) -> dict[int, tuple[int, int]]:
    """The same from JSON text, with at least one range.

    Raises:
        RefusedError: as `parse_ranges`; or the text is not JSON, is empty, or has a partition twice.
    """
    try:
        found = parse_ranges(json.loads(text, object_pairs_hook=_reject_duplicates))
    except (ValueError, RecursionError) as error:
        raise _refused(f"{_quote(text)} is not valid JSON.") from error
    if not found:
        raise _refused("No range is given.")
    return found


def parse_offsets_json(text: str) -> dict[str, dict[int, int]]:
    """The next offset of each topic and partition, from JSON text.

    Raises:
        RefusedError: it is not `{"topic": {"partition": offset}}`.
    """
    try:
        given = json.loads(text, object_pairs_hook=_reject_duplicates)
        # As bounds, so that the same texts are refused as in ranges.
        return {
            topic: {_parse_partition(p): _parse_bounds(p, [offset, offset])[0] for p, offset in each.items()}
            for topic, each in given.items()
        }
    except (ValueError, RecursionError, AttributeError, RefusedError) as error:
        raise RefusedError(
            f"{_quote(text)} does not name offsets.", next_step='Write it as {"orders": {"0": 1200, "1": 980}}.'
        ) from error


def parse_snapshot_id(given: Any) -> int | None:
    """A snapshot id; None where it is blank. It may be text, because browsers round such large integers.

    Raises:
        RefusedError: it is not a number.
    """
    if given in (None, ""):
        return None
    try:
        return int(given)
    except (TypeError, ValueError) as error:
        raise RefusedError(
            f"{_quote(given)} is not a snapshot id.", next_step="Snapshot ids are numbers, see `<table>.snapshots`."
        ) from error


def current_user() -> str:
    """The login name of who runs a command; the user id where there is no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise _refused(f"Partition {_quote(twice)} is given twice.")
    return found


def _parse_partition(name: Any) -> int:
    if not re.fullmatch(PARTITION_PATTERN, str(name)) or int(name) > MAX_PARTITION:
        raise _refused(f"{_quote(name)} is not a partition: write a number from 0 without leading zeros.")
    return int(name)


def _parse_bounds(name: Any, given: Any) -> tuple[int, int]:
    # `type` instead of `isinstance`: in Python, True is an int as well.
    if not (isinstance(given, list | tuple) and len(given) == 2 and all(type(each) is int for each in given)):
        raise _refused(f"Partition {name}: {_quote(given)} is not a range: write two whole numbers, first and end.")
    first, end = given
    if not (0 <= first <= MAX_OFFSET and 0 <= end <= MAX_OFFSET):
        raise _refused(f"Partition {name}: {_quote(given)} is not a range: offsets are from 0 to {MAX_OFFSET}.")
    return first, end


def _quote(given: Any) -> str:
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")


def _refused(message: str) -> RefusedError:
    return RefusedError(message, next_step='Write it as {"0": [100, 5000]}: the offsets 100 to 4999 of partition 0.')
