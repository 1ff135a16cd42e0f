"""What is known of the tables while Kafka or the catalog is away: what they told last, marked as of when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.errors import SluiceError
from sluice.status.model import CATALOG, KAFKA, OF_PLANNER, Status, TableStatus

_OF_KAFKA = ("freshness_now_seconds", "freshness_kept", *OF_PLANNER)  # the planner asks Kafka as well
_OF_THEN = {"maintenance", "expectations", "further_expectations", "last_error", "further_errors"}
"""What tells by itself of when it is."""


def beside(now: Status, before: Status | None) -> Status:
    """A status with what was known before, where nobody could be asked.

    Args:
        before: what this gave the last time.
    """
    if before is None or not (now.unasked or any(t.unasked for t in now.tables)):
        return now
    was = {t.table: replace(t, as_of=t.as_of or before.at, unasked=now.unasked) for t in before.tables}
    tables = [_of_table(t, was.pop(t.table, None), now.unread) for t in now.tables]
    # Who knows which tables a pattern stands for? Kafka does, and the catalog.
    nobody = {KAFKA, CATALOG} <= set(now.unasked)
    return replace(now, tables=[*tables, *(was.values() if nobody else ())])


def unanswered(was: Status, error: str) -> Status:
    """A status that is old, as its reading hangs or failed since: all of it is of then, as if nobody could be asked.

    Args:
        error: why there is no newer one.
    """
    nobody = [KAFKA, CATALOG]
    tables = [replace(t, as_of=t.as_of or was.at, unasked=nobody) for t in was.tables]
    return replace(was, tables=tables, unasked=nobody, unavailable=[*was.unavailable, SluiceError(error)])


def _of_table(now: TableStatus, was: TableStatus | None, unread: Sequence[str]) -> TableStatus:
    """A table with what was known of it, as far as it was not told anew.

    Args:
        unread: the fields whose source failed, though the table itself answers.
    """
    if was is None or not now.unknown or not now.unasked:
        return now
    if CATALOG in now.unasked and (now.exists is None or not now.topics):  # it told nothing, or not to the end
        # What the contract says is of now: by its group it is known who may see the table.
        of_now = ["group", "mode", "owner", "unasked", *(["last_error", "further_errors"] if now.last_error else ())]
        changes = {name: getattr(now, name) for name in of_now}
        return replace(was, problems=now.problems or was.problems, **changes)
    names = {*unread, *(_OF_KAFKA if KAFKA in now.unasked else ())}
    kept = {name: getattr(now, name) or getattr(was, name) for name in names}  # a source may fail half way
    if KAFKA in now.unasked:
        kept["topics"] = was.topics
    return replace(now, **kept, as_of=was.as_of if names - _OF_THEN else None)
