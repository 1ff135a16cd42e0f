"""How tasks come through many tables: each takes time, and Airflow maps no more than `[core] max_map_length`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

from airflow.sdk.configuration import conf

from sluice.contract.folder import Group

RED, GREEN, SKIPPED = COLOURS = ("red", "green", "skipped")
TOLD = 20
PER_TABLE = timedelta(seconds=1)
OF_A_TEMPLATE = 600  # tables; nobody asks the broker how many it has while a DAG file is read


def patience(groups: Iterable[Group]) -> timedelta:
    """What a task that looks at all tables of these groups may take beyond what one takes anyway."""
    return PER_TABLE * sum(len(g.contracts) + OF_A_TEMPLATE * len(g.templates) for g in groups)


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
