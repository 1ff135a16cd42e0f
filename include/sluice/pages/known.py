"""What is known of the tables while Kafka or the catalog is away: what they told last, marked as of when."""

from __future__ import annotations

from dataclasses import replace

from sluice.errors import SluiceError
from sluice.status_model import CATALOG, KAFKA, Status, TableStatus


def beside(now: Status, before: Status | None) -> Status:
    """A status with what was known before, where nobody could be asked.

    Args:
        before: what this gave the last time.
    """
    if before is None or not (now.unasked or any(t.unasked for t in now.tables)):
        return now
    was = {t.table: replace(t, as_of=t.as_of or before.at, unasked=now.unasked) for t in before.tables}
    tables = [_of_table(t, was.pop(t.table, None)) for t in now.tables]
    # Who knows which tables a pattern stands for? Kafka does, and the catalog.
    nobody = {KAFKA, CATALOG} <= set(now.unasked)
    return replace(now, tables=[*tables, *(was.values() if nobody else ())])


def unanswered(was: Status, error: str) -> Status:
    """A status whose reading hangs, or failed since: all that it tells is of then, as if nobody could be asked.

    Args:
        error: why there is no newer one.
    """
    nobody = [KAFKA, CATALOG]
    tables = [replace(t, as_of=t.as_of or was.at, unasked=nobody) for t in was.tables]
    return replace(was, tables=tables, unasked=nobody, unavailable=[*was.unavailable, SluiceError(error)])


def _of_table(now: TableStatus, was: TableStatus | None) -> TableStatus:
    if was is None or not now.unknown or not now.unasked:
        return now
    if CATALOG in now.unasked:
        return replace(was, problems=now.problems or was.problems, unasked=now.unasked)
    # The planner, who tells what stops and threatens a table, asks Kafka as well.
    return replace(
        now, topics=was.topics, freshness_now_seconds=was.freshness_now_seconds, freshness_kept=was.freshness_kept,
        problems=now.problems or was.problems, risks=was.risks, schema=was.schema, as_of=was.as_of,
    )  # fmt: skip
