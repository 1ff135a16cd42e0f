"""What another cadence, file size or retention would cost, from what past runs used. In: `TableRun`s, storage.

Out: an `Estimate` with its basis and how sure it is. With too little history it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from statistics import median, quantiles
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from sluice.contract.suggestions import did_you_mean
from sluice.contract.values import Duration
from sluice.errors import RefusedError
from sluice.usage.prices import Prices
from sluice.usage.storage import Held
from sluice.usage.table_costs import TableRun, total

DAY_S = 86_400
MIN_RUNS, MAX_RUNS = 8, 200
MIN_RATIO = 2.0
"""The larger runs must have so many times the records of the smaller ones: else nothing tells fixed cost from work."""
ASSUMPTIONS = ("every", "staging_retention", "snapshot_age", "file_size")


@dataclass(frozen=True)
class Fit:
    """CPU seconds of a run as a fixed part and a part per record, by Theil and Sen's estimator: outliers count little.

    Attributes:
        fixed: CPU seconds of a run, however few its records are.
        per_million: CPU seconds of a million records.
        runs: how many runs it is based on.
        error: the median distance of a run from the line, in CPU seconds.
        smallest, largest: records of the smaller and the larger runs (their 10th and 90th percentile).
        rounds: whether the runs are rounds of a continuous group.
    """

    fixed: float
    per_million: float
    runs: int
    error: float
    smallest: float
    largest: float
    rounds: bool

    def seconds(self, records: float) -> float:
        """CPU seconds of a run with so many records."""
        return self.fixed + self.per_million * records / 1e6


CPU, FILES, BYTES = "CPU s/day", "files/day", "bytes"


@dataclass(frozen=True)
class Figure:
    """One figure of an estimate, now and then; its unit is one of the constants above, which have a price, or empty."""

    name: str
    unit: str
    now: float
    then: float
    how: str


@dataclass(frozen=True)
class Estimate:
    """What an assumption would change.

    Attributes:
        basis: what it was measured on.
        sure: low, medium or high.
        why: the reason for that.
        left_out: what it does not say.
    """

    table: str
    assumption: str
    figures: Sequence[Figure]
    basis: str
    sure: str
    why: str
    left_out: Sequence[str] = ()
    fit: Fit | None = None

    def monthly_price(self, prices: Prices) -> tuple[float, float]:
        """The price of a month of 30 days, now and then, of the figures alone."""

        def price(unit: str, amount: float) -> float:
            if unit == CPU:
                return prices.work(30 * amount, 0, 0)
            return prices.work(0, 30 * amount, 0) if unit == FILES else prices.storage_month(amount)

        priced = [each for each in self.figures if each.unit]
        return sum(price(e.unit, e.now) for e in priced), sum(price(e.unit, e.then) for e in priced)


def parse_assumption(text: str) -> tuple[str, timedelta | int]:
    """Parse `every=1m`, `staging_retention=7d`, `snapshot_age=1d` or `file_size=256000000` (bytes).

    Raises:
        RefusedError: it is none of these.
    """
    name, _, value = text.partition("=")
    if name not in ASSUMPTIONS:
        raise RefusedError(
            f"--what-if {text!r} is not understood{did_you_mean(name, ASSUMPTIONS)}.",
            next_step=f"Give one of {', '.join(f'{each}=…' for each in ASSUMPTIONS)}.",
        )
    try:
        if name == "file_size":
            return name, TypeAdapter(Annotated[int, Field(ge=1_000_000)]).validate_python(value)
        found: timedelta = TypeAdapter(Duration).validate_python(value)
        if found < timedelta(seconds=1):
            raise ValueError
        return name, found
    except (ValidationError, ValueError) as error:
        expected = "bytes, from 1000000 on" if name == "file_size" else "a duration such as 1m, 2h or 7d"
        raise RefusedError(f"--what-if {name}: {value!r} is not {expected}.") from error


def fit_runs(table: str, runs: Sequence[TableRun]) -> Fit:
    """Separate the fixed cost of a table's runs from the cost of records.

    Raises:
        RefusedError: there are too few runs, or all have about the same size.
    """
    known = [run for run in runs if run.kind == "ingest" and run.records]
    if known:  # of runs and rounds, only what the last one was
        known = [run for run in known if (run.runs > 1) == (known[-1].runs > 1)][-MAX_RUNS:]
    if len(known) < MIN_RUNS:
        raise RefusedError(
            f"There are {len(known)} measured runs with records; an estimate needs {MIN_RUNS}.",
            next_step="Let the group run on, or read more days (--days).",
            table=table,
        )
    points = [(run.records / run.runs, run.cpu_seconds / run.runs) for run in known]
    tenths = quantiles((records for records, _ in points), n=10)
    smallest, largest = tenths[0], tenths[-1]
    if largest < MIN_RATIO * max(smallest, 1.0):
        raise RefusedError(
            f"All runs had about the same size ({smallest:,.0f} to {largest:,.0f} records), so that the fixed cost of "
            "a run can't be told from the cost of its records.",
            next_step="Read more days (--days), or run the group once at another cadence.",
            table=table,
        )
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    slope = max(median(slopes), 0.0)
    fixed = max(median(y - slope * x for x, y in points), 0.0)
    error = median(abs(y - fixed - slope * x) for x, y in points)
    rounds = known[-1].runs > 1
    return Fit(fixed, slope * 1e6, len(known), error, smallest, largest, rounds)


def days_of(runs: Sequence[TableRun]) -> float:
    """The days from the first run to the last; at least an hour."""
    return max((runs[-1].at - runs[0].since).total_seconds() / DAY_S, 1 / 24) if runs else 0.0


def estimate(table: str, assumption: str, runs: Sequence[TableRun], held: Sequence[Held]) -> Estimate:
    """Estimate what an assumption would change for a table.

    Args:
        assumption: as `parse_assumption` takes it.
        runs: all runs of the table, oldest first.
        held: what its tables hold in storage.

    Raises:
        RefusedError: the assumption is not understood, or there is too little history.
    """
    name, value = parse_assumption(assumption)
    if name == "every" and isinstance(value, timedelta):
        return _cadence(table, assumption, value, runs)
    return _storage(table, assumption, value, runs, held)


def _cadence(table: str, assumption: str, every: timedelta, runs: Sequence[TableRun]) -> Estimate:
    fit, days = fit_runs(table, runs), days_of(runs)
    ingest = [run for run in runs if run.kind == "ingest"]
    used = total(ingest)
    count, then = sum(run.runs for run in ingest) / days, DAY_S / every.total_seconds()
    records, files = used.records / days, used.files / days
    each = records / then
    cpu = then * fit.fixed + fit.per_million * records / 1e6
    what = "round" if fit.rounds else "run"
    figures = [
        Figure(f"{what}s per day", "", count, then, f"one every {assumption.partition('=')[2]}"),
        Figure(f"records per {what}", "", used.records / max(count * days, 1), each, "records per day stay the same"),
        Figure("CPU time per day", CPU, used.cpu_seconds / days, cpu,
               f"{what}s of {fit.fixed:,.2f} s + {fit.per_million:,.2f} s per million records"),
        Figure("files written per day", FILES, files, files / count * then if count else 0.0,
               f"as many files per {what} as measured"),
    ]  # fmt: skip
    sure, why = _judge(fit, each, days)
    left_out = [
        "more and smaller files need more maintenance",
        f"a {what} in which the topic has nothing new costs less",
        "the cadence is the group's: its other tables change, too",
    ]
    if not fit.rounds:
        left_out.append("a group with `schedule: continuous` starts no application per round")
    basis = f"{fit.runs} {what}s in {days:,.1f} days, of {fit.smallest:,.0f} to {fit.largest:,.0f} records, "
    basis += f"{fit.error:,.2f} CPU seconds from the line in the median"
    return Estimate(table, assumption, figures, basis, sure, why, left_out, fit)


def _judge(fit: Fit, records: float, days: float) -> tuple[str, str]:
    """How sure an estimate of a run with so many records is, and why."""
    error = fit.error / max(fit.seconds(records), 1e-9)
    if records > 2 * fit.largest:
        return "low", f"runs of {records:,.0f} records are far larger than those that were measured"
    if error > 0.4:
        return "low", f"runs differ from the line by {error:.0%} of such a run"
    if days < 1:
        return "low", "there is less than a day of history"
    if not fit.smallest / 2 <= records <= fit.largest:
        return "medium", f"runs differ from the line by {error:.0%}, but none of {records:,.0f} records was measured"
    if fit.runs < 30 or error > 0.15:
        return "medium", f"{fit.runs} runs that differ from the line by {error:.0%}; high needs 30, and at most 15%"
    return "high", f"{fit.runs} runs, also of this size, that differ from the line by {error:.0%}"


def _storage(
    table: str, assumption: str, value: timedelta | int, runs: Sequence[TableRun], held: Sequence[Held]
) -> Estimate:
    days, used = days_of(runs), total(runs)
    if len(runs) < MIN_RUNS:
        raise RefusedError(
            f"There are {len(runs)} measured runs; an estimate needs {MIN_RUNS}.",
            next_step="Let the group run on, or read more days (--days).",
            table=table,
        )
    by_kind: dict[str, list[Held]] = {}
    for each in held:
        by_kind.setdefault(each.kind, []).append(each)
    typed, staging = by_kind.get("typed", []), by_kind.get("staging", [])
    sure, why = ("medium", f"{days:,.1f} days of history") if days >= 7 else ("low", "less than a week of history")
    left_out: list[str] = []
    if isinstance(value, timedelta):
        kept = value.total_seconds() / DAY_S
        if assumption.startswith("staging"):
            rate, now, name = used.staged_bytes / days, sum(h.live for h in staging), "staging"
            left_out.append(
                "of a topic that feeds several tables, this is the table's share; the longest retention wins"
            )
        else:
            rate, now, name = used.removed_bytes / days, sum(h.older for h in typed), "files of older snapshots"
            left_out.append("an older snapshot that a tag or `min_snapshots` keeps is kept longer")
        figures = [
            Figure(
                f"bytes of {name}",
                BYTES,
                now,
                rate * kept,
                f"{rate:,.0f} bytes per day, kept {assumption.partition('=')[2]}",
            )
        ]
    else:
        size, files = sum(h.live for h in typed), sum(h.files for h in typed)
        figures = [Figure("files of the table", "", files, math.ceil(size / value), f"{size:,} bytes in full files")]
        left_out += ["partitions that are smaller than a file", "what rewriting to another size costs was not measured"]
        sure, why = "low", "how well partitions fill a file is not known"
    basis = f"{len(runs)} runs in {days:,.1f} days"
    return Estimate(table, assumption, figures, basis, sure, why, left_out)
