"""Proposes partitions: by the time of the event if the sample shows one, else by Kafka's timestamp."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.draft.model import DraftColumn, Proposal
from sluice.draft.personal import words
from sluice.draft.sample import Sample

_TIMES = ("timestamptz", "timestamp", "date")
_EVENT = words("created event happened issued occurred opened ordered placed sent time timestamp ts")
_LATER = words(
    "birth birthday birthdate changed closed deadline deleted due end expire expires expiry modified until updated "
    "valid"
)
_ENOUGH = 2
_FEW_PER_DAY = 50_000


def propose_partitions(columns: Sequence[DraftColumn], sample: Sample) -> Proposal:
    """Return `partition_by` for a table that keeps every record."""
    rate = sample.records_per_day
    unit = "month" if rate is not None and rate < _FEW_PER_DAY else "day"
    speed = f"about {rate:,.0f} records a day" if rate is not None else "the sample does not show how fast records come"
    taken = {each.name.lower() for each in columns}
    candidates = [
        (_score(each), -index, each)
        for index, each in enumerate(columns)
        if each.type in _TIMES and f"{each.name}_{unit}".lower() not in taken
    ]
    best = max(candidates, default=None, key=lambda each: each[:2])
    if best and best[0] >= _ENOUGH:
        return Proposal([f"{unit}({best[2].name})"], f"the time of the event; {speed}")
    return Proposal([f"{unit}(_kafka_timestamp)"], f"no column is surely the time of the event; {speed}")


def _score(column: DraftColumn) -> int:
    found = words(column.name)
    score = 2 * column.always + 2 * bool(found & _EVENT) - 4 * bool(found & _LATER)
    return score + (column.type == "timestamptz")
