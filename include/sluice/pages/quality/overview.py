"""Which tables the Data quality page expands and which it only lists, so that a thousand tables fit on one page.

In: expectation results and counts of quarantined records. Out: one `TableQuality` per table that has either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.pages.quality.trends import Trend

MAX_EXPANDED = 25
EXPAND_ALL_UP_TO = 5
FAILED, QUARANTINED, PASSED, REMOVED = "failed", "quarantined", "all passed", "removed"


@dataclass(frozen=True)
class TableQuality:
    """A table's expectations and quarantined records.

    Attributes:
        trends: the expectations with their results; empty where the page only lists the table.
        expectations: how many of the contract's expectations were evaluated.
        failed: how many of these failed in the last batch of one of the topics.
        quarantined: records in quarantine now.
    """

    table: str
    trends: Sequence[Trend]
    expectations: int
    failed: int
    quarantined: int = 0

    @property
    def state(self) -> str:
        """The state that the page filters by."""
        return FAILED if self.failed else QUARANTINED if self.quarantined else PASSED if self.expectations else REMOVED


def summarize_tables(
    found: Mapping[str, Sequence[Trend]],
    names: Collection[str],
    quarantined: Mapping[str, int] | None = None,
    *,
    slices: bool,
) -> list[TableQuality]:
    """Summarize these tables without their trends, those with most failures first.

    Args:
        found: the expectations, by table.
        names: the tables.
        quarantined: records in quarantine, by table.
        slices: whether to count the results of backfill slices, in place of batches.
    """
    summaries = []
    for name in names:
        last = [(trend, result) for trend in found.get(name, ()) if (result := trend.newest(slices))]
        current = {trend.name for trend, _ in last if trend.judged}
        failed = {trend.name for trend, result in last if trend.judged and result.success is False}
        records = (quarantined or {}).get(name, 0)
        if last or records:
            summaries.append(TableQuality(name, (), len(current), len(failed), records))
    return sorted(summaries, key=lambda each: (-each.failed, -each.quarantined, each.table))


def split_expanded(
    tables: Sequence[TableQuality], found: Mapping[str, Sequence[Trend]], searched: str, *, slices: bool
) -> tuple[list[TableQuality], list[TableQuality]]:
    """Split the tables into those to expand and those to list.

    A few tables are all expanded. Of more, the searched table and those with failures or quarantined records are.
    """
    wanted = [t for t in tables if len(tables) <= EXPAND_ALL_UP_TO or t.failed or t.quarantined or t.table == searched]
    wanted = sorted(wanted, key=lambda t: t.table != searched)[:MAX_EXPANDED]
    names = {t.table for t in wanted}
    expanded = []
    for each in wanted:
        trends = [trend.filter_slices(slices) for trend in found.get(each.table, ())]
        expanded.append(replace(each, trends=[trend for trend in trends if trend.results]))
    return expanded, [t for t in tables if t.table not in names]
