"""Reads at once what a run has changed that somebody started, so that a page shows it when the run has ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from sluice_web import reading
from sluice_web.compat import DagRun, DagRunType, create_session

if TYPE_CHECKING:
    from sqlalchemy import Select

    from sluice.pages.detail import TableDetail
    from sluice.pages.feed import Feed, Reading
    from sluice.pages.history import History
    from sluice.status.model import Status
    from sluice_web.operations import OperatorRun

LATELY = timedelta(hours=1)
NEWEST_RUNS = 2_000  # of all DAGs of this Airflow
WAIT_S = 3.0


class TableReadings(NamedTuple):
    """What the page of a table is made of."""

    known: Reading[Status]
    detail: Reading[TableDetail]
    past: Reading[History]


def find_last_end(dags: Collection[str], runs: Sequence[OperatorRun] = ()) -> datetime | None:
    """When the last run of these DAGs that somebody started ended, or the last of `runs`, within an hour.

    None: there is none, or Airflow can't say. Nobody waits for runs of the schedule, so they don't count.
    """
    since = datetime.now(UTC) - LATELY
    try:
        with create_session() as session:
            last = session.scalar(_last_end(dags, since))
    except SQLAlchemyError:
        last = None
    ends = [last, *(run.ended for run in runs if not run.dry_run)]
    return max((end for end in ends if end and end >= since), default=None)


def _last_end(dags: Collection[str], since: datetime) -> Select[tuple[datetime | None]]:
    """Of the newest runs alone: the end of a run has no index, and a busy Airflow has many runs an hour."""
    columns = (DagRun.dag_id, DagRun.run_type, DagRun.end_date)
    newest = select(*columns).order_by(DagRun.id.desc()).limit(NEWEST_RUNS).subquery().c
    started = (newest.dag_id.in_(dags), newest.run_type == DagRunType.MANUAL, newest.end_date >= since)
    return select(func.max(newest.end_date)).where(*started)


def read_changed_status(readable: set[str], change: datetime | None) -> Reading[Status]:
    """Read the status after a run has ended; where reading it takes long, it is read but not waited for."""
    feed = reading.feeds().status
    quick = feed.get().seconds < WAIT_S
    return reading.select_readable(feed.get_since(change, wait=WAIT_S if quick else 0.0), readable)


def read_changed_table(readable: set[str], name: str, change: datetime | None, hours: int) -> TableReadings:
    """Read the status with the newest of one table, its details and its events.

    Args:
        change: when a run ended that somebody started and that may have changed the table: what was read before is
            read again, and waited for.
        hours: how far the events reach back.
    """
    known = reading.feeds().status.get(wait=reading.FIRST_WAIT_S)
    details = reading.feeds().details.get_feed(name)
    events = (reading.feeds().histories if hours <= reading.WEEK_H else reading.feeds().months).get_feed(name)
    if change is None:
        detail, past = (each.get(wait=reading.FIRST_WAIT_S) for each in (details, events))
        return TableReadings(reading.select_readable(known, readable), detail, past)
    old = known.at is None or known.at < change
    alone = reading.feeds().tables.get_feed(name)
    wanted: list[Feed[Any]] = [*([alone] if old else []), details, *([events] if hours <= reading.WEEK_H else [])]
    for each in wanted:
        each.get_since(change, wait=0.0)  # all are read at the same time
    end = time.monotonic() + WAIT_S
    found = {each: each.get_since(change, wait=max(end - time.monotonic(), 0.0)) for each in wanted}
    if old:
        known = _replace_table(known, found[alone], name)
    return TableReadings(reading.select_readable(known, readable), found[details], found.get(events) or events.get())


def _replace_table(known: Reading[Status], alone: Reading[Status], name: str) -> Reading[Status]:
    """The status with one table of a newer status; the page of that table shows no other."""
    table = reading.find_table(alone.value, name)
    if known.value is None or alone.value is None or table is None or alone.value.at <= known.value.at:
        return replace(known, busy=known.busy or alone.busy)
    tables = [table if each.table == name else each for each in known.value.tables]
    return replace(known, value=replace(known.value, at=alone.value.at, tables=tables))
