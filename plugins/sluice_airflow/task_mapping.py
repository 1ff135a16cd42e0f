"""Mapped task instances for many tables: each takes time, and Airflow limits them by `[core] max_map_length`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

from sluice.contract.folder import Group
from sluice_airflow.sdk import conf

RED, GREEN, SKIPPED = COLOURS = ("red", "green", "skipped")
MAX_MESSAGES = 20
TIME_PER_TABLE = timedelta(seconds=1)
TABLES_PER_TEMPLATE = 600  # an assumption: DAG parsing makes no network calls


def extra_timeout(groups: Iterable[Group]) -> timedelta:
    """The time that a task may take for the tables of these groups, beyond its base timeout."""
    return TIME_PER_TABLE * sum(len(g.contracts) + TABLES_PER_TEMPLATE * len(g.templates) for g in groups)


def max_instances() -> int:
    """The maximum number of instances of a mapped task."""
    return conf.getint("core", "max_map_length", fallback=1024)


def group_into_instances(
    found: Sequence[Mapping[str, Any]], colour: Callable[[Any], str]
) -> list[list[Mapping[str, Any]]]:
    """Distribute tables over task instances.

    Args:
        found: one map per table.
        colour: the state of a table's instance, one of `COLOURS`.

    Returns:
        One table per instance. Of too many, red ones come first, then green ones, and the last instances take the
        rest, at most one per colour: so a red table costs no other its asset event.
    """
    if len(found) <= max_instances():
        return [[each] for each in found]
    ordered = sorted(found, key=lambda each: COLOURS.index(colour(each)))
    single = max(max_instances() - len(COLOURS), 0)
    rest = groupby(ordered[single:], key=colour)
    return [*([each] for each in ordered[:single]), *(list(tables) for _, tables in rest)]


def instance_name(found: Sequence[Mapping[str, Any]]) -> str:
    """The name of an instance: that of its table."""
    return str(found[0]["table"]) if len(found) == 1 else f"{len(found):,} more"


def join_messages(lines: Sequence[str], log: str) -> str:
    """Join the messages of several tables, up to a readable number.

    Args:
        log: the task whose log has all of them.
    """
    more = len(lines) - MAX_MESSAGES
    return "\n".join([*lines[:MAX_MESSAGES], *([f"and {more:,} more: see the log of {log}"] if more > 0 else [])])
