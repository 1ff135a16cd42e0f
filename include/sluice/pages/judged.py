"""Which tables the page of data quality opens and which it only names, so that a thousand are one page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.pages.detail import Trend

OPEN = 25
FEW = 5
FAILED, HELD = "failed", "all held"


@dataclass(frozen=True)
class Judged:
    """A table's expectations.

    Attributes:
        trends: each with its results; empty where the page only names the table.
        expectations, failed: how many there are, and did not hold in the batch judged last.
    """

    table: str
    trends: Sequence[Trend]
    expectations: int
    failed: int

    @property
    def state(self) -> str:
        """By which it is filtered."""
        return FAILED if self.failed else HELD


def of_all(found: Mapping[str, Sequence[Trend]], names: Collection[str], *, slices: bool) -> list[Judged]:
    """These tables without their trends, those with most failures first.

    Args:
        slices: what slices of backfills came to, in place of batches.
    """
    out = []
    for name in names:
        last = [result for trend in found[name] if (result := trend.newest(slices))]
        if last:
            out.append(Judged(name, (), len(last), sum(r.success is False for r in last)))
    return sorted(out, key=lambda each: (-each.failed, each.table))


def opened(
    tables: Sequence[Judged], found: Mapping[str, Sequence[Trend]], named: str, *, slices: bool
) -> tuple[list[Judged], list[Judged]]:
    """Those to be shown whole: all where they are few, else the one that was asked for and what failed; and the rest.

    Args:
        named: what was searched for.
    """
    wanted = [t for t in tables if len(tables) <= FEW or t.failed or t.table == named]
    wanted = sorted(wanted, key=lambda t: t.table != named)[:OPEN]
    whole = {t.table for t in wanted}
    shown = []
    for each in wanted:
        trends = [trend.of_slices(slices) for trend in found[each.table]]
        shown.append(replace(each, trends=[trend for trend in trends if trend.results]))
    return shown, [t for t in tables if t.table not in whole]
