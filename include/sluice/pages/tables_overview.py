"""The page of all tables: its cards, and its rows in the chosen order, each with its last batches.

In: the status of the tables, what they published lately, and what the viewer chose. Out: an `Overview`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

from sluice.dag_ids import ingest_dag
from sluice.pages.render import format_compact
from sluice.status import verdicts
from sluice.status.activity import BatchEnd, TableActivity
from sluice.status.model import TableStatus
from sluice.status.verdicts import StatusSummary, Tone, Verdict

_NOTHING = TableActivity()


@dataclass(frozen=True)
class View:
    """What the viewer chose; an empty field: the default. Values that no page offers are ignored.

    Attributes:
        q: searched in the names of a table and of its topics, its mode and its owner.
        state: a state's label.
        dag_id: the DAG that a page of Airflow links from.
        show: the card whose tables are shown.
        sort: the column; default: the most urgent first.
        order: `asc` or `desc`.
        by: `group`: by the contract's group.
    """

    q: str = ""
    state: str = ""
    dag_id: str = ""
    show: str = ""
    sort: str = ""
    order: str = ""
    by: str = ""

    def query(self, **changes: str) -> str:
        """The query string of this view with some changes; empty without a choice."""
        values = {each.name: getattr(self, each.name) for each in fields(self)} | changes
        text = urlencode({name: value for name, value in values.items() if value}, quote_via=quote, safe="")
        return f"?{text}" if text else ""

    @property
    def kept(self) -> dict[str, str]:
        """What the form of the search does not ask for, and keeps."""
        return {name: value for name in ("dag_id", "show", "sort", "order") if (value := getattr(self, name))}

    def of_dag(self, tables: Iterable[TableStatus]) -> list[TableStatus]:
        """The tables that the DAG ingests; all, if it is no group's."""
        is_group = self.dag_id.startswith(ingest_dag(""))
        return [t for t in tables if not is_group or ingest_dag(t.group) == self.dag_id]


@dataclass(frozen=True)
class Row:
    """One table.

    Attributes:
        verdict: its most urgent state.
    """

    table: TableStatus
    verdict: Verdict
    activity: TableActivity = _NOTHING

    @property
    def needs_attention(self) -> bool:
        """Whether its state is one to act on."""
        return self.verdict.tone <= Tone.WARN

    @property
    def failed_checks(self) -> int:
        """Failed expectations of the last evaluated batch of each topic."""
        return sum(len(each.failed) for each in self.table.failed_expectations)

    @property
    def volumes(self) -> list[int]:
        """Records of the last published batches, oldest first."""
        return [each.published for each in self.activity.batches if each.published is not None]

    @property
    def lags(self) -> list[int]:
        """Unread offsets of all topics before each of the last batches, and now."""
        batches, by_topic = self.activity.batches, dict[str, int]()
        topics = {each.topic for each in batches if each.unread is not None}
        found = []
        for each in batches:
            if each.unread is not None:
                by_topic[each.topic] = each.unread
                if len(by_topic) == len(topics):
                    found.append(sum(by_topic.values()))
        return found if self.table.lag_records is None else [*found, self.table.lag_records]

    @property
    def batches_text(self) -> str:
        """How the last batches ended."""
        count = _count_tones(self.activity.batches)
        parts = [f"{count['good']} published"] if count["good"] else []
        parts += [f"{count['warn']} published with quarantined records"] if count["warn"] else []
        parts += [f"{count['bad']} not published"] if count["bad"] else []
        return f"Last {len(self.activity.batches)} batches, newest right: {', '.join(parts)}"

    def has(self, text: str) -> bool:
        """Whether a search finds the table."""
        table = self.table
        found = (table.table, table.owner, table.mode, *(t.topic for t in table.topics))
        return any(text in each.casefold() for each in found)


def _count_tones(batches: Sequence[BatchEnd]) -> dict[str, int]:
    tones = [each.tone for each in batches]
    return {tone: tones.count(tone) for tone in ("good", "warn", "bad")}


@dataclass(frozen=True)
class Column:
    """A column of the page.

    Attributes:
        name: its value of `View.sort`; empty: it cannot be sorted by.
        key: what a row is sorted by; None: unknown, which comes last.
        first: the order of the first click on it.
        numeric: whether its figures are aligned at the right.
    """

    name: str
    label: str
    tooltip: str
    key: Callable[[Row], Any]
    first: str = "desc"
    numeric: bool = False


COLUMNS = (
    Column("table", "Table", "Topics, mode and owner below", lambda r: r.table.table, "asc"),
    Column("state", "State", "The most urgent state of the table", lambda r: verdicts.by_urgency((r.table, r.verdict)),
           "asc"),
    Column("freshness", "Freshness", "Timestamp of the newest record in Kafka minus that of the newest record in the "
           "table, and the contract's target", lambda r: r.table.freshness_now_seconds),
    Column("lag", "Lag", "Offsets in Kafka that are not in the table yet; before the last batches, and now",
           lambda r: r.table.lag_records, numeric=True),
    Column("records", "Records (last batch)", "Records of the last published batch, and of those before it",
           lambda r: r.volumes[-1] if r.volumes else None, numeric=True),
    Column("batches", "Last batches", "Newest right. Green: published; yellow: published with quarantined records; "
           "red and tall: blocked or failed", lambda r: sum(b.tone == "bad" for b in r.activity.batches)),
    Column("commit", "Last commit", "The newest snapshot with offsets",
           lambda r: r.table.snapshot.at if r.table.snapshot else None),
    Column("quality", "Quality", "Expectations of the last evaluated batch", lambda r: r.failed_checks),
    Column("quarantined", "Quarantined", "Records quarantined now", lambda r: r.table.quarantined, numeric=True),
)  # fmt: skip


@dataclass(frozen=True)
class Card:
    """A figure about all tables; a click on it shows the tables that it is about.

    Attributes:
        name: its value of `View.show`.
        tone: `good`, `warn`, `bad`, `unknown`, or empty where the figure is neither.
        detail: what the figure is of, or what is wrong.
    """

    name: str
    figure: str
    label: str
    detail: str
    tone: str = ""


SHOWN: Mapping[str, Callable[[Row], bool]] = {
    "attention": lambda row: row.needs_attention,
    "stale": lambda row: row.table.within_target is False,
    "publishing": lambda row: row.activity.published > 0,
    "quarantined": lambda row: row.activity.quarantined > 0,
    "checks": lambda row: row.failed_checks > 0,
}
"""The tables that each card shows."""


@dataclass(frozen=True)
class Group:
    """The rows of one group of contracts; of all, if the name is empty."""

    name: str
    rows: Sequence[Row]

    @property
    def needing(self) -> int:
        """How many tables need attention."""
        return sum(row.needs_attention for row in self.rows)


@dataclass(frozen=True)
class Overview:
    """The page of all tables.

    Attributes:
        every: all tables of the DAG.
        groups: those that are shown.
        is_read: whether it is known what the tables published lately.
        day_ago: events since then are on the timeline of a day.
    """

    view: View
    every: Sequence[Row]
    groups: Sequence[Group]
    is_read: bool
    day_ago: datetime

    @property
    def shown(self) -> int:
        """How many tables are shown."""
        return sum(len(group.rows) for group in self.groups)

    @cached_property
    def summary(self) -> StatusSummary:
        """The status of all tables together."""
        return StatusSummary.from_verdicts([(row.table, row.verdict) for row in self.every])

    @property
    def states(self) -> Sequence[tuple[str, str, int]]:
        """The choices of the filter by state: value, label, number of tables."""
        return [(label, label, count) for label, _, count in self.summary.states]

    @property
    def columns(self) -> Sequence[tuple[Column, str, str]]:
        """Each column, the order that it is sorted in (empty: it is not), and that of a click on it."""
        found = []
        for column in COLUMNS:
            order = (self.view.order or column.first) if column.name == self.view.sort else ""
            after = {"asc": "desc", "desc": "asc"}.get(order, column.first)
            found.append((column, order, after))
        return found

    @property
    def cards(self) -> Sequence[Card]:
        """The figures about all tables."""
        return (self._attention(), self._freshness(), self._publishing(), self._quarantined(), self._checks())

    def _attention(self) -> Card:
        found, total = self.summary, len(self.every)
        parts = [f"of {total:,} {'table' if total == 1 else 'tables'}"]
        parts += [f"{found.unknown:,} unknown"] if found.unknown else []
        parts += [f"{found.new:,} never run"] if found.new else []
        worst = min((row.verdict.tone for row in self.every), default=Tone.GOOD)
        label = "needs attention" if found.needing == 1 else "need attention"
        # A table that never ran is no trouble.
        tone = "good" if worst == Tone.UNKNOWN and not found.unknown else worst.name.lower()
        return Card("attention", f"{found.needing:,}", label, ", ".join(parts), tone)

    def _freshness(self) -> Card:
        kept = [within for row in self.every if (within := row.table.within_target) is not None]
        label = "within the freshness target"
        if not kept:
            targets = any(row.table.freshness_promised_seconds is not None for row in self.every)
            return Card("stale", "-", label, "not known yet" if targets else "no contract has a target", "unknown")
        stale = kept.count(False)
        detail = f"{stale:,} of {len(kept):,} stale" if stale else f"all {len(kept):,} tables with a target"
        return Card("stale", f"{100 * (len(kept) - stale) // len(kept)}%", label, detail, "bad" if stale else "good")

    def _publishing(self) -> Card:
        label = "records published a minute"
        if not self.is_read:
            return Card("publishing", "-", label, "not read yet", "unknown")
        records, tables = sum(row.activity.published for row in self.every), sum(map(SHOWN["publishing"], self.every))
        detail = f"mean of the last hour, {tables:,} {'table' if tables == 1 else 'tables'}"
        return Card("publishing", format_compact(round(records / 60)), label, detail)

    def _quarantined(self) -> Card:
        label, detail = "records quarantined in 24 h", f"{format_compact(self.summary.quarantined)} in quarantine now"
        if not self.is_read:
            return Card("quarantined", "-", label, detail, "unknown")
        records = sum(row.activity.quarantined for row in self.every)
        return Card("quarantined", format_compact(records), label, detail, "warn" if records else "good")

    def _checks(self) -> Card:
        failing = sum(map(SHOWN["checks"], self.every))
        checked = sum(bool(row.table.expectations) for row in self.every)
        label = "table has failing checks" if failing == 1 else "tables have failing checks"
        detail = (
            f"of {checked:,} {'table' if checked == 1 else 'tables'} with evaluated checks"
            if checked
            else "no checks were evaluated"
        )
        return Card("checks", f"{failing:,}", label, detail, "warn" if failing else "good" if checked else "unknown")


def make_overview(tables: Iterable[TableStatus], activity: Mapping[str, TableActivity] | None, view: View) -> Overview:
    """Make the page.

    Args:
        tables: those that the viewer may see.
        activity: by table; None: not read yet.
    """
    known = activity or {}
    found = sorted(((t, verdicts.worst_verdict(t)) for t in view.of_dag(tables)), key=verdicts.by_urgency)
    every = [Row(table, verdict, known.get(table.table, _NOTHING)) for table, verdict in found]
    wanted, is_on_card = view.q.casefold(), SHOWN.get(view.show)
    rows = [
        row
        for row in every
        if view.state in ("", row.verdict.label) and (is_on_card is None or is_on_card(row)) and row.has(wanted)
    ]
    return Overview(
        view, every, _group(_sort(rows, view), view), activity is not None, datetime.now(UTC) - timedelta(days=1)
    )


def _sort(rows: Sequence[Row], view: View) -> list[Row]:
    column = next((each for each in COLUMNS if each.name == view.sort), None)
    if column is None:
        return [*rows]
    keyed = [(column.key(row), row) for row in rows]
    known = [(key, row) for key, row in keyed if key is not None]
    known.sort(key=lambda each: each[0], reverse=(view.order or column.first) == "desc")
    return [row for _, row in known] + [row for key, row in keyed if key is None]


def _group(rows: Sequence[Row], view: View) -> list[Group]:
    if view.by != "group":
        return [Group("", rows)] if rows else []
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.table.group, []).append(row)
    return [Group(name, each) for name, each in groups.items()]
