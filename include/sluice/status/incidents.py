"""What needs a person, told once: the states of tables that are incidents, beside those that were told already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from sluice.contract.groups import GROUPS_FILE, Alerts
from sluice.errors import ConfigError, SluiceError
from sluice.status import verdicts
from sluice.status.model import Status, TableStatus

TITLE_MOST = 80
_SAYS = {"review": "waits for a review", "backfill refused": "had a backfill refused", "rejecting": "rejects records"}


@dataclass(frozen=True)
class Incident:
    """A table in a state that needs a person; without a table, what keeps all or many from being looked at.

    Attributes:
        word: the state, as `status.verdicts` has it, or `rejecting`; without a table the error's name.
        why, todo: as the pages tell it; text from outside, to be escaped where it is shown.
        url: the table's timeline.
        unheard: those that are to be told and could not be yet.
        kind: what the table is at risk of.
        about: what else tells it apart, of a table as `status.verdicts` has it, else the template or the table that an
            error names; nothing that a further look or run changes. Older versions remember less: no kind and None, or
            of a risk the kind alone.
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
        """What makes it the same incident."""
        return " ".join(part for part in (f"{self.table}:", self.word, self.kind, self.about) if part)

    @property
    def title(self) -> str:
        """In a few words, by which two of one table are told apart."""
        told = f"{self.table} {_SAYS.get(self.word, f'is {self.word}')}" if self.table else f"Sluice: {self.word}"
        which = " ".join(": ".join(filter(None, (self.kind, self.about))).split())  # a subject of a mail is one line
        return f"{told} ({which[:TITLE_MOST]}{'…' if len(which) > TITLE_MOST else ''})" if which else told

    @property
    def text(self) -> str:
        """In a few lines."""
        return "\n".join(line for line in (self.title, self.why, self.todo, self.url) if line)

    @property
    def html(self) -> str:
        """The same for a mail, escaped."""
        link = f'<p><a href="{escape(self.url)}">What happened</a></p>' if self.url else ""
        return f"<h3>{escape(self.title)}</h3><p>{escape(self.why)}</p><p>{escape(self.todo)}</p>{link}"


def of_status(status: Status, alerts: Alerts, pages: str) -> list[Incident]:
    """What needs a person now.

    Args:
        alerts: what does.
        pages: the address of Sluice's pages.
    """
    found = [Incident("", type(error).__name__, str(error), about=_about(error)) for error in status.errors]
    for file, problems in groupby(sorted(status.broken), lambda problem: problem.partition(":")[0]):
        name = Path(file).name
        whose = "The tables of the groups concerned" if name == GROUPS_FILE else "Its tables"
        why = f"{whose} are neither ingested nor watched: " + "; ".join(problems)
        found.append(Incident("", f"broken contract {name}", why, "Repair it.", about=""))
    for table in status.tables:
        url = f"{pages}/tables/{quote(table.table, safe='')}/timeline"
        said = [*verdicts.said(table), *_rejecting(table, alerts.quarantine_ratio)]
        said = [v for v in said if v.word != "failed" or v.runs >= alerts.failed_runs]
        told = [v for v in said if v.word in alerts.states]
        found += [Incident(table.table, v.word, v.why, v.todo, url, kind=v.kind, about=v.about) for v in told]
    return found


def _about(error: SluiceError) -> str:
    """What tells an error without a table's status apart from another of its class."""
    if isinstance(error, ConfigError):
        return error.message  # of Kafka or of the catalog: a sentence about settings, which change by hand
    return str(error.fields.get("table") or error.fields.get("topic") or "")


def _rejecting(table: TableStatus, limit: float) -> Iterator[verdicts.Verdict]:
    """Whether so many records are set apart, though each batch may be within what its contract tolerates."""
    rejected = table.day_rejected
    if table.day_apart is not None:  # what was replayed since needs nobody
        rejected = min(rejected, table.day_apart)
    records = max(table.day_records, rejected)  # of a ledger written anew the former may be missing
    if rejected >= limit * max(records, 1):
        told = f"{rejected:,} of {records:,} records that were published within the last 24 hours were set apart"
        why = f"{told} and not replayed since ({rejected / records:.2%}); {limit:.2%} is told of."
        yield verdicts.Verdict("rejecting", verdicts.Tone.WARN, why, "See the rejected records on the table's page.")


def compare(
    found: Iterable[Incident], told: Iterable[Incident], status: Status
) -> tuple[list[Incident], list[Incident], list[Incident]]:
    """What is new, what goes on, and what is over, beside what was told already.

    A table that could not be asked is as it was: its incidents go on.
    """
    now = {each.key: each for each in found}
    before = {each.key: each for each in (_as_now(each, now) for each in told)}
    # What no contract names any more is over; what a broken one may name is not known.
    unknown = {t.table for t in status.tables if t.unknown}
    if status.broken:
        unknown |= {i.table for i in before.values() if i.table} - {t.table for t in status.tables}
    partly = bool(status.unasked or status.broken)  # which templates stand still is not known then
    new = [each for key, each in now.items() if key not in before]
    goes_on = [
        each
        for key, each in before.items()
        if key in now or each.table in unknown or (partly and not each.table and each.about)
    ]
    return new, goes_on, [each for each in before.values() if each not in goes_on]


def _as_now(told: Incident, now: Mapping[str, Incident]) -> Incident:
    """An incident with what older versions did not remember: they told the first of its word, and one alone."""
    if told.about or (told.about is not None and not told.kind) or told.key in now:
        return told
    same = [i for i in now.values() if (i.table, i.word) == (told.table, told.word) and told.kind in ("", i.kind)]
    if not same:
        return told
    its = min(same, key=lambda each: each.why != told.why)
    return replace(told, kind=its.kind, about=its.about)
