"""The charts of a table's batches: one series of times, and values per chart. `charts.js` draws them with uPlot.

In: published batches. Out: a `Charts`, as JSON for the page's script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.status.events import Event

COUNT, SECONDS = "count", "seconds"
Values = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    """One value per batch.

    Attributes:
        tone: the colour, one of `good`, `bad` and `calm`.
        stacked: drawn on top of the series before it.
    """

    label: str
    values: Values
    tone: str = "good"
    stacked: bool = False


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        unit: `COUNT` or `SECONDS`.
        limit: a line that values should stay below, such as the freshness target.
        summary: the chart in words, for screen readers.
    """

    title: str
    unit: str
    series: Sequence[Series]
    summary: str
    limit: float | None = None


@dataclass(frozen=True)
class Charts:
    """Charts with a common time axis.

    Attributes:
        start, end: of the axis, in seconds since 1970.
        times: when each batch was published, likewise, oldest first.
        links: per batch the page of the table at that time.
    """

    start: float
    end: float
    times: Sequence[float]
    links: Sequence[str]
    charts: Sequence[Chart]

    def as_json(self) -> dict[str, Any]:
        """All attributes, for the page's script."""
        return asdict(self)


def make_charts(
    batches: Sequence[Event], window: tuple[datetime, datetime], target: float | None, link: Callable[[Event], str]
) -> Charts:
    """Make the charts of published batches.

    Args:
        batches: newest first.
        window: the first and the last time of the axis.
        target: the freshness target in seconds.
        link: the address of the table as of a batch.
    """
    ordered = sorted(batches, key=lambda each: each.at)
    rejected = [each.rejected or 0 for each in ordered]
    published = [None if e.records is None else e.records - (e.rejected or 0) for e in ordered]
    commits = [each.commit_seconds for each in ordered]
    rest = [None if e.seconds is None else e.seconds - (e.commit_seconds or 0.0) for e in ordered]
    commit = [Series("commit", commits, "calm", stacked=True)] if any(c is not None for c in commits) else []
    apart = [Series("quarantined", rejected, "bad", stacked=True)] if any(rejected) else []
    charts = [
        _chart("Freshness", SECONDS, Series("age of the oldest record", [e.delay for e in ordered]), limit=target),
        _chart("Records per batch", COUNT, Series("published", published), *apart),
        _chart("Consumer lag before the batch", COUNT, Series("offsets", [e.unread for e in ordered], "calm")),
        _chart("Duration of a publish", SECONDS, Series("without commit", rest), *commit),
    ]
    known = [each for each in charts if any(value is not None for value in each.series[0].values)]
    start, end = (each.timestamp() for each in window)
    return Charts(start, end, [e.at.timestamp() for e in ordered], [link(e) for e in ordered], known)


def _chart(title: str, unit: str, *series: Series, limit: float | None = None) -> Chart:
    from sluice.pages.render import format_elapsed, format_figure

    in_words = format_elapsed if unit == SECONDS else format_figure
    parts = []
    for each in series:
        found = [value for value in each.values if value is not None]
        if found:
            parts.append(f"{each.label} up to {in_words(max(found))}, last {in_words(found[-1])}")
    target = f"; target {in_words(limit)}" if limit is not None else ""
    return Chart(title, unit, series, f"{title}: {'; '.join(parts)}{target}", limit)
