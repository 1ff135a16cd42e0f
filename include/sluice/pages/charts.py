"""The charts of a table: its batches and its files on one time axis. `charts.js` draws them with uPlot.

In: published batches, and the files of the snapshots. Out: a `Charts`, as JSON for the page's script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sluice.status.events import count_published

if TYPE_CHECKING:
    from sluice.pages.history import FileTotals
    from sluice.status.batch_counts import Bars

COUNT, SECONDS, BYTES = "count", "seconds", "bytes"
BATCHES, FILES = 0, 1
"""The tracks of `Charts`."""
MAX_POINTS = 400
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
        unit: `COUNT`, `SECONDS` or `BYTES`.
        summary: the chart in words, for screen readers.
        limit: a line that values should stay below, such as the freshness target.
        track: the times of its values, `BATCHES` or `FILES`.
    """

    title: str
    unit: str
    series: Sequence[Series]
    summary: str
    limit: float | None = None
    track: int = BATCHES


@dataclass(frozen=True)
class Track:
    """The times that several charts have values at.

    Attributes:
        times: in seconds since 1970, oldest first. Of a bar that sums up batches: its middle.
        links: per time the page of the table then.
        batches: per time how many batches there were; empty: the values hold until the next time.
        bar_s: the seconds of a bar that sums up batches.
        counted: what a bar sums up, where these are not batches.
    """

    times: Sequence[float]
    links: Sequence[str]
    batches: Sequence[int] = ()
    bar_s: int | None = None
    counted: str = "batches"


@dataclass(frozen=True)
class Charts:
    """Charts with a common time axis.

    Attributes:
        start, end: of the axis, in seconds since 1970.
    """

    start: float
    end: float
    tracks: Sequence[Track]
    charts: Sequence[Chart]

    @property
    def bar_s(self) -> int | None:
        """The seconds of a bar that sums up batches."""
        return self.tracks[BATCHES].bar_s

    @property
    def batches(self) -> int:
        """The number of batches."""
        return sum(self.tracks[BATCHES].batches)

    def as_json(self) -> dict[str, Any]:
        """All attributes, for the page's script."""
        return asdict(self)


def make_charts(
    found: Bars, files: Sequence[FileTotals], window: tuple[datetime, datetime], target: float | None,
    link: Callable[[datetime], str],
) -> Charts:  # fmt: skip
    """Make the charts of published batches and of files.

    Args:
        files: oldest first; also from before the axis.
        window: the first and the last time of the axis.
        target: the freshness target in seconds.
        link: the address of the table as of a time.
    """
    bars, start, end = found.bars, *(each.timestamp() for each in window)
    rejected = [each.rejected or 0 for each in bars]
    published = [count_published(e.records, e.rejected) for e in bars]
    commits = [each.commit_seconds for each in bars]
    rest = [None if e.seconds is None else e.seconds - (e.commit_seconds or 0.0) for e in bars]
    commit = [Series("commit", commits, "calm", stacked=True)] if any(c is not None for c in commits) else []
    apart = [Series("quarantined", rejected, "bad", stacked=True)] if any(rejected) else []
    one = found.seconds is None
    made = [
        _chart("Freshness", SECONDS, Series("age of the oldest record", [e.delay for e in bars]), limit=target),
        _chart("Records per batch" if one else "Records", COUNT, Series("published", published), *apart),
        _chart("Consumer lag before the batch", COUNT, Series("offsets", [e.unread for e in bars], "calm")),
        _chart("Duration of a publish" if one else "Longest publish", SECONDS, Series("without commit", rest), *commit),
    ]
    batches, known = _batch_track(found, link), _thin_files(files, window)
    track = Track([at for at, _ in known], [link(each.at) for _, each in known])
    count = Series("data files", [each.files for _, each in known], "calm")
    mean = Series("mean", [each.size / each.files if each.files else None for _, each in known], "calm")
    made += [
        _chart("Data files", COUNT, count, track=FILES),
        _chart("Mean file size", BYTES, mean, track=FILES),
    ]
    shown = [each for each in made if any(value is not None for value in each.series[0].values)]
    return Charts(start, end, [batches, track], shown)


def _batch_track(found: Bars, link: Callable[[datetime], str]) -> Track:
    times = [each.at.timestamp() for each in found.bars]
    if found.seconds:
        times = [(at // found.seconds + 0.5) * found.seconds for at in times]
    links = [link(each.at) for each in found.bars]
    return Track(times, links, [each.batches for each in found.bars], found.seconds)


def _thin_files(files: Sequence[FileTotals], window: tuple[datetime, datetime]) -> list[tuple[float, FileTotals]]:
    """The files at the start, after the last commit of each of at most `MAX_POINTS` lengths of time, and at the end."""
    start, end = (each.timestamp() for each in window)
    length = max((end - start) / MAX_POINTS, 1e-3)
    kept: dict[int, tuple[float, FileTotals]] = {}
    for each in files:
        at = each.at.timestamp()
        if at <= end:
            kept[max(int((at - start) // length), -1)] = (max(at, start), each)
    found = [kept[n] for n in sorted(kept)]
    return [*found, (end, found[-1][1])] if found else []


def _chart(title: str, unit: str, *series: Series, limit: float | None = None, track: int = BATCHES) -> Chart:
    from sluice.pages.render import format_elapsed, format_figure, format_size

    in_words = {SECONDS: format_elapsed, BYTES: format_size}.get(unit, format_figure)
    parts = []
    for each in series:
        found = [value for value in each.values if value is not None]
        if found:
            parts.append(f"{each.label} up to {in_words(max(found))}, last {in_words(found[-1])}")
    target = f"; target {in_words(limit)}" if limit is not None else ""
    return Chart(title, unit, series, f"{title}: {'; '.join(parts)}{target}", limit, track)
