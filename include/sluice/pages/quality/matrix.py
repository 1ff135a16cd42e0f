"""Expectation results as a matrix: a row per expectation, a column per batch of a topic.

In: the trends of a table. Out: a `Matrix` per topic, with the positions and words that the template shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.pages.quality import expectation_text
from sluice.status.text import utc_text

if TYPE_CHECKING:
    from sluice.ledger.quality_table import ExpectationResult
    from sluice.pages.quality.trends import Trend

COLUMNS = 30
"""Batches that a matrix shows."""
MAX_NAMED = 5
"""Failed batches that a row names."""
PASSED, FAILED, NOT_EVALUATED = "passed", "failed", "not evaluated"


@dataclass(frozen=True)
class Cell:
    """One expectation in one batch.

    Attributes:
        column: from 0, the oldest batch.
        word: `PASSED`, `FAILED` or `NOT_EVALUATED`.
        text: the word, the batch, the time and the outcome.
    """

    column: int
    word: str
    text: str


@dataclass(frozen=True)
class Line:
    """The observed values of one expectation, in a box that is `COLUMNS` wide and 1 high.

    Attributes:
        points: of the line, as in SVG.
        bounds: lines of the lower and the upper bounds, likewise.
        text: the line in words.
    """

    points: str
    bounds: Sequence[str]
    text: str


@dataclass(frozen=True)
class Row:
    """One expectation.

    Attributes:
        sentence: the expectation in words.
        name: type, columns and parameters.
        word: of the last result.
        share: how many of the rows with a value failed in the last batch; empty without a count of rows.
        tolerated: how many may fail, `none` or `at most 1 %`; empty where it is unknown.
        text: the cells in words.
    """

    trend: Trend
    sentence: str
    name: str
    word: str
    share: str
    tolerated: str
    cells: Sequence[Cell]
    text: str
    line: Line | None


@dataclass(frozen=True)
class Matrix:
    """The expectations of one topic.

    Attributes:
        batches: their numbers, oldest first.
        at: when the newest was evaluated.
        rows: those that failed last come first, removed expectations last.
    """

    topic: str
    batches: Sequence[int]
    at: datetime
    rows: Sequence[Row]


def make_matrices(trends: Iterable[Trend]) -> list[Matrix]:
    """Make the matrices of one table, by topic."""
    by_topic: dict[str, list[Trend]] = {}
    for trend in trends:
        by_topic.setdefault(trend.last.topic, []).append(trend)
    return [_make_matrix(topic, found) for topic, found in sorted(by_topic.items())]


def _make_matrix(topic: str, trends: Sequence[Trend]) -> Matrix:
    # Slices of a backfill are numbered from -1 down.
    batches = sorted({result.batch_seq for trend in trends for result in trend.results}, key=abs)[-COLUMNS:]
    columns = {seq: n for n, seq in enumerate(batches)}
    at = max(result.at for trend in trends for result in trend.results)
    rows = [_make_row(trend, columns) for trend in trends]
    rows.sort(key=lambda row: (not row.trend.judged, row.word != FAILED, row.sentence))
    return Matrix(topic, batches, at, rows)


def _make_row(trend: Trend, columns: dict[int, int]) -> Row:
    name = (trend.expectation, trend.column, trend.parameters)
    shown = {columns[r.batch_seq]: r for r in trend.results if r.batch_seq in columns}
    cells = [Cell(column, _word(result), _cell_text(result)) for column, result in sorted(shown.items())]
    share, tolerated = _failing_share(trend.last), expectation_text.tolerated_share(trend.parameters)
    return Row(
        trend,
        expectation_text.describe(*name),
        expectation_text.name_in_full(*name),
        _word(trend.last),
        "" if share is None else expectation_text.format_share(share),
        "" if tolerated is None else f"at most {expectation_text.format_share(tolerated)}" if tolerated else "none",
        cells,
        _row_text(list(shown.values())),
        _make_line(trend, shown),
    )


def _word(result: ExpectationResult) -> str:
    return NOT_EVALUATED if result.success is None else PASSED if result.success else FAILED


def _failing_share(result: ExpectationResult) -> float | None:
    """Of the rows with a value, because `mostly` is compared with this share."""
    if result.unexpected is None:
        return None
    rows = result.records - (result.missing or 0)
    return min(result.unexpected / rows, 1.0) if rows > 0 else 0.0


def _cell_text(result: ExpectationResult) -> str:
    where = f"batch {result.batch_seq}, {utc_text(result.at)}"
    if result.success is None:
        return f"{result.outcome}, {where}"
    share = _failing_share(result)
    found = result.outcome if share is None else f"{expectation_text.format_share(share)} of the rows fail"
    return f"{_word(result)}, {where}" + (f", {found}" if found != _word(result) else "")


def _row_text(results: Sequence[ExpectationResult]) -> str:
    """`28 passed, 2 failed: batches 117, 121`, or the last of more."""
    words = [_word(each) for each in results]
    counts = [f"{words.count(word)} {word}" for word in (PASSED, NOT_EVALUATED, FAILED) if word in words]
    failed = sorted((each.batch_seq for each in results if each.success is False), key=abs)
    if not failed:
        return ", ".join(counts)
    newest = ", ".join(map(str, failed[-MAX_NAMED:]))
    which = (
        f"the last in batches {newest}" if len(failed) > MAX_NAMED else f"batch{'es' if failed[1:] else ''} {newest}"
    )
    return f"{', '.join(counts)}: {which}"


def _make_line(trend: Trend, shown: dict[int, ExpectationResult]) -> Line | None:
    """The line of the observed values; None with fewer than two."""
    observed = {column: r.observed for column, r in sorted(shown.items()) if r.observed is not None}
    if len(observed) < 2:
        return None
    low, high = _bounds(trend, {column: shown[column] for column in observed})
    least, most = min(observed.values()), max(observed.values())
    # Eighths, because the difference of two doubles may be infinite. A bound that is far away would flatten the line.
    reach = max(most / 8 - least / 8, abs(most) / 8, abs(least) / 8)
    near = [v for v in (*low.values(), *high.values()) if least / 8 - reach <= v / 8 <= most / 8 + reach]
    bottom, top = min([least, *near]) / 8, max([most, *near]) / 8
    margin = (top - bottom) / 10 or abs(top) or 1.0
    bottom, top = bottom - margin, top + margin

    def place(values: dict[int, float]) -> str:
        return " ".join(f"{c + 0.5:g},{1 - (v / 8 - bottom) / (top - bottom):.3f}" for c, v in values.items())

    bounds = [place({c: v for c, v in each.items() if v in near}) for each in (low, high)]
    last = shown[max(observed)]
    parts = [f"observed {last.observed:,.6g} in batch {last.batch_seq}", f"{least:,.6g} to {most:,.6g} in all"]
    for word, each in (("at least", low), ("at most", high)):
        if max(observed) in each:
            parts.append(f"{word} {each[max(observed)]:,.6g} expected")
    return Line(place(observed), [each for each in bounds if each], ", ".join(parts))


def _bounds(trend: Trend, results: dict[int, ExpectationResult]) -> tuple[dict[int, float], dict[int, float]]:
    """The lower and the upper bound by column: of a drift as recorded, else as the parameters give them."""
    given = expectation_text.parse_parameters(trend.parameters) or {}
    fixed = [expectation_text.number(given.get(name, given.get("value"))) for name in ("min_value", "max_value")]
    found: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for column, result in results.items():
        for each, recorded, always in zip(found, (result.low, result.high), fixed, strict=True):
            bound = always if recorded is None else recorded
            if bound is not None:
                each[column] = bound
    return found
