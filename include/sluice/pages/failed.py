"""Runs that failed, as Airflow tells of them: all that is left of an outage in which nobody could write the ledger."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sluice.events import Event, Lane
from sluice.status_text import duration, moment


class FailedRun(NamedTuple):
    """A run of a DAG that failed.

    Attributes:
        began: None for a run that was failed before it began.
        task: the first of its tasks that failed; None where none did.
        tries: how often that was tried.
    """

    dag: str
    run_id: str
    began: datetime | None
    ended: datetime
    task: str | None = None
    tries: int = 0

    @property
    def event(self) -> Event:
        """As it stands on a timeline: at the moment at which it had failed."""
        seconds = (self.ended - self.began).total_seconds() if self.began else None
        tries = f"{self.tries} {'try' if self.tries == 1 else 'tries'}"
        failed = f"task {self.task} failed after {tries}" if self.task else "no task of it failed"
        since = f"it began {moment(self.began)} and took {duration(seconds)}" if self.began else "it never began"
        told = f"run of {self.dag}: {failed}; {since}"
        return Event(self.ended, Lane.RUNS, told, bad=True, run_id=self.run_id, seconds=seconds, dag=self.dag)
