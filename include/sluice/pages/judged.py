"""Which tables the page of data quality opens and which it only names, so that a thousand are one page.

There are those whose expectations were judged, and those with records in quarantine, whatever they expect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.pages.trends import Trend

OPEN = 25
FEW = 5
FAILED, APART, HELD, PAST = "failed", "in quarantine", "all held", "no longer judged"


@dataclass(frozen=True)
class Judged:
    """A table's expectations, and what is set apart of it.

    Attributes:
        trends: each with its results; empty where the page only names the table.
        expectations, failed: how many the contract has that were judged, and did not hold the last time for one of its
            topics. What it had before is history: nobody can mend that.
        quarantined: records that are set apart now.
    """

    table: str
    trends: Sequence[Trend]
    expectations: int
    failed: int
    quarantined: int = 0

    @property
    def state(self) -> str:
        """By which it is filtered."""
        return FAILED if self.failed else APART if self.quarantined else HELD if self.expectations else PAST


def of_all(
    found: Mapping[str, Sequence[Trend]],
    names: Collection[str],
    apart: Mapping[str, int] | None = None,
    *,
    slices: bool,
) -> list[Judged]:
    """These tables without their trends, those with most failures first.

    Args:
        apart: records in quarantine, by table.
        slices: what slices of backfills came to, in place of batches.
    """
    out = []
    for name in names:
        last = [(trend, result) for trend in found.get(name, ()) if (result := trend.newest(slices))]
        now = {trend.name for trend, _ in last if trend.judged}
        failed = {trend.name for trend, result in last if trend.judged and result.success is False}
        quarantined = (apart or {}).get(name, 0)
        if last or quarantined:
            out.append(Judged(name, (), len(now), len(failed), quarantined))
    return sorted(out, key=lambda each: (-each.failed, -each.quarantined, each.table))


def opened(
    tables: Sequence[Judged], found: Mapping[str, Sequence[Trend]], named: str, *, slices: bool
) -> tuple[list[Judged], list[Judged]]:
    """Those to be shown whole: all where they are few, else the one asked for and what needs a person; and the rest.

    Args:
        named: what was searched for.
    """
    wanted = [t for t in tables if len(tables) <= FEW or t.failed or t.quarantined or t.table == named]
    wanted = sorted(wanted, key=lambda t: t.table != named)[:OPEN]
    whole = {t.table for t in wanted}
    shown = []
    for each in wanted:
        trends = [trend.of_slices(slices) for trend in found.get(each.table, ())]
        shown.append(replace(each, trends=[trend for trend in trends if trend.results]))
    return shown, [t for t in tables if t.table not in whole]
