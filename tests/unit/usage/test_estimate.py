"""What-if estimates: from runs that fit a line, and refused where nothing could be measured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from sluice.errors import RefusedError
from sluice.usage.estimate import BYTES, CPU, estimate, fit_runs, parse_assumption
from sluice.usage.prices import GB, Prices
from sluice.usage.storage import Held
from sluice.usage.table_costs import TableRun

pytestmark = pytest.mark.unit
START = datetime(2026, 11, 1, tzinfo=UTC)
PRICES = Prices(currency="EUR", per_cpu_hour=3.6, per_gb_month=0.1)


def run(number: int, records: int, cpu: float, *, every: timedelta = timedelta(hours=1), rounds: int = 1) -> TableRun:
    at = START + every * number
    found = TableRun(at=at, since=at - every, run_id=str(number), runs=rounds, records=records, files=2.0 * rounds)
    found.cpu["publish"] = cpu
    found.staged_bytes, found.removed_bytes = 1000.0, 500.0
    return found


def history(count: int = 48, noise: Sequence[float] = (0.0,)) -> list[TableRun]:
    """Runs of 10 s and 20 s a million records, of 0.1 to 1 million."""
    sizes = [100_000 * (1 + n % 10) for n in range(count)]
    return [run(n, size, 10 + 20 * size / 1e6 + noise[n % len(noise)]) for n, size in enumerate(sizes)]


def test_fixed_cost_and_cost_of_records_are_separated_despite_outliers() -> None:
    runs = history()
    runs[5].cpu["publish"] = 900.0
    fit = fit_runs("db.t", runs)
    assert fit.fixed == pytest.approx(10, rel=0.01) and fit.per_million == pytest.approx(20, rel=0.01)
    assert (fit.runs, fit.rounds) == (48, False) and fit.error < 0.01


def test_another_cadence() -> None:
    made = estimate("db.t", "every=30m", history(), [])
    figures = {each.name: each for each in made.figures}
    records_per_day = sum(each.records for each in history()) / 2
    assert figures["runs per day"].now == pytest.approx(24) and figures["runs per day"].then == 48
    cpu = figures["CPU time per day"]
    assert cpu.unit == CPU and cpu.then == pytest.approx(48 * 10 + 20 * records_per_day / 1e6, rel=0.01)
    assert cpu.now == pytest.approx(24 * 10 + 20 * records_per_day / 1e6, rel=0.01)
    assert figures["files written per day"].then == pytest.approx(96)
    assert made.sure == "high" and "48 runs in 2.0 days" in made.basis
    now, then = made.monthly_price(PRICES)
    assert now == pytest.approx(30 * cpu.now / 1000) and then == pytest.approx(30 * cpu.then / 1000)


@pytest.mark.parametrize(
    ("runs", "assumption", "sure", "why"),
    [
        (history(), "every=1m", "medium", "none of 8,889 records was measured"),
        (history(), "every=7d", "low", "far larger"),
        (history(12), "every=1h", "low", "less than a day"),
        (history(28), "every=1h", "medium", "high needs 30"),
        (history(48, (0.0, 30.0, -30.0)), "every=1h", "low", "differ from the line by"),
    ],
)
def test_how_sure_it_is_has_a_reason(runs: list[TableRun], assumption: str, sure: str, why: str) -> None:
    made = estimate("db.t", assumption, runs, [])
    assert made.sure == sure and why in made.why


def test_rounds_of_a_continuous_group_are_not_mixed_with_runs() -> None:
    minutes = [run(n, 300 * size, 30 * (0.1 + size * 0.001), every=timedelta(minutes=1), rounds=30)
               for n, size in enumerate([10, 100, 500, 1000] * 5)]  # fmt: skip
    fit = fit_runs("db.t", [*history(), *minutes])
    assert fit.rounds and fit.runs == 20 and fit.fixed == pytest.approx(0.1, rel=0.01)


def test_retention_and_file_size() -> None:
    held = [Held("typed", "db.t", 5 * GB, 900, 7), Held("staging", "sluice_staging.t", 3 * GB, 9, 0)]
    staging = estimate("db.t", "staging_retention=7d", history(24 * 8), held)
    (figure,) = staging.figures
    assert (figure.unit, figure.now, staging.sure) == (BYTES, 3 * GB, "medium")
    assert figure.then == pytest.approx(24_000 * 7)
    assert staging.monthly_price(PRICES)[0] == pytest.approx(0.3)
    (figure,) = estimate("db.t", "snapshot_age=1d", history(), held).figures
    assert (figure.now, figure.then) == (7, pytest.approx(12_000))
    (figure,) = estimate("db.t", "file_size=1000000000", history(), held).figures
    assert (figure.now, figure.then) == (900, 5)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "0 measured runs"),
        (history(7), "7 measured runs"),
        ([run(n, 1000 + n, 5.0) for n in range(20)], "about the same size"),
        ([run(n, 0, 5.0) for n in range(20)], "0 measured runs"),
    ],
)
def test_too_little_history_is_refused(runs: list[TableRun], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        estimate("db.t", "every=1m", runs, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evry=1m", "did you mean"),
        ("every=fast", "a duration such as"),
        ("every=0s", "a duration such as"),
        ("file_size=12", "bytes, from 1000000"),
    ],
)
def test_an_assumption_that_is_not_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        parse_assumption(text)
