"""What must hold between contracts: one file per table, one opinion per topic, and time enough for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.contract.contract import Contract
from sluice.contract.document import Document, Location, Problem
from sluice.contract.groups import GroupSettings

Sound = Sequence[tuple[Document, Contract]]
"""Contracts, each with the file that it stands in."""

_Apart = dict[Location, tuple[tuple[Document, Contract], tuple[Document, Contract]]]
"""Of one topic, per setting that its contracts give differently: the first one, and the first that says otherwise."""

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
    named: dict[str, list[tuple[Document, Contract]]] = {}
    for document, contract in sound:
        named.setdefault(contract.table.lower(), []).append((document, contract))
    apart = _apart(sound)
    found: dict[str, list[Problem]] = {}
    for document, contract in sound:
        problems = [
            *_twice(document, contract, named[contract.table.lower()]),
            *_shared_topics(document, contract, apart),
            *_too_slow(document, contract, settings or {}),
        ]
        if problems:
            found.setdefault(document.file, []).extend(problems)
    return found


def disagreement(one: Contract, other: Contract) -> Location | None:
    """The first setting of a shared topic that two contracts give differently."""
    return next((field for field in _SHARED if _get(one, field) != _get(other, field)), None)


def says(contract: Contract, field: Location) -> str:
    """What a contract gives for a setting."""
    value = _get(contract, field)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _apart(sound: Sound) -> dict[str, _Apart]:
    """The topics about which two contracts disagree; every DAG file that is parsed asks, so each is looked at once."""
    readers: dict[str, list[int]] = {}
    for place, (_, contract) in enumerate(sound):
        for topic in set(contract.topic):
            readers.setdefault(topic, []).append(place)
    # Two patterns may share a topic as well: only the broker knows, see `sluice.plan.resolve_topics`.
    patterns = [place for place, (_, contract) in enumerate(sound) if contract.matching]
    found: dict[str, _Apart] = {}
    for topic, named in readers.items():
        mine = [sound[p] for p in sorted([*named, *(p for p in patterns if _reads(sound[p][1], topic))])]
        first = mine[0]
        for field in _SHARED if len(mine) > 1 else ():
            says_first = _get(first[1], field)
            other = next((each for each in mine if _get(each[1], field) != says_first), None)
            if other:
                found.setdefault(topic, {})[field] = (first, other)
    return found


def _twice(document: Document, contract: Contract, named: Sound) -> list[Problem]:
    others = [d.file for d, c in named if c is not contract]
    if not others:
        return []
    return [document.problem(("table",), f"{contract.table!r} is the table of {_names(others)} as well")]


def _shared_topics(document: Document, contract: Contract, apart: Mapping[str, _Apart]) -> list[Problem]:
    problems = []
    topics = [t for t in contract.topic or sorted(apart) if t in apart and _reads(contract, t)]
    for field in _SHARED:
        mine = _get(contract, field)
        for topic in topics:
            if field not in apart[topic]:
                continue
            first, second = apart[topic][field]
            other, theirs = first if _get(first[1], field) != mine else second
            message = (
                f"topic {topic!r} is shared with {_names([other.file])}, which says {says(theirs, field)}, "
                f"not {says(contract, field)}"
            )
            problems.append(document.problem(field, message))
            break
    return problems


def _reads(contract: Contract, topic: str) -> bool:
    return contract.matching.matches(topic) if contract.matching else topic in contract.topic


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


def _names(files: list[str]) -> str:
    return ", ".join(Path(each).name for each in files)
