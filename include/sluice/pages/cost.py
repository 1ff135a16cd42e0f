"""What tables cost, for the pages, the JSON API and the metrics. In: `sluice.costs`, prices. Out: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from sluice.contract import folder as contract_folder
from sluice.errors import ConfigError
from sluice.iceberg import availability
from sluice.iceberg import catalog as catalogs
from sluice.pages.charts import BYTES, COUNT, SECONDS, Chart, Charts, Series, Track
from sluice.plan import resolve_topics
from sluice.usage import overview, prices
from sluice.usage.costs_table import APPLICATION
from sluice.usage.overview import CostFacts, DayFacts
from sluice.usage.prices import Prices

DAYS = 30
DAY_S = 86_400


@dataclass(frozen=True)
class CostReading:
    """What a table cost in the last 30 days.

    Attributes:
        facts: None if no contract defines the table.
        prices: None without a price file.
        trouble: why the price file can't be used.
    """

    at: datetime
    facts: CostFacts | None
    prices: Prices | None = None
    trouble: str | None = None


def read_cost(name: str) -> CostReading:
    """Read what one table cost.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    tariff, trouble = None, None
    try:
        tariff = prices.load_prices()
    except ConfigError as error:
        trouble = str(error)
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        contracts = resolve_topics.resolve(contract_folder.load_contracts(strict=False), catalog, None)
        contract = contracts.tables.get(name)
        if contract is None:
            return CostReading(datetime.now(UTC), None, tariff, trouble)
        found = overview.read_table(catalog, contract, contracts, DAYS)
    return CostReading(found.at, found.facts(tariff), tariff, trouble)


def read_last_day() -> Mapping[str, DayFacts]:
    """Read what each table used in the last 24 hours, without prices.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    with availability.translate_catalog_errors(), catalogs.load() as catalog:
        contracts = resolve_topics.resolve(contract_folder.load_contracts(strict=False), catalog, None)
        found = overview.read_all(catalog, contracts, 1)
    return {name: DayFacts.of(used, None) for name, used in found.items()}


def make_charts(facts: CostFacts) -> Charts | None:
    """The charts of a table's costs by day; None if there are none."""
    from sluice.pages.render import format_elapsed, format_figure, format_size

    if not facts.days:
        return None
    middles = []
    for each in facts.days:
        begin = datetime.combine(datetime.fromisoformat(each.day or "").date(), time(), UTC)
        middles.append(begin.timestamp() + DAY_S / 2)
    outside = [each.cpu_seconds_by_step.get(APPLICATION, 0.0) for each in facts.days]
    steps = [each.cpu_seconds - rest for each, rest in zip(facts.days, outside, strict=True)]
    cpu = [Series("steps", steps), Series("start, plan and end", outside, "calm", stacked=True)]
    most = max(each.cpu_seconds for each in facts.days)
    files = [each.files for each in facts.days]
    written = [each.staged_bytes + each.written_bytes for each in facts.days]
    made = [
        Chart("CPU time per day", SECONDS, cpu, f"CPU time per day: up to {format_elapsed(most)}"),
        Chart("Bytes written per day", BYTES, [Series("bytes", written, "calm")],
              f"Bytes written per day: up to {format_size(max(written))}"),
        Chart("Files written per day", COUNT, [Series("files", files, "calm")],
              f"Files written per day: up to {format_figure(max(files))}"),
    ]  # fmt: skip
    end = facts.at + timedelta(days=1)
    track = Track(middles, [], [each.runs for each in facts.days], DAY_S, "runs")
    return Charts(middles[0] - DAY_S, max(end.timestamp(), middles[-1] + DAY_S), [track], made)
