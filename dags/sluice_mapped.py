"""What mapped tasks have in common: Airflow maps no more of them than `[core] max_map_length`; tables may be more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from airflow.sdk.configuration import conf

RED, GREEN, SKIPPED = COLOURS = ("red", "green", "skipped")
TOLD = 20


def most() -> int:
    """So many instances of a task Airflow maps."""
    return conf.getint("core", "max_map_length", fallback=1024)


def bounded(found: Sequence[Mapping[str, Any]], colour: Callable[[Any], str]) -> list[list[Mapping[str, Any]]]:
    """The tables that each instance stands for.

    Args:
        found: what the instances are told, one map per table.
        colour: what a table's instance comes to, one of `COLOURS`.

    Returns:
        One table each. Where they are too many, red ones come first, then green ones, and the last instances, at most
        one of each colour, stand for the rest: so that no asset event is lost by what is red.
    """
    if len(found) <= most():
        return [[each] for each in found]
    ordered = sorted(found, key=lambda each: COLOURS.index(colour(each)))
    single = max(most() - len(COLOURS), 0)
    rest = groupby(ordered[single:], key=colour)
    return [*([each] for each in ordered[:single]), *(list(tables) for _, tables in rest)]


def name(found: Sequence[Mapping[str, Any]]) -> str:
    """What an instance is called: as its table."""
    return str(found[0]["table"]) if len(found) == 1 else f"{len(found):,} more"


def told(lines: Sequence[str], log: str) -> str:
    """What several tables have to say, as far as it can be read in one place.

    Args:
        log: the task whose log has it all.
    """
    more = len(lines) - TOLD
    return "\n".join([*lines[:TOLD], *([f"and {more:,} more: the log of {log}"] if more > 0 else [])])
