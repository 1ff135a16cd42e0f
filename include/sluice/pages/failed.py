"""Runs that failed, as Airflow tells of them: all that is left of an outage in which nobody could write the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.status.events import MAINTAIN, Event, Lane
from sluice.status.text import duration, moment

if TYPE_CHECKING:
    from sluice.status.model import TableStatus

NAMED = 3


class FailedRun(NamedTuple):
    """A run of a DAG that failed.

    Attributes:
        began: None for a run that was failed before it began.
        task: the first of its tasks that failed; None where none did.
        tries: how often that was tried.
        tables: those that it was about, as far as that is known and may be told.
    """

    dag: str
    run_id: str
    began: datetime | None
    ended: datetime
    task: str | None = None
    tries: int = 0
    tables: Sequence[str] = ()

    @property
    def event(self) -> Event:
        """As it stands on a timeline: at the moment at which it had failed."""
        seconds = (self.ended - self.began).total_seconds() if self.began else None
        tries = f"{self.tries} {'try' if self.tries == 1 else 'tries'}"
        failed = f"task {self.task} failed after {tries}" if self.task else "no task of it failed"
        since = f"it began {moment(self.began)} and took {duration(seconds)}" if self.began else "it never began"
        (only, more) = (self.tables[0], "") if len(self.tables) == 1 else (None, _few(self.tables))
        told = f"run of {self.dag}: {failed}{more}; {since}"
        return Event(self.ended, Lane.RUNS, told, only, bad=True, run_id=self.run_id, seconds=seconds, dag=self.dag)


def _few(tables: Sequence[str]) -> str:
    more = len(tables) - NAMED
    rest = f" and {more:,} more" if more > 0 else ""
    return f" ({', '.join(tables[:NAMED])}{rest})" if tables else ""


@dataclass(frozen=True)
class Concern:
    """Which tables the runs of DAGs that are no group's were about.

    Attributes:
        known: the typed tables that a name stands for: of a table, of what belongs to it, of a topic.
        mine: those tables that may be told of.
    """

    known: Mapping[str, frozenset[str]]
    mine: frozenset[str]

    @classmethod
    def of(cls, tables: Iterable[TableStatus], mine: Iterable[str]) -> Concern:
        """By what is known of all tables."""
        from sluice.iceberg.table_names import DELETES, QUARANTINE, safe, staging

        known: dict[str, set[str]] = {}
        topics: dict[str, set[str]] = {}
        for each in tables:
            beside = safe(each.table)
            for name in (each.table, f"{QUARANTINE}.{beside}", f"{DELETES}.{beside}"):
                known.setdefault(name, set()).add(each.table)
            for topic in each.topics:
                known.setdefault(".".join(staging(topic.topic)), set()).add(each.table)
                topics.setdefault(topic.topic, set()).add(each.table)
        # What a table and a topic are called means the table, as in the form of `accept_gap`.
        return cls({name: frozenset(found) for name, found in (topics | known).items()}, frozenset(mine))

    def tables(self, names: Iterable[str]) -> list[str] | None:
        """Of the tables that a run was about those that may be told of; None where it was about others alone.

        Args:
            names: what the run was given, or had tasks for. What none of the tables explains, as Sluice's own or a
                name that nobody knows, may concern everybody.
        """
        found = [self.known.get(name) for name in names]
        told = frozenset().union(*filter(None, found)) & self.mine
        return sorted(told) if told or not found or None in found else None


def names(dag: str, conf: Any, tasks: Iterable[str]) -> list[str]:
    """By what names a run says which tables it was about.

    Args:
        conf: what it was triggered with.
        tasks: the tables whose tasks failed in it, of maintenance.
    """
    given = conf if isinstance(conf, dict) else {}
    found = [*tasks] or given.get("tables") if dag in MAINTAIN else [given.get("table"), given.get("name")]
    return [each for each in (found if isinstance(found, list) else ()) if each and isinstance(each, str)]
