"""Failed DAG runs as events: all that is left of an outage in which nobody could write the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.dag_ids import MAINTENANCE_DAGS
from sluice.status.events import Event, Lane
from sluice.status.text import duration, utc_text

if TYPE_CHECKING:
    from sluice.status.model import TableStatus

MAX_NAMED = 3


class FailedRun(NamedTuple):
    """A failed DAG run.

    Attributes:
        began: None if it failed before it began.
        task: the first task that failed; None if none did.
        tries: tries of that task.
        tables: the tables that it acted on, as far as they are known and visible to the user.
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
        """The event for the timeline, at the time of the failure."""
        seconds = (self.ended - self.began).total_seconds() if self.began else None
        tries = f"{self.tries} {'try' if self.tries == 1 else 'tries'}"
        failed = f"task {self.task} failed after {tries}" if self.task else "no task failed"
        timing = f"began {utc_text(self.began)}, took {duration(seconds)}" if self.began else "never began"
        (only, more) = (self.tables[0], "") if len(self.tables) == 1 else (None, _name_some(self.tables))
        text = f"run of {self.dag}: {failed}{more}; {timing}"
        return Event(self.ended, Lane.RUNS, text, only, bad=True, run_id=self.run_id, seconds=seconds, dag=self.dag)


def _name_some(tables: Sequence[str]) -> str:
    more = len(tables) - MAX_NAMED
    rest = f" and {more:,} more" if more > 0 else ""
    return f" ({', '.join(tables[:MAX_NAMED])}{rest})" if tables else ""


@dataclass(frozen=True)
class RunScope:
    """Resolves the names in a run of a shared DAG, such as `backfill`, to the tables that the user may see.

    Attributes:
        tables_by_name: the typed tables by the name of a table, of its quarantine or deletes table, or of a topic.
        visible: the tables that the user may see.
    """

    tables_by_name: Mapping[str, frozenset[str]]
    visible: frozenset[str]

    @classmethod
    def from_tables(cls, tables: Iterable[TableStatus], visible: Iterable[str]) -> RunScope:
        """Build it from all tables."""
        from sluice.iceberg.table_names import DELETES, QUARANTINE, safe_identifier, staging

        known: dict[str, set[str]] = {}
        topics: dict[str, set[str]] = {}
        for each in tables:
            name_part = safe_identifier(each.table)
            for name in (each.table, f"{QUARANTINE}.{name_part}", f"{DELETES}.{name_part}"):
                known.setdefault(name, set()).add(each.table)
            for topic in each.topics:
                known.setdefault(".".join(staging(topic.topic)), set()).add(each.table)
                topics.setdefault(topic.topic, set()).add(each.table)
        # A name of both a table and a topic means the table, as in the form of `accept_gap`.
        return cls({name: frozenset(found) for name, found in (topics | known).items()}, frozenset(visible))

    def tables(self, names: Iterable[str]) -> list[str] | None:
        """The visible tables that a run acted on; None if it only acted on tables that the user may not see.

        Args:
            names: from the run's parameters or tasks. A name that is not known, such as one of Sluice's own tables,
                may concern everybody.
        """
        found = [self.tables_by_name.get(name) for name in names]
        visible = frozenset().union(*filter(None, found)) & self.visible
        return sorted(visible) if visible or not found or None in found else None


def tables_of_run(dag: str, conf: Any, tasks: Iterable[str]) -> list[str]:
    """The names of the tables or topics that a run of a shared DAG acted on.

    Args:
        conf: the configuration that it was triggered with.
        tasks: the tables whose tasks failed in a run of maintenance.
    """
    given = conf if isinstance(conf, dict) else {}
    found = [*tasks] or given.get("tables") if dag in MAINTENANCE_DAGS else [given.get("table"), given.get("name")]
    return [each for each in (found if isinstance(found, list) else ()) if each and isinstance(each, str)]
