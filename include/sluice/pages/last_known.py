"""Keeps the last known status of the tables while Kafka or the catalog does not answer, with the time it is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.errors import SluiceError
from sluice.status.model import CATALOG, KAFKA, PLANNER_FIELDS, Status, TableStatus

_KAFKA_FIELDS = ("freshness_now_seconds", "freshness_kept", *PLANNER_FIELDS)  # the planner asks Kafka as well
_TIMESTAMPED_FIELDS = {"maintenance", "expectations", "further_expectations", "last_error", "further_errors"}
"""Fields that carry their own timestamps."""


def fill_from_last(now: Status, before: Status | None) -> Status:
    """Fill the gaps of a status from the previous one, where Kafka or the catalog did not answer.

    Args:
        before: the last result of this function.
    """
    if before is None or not (now.unasked or any(t.unasked for t in now.tables)):
        return now
    known = {t.table: replace(t, as_of=t.as_of or before.at, unasked=now.unasked) for t in before.tables}
    tables = [_fill_table(t, known.pop(t.table, None), now.unread_fields) for t in now.tables]
    # With neither Kafka nor the catalog, the tables of a topic pattern are not known: keep the last ones.
    offline = {KAFKA, CATALOG} <= set(now.unasked)
    return replace(now, tables=[*tables, *(known.values() if offline else ())])


def mark_stale(last: Status, error: str) -> Status:
    """Mark a whole status as old, because reading a newer one hangs or failed.

    Args:
        error: why there is no newer one.
    """
    unasked = [KAFKA, CATALOG]
    tables = [replace(t, as_of=t.as_of or last.at, unasked=unasked) for t in last.tables]
    return replace(last, tables=tables, unasked=unasked, unavailable=[*last.unavailable, SluiceError(error)])


def _fill_table(now: TableStatus, last: TableStatus | None, unread: Sequence[str]) -> TableStatus:
    """Fill a table's missing fields from its last known status.

    Args:
        unread: the fields whose source failed, though the catalog answers.
    """
    if last is None or not now.unknown or not now.unasked:
        return now
    if CATALOG in now.unasked and (now.exists is None or not now.topics):  # it answered nothing, or only a part
        # The contract is always current: its group decides who may see the table.
        current = ["group", "mode", "owner", "unasked", *(["last_error", "further_errors"] if now.last_error else ())]
        changes = {name: getattr(now, name) for name in current}
        return replace(last, problems=now.problems or last.problems, **changes)
    names = {*unread, *(_KAFKA_FIELDS if KAFKA in now.unasked else ())}
    filled = {name: getattr(now, name) or getattr(last, name) for name in names}  # a source may fail half way
    if KAFKA in now.unasked:
        filled["topics"] = last.topics
    return replace(now, **filled, as_of=last.as_of if names - _TIMESTAMPED_FIELDS else None)
