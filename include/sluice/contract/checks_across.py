"""Checks between contracts, and with their groups: one per table, equal settings for a topic, limits of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from sluice.contract.contract import Contract
from sluice.contract.document import Document, Location, Problem
from sluice.contract.groups import GroupSettings

MAX_ROUNDS = 5_000
"""How many rounds' snapshots a table of a continuous group may keep."""

ValidContracts = Sequence[tuple[Document, Contract]]
"""Contracts, each with its file."""

_Conflicts = dict[Location, tuple[tuple[Document, Contract], tuple[Document, Contract]]]
"""For one topic, by conflicting setting: the first contract, and the first one that differs from it."""

_TOPIC_SETTINGS: tuple[Location, ...] = (
    ("group",),
    ("start",),
    ("transactional",),
    ("limits", "records_per_batch"),
    ("limits", "seconds_per_run"),
    ("limits", "batches_per_run"),
)


def check_across_contracts(
    valid: ValidContracts, settings: Mapping[str, GroupSettings] | None
) -> dict[str, list[Problem]]:
    """Return the problems of each file that conflicts with another one.

    A conflict is a problem of all its files: only their owners know which one is right.
    """
    by_table: dict[str, list[tuple[Document, Contract]]] = {}
    for document, contract in valid:
        by_table.setdefault(contract.table.lower(), []).append((document, contract))
    conflicts = _find_conflicts(valid)
    found: dict[str, list[Problem]] = {}
    for document, contract in valid:
        problems = [
            *_check_table_name(document, contract, by_table[contract.table.lower()]),
            *_check_shared_topics(document, contract, conflicts),
            *_check_run_time(document, contract, settings or {}),
            *_check_snapshots(document, contract, settings or {}),
        ]
        if problems:
            found.setdefault(document.file, []).extend(problems)
    return found


def first_conflicting_setting(one: Contract, other: Contract) -> Location | None:
    """Return the first setting of a shared topic that differs between two contracts; None if none does."""
    return next((field for field in _TOPIC_SETTINGS if _get(one, field) != _get(other, field)), None)


def setting_text(contract: Contract, field: Location) -> str:
    """Return a setting of a contract as text."""
    value = _get(contract, field)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _find_conflicts(valid: ValidContracts) -> dict[str, _Conflicts]:
    """Return the conflicts by topic, in one pass over the contracts: every DAG file that is parsed runs this."""
    readers: dict[str, list[int]] = {}
    for place, (_, contract) in enumerate(valid):
        for topic in set(contract.topic):
            readers.setdefault(topic, []).append(place)
    # Two patterns may share a topic as well: `plan.resolve_topics` checks that with the broker's topics.
    patterns = [place for place, (_, contract) in enumerate(valid) if contract.topic_pattern]
    found: dict[str, _Conflicts] = {}
    for topic, by_name in readers.items():
        places = sorted([*by_name, *(p for p in patterns if _reads(valid[p][1], topic))])
        first, *others = [valid[p] for p in places]
        for field in _TOPIC_SETTINGS if others else ():
            value = _get(first[1], field)
            other = next((each for each in others if _get(each[1], field) != value), None)
            if other:
                found.setdefault(topic, {})[field] = (first, other)
    return found


def _check_table_name(document: Document, contract: Contract, same_table: ValidContracts) -> list[Problem]:
    others = [d.file for d, c in same_table if c is not contract]
    if not others:
        return []
    return [document.problem(("table",), f"{contract.table!r} is also the table of {_names(others)}")]


def _check_shared_topics(document: Document, contract: Contract, conflicts: Mapping[str, _Conflicts]) -> list[Problem]:
    problems = []
    topics = [t for t in contract.topic or sorted(conflicts) if t in conflicts and _reads(contract, t)]
    for field in _TOPIC_SETTINGS:
        mine = _get(contract, field)
        for topic in topics:
            if field not in conflicts[topic]:
                continue
            first, second = conflicts[topic][field]
            other, theirs = first if _get(first[1], field) != mine else second
            message = (
                f"topic {topic!r} is shared with {_names([other.file])}, which has {setting_text(theirs, field)}, "
                f"not {setting_text(contract, field)}"
            )
            problems.append(document.problem(field, message))
            break
    return problems


def _reads(contract: Contract, topic: str) -> bool:
    return contract.topic_pattern.matches(topic) if contract.topic_pattern else topic in contract.topic


def _check_run_time(document: Document, contract: Contract, settings: Mapping[str, GroupSettings]) -> list[Problem]:
    group = settings.get(contract.group)
    seconds = contract.limits.seconds_per_run
    if group is None or seconds < group.timeout.total_seconds():
        return []
    limit = int(group.timeout.total_seconds())
    return [
        document.problem(
            ("limits", "seconds_per_run"),
            f"{seconds} s must be less than the timeout of group {contract.group!r} ({limit} s)",
        )
    ]


def _check_snapshots(document: Document, contract: Contract, settings: Mapping[str, GroupSettings]) -> list[Problem]:
    """Limit the snapshots of a table that is written every few seconds: each commit writes the metadata of them all."""
    group = settings.get(contract.group)
    if group is None or not group.is_continuous:
        return []
    age, every = contract.maintenance.snapshot_age, group.continuous.every
    if age <= every * MAX_ROUNDS:
        return []
    return [
        document.problem(
            ("maintenance", "snapshot_age"),
            f"a table of group {contract.group!r}, with a round every {every.total_seconds():.0f} s, would keep "
            f"{age // every:,} snapshots, and each commit writes the metadata of them all: set at most "
            f"{every * MAX_ROUNDS // timedelta(hours=1)}h",
        )
    ]


def _get(contract: Contract, field: Location) -> object:
    value: object = contract
    for step in field:
        value = getattr(value, str(step))
    return value


def _names(files: list[str]) -> str:
    return ", ".join(Path(each).name for each in files)
