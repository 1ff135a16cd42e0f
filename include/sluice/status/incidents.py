"""Incidents: states of tables that need attention, each reported once, and the text of their alerts.

In: a status, the `alerts` settings, the known incidents. Out: new, continuing and resolved incidents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from sluice.contract.folder import DEFAULTS_FILE
from sluice.contract.groups import GROUPS_FILE, AlertSettings
from sluice.errors import ConfigError, SluiceError
from sluice.status import verdicts
from sluice.status.model import Status, TableStatus

MAX_TITLE_LENGTH = 80
_TITLES = {
    "review": "waits for a schema review",
    "doubtful": "has failing checks",
    "backfill refused": "had a backfill refused",
    "rejecting": "quarantines too many records",
}


@dataclass(frozen=True)
class Incident:
    """A table in a state that needs attention; without a table, an error that hides the status of many.

    The field names are stored in an Airflow variable.

    Attributes:
        word: the state of `status.verdicts`, or `rejecting`; without a table, the error's class.
        why: the evidence; text from outside, which must be escaped.
        todo: the next step; likewise.
        url: the table's timeline.
        unheard: the notifiers that still have to report it.
        kind: the kind of risk.
        about: identifies it among incidents of the same state while it lasts. Without a table: the topic pattern or
            table of the error. Incidents stored by older versions have None, or lack it.
    """

    table: str
    word: str
    why: str
    todo: str = ""
    url: str = ""
    unheard: tuple[str, ...] = ()
    kind: str = ""
    about: str | None = None

    @property
    def key(self) -> str:
        """Identifies the incident."""
        return " ".join(part for part in (f"{self.table}:", self.word, self.kind, self.about) if part)

    @property
    def title(self) -> str:
        """A short text that is unique per table."""
        text = f"{self.table} {_TITLES.get(self.word, f'is {self.word}')}" if self.table else f"Sluice: {self.word}"
        which = " ".join(": ".join(filter(None, (self.kind, self.about))).split())  # a mail subject is one line
        return f"{text} ({which[:MAX_TITLE_LENGTH]}{'…' if len(which) > MAX_TITLE_LENGTH else ''})" if which else text

    @property
    def text(self) -> str:
        """A message of a few lines."""
        return "\n".join(line for line in (self.title, self.why, self.todo, self.url) if line)

    @property
    def html(self) -> str:
        """The same as escaped HTML."""
        link = f'<p><a href="{escape(self.url)}">Timeline</a></p>' if self.url else ""
        return f"<h3>{escape(self.title)}</h3><p>{escape(self.why)}</p><p>{escape(self.todo)}</p>{link}"


def find_incidents(status: Status, alerts: AlertSettings, pages: str) -> list[Incident]:
    """Find the incidents in a status.

    Args:
        alerts: which states are incidents.
        pages: the base URL of Sluice's pages.
    """
    found = [Incident("", type(error).__name__, str(error), about=_error_key(error)) for error in status.errors]
    for file, problems in groupby(sorted(status.broken), lambda problem: problem.partition(":")[0]):
        name = Path(file).name
        whose = {GROUPS_FILE: "The tables of these groups", DEFAULTS_FILE: "All tables"}.get(name, "Its tables")
        why = f"{whose} are neither ingested nor monitored: " + "; ".join(problems)
        found.append(Incident("", f"broken contract {name}", why, "Fix the file.", about=""))
    for table in status.tables:
        url = f"{pages}/tables/{quote(table.table, safe='')}/timeline"
        states = [*verdicts.list_verdicts(table), *_high_quarantine_ratio(table, alerts.quarantine_ratio)]
        states = [v for v in states if v.word != "failed" or v.runs >= alerts.failed_runs]
        alerting = [v for v in states if v.word in alerts.states]
        found += [Incident(table.table, v.word, v.why, v.todo, url, kind=v.kind, about=v.about) for v in alerting]
    return found


def _error_key(error: SluiceError) -> str:
    """Identifies an error among others of its class."""
    if isinstance(error, ConfigError):
        return error.message  # stable: it is about settings
    return str(error.fields.get("table") or error.fields.get("topic") or "")


def _high_quarantine_ratio(table: TableStatus, limit: float) -> Iterator[verdicts.Verdict]:
    """A verdict if the ratio of quarantined records is too high, though each batch may be within its tolerance."""
    rejected = table.day_rejected
    if table.day_apart is not None:  # records that were replayed since do not count
        rejected = min(rejected, table.day_apart)
    records = max(table.day_records, rejected)  # a rebuilt ledger may lack the counts
    if rejected >= limit * max(records, 1):
        why = (
            f"{rejected:,} of {records:,} records of the last 24 hours are quarantined ({rejected / records:.2%}); "
            f"the limit is {limit:.2%}."
        )
        yield verdicts.Verdict("rejecting", verdicts.Tone.WARN, why, "See the quarantined records on the table's page.")


def compare_incidents(
    found: Iterable[Incident], known: Iterable[Incident], status: Status
) -> tuple[list[Incident], list[Incident], list[Incident]]:
    """Split into new, continuing and resolved incidents.

    Incidents of a table whose status is unknown continue.

    Args:
        found: the incidents in the current status.
        known: those reported earlier and not resolved.
    """
    now = {each.key: each for each in found}
    before = {each.key: each for each in (_complete_old_incident(each, now) for each in known)}
    # An incident of a table without a contract is resolved, unless a broken contract may be its.
    unknown = {t.table for t in status.tables if t.unknown}
    if status.broken:
        unknown |= {i.table for i in before.values() if i.table} - {t.table for t in status.tables}
    partly = bool(status.unasked or status.broken)  # then stopped topic patterns are not known
    new = [each for key, each in now.items() if key not in before]
    continuing = [
        each
        for key, each in before.items()
        if key in now or each.table in unknown or (partly and not each.table and each.about)
    ]
    return new, continuing, [each for each in before.values() if each not in continuing]


def _complete_old_incident(known: Incident, now: Mapping[str, Incident]) -> Incident:
    """Add `kind` and `about`, which older versions did not store: they reported one incident per state."""
    if known.about or (known.about is not None and not known.kind) or known.key in now:
        return known
    same = [i for i in now.values() if (i.table, i.word) == (known.table, known.word) and known.kind in ("", i.kind)]
    if not same:
        return known
    its = min(same, key=lambda each: each.why != known.why)
    return replace(known, kind=its.kind, about=its.about)
