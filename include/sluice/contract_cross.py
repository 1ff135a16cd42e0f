"""What must hold between contracts: one file per table, one opinion per topic, and time enough for a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sluice.contract import Contract
from sluice.contract_yaml import Document, Location, Problem
from sluice.groups import GroupSettings

Sound = Mapping[str, tuple[Document, Contract]]
"""Documents and contracts by file."""

_SHARED: tuple[Location, ...] = (
    ("group",),
    ("start",),
    ("transactional",),
    ("limits", "records_per_batch"),
    ("limits", "seconds_per_run"),
    ("limits", "batches_per_run"),
)


def cross_problems(sound: Sound, settings: Mapping[str, GroupSettings] | None) -> dict[str, list[Problem]]:
    """Return the problems of each file that contradicts another one.

    A contradiction is a problem of every file that takes part in it: nobody but the owner knows which one is right.
    """
    found: dict[str, list[Problem]] = {}
    for file, (document, contract) in sound.items():
        problems = [
            *_twice(file, document, contract, sound),
            *_shared_topics(file, document, contract, sound),
            *_too_slow(document, contract, settings or {}),
        ]
        if problems:
            found[file] = problems
    return found


def merge_settings(common: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Lay a group's own settings over the common ones, map by map."""
    merged: dict[str, object] = dict(common)
    for key, value in own.items():
        base = merged.get(key)
        merged[key] = merge_settings(base, value) if isinstance(base, dict) and isinstance(value, dict) else value
    return merged


def _twice(file: str, document: Document, contract: Contract, sound: Sound) -> list[Problem]:
    others = [each for each, (_, c) in sound.items() if each != file and c.table.lower() == contract.table.lower()]
    if not others:
        return []
    return [document.problem(("table",), f"{contract.table!r} is the table of {_names(others)} as well")]


def _shared_topics(file: str, document: Document, contract: Contract, sound: Sound) -> list[Problem]:
    problems = []
    for field in _SHARED:
        mine = _get(contract, field)
        for topic in contract.topics:
            against = [
                (each, _get(c, field))
                for each, (_, c) in sound.items()
                if each != file and topic in c.topics and _get(c, field) != mine
            ]
            if against:
                other, theirs = against[0]
                message = (
                    f"topic {topic!r} is shared with {_names([other])}, which says {_show(theirs)}, not {_show(mine)}"
                )
                problems.append(document.problem(field, message))
                break
    return problems


def _too_slow(document: Document, contract: Contract, settings: Mapping[str, GroupSettings]) -> list[Problem]:
    group = settings.get(contract.group)
    seconds = contract.limits.seconds_per_run
    if group is None or seconds < group.timeout.total_seconds():
        return []
    limit = int(group.timeout.total_seconds())
    return [
        document.problem(
            ("limits", "seconds_per_run"),
            f"{seconds} s is no less than the timeout of group {contract.group!r} ({limit} s)",
        )
    ]


def _get(contract: Contract, field: Location) -> object:
    value: object = contract
    for step in field:
        value = getattr(value, str(step))
    return value


def _show(value: object) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _names(files: list[str]) -> str:
    return ", ".join(Path(each).name for each in files)
